"""Routers over HTTP and gRPC on a real server: the same rules, bodies and errors on both; readers read their writes."""

import base64
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import grpc
import pytest
from protocols.conftest import Refusal, refusal, with_key

from support.http import Api, fresh, member, ok, refused
from support.server import ServerProcess
from support.waiting import poll
from topics_proto.v1 import record_pb2, router_pb2, router_service_pb2_grpc
from topics_proto.v1 import router_service_pb2 as pb

CONFIG = {
    "preserve_node": True,
    "preserve_tag": True,
    "filter": None,
    "allow_cycle": False,
    "guarantee": "at_least_once",
}


def router_path(name: str) -> str:
    return f"/v0/routers/{quote(name, safe='')}"


def put(api: Api, name: str, source: str, dest: str, **config: Any) -> dict[str, Any]:
    return ok(api.send("PUT", router_path(name), {"source": source, "dest": dest, **config}), 200, 201)


def get(api: Api, name: str) -> dict[str, Any]:
    return ok(api.send("GET", router_path(name)))


def route(api: Api, **config: Any) -> tuple[str, str, str]:
    """New source, destination and router."""
    source, dest, name = fresh("src"), fresh("dst"), fresh("r")
    put(api, name, source, dest, **config)
    return source, dest, name


def datas(api: Api, topic: str) -> list[Any]:
    return [record["data"] for record in api.read_all(topic)]


class Stub:
    """RouterService, with a key or without."""

    def __init__(self, target: str, key: str = "") -> None:
        self._channel = grpc.insecure_channel(target)
        self._stub = router_service_pb2_grpc.RouterServiceStub(self._channel)
        self._metadata = (("authorization", f"Bearer {key}"),) if key else ()

    def call(self, request: Any) -> Any:
        name = type(request).__name__.removesuffix("Request")
        return getattr(self._stub, name)(request, metadata=self._metadata, timeout=30)

    def refused(self, request: Any) -> Refusal:
        with pytest.raises(grpc.RpcError) as error:
            self.call(request)
        return refusal(error.value)

    def put(self, name: str, source: str, dest: str, **config: Any) -> Any:
        return self.call(pb.PutRouterRequest(router=name, config={"source": source, "dest": dest, **config}))

    def close(self) -> None:
        self._channel.close()


@pytest.fixture
def stub(server: ServerProcess) -> Iterator[Stub]:
    stub = Stub(server.grpc_target)
    yield stub
    stub.close()


# ------------------------------------------------------------------ bodies, both protocols


def test_http_bodies(api: Api) -> None:
    source, dest, name = fresh("src"), fresh("dst"), fresh("r") + "->x"
    reply = api.send("PUT", router_path(name), {"source": source, "dest": dest})
    body = ok(reply, 201)
    assert body.pop("performance")["server_total_ms"] > 0
    assert list(body.items()) == [
        ("router", name), ("created", True), ("source", source), ("dest", dest), *CONFIG.items(),
    ]  # fmt: skip
    again = ok(api.send("PUT", router_path(name), {"source": source, "dest": dest}))
    assert (again["created"], again["dest"]) == (False, dest)
    state = get(api, name)
    state.pop("performance")
    assert list(state.items()) == [
        ("router", name), ("source", source), ("dest", dest), *CONFIG.items(),
        ("forwarded_total", 0), ("lag_records", 0), ("last_error", None),
    ]  # fmt: skip
    listing = ok(api.send("GET", "/v0/routers", params={"source": source}))
    assert listing["routers"] == [
        {"router": name, "source": source, "dest": dest, "guarantee": "at_least_once", "forwarded_total": 0,
         "lag_records": 0}
    ]  # fmt: skip
    assert "next_cursor" not in listing
    assert api.send("HEAD", router_path(name)).status_code == 200
    gone = ok(api.send("DELETE", router_path(name)))
    assert (gone["router"], gone["deleted"]) == (name, True)
    assert ok(api.send("DELETE", router_path(name)))["deleted"] is False
    error = refused(api.send("GET", router_path(name)), 404, "router_not_found")
    assert error["detail"] == {"router": name}


