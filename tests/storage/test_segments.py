"""Large values apart from their rows: nothing shows it but the tables, and space of dead ones comes back."""

import logging
import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from topics_service.storage import clean_shutdown, keys, livetables, rocks, segment_upkeep, segments, verify
from topics_service.storage.rocks import RocksStore
from topics_service.storage.rocks_batch import RocksBatch
from topics_service.storage.secondary import SecondaryStore
from topics_service.storage.segment_upkeep import SegmentUpkeep
from topics_service.storage.store import Family, StoreError, StoreStalledError
from topics_service.storage.verify import Damage

Rows = dict[bytes, bytes]
RESERVE = 16 << 20  # of which tables have a quarter
MIB = 1 << 20
START, STOP = b"", b"\xff" * 17


class World:
    """A store with large and small rows, what they should be, and its upkeep."""

    def __init__(self, path: Path, seed: int = 0) -> None:
        self.path = path
        self.rows: Rows = {}
        self.random = random.Random(seed)
        self.open()

    def open(self) -> None:
        self.store = RocksStore(self.path, reserve_bytes=RESERVE)
        self.upkeep = SegmentUpkeep(self.store)

    def close(self) -> None:
        self.upkeep.stop()
        self.store.close()

    def put(self, log_id: int, seq: int, size: int) -> None:
        key, value = keys.pair(log_id, seq), self.random.randbytes(size)
        self.write(lambda batch: batch.put(Family.BLOCKS, key, value))
        self.rows[key] = value

    def put_inline(self, log_id: int, seq: int, size: int) -> None:
        """Put a row as earlier versions did."""
        key, value = keys.pair(log_id, seq), self.random.randbytes(size)
        self.write(lambda batch: batch.raw.put(key, value, self.store._handles[Family.BLOCKS]))
        self.rows[key] = value

    def delete(self, *deleted: bytes) -> None:
        self.write(lambda batch: [batch.delete(Family.BLOCKS, key) for key in deleted])
        for key in deleted:
            del self.rows[key]

    def delete_log(self, log_id: int) -> None:
        start, stop = keys.log_range(log_id)
        self.write(lambda batch: batch.delete_range(Family.BLOCKS, start, stop))
        self.rows = {key: value for key, value in self.rows.items() if not start <= key < stop}

    def write(self, fill: Callable[[RocksBatch], object]) -> None:
        """Write a batch as soon as the store takes it."""
        for _ in range(1000):
            batch = self.store.batch()
            fill(batch)
            with suppress(StoreStalledError):
                return self.store.write(batch)
            time.sleep(0.01)
        raise AssertionError("the store takes no writes")

    def check(self) -> None:
        """Compare all rows, by each way to read."""
        assert read(self.store) == self.rows
        for key in self.random.sample(sorted(self.rows), min(20, len(self.rows))):
            assert self.store.get(Family.BLOCKS, key) == self.rows[key]
            assert self.store.floor(Family.BLOCKS, key + b"\x00") == (key, self.rows[key])

    def tables(self) -> list[livetables.Table]:
        return sorted(livetables.of(self.store.families[Family.SEGMENTS]), key=lambda table: table.start)

    def flush(self) -> None:
        for family in self.store.families:
            family.flush(True)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "data")
    yield world
    if world.store.families:
        world.close()


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Upkeep that looks at every freed byte, without pauses."""
    monkeypatch.setattr(segment_upkeep, "_WORTH_LOOKING", 1)
    monkeypatch.setattr(segment_upkeep, "_ALLOWED_BYTES", MIB)
    monkeypatch.setattr(segment_upkeep, "_DUTY", 0)
    monkeypatch.setattr(segment_upkeep, "_MOVED_BYTES_PER_SECOND", 1 << 40)


def read(store: RocksStore) -> Rows:
    return dict(store.scan(Family.BLOCKS, START, STOP))


def squeeze(upkeep: SegmentUpkeep) -> None:
    upkeep.squeeze(lambda: 1 << 40, lambda: False)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(1, 3), st.integers(0, 30), st.sampled_from([0, 13, 4095, 4096, 90_000])),
        st.tuples(st.just("delete"), st.integers(0, 99)),
        st.tuples(st.just("delete_log"), st.integers(1, 3)),
        st.tuples(st.sampled_from(["flush", "run", "squeeze", "reopen"])),
    ),
    max_size=60,
)


@given(STEPS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_rows_are_what_was_written_whatever_upkeep_does(tmp_path_factory: pytest.TempPathFactory, steps: list) -> None:
    world = World(tmp_path_factory.mktemp("model") / "data")
    for kind, *facts in steps:
        if kind == "put":
            world.put(*facts)
        elif kind == "delete" and world.rows:
            world.delete(sorted(world.rows)[facts[0] % len(world.rows)])
        elif kind == "delete_log":
            world.delete_log(*facts)
        elif kind == "flush":
            world.flush()
        elif kind == "run":
            world.upkeep.run()
        elif kind == "squeeze":
            squeeze(world.upkeep)
        elif kind == "reopen":
            world.close()
            world.open()
        world.check()
    world.close()


def test_what_looks_like_a_reference_is_not_taken_for_one(world: World) -> None:
    batch = world.store.batch()
    value = segments.encode(segments.Reference(0, 5000))
    batch.put(Family.BLOCKS, keys.pair(1, 1), value)
    world.store.write(batch)
    assert world.store.get(Family.BLOCKS, keys.pair(1, 1)) == value
    assert read(world.store) == {keys.pair(1, 1): value}


def test_tables_never_overlap_and_are_never_rewritten(world: World) -> None:
    seen: dict[int, int] = {}
    for number in range(1, 1200):
        world.put(number % 7 + 1, number, 40_000)
        if number % 100 == 0:
            world.flush()  # in the midst of a table
            for table in world.tables():
                assert seen.setdefault(table.number, table.size) == table.size
    tables = world.tables()
    assert {table.number for table in tables} >= seen.keys(), "none was replaced by another"
    assert all(before.stop < after.start for before, after in pairwise(tables))
    assert sum(table.size for table in tables) < 1.02 * sum(map(len, world.rows.values()))


def test_space_of_dead_records_comes_back_without_a_table_being_rewritten(world: World) -> None:
    for number in range(1, 601):
        world.put(1, number, 40_000)
    world.flush()
    before = {table.number for table in world.tables()}
    world.delete(*sorted(world.rows)[:500])
    world.upkeep.run()
    world.flush()
    world.check()
    after = world.tables()
    assert sum(table.size for table in after) < 1.3 * sum(map(len, world.rows.values())) + MIB
    left = {table.number for table in after}
    assert before & left, "what is alive as a whole stays where it is"
    assert not any(table.deletions for table in after)


def test_few_live_records_among_dead_ones_are_written_again(world: World) -> None:
    for number in range(1, 601):
        world.put(1 + (number % 4 == 0), number, 40_000)
    world.flush()
    world.delete_log(1)
    world.upkeep.run()
    world.flush()
    world.check()
    assert sum(table.size for table in world.tables()) < 1.3 * sum(map(len, world.rows.values())) + MIB
    world.close()
    world.open()
    world.upkeep.run()
    world.check()
    assert world.store.usage.live_bytes == sum(map(len, world.rows.values()))


def test_a_batch_from_before_a_removal_is_refused(world: World) -> None:
    batch = world.store.batch()
    batch.put(Family.BLOCKS, keys.pair(9, 1), bytes(5000))
    late = world.store.batch()
    for number in range(1, 301):
        if number == 150:
            late.put(Family.BLOCKS, keys.pair(9, 2), bytes(5000))
        world.put(1, number, 40_000)
    world.flush()
    world.delete(*sorted(world.rows)[:280])
    world.upkeep.run()
    for each in (batch, late):
        with pytest.raises(StoreStalledError):
            world.store.write(each)
    world.check()


def test_dead_records_of_before_a_start_are_found(world: World) -> None:
    for number in range(1, 301):
        world.put(1, number, 40_000)
    world.delete(*sorted(world.rows)[:280])
    world.close()
    world.open()
    world.upkeep.run()
    world.check()
    assert sum(table.size for table in world.tables()) < 1.3 * sum(map(len, world.rows.values())) + MIB


@pytest.mark.parametrize("is_short", [False, True])
def test_a_short_disk_moves_nothing_over_and_still_gives_space_back(world: World, is_short: bool) -> None:
    for number in range(1, 100):
        world.put_inline(1, number, 40_000)
    for number in range(100, 301):
        world.put(2, number, 40_000)
    world.delete(*[key for key in sorted(world.rows) if keys.read_u64(key) == 2][:190])
    world.close()
    world.open()
    upkeep = SegmentUpkeep(world.store, has_room=lambda: not is_short)
    if is_short:
        squeeze(upkeep)
    else:
        upkeep.run()
    world.check()
    kept = sum(len(value) for key, value in world.rows.items() if keys.read_u64(key) == 2 or not is_short)
    world.flush()
    assert sum(table.size for table in world.tables()) < 1.3 * kept + MIB


def test_live_bytes_are_found_again_after_a_start_and_after_a_large_removal(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(1, 401):
        world.put(number % 3 + 1, number, 10_000)
    world.close()
    world.open()
    world.put(1, 1000, 10_000)
    world.delete(keys.pair(1, 3), keys.pair(2, 4))
    monkeypatch.setattr(segment_upkeep, "_SLICE_ROWS", 50)
    moved = world.upkeep._walk_on(moves=True)
    assert moved == 0
    world.put(1, 1001, 10_000)
    world.delete(keys.pair(1, 6), *[key for key in sorted(world.rows) if keys.read_u64(key) == 3][-5:])
    world.upkeep.run()
    assert world.store.usage.live_bytes == sum(map(len, world.rows.values()))
    monkeypatch.setattr(rocks, "_MOST_FREED", 10)
    world.delete_log(2)
    world.upkeep.run()
    assert world.store.usage.counted is None
    assert world.store.usage.live_bytes == sum(map(len, world.rows.values()))


def test_all_is_durable_before_a_value_is_removed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a power cut could bring back a row whose value is gone."""
    for number in range(1, 301):
        world.put(1, number, 40_000)
    world.flush()
    world.delete(*sorted(world.rows)[:250])
    synced, removed = [0], list[int]()
    sync, delete = RocksStore.sync, SegmentUpkeep._delete

    def sync_noted(store: RocksStore) -> None:
        at = store.next_sequence
        sync(store)
        synced.append(at)

    def delete_noted(upkeep: SegmentUpkeep, start: bytes, stop: bytes) -> bool:
        removed.append(world.store.next_sequence)
        assert synced[-1] == removed[-1]
        return delete(upkeep, start, stop)

    monkeypatch.setattr(RocksStore, "sync", sync_noted)
    monkeypatch.setattr(SegmentUpkeep, "_delete", delete_noted)
    world.upkeep.run()
    assert removed


