"""Keys on a real server, over HTTP and gRPC: every route and scope, the scheme, the order of checks."""

import re
from collections.abc import Callable

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from protocols.conftest import RPCS, Grpc, columns

from support.http import Api, Wire, ok, path, refused, request
from support.server import ServerProcess
from topics_gateway.routes import annotated_routes
from topics_proto.v1 import topics_service_pb2 as pb

GRANTS = {
    "full": {"read", "write", "delete", "admin"},
    "read": {"read"},
    "write": {"write"},
    "delete": {"delete"},
    "admin": {"admin"},
    "rw": {"read", "write"},
}
NEEDS = {
    "TopicsService.PutTopic": {"admin"},
    "TopicsService.GetTopic": {"read"},
    "TopicsService.ListTopics": {"read"},
    "TopicsService.DeleteTopic": {"delete"},
    "TopicsService.Append": {"write"},
    "TopicsService.AppendStream": {"write"},
    "TopicsService.Diff": {"read"},
    "TopicsService.BulkDiff": {"read"},
    "TopicsService.LocateTime": {"read"},
    "TopicsService.DeleteRecords": {"delete"},
    "QueueService.Claim": {"read", "write"},
    "QueueService.Ack": {"write"},
    "QueueService.Nack": {"write"},
    "QueueService.Extend": {"write"},
    "QueueService.Work": {"read", "write"},
    "QueueService.StopWork": {"read", "write"},
    "QueueService.Redrive": {"read", "write"},
    "QueueService.ListJobs": {"read"},
    "RouterService.PutRouter": {"admin"},
    "RouterService.GetRouter": {"read"},
    "RouterService.ListRouters": {"read"},
    "RouterService.DeleteRouter": {"delete"},
    "GroupService.ListGroups": {"read"},
    "GroupService.GetGroup": {"read"},
    "GroupService.DeleteGroup": {"delete"},
    "GroupService.Consume": {"read"},
    "GroupService.CommitPositions": {"read"},
    "GroupService.FetchPositions": {"read"},
    "GroupService.ResetPositions": {"delete"},
    "GroupService.DeletePositions": {"delete"},
    "WatchService.CreateWatch": {"read"},
    "WatchService.OpenWatch": {"read"},
    "WatchService.Watch": {"read"},
    "SqlService.Execute": set(),  # those of each statement
    "SqlService.Subscribe": set(),
    "SqlService.Consume": {"read"},
    "SqlService.Ack": {"read"},
    "AdminService.GetMetrics": {"read"},
    "AdminService.ListBulkReaders": {"read"},
    "AdminService.CreateCheckpoint": {"admin"},
    "AdminService.ReleaseCheckpoint": {"admin"},
    "AdminService.GetCluster": {"read"},
    "AdminService.MoveShard": {"admin"},
    "AdminService.DrainNode": {"admin"},
    "AdminService.SetShardZone": {"admin"},
    "AdminService.GetHealth": None,  # no key at all
    "AdminService.GetReady": None,
}
OPEN_WATCH = "topics.v1.WatchService.OpenWatch"


# ------------------------------------------------------------ routes and scopes


@pytest.mark.parametrize(("name", "method", "template"), list(annotated_routes()))
@pytest.mark.parametrize("key", [None, "unknown", *GRANTS])
def test_every_route_over_http(
    http: Callable[..., Api], name: str, method: str, template: str, key: str | None
) -> None:
    needs = NEEDS[name.removeprefix("topics.v1.")]
    target = re.sub(r"\{\w+\}", "absent", template)
    response = http(key).send(method, target, {} if method in ("POST", "PUT") else None)
    if needs is None:
        assert response.status_code == 200
    elif name == OPEN_WATCH:
        refused(response, 404, "not_found")  # a session that is there asks for the very key that made it
    elif key not in GRANTS:
        assert "detail" not in refused(response, 401, "unauthorized")
    elif not needs <= GRANTS[key]:
        assert "detail" not in refused(response, 403, "forbidden")
    else:
        assert response.status_code not in (401, 403, 429, 500)