@pytest.mark.parametrize(
    ("given", "echoed"),
    [
        (["tag", "Eq", "a*"], ["tag", "Eq", "a*"]),
        (["tag", "Glob", "a*"], ["tag", "Glob", "a*"]),
        (["tag", "Glob", "*"], ["tag", "Glob", "*"]),
        ("a*", ["tag", "Eq", "a*"]),
        ("", ["tag", "Eq", ""]),
        (None, None),
    ],
)
def test_filters_are_echoed_as_tuples(api: Api, stub: Stub, given: Any, echoed: Any) -> None:
    source, dest, name = fresh(), fresh(), fresh()
    body = ok(api.send("PUT", router_path(name), {"source": source, "dest": dest, "filter": given}), 201)
    assert body["filter"] == get(api, name)["filter"] == echoed
    config = stub.call(pb.GetRouterRequest(router=name)).state.config
    if echoed is None:
        assert not config.HasField("filter")
    elif echoed[1] == "Eq":
        assert config.filter.eq == echoed[2]
    else:
        assert config.filter.prefix == echoed[2][:-1]


def test_both_protocols_tell_the_same(api: Api, stub: Stub) -> None:
    source, dest, name = fresh(), fresh(), fresh()
    match = record_pb2.TagMatch(prefix="pub:")
    made = stub.put(
        name, source, dest, preserve_node=False, preserve_tag=False, filter=match, allow_cycle=True,
        guarantee=router_pb2.ROUTER_GUARANTEE_EXACTLY_ONCE, backfill=True, create_dest=True,
    )  # fmt: skip
    assert (made.router, made.created) == (name, True)
    assert made.performance.server_total_ms > 0
    assert made.config == router_pb2.RouterConfig(
        source=source, dest=dest, preserve_node=False, preserve_tag=False, filter=match, allow_cycle=True,
        guarantee=router_pb2.ROUTER_GUARANTEE_EXACTLY_ONCE,
    )  # fmt: skip
    state = get(api, name)
    assert {field: state[field] for field in CONFIG} == {
        "preserve_node": False, "preserve_tag": False, "filter": ["tag", "Glob", "pub:*"], "allow_cycle": True,
        "guarantee": "exactly_once",
    }  # fmt: skip
    api.append(source, 1)
    ok(api.write(source, [{"data": 2, "tag": "pub:x"}]))
    found = stub.call(pb.GetRouterRequest(router=name)).state
    assert (found.forwarded_total, found.lag_records, found.HasField("last_error")) == (1, 0, False)
    (line,) = stub.call(pb.ListRoutersRequest(dest=dest)).routers
    assert line == router_pb2.RouterSummary(
        router=name, source=source, dest=dest, guarantee=router_pb2.ROUTER_GUARANTEE_EXACTLY_ONCE, forwarded_total=1
    )
    assert not stub.put(name, source, dest).created
    defaults = stub.call(pb.GetRouterRequest(router=name)).state.config
    assert defaults == router_pb2.RouterConfig(
        source=source, dest=dest, preserve_node=True, preserve_tag=True,
        guarantee=router_pb2.ROUTER_GUARANTEE_AT_LEAST_ONCE,
    )  # fmt: skip
    assert stub.call(pb.DeleteRouterRequest(router=name)).deleted
    assert not stub.call(pb.DeleteRouterRequest(router=name)).deleted
    assert stub.refused(pb.GetRouterRequest(router=name))[:3] == ("NOT_FOUND", "ROUTER_NOT_FOUND", {"router": name})


def test_pages(api: Api, stub: Stub) -> None:
    stem = fresh("page")
    names = [f"{stem}>{i:03}" for i in range(7)]
    for name in names:
        put(api, name, f"{stem}-s", f"{name.replace('>', '-')}-d")
    query: dict[str, Any] = {"prefix": stem, "page_size": 3}
    seen: list[str] = []
    while True:
        page = ok(api.send("GET", "/v0/routers", params=query))
        seen += [line["router"] for line in page["routers"]]
        if "next_cursor" not in page:
            break
        assert json.loads(base64.b64decode(page["next_cursor"])) == {"after": seen[-1]}
        query["cursor"] = page["next_cursor"]
    assert seen == names
    cursor = base64.b64encode(json.dumps({"after": names[2]}, separators=(",", ":")).encode()).decode()
    for spelled in (cursor, cursor.replace("+", " ")):  # clients send it back unescaped
        page = ok(api.send("GET", f"/v0/routers?prefix={quote(stem)}&cursor={spelled}"))
        assert [line["router"] for line in page["routers"]] == names[3:]
    refused(api.send("GET", "/v0/routers", params={"cursor": "%%"}), 400, "invalid_request")
    assert len(ok(api.send("GET", "/v0/routers", params={"page_size": 0, "prefix": stem}))["routers"]) == 1
    assert stub.refused(pb.ListRoutersRequest(cursor="%%")).reason == "INVALID_REQUEST"
    page = stub.call(pb.ListRoutersRequest(prefix=stem, page_size=5))
    rest = stub.call(pb.ListRoutersRequest(prefix=stem, cursor=page.next_cursor))
    assert [line.router for line in (*page.routers, *rest.routers)] == names
    assert rest.next_cursor == ""