def test_a_damaged_table_of_dead_records_is_left_alone_and_writes_go_on(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(1, 301):
        world.put(1, number, 40_000)
    world.close()
    world.open()
    first = world.tables()[0]
    file = world.path / f"{first.number:06}.sst"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    world.delete(*sorted(world.rows)[:250])
    caplog.set_level(logging.ERROR)
    for number in range(400, 420):
        world.upkeep.run()
        squeeze(world.upkeep)
        world.put(1, number, 40_000)
    assert clean_shutdown.known_damage(world.path) is None
    assert [record for record in caplog.records if file.name in record.getMessage()]
    assert len([record for record in caplog.records if "can't be read" in record.getMessage()]) == 1
    assert first.number in {table.number for table in world.tables()}
    assert len(world.tables()) < 6
    world.check()


def test_a_lost_table_is_a_named_stretch_of_records(world: World, tmp_path: Path) -> None:
    for number in range(1, 301):
        world.put(1, number, 100_000)
    world.close()
    world.open()
    lost = world.tables()[1]
    last_lost, first_lost = keys.read_u64(lost.stop, 16), keys.read_u64(lost.start, 16)
    world.close()
    file = world.path / f"{lost.number:06}.sst"
    data = bytearray(file.read_bytes())
    data[1000 : len(data) - 5000] = bytes(len(data) - 6000)
    file.write_bytes(data)
    with verify.opened(world.path) as source:
        found = [each for each in source.rows(Family.BLOCKS) if isinstance(each, Damage)]
    (damage,) = found
    assert (damage.after, damage.before) == (keys.pair(1, first_lost - 1), keys.pair(1, last_lost + 1))
    assert damage.file == file.name
    world.open()
    with pytest.raises(StoreError, match=file.name):
        world.store.get(Family.BLOCKS, keys.pair(1, first_lost))
    with pytest.raises(StoreError) as error:
        world.store.floor(Family.BLOCKS, keys.pair(1, last_lost))
    assert error.value.at == keys.pair(1, first_lost)  # type: ignore[attr-defined]
    assert error.value.above == keys.pair(1, last_lost + 1)  # type: ignore[attr-defined]
    assert world.store.floor(Family.BLOCKS, keys.pair(1, 1))


def test_upkeep_beside_a_writer_loses_nothing(world: World) -> None:
    over = threading.Event()
    failures: list[BaseException] = []

    def keep() -> None:
        try:
            while not over.is_set():
                world.upkeep.run()
                squeeze(world.upkeep)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=keep)
    thread.start()
    for number in range(1, 1500):
        world.put(number % 2 + 1, number, 30_000 if number % 3 else 2000)
        if number > 200 and number % 10 == 0:
            world.delete(*[key for key in sorted(world.rows) if keys.read_u64(key) == 1][:8])
    over.set()
    thread.join(60)
    assert not failures
    world.check()
    squeeze(world.upkeep)
    world.check()