@pytest.mark.parametrize("method", RPCS, ids=lambda rpc: rpc.name)
@pytest.mark.parametrize("key", [None, "unknown", *GRANTS])
def test_every_rpc_over_grpc(rpc: Callable[..., Grpc], method: MethodDescriptor, key: str | None) -> None:
    needs = NEEDS[method.full_name.removeprefix("topics.v1.")]
    result = rpc(key).any(method)
    if needs is None:
        assert result is None
    elif key not in GRANTS:
        assert result is not None
        assert result[:4] == ("UNAUTHENTICATED", "UNAUTHORIZED", {}, None)
    elif not needs <= GRANTS[key]:
        assert result is not None
        assert result[:4] == ("PERMISSION_DENIED", "FORBIDDEN", {}, None)
    else:
        assert result is None or result.code not in ("UNAUTHENTICATED", "PERMISSION_DENIED", "INTERNAL", "UNKNOWN")


@pytest.mark.parametrize(
    ("method", "target", "needs", "statuses"),
    [
        ("GET", "/v0/topics/absent/xyz", "write", (404,)),
        ("POST", "/v0/topics/absent/diff/more", "write", (404,)),
        ("PATCH", "/v0/topics/absent", "write", (405,)),
        ("GET", "/v0/topics/absent/diff", "write", (405,)),
        ("PATCH", "/v0/routers/absent", "admin", (404, 405)),
        ("GET", "/v0/routers/absent/xyz", "admin", (404,)),
        ("POST", "/v0/topics", "", (405,)),
        ("GET", "/v0/topics/", "", (404,)),
        ("GET", "/nothing", "", (404,)),
        ("GET", "/metrics", "", (404,)),
        ("GET", "/%ff", "", (400,)),
    ],
)
def test_what_is_no_route(
    http: Callable[..., Api], method: str, target: str, needs: str, statuses: tuple[int, ...]
) -> None:
    for key in (None, "unknown"):
        refused(http(key).send(method, target), 401, "unauthorized")
    for key, grants in GRANTS.items():
        response = http(key).send(method, target)
        if needs and needs not in grants:
            refused(response, 403, "forbidden")
        else:
            assert response.status_code in statuses


def test_401_says_nothing(http: Callable[..., Api], rpc: Callable[..., Grpc]) -> None:
    name = http("full").make()
    answers = [
        (response.status_code, response.json()["error"], sorted(set(response.headers) - {"date"}))
        for response in (http(key).get(topic) for key in (None, "unknown") for topic in (name, "absent"))
    ]
    assert all(answer == answers[0] for answer in answers)
    assert "www-authenticate" not in answers[0][2]
    failures = [
        rpc(key).refused("GetTopic", pb.GetTopicRequest(topic=topic))
        for key in (None, "unknown")
        for topic in (name, "absent")
    ]
    assert all(failure == failures[0] for failure in failures)


@pytest.mark.parametrize(
    ("header", "good"),
    [
        ("Bearer sekret-full", True), ("Bearer  sekret-full", True), ("bearer sekret-full", False), ("Bearer", False),
        ("BEARER sekret-full", False), ("Basic sekret-full", False), ("sekret-full", False),
        ("Bearer sekret-ful", False), ("Bearer sekret-full:", False), ("Bearer sekret-full sekret-full", False),
        ("Bearer Sekret-full", False),
    ],
)  # fmt: skip
def test_the_scheme_is_exact(http: Callable[..., Api], rpc: Callable[..., Grpc], header: str, good: bool) -> None:
    response = http(None).send("GET", "/v0/topics", headers={"authorization": header})
    if good:
        ok(response)
        assert rpc(None, header=header).call("ListTopics", pb.ListTopicsRequest()) is not None
    else:
        refused(response, 401, "unauthorized")
        assert rpc(None, header=header).refused("ListTopics", pb.ListTopicsRequest()).code == "UNAUTHENTICATED"


