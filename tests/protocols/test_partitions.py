"""Topics of several partitions on a real server: what HTTP says to the byte, and watches on every protocol.

What both protocols answer alike is in `cases.partitions`.
"""

import json
import re
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest

from support.grpc_on_engine import rows
from support.grpc_watch import Follower
from support.http import NOT_INTEGERS, Api, fresh, member, ok, path, refused
from support.push import WatchStream, cursors, event_id
from support.server import ServerProcess
from support.ws import WebSocket
from topics_proto.v1 import record_pb2, topics_service_pb2_grpc, watch_service_pb2_grpc
from topics_proto.v1 import topics_service_pb2 as topics_pb
from topics_proto.v1 import watch_service_pb2 as pb

WRITE = ["topic", "first_seq", "last_seq", "seqs", "head_seq", "count", "created", "deduped", "performance"]
STATE = [
    "topic", "type", "head_seq", "earliest_seq", "next_seq", "count", "bytes", "config", "effective_priority",
    "last_write_ts", "last_read_ts", "topic_id", "slug", "rrl", "epoch", "performance",
]  # fmt: skip
PAGE = ["topic", "records", "next_from_seq", "head_seq", "earliest_seq", "caught_up", "tombstone", "lag", "performance"]


@pytest.fixture
def many(api: Api) -> str:
    """A topic of three partitions."""
    return api.make("p", partition_count=3)


def after_topic(members: list[str], *more: str) -> list[str]:
    return [members[0], *more, *members[1:]]


# --------------------------------------------------------------------------------------------- HTTP, to the byte


def test_members_that_only_several_partitions_bring(api: Api, many: str) -> None:
    put = ok(api.put(many))
    assert list(put) == [
        "topic", "created", "config", "topic_id", "slug", "rrl", "epoch", "partition_count", "performance",
    ]  # fmt: skip
    assert "partition_count" not in put["config"]
    assert list(api.append(many, 1, partition=2)) == after_topic(WRITE, "partition")
    assert list(api.append(many, 1)) == after_topic(WRITE, "partition")
    assert list(api.read(many)) == after_topic(PAGE, "partition")
    state = api.state(many)
    assert list(state) == [*STATE[:2], "partition", "partitions", *STATE[2:-1], "partition_count", STATE[-1]]
    assert list(state["partitions"][0]) == [
        "partition", "head_seq", "earliest_seq", "next_seq", "count", "bytes", "last_write_ts",
    ]  # fmt: skip
    removed = api.rm(many, before_seq=1, partition=1)
    assert list(removed)[:3] == ["topic", "partition", "deleted"]
    (line,) = api.listing(prefix=many)["topics"]
    assert list(line)[-2:] == ["effective_priority", "partition_count"]


def test_a_topic_with_one_partition_says_nothing_of_it(api: Api) -> None:
    name = fresh()
    put = ok(api.put(name, partition_count=1), 201)
    assert list(put) == ["topic", "created", "config", "topic_id", "slug", "rrl", "epoch", "performance"]
    assert list(api.append(name, 1, partition=0)) == WRITE
    assert list(api.read(name, partition=0)) == PAGE
    assert list(ok(api.get(name, partition=0))) == STATE
    assert "partition" not in api.rm(name, before_seq=1, partition=0)
    (line,) = api.listing(prefix=name)["topics"]
    assert "partition_count" not in line


@pytest.mark.parametrize("text", [text for text in NOT_INTEGERS if text != "null"])
def test_what_is_no_partition(api: Api, many: str, text: str) -> None:
    part = member("partition", text)[1:]
    refused(api.send("POST", path(many), f'{{"records":[{{"data":1}}],{part}'), 400, "invalid_request")
    refused(api.send("POST", path(many, "/diff"), f'{{"from_seq":0,{part}'), 400, "invalid_request")
    refused(api.send("POST", path(many, "/delete"), f'{{"before_seq":1,{part}'), 400, "invalid_request")
    watch = f'{{"topics":{{"{many}":{{"tail":true,{part}}}}}'
    refused(api.send("POST", "/v0/watch", watch), 400, "invalid_request")
    assert [each["head_seq"] for each in api.state(many)["partitions"]] == [0, 0, 0]