def test_a_follower_reads_every_row_while_records_are_moved(world: World, tmp_path: Path) -> None:
    follower = SecondaryStore(world.path, tmp_path / "follower")
    for number in range(1, 900):
        world.put(number % 2 + 1, number, 30_000)
        if number % 90 == 0:
            follower.catch_up()
            stood = dict(world.rows)
            assert read(follower) == stood
            world.delete(*[key for key in sorted(world.rows) if keys.read_u64(key) == 1][:30])
            world.upkeep.run()
            squeeze(world.upkeep)
            assert read(follower) == stood, "until it catches up, whatever becomes of the files"
            follower.catch_up()
            assert read(follower) == world.rows
    follower.close()


def test_rows_of_earlier_versions_move_over(world: World) -> None:
    for number in range(1, 200):
        world.put_inline(number % 3 + 1, number, 40_000 if number % 2 else 500)
    world.flush()
    world.check()
    world.delete(*sorted(world.rows)[:20])
    world.upkeep.run()
    world.check()
    world.flush()
    large = sum(len(value) for value in world.rows.values() if segments.is_apart(value))
    assert world.store.usage.live_bytes == large
    assert sum(table.size for table in world.tables()) >= large
    assert sum(table.size for table in livetables.of(world.store.families[Family.BLOCKS])) < 200 * 600


