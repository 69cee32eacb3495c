"""A queue that has done millions of jobs takes no more for the next one: what it writes, reads and keeps is counted."""

from collections import Counter
from collections.abc import Iterator
from itertools import count

import pytest
from engine_support import FaultyStore, runs
from queue_support import QueueWorld

from topics_service.engine import maintenance
from topics_service.storage.memory import MemoryBatch
from topics_service.storage.store import Family, WriteBatch

BATCH = 10
ROUNDS = 3 * maintenance.SEAL_BLOCKS


class CountingStore(FaultyStore):
    """Counts the rows of each family that are written, and the scans of it that begin."""

    def __init__(self) -> None:
        super().__init__()
        self.puts: Counter[Family] = Counter()
        self.scans: Counter[Family] = Counter()

    def write(self, batch: WriteBatch) -> None:
        assert isinstance(batch, MemoryBatch)
        self.puts.update(family for family, _, value, _ in batch.changes if value is not None)
        super().write(batch)

    def scan(self, family: Family, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        self.scans[family] += 1
        return super().scan(family, start, stop)


@pytest.fixture
def store() -> CountingStore:
    return CountingStore()


def steady(world: QueueWorld, rounds: int, backlog: int = 0, *, numbers: Iterator[int] | None = None) -> None:
    """Append batches of jobs with tags of their own, and do all jobs but the newest `backlog`."""
    numbers = numbers or count()
    for _ in range(rounds):
        world.work(*[1] * BATCH, tags=[b"t%d" % next(numbers) for _ in range(BATCH)])
        ready = world.counters()[0]
        if ready > backlog:
            world.ack(*world.take(max_jobs=ready - backlog))
        world.maintain()


@pytest.mark.parametrize("backlog", [0, 15, 200])
def test_jobs_that_are_acked_soon_are_never_indexed(store: CountingStore, backlog: int) -> None:
    world = QueueWorld(store)
    world.queue()
    steady(world, ROUNDS, backlog)
    assert store.puts[Family.TAGS] == 0
    assert len(world.rows(Family.BLOCKS)) <= backlog / BATCH + maintenance._RECLAIM_SEQS / BATCH + 1


def test_the_thousandth_batch_costs_what_the_hundredth_does(store: CountingStore) -> None:
    world, numbers = QueueWorld(store), count()
    world.queue()
    costs = []
    for _ in range(3):
        before = store.puts.total() + store.scans.total()
        steady(world, maintenance.SEAL_BLOCKS, 100, numbers=numbers)
        costs.append(store.puts.total() + store.scans.total() - before)
    assert costs == pytest.approx([costs[0]] * 3, rel=0.05)
    queue = world.engine.queues.queue(world.engine.catalog.topics["q"])
    assert (queue.jobs, queue.gone, queue.trash) == ({}, {}, [])
    assert queue._expiries._size <= queue._expiries._max <= 4096


def test_a_queue_with_a_backlog_is_sealed_as_a_log_is(store: CountingStore) -> None:
    world = QueueWorld(store)
    world.queue()
    steady(world, maintenance.SEAL_BLOCKS, 1 << 20)
    assert [(run.base, run.stop) for run in runs(world, "q")] == [(1, maintenance.SEAL_BLOCKS * BATCH + 1)]
    assert world.delete(eq=b"t77", topic="q").deleted == 1
