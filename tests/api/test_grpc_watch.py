"""WatchService over a real socket, in front of the real engine on a store in memory."""

import asyncio
import gc
import os
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest

from support.grpc_watch import Follower, subscription
from topics_proto.v1 import errors_pb2, record_pb2, stream_pb2, watch_service_pb2_grpc
from topics_proto.v1 import watch_service_pb2 as pb
from topics_service.api.grpc.server import GrpcServer
from topics_service.api.scheduling.commit import GroupCommit
from topics_service.api.topics import TopicsApi
from topics_service.api.watch import WatchCaps
from topics_service.engine.clock import SystemClock
from topics_service.engine.engine import Engine
from topics_service.engine.model import AppendRequest, Batch, ConfigInput
from topics_service.storage.memory import MemoryStore

FOUR_MIB = 4 << 20


class World:
    """A server, its engine, and a client."""

    def __init__(self, caps: WatchCaps | None = None) -> None:
        self.engine = Engine(MemoryStore(), SystemClock())
        self.commit = GroupCommit.for_engine(self.engine)
        self.api = TopicsApi(self.engine, self.commit, watch_caps=caps)
        self.server = GrpcServer(self.api, host="127.0.0.1", port=0)
        self.channel: grpc.aio.Channel | None = None
        self.stub: Any = None

    async def start(self) -> None:
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{await self.server.start()}")
        self.stub = watch_service_pb2_grpc.WatchServiceStub(self.channel)

    async def stop(self) -> None:
        if self.channel is not None:
            await self.channel.close()
        await self.server.stop(0)
        self.commit.stop()

    def put(self, *names: str, **config: Any) -> None:
        for name in names:
            self.engine.put_topic(name, ConfigInput(**config))
        self.engine.sync()

    def append(self, topic: str, *datas: bytes, **columns: Any) -> int:
        reply, _ = self.engine.append(AppendRequest(topic=topic, batch=Batch(datas=list(datas), **columns)))
        self.engine.sync()
        return reply.head_seq

    def drop(self, topic: str) -> None:
        self.engine.delete_topic(topic)
        self.engine.sync()

    def watch(self, *topics: str, lenient: bool = False, **fields: Any) -> Follower:
        """Follow topics; `cursor` among the fields is where the client stands already."""
        request = pb.WatchRequest(subscription=subscription(*topics, **fields), lenient=lenient)
        return Follower(self.stub.Watch(request), fields.get("cursor"))

    def open(self, wid: str, cursor: dict[str, int] | None = None) -> Follower:
        return Follower(self.stub.OpenWatch(pb.OpenWatchRequest(wid=wid, cursor=cursor)), cursor)

    async def until_idle(self) -> None:
        """No stream is open any more on the server."""
        async with asyncio.timeout(10):
            while self.api.metrics.watch.streams or self.api.metrics.watch.connections:
                await asyncio.sleep(0.01)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    await world.start()
    yield world
    await world.stop()


def record(frame: stream_pb2.Frame) -> record_pb2.Record:
    (found,) = frame.records.records
    return found


# ---------------------------------------------------------------------- frames


async def test_subscribed_then_backlog_then_live(world: World) -> None:
    world.put("a", "b")
    world.append("a", b"1", b"2", b"3")
    async with world.watch("a", "b") as follower:
        frame = await follower.next()
        assert frame.subscribed.topics["a"] == stream_pb2.TopicPosition(from_seq=0, head_seq=3, earliest_seq=1)
        assert frame.subscribed.topics["b"] == stream_pb2.TopicPosition(from_seq=0, head_seq=0, earliest_seq=1)
        assert dict(frame.cursor) == {"a": 0, "b": 0}
        frame = await follower.until("records")
        assert [(r.seq, r.data, r.kind) for r in frame.records.records] == [(1, b"1", 1), (2, b"2", 1), (3, b"3", 1)]
        assert (frame.records.from_seq, frame.records.to_seq, frame.records.head_seq) == (0, 3, 3)
        assert dict(frame.cursor) == {"a": 3}
        assert (await follower.until("caught_up", "a")).caught_up.head_seq == 3
        world.append("b", b'"live"')
        frame = await follower.until("records", "b")
        assert (record(frame).data, dict(frame.cursor)) == (b'"live"', {"b": 1})
        assert (await follower.until("caught_up", "b")).cursor == {}
        assert follower.cursor == {"a": 3, "b": 1}