# ----------------------------------------------------------------------- bad input

WRONG = {
    "source": ["5", "null", '""', '"a b"', "[]", "{}", "true"],
    "dest": ["5", "null", '""', '".x"', '"source"'],
    "preserve_node": ["null", "1", '"yes"'],
    "preserve_tag": ["null", "0", "[]"],
    "create_dest": ["null", "1"],
    "backfill": ["null", '"true"'],
    "allow_cycle": ["null", "{}"],
    "guarantee": ["null", "1", '"at_most_once"', '""', '"EXACTLY_ONCE"'],
    "filter": ["5", "{}", '["tag","Eq"]', '["tag","Glob","x"]', '["node","Eq","x"]', '["tag","Eq",5]', "true", "[]"],
}


@pytest.mark.parametrize(("field", "text"), [(field, text) for field, texts in WRONG.items() for text in texts])
def test_wrong_fields(api: Api, field: str, text: str) -> None:
    name, source, dest = fresh(), fresh("source"), fresh("dest")
    body = {"source": f'"{source}"', "dest": f'"{dest}"'} | {field: f'"{source}"' if text == '"source"' else text}
    reply = api.send("PUT", router_path(name), "{" + ",".join(member(k, v)[1:-1] for k, v in body.items()) + "}")
    refused(reply, 400, "invalid_request")
    refused(api.send("GET", router_path(name)), 404, "router_not_found")
    refused(api.get(source), 404, "topic_not_found")


@pytest.mark.parametrize(
    "body", ["[]", "5", "", "{", '{"source":"a"}', '{"dest":"a"}', "{}", '{"source":"a","source":"b","dest":"c"}']
)
def test_wrong_bodies(api: Api, body: str) -> None:
    name = fresh()
    refused(api.send("PUT", router_path(name), body), 400, "invalid_request")
    refused(api.send("GET", router_path(name)), 404, "router_not_found")


def test_what_http_says_before_the_body(api: Api) -> None:
    name = fresh()
    refused(api.client.put(router_path(name)), 415, "unsupported_media_type")
    refused(api.client.put(router_path(name), content=b"{}"), 415, "unsupported_media_type")
    refused(api.send("POST", router_path(name), {}), 405, "method_not_allowed")
    refused(api.send("PUT", "/v0/routers", {}), 405, "method_not_allowed")
    refused(api.send("GET", router_path(name) + "/x"), 404, "not_found")
    refused(api.send("PUT", router_path("bad name"), {"source": "a", "dest": "b"}), 400, "invalid_request")
    refused(api.send("GET", router_path("bad name")), 404, "router_not_found")
    assert ok(api.send("DELETE", router_path("bad name")))["deleted"] is False


def test_unknown_fields_are_ignored(api: Api) -> None:
    source, dest = fresh(), fresh()
    put(api, fresh(), source, dest, created_ts=5, forwarded_total="x", __proto__=None)


def test_wrong_messages(stub: Stub) -> None:
    name, source, dest = fresh(), fresh(), fresh()
    for config in (
        {},
        {"source": source},
        {"source": source, "dest": source},
        {"source": source, "dest": dest, "guarantee": 9},
        {"source": source, "dest": dest, "filter": record_pb2.TagMatch()},
    ):
        assert stub.refused(pb.PutRouterRequest(router=name, config=config)).reason == "INVALID_REQUEST"
    assert stub.refused(pb.PutRouterRequest(config={"source": source, "dest": dest})).reason == "INVALID_REQUEST"
    gone = pb.PutRouterRequest(router=name, config={"source": source, "dest": dest, "create_dest": False})
    assert stub.refused(gone)[:3] == ("NOT_FOUND", "TOPIC_NOT_FOUND", {"topic": dest})


