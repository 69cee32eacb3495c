"""Runs of the tag index: merged as they grow many, dropped with their records, and in place of the older rows."""

from array import array
from collections import defaultdict

import pytest
from engine_support import CrashStore, FaultyStore, World, code, runs, seqs, tags_of
from test_tag_filter import eq, glob, walk

from topics_service.engine import tagrows
from topics_service.engine.errors import TopicsError
from topics_service.engine.log import Log
from topics_service.engine.tagruns import Merge
from topics_service.storage import keys
from topics_service.storage.store import Family, StoreError

ODD = (b"", b"\x00", b"a", b"a\x00", b"b", b"\xff")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, small_steps: None) -> None:
    """Runs of three records; four are merged, an entry or so in a slice."""
    monkeypatch.setattr("topics_service.engine.tagruns.FAN_IN", 4)
    monkeypatch.setattr("topics_service.engine.tagruns._MERGE_POSITIONS", 1)
    monkeypatch.setattr("topics_service.engine.tagupkeep._SHARE", 1)
    monkeypatch.setattr("topics_service.storage.tagchunk.CHUNK_BYTES", 30)


def log_of(world: World) -> Log:
    return world.engine.catalog.topics["t"].log


def append(world: World, count: int) -> None:
    """Append records whose tags take turns, each three sealed at once; what is due after the last is left."""
    head = world.state().head_seq if "t" in world.engine.catalog.topics else 0
    for seq in range(head + 1, head + count + 1):
        if seq % 3 == 1 and seq > 1:
            world.maintain()
        world.append(1, tags=[ODD[seq % len(ODD)]])
        if not seq % 3:
            assert log_of(world).unsealed_blocks == 3
            world.engine.maintain()


def check(world: World, first: int, stop: int) -> None:
    """Every tag is found in first..stop-1."""
    for i, tag in enumerate(ODD):
        assert walk(world, eq(tag), limit=5) == [seq for seq in range(first, stop) if seq % len(ODD) == i]
    assert walk(world, glob(b"a"), limit=5) == [seq for seq in range(first, stop) if seq % len(ODD) in (2, 3)]
    assert walk(world, glob(b""), limit=5) == list(range(first, stop))


def chunk_rows(world: World) -> list[tuple[int, int]]:
    """The base and level of the run of each stored chunk."""
    start, stop = keys.runs(log_of(world).log_id)[1], keys.tag_rows(log_of(world).log_id)[0]
    return [keys.run_of_chunk(key) for key, _ in world.store.scan(Family.TAGS, start, stop)]


def test_neighbours_are_merged_and_then_those() -> None:
    world = World(CrashStore())
    append(world, 48)
    world.maintain()
    assert [(run.base, run.level, run.stop) for run in runs(world)] == [(1, 2, 49)]
    assert set(chunk_rows(world)) == {(1, 2)}, "nothing of the sources is left"
    check(world, 1, 49)
    append(world, 3)
    assert [(run.base, run.level) for run in runs(world)] == [(1, 2), (49, 0)]
    world.kill()
    check(world, 1, 52)
    assert world.delete(eq=b"a").deleted == 9
    assert world.delete(glob=b"").deleted == 42


def test_a_merge_leaves_out_what_is_deleted_or_evicted() -> None:
    world = World(CrashStore())
    append(world, 9)
    world.delete(eq=b"a")
    world.delete(3)
    append(world, 9)
    world.maintain()
    assert [(run.base, run.level) for run in runs(world)] in ([(1, 1), (13, 0), (16, 0)], [(4, 0)])
    live = [seq for seq in range(3, 19) if not (seq % 6 == 2 and seq < 9)]
    assert walk(world, glob(b"")) == live
    assert tags_of(world).count(b"a") == 1, "that of record 14"


@pytest.mark.parametrize("slices", range(1, 7))
def test_a_merge_that_a_crash_interrupts_is_begun_again(slices: int) -> None:
    world = World(CrashStore())
    append(world, 12)
    assert log_of(world).tag_upkeep is not None
    for _ in range(slices):
        world.engine.maintain()
    world.kill()
    check(world, 1, 13)
    append(world, 12)
    world.maintain()
    check(world, 1, 25)
    found = {(run.base, run.level) for run in runs(world)}
    assert set(chunk_rows(world)) == found, "nothing of the interrupted one is left"


@pytest.mark.parametrize("slices", range(1, 5))
def test_a_merge_whose_sources_are_dropped_ends(slices: int) -> None:
    world = World(CrashStore())
    append(world, 12)
    for _ in range(slices):
        world.engine.maintain()
    world.delete(8)
    world.maintain()
    check(world, 8, 13)
    assert set(chunk_rows(world)) == {(run.base, run.level) for run in runs(world)}


@pytest.mark.parametrize("slices", range(5))
def test_a_slice_that_the_store_refuses_for_a_stall_loses_nothing(slices: int) -> None:
    store = FaultyStore()
    world = World(store)
    append(world, 12)
    for _ in range(slices):
        world.engine.maintain()
    assert log_of(world).tag_upkeep is not None
    store.stalled = True
    with pytest.raises(TopicsError) as error:
        world.engine.maintain()
    assert code(error) == "throttled"
    store.stalled = False
    check(world, 1, 13)
    append(world, 12)
    world.maintain()
    check(world, 1, 25)
    assert [run.level for run in runs(world)].count(0) < 4, "it was begun again"
    assert set(chunk_rows(world)) == {(run.base, run.level) for run in runs(world)}