@pytest.mark.parametrize(
    ("fields", "start", "seqs"),
    [
        ({"from_seq": 1}, 1, [2, 3, 4]),
        ({"tail": True, "from_seq": 1}, 3, [4]),
        ({"cursor": {"a": 2, "other": 5}, "tail": True}, 2, [3, 4]),
    ],
)
async def test_starts(world: World, fields: dict[str, Any], start: int, seqs: list[int]) -> None:
    world.put("a")
    world.append("a", b"1", b"2", b"3")
    async with world.watch("a", **fields) as follower:
        assert (await follower.next()).subscribed.topics["a"].from_seq == start
        world.append("a", b"4")
        await follower.until_seen("a", 4)
        assert follower.seen == {"a": seqs}


async def test_parts_of_a_record(world: World) -> None:
    world.put("a")
    world.append("a", b"\x00\xff", b"2", tags=[b"t", None], nodes=[b"n", None], metas=[b'{"m":1}', None], kinds=b"\1\0")
    async with world.watch("a") as follower:
        first, second = (await follower.until("records")).records.records
        assert (first.data, first.kind, first.node, first.meta) == (b"\x00\xff", 2, "n", b'{"m":1}')
        assert not first.HasField("tag")
        assert (second.data, second.kind, second.meta, second.HasField("node")) == (b"2", 1, b"", False)
    async with world.watch("a", include_tags=True, include_meta=False, include_data=False) as follower:
        first, second = (await follower.until("records")).records.records
        assert (first.tag, first.meta, first.data, first.kind) == ("t", b"", b"", 2)
        assert not second.HasField("tag")
        assert first.ts_ms > 0


async def test_filters_move_the_cursor_in_silence(world: World) -> None:
    world.put("a", "b")
    world.append("a", b"1", b"2", b"3", tags=[b"x", b"y", None], nodes=[b"n", b"m", b"m"])
    async with world.watch("a", "b", node=["n"], filter=record_pb2.TagMatch(prefix="x")) as follower:
        await follower.until("caught_up", "a")
        assert (follower.seen, follower.cursor) == ({}, {"a": 3, "b": 0})
        world.append("a", b"4", tags=[b"y"])
        world.append("b", b"1", tags=[b"x"])
        frame = await follower.until("records")
        assert (frame.records.topic, follower.cursor["b"]) == ("b", 1)
        world.append("a", b"5", tags=[b"xx"])
        frame = await follower.until("records")
        assert ([r.seq for r in frame.records.records], follower.cursor) == ([5], {"a": 5, "b": 1})


async def test_loss_is_told_with_its_reason(world: World) -> None:
    world.put("a", cap_records=2)
    world.append("a", *[b"1"] * 5)
    async with world.watch("a", from_seq=1) as follower:
        lost = (await follower.until("tombstone")).tombstone
        assert (lost.topic, lost.tombstone.gap_from, lost.tombstone.gap_to) == ("a", 2, 3)
        assert lost.tombstone.reason == record_pb2.GAP_REASON_FROM_SEQ_TOO_OLD
        assert (lost.tombstone.missed_estimate, lost.tombstone.earliest_seq, lost.tombstone.head_seq) == (2, 4, 5)
        assert follower.cursor == {"a": 3}
        await follower.until("caught_up")
        world.append("a", *[b"1"] * 4)
        lost = (await follower.until("tombstone")).tombstone
        assert (lost.tombstone.gap_from, lost.tombstone.gap_to) == (6, 7)
        assert lost.tombstone.reason == record_pb2.GAP_REASON_CAP
        await follower.until_seen("a", 9)
    async with world.watch("a", from_seq=99) as follower:
        lost = (await follower.until("tombstone")).tombstone
        assert lost.tombstone.reason == record_pb2.GAP_REASON_RECREATED
        assert follower.cursor == {"a": 7}


