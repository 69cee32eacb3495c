"""Keys on a real server, over HTTP and gRPC: every route and scope, prefixes, the order of checks, the per-key cap."""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_status import rpc_status

from support.http import Api, Wire, fresh, ok, path, refused, request
from support.server import ServerProcess, StartFailedError
from support.waiting import poll
from topics.v1 import (
    admin_service_pb2,
    admin_service_pb2_grpc,
    queue_service_pb2,
    record_pb2,
    router_service_pb2,
    topic_pb2,
    topics_service_pb2_grpc,
    watch_service_pb2,
)
from topics.v1 import topics_service_pb2 as pb
from topics_gateway.routes import annotated_routes

KEYS = {
    "full": "sekret-full",
    "read": "sekret-read:read",
    "write": "sekret-write:W",
    "delete": "sekret-delete:del",
    "admin": "sekret-admin:ADMIN",
    "rw": "sekret-rw: rw ",
    "wa": "sekret-wa:write+admin:t42:",
    "t42": "sekret-t42::t42:",
    "t42w": "sekret-t42w:write:t42:",
    "multi": "sekret-multi:read+write:t42:|shared.",
}
SECRETS = {name: entry.partition(":")[0] for name, entry in KEYS.items()} | {"unknown": "sekret-unknown"}
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
    "RouterService.PutRouter": {"admin"},
    "RouterService.GetRouter": {"read"},
    "RouterService.ListRouters": {"read"},
    "RouterService.DeleteRouter": {"delete"},
    "WatchService.CreateWatch": {"read"},
    "WatchService.OpenWatch": {"read"},
    "WatchService.Watch": {"read"},
    "AdminService.GetMetrics": {"read"},
    "AdminService.GetHealth": None,  # no key at all
    "AdminService.GetReady": None,
}
MODULES = (pb, queue_service_pb2, router_service_pb2, watch_service_pb2, admin_service_pb2)
RPCS = [
    rpc
    for module in MODULES
    for service in module.DESCRIPTOR.services_by_name.values()
    for rpc in service.methods
]  # fmt: skip


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    env = {"TOPICS_API_KEYS": ", ,".join(KEYS.values()), "TOPICS_LOG_LEVEL": "debug", "TOPICS_MAX_BODY_BYTES": 100_000}
    with ServerProcess(tmp_path_factory.mktemp("keyed"), env=env) as server:
        yield server
        assert f"with {len(KEYS)} API keys" in server.log
        assert server.stop() == 0
        assert "sekret" not in server.log
        assert " ERROR " not in server.log
        assert "Traceback" not in server.log


@pytest.fixture(scope="module")
def http(keyed: ServerProcess) -> Iterator[Callable[[str | None], Api]]:
    """`http("read")` calls with that key, `http(None)` without."""
    apis: dict[str | None, Api] = {}

    def api(key: str | None) -> Api:
        if key not in apis:
            apis[key] = with_key(keyed.base, key)
        return apis[key]

    yield api
    for each in apis.values():
        each.close()


def with_key(base: str, key: str | None) -> Api:
    api = Api(base)
    if key:
        api.client.headers["authorization"] = f"Bearer {SECRETS.get(key, key)}"
    return api


class Refusal(NamedTuple):
    """How a gRPC call failed."""

    code: str
    reason: str
    detail: dict[str, str]
    retry_after_ms: int | None
    message: str


