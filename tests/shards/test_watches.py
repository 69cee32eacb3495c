"""Watches over several shards, of which some are those of another process."""

import asyncio
import random
import re
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from itertools import islice
from typing import Any

import pytest
from msgspec.structs import replace
from shards.far import FarShards, names
from shards.frames import by_topic, read, read_of_last_instance, until_told
from shards.world import ShardsWorld, open_shards

from support.waiting import until
from support.watching import key, quiet, seqs, tell, watch
from topics_service.api.access.auth import UNRESTRICTED, Principal
from topics_service.api.bulk import read_bulk
from topics_service.api.metrics.collector import Metrics
from topics_service.api.observers import NO_OBSERVERS
from topics_service.api.scheduling.commit import CommitStatistics
from topics_service.api.watch_journal import is_token, new_id
from topics_service.api.watch_sessions import process_of
from topics_service.api.watch_stream import WatchStream
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.model import AppendRequest, Batch, BulkRequest, ConfigInput, DiffRequest
from topics_service.engine.watch.frames import (
    CaughtUpFrame,
    ErrorFrame,
    Frame,
    RecordsFrame,
    TopicDeletedFrame,
    WatchRequest,
)
from topics_shards import remote_watch
from topics_shards.health import LocalHealth
from topics_shards.locating import Located
from topics_shards.session_forwarding import ForwardedStream
from topics_shards.shards import LocalShards
from topics_shards.topics import ShardedTopics

A, B, C = (next(iter(names(shard))) for shard in range(3))
"""One topic of each shard."""


class World:
    """Three shards, and the API of a process that has one of them, or all."""

    def __init__(self, world: ShardsWorld, far: Collection[int], process: int = 0, processes: int = 1) -> None:
        local = {number: shard for number, shard in world.all_shards.items() if number not in far}
        self.shards = FarShards(LocalShards(world.all_shards), local)
        self.shards.process, self.shards.processes = process, processes
        self.engines = world.engines
        self.metrics = Metrics(world.engines[0], CommitStatistics())
        health = LocalHealth([shard.api for shard in world.all_shards.values()])
        self.api = ShardedTopics(Located(self.shards), world.engines[0].limits, self.metrics, NO_OBSERVERS, health)
        self.writer = world.api

    async def put(self, *topics: str, **config: Any) -> None:
        for name in topics:
            await self.writer.put_topic(name, ConfigInput(**config), principal=UNRESTRICTED)

    async def append(self, topic: str, count: int = 1) -> None:
        batch = Batch(datas=[b"%d" % i for i in range(count)])
        await self.writer.append(AppendRequest(topic=topic, batch=batch), principal=UNRESTRICTED)

    async def delete(self, topic: str) -> None:
        await self.writer.delete_topic(topic)

    async def stream(self, request: WatchRequest) -> WatchStream:
        return await self.api.watches.stream(request, principal=UNRESTRICTED)


@asynccontextmanager
async def open_world(far: Collection[int] = (1, 2)) -> AsyncIterator[World]:
    async with open_shards(3) as world:
        yield World(world, far)