async def test_heartbeats_in_silence(world: World) -> None:
    world.put("a")
    async with world.watch("a", heartbeat_ms=1) as follower:
        assert [await follower.kind() for _ in range(2)] == ["subscribed", "caught_up"]
        frame = await follower.next()
        assert frame.heartbeat.ts_ms > 0
        assert not frame.cursor


# ------------------------------------------------------------- coming and going


async def test_a_deleted_topic_ends_and_with_the_last_one_the_stream(world: World) -> None:
    world.put("a", "b")
    world.append("a", b"1")
    async with world.watch("a", "b") as follower:
        await follower.until_seen("a", 1)
        world.drop("a")
        gone = (await follower.until("topic_deleted")).topic_deleted
        assert (gone.topic, gone.head_seq, gone.reason) == ("a", 1, "deleted")
        assert follower.cursor["a"] == 1, "a topic that was asked for by name keeps its place"
        world.append("b", b"1")
        await follower.until_seen("b", 1)
        world.drop("b")
        await follower.until("topic_deleted")
        assert await follower.status() == ("OK", "")


async def test_a_prefix_brings_in_what_is_created_later(world: World) -> None:
    world.put("t:a", "other")
    async with world.watch("t:*", tail=True) as follower:
        assert set((await follower.next()).subscribed.topics) == {"t:a"}
        world.put("t:b")
        world.append("t:b", b"1", b"2")
        await follower.until_seen("t:b", 2)
        assert follower.cursor == {"t:a": 0, "t:b": 2}
        world.drop("t:b")
        await follower.until("topic_deleted")
        assert follower.cursor == {"t:a": 0}, "it leaves the map"
        world.append("t:a", b"1")
        await follower.until_seen("t:a", 1)
        assert follower.cursor == {"t:a": 1}
        cursor = follower.cursor
    world.append("t:b", b"1")
    async with world.watch("t:*", tail=True, cursor=cursor) as follower:
        await follower.until_seen("t:b", 1)
        assert follower.seen == {"t:b": [1]}, "made again, it is read from its first record"


async def test_a_topic_of_a_prefix_that_is_made_again_at_once(world: World) -> None:
    world.put("t:a")
    world.append("t:a", b"1", b"2")
    async with world.watch("t:*") as follower:
        await follower.until("caught_up")
        world.drop("t:a")
        world.put("t:a")
        await follower.until("topic_deleted")
        assert follower.cursor == {"t:a": 0}
        world.append("t:a", b"1")
        await follower.until("records")
        assert (follower.seen["t:a"], follower.cursor) == ([1, 2, 1], {"t:a": 1})


@pytest.mark.parametrize("seed", range(4))
async def test_the_merged_cursor_resumes_exactly(world: World, seed: int) -> None:
    """Streams break anywhere while writers continue: every record comes once, in order."""
    chance = random.Random(seed)
    names = ["a", "b", "t:0"]
    world.put(*names)
    cursor: dict[str, int] = {}
    seen: dict[str, list[int]] = {}
    heads: dict[str, int] = {}

    def write() -> None:
        if chance.random() < 0.2:
            names.append(f"t:{len(names)}")
            world.put(names[-1])
        for _ in range(chance.randrange(5)):
            name = chance.choice(names)
            count = chance.choice((1, 1, 3, 40))
            heads[name] = world.append(name, *[b"%d" % i for i in range(count)])

    for _ in range(25):
        write()
        async with world.watch("a", "b", "t:*", cursor=cursor, limit=chance.choice((1, 7, 0))) as follower:
            follower.seen = seen
            assert await follower.kind() == "subscribed"
            assert follower.cursor.items() >= cursor.items()
            for _ in range(chance.randrange(8)):
                if all(follower.cursor.get(name, 0) == head for name, head in heads.items()):
                    write()
                    if all(follower.cursor.get(name, 0) == head for name, head in heads.items()):
                        break
                await follower.next()
            cursor = dict(follower.cursor)
    async with world.watch("a", "b", "t:*", cursor=cursor) as follower:
        follower.seen = seen
        for name, head in heads.items():
            await follower.until_seen(name, head)
    assert seen == {name: list(range(1, head + 1)) for name, head in heads.items()}