def test_a_token_in_the_url_is_no_key(http: Callable[..., Api]) -> None:
    for target in ("/v0/topics", "/v0/metrics", "/v0/topics/absent"):
        refused(http(None).send("GET", target, params={"token": "sekret-full"}), 401, "unauthorized")
    ok(http("read").send("GET", "/v0/topics", params={"token": "sekret-unknown"}))


# -------------------------------------------------------------- order of checks


def test_401_and_403_come_before_the_body_is_judged(http: Callable[..., Api]) -> None:
    for kw in ({"body": "{"}, {"body": "x" * 150_000}, {"body": "{}", "headers": {"content-type": "text/plain"}}):
        refused(http(None).send("POST", path("absent"), **kw), 401, "unauthorized")
        refused(http("read").send("POST", path("absent"), **kw), 403, "forbidden")
        refused(http("t42").send("POST", path("absent"), **kw), 403, "forbidden")


def test_scope_is_judged_before_the_name(http: Callable[..., Api], rpc: Callable[..., Grpc]) -> None:
    message = refused(http("t42w").get("other"), 403, "forbidden")["message"]
    assert "read scope" in message
    assert rpc("t42w").refused("GetTopic", pb.GetTopicRequest(topic="other")).message == message
    assert "prefixes" in refused(http("t42w").write("other", [{"data": 1}]), 403, "forbidden")["message"]


def test_a_message_that_is_none_is_judged_after_the_key(rpc: Callable[..., Grpc]) -> None:
    for key, code in ((None, "UNAUTHENTICATED"), ("read", "PERMISSION_DENIED"), ("write", "INVALID_ARGUMENT")):
        caller = rpc(key)
        with pytest.raises(grpc.RpcError) as error:
            caller.channel.unary_unary("/topics.v1.TopicsService/Append")(b"\xff", metadata=caller.metadata, timeout=30)
        assert error.value.code().name == code


def test_a_refused_large_body_leaves_the_connection_usable(keyed: ServerProcess) -> None:
    with Wire(keyed.http_port) as wire:
        wire.send(request("POST", "/v0/topics/x", b"x" * 90_000))
        wire.send(request("GET", "/v0/topics", Authorization="Bearer sekret-read"))
        first, second = wire.reply(), wire.reply()
        assert first is not None
        assert second is not None
        assert (first.status, second.status) == (401, 200)


def test_a_large_grpc_message_without_a_key_is_not_read(rpc: Callable[..., Grpc]) -> None:
    large = pb.AppendRequest(topic="x", records=columns(b"1" * (32 << 20)))  # beyond what the server would take
    assert rpc(None).refused("Append", large).code == "UNAUTHENTICATED"
    assert rpc("full").refused("Append", large).code == "RESOURCE_EXHAUSTED"


def test_an_unknown_grpc_method_is_unimplemented_for_everyone_and_counted_nowhere(
    rpc: Callable[..., Grpc], http: Callable[..., Api]
) -> None:
    for key in (None, "read"):
        caller = rpc(key)
        with pytest.raises(grpc.RpcError) as error:
            caller.channel.unary_unary("/topics.v1.TopicsService/NoSuchCall")(b"", metadata=caller.metadata, timeout=30)
        assert error.value.code().name == "UNIMPLEMENTED"
    assert "NoSuchCall" not in http("read").send("GET", "/v0/metrics").text


def test_grpc_health_and_reflection_are_open(rpc: Callable[..., Grpc]) -> None:
    channel = rpc(None).channel
    reply = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=30)
    assert reply.status == health_pb2.HealthCheckResponse.SERVING
    asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
    listed = next(iter(reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(asked, timeout=30)))
    assert listed.list_services_response.service