def test_conflicts_on_both_protocols(api: Api, stub: Stub) -> None:
    source, dest, _ = route(api)
    third = fresh()
    error = refused(
        api.send("PUT", router_path(fresh()), {"source": third, "dest": dest}), 409, "topic_exists_incompatible"
    )
    assert error["detail"] == {"topic": dest, "reason": "router_dest_fan_in"}
    fan_in = stub.refused(pb.PutRouterRequest(router=fresh(), config={"source": third, "dest": dest}))
    assert fan_in[:3] == ("FAILED_PRECONDITION", "TOPIC_EXISTS_INCOMPATIBLE", error["detail"])
    put(api, fresh(), dest, third)
    name = fresh()
    error = refused(api.send("PUT", router_path(name), {"source": third, "dest": source}), 409, "router_cycle")
    assert error["detail"] == {"cycle": [third, source, dest, third]}
    cycle = stub.refused(pb.PutRouterRequest(router=name, config={"source": third, "dest": source}))
    assert cycle[:2] == ("FAILED_PRECONDITION", "ROUTER_CYCLE")
    assert json.loads(cycle.detail["cycle"]) == [third, source, dest, third]
    assert put(api, name, third, source, allow_cycle=True)["created"]


# ------------------------------------------------------------------ read your writes


@pytest.mark.parametrize("durability", ["disk", "fsync", "memory", "ephemeral"])
def test_a_reader_sees_what_was_acknowledged(api: Api, durability: str) -> None:
    source, dest, name = route(api)
    ok(api.put(dest, durability=durability))
    for i in range(1, 30):
        api.append(source, *[i] * (i % 5 + 1))
        match i % 3:
            case 0:
                assert datas(api, dest)[-1] == i
            case 1:
                assert api.state(dest)["head_seq"] == api.state(source)["head_seq"]
            case 2:
                state = get(api, name)
                assert (state["forwarded_total"], state["lag_records"]) == (api.state(source)["head_seq"], 0)
    assert datas(api, dest) == datas(api, source)


def test_a_claim_gets_what_was_acknowledged(api: Api) -> None:
    source, dest, name = fresh("src"), fresh("q"), fresh("r")
    ok(api.put(dest, type="queue"), 201)
    put(api, name, source, dest)
    for i in range(20):
        api.append(source, i)
        claimed = ok(api.send("POST", f"/v0/topics/{dest}/claim", {"node": "w"}))["claimed"]
        assert [job["data"] for job in claimed] == [i]


def test_a_long_poll_is_woken_by_copies(api: Api, server: ServerProcess) -> None:
    source, dest, _ = route(api)
    with Api(server.base) as other:
        results: list[dict[str, Any]] = []
        thread = threading.Thread(target=lambda: results.append(other.read(dest, wait_ms=20_000)))
        began = time.monotonic()
        thread.start()
        poll(lambda: api.state(dest, touch="false")["last_read_ts"], 20, "the reader is there")
        api.append(source, "news")
        thread.join(15)
        assert [record["data"] for record in results[0]["records"]] == ["news"]
        assert time.monotonic() - began < 10


def test_copies_come_without_anybody_asking(api: Api) -> None:
    """Metrics and listings do not drive forwarding; it is removed at once."""
    source, dest, name = route(api)
    api.append(source, *range(50))

    def listed() -> bool:
        (line,) = ok(api.send("GET", "/v0/routers", params={"source": source}))["routers"]
        return bool(line["forwarded_total"] == 50 and line["lag_records"] == 0)

    poll(listed, 20, "forwarding in the background")
    text = api.client.get("/v0/metrics").text
    assert f'topics_router_forwarded_total{{router="{name}"}} 50\n' in text
    assert f'topics_router_lag_records{{router="{name}"}} 0\n' in text
    assert ok(api.send("GET", "/v0/metrics", headers={"accept": "application/json"}))["routers"] >= 1
    assert dest in text


def test_a_large_backlog_is_waited_for(api: Api) -> None:
    source, dest = fresh(), fresh()
    for i in range(20):
        api.append(source, *range(i * 500, i * 500 + 500))
    put(api, fresh(), source, dest, backfill=True)
    assert datas(api, dest) == list(range(10_000))