# ------------------------------------------------------------------- messages


async def test_no_message_is_larger_than_what_clients_take(world: World) -> None:
    world.put("a")
    for _ in range(9):
        world.append("a", b'"%b"' % (b"x" * 1_000_000))
    world.append("a", *[b'"%b"' % (b"x" * 60_000)] * 50)
    async with world.watch("a", max_batch_bytes=8 << 20) as follower:
        at = 0
        while at < 59:
            frame = await follower.next()
            assert frame.ByteSize() < FOUR_MIB - 64
            if frame.WhichOneof("kind") == "records":
                assert frame.records.from_seq == at
                at = frame.records.to_seq
                assert frame.records.records[-1].seq == at
                assert frame.cursor == {"a": at}
        assert follower.seen["a"] == list(range(1, 60))


async def test_many_records_with_long_parts_stay_below_it_too(world: World) -> None:
    world.put("a")
    tags, nodes = [b"t" * 256] * 1000, [b"n" * 128] * 1000
    world.append("a", *[b'"%b"' % (b"x" * 3900)] * 1000, tags=tags, nodes=nodes)
    async with world.watch("a", max_batch_bytes=8 << 20, limit=1000, include_tags=True) as follower:
        while follower.cursor.get("a", 0) < 1000:
            assert (await follower.next()).ByteSize() < FOUR_MIB - 64


async def test_a_client_that_does_not_read_costs_nothing_and_misses_nothing(world: World) -> None:
    world.put("a")
    async with world.watch("a") as follower:
        await follower.until("caught_up")
        last = 0
        for _ in range(100):
            last = world.append("a", *[b'"%b"' % (b"x" * 100_000)] * 4)
            await asyncio.sleep(0)
        assert world.api.metrics.watch.records < last // 2, "frames are read when there is room, not before"
        await follower.until_seen("a", last)
        assert follower.seen["a"] == list(range(1, last + 1))


# ------------------------------------------------------------------- refusals


async def test_what_is_no_subscription(world: World) -> None:
    world.put("a")
    empty = record_pb2.TagMatch()
    for fields, reason in (
        ({}, "INVALID_REQUEST"),
        ({"topics": ["a"], "consistency": 7}, "INVALID_REQUEST"),
        ({"topics": ["a"], "filter": empty}, "INVALID_REQUEST"),
        ({"topics": ["nope"]}, "TOPIC_NOT_FOUND"),
    ):
        topics = fields.pop("topics", [])
        assert (await world.watch(*topics, **fields).status())[1] == reason
        with pytest.raises(grpc.aio.AioRpcError):
            await world.stub.CreateWatch(pb.CreateWatchRequest(subscription=subscription(*topics, **fields)))
    async with world.watch("a", "nope", lenient=True) as follower:
        assert set((await follower.next()).subscribed.topics) == {"a"}


async def test_a_lenient_watch_of_nothing_ends_at_once(world: World) -> None:
    follower = world.watch("nope", lenient=True)
    assert await follower.kind() == "subscribed"
    assert await follower.status() == ("OK", "")


async def test_streams_are_capped() -> None:
    world = World(WatchCaps(max_connections=2))
    await world.start()
    world.put("a")
    async with world.watch("a") as one, world.watch("a") as two:
        await one.next()
        await two.next()
        assert await world.watch("a").status() == ("RESOURCE_EXHAUSTED", "THROTTLED")
        one.cancel()
        async with asyncio.timeout(10):
            while world.api.metrics.watch.connections > 1:
                await asyncio.sleep(0.01)
        async with world.watch("a") as three:
            assert await three.kind() == "subscribed"
    await world.stop()