@pytest.mark.parametrize("steps", range(1, 8))
def test_a_kill_while_rows_move_over_loses_nothing(tmp_path: Path, steps: int) -> None:
    world = World(tmp_path / "data")
    for number in range(1, 200):
        world.put_inline(number % 3 + 1, number, 40_000 if number % 2 else 500)
    world.close()
    child = multiprocessing.get_context("spawn").Process(target=_move_and_die, args=(world.path, steps))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    world.open()
    world.check()
    world.upkeep.run()
    world.check()
    assert world.store.usage.live_bytes == sum(len(value) for value in world.rows.values() if segments.is_apart(value))
    world.close()


def _move_and_die(path: Path, steps: int) -> None:
    """Move rows over, and be killed at a write, before it or after it, or before the old places are compacted."""
    store = RocksStore(path, reserve_bytes=RESERVE)
    upkeep = SegmentUpkeep(store)
    write, left = RocksStore.rewrite, [steps]

    def counted(done: Callable[..., None]) -> Callable[..., None]:
        def step(*args: object) -> None:
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            done(*args)
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)

        return step

    RocksStore.rewrite = counted(write)  # type: ignore[method-assign]
    SegmentUpkeep._compact_moved = counted(lambda *_: os.kill(os.getpid(), signal.SIGKILL))  # type: ignore[method-assign]
    upkeep.run()