def test_null_is_partition_0(api: Api, many: str) -> None:
    assert ok(api.send("POST", path(many), '{"partition":null,"records":[{"data":1}]}'))["partition"] == 0
    assert ok(api.send("POST", path(many, "/diff"), '{"partition":null}'))["partition"] == 0
    assert ok(api.send("POST", path(many, "/delete"), '{"partition":null,"before_seq":2}'))["partition"] == 0
    ok(api.send("POST", "/v0/watch", f'{{"topics":{{"{many}":{{"partition":null}}}}}}'))


@pytest.mark.parametrize("text", ["", "-1", "1.0", "x", "true", "²", "9" * 20])
def test_what_is_no_partition_in_a_query(api: Api, many: str, text: str) -> None:
    refused(api.get(many, partition=text), 400, "invalid_request")


@pytest.mark.parametrize("text", [*(text for text in NOT_INTEGERS if text != "null"), "0", "1001"])
def test_what_is_no_partition_count(api: Api, text: str) -> None:
    name = fresh()
    refused(api.send("PUT", path(name), member("partition_count", text)), 400, "invalid_request")
    refused(api.get(name), 404, "topic_not_found")
    ok(api.put(name), 201)
    refused(api.send("PUT", path(name), member("partition_count", text)), 400, "invalid_request")
    assert list(api.state(name)) == STATE


def test_no_partition_count(api: Api) -> None:
    name = fresh()
    ok(api.send("PUT", path(name), '{"partition_count":null}'), 201)
    ok(api.send("PUT", path(name), '{"partition_count":2}'))
    assert ok(api.send("PUT", path(name), '{"partition_count":null}'))["partition_count"] == 2
    ok(api.write(name, [{"data": 1}], config={"partition_count": 4}))
    assert api.state(name)["partition_count"] == 2


def test_a_member_that_comes_twice(api: Api, many: str) -> None:
    for body in (
        '{"partition":1,"records":[{"data":1}],"partition":2}',
        '{ "partition" : 1, "records": [{"data":1}], "partition" : 1 }',
    ):
        refused(api.send("POST", path(many), body), 400, "invalid_request")
    refused(api.send("PUT", path(many), '{"partition_count":3,"partition_count":4}'), 400, "invalid_request")
    ok(api.send("POST", path(many), '{ "partition" : 1, "records": [ {"data" : 1} ] }'))


def test_an_unknown_partition(api: Api, many: str) -> None:
    for response in (
        api.write(many, [{"data": 1}], partition=3),
        api.diff(many, partition=3, wait_ms=5000),
        api.delete(many, partition=3, before_seq=1),
        api.get(many, partition=3),
        api.send("POST", "/v0/watch", {"topics": {many: {"partition": 3}}}),
    ):
        error = refused(response, 404, "partition_not_found")
        assert error["detail"] == {"topic": many, "partition": 3, "partition_count": 3}
    refused(api.diff(many, partition=(1 << 64) - 1), 404, "partition_not_found")


def test_a_long_poll_waits_for_its_partition(api: Api, server: ServerProcess, many: str, ws: WebSocket) -> None:
    answers: list[dict[str, Any]] = []
    with Api(server.base) as other:
        waiting = threading.Thread(target=lambda: answers.append(other.read(many, wait_ms=20_000, partition=2)))
        waiting.start()
        for _ in range(20):
            ws.publish(many, "no", partition=1)
        assert not answers
        ws.publish(many, "yes", partition=2)
        waiting.join(10)
    assert [record["data"] for record in answers[0]["records"]] == ["yes"]


def test_routers_and_dead_letters(api: Api, many: str) -> None:
    one = api.make("one")
    for source, dest in ((many, one), (one, many)):
        response = api.send("PUT", f"/v0/routers/{fresh('r')}", {"source": source, "dest": dest})
        error = refused(response, 400, "invalid_request")
        assert error["detail"] == {"topic": many, "partition_count": 3}
        assert "partitions" in error["message"]
    dest = fresh("dest")
    ok(api.send("PUT", f"/v0/routers/{fresh('r')}", {"source": one, "dest": dest}), 201)
    assert "partition_count" not in api.state(dest)
    for end in (one, dest):
        refused(api.put(end, partition_count=2), 400, "invalid_request")
    queue = api.make("q", type="queue", max_deliveries=1, dead_letter=many)
    api.append(queue, "job")
    for _ in range(2):
        ok(api.send("POST", path(queue, "/claim"), {"node": "n", "max": 1}))
        ok(api.send("POST", path(queue, "/nack"), {"node": "n", "seqs": [1]}))
    assert [each["count"] for each in api.state(many)["partitions"]] == [1, 0, 0], "dead letters go to partition 0"