class Grpc:
    """gRPC calls with a key, or any value of the authorization metadata."""

    def __init__(self, target: str, key: str | None, *, header: str | None = None) -> None:
        self.channel = grpc.insecure_channel(target)
        if key:
            header = f"Bearer {SECRETS.get(key, key)}"
        self.metadata = (("authorization", header),) if header is not None else ()
        self.topics = topics_service_pb2_grpc.TopicsServiceStub(self.channel)

    def call(self, name: str, request: Any, seconds: float = 10) -> Any:
        return getattr(self.topics, name)(request, metadata=self.metadata, timeout=seconds)

    def refused(self, name: str, request: Any) -> Refusal:
        with pytest.raises(grpc.RpcError) as error:
            self.call(name, request)
        return refusal(error.value)

    def any(self, rpc: MethodDescriptor) -> Refusal | None:
        """One call of any RPC, on absent topics; None if it succeeds."""
        message = message_factory.GetMessageClass(rpc.input_type)()
        for field in ("topic", "router"):
            if field in rpc.input_type.fields_by_name:
                setattr(message, field, "absent")
        method = f"/{rpc.containing_service.full_name}/{rpc.name}"
        encode = type(message).SerializeToString
        try:
            if rpc.client_streaming:
                list(self.channel.stream_stream(method, encode)(iter([message]), metadata=self.metadata, timeout=10))
            elif rpc.server_streaming:
                list(self.channel.unary_stream(method, encode)(message, metadata=self.metadata, timeout=10))
            else:
                self.channel.unary_unary(method, encode)(message, metadata=self.metadata, timeout=10)
        except grpc.RpcError as error:
            return refusal(error)
        return None


def refusal(error: grpc.RpcError) -> Refusal:
    code, info, retry = error.code().name, error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    status = rpc_status.from_call(error)
    if status is None:
        return Refusal(code, "", {}, None, error.details())
    assert status.details[0].Unpack(info)
    retries = any(detail.Unpack(retry) for detail in status.details)
    after = retry.retry_delay.ToMilliseconds() if retries else None
    return Refusal(code, info.reason, dict(info.metadata), after, status.message)


@pytest.fixture(scope="module")
def rpc(keyed: ServerProcess) -> Iterator[Callable[..., Grpc]]:
    """`rpc("read")` calls with that key, `rpc(None, header=...)` with this metadata."""
    made: list[Grpc] = []

    def caller(key: str | None, *, header: str | None = None) -> Grpc:
        made.append(Grpc(keyed.grpc_target, key, header=header))
        return made[-1]

    yield caller
    for each in made:
        each.channel.close()


def columns(*datas: bytes) -> Any:
    return [record_pb2.AppendRecord(data=data) for data in datas]


# --------------------------------------------------------------- routes and scopes


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


# ------------------------------------------------------------------ order of checks


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
            caller.channel.unary_unary("/topics.v1.TopicsService/NoSuchCall")(b"", metadata=caller.metadata, timeout=10)
        assert error.value.code().name == "UNIMPLEMENTED"
    assert "NoSuchCall" not in http("read").send("GET", "/v0/metrics").text


def test_grpc_health_and_reflection_are_open(rpc: Callable[..., Grpc]) -> None:
    channel = rpc(None).channel
    reply = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
    assert reply.status == health_pb2.HealthCheckResponse.SERVING
    asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
    listed = next(iter(reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(asked, timeout=10)))
    assert listed.list_services_response.service


# ----------------------------------------------------------------------- prefixes


def test_path_names(http: Callable[..., Api], rpc: Callable[..., Grpc]) -> None:
    mine = http("t42").make("t42:a")
    ok(http("t42").send("GET", "/v0/topics/" + mine.replace(":", "%3A")))
    ok(http("t42").send("GET", "/v0/topics/%7442:" + mine.removeprefix("t42:")))
    rpc("t42").call("GetTopic", pb.GetTopicRequest(topic=mine))
    http("full").make("t42-a")
    for name in ("t42", "t42-a", "t4", "T42:a", "x-t42:", "t43:a", " t42:", ""):
        assert "detail" not in refused(http("t42").get(name), 403, "forbidden") if name else True
        for call, message in (
            ("GetTopic", pb.GetTopicRequest(topic=name)),
            ("PutTopic", pb.PutTopicRequest(topic=name)),
            ("DeleteTopic", pb.DeleteTopicRequest(topic=name)),
            ("Append", pb.AppendRequest(topic=name, records=columns(b"1"))),
            ("Diff", pb.DiffRequest(topic=name)),
            ("DeleteRecords", pb.DeleteRecordsRequest(topic=name, before_seq=1)),
        ):
            assert rpc("t42").refused(call, message)[:3] == ("PERMISSION_DENIED", "FORBIDDEN", {})
    for method, target in (("PUT", ""), ("DELETE", ""), ("POST", ""), ("POST", "/diff"), ("POST", "/delete"),
                           ("GET", "/xyz"), ("PATCH", "")):  # fmt: skip
        refused(http("t42").send(method, path("t43:a", target)), 403, "forbidden")
    for prefix in ("t42:", "shared."):
        ok(http("multi").write(fresh(prefix), [{"data": 1}]), 201)
    refused(http("multi").write(fresh("shared"), [{"data": 1}]), 403, "forbidden")