def test_a_full_destination_ends_the_wait(api: Api) -> None:
    source, dest, name = route(api)
    ok(api.put(dest, cap_records=2, discard="reject"))
    api.append(source, 1, 2, 3, 4)
    began = time.monotonic()
    assert datas(api, dest) == [1, 2]
    state = get(api, name)
    assert (state["forwarded_total"], state["lag_records"]) == (2, 2)
    assert state["last_error"] == f'topic "{dest}" is full'
    assert time.monotonic() - began < 5
    blocked = re.search(r"^topics_routers_blocked (\d+)", api.client.get("/v0/metrics").text, re.MULTILINE)
    assert blocked is not None
    assert int(blocked[1]) >= 1
    api.rm(dest, before_seq=2)
    assert datas(api, dest) == [2, 3], "there is room now: a reader does not wait for the next try"
    api.rm(dest, before_seq=99)
    poll(lambda: api.state(dest)["head_seq"] == 4, 20, "the last one")
    assert get(api, name)["last_error"] is None


def test_other_ends(api: Api) -> None:
    source, dest, name = route(api)
    api.append(source, *range(3000))
    new_dest, new_source = fresh(), fresh()
    assert put(api, name, source, new_dest)["created"] is False
    assert datas(api, dest) == list(range(3000))
    api.append(source, "x")
    api.append(new_source, "before")
    put(api, name, new_source, new_dest)
    api.append(new_source, "after")
    assert datas(api, new_dest) == ["x", "after"]
    assert get(api, name)["forwarded_total"] == 3002
    ok(api.put(new_dest, cap_records=1, discard="reject"))
    api.append(new_source, "late")
    error = refused(api.send("PUT", router_path(name), {"source": source, "dest": new_dest}), 422, "topic_full")
    assert error["detail"]["topic"] == new_dest
    assert get(api, name)["source"] == new_source


def test_a_deleted_end_takes_its_routers(api: Api) -> None:
    source, dest, name = route(api)
    other = fresh("a")
    put(api, other, source, fresh())
    api.append(source, 1)
    assert datas(api, dest) == [1]
    assert ok(api.drop(source))["routers_removed"] == sorted([name, other])
    refused(api.send("GET", router_path(name)), 404, "router_not_found")
    assert datas(api, dest) == [1]