def test_metrics_are_sums(api: Api, many: str) -> None:
    for partition in range(3):
        api.append(many, "abc", "abc", partition=partition)
    api.rm(many, before_seq=2, partition=1)
    text = api.send("GET", "/v0/metrics").text
    found = dict(re.findall(rf'^topics_topic_(\w+)\{{topic="{many}"\}} (\d+)$', text, re.MULTILINE))
    assert found == {"head_seq": "6", "earliest_seq": "4", "records_live": "5", "bytes_live": "25"}


def test_everything_is_there_after_a_kill(start: Callable[..., ServerProcess]) -> None:
    server = start()
    with Api(server.base) as api:
        for durability in ("disk", "fsync"):
            ok(api.put(durability, durability=durability, partition_count=2), 201)
            for n in range(20):
                api.append(durability, n, partition=n % 2)
            ok(api.put(durability, durability=durability, partition_count=3))
            api.append(durability, "new", partition=2)
    server.kill()
    server.start()
    with Api(server.base) as api:
        for durability in ("disk", "fsync"):
            found = [
                [record["data"] for record in api.read(durability, partition=partition)["records"]]
                for partition in range(3)
            ]
            assert found == [list(range(0, 20, 2)), list(range(1, 20, 2)), ["new"]]
            assert api.append(durability, "more", partition=1)["first_seq"] == 11


# ----------------------------------------------------------------------------------- server-sent events


def follow(server: ServerProcess, api: Api, topics: Any, **body: Any) -> WatchStream:
    url = ok(api.send("POST", "/v0/watch", {"topics": topics, **body}))["stream_url"]
    return WatchStream(server.http_port, url)


def test_sse_frames_and_ids(server: ServerProcess, api: Api, many: str) -> None:
    ok(api.put(many, cap_records=2))
    api.append(many, "a", "b", "c", partition=2)
    api.append(many, "z")
    created = ok(api.send("POST", "/v0/watch", {"topics": {many: {"partition": 2}, f"{many}@1": {}}}))
    assert list(created["topics"]) == [f"{many}@1", f"{many}@2"]
    with WatchStream(server.http_port, created["stream_url"]) as stream:
        told = {(event.event, event.data["partition"]): event for event in stream.events(4)}
        assert set(told) == {("caught-up", 1), ("tombstone", 2), ("record", 2), ("caught-up", 2)}
        for event in told.values():
            assert list(event.data)[:2] == ["topic", "partition"]
            assert event.data["topic"] == many
        assert [record["data"] for record in told["record", 2].data["records"]] == ["b", "c"]
        assert told["tombstone", 2].data["reason"] == "from_seq_too_old"
        api.append(many, "d", partition=1)
        event = stream.event("record")
        assert cursors(event) == {f"{many}@1": 1, f"{many}@2": 3}
        ok(api.drop(many))
        ended = [stream.event("topic-deleted") for _ in range(2)]
        assert sorted(event.data["partition"] for event in ended) == [1, 2]
        stream.ends()


def test_sse_goes_on_from_an_id(server: ServerProcess, api: Api, many: str) -> None:
    url = ok(api.send("POST", "/v0/watch", {"topics": {many: {"partition": 2}}}))["stream_url"]
    api.append(many, *range(5), partition=2)
    with WatchStream(server.http_port, url) as stream:
        (record, _) = stream.events(2)
        assert cursors(record) == {f"{many}@2": 5}
    for place, first in (({f"{many}@2": 3}, 4), ({many: 1}, None), ({f"{many}@1": 1}, None)):
        with WatchStream(server.http_port, url, headers={"Last-Event-ID": event_id(place)}) as stream:
            event = stream.events(1)[0]
            if first is None:
                assert event.event == "caught-up", "the cursor of another partition says nothing of this one"
            else:
                assert event.data["records"][0]["$seq"] == first
                stream.event("caught-up")
    again = ok(api.send("POST", "/v0/watch", {"topics": {f"{many}@2": {}}, "cursor": event_id({f"{many}@2": 4})}))
    assert again["topics"][f"{many}@2"]["from_seq"] == 4