def test_a_message_that_is_none_is_judged_after_the_key(rpc: Callable[..., Grpc]) -> None:
    for key, code in ((None, "UNAUTHENTICATED"), ("read", "PERMISSION_DENIED"), ("write", "INVALID_ARGUMENT")):
        caller = rpc(key)
        with pytest.raises(grpc.RpcError) as error:
            caller.channel.unary_unary("/topics.v1.TopicsService/Append")(b"\xff", metadata=caller.metadata, timeout=10)
        assert error.value.code().name == code


def test_a_config_on_a_write_that_creates_takes_admin(http: Callable[..., Api], rpc: Callable[..., Grpc]) -> None:
    config = topic_pb2.TopicConfig(ttl_ms=5000)
    for create in (None, True, False):
        name, given = fresh(), {} if create is None else {"create": create}
        for body in ({"ttl_ms": 5000}, {}):
            error = refused(http("write").write(name, [{"data": 1}], config=body, **given), 403, "forbidden")
            assert error["detail"] == {"topic": name}
        asked = pb.AppendRequest(topic=name, records=columns(b"1"), config=config, **given)
        assert rpc("write").refused("Append", asked)[:3] == ("PERMISSION_DENIED", "FORBIDDEN", {"topic": name})
        refused(http("full").get(name), 404, "topic_not_found")
    # the config comes before the records are judged, but not before the JSON is
    refused(http("write").write(fresh(), [], config={}), 403, "forbidden")
    refused(http("write").write(fresh(), [], config=5), 400, "invalid_request")
    name = fresh()
    ok(http("write").write(name, [{"data": 1}], config=None), 201)
    ok(http("write").write(name, [{"data": 1}], config={"ttl_ms": 5000}), 200)
    rpc("write").call("Append", pb.AppendRequest(topic=name, records=columns(b"1"), config=config))
    assert http("full").state(name)["config"]["ttl_ms"] == 0
    ok(http("wa").write(fresh("t42:c"), [{"data": 1}], config={"ttl_ms": 5000}), 201)


def test_dead_letters_stay_inside_the_prefixes(http: Callable[..., Api], rpc: Callable[..., Grpc]) -> None:
    queue = {"type": "queue", "dead_letter": "t43:dlq"}
    asked = topic_pb2.TopicConfig(type=topic_pb2.TOPIC_TYPE_QUEUE, dead_letter="t43:dlq")
    name, detail = fresh("t42:q"), {"topic": "t43:dlq"}
    assert refused(http("wa").put(name, **queue), 403, "forbidden")["detail"] == detail
    assert refused(http("wa").write(name, [{"data": 1}], config=queue), 403, "forbidden")["detail"] == detail
    refusals = [
        rpc("wa").refused("PutTopic", pb.PutTopicRequest(topic=name, config=asked)),
        rpc("wa").refused("Append", pb.AppendRequest(topic=name, records=columns(b"1"), config=asked)),
    ]
    assert [refusal[:3] for refusal in refusals] == [("PERMISSION_DENIED", "FORBIDDEN", detail)] * 2
    refused(http("full").get(name), 404, "topic_not_found")
    ok(http("wa").put(name, type="queue", dead_letter="t42:dlq"), 201)
    assert refused(http("wa").put(name, **queue), 403, "forbidden")["detail"] == detail
    ok(http("full").put(name, **queue))