@pytest.fixture(params=[(), (1, 2), (0, 1, 2)], ids=["near", "two far", "far"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    async with open_world(request.param) as opened:
        yield opened


async def refused(world: World, request: WatchRequest) -> TopicsError:
    with pytest.raises(TopicsError) as caught:
        (await world.stream(request)).close()
    return caught.value


# ---------------------------------------------------------------------------- frames


async def test_backlog_then_live(world: World) -> None:
    await world.put(A, B, C)
    for name, count in ((A, 300), (B, 1), (C, 0)):
        if count:
            await world.append(name, count)
    with await world.stream(watch(A, B, C)) as stream:
        assert [(name, at.from_seq, at.head_seq) for name, at in stream.positions.items()] == sorted(
            [(A, 0, 300), (B, 0, 1), (C, 0, 0)]
        )
        frames = await quiet(stream, 0.1)
        assert [seqs(frames, name) for name in (A, B, C)] == [list(range(1, 301)), [1], []]
        assert [told for told in by_topic(frames).values() if told.count(("caught up",)) != 1] == []
        await world.append(B, 2)
        await world.append(C)
        assert by_topic(await quiet(stream, 0.1)) == {B: [([2, 3],), ("caught up",)], C: [([1],), ("caught up",)]}
        assert stream.cursors == {A: 300, B: 3, C: 1}
        assert stream.watch.heads == stream.cursors
        assert stream.watch.lag == 0
    await until(lambda: not world.shards.streams)


async def test_the_first_round_is_in_order_of_names(world: World) -> None:
    topics = [f"t{number:02}" for number in range(20)]
    await world.put(*topics)
    for name in topics[::3]:
        await world.append(name, 2)
    with await world.stream(watch(*topics)) as stream:
        expected = [
            each
            for number, name in enumerate(topics)
            for each in ([(name, [1, 2])] if number % 3 == 0 else []) + [(name, "caught up")]
        ]
        assert tell(await quiet(stream, 0.2)) == expected


async def test_a_shard_that_is_silent_holds_the_others_up_only_for_a_moment() -> None:
    async with open_world((0, 1, 2)) as world:
        await world.put(A, B, C)
        for name in (A, B, C):
            await world.append(name)
        world.shards.silent.add(1)
        with await world.stream(watch(A, B, C)) as stream:
            frames = await quiet(stream, 0.5)
            assert [seqs(frames, name) for name in (A, B, C)] == [[1], [], [1]]


async def test_the_first_unknown_name_is_told(world: World) -> None:
    await world.put(A)
    for given in ((A, B, C), (C, A, B)):
        error = await refused(world, watch(*given))
        assert (error.reason, error.detail) == (
            Reason.TOPIC_NOT_FOUND,
            {"topic": next(name for name in given if name != A)},
        )
    error = await refused(world, watch(A, f"{A}@3"))
    assert error.reason is Reason.PARTITION_NOT_FOUND
    with await world.stream(watch(A, B, f"{A}@3", lenient=True)) as stream:
        assert list(stream.positions) == [A]
    await until(lambda: not world.shards.streams)


async def test_too_many_topics(world: World) -> None:
    limit = world.engines[0].limits.max_watch_topics
    assert (await refused(world, watch(*map(str, range(limit + 1))))).message == f"a watch has at most {limit} topics"
    assert (await refused(world, watch())).message == "a watch needs at least one topic"
    assert "is not a pattern" in (await refused(world, watch("a*b"))).message


async def test_patterns_have_one_limit_for_all_shards(world: World) -> None:
    few = replace(world.api.limits, max_watch_topics=3)
    world.api.limits = few
    for engine in world.engines:
        engine.limits = few
    await world.put(A, B, C)
    with await world.stream(watch("t*")) as stream:
        assert sorted(stream.positions) == sorted([A, B, C])
        await quiet(stream, 0.05)
        others = [name for shard in range(3) for name in islice(names(shard), 1, 2)]
        await world.put(*others)
        frames = await quiet(stream, 0.1)
        assert all(isinstance(frame, ErrorFrame) and frame.code == 429 and not frame.terminal for frame in frames)
        assert sorted(name for frame in frames if isinstance(frame, ErrorFrame) for name in frame.topics) == sorted(
            others
        )
        assert sorted(stream.cursors) == sorted([A, B, C])
        await world.append(others[0])
        await world.append(A)
        assert by_topic(await quiet(stream, 0.1)) == {A: [([1],), ("caught up",)]}
    assert (await refused(world, watch("t*"))).message == "the patterns match too many topics: a watch has at most 3"


async def test_topics_that_are_made_later_at_any_shard_join(world: World) -> None:
    await world.put(A)
    with await world.stream(watch("t*")) as stream:
        assert await quiet(stream, 0.05) == [CaughtUpFrame(topic=A, head_seq=0)]
        for name in (B, C):
            await world.put(name)
            await world.append(name)
        frames = await quiet(stream, 0.1)
        assert [seqs(frames, name) for name in (A, B, C)] == [[], [1], [1]]
        assert [told[-1] for told in by_topic(frames).values()] == [("caught up",)] * 2
        assert stream.cursors == {A: 0, B: 1, C: 1}
        assert stream.drop("t*")
        for name in (A, B, C):
            await world.append(name)
        assert await quiet(stream, 0.1) == []
        assert stream.over
    await until(lambda: not world.shards.streams)


async def test_a_dropped_topic_is_silent_and_the_others_go_on(world: World) -> None:
    await world.put(A, B, C)
    with await world.stream(watch(A, B, C)) as stream:
        await quiet(stream, 0.05)
        for name in (A, B, C):
            await world.append(name)
        await asyncio.sleep(0.01)  # an item of the dropped topic may be here already
        assert stream.drop(B)
        assert not stream.drop("unknown")
        await world.append(B)
        assert by_topic(await quiet(stream, 0.1)) == {name: [([1],), ("caught up",)] for name in (A, C)}
        assert sorted(stream.cursors) == sorted([A, C])


async def test_deleted_topics_and_their_successors(world: World) -> None:
    await world.put(A, B, C)
    with await world.stream(watch(A, "t*")) as stream:
        await quiet(stream, 0.05)
        for name in (A, B):
            await world.append(name)
        await quiet(stream, 0.05)
        for name in (A, B):
            await world.delete(name)
            await world.put(name)
        await world.append(B)
        frames = await quiet(stream, 0.1)
        assert by_topic(frames) == {
            A: [("deleted", 1), ("caught up",)],
            B: [("deleted", 1), ([1],), ("caught up",)],
        }
    with await world.stream(watch(A, C)) as stream:
        await quiet(stream, 0.05)
        for name in (A, C):
            await world.delete(name)
        assert by_topic(await quiet(stream, 0.1)) == {A: [("deleted", 0)], C: [("deleted", 0)]}
        assert stream.over


async def test_a_stream_resumes_from_any_cursor(world: World) -> None:
    await world.put(A, B, C)
    for name in (A, B, C):
        await world.append(name, 10)
    for cursors in ({A: 3, B: 10, C: 0}, {A: 10, B: 7, C: 9}):
        with await world.stream(watch(A, B, C, cursor=cursors)) as stream:
            frames = await quiet(stream, 0.05)
            assert {name: seqs(frames, name) for name in (A, B, C)} == {
                name: list(range(seq + 1, 11)) for name, seq in cursors.items()
            }


async def test_records_that_are_passed_over_move_the_cursor(world: World) -> None:
    await world.put(A, B, C)
    for name in (A, B, C):
        await world.append(name, 5000)
    with await world.stream(watch(A, B, C, nodes=(b"n",), filter=None, limit=1000)) as stream:
        await quiet(stream, 0.1)
        assert stream.cursors == {A: 5000, B: 5000, C: 5000}


async def test_a_slow_reader_holds_one_frame_of_a_shard() -> None:
    async with open_world((0, 1, 2)) as world:
        await world.put(A, B, C)
        for name in (A, B, C):
            for _ in range(100):
                await world.append(name, 100)
        with await world.stream(watch(A, B, C, limit=100)) as stream:
            await until(lambda: world.shards.items == 6)  # what each begins with, and a frame
            await asyncio.sleep(0.1)
            assert world.shards.items == 6, "nothing is read ahead"
            await anext(stream)
            await until(lambda: world.shards.items == 7)
            await asyncio.sleep(0.1)
            assert world.shards.items == 7, "nothing is read ahead"
            found: list[Frame] = []
            await until_told(stream, found, {A: 10_000, B: 10_000, C: 10_000})
            assert len(seqs(found)) == 29_900


# ---------------------------------------------------------------------------- sessions


async def test_a_session_resumes_where_its_stream_ended(world: World) -> None:
    await world.put(A, B, C)
    for name in (A, B, C):
        await world.append(name, 2)
    session = await world.api.watches.create(watch(A, B, "t*"), principal=UNRESTRICTED)
    assert list(session.positions) == sorted([A, B, C])

    async def visit(cursor: Mapping[str, int] | None = None) -> dict[str, list[Any]]:
        with await world.api.watches.open(session.wid, cursor or {}, principal=UNRESTRICTED) as stream:
            return by_topic(await quiet(stream, 0.1))

    assert await visit() == {name: [([1, 2],), ("caught up",)] for name in (A, B, C)}
    await world.append(A)
    await world.append(C)
    assert await visit() == {A: [([3],), ("caught up",)], B: [("caught up",)], C: [([3],), ("caught up",)]}
    assert await visit({A: 2, B: 0}) == {
        A: [([3],), ("caught up",)],
        B: [([1, 2],), ("caught up",)],
        C: [("caught up",)],
    }
    await world.delete(A)
    await world.delete(B)
    await world.put(B)
    await world.append(B)
    told = await visit()
    assert told[A] == [("deleted", 3)]
    assert told[C] == [("caught up",)]


async def test_instances_are_compared_within_their_home(world: World) -> None:
    """Each home counts its topics for itself: a topic that was made after the session can have the lower number."""
    for _ in range(50):
        await world.put(A)
        await world.delete(A)
    await world.put(A, B)
    await world.append(B, 5)
    session = await world.api.watches.create(watch(A, B), principal=UNRESTRICTED)
    with await world.api.watches.open(session.wid, {}, principal=UNRESTRICTED) as stream:
        await quiet(stream, 0.05)
        first = stream.resume_cursors
        assert first == {A: 0, B: 5}
        await world.delete(B)
    await world.put(B)
    await world.append(B, 2)
    with await world.api.watches.open(session.wid, first, principal=UNRESTRICTED) as stream:
        frames = await quiet(stream, 0.1)
        assert [told for told in tell(frames) if told[0] == B] == [
            (B, "recreated", 1, 2),
            (B, [1, 2]),
            (B, "caught up"),
        ]
        marked = stream.resume_cursors
        assert set(marked) == {A, B, f"{B}#"}
    with await world.api.watches.open(session.wid, marked, principal=UNRESTRICTED) as stream:
        assert by_topic(await quiet(stream, 0.1)) == {A: [("caught up",)], B: [("caught up",)]}


# ---------------------------------------------------------------------------- sessions of another process


@asynccontextmanager
async def open_processes() -> AsyncIterator[tuple[World, World]]:
    """Two processes, the first with one shard and the other with the others."""
    async with open_shards(3) as world:
        first, second = World(world, (1, 2), 0, 2), World(world, (0,), 1, 2)
        for each, other in ((first, second), (second, first)):
            each.shards.objects[each.shards.number_of(other.shards.process)] = other.api.watches
        yield first, second


async def test_a_session_is_followed_through_another_process() -> None:
    async with open_processes() as (first, second):
        await first.put(A, B, C)
        for name in (A, B, C):
            await first.append(name, 2)
        session = await second.api.watches.create(watch(A, B, "t*"), principal=UNRESTRICTED)
        assert re.fullmatch(r"wid_[A-Za-z0-9_-]{22}", session.wid)
        assert process_of(session.wid, 2) == 1
        with await first.api.watches.open(session.wid, {}, principal=UNRESTRICTED) as stream:
            assert isinstance(stream, ForwardedStream)
            assert [(name, at.head_seq) for name, at in stream.positions.items()] == [(n, 2) for n in sorted((A, B, C))]
            assert stream.request.topics.keys() == {A, B, "t*"}
            frames = await quiet(stream, 0.1)
            assert [seqs(frames, name) for name in (A, B, C)] == [[1, 2]] * 3
            assert stream.resume_cursors == {A: 2, B: 2, C: 2}
            await first.append(B)
            assert seqs(await quiet(stream, 0.1)) == [3]
        await until(lambda: not second.metrics.watch.streams)
        with await second.api.watches.open(session.wid, {}, principal=UNRESTRICTED) as stream:
            assert seqs(await quiet(stream, 0.1)) == []
        with await first.api.watches.open(session.wid, {B: 1}, principal=UNRESTRICTED) as stream:
            assert seqs(await quiet(stream, 0.1)) == [2, 3]
        assert first.metrics.watch.sessions == 0
        assert second.metrics.watch.sessions == 1


async def test_a_frame_counts_as_handed_over_when_the_next_is_asked_for() -> None:
    async with open_processes() as (first, second):
        await first.put(A)
        await first.append(A, 4)
        session = await second.api.watches.create(watch(A, limit=2), principal=UNRESTRICTED)
        with await first.api.watches.open(session.wid, {}, principal=UNRESTRICTED) as stream:
            assert [seqs([await anext(stream)]) for _ in range(2)] == [[1, 2], [3, 4]]
        await until(lambda: not second.metrics.watch.streams)
        with await first.api.watches.open(session.wid, {}, principal=UNRESTRICTED) as stream:
            assert seqs([await anext(stream)]) == [3, 4]


async def test_refusals_of_another_process() -> None:
    mine = key("one")
    async with open_processes() as (first, second):
        await first.put(A)
        session = await second.api.watches.create(watch(A), principal=mine)

        async def reason(wid: str, principal: Principal | None = mine) -> Reason:
            with pytest.raises(TopicsError) as caught:
                await first.api.watches.open(wid, {}, principal=principal)
            return caught.value.reason

        assert await reason(session.wid, key("two")) is Reason.UNAUTHORIZED
        assert await reason(session.wid, None) is Reason.UNAUTHORIZED
        for process in (0, 1, 7):
            assert await reason(f"wid_{new_id(16, process.to_bytes(2, 'big'))}") is Reason.NOT_FOUND
        for wid in ("wid_", "wid_" + 22 * "x", session.wid + "x", session.wid[:-1], "x"):
            assert await reason(wid) is Reason.NOT_FOUND
        assert first.api.watches.remove_sessions("one") == 0
        assert second.api.watches.remove_sessions("one") == 1
        assert await reason(session.wid) is Reason.NOT_FOUND


async def test_a_process_that_goes_away_takes_its_sessions_with_it() -> None:
    async with open_processes() as (first, second):
        await first.put(A)
        session = await second.api.watches.create(watch(A), principal=UNRESTRICTED)
        with await first.api.watches.open(session.wid, {}, principal=UNRESTRICTED) as stream:
            assert by_topic(await quiet(stream, 0.1)) == {A: [("caught up",)]}
            first.shards.leave(first.shards.number_of(1))
            frames = await quiet(stream, 0.1)
            assert [(frame.code, frame.terminal) for frame in frames if isinstance(frame, ErrorFrame)] == [(410, True)]
            assert stream.over
        with pytest.raises(TopicsError) as caught:
            await first.api.watches.open(session.wid, {}, principal=UNRESTRICTED)
        assert caught.value.reason is Reason.NOT_FOUND


async def test_tokens_of_large_sessions_are_known_to_all_processes() -> None:
    async with open_processes() as (first, second):
        topics = [f"t{number}" for number in range(70)]
        await first.put(*topics)
        session = await second.api.watches.create(watch(*topics), principal=UNRESTRICTED)
        await first.append("t7", 3)
        with await first.api.watches.open(session.wid, {}, principal=UNRESTRICTED) as stream:
            await quiet(stream, 0.1)
            token = stream.resume_token()
        place = {name: 3 * (name == "t7") for name in topics}
        assert is_token(token)
        for process in (first, second):
            assert await process.api.watches.recall(token, principal=UNRESTRICTED) == place
            assert await process.api.watches.recall(token, principal=key("other")) is None
        first.shards.leave(first.shards.number_of(1))
        assert await first.api.watches.recall(token, principal=UNRESTRICTED) is None


# ---------------------------------------------------------------------------- outages


async def test_a_shard_that_comes_back_goes_on_where_it_was() -> None:
    async with open_world() as world:
        await world.put(A, B, C)
        with await world.stream(watch(A, B, C, heartbeat_ms=100)) as stream:
            await quiet(stream, 0.05)
            await world.append(B)
            world.shards.leave(1)
            await world.append(B)
            await world.append(C)
            frames = [frame for frame in await quiet(stream, 0.05) if isinstance(frame, RecordsFrame)]
            assert [frame.topic for frame in frames if frame.topic != B] == [C]
            beats = await asyncio.wait_for(anext(stream), 2)  # it stays open
            assert type(beats).__name__ == "HeartbeatFrame"
            world.shards.away.clear()
            found: list[Frame] = [*frames]
            await until_told(stream, found, {B: 2})
            assert seqs(found, B) == [1, 2]
            for _ in range(5):
                world.shards.break_off(1)
                await asyncio.sleep(0.1)
            await world.append(B)
            await until_told(stream, found, {B: 3})
            assert seqs(found, B) == [1, 2, 3]
            caught = [frame for frame in found if isinstance(frame, CaughtUpFrame) and frame.topic == B]
            assert len(caught) <= 2  # a watch that is opened again does not say it again
        await until(lambda: not world.shards.streams)


async def test_a_topic_that_is_deleted_during_an_outage() -> None:
    async with open_world() as world:
        await world.put(A, B, C)
        await world.append(B, 3)
        with await world.stream(watch(A, B, "t*")) as stream:
            await quiet(stream, 0.05)
            world.shards.leave(1)
            await world.delete(B)
            other = next(islice(names(1), 1, 2))
            await world.put(other)
            await world.append(other)
            world.shards.away.clear()
            found: list[Frame] = []
            await until_told(stream, found, {other: 1})
            assert by_topic(found) == {B: [("deleted", 3)], other: [([1],), ("caught up",)]}


async def test_a_session_opens_beside_a_shard_that_does_not_answer() -> None:
    async with open_world() as world:
        await world.put(A, B)
        session = await world.api.watches.create(watch(A, B), principal=UNRESTRICTED)
        await world.append(A)
        await world.append(B)
        world.shards.stuck.add(1)
        with await world.api.watches.open(session.wid, {}, principal=UNRESTRICTED) as stream:
            assert by_topic(await quiet(stream, 0.1)) == {A: [([1],), ("caught up",)]}
            world.shards.stuck.clear()
            world.shards.break_off(1)
            found: list[Frame] = []
            await until_told(stream, found, {B: 1})
    await until(lambda: not world.shards.streams)


async def test_a_session_opens_while_a_shard_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_watch, "_PATIENCE_SECONDS", 0.1)
    async with open_world() as world:
        await world.put(A, B)
        session = await world.api.watches.create(watch(A, B), principal=UNRESTRICTED)
        with await world.api.watches.open(session.wid, {}, principal=UNRESTRICTED) as stream:
            await quiet(stream, 0.05)
        world.shards.leave(1)
        await world.append(A)
        await world.append(B)
        with await world.api.watches.open(session.wid, {}, principal=UNRESTRICTED) as stream:
            assert by_topic(await quiet(stream, 0.05)) == {A: [([1],), ("caught up",)]}
            assert stream.resume_cursors == {A: 1, B: 0}
            world.shards.away.clear()
            found: list[Frame] = []
            await until_told(stream, found, {B: 1})
        world.shards.leave(1)
        error = await refused(world, watch(A, B))
        assert error.reason is Reason.NOT_READY


# ---------------------------------------------------------------------------- watch equals diff


@pytest.mark.parametrize("seed", range(12))
async def test_a_watch_is_what_diff_gives(seed: int) -> None:
    """Under writes, deletes, recreations and outages, every live topic is read whole, once and in order."""
    pick = random.Random(seed)
    pool = [name for shard in range(3) for name in islice(names(shard), 3)]
    async with open_world(pick.choice([(), (1, 2), (0, 1, 2)])) as world:
        alive: dict[str, int] = {}  # heads
        for name in pool[::2]:
            await world.put(name)
            alive[name] = 0
        wanted = watch("t*") if pick.random() < 0.5 else watch("t*", *pool[:3:2], limit=3)
        with await world.stream(wanted) as stream:
            found: list[Frame] = []
            reader = asyncio.create_task(read(stream, found))
            for _ in range(60):
                name, step = pick.choice(pool), pick.random()
                if step < 0.15 and name in alive:
                    await world.delete(name)
                    del alive[name]
                elif step < 0.2:
                    world.shards.break_off(pick.randrange(3))
                elif step < 0.3:
                    await asyncio.sleep(0.01)
                elif name in alive:
                    count = pick.randrange(1, 6)
                    await world.append(name, count)
                    alive[name] += count
                else:
                    await world.put(name)
                    alive[name] = 0
            await until(lambda: all(stream.cursors.get(name) == head for name, head in alive.items()))
            await until(lambda: stream.cursors.keys() == alive.keys() | (set(wanted.topics) - {"t*"}))
            await asyncio.sleep(0.05)
            assert not reader.done()
            reader.cancel()
            for name, head in alive.items():
                assert read_of_last_instance(found, name) == list(range(1, head + 1)), name


async def test_news_and_long_polls_end_with_their_caller(world: World) -> None:
    await world.put(B)
    log = world.engines[1].catalog.visible(B).log
    for wait in (world.api.news(B), world.api.diff(DiffRequest(topic=B, wait_ms=30_000))):
        waiting = asyncio.create_task(wait)
        await until(lambda: log._parked)
        waiting.cancel()
        await asyncio.wait((waiting,))
        await until(lambda: not log._parked)
    waiting = asyncio.create_task(world.api.news(B, after=0))
    polling = asyncio.create_task(world.api.diff(DiffRequest(topic=B, wait_ms=30_000)))
    await until(lambda: len(log._parked) == 2)
    await world.append(B)
    await asyncio.wait_for(waiting, 5)
    assert (await asyncio.wait_for(polling, 5)).head_seq == 1


async def test_a_wait_for_news_that_came_already_is_none(world: World) -> None:
    """A record can be written between the read of a follower and its wait, which are two calls of another process."""
    await world.put(B)
    await world.append(B)
    await asyncio.wait_for(world.api.news(B, after=0), 5)
    follower = read_bulk(world.api, BulkRequest(topic=B, limit=10, max_batch_bytes=1000), follow=True)
    pages = [await anext(follower)]
    assert pages[0][0].head_seq == 1
    following = asyncio.create_task(anext(follower))
    await asyncio.sleep(0.02)
    await world.append(B)
    reply, done = await asyncio.wait_for(following, 5)
    assert (reply.head_seq, reply.next_from_seq, done) == (2, 2, False)
    await follower.aclose()


# ---------------------------------------------------------------------------- partitions and placed topics


async def test_partitions_of_one_topic_in_several_shards(world: World) -> None:
    await world.writer.put_topic(A, ConfigInput(), principal=UNRESTRICTED, partition_count=4)
    for partition in range(4):
        batch = Batch(datas=[b"1"] * (partition + 1))
        request = AppendRequest(topic=A, partition=partition, batch=batch)
        await world.writer.append(request, principal=UNRESTRICTED)
    keys = [A, *(f"{A}@{partition}" for partition in (1, 2, 3))]
    session = await world.api.watches.create(watch(*keys, "t*"), principal=UNRESTRICTED)
    assert list(session.positions) == sorted(keys)
    with await world.api.watches.open(session.wid, {}, principal=UNRESTRICTED) as stream:
        frames = await quiet(stream, 0.1)
        read = [frame for frame in frames if isinstance(frame, RecordsFrame)]
        assert sorted((frame.partition, seqs([frame])[-1]) for frame in read) == [(0, 1), (1, 2), (2, 3), (3, 4)]
        assert stream.resume_cursors == {key: number + 1 for number, key in enumerate(keys)}
        first = stream.resume_cursors
        await world.delete(A)
        frames = await quiet(stream, 0.1)
        assert sorted((frame.topic, frame.partition) for frame in frames if isinstance(frame, TopicDeletedFrame)) == [
            (A, partition) for partition in range(4)
        ]
    await world.writer.put_topic(A, ConfigInput(), principal=UNRESTRICTED, partition_count=2)
    await world.append(A)
    with await world.api.watches.open(session.wid, first, principal=UNRESTRICTED) as stream:
        told = [told for told in tell(await quiet(stream, 0.1)) if told[1] != "caught up"]
        assert (A, [1]) in told
        assert sum(each[1] == "deleted" for each in told) >= 2, told  # the partitions 2 and 3
    error = await refused(world, watch(A, f"{A}@2"))
    assert error.reason is Reason.PARTITION_NOT_FOUND


async def test_topics_of_a_placement_group_are_followed_where_they_are(world: World) -> None:
    groups = [f"g{number}" for number in range(8)]
    for number, group in enumerate(groups):
        name = f"t-placed-{number}"
        await world.writer.put_topic(name, ConfigInput(), principal=UNRESTRICTED, placement=group)
        await world.append(name)
    named = [f"t-placed-{number}" for number in range(8)]
    with await world.stream(watch(*named)) as stream:
        assert [seqs(await quiet(stream, 0.1), name) for name in named[:1]] == [[1]]
        assert stream.cursors == dict.fromkeys(named, 1)
    with await world.stream(watch("t*")) as stream:
        await quiet(stream, 0.1)
        assert stream.cursors == dict.fromkeys(named, 1)
        await world.delete(named[3])
        assert tell(await quiet(stream, 0.1)) == [(named[3], "deleted", 1)]