def test_sse_of_a_topic_that_was_made_again_with_fewer_partitions(server: ServerProcess, api: Api, many: str) -> None:
    url = ok(api.send("POST", "/v0/watch", {"topics": {many: {"partition": 2}, f"{many}@1": {}}}))["stream_url"]
    api.append(many, 1, 2, 3, partition=2)
    with WatchStream(server.http_port, url) as stream:
        stream.event("caught-up", where=lambda data: data["head_seq"] == 3)
    ok(api.drop(many))
    ok(api.put(many, partition_count=2), 201)
    api.append(many, "new", partition=1)
    with WatchStream(server.http_port, url) as stream:
        found = stream.events(4)
    assert [(event.event, event.data["partition"]) for event in found] == [
        ("topic-deleted", 2), ("tombstone", 1), ("record", 1), ("caught-up", 1),
    ]  # fmt: skip
    assert (found[0].data["head_seq"], found[1].data["reason"]) == (3, "recreated")


def test_sse_watchers_of_different_partitions_share_nothing(server: ServerProcess, api: Api, many: str) -> None:
    streams = [follow(server, api, {many: {"partition": n}}) for n in (0, 1, 2, 2)]
    for n in range(3):
        api.append(many, f"to {n}", partition=n)
    for stream, n in zip(streams, (0, 1, 2, 2), strict=True):
        event = stream.event("record")
        assert (event.data["partition"], event.data["records"][0]["data"]) == (n, f"to {n}")
        assert cursors(event) == {many if n == 0 else f"{many}@{n}": 1}
        assert stream.event("caught-up").data == {"topic": many, "partition": n, "head_seq": 1}
        stream.close()


def test_a_pattern_follows_partition_0(server: ServerProcess, api: Api) -> None:
    prefix = fresh("pre") + ":"
    ok(api.put(prefix + "a", partition_count=2), 201)
    with follow(server, api, {prefix + "*": {}, prefix + "a@1": {}}) as stream:
        api.append(prefix + "a", "one", partition=1)
        api.append(prefix + "a", "zero")
        found = {event.data["partition"]: event for event in (stream.event("record"), stream.event("record"))}
        assert {n: event.data["records"][0]["data"] for n, event in found.items()} == {0: "zero", 1: "one"}
        ok(api.put(prefix + "b", partition_count=2), 201)
        api.append(prefix + "b", "one", partition=1)
        api.append(prefix + "b", "zero")
        event = stream.event("record")
        assert (event.data["partition"], event.data["records"][0]["data"]) == (0, "zero")
        assert cursors(event) == {prefix + "a": 1, prefix + "a@1": 1, prefix + "b": 1}


def test_subscriptions_that_contradict_themselves(api: Api, many: str) -> None:
    for topics in (
        {many: {"partition": 2}, f"{many}@2": {}},
        {f"{many}@2": {"partition": 1}},
        {f"{many[:3]}*": {"partition": 1}},
        {f"{many}@1*": {}},
    ):
        refused(api.send("POST", "/v0/watch", {"topics": topics}), 400, "invalid_request")
    created = ok(api.send("POST", "/v0/watch", {"topics": {many: {}, f"{many}@9": {}}}, params={"lenient": "true"}))
    assert list(created["topics"]) == [many]


# -------------------------------------------------------------------------------------------- WebSocket


def test_websocket(ws: WebSocket, api: Api, many: str) -> None:
    assert list(ws.subscribe(topic=many, partition=2)) == [f"{many}@2"]
    assert list(ws.subscribe(topics={many: {}, f"{many}@1": {"tail": True}})) == [many, f"{many}@1"]
    for n in (2, 1, 0):
        ack = ws.publish(many, f"to {n}", partition=n)
        assert list(ack)[2:4] == ["topic", "partition"]
        assert (ack["partition"], ack["first_seq"]) == (n, 1)
    found = {}
    for _ in range(3):
        frame = ws.wait("record")
        assert list(frame)[:3] == ["op", "topic", "partition"]
        found[frame["partition"]] = frame["records"][0]["data"]
    assert found == {0: "to 0", 1: "to 1", 2: "to 2"}
    assert ws.cmd("unsubscribe", topic=many, partition=2)["topics"] == [f"{many}@2"]
    assert ws.cmd("unsubscribe", topics=[f"{many}@1", f"{many}@2"])["topics"] == [f"{many}@1"]
    ws.publish(many, "unheard", partition=1)
    ws.publish(many, "heard", partition=0)
    assert ws.wait("record")["records"][0]["data"] == "heard"
    ok(api.drop(many))
    ended = ws.wait("topic_deleted")
    assert ended == {"op": "topic_deleted", "topic": many, "partition": 0, "head_seq": 0, "reason": "deleted"}