def test_each_batch_of_a_stream_is_judged(rpc: Callable[..., Grpc], http: Callable[..., Api]) -> None:
    mine, other = fresh("t42:s"), fresh("t43:s")
    config = topic_pb2.TopicConfig(ttl_ms=1)
    appends = [
        pb.AppendRequest(topic=mine, records=columns(b"1")),
        pb.AppendRequest(topic=other, records=columns(b"1")),
        pb.AppendRequest(topic=fresh("t42:n"), records=columns(b"1"), config=config),
        pb.AppendRequest(topic=mine, records=columns(b"2")),
    ]
    caller = rpc("t42w")
    requests = iter([pb.AppendStreamRequest(request_id=i, append=append) for i, append in enumerate(appends)])
    responses = caller.topics.AppendStream(requests, metadata=caller.metadata, timeout=10)
    acks = [ack for response in responses for ack in response.acks]
    assert [(ack.request_id, ack.WhichOneof("outcome")) for ack in acks] == [
        (0, "appended"), (1, "error"), (2, "error"), (3, "appended"),
    ]  # fmt: skip
    assert dict(acks[1].error.detail) == {"topic": other}
    assert all(ack.error.reason == 5 for ack in acks[1:3])  # ERROR_REASON_FORBIDDEN
    assert http("full").state(mine)["head_seq"] == 2
    refused(http("full").get(other), 404, "topic_not_found")


def test_lists_show_what_the_key_may_know(http: Callable[..., Api], rpc: Callable[..., Grpc]) -> None:
    stem = fresh("l")
    mine = sorted(f"{prefix}{stem}:{i}" for prefix in ("t42:", "shared.") for i in range(5))
    for name in mine + [f"{prefix}{stem}:{i}" for prefix in ("t41:", "t42-", "shared-", "t43:", "") for i in range(3)]:
        ok(http("full").put(name), 201)
    for page_size in (1, 2, 3, 7, 1000):
        for prefix, expected in (("shared." + stem, mine[:5]), ("t42:" + stem, mine[5:])):
            pages = http_pages(http("multi"), prefix=prefix, page_size=page_size)
            assert pages == grpc_pages(rpc("multi"), prefix=prefix, page_size=page_size)
            assert flat(pages) == expected
            assert [len(page) for page in pages[:-1]] == [page_size] * (len(pages) - 1)
            assert pages[-1]
    shown = flat(http_pages(http("multi"), page_size=3))
    assert set(mine) <= set(shown)
    assert shown == sorted(shown)
    assert all(name.startswith(("t42:", "shared.")) for name in shown)
    assert shown == flat(grpc_pages(rpc("multi"), page_size=4))
    for prefix in ("t43:", "t42-", "u", "t42:~", "sharee"):
        assert http_pages(http("multi"), prefix=prefix, page_size=10) == [[]]
    for prefix in ("t", "t4", "t42", "t42:" + stem):
        pages = http_pages(http("t42"), prefix=prefix, page_size=1000)
        assert set(mine[5:]) <= set(pages[0])
        assert all(name.startswith("t42:") for name in pages[0])
    # a cursor that points outside
    cursor = ok(http("full").send("GET", "/v0/topics", params={"prefix": f"t41:{stem}", "page_size": 1}))["next_cursor"]
    page = ok(http("t42").send("GET", "/v0/topics", params={"cursor": cursor, "page_size": 1000}))
    assert set(mine[5:]) <= {topic["topic"] for topic in page["topics"]}


def test_metrics_name_what_the_key_may_know(http: Callable[..., Api], rpc: Callable[..., Grpc]) -> None:
    mine, other = http("full").make("t42:m"), http("full").make("t43:m")
    asked = admin_service_pb2.GetMetricsRequest()
    for key, shown in (("full", {mine, other}), ("t42", {mine}), ("read", {mine, other})):
        caller = rpc(key)
        stub = admin_service_pb2_grpc.AdminServiceStub(caller.channel)
        over_grpc = stub.GetMetrics(asked, metadata=caller.metadata, timeout=10).body.decode()
        for text in (http(key).send("GET", "/v0/metrics").text, over_grpc):
            assert {name for name in (mine, other) if f'topic_head_seq{{topic="{name}"}}' in text} == shown