def test_few_merges_are_under_way_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topics_service.engine.tagupkeep._MERGES", 1)
    world = World(CrashStore())
    append(world, 12)
    world.engine.maintain()
    other, first = Merge(world.store, 7, runs(world)[:2]), log_of(world)
    assert len(world.engine.writer.merges) == 1
    world.maintain()
    assert first.tag_upkeep is None
    assert len(world.engine.writer.merges) == 0
    world.engine.writer.merges.add(other)
    append(world, 36)
    world.maintain()
    assert {run.level for run in runs(world)} == {0, 1}, "waits"
    check(world, 1, 49)
    del other  # its log was deleted
    append(world, 3)
    world.maintain()
    assert [run.level for run in runs(world)] == [2, 0]
    check(world, 1, 52)


def test_runs_of_an_ephemeral_log_are_merged_and_kept_when_it_becomes_durable() -> None:
    world = World(CrashStore())
    world.put(durability="ephemeral")
    append(world, 14)
    for _ in range(3):
        world.engine.maintain()
    check(world, 1, 15)
    world.put(durability="disk")
    check(world, 1, 15)
    append(world, 22)
    world.maintain()
    check(world, 1, 37)
    world.kill()
    check(world, 1, 37)


def test_a_damaged_chunk_is_told_to_who_looks_there_and_stops_no_other_work() -> None:
    world = World(CrashStore())
    append(world, 12)
    log_id = log_of(world).log_id
    key = next(key for key, _ in world.store.scan(Family.TAGS, *keys.chunks(log_id, 4, 0)))
    batch = world.store.batch()
    batch.put(Family.TAGS, key, b"damaged")
    world.store.write(batch)
    world.maintain()
    assert len(runs(world)) == 4, "not merged"
    append(world, 12)
    world.maintain()
    with pytest.raises(StoreError, match="the tag index of log 1 is damaged"):
        walk(world, eq(b""))
    assert world.seqs() == list(range(1, 25))


# ------------------------------------------------------------- rows of earlier versions


def put_older_rows(world: World) -> None:
    """Replace the runs on disk by the rows that earlier versions wrote."""
    log = log_of(world)
    batch = world.store.batch()
    for base, _, stop in runs(world):
        positions = defaultdict[bytes, list[int]](list)
        for seq in range(base, stop):
            block = log.blocks.records(seq)
            tag = None if block.tags is None else block.tags[seq - block.base_seq]
            if tag is not None:
                positions[tag].append(seq - base)
        for tag, found in positions.items():
            batch.put(Family.TAGS, keys.tag(log.log_id, tag, base), array("I", found).tobytes())
    batch.delete_range(Family.TAGS, *keys.runs(log.log_id))
    batch.delete_range(Family.TAGS, keys.runs(log.log_id)[1], keys.tag_rows(log.log_id)[0])
    world.store.write(batch)


def older(monkeypatch: pytest.MonkeyPatch, records: int) -> World:
    world = World(CrashStore())
    monkeypatch.setattr("topics_service.engine.tagruns.FAN_IN", 1000)
    append(world, records)
    put_older_rows(world)
    assert tagrows.exist(world.store, log_of(world).log_id)
    assert runs(world) == []
    return world


@pytest.mark.parametrize("slices", range(8))
def test_older_rows_are_replaced_a_slice_at_a_time(monkeypatch: pytest.MonkeyPatch, slices: int) -> None:
    monkeypatch.setattr("topics_service.engine.tagupkeep._MOVE_RECORDS", 4)
    world = older(monkeypatch, 27)
    check(world, 1, 28)
    append(world, 3)
    for _ in range(slices):
        world.engine.maintain()
    check(world, 1, 31)
    world.kill()
    check(world, 1, 31)
    append(world, 3)
    world.maintain()
    assert not tagrows.exist(world.store, log_of(world).log_id)
    assert world.store.get(Family.TAGS, keys.moved(log_of(world).log_id)) is None
    check(world, 1, 34)
    assert sorted(tags_of(world)) == sorted(ODD[seq % len(ODD)] for seq in range(1, 34)), "each record once"


def test_older_rows_go_with_their_records(monkeypatch: pytest.MonkeyPatch) -> None:
    world = older(monkeypatch, 12)
    world.delete(8)
    world.maintain()
    check(world, 8, 13)
    assert world.delete(eq=b"a").deleted == 1
    assert seqs(world.diff(filter=eq(b"a"))) == []


def test_older_rows_stay_where_a_block_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    world = older(monkeypatch, 12)
    log_id = log_of(world).log_id
    batch = world.store.batch()
    batch.put(Family.BLOCKS, keys.pair(log_id, 4), b"damaged")
    world.store.write(batch)
    log_of(world).cache.drop(log_id, 4)
    append(world, 3)
    world.maintain()
    assert tagrows.exist(world.store, log_id)
    assert seqs(world.diff(6, filter=eq(b"a"))) == [8, 14]