def test_websocket_frames_to_the_byte(ws: WebSocket, api: Api, many: str) -> None:
    ok(api.put(many, cap_records=1))
    api.append(many, 1, 2, partition=1)
    ws.cmd("subscribe", request_id="s", topic=many, partition=1, include_meta=False)
    ws.wait("caught_up")
    subscribed, tombstone, record, caught_up = ws.texts
    place = '{"from_seq":0,"head_seq":2,"earliest_seq":2}'
    assert subscribed == f'{{"op":"subscribed","request_id":"s","topics":{{"{many}@1":{place}}}}}'
    lost = '"reason":"cap","gap_from":1,"gap_to":1,"earliest_seq":2,"head_seq":2'
    assert tombstone == f'{{"op":"tombstone","topic":"{many}","partition":1,{lost}}}'
    ts = json.loads(record)["records"][0]["$ts"]
    assert record == (
        f'{{"op":"record","topic":"{many}","partition":1,"from_seq":0,"to_seq":2,"head_seq":2,'
        f'"records":[{{"$seq":2,"$ts":{ts},"data":2}}]}}'
    )
    assert caught_up == f'{{"op":"caught_up","topic":"{many}","partition":1,"head_seq":2}}'


def test_websocket_refusals(ws: WebSocket, many: str) -> None:
    ws.refused("partition_not_found", "subscribe", topic=many, partition=3)
    ws.refused("partition_not_found", "publish", topic=many, partition=3, records=[{"data": 1}])
    for partition in (-1, "1", 1.5, True):
        for command in ({"op": "subscribe"}, {"op": "unsubscribe"}, {"op": "publish", "records": [{"data": 1}]}):
            ws.send({**command, "topic": many, "partition": partition})
            assert ws.recv()["code"] == "invalid_json"


# ------------------------------------------------------------------------------------------------- gRPC


@pytest.fixture
async def channel(server: ServerProcess) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(server.grpc_target) as channel:
        yield channel


async def test_grpc_watch(channel: grpc.aio.Channel, api: Api, many: str) -> None:
    stub: Any = watch_service_pb2_grpc.WatchServiceStub(channel)
    ok(api.put(many, cap_records=2))
    api.append(many, 1, 2, 3, partition=2)
    api.append(many, 1)
    topics = {many: pb.WatchTopic(partition=2), f"{many}@1": pb.WatchTopic(tail=True)}
    request = pb.WatchRequest(subscription=pb.WatchSubscription(topics=topics))
    async with Follower(stub.Watch(request)) as follower:
        first = await follower.next()
        assert set(first.subscribed.topics) == {f"{many}@1", f"{many}@2"}
        assert dict(first.cursor) == {f"{many}@1": 0, f"{many}@2": 0}
        lost = (await follower.until("tombstone")).tombstone
        assert (lost.topic, lost.partition, lost.tombstone.gap_to) == (many, 2, 1)
        batch = (await follower.until("records")).records
        assert (batch.topic, batch.partition, [r.seq for r in batch.records]) == (many, 2, [2, 3])
        drained = (await follower.until("caught_up")).caught_up
        assert (drained.topic, drained.partition, drained.head_seq) == (many, 2, 3)
        assert follower.cursor == {f"{many}@1": 0, f"{many}@2": 3}
        api.append(many, "x", partition=1)
        frame = await follower.until("records")
        assert (frame.records.partition, dict(frame.cursor)) == (1, {f"{many}@1": 1})
        place = dict(follower.cursor)
        api.append(many, 4, partition=2)
    request.subscription.cursor.update(place)
    async with Follower(stub.Watch(request), place) as follower:
        batch = (await follower.until("records")).records
        assert (batch.partition, batch.from_seq, [r.seq for r in batch.records]) == (2, 3, [4])
        ok(api.drop(many))
        gone = [(await follower.until("topic_deleted")).topic_deleted for _ in range(2)]
        assert sorted((each.topic, each.partition, each.head_seq) for each in gone) == [(many, 1, 1), (many, 2, 4)]
        assert await follower.status() == ("OK", "")