def test_a_stream_holds_a_slot_until_it_ends(capped: ServerProcess) -> None:
    caller = Grpc(capped.grpc_target, "full")
    with with_key(capped.base, "full") as a, with_key(capped.base, "other") as b:
        name = a.make()
        a.append(name, 1)
        follow = pb.BulkDiffRequest(topic=name, follow=True)
        frames = caller.topics.BulkDiff(follow, metadata=caller.metadata, timeout=30)
        assert next(frames).next_from_seq == 1
        refused(a.get(name), 429, "throttled")
        ok(b.get(name))
        frames.cancel()
        poll(lambda: a.get(name).status_code == 200)
        end = threading.Event()
        requests = (pb.AppendStreamRequest() for _ in iter(end.wait, True))
        acks = caller.topics.AppendStream(requests, metadata=caller.metadata, timeout=30)
        poll(lambda: a.get(name).status_code == 429)
        end.set()
        assert list(acks) == []
        poll(lambda: a.get(name).status_code == 200)
    caller.channel.close()


def flat(pages: list[list[str]]) -> list[str]:
    return [name for page in pages for name in page]


def http_pages(api: Api, **params: Any) -> list[list[str]]:
    pages = []
    while True:
        reply = api.listing(**params)
        pages.append([topic["topic"] for topic in reply["topics"]])
        if not (cursor := reply.get("next_cursor")):
            return pages
        params["cursor"] = cursor


def grpc_pages(caller: Grpc, **fields: Any) -> list[list[str]]:
    pages = []
    while True:
        reply = caller.call("ListTopics", pb.ListTopicsRequest(**fields))
        pages.append([topic.topic for topic in reply.topics])
        if not reply.next_cursor:
            return pages
        fields["cursor"] = reply.next_cursor


# ------------------------------------------------------------- one key's share, probes


@pytest.fixture
def capped(start: Callable[..., ServerProcess]) -> ServerProcess:
    return start(TOPICS_API_KEYS="sekret-full,sekret-read:read,other", TOPICS_MAX_INFLIGHT_PER_KEY=1)


def test_the_cap_of_a_key(capped: ServerProcess) -> None:
    full, other = Grpc(capped.grpc_target, "full"), Grpc(capped.grpc_target, "other")
    with with_key(capped.base, "full") as a, with_key(capped.base, "other") as b, with_key(capped.base, "read") as r:
        name = a.make()
        for park, wake in ((http_park, True), (grpc_park, True), (http_park, False), (grpc_park, False)):
            with ThreadPoolExecutor(1) as pool:
                waiting = park(pool, capped, name, a.state(name)["head_seq"])
                busy = poll(lambda: (reply := a.get(name)).status_code == 429 and reply)
                error = refused(busy, 429, "throttled")
                assert error["detail"] == {"limit": "max_inflight_per_key", "max": 1}
                assert busy.headers["retry-after"] == "1"
                again = full.refused("GetTopic", pb.GetTopicRequest(topic=name))
                assert again[:4] == (
                    "RESOURCE_EXHAUSTED", "THROTTLED", {"limit": "max_inflight_per_key", "max": "1"}, 1000,
                )  # fmt: skip
                refused(a.send("GET", "/nothing"), 429, "throttled")
                for probe in ("/v0/health", "/v0/ready"):
                    ok(a.send("GET", probe))
                ok(b.get(name))
                ok(r.get(name))
                other.call("GetTopic", pb.GetTopicRequest(topic=name))
                if wake:
                    ok(b.write(name, [{"data": 1}]))
                    waiting.result(10)
                else:
                    waiting.leave()
            poll(lambda: a.get(name).status_code == 200)
    full.channel.close()
    other.channel.close()


def test_the_cap_comes_between_key_and_scope(capped: ServerProcess) -> None:
    with with_key(capped.base, "full") as a, with_key(capped.base, "read") as r, Api(capped.base) as nobody:
        name = a.make()
        with ThreadPoolExecutor(1) as pool:
            waiting = http_park(pool, capped, name, 0, key="read")
            poll(lambda: r.get(name).status_code == 429)
            refused(r.put("x"), 429, "throttled")
            refused(nobody.put("x"), 401, "unauthorized")
            ok(a.write(name, [{"data": 1}]))
            waiting.result(10)
        refused(r.put("x"), 403, "forbidden")


class Parked:
    """A long poll under way."""

    def __init__(self, result: Callable[[float], Any], leave: Callable[[], None]) -> None:
        self.result = result
        self.leave = leave


