"""A key of some prefixes learns no name beyond them, also where somebody else tied one of its topics to another."""

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from protocols.conftest import with_key
from security.held import bearer

from support.http import Api, ok, path, refused
from support.kafka_wire import Wire
from support.server import ServerProcess
from topics_kafka.protocol import ApiKey
from topics_proto.v1 import topics_service_pb2 as pb
from topics_proto.v1 import topics_service_pb2_grpc

SECRET = "zzz-hidden"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    env = {"TOPICS_API_KEYS": "full-key,tenant::b."}
    with ServerProcess(tmp_path_factory.mktemp("leaks"), env=env, kafka=True) as server:
        yield server
        assert server.stop() == 0


@pytest.fixture
def full(server: ServerProcess) -> Iterator[Api]:
    with with_key(server.base, "full-key") as api:
        yield api


@pytest.fixture
def tenant(server: ServerProcess) -> Iterator[Api]:
    with with_key(server.base, "tenant") as api:
        yield api


def tie(full: Api, router: str, source: str, dest: str) -> None:
    ok(full.send("PUT", f"/v0/routers/{router}", {"source": source, "dest": dest}), 200, 201)


def test_routers_of_others(full: Api, tenant: Api) -> None:
    for name in (f"{SECRET}.a", f"{SECRET}.b", "b.x", "b.y", "b.z"):
        ok(full.put(name), 201)
    tie(full, f"{SECRET}.r", f"{SECRET}.a", "b.y")
    tie(full, "b.r", "b.y", f"{SECRET}.b")
    tie(full, f"{SECRET}.back", f"{SECRET}.b", "b.z")
    told = [
        tenant.send("PUT", "/v0/routers/b.mine", {"source": "b.x", "dest": "b.y"}),  # it is fed already
        tenant.send("PUT", "/v0/routers/b.mine", {"source": "b.z", "dest": "b.x"}),
        tenant.send("PUT", "/v0/routers/b.mine2", {"source": "b.x", "dest": "b.y"}),
        tenant.send("PUT", "/v0/routers/b.r", {"source": "b.x", "dest": "b.z"}),
        tenant.send("GET", "/v0/routers/b.r"),
        tenant.send("DELETE", "/v0/routers/b.r"),
        tenant.send("GET", "/v0/routers"),
        tenant.send("GET", "/v0/topics"),
        tenant.send("GET", "/v0/metrics"),
    ]
    assert [reply.status_code for reply in told] == [409, 201, 409, 403, 403, 403, 200, 200, 200]
    assert not [reply.text for reply in told if SECRET in reply.text]
    refused(told[0], 409, "topic_exists_incompatible")


def test_a_cycle_through_others(full: Api, tenant: Api) -> None:
    for name in ("b.c1", "b.c2", f"{SECRET}.c"):
        ok(full.put(name), 201)
    tie(full, f"{SECRET}.c1", "b.c1", f"{SECRET}.c")
    tie(full, f"{SECRET}.c2", f"{SECRET}.c", "b.c2")
    reply = tenant.send("PUT", "/v0/routers/b.cycle", {"source": "b.c2", "dest": "b.c1"})
    error = refused(reply, 409, "router_cycle")
    assert {"b.c1", "b.c2"} <= set(error["detail"]["cycle"])
    assert SECRET not in reply.text


def test_a_topic_that_takes_routers_of_others_along(full: Api, tenant: Api, server: ServerProcess) -> None:
    for name in ("b.d1", "b.d2", f"{SECRET}.d"):
        ok(full.put(name), 201)
    tie(full, f"{SECRET}.d1", "b.d1", f"{SECRET}.d")
    tie(full, "b.d2", f"{SECRET}.d", "b.d2")
    assert ok(tenant.drop("b.d1"))["routers_removed"] == []
    tie(full, f"{SECRET}.d3", "b.d2", f"{SECRET}.dd")
    with grpc.insecure_channel(server.grpc_target) as channel:
        stub = topics_service_pb2_grpc.TopicsServiceStub(channel)
        reply = stub.DeleteTopic(pb.DeleteTopicRequest(topic="b.d2"), metadata=bearer("tenant"), timeout=30)
    assert list(reply.routers_removed) == ["b.d2"]