async def test_grpc_sessions_are_those_of_http(channel: grpc.aio.Channel, api: Api, many: str) -> None:
    stub: Any = watch_service_pb2_grpc.WatchServiceStub(channel)
    api.append(many, 1, 2, partition=1)
    wid = ok(api.send("POST", "/v0/watch", {"topics": {many: {"partition": 1, "from_seq": 1}}}))["wid"]
    async with Follower(stub.OpenWatch(pb.OpenWatchRequest(wid=wid))) as follower:
        frame = await follower.until("records")
        assert (frame.records.partition, [r.seq for r in frame.records.records]) == (1, [2])
        assert follower.cursor == {f"{many}@1": 2}
    async with Follower(stub.OpenWatch(pb.OpenWatchRequest(wid=wid, cursor={f"{many}@1": 1}))) as follower:
        assert [r.seq for r in (await follower.until("records")).records.records] == [2]


async def test_grpc_watch_refusals(channel: grpc.aio.Channel, many: str) -> None:
    stub: Any = watch_service_pb2_grpc.WatchServiceStub(channel)
    for topics, reason in (
        ({many: 3}, "PARTITION_NOT_FOUND"),
        ({f"{many}@3": 0}, "PARTITION_NOT_FOUND"),
        ({f"{many}@1": 2}, "INVALID_REQUEST"),
        ({f"{many}@1": 0, many: 1}, "INVALID_REQUEST"),
        ({"*": 1}, "INVALID_REQUEST"),
    ):
        asked = {key: pb.WatchTopic(partition=partition) for key, partition in topics.items()}
        request = pb.WatchRequest(subscription=pb.WatchSubscription(topics=asked))
        assert (await Follower(stub.Watch(request)).status())[1] == reason


async def test_grpc_streams_and_columns(channel: grpc.aio.Channel, api: Api, many: str) -> None:
    stub: Any = topics_service_pb2_grpc.TopicsServiceStub(channel)
    call = stub.AppendStream()
    for n in range(9):
        columns = record_pb2.ColumnBatch(data=[b"%d" % n])
        append = topics_pb.AppendRequest(topic=many, partition=n % 3, columns=columns)
        await call.write(topics_pb.AppendStreamRequest(request_id=n, append=append))
    await call.done_writing()
    acks = {ack.request_id: ack.appended async for response in call for ack in response.acks}
    assert {n: (ack.partition, ack.first_seq) for n, ack in acks.items()} == {n: (n % 3, n // 3 + 1) for n in range(9)}
    frames = [frame async for frame in stub.BulkDiff(topics_pb.BulkDiffRequest(topic=many, partition=2))]
    assert {frame.partition for frame in frames} == {2}
    assert [record.data for frame in frames for record in rows(frame)] == [b"2", b"5", b"8"]
    located = await stub.LocateTime(topics_pb.LocateTimeRequest(topic=many, partition=1))
    assert (located.partition, located.seq, located.head_seq) == (1, 1, 3)
    follow = stub.BulkDiff(topics_pb.BulkDiffRequest(topic=many, partition=1, from_seq=3, follow=True))
    api.append(many, "no", partition=2)
    api.append(many, "yes", partition=1)
    while True:
        frame = await follow.read()
        if frame.HasField("records"):
            assert [record.data for record in rows(frame)] == [b'"yes"']
            break
    follow.cancel()


# ------------------------------------------------------------------------------------------------- keys


def test_a_key_follows_partitions_of_its_own_topics(http: Callable[[str | None], Api]) -> None:
    own, other = "t42:" + fresh("p"), fresh("p")
    for name in (own, other):
        ok(http("full").put(name, partition_count=2), 201)
    api = http("t42")
    assert api.append(own, 1, partition=1)["partition"] == 1
    ok(api.send("POST", "/v0/watch", {"topics": {f"{own}@1": {}, own: {}}}))
    for topics in ({f"{other}@1": {}}, {other: {"partition": 1}}):
        refused(api.send("POST", "/v0/watch", {"topics": topics}), 403, "forbidden")
    refused(http("read").put(own, partition_count=3), 403, "forbidden")
    refused(api.write(other, [{"data": 1}], partition=1), 403, "forbidden")