def http_park(pool: ThreadPoolExecutor, server: ServerProcess, name: str, seq: int, key: str = "full") -> Parked:
    wire = Wire(server.http_port, 30)
    body = json.dumps({"from_seq": seq, "wait_ms": 30_000}).encode()
    wire.send(request("POST", path(name, "/diff"), body, Authorization=f"Bearer {SECRETS[key]}"))

    def result() -> None:
        reply = wire.reply()
        assert reply is not None
        assert (reply.status, len(reply.json["records"])) == (200, 1)
        wire.close()

    return Parked(lambda seconds: pool.submit(result).result(seconds), wire.reset)


def grpc_park(pool: ThreadPoolExecutor, server: ServerProcess, name: str, seq: int) -> Parked:
    caller = Grpc(server.grpc_target, "full")
    waiting = pb.DiffRequest(topic=name, from_seq=seq, wait_ms=30_000)
    # The slot may still be held for a moment by the request before.
    call = caller.topics.Diff.future(waiting, metadata=caller.metadata, timeout=30)

    def result(seconds: float) -> None:
        assert len(call.result(seconds).records) == 1
        caller.channel.close()

    return Parked(result, caller.channel.close)


def test_there_is_no_cap_without_keys(start: Callable[..., ServerProcess]) -> None:
    server = start(TOPICS_MAX_INFLIGHT_PER_KEY=1)
    with Api(server.base) as api:
        name = api.make()
        began = time.monotonic()
        with ThreadPoolExecutor(4) as pool:
            replies = list(pool.map(lambda _: api.diff(name, wait_ms=300), range(4)))
        assert [reply.status_code for reply in replies] == [200] * 4
        assert time.monotonic() - began < 1.1
    assert "authentication is OFF" in server.log


def test_without_keys_the_header_is_ignored(api: Api) -> None:
    for header in ("Bearer whatever", "Basic x", ""):
        ok(api.send("GET", "/v0/topics", headers={"authorization": header}))


def test_probe_auth(start: Callable[..., ServerProcess]) -> None:
    server = start(TOPICS_API_KEYS="sekret-write:write,:read", TOPICS_PROBE_AUTH="true")
    nobody, caller = Grpc(server.grpc_target, None), Grpc(server.grpc_target, "write")
    with Api(server.base) as without, with_key(server.base, "write") as api:
        for probe in ("/v0/health", "/v0/ready", "/healthz", "/readyz"):
            refused(without.send("GET", probe), 401, "unauthorized")
            ok(poll(lambda: (reply := api.send("GET", probe)).status_code == 200 and reply))  # noqa: B023
        refused(without.send("GET", "/v0/metrics"), 401, "unauthorized")
        refused(api.send("GET", "/v0/metrics"), 403, "forbidden")
    for method in RPCS:
        if method.name in ("GetHealth", "GetReady"):
            assert nobody.any(method)[0] == "UNAUTHENTICATED"
            assert caller.any(method) is None
    check = health_pb2_grpc.HealthStub(nobody.channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
    assert check.status == health_pb2.HealthCheckResponse.SERVING
    nobody.channel.close()
    caller.channel.close()


def test_only_unusable_entries_let_nobody_in(start: Callable[..., ServerProcess]) -> None:
    server = start(TOPICS_API_KEYS=" :read ,")
    with Wire(server.http_port) as wire:
        for header in ("Bearer ", "Bearer  ", "Bearer read", "Bearer :read"):
            reply = wire.send(request("GET", "/v0/topics", Authorization=header)).reply()
            assert reply is not None
            assert reply.status == 401
    with Api(server.base) as api:
        ok(api.send("GET", "/v0/health"))


@pytest.mark.parametrize("keys", ["sekret:foo", "sekret-a,sekret-b:+", "sekret:sekret2:x", "sekret::|"])
def test_keys_that_cannot_be_read_are_a_refusal(tmp_path: Path, keys: str) -> None:
    server = ServerProcess(tmp_path, env={"TOPICS_API_KEYS": keys})
    with pytest.raises(StartFailedError, match="exited with 1"):
        server.start()
    assert "TOPICS_API_KEYS: entry" in server.log
    assert "sekret" not in server.log
    assert not server.data_dir.exists()