def test_groups_of_others(full: Api, tenant: Api, server: ServerProcess) -> None:
    full.append(f"{SECRET}.g", 1)
    ok(full.put("b.g"), 201)
    positions = [{"topic": name, "from_seq": 0} for name in (f"{SECRET}.g", "b.g")]
    for group in ("b.group", f"{SECRET}.group"):
        ok(full.send("POST", f"/v0/groups/{group}/commit", {"positions": positions}), 200, 201)
    told = [
        tenant.send("GET", "/v0/groups"),
        tenant.send("GET", "/v0/groups/b.group"),
        tenant.send("GET", "/v0/groups/b.group/positions"),
        tenant.send("DELETE", "/v0/groups/b.group"),
        tenant.send("POST", "/v0/groups/b.group/reset", {"to": "earliest"}),
        tenant.send("GET", "/v0/metrics"),
    ]
    assert [reply.status_code for reply in told] == [200, 200, 200, 403, 403, 200]
    assert not [reply.text for reply in told if SECRET in reply.text]
    with Wire(server.kafka_port) as wire:
        assert wire.authenticate("tenant")["error_code"] == 0
        asked: list[tuple[ApiKey, int, dict[str, Any]]] = [
            (ApiKey.METADATA, 8, {"topics": None, "allow_auto_topic_creation": False}),
            (ApiKey.LIST_GROUPS, 4, {"states_filter": []}),
            (ApiKey.OFFSET_FETCH, 7, {"group_id": "b.group", "topics": None, "require_stable": False}),
            (ApiKey.DESCRIBE_LOG_DIRS, 2, {"topics": None}),
            (ApiKey.DELETE_GROUPS, 2, {"groups_names": ["b.group"]}),
            (ApiKey.DESCRIBE_GROUPS, 5, {"groups": ["b.group"], "include_authorized_operations": False}),
        ]
        answers = [repr(wire.call(api, version, **body)) for api, version, body in asked]
    assert not [answer for answer in answers if SECRET in answer]
    assert "b.g" in answers[0]


def test_a_cursor_names_nothing_that_is_not_watched(full: Api, tenant: Api) -> None:
    """An id that somebody else was given."""
    full.append(f"{SECRET}.w", 1, 2)
    ok(full.put("b.w"), 201)
    made = ok(full.send("POST", "/v0/watch", {"topics": {f"{SECRET}.w": {}, "b.w": {}}}))
    assert SECRET in str(made)
    watch = tenant.send("POST", "/v0/watch", {"topics": {"b.w": {}}, "cursor": f"{SECRET}.w:1,b.w:0"})
    assert SECRET not in watch.text
    wid = made["wid"]
    stolen = tenant.client.get(f"/v0/watch/{wid}", headers={"accept": "text/event-stream"})
    assert stolen.status_code == 401
    assert SECRET not in stolen.text
    for pattern in ("*", "b*", f"{SECRET}.*"):
        refused(tenant.send("POST", "/v0/watch", {"topics": {pattern: {}}}), 403, "forbidden")


@pytest.mark.parametrize("name", ["b%2e%2e%2f", "B.x", "%62x", "\uff42.x", "b\u2024x", "b%00.x", "../b.x", "b"])
def test_what_only_looks_like_the_prefix(tenant: Api, name: str) -> None:
    """Names are compared byte for byte, once decoded, and never normalized."""
    for method in ("GET", "PUT", "DELETE"):
        reply = tenant.client.request(method, f"/v0/topics/{name}")
        assert reply.status_code in (400, 403, 404) or reply.json()["deleted"] is False, reply.text
    assert tenant.listing()["topics"] == [each for each in tenant.listing()["topics"] if each["topic"].startswith("b.")]


def test_dead_letters_of_others(full: Api, tenant: Api) -> None:
    """A queue whose dead letters leave its names is for keys that may touch both."""
    ok(full.put("b.q", type="queue", dead_letter=f"{SECRET}.dlq"), 201)
    refused(tenant.send("POST", path("b.q", "/redrive"), {}), 403, "forbidden")
