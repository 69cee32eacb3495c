"""Expiry is written before a reader is told of it: nothing comes back, whatever the clock and the process do."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from engine_support import CrashStore, FaultyStore, World, gap, seqs

from topics_service.api.scheduling.commit import GroupCommit
from topics_service.api.topics import TopicsApi
from topics_service.engine.batches import FetchRequest
from topics_service.engine.errors import TopicsError
from topics_service.engine.model import AppendRequest, Batch, BulkRequest, DiffRequest, ListTopicsRequest
from topics_service.engine.offsets.positions import CommitItem, ResetRequest, Target
from topics_service.engine.router.router import PutRouterRequest, RouterConfig
from topics_service.engine.watch.frames import RecordsFrame, TombstoneFrame, WatchRequest, WatchTopic

TTL_MS = 1000
AHEAD_MS = 10_000_000


def put(world: World, **config: object) -> World:
    world.put(ttl_ms=TTL_MS, **config)
    world.append(b"1", b"2")
    return world


def diff(world: World) -> object:
    return gap(world.diff())


def watch(world: World) -> object:
    frame = world.engine.watch(WatchRequest(topics={"t": WatchTopic()}), lambda _: None).next()
    assert isinstance(frame, TombstoneFrame)
    return frame.tombstone.gap_to


def bulk(world: World) -> object:
    return gap(world.engine.bulk(BulkRequest(topic="t", limit=10, max_batch_bytes=1 << 20, end_seq=2))[0])


def state(world: World) -> object:
    return world.state().earliest_seq


def page_of_topics(world: World) -> object:
    return world.engine.list_topics(ListTopicsRequest()).topics[0].count


def jobs_of_a_queue(world: World) -> object:
    counters = world.engine.queues.counters("t")
    return counters.ready, counters.in_flight


def fetch(world: World) -> object:
    return world.engine.batches.fetch(FetchRequest(topic="t", partition=0, from_seq=0, max_bytes=1000)).lost


def offset(world: World) -> object:
    return world.engine.batches.offset_at("t", 0, 0)


def locate(world: World) -> object:
    return world.engine.locate("t", 0)


def delete_of_nothing(world: World) -> object:
    return world.delete(before=3).earliest_seq


def delete_if_empty(world: World) -> object:
    with pytest.raises(TopicsError) as error:
        world.engine.delete_topic("t", if_empty=True)
    return error.value.detail


def write_without_room(world: World) -> object:
    with pytest.raises(TopicsError) as error:
        world.engine.append(AppendRequest(topic="t", batch=Batch(datas=[b"1"] * 2)))
    return error.value.detail


def reset_of_a_group(world: World) -> object:
    world.engine.groups.commit("g", [CommitItem(topic="t", partition=0, from_seq=0)], whole=True)
    (moved,), _ = world.engine.groups.reset(ResetRequest(group="g", targets=[Target("t", ())], to="earliest"))
    return moved.from_seq


def router_from_the_beginning(world: World) -> object:
    config = RouterConfig(source="t", dest="d")
    world.engine.routers.put(PutRouterRequest(router="r", config=config, backfill=True))
    world.engine.sync()
    return world.engine.routers.get("r").lag_records


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
@pytest.mark.parametrize(
    ("tell", "told"),
    [
        (diff, (1, 2, "ttl")), (watch, 2), (bulk, (1, 2, "ttl")), (state, 3), (page_of_topics, 0), (fetch, True),
        (offset, None), (locate, (3, 2)), (delete_of_nothing, 3), (reset_of_a_group, 2), (router_from_the_beginning, 0),
    ],
)  # fmt: skip
def test_it_stays_away_after_a_kill_with_the_right_clock(
    tell: Callable[[World], object], told: object, durability: str
) -> None:
    world = put(World(), durability=durability)
    world.clock.advance(AHEAD_MS)
    if tell is watch and durability == "fsync":
        diff(world)
        world.engine.sync()  # or it would tell nothing yet
    assert tell(world) == told
    world.clock.advance(-AHEAD_MS)
    world.kill()
    assert (seqs(world.diff()), gap(world.diff()), world.state().count) == ([], (1, 2, "ttl"), 0)


def test_jobs_too() -> None:
    world = put(World(), type="queue")
    world.clock.advance(AHEAD_MS)
    assert jobs_of_a_queue(world) == (0, 0)
    world.clock.advance(-AHEAD_MS)
    world.kill()
    assert jobs_of_a_queue(world) == (0, 0)


@pytest.mark.parametrize(
    ("tell", "told"),
    [
        (delete_if_empty, {"topic": "t", "count": 2}),
        (write_without_room, {"topic": "t", "cap_records": 3, "cap_bytes": 0, "head_seq": 3, "earliest_seq": 2}),
    ],
)
def test_an_error_tells_it_too(tell: Callable[[World], object], told: object) -> None:
    world = World()
    world.put(ttl_ms=TTL_MS, cap_records=3, discard="reject")
    world.append(b"1")
    world.clock.advance(TTL_MS // 2)
    world.append(b"2", b"3")
    world.clock.advance(TTL_MS // 2 + 1)
    assert tell(world) == told
    world.clock.advance(-TTL_MS)
    world.kill()
    assert world.state().earliest_seq == 2


def test_one_write_for_each_time_that_something_has_expired() -> None:
    world = put(World(CrashStore()))
    store = world.store
    assert isinstance(store, CrashStore)
    world.clock.advance(TTL_MS)
    world.append(b"3")
    before = store.writes
    for _ in range(3):
        world.diff()
        world.state()
    assert store.writes == before, "nothing has expired"
    world.clock.advance(1)
    for _ in range(3):
        world.diff()
        world.diff(2)
        world.state()
    world.engine.sweep()
    assert store.writes == before + 1


def test_the_floor_that_was_told_holds_against_a_longer_ttl_after_a_kill() -> None:
    world = put(World())
    world.clock.advance(AHEAD_MS)
    diff(world)
    world.kill()
    world.put(ttl_ms=0)
    world.clock.advance(-AHEAD_MS)
    world.kill()
    assert gap(world.diff()) == (1, 2, "ttl")


@pytest.mark.parametrize("fault", ["stalled", "broken"])
def test_what_cannot_be_written_has_not_expired_yet(fault: str) -> None:
    world = put(World())
    store = world.store
    assert isinstance(store, FaultyStore)
    world.clock.advance(AHEAD_MS)
    setattr(store, fault, True)
    assert (seqs(world.diff()), world.state().earliest_seq) == ([1, 2], 1)
    setattr(store, fault, False)
    if fault == "stalled":
        assert gap(world.diff()) == (1, 2, "ttl")
    else:
        assert seqs(world.diff()) == [1, 2], "the server is read-only"


def test_an_ephemeral_topic_needs_no_write() -> None:
    world = put(World(CrashStore()), durability="ephemeral")
    store = world.store
    assert isinstance(store, CrashStore)
    before = store.writes
    world.clock.advance(AHEAD_MS)
    assert (gap(world.diff()), store.writes) == ((1, 2, "ttl"), before)


def test_a_watch_of_an_fsync_topic_tells_of_it_once_it_is_durable() -> None:
    world = put(World(), durability="fsync")
    woken: list[str] = []
    following = world.engine.watch(WatchRequest(topics={"t": WatchTopic()}), woken.append)
    world.clock.advance(AHEAD_MS)
    assert following.next() is None
    woken.clear()
    world.engine.sync()
    assert woken == ["t"]
    assert isinstance(following.next(), TombstoneFrame)
    world.append(b"3")
    assert isinstance(following.next(), RecordsFrame)


@pytest.mark.parametrize(
    "call",
    [
        lambda api: api.diff(DiffRequest(topic="t")),
        lambda api: api.get_topic("t"),
        lambda api: api.bulk(BulkRequest(topic="t", limit=9, max_batch_bytes=1 << 20, end_seq=2)),
        lambda api: api.locate("t", 0),
    ],
)
async def test_an_fsync_topic_is_answered_for_after_the_fsync(call: Callable[[TopicsApi], Awaitable[object]]) -> None:
    world = put(World(CrashStore()), durability="fsync")
    store = world.store
    assert isinstance(store, CrashStore)
    engine = world.engine
    commit = GroupCommit.for_engine(engine)
    try:
        api = TopicsApi(engine, commit)
        world.clock.advance(AHEAD_MS)
        async with asyncio.timeout(5):
            await call(api)
        assert store.synced == store.writes
        before = sum(commit.statistics.latency.counts)
        async with asyncio.timeout(5):
            await call(api)
        assert (sum(commit.statistics.latency.counts), engine.expiry_ticket()) == (before, 0), "nothing new to tell"
    finally:
        commit.stop()
    world.clock.advance(-AHEAD_MS)
    world.cut_power()
    assert gap(world.diff()) == (1, 2, "ttl")
