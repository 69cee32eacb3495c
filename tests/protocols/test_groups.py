"""Consumer groups over HTTP and gRPC on a real server: one store, the same rules, bodies and errors on both."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc
import pytest
from protocols.conftest import Refusal, refusal

from support.http import NOT_INTEGERS, Api, fresh, member, ok, refused
from support.server import ServerProcess
from topics_proto.v1 import group_pb2, group_service_pb2_grpc, record_pb2, topic_pb2, topics_service_pb2
from topics_proto.v1 import group_service_pb2 as pb


def group_path(name: str, tail: str = "") -> str:
    return f"/v0/groups/{quote(name, safe='')}{tail}"


def consume(api: Api, group: str, topic: str, **body: Any) -> dict[str, Any]:
    return ok(api.send("POST", group_path(group, "/consume"), {"topic": topic, **body}))


def commit(api: Api, group: str, topic: str, from_seq: int, **body: Any) -> dict[str, Any]:
    return ok(api.send("POST", group_path(group, "/commit"), {"topic": topic, "from_seq": from_seq, **body}))


def positions(api: Api, group: str, **params: Any) -> dict[tuple[str, int], int]:
    found = ok(api.send("GET", group_path(group, "/positions"), params=params))["positions"]
    return {(position["topic"], position["partition"]): position["from_seq"] for position in found}


def filled(api: Api, count: int = 3, **config: Any) -> str:
    topic = api.make("grp", **config)
    api.append(topic, *range(1, count + 1))
    return topic


def datas(page: dict[str, Any]) -> list[Any]:
    return [record["data"] for record in page["records"]]


class Stub:
    """GroupService, with a key or without."""

    def __init__(self, target: str, key: str = "") -> None:
        self.channel = grpc.insecure_channel(target)
        self._stub = group_service_pb2_grpc.GroupServiceStub(self.channel)
        self._metadata = (("authorization", f"Bearer {key}"),) if key else ()

    def call(self, request: Any) -> Any:
        name = type(request).__name__.removesuffix("Request")
        return getattr(self._stub, name)(request, metadata=self._metadata, timeout=30)

    def refused(self, request: Any) -> Refusal:
        with pytest.raises(grpc.RpcError) as error:
            self.call(request)
        return refusal(error.value)

    def commit(self, group: str, topic: str, from_seq: int, **fields: Any) -> Any:
        return self.call(commit_request(group, topic, from_seq, **fields))


def commit_request(group: str, topic: str, from_seq: int, **fields: Any) -> pb.CommitPositionsRequest:
    return pb.CommitPositionsRequest(
        group=group, positions=[group_pb2.PositionCommit(topic=topic, from_seq=from_seq, **fields)]
    )


@pytest.fixture
def stub(server: ServerProcess) -> Iterator[Stub]:
    stub = Stub(server.grpc_target)
    yield stub
    stub.channel.close()


# ------------------------------------------------------------------ bodies, both protocols


def test_http_bodies(api: Api) -> None:
    topic, group = filled(api), fresh("ü/ ")
    page = consume(api, group, topic, limit=2, include_tags=True)
    assert page.pop("performance")["records_scanned"] == 2
    records = page.pop("records")
    assert [record["$seq"] for record in records] == [1, 2]
    assert list(page.items()) == [
        ("group", group), ("topic", topic), ("partition", 0), ("committed_from_seq", None), ("next_from_seq", 2),
        ("head_seq", 3), ("earliest_seq", 1), ("caught_up", False), ("tombstone", None), ("lag", 1),
    ]  # fmt: skip
    reply = commit(api, group, topic, 2, metadata="m")
    reply.pop("performance")
    stamp = reply["positions"][0]["commit_ts"]
    position = {
        "topic": topic, "partition": 0, "from_seq": 2, "metadata": "m", "commit_ts": stamp, "head_seq": 3,
        "earliest_seq": 1, "lag": 1,
    }  # fmt: skip
    assert reply == {"group": group, "created": True, "positions": [position]}
    assert list(reply["positions"][0]) == list(position)
    assert commit(api, group, topic, 2, metadata="m")["created"] is False
    state = ok(api.send("GET", group_path(group)))
    state.pop("performance")
    assert list(state) == ["group", "state", "protocol_type", "created_ts", "last_commit_ts", "members", "positions"]
    assert (state["group"], state["state"], state["protocol_type"], state["members"]) == (group, "Empty", "", [])
    assert state["created_ts"] <= state["last_commit_ts"]
    (line,) = ok(api.send("GET", "/v0/groups", params={"prefix": group}))["groups"]
    assert line == {
        "group": group, "state": "Empty", "protocol_type": "", "members": 0, "positions": 1,
        "last_commit_ts": state["last_commit_ts"],
    }  # fmt: skip
    assert consume(api, group, topic)["committed_from_seq"] == 2
    reply = ok(api.send("POST", group_path(group, "/reset"), {"to": "latest"}))
    assert (reply["group"], [each["from_seq"] for each in reply["positions"]]) == (group, [3])
    reply = ok(api.send("POST", group_path(group, "/positions/delete"), {"topic": topic}))
    assert (reply["group"], reply["deleted"]) == (group, 1)
    assert positions(api, group) == {}
    reply = ok(api.send("DELETE", group_path(group)))
    assert (reply["group"], reply["deleted"]) == (group, True)
    assert ok(api.send("DELETE", group_path(group)))["deleted"] is False
    for method, tail in (("GET", ""), ("GET", "/positions"), ("POST", "/reset")):
        body = {"to": 1} if method == "POST" else None
        error = refused(api.send(method, group_path(group, tail), body), 404, "group_not_found")
        assert error["detail"] == {"group": group}


def test_both_protocols_share_one_store(api: Api, stub: Stub) -> None:
    topic, group = filled(api), fresh("g")
    made = stub.commit(group, topic, 1, metadata="m")
    assert (made.group, made.created, made.performance.server_total_ms > 0) == (group, True, True)
    assert positions(api, group) == {(topic, 0): 1}
    commit(api, group, topic, 2, metadata="h")
    reply = stub.call(pb.ConsumeRequest(group=group, topic=topic, include_meta=False))
    assert (reply.group, reply.partition, reply.committed_from_seq) == (group, 0, 2)
    assert (reply.page.topic, reply.page.next_from_seq, reply.page.caught_up) == (topic, 3, True)
    assert [record.data for record in reply.page.records] == [b"3"]
    assert not reply.page.HasField("performance")
    assert reply.performance.records_scanned == 1
    (found,) = stub.call(pb.FetchPositionsRequest(group=group)).positions
    assert found == group_pb2.GroupPosition(
        topic=topic, from_seq=2, metadata="h", commit_ts_ms=found.commit_ts_ms, head_seq=3, earliest_seq=1, lag=1
    )
    state = stub.call(pb.GetGroupRequest(group=group)).state
    assert (state.group, state.state, list(state.positions), list(state.members)) == (group, "Empty", [found], [])
    assert state.last_commit_ts_ms == found.commit_ts_ms
    (line,) = stub.call(pb.ListGroupsRequest(prefix=group)).groups
    assert line == group_pb2.GroupSummary(group=group, state="Empty", positions=1, last_commit_ts_ms=found.commit_ts_ms)
    (moved,) = stub.call(pb.ResetPositionsRequest(group=group, to_end=group_pb2.LOG_END_EARLIEST)).positions
    assert (moved.from_seq, moved.lag) == (0, 3)
    assert datas(consume(api, group, topic)) == [1, 2, 3]
    targets = [group_pb2.TopicPartitions(topic=topic)]
    assert stub.call(pb.DeletePositionsRequest(group=group, topics=targets)).deleted == 1
    assert stub.call(pb.DeletePositionsRequest(group=group, topics=targets)).deleted == 0
    assert stub.call(pb.DeleteGroupRequest(group=group)).deleted
    assert not stub.call(pb.DeleteGroupRequest(group=group)).deleted
    assert stub.refused(pb.GetGroupRequest(group=group))[:3] == ("NOT_FOUND", "GROUP_NOT_FOUND", {"group": group})


def test_pages(api: Api, stub: Stub) -> None:
    topic, stem = filled(api), fresh("page")
    names = [f"{stem}:{i}" for i in range(5)]
    for name in names:
        commit(api, name, topic, 0)
    query: dict[str, Any] = {"prefix": stem, "page_size": 2}
    seen: list[str] = []
    while True:
        page = ok(api.send("GET", "/v0/groups", params=query))
        seen += [line["group"] for line in page["groups"]]
        if "next_cursor" not in page:
            break
        query["cursor"] = page["next_cursor"]
    assert seen == names
    first = stub.call(pb.ListGroupsRequest(prefix=stem, page_size=3))
    rest = stub.call(pb.ListGroupsRequest(prefix=stem, cursor=first.next_cursor))
    assert [line.group for line in (*first.groups, *rest.groups)] == names
    assert rest.next_cursor == ""
    refused(api.send("GET", "/v0/groups", params={"cursor": "%%"}), 400, "invalid_request")
    assert stub.refused(pb.ListGroupsRequest(cursor="%%")).reason == "INVALID_REQUEST"


# ---------------------------------------------------------------------------- consume


def test_where_a_group_without_a_position_starts(api: Api, stub: Stub) -> None:
    topic, group = filled(api, 5, cap_records=4), fresh("g")
    page = consume(api, group, topic)
    assert (datas(page), page["tombstone"]) == ([2, 3, 4, 5], None)
    assert datas(consume(api, group, topic, start="earliest")) == [2, 3, 4, 5]
    assert datas(consume(api, group, topic, start=3)) == [4, 5]
    page = consume(api, group, topic, start=0)
    assert (page["tombstone"]["gap_from"], page["tombstone"]["gap_to"]) == (1, 1)
    page = consume(api, group, topic, start="latest")
    assert (datas(page), page["next_from_seq"], page["caught_up"]) == ([], 5, True)
    commit(api, group, topic, 4)
    for start in ("earliest", "latest", 0):
        assert datas(consume(api, group, topic, start=start)) == [5], "a position comes first"
    other = fresh("g")
    for fields, wanted in (
        ({}, [b"2", b"3", b"4", b"5"]),
        ({"start_at": group_pb2.LOG_END_LATEST}, []),
        ({"start_from_seq": 4}, [b"5"]),
    ):
        page = stub.call(pb.ConsumeRequest(group=other, topic=topic, **fields)).page
        assert [record.data for record in page.records] == wanted


def test_the_members_of_a_diff(api: Api, stub: Stub) -> None:
    topic, group = api.make("grp"), fresh("g")
    ok(api.write(topic, [{"data": 1, "tag": "a", "node": "n"}, {"data": 2, "tag": "b", "meta": {"k": 1}}]))
    page = consume(api, group, topic, include_tags=True, filter=["tag", "Glob", "b*"])
    (record,) = page["records"]
    assert (record["$tag"], record["meta"], page["next_from_seq"]) == ("b", {"k": 1}, 2)
    assert datas(consume(api, group, topic, node=["n"])) == [2]
    assert "meta" not in consume(api, group, topic, include_meta=False, filter="b")["records"][0]
    assert datas(consume(api, group, topic, max_batch_bytes=1)) == [1]
    request = pb.ConsumeRequest(
        group=group, topic=topic, node=["n"], filter=record_pb2.TagMatch(prefix=""), include_tags=True
    )
    (got,) = stub.call(request).page.records
    assert (got.data, got.tag, got.meta) == (b"2", "b", b'{"k": 1}')


def test_a_consumer_waits_for_records(api: Api, stub: Stub, server: ServerProcess) -> None:
    topic, group = filled(api), fresh("g")
    commit(api, group, topic, 3)
    pages: list[Any] = []

    def over_http() -> None:
        with Api(server.base) as other:
            pages.append(datas(consume(other, group, topic, wait_ms=15_000)))

    def over_grpc() -> None:
        page = stub.call(pb.ConsumeRequest(group=group, topic=topic, wait_ms=9_000)).page
        pages.append([int(record.data) for record in page.records])

    threads = [threading.Thread(target=each) for each in (over_http, over_grpc)]
    started = time.monotonic()
    for thread in threads:
        thread.start()
    time.sleep(0.3)  # the common case: both wait by now
    api.append(topic, 4)
    for thread in threads:
        thread.join()
    assert pages == [[4], [4]]
    assert time.monotonic() - started < 8
    assert datas(consume(api, fresh("g"), topic, start="latest", wait_ms=20)) == []


# ----------------------------------------------------------------------------- commit


def test_partitions(api: Api, stub: Stub) -> None:
    topic, group = fresh("grp"), fresh("g")
    topics = stub.channel.unary_unary(
        "/topics.v1.TopicsService/PutTopic",
        topics_service_pb2.PutTopicRequest.SerializeToString,
        topics_service_pb2.PutTopicResponse.FromString,
    )
    topics(topics_service_pb2.PutTopicRequest(topic=topic, partition_count=2), timeout=30)
    items = [{"topic": topic, "partition": 1, "from_seq": 0}, {"topic": topic, "from_seq": 0}]
    reply = ok(api.send("POST", group_path(group, "/commit"), {"positions": items}))
    assert [position["partition"] for position in reply["positions"]] == [0, 1]
    page = consume(api, group, topic, partition=1)
    assert (page["partition"], page["committed_from_seq"]) == (1, 0)
    assert stub.call(pb.ConsumeRequest(group=group, topic=topic, partition=1)).partition == 1
    reply = ok(api.send("POST", group_path(group, "/reset"), {"topic": topic, "partition": 1, "to": "latest"}))
    assert [position["partition"] for position in reply["positions"]] == [1]
    body = {"topics": [{"topic": topic, "partitions": [1]}]}
    assert ok(api.send("POST", group_path(group, "/positions/delete"), body))["deleted"] == 1
    assert positions(api, group) == {(topic, 0): 0}
    detail = {"topic": topic, "partition": 2, "partition_count": 2}
    for tail, body in (
        ("/consume", {"topic": topic, "partition": 2}),
        ("/commit", {"topic": topic, "partition": 2, "from_seq": 0}),
        ("/reset", {"topic": topic, "partition": 2, "to": 0}),
        ("/positions/delete", {"topic": topic, "partition": 2}),
    ):
        error = refused(api.send("POST", group_path(group, tail), body), 404, "partition_not_found")
        assert error["detail"] == detail
    error = stub.refused(commit_request(group, topic, 0, partition=2))
    assert (error.code, error.reason) == ("NOT_FOUND", "PARTITION_NOT_FOUND")


def test_a_commit_is_all_or_none(api: Api, stub: Stub) -> None:
    topic, group = filled(api), fresh("g")
    items = [{"topic": topic, "from_seq": 1}, {"topic": topic, "from_seq": 4}]
    error = refused(api.send("POST", group_path(group, "/commit"), {"positions": items}), 400, "invalid_request")
    assert error["detail"] == {"topic": topic, "partition": 0, "from_seq": 4, "head_seq": 3}
    refused(api.send("GET", group_path(group)), 404, "group_not_found")
    refusal = stub.refused(commit_request(group, topic, 4))
    assert (refusal.code, refusal.reason, refusal.detail["head_seq"]) == ("INVALID_ARGUMENT", "INVALID_REQUEST", "3")


def test_bad_input(api: Api, stub: Stub) -> None:
    topic, group = filled(api), fresh("g")
    commit(api, group, topic, 1)
    bad: list[tuple[str, Any]] = [
        ("/consume", {}), ("/consume", {"topic": 1}), ("/consume", {"topic": topic, "start": "newest"}),
        ("/consume", {"topic": topic, "start": True}), ("/consume", {"topic": topic, "filter": ["x"]}),
        ("/consume", {"topic": topic, "partition": 1 << 32}), ("/consume", "[]"), ("/consume", "{"),
        ("/commit", {}), ("/commit", {"topic": topic}), ("/commit", {"from_seq": 1}), ("/commit", {"positions": []}),
        ("/commit", {"positions": {}}), ("/commit", {"positions": [1]}), ("/commit", {"positions": [{"topic": topic}]}),
        ("/commit", {"positions": [{"topic": topic, "from_seq": 1}], "topic": topic}),
        ("/commit", {"topic": topic, "from_seq": 1, "metadata": 5}),
        ("/commit", {"topic": topic, "from_seq": 1, "metadata": "x" * 4097}),
        ("/reset", {}), ("/reset", {"to": "newest"}), ("/reset", {"to": 1, "to_ts": 1}), ("/reset", {"to": None}),
        ("/reset", {"to": 1, "partition": 0}), ("/reset", {"to": 1, "topics": [{"topic": topic}], "topic": topic}),
        ("/reset", {"to": 1, "topics": [{"topic": topic, "partitions": ["0"]}]}), ("/reset", {"to": 4}),
        ("/positions/delete", {}), ("/positions/delete", {"topics": []}),
    ]  # fmt: skip
    for text in NOT_INTEGERS:
        bad.append(("/consume", f'{{"topic":"{topic}",{member("start", text)[1:]}'))
        bad.append(("/commit", f'{{"topic":"{topic}",{member("from_seq", text)[1:]}'))
    for tail, body in bad:
        refused(api.send("POST", group_path(group, tail), body), 400, "invalid_request")
    for tail in ("/consume", "/commit"):
        body = {"topic": fresh("absent"), "from_seq": 0}
        refused(api.send("POST", group_path(group, tail), body), 404, "topic_not_found")
    refused(api.send("POST", group_path("x" * 256, "/commit"), {"topic": topic, "from_seq": 1}), 400, "invalid_request")
    assert positions(api, group) == {(topic, 0): 1}
    for request in (
        pb.CommitPositionsRequest(group=group),
        pb.CommitPositionsRequest(group=group, positions=[group_pb2.PositionCommit(topic=topic)]),
        commit_request("", topic, 1), commit_request(group, topic, 1, metadata="x" * 4097),
        pb.ResetPositionsRequest(group=group), pb.ResetPositionsRequest(group=group, to_ts_ms=-1),
        pb.ResetPositionsRequest(group=group, to_end=7), pb.DeletePositionsRequest(group=group),
        pb.ConsumeRequest(group="", topic=topic), pb.ConsumeRequest(group=group, topic=topic, start_at=7),
    ):  # fmt: skip
        assert stub.refused(request)[:2] == ("INVALID_ARGUMENT", "INVALID_REQUEST"), request


def test_routes(api: Api) -> None:
    for method, path in (("PUT", "/v0/groups/g"), ("POST", "/v0/groups"), ("GET", "/v0/groups/g/consume")):
        refused(api.send(method, path, {} if method != "GET" else None), 405, "method_not_allowed")
    refused(api.send("GET", "/v0/groups/g/nothing"), 404, "not_found")
    refused(api.send("GET", "/v0/groups/"), 404, "not_found")


# -------------------------------------------------------------------------- retention


def test_a_topic_that_waits_for_a_group(api: Api, stub: Stub) -> None:
    topic, group = fresh("grp"), fresh("g")
    body = ok(api.put(topic, cap_records=2, retain_until_acked_by=[group, group]), 201)
    assert body["config"]["retain_until_acked_by"] == [group]
    assert "retain_until_acked_by" not in ok(api.put(fresh("t")), 201)["config"]
    assert api.state(topic)["config"]["retain_until_acked_by"] == [group]
    api.append(topic, 1, 2)
    refused(api.write(topic, [{"data": 3}]), 422, "topic_full")
    stub.commit(group, topic, 1)
    api.append(topic, 3)
    assert [record["data"] for record in api.read_all(topic)] == [2, 3]
    put = stub.channel.unary_unary(
        "/topics.v1.TopicsService/PutTopic",
        topics_service_pb2.PutTopicRequest.SerializeToString,
        topics_service_pb2.PutTopicResponse.FromString,
    )
    config = topic_pb2.TopicConfig(cap_records=2, retain_until_acked_by=["x", group])
    reply = put(topics_service_pb2.PutTopicRequest(topic=topic, config=config), timeout=30)
    assert list(reply.config.retain_until_acked_by) == ["x", group]
    refused(api.write(topic, [{"data": 4}]), 422, "topic_full")
    ok(api.put(topic, cap_records=2, retain_until_acked_by=None))
    assert "retain_until_acked_by" not in api.state(topic)["config"]
    api.append(topic, 4)
    refused(api.put(topic, retain_until_acked_by=[str(i) for i in range(17)]), 400, "invalid_request")
    refused(api.put(topic, retain_until_acked_by="g"), 400, "invalid_request")
    refused(api.put(topic, retain_until_acked_by=[""]), 400, "invalid_request")


# ------------------------------------------------------------------------------- keys


def test_prefixes_hold_for_groups_and_topics(http: Callable[..., Api], keyed: ServerProcess) -> None:
    full, tenant = http("full"), http("t42")
    for topic in ("t42:a", "other"):
        full.append(topic, 1)
        commit(full, "t42:g", topic, 1)
        commit(full, "foreign", topic, 1)
    commit(tenant, "t42:own", "t42:a", 1)
    assert positions(tenant, "t42:g") == {("t42:a", 0): 1}
    shown = ok(tenant.send("GET", "/v0/groups"))["groups"]
    assert [line["group"] for line in shown] == ["t42:g", "t42:own"]
    denied: list[tuple[str, str, Any]] = [
        ("GET", group_path("foreign"), None), ("DELETE", group_path("foreign"), None),
        ("POST", group_path("foreign", "/consume"), {"topic": "t42:a"}),
        ("POST", group_path("foreign", "/commit"), {"topic": "t42:a", "from_seq": 1}),
        ("POST", group_path("t42:g", "/consume"), {"topic": "other"}),
        ("POST", group_path("t42:g", "/commit"), {"topic": "other", "from_seq": 1}),
        ("POST", group_path("t42:g", "/reset"), {"to": 0}),
        ("POST", group_path("t42:g", "/reset"), {"to": 0, "topic": "other"}),
        ("POST", group_path("t42:g", "/positions/delete"), {"topic": "other"}),
        ("DELETE", group_path("t42:g"), None),
        ("PUT", "/v0/topics/t42:a", {"retain_until_acked_by": ["foreign"]}),
    ]  # fmt: skip
    for method, path, body in denied:
        refused(tenant.send(method, path, body), 403, "forbidden")
    ok(tenant.send("POST", group_path("t42:g", "/reset"), {"to": 0, "topic": "t42:a"}))
    ok(tenant.send("DELETE", group_path("t42:own")))
    assert positions(full, "t42:g") == {("other", 0): 1, ("t42:a", 0): 0}
    stub = Stub(keyed.grpc_target, "sekret-t42")
    assert stub.refused(commit_request("t42:g", "other", 1))[:2] == ("PERMISSION_DENIED", "FORBIDDEN")
    assert stub.refused(commit_request("foreign", "t42:a", 1))[:2] == ("PERMISSION_DENIED", "FORBIDDEN")
    stub.channel.close()


def test_metrics(api: Api) -> None:
    topic, group = filled(api), fresh('g"')
    commit(api, group, topic, 1)
    text = api.client.get("/v0/metrics").text
    label = group.replace('"', '\\"')
    assert f'topics_group_lag_records{{group="{label}",topic="{topic}",partition="0"}} 2\n' in text
    assert "\ntopics_group_metrics_truncated 0.0\n" in text


# ---------------------------------------------------------------------------- restarts


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_acknowledged_commits_survive(tmp_path: Path, end: str) -> None:
    server = ServerProcess(tmp_path)
    topics = {"disk": {}, "fsync": {"durability": "fsync"}, "held": {"cap_records": 2, "retain_until_acked_by": ["w0"]}}
    acked: dict[str, int] = {}
    with server, Api(server.base) as api:
        for topic, config in topics.items():
            ok(api.put(topic, **config), 201)
            api.append(topic, *range(2 if topic == "held" else 500))
        commit(api, "w0", "held", 1)
        over = threading.Event()

        def work(group: str, topic: str) -> None:
            with Api(server.base) as other:
                for seq in range(1, 500):
                    try:
                        commit(other, group, topic, seq)
                    except Exception:
                        return
                    acked[group] = seq
                    if over.is_set():
                        return

        threads = [
            threading.Thread(target=work, args=(f"w-{topic}-{i}", topic)) for topic in ("disk", "fsync") for i in (1, 2)
        ]
        for thread in threads:
            thread.start()
        while len(acked) < 4 or min(acked.values()) < 20:
            time.sleep(0.005)
            assert any(thread.is_alive() for thread in threads)
        if end == "kill":
            server.kill()
        over.set()
        for thread in threads:
            thread.join()
        if end == "stop":
            assert server.stop() == 0
    with server, Api(server.base) as api:
        for group, seq in acked.items():
            ((_, found),) = positions(api, group).items()
            assert found in (seq, seq + 1), "what was acknowledged, or what was under way"
        api.append("held", "x")
        refused(api.write("held", [{"data": "y"}]), 422, "topic_full")


def test_settings(start: Callable[..., ServerProcess]) -> None:
    server = start(TOPICS_MAX_GROUPS=1, TOPICS_GROUP_RETENTION_MS=300)
    with Api(server.base) as api:
        api.append("t", 1)
        commit(api, "g", "t", 1)
        error = refused(api.send("POST", group_path("h", "/commit"), {"topic": "t", "from_seq": 1}), 429, "throttled")
        assert error["detail"] == {"limit": "max_groups", "max": 1}
        deadline = time.monotonic() + 20
        while api.send("GET", group_path("g")).status_code == 200:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        commit(api, "h", "t", 1)