async def test_a_drain_ends_streams_with_a_frame_and_a_status(world: World) -> None:
    world.put("a")
    world.append("a", b"1")
    follower = world.watch("a")
    await follower.until("caught_up")
    world.api.drain()
    frame = await follower.next()
    error = frame.error
    assert (error.code, error.terminal, list(error.topics)) == (503, True, [])
    assert error.reason == errors_pb2.ERROR_REASON_SERVER_SHUTTING_DOWN
    assert await follower.status() == ("UNAVAILABLE", "SHUTTING_DOWN")
    assert await world.watch("a").status() == ("UNAVAILABLE", "SHUTTING_DOWN")
    await world.until_idle()


# ------------------------------------------------------------------- sessions


async def test_a_session_goes_on_where_its_stream_was_left(world: World) -> None:
    world.put("a")
    world.append("a", b"1", b"2")
    made = await world.stub.CreateWatch(pb.CreateWatchRequest(subscription=subscription("a")))
    assert made.wid.startswith("wid_")
    assert made.stream_url == f"/v0/watch/{made.wid}"
    assert made.session_ttl_ms == 300_000
    assert made.topics["a"] == stream_pb2.TopicPosition(from_seq=0, head_seq=2, earliest_seq=1)
    assert made.performance.server_total_ms > 0
    async with world.open(made.wid) as follower:
        await follower.until("caught_up")
        assert follower.seen == {"a": [1, 2]}
    await world.until_idle()
    world.append("a", b"3")
    async with world.open(made.wid) as follower:
        assert (await follower.next()).subscribed.topics["a"].from_seq == 2
        await follower.until_seen("a", 3)
        assert follower.seen == {"a": [3]}
    await world.until_idle()
    async with world.open(made.wid, {"a": 1}) as follower:
        await follower.until_seen("a", 3)
        assert follower.seen == {"a": [2, 3]}, "a client can go back"


async def test_a_session_that_is_removed_ends_its_stream(world: World) -> None:
    world.put("a")
    made = await world.stub.CreateWatch(pb.CreateWatchRequest(subscription=subscription("a")))
    follower = world.open(made.wid)
    await follower.until("caught_up")
    assert world.api.watches.remove_sessions("") == 1
    assert (await follower.next()).error.code == 410
    assert await follower.status() == ("NOT_FOUND", "NOT_FOUND")
    assert await world.open(made.wid).status() == ("NOT_FOUND", "NOT_FOUND")


# ---------------------------------------------------------------------- leaks


async def test_thousands_of_clients_come_and_leave_without_a_trace(world: World) -> None:
    world.put("a", "t:1")
    world.append("a", *[b"1"] * 300)

    async def visit(frames: int) -> None:
        async with world.watch("a", "t:*", limit=10) as follower:
            for _ in range(frames):
                await follower.next()

    async def visits(count: int) -> None:
        for first in range(0, count, 50):
            await asyncio.gather(*(visit((first + i) % 4) for i in range(50)))
        await world.until_idle()
        gc.collect()

    def held() -> tuple[int, int, int]:
        return len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks()), len(world.engine.catalog.on_created)

    await visits(100)
    before = held()
    await visits(2000)
    async with asyncio.timeout(10):
        while held()[1] > before[1]:
            await asyncio.sleep(0.01)
    assert held() == before
    assert not world.engine.catalog.topics["a"].log._parked
    statistics = world.api.metrics.watch
    assert (statistics.streams, statistics.connections) == (0, 0)
    assert world.api.metrics.grpc.in_flight == 0


async def test_watchers_leave_while_records_pour_in(world: World) -> None:
    world.put("a")

    async def pour() -> None:
        while True:
            world.append("a", *[b'"%b"' % (b"x" * 1000)] * 10)
            await asyncio.sleep(0)

    pouring = asyncio.create_task(pour())
    async with AsyncExitStack() as stack:
        for i in range(60):
            follower = await stack.enter_async_context(world.watch("a", tail=i % 2 == 0))
            await follower.until("records")
            if i % 3:
                follower.cancel()
    await world.until_idle()
    pouring.cancel()
    await asyncio.wait([pouring])
    assert not world.engine.catalog.topics["a"].log._parked