def test_an_end_is_deleted_in_the_middle(api: Api, server: ServerProcess) -> None:
    """Readers and writers meet no error but that the topic is gone."""
    source, dest, name = fresh("src"), fresh("dst"), fresh("r")
    stop = threading.Event()
    errors: list[str] = []

    def work(call: Callable[[Api], Any]) -> None:
        with Api(server.base) as mine:
            while not stop.is_set():
                reply = call(mine)
                if reply.status_code not in (200, 201, 404):
                    errors.append(reply.text)

    records = [{"data": i} for i in range(200)]
    calls = (
        lambda mine: mine.write(source, records),
        lambda mine: mine.diff(dest, limit=10),
        lambda mine: mine.send("GET", router_path(name)),
    )
    threads = [threading.Thread(target=work, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for i in range(25):
        put(api, name, source, dest, guarantee=("exactly_once", "at_least_once")[i % 2])
        api.append(source, 1)
        ok(api.drop((source, dest)[i % 2]))
    stop.set()
    for thread in threads:
        thread.join(20)
    assert not errors


def test_exactly_once_over_the_wire(api: Api) -> None:
    source, dest, name = route(api, guarantee="exactly_once")
    ok(api.write(source, [{"data": 1, "meta": {"k": "v"}}, {"data": 2}]), 200, 201)
    first, second = api.read_all(dest)
    identity = ok(api.get(source))
    stamp = second["meta"]["_topics_router"]
    assert first["meta"]["k"] == "v"
    assert list(stamp) == [
        "idempotency_key", "router", "source_topic", "source_topic_id", "source_epoch", "source_seq",
    ]  # fmt: skip
    assert stamp["idempotency_key"] == f"router:{name}:{identity['topic_id']}:{identity['epoch']}:2"
    ok(api.send("DELETE", router_path(name)))
    put(api, name, source, dest, guarantee="exactly_once", backfill=True)
    assert datas(api, dest) == [1, 2]
    assert get(api, name)["forwarded_total"] == 0


def test_survives_a_restart(start: Callable[..., ServerProcess]) -> None:
    server = start()
    with Api(server.base) as api:
        source, dest, name = route(api, filter=["tag", "Eq", "x"])
        ok(api.write(source, [{"data": 1, "tag": "x"}, {"data": 2}]), 200, 201)
        assert datas(api, dest) == [1]
        before = get(api, name)
    assert server.stop() == 0
    server.start()
    with Api(server.base) as api:
        after = get(api, name)
        del before["performance"], after["performance"]
        assert after == before
        ok(api.write(source, [{"data": 3, "tag": "x"}]))
        assert datas(api, dest) == [1, 3]


def test_the_most_routers(start: Callable[..., ServerProcess]) -> None:
    server = start(TOPICS_MAX_ROUTERS=1)
    with Api(server.base) as api:
        source, dest, name = route(api)
        refusal_ = api.send("PUT", router_path(fresh()), {"source": fresh("x"), "dest": fresh("y")})
        assert refused(refusal_, 429, "throttled")["detail"] == {"limit": "max_routers", "max": 1}
        assert refusal_.headers["retry-after"] == "1"
        assert [item["topic"] for item in api.listing()["topics"]] == sorted([source, dest])
        assert put(api, name, source, dest, preserve_tag=False)["created"] is False


# --------------------------------------------------------------------------- keys


def test_a_router_belongs_to_those_who_may_touch_all_of_it(keyed: ServerProcess) -> None:
    full, mine = with_key(keyed.base, "full"), with_key(keyed.base, "t42")
    stub = Stub(keyed.grpc_target, "sekret-t42")
    name, source, dest = fresh("t42:r"), fresh("t42:s"), fresh("t42:d")
    foreign = fresh("t43:x")
    for body in ({"source": foreign, "dest": dest}, {"source": source, "dest": foreign}):
        error = refused(mine.send("PUT", router_path(name), body), 403, "forbidden")
        assert error["detail"] == {"topic": foreign}
        answer = stub.refused(pb.PutRouterRequest(router=name, config=body))
        assert answer[:3] == ("PERMISSION_DENIED", "FORBIDDEN", {"topic": foreign})
    refused(full.get(source), 404, "topic_not_found")
    refused(mine.send("PUT", router_path(foreign), {"source": source, "dest": dest}), 403, "forbidden")
    put(mine, name, source, dest)
    get(mine, name)
    theirs = fresh("t42:theirs")
    put(full, theirs, source, foreign)
    for method in ("GET", "DELETE"):
        assert "detail" not in refused(mine.send(method, router_path(theirs)), 403, "forbidden"), "tells no other end"
    refused(mine.send("PUT", router_path(theirs), {"source": source, "dest": fresh("t42:n")}), 403, "forbidden")
    for request in (pb.GetRouterRequest(router=theirs), pb.DeleteRouterRequest(router=theirs)):
        assert stub.refused(request).reason == "FORBIDDEN"
    refused(mine.send("GET", router_path("t42:none")), 404, "router_not_found")
    assert ok(mine.send("DELETE", router_path("t42:none")))["deleted"] is False
    assert [line["router"] for line in ok(mine.send("GET", "/v0/routers"))["routers"]] == [name]
    assert [line.router for line in stub.call(pb.ListRoutersRequest()).routers] == [name]
    assert {line["router"] for line in ok(full.send("GET", "/v0/routers"))["routers"]} >= {name, theirs}
    shown = mine.client.get("/v0/metrics").text
    assert f'router="{name}"' in shown
    assert theirs not in shown
    assert foreign not in shown
    for api in (full, mine):
        api.close()
    stub.close()


def test_scopes(keyed: ServerProcess) -> None:
    name, source, dest = fresh("s"), fresh("s"), fresh("s")
    body = {"source": source, "dest": dest}
    with with_key(keyed.base, "admin") as api:
        ok(api.send("PUT", router_path(name), body), 201)
    wanted = {
        ("GET", router_path(name)): "read",
        ("GET", "/v0/routers"): "read",
        ("PUT", router_path(name)): "admin",
        ("DELETE", router_path(fresh())): "delete",
    }
    for key in ("read", "write", "delete", "admin"):
        with with_key(keyed.base, key) as api:
            for (method, target), scope in wanted.items():
                reply = api.send(method, target, body if method == "PUT" else None)
                assert reply.status_code == (200 if key == scope else 403), (key, method, target)
    with with_key(keyed.base, None) as api:
        refused(api.send("GET", "/v0/routers"), 401, "unauthorized")
