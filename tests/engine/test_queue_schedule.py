"""Jobs with a delay or a priority: hidden until their time, served by rank, the same after any restart."""

from collections.abc import Callable

import pytest
from engine_support import CrashStore, FaultyStore, code
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap, BitMap64
from queue_support import QueueWorld

from topics_service.engine.bitmaps import first_absent
from topics_service.engine.errors import TopicsError
from topics_service.engine.model import ConfigInput
from topics_service.engine.queue import browse, schedule
from topics_service.engine.queue.jobs import ListJobsRequest
from topics_service.storage.store import Family

DAY = 86_400_000
RESTARTS: list[Callable[[QueueWorld], None]] = [lambda world: None, QueueWorld.restart, QueueWorld.kill]


@pytest.fixture
def world() -> QueueWorld:
    world = QueueWorld()
    world.queue()
    return world


@pytest.fixture
def small_folds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "FOLD_ROWS", 3)


# ------------------------------------------------------------------------- checks


@pytest.mark.parametrize("request_", [{"priority": 10}, {"priority": -1}, {"delay_ms": -1}])
def test_bad_values_are_refused_everywhere(world: QueueWorld, request_: dict[str, int]) -> None:
    for topic in ("q", "new"):
        with pytest.raises(TopicsError) as error:
            world.work(topic=topic, **request_)
        assert code(error) == "invalid_request"
    assert not world.engine.has_topic("new")


@pytest.mark.parametrize("request_", [{"priority": 1}, {"delay_ms": 1}])
def test_only_a_queue_takes_them(world: QueueWorld, request_: dict[str, int]) -> None:
    world.put("log")
    for topic in ("log", "new"):
        with pytest.raises(TopicsError) as error:
            world.work(topic=topic, **request_)
        assert code(error) == "invalid_request"
    assert not world.engine.has_topic("new")
    with pytest.raises(TopicsError) as error:
        world.work(topic="new", create=False, **request_)
    assert code(error) == "topic_not_found"
    world.work(topic="made", config=ConfigInput(type="queue"), **request_)
    world.work(topic="log", priority=0, delay_ms=0)


# -------------------------------------------------------------------------- delay


@pytest.mark.parametrize("restart", RESTARTS)
@pytest.mark.parametrize("durability", ["disk", "fsync", "memory"])
def test_a_delayed_job_is_hidden_until_its_time(durability: str, restart: Callable[[QueueWorld], None]) -> None:
    world = QueueWorld()
    world.queue(durability=durability)
    world.work(1, 1, delay_ms=500)
    world.work()
    restart(world)
    assert world.counters() == (1, 0, 0)
    assert world.seqs("q") == [1, 2, 3], "readers see it"
    assert world.take(max_jobs=5) == [3]
    world.clock.advance(499)
    assert world.take(max_jobs=5) == []
    world.clock.advance(1)
    restart(world)
    assert world.counters()[0] == (2 if restart is RESTARTS[0] else 3)
    assert world.take(max_jobs=2) == [1, 2]


def test_an_ephemeral_queue_delays_too(world: QueueWorld) -> None:
    world.queue(durability="ephemeral")
    world.work(delay_ms=500)
    world.work(priority=1)
    assert world.take(max_jobs=2) == [2]
    world.clock.advance(500)
    assert world.take(max_jobs=2) == [1]
    world.restart()
    assert world.counters() == (0, 0, 0)
    world.work(delay_ms=500)
    assert (world.counters(), world.listed("delayed")) == ((0, 0, 0), [world.state("q").head_seq])


def test_an_ephemeral_queue_that_becomes_durable_keeps_its_schedule(world: QueueWorld) -> None:
    world.queue(durability="ephemeral")
    world.work(delay_ms=500)
    world.work()
    world.work(priority=1)
    world.queue(durability="disk")
    world.restart()
    assert world.counters() == (2, 0, 0)
    assert [world.take(), world.take()] == [[3], [2]]


def test_due_jobs_are_served_by_seq_among_fresh_ones(world: QueueWorld) -> None:
    world.work(delay_ms=100)
    world.work(1, 1)
    world.work(delay_ms=200)
    world.work(1, 1)
    assert world.take() == [2]
    world.clock.advance(200)
    assert [world.take()[0] for _ in range(5)] == [1, 3, 4, 5, 6]


def test_a_delay_is_clamped(world: QueueWorld) -> None:
    world.work(delay_ms=DAY * 2)
    assert world.jobs("delayed")[0].ready_at == world.clock.now + DAY
    assert world.engine.queues.next_due("q") == world.clock.now + DAY


def test_delays_end_in_any_order(world: QueueWorld) -> None:
    for delay in (300, 100, 200, 100):
        world.work(delay_ms=delay)
    served = []
    for _ in range(3):
        due = world.engine.queues.next_due("q")
        assert due is not None
        world.clock.now = due
        served.append(world.take(max_jobs=9, lease_ms=DAY))
    assert served == [[2, 4], [3], [1]]


def test_a_shorter_delay_that_comes_after_others_ended(world: QueueWorld) -> None:
    """Also behind a clock that stepped back: rows before the place that was looked at."""
    world.work(delay_ms=100)
    world.clock.advance(100)
    assert world.take(lease_ms=DAY) == [1]
    world.clock.advance(-90)
    world.work(delay_ms=10)
    assert world.take() == []
    world.clock.advance(10)
    assert world.take() == [2]


def test_many_due_jobs_come_in_slices(world: QueueWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "_DUE_ROWS", 2)
    for _ in range(5):
        world.work(delay_ms=10)
    world.clock.advance(10)
    assert world.take(max_jobs=9) == [1, 2]
    assert world.take(max_jobs=9) == [3, 4]
    assert world.take(max_jobs=9) == [5]


# ----------------------------------------------------------------------- priority


@pytest.mark.parametrize("restart", RESTARTS)
def test_higher_priorities_go_first_and_each_by_seq(world: QueueWorld, restart: Callable[[QueueWorld], None]) -> None:
    for priority in (0, 5, 9, 5, 0, 1):
        world.work(1, 1, priority=priority)
    restart(world)
    order = [world.take()[0] for _ in range(12)]
    assert order == [5, 6, 3, 4, 7, 8, 11, 12, 1, 2, 9, 10]


def test_what_was_given_back_goes_before_any_priority(world: QueueWorld) -> None:
    world.work(1, 1)
    world.claim(max_jobs=2)
    world.work(priority=9)
    world.nack(2)
    assert [world.take()[0] for _ in range(2)] == [2, 3]


def test_a_delayed_job_keeps_its_priority(world: QueueWorld) -> None:
    world.work(delay_ms=100, priority=7)
    world.work(priority=3)
    world.work()
    assert world.take() == [2]
    world.clock.advance(100)
    assert [world.take()[0] for _ in range(2)] == [1, 3]


def test_priorities_of_records_that_are_not_durable_yet(world: QueueWorld) -> None:
    world.queue(durability="fsync")
    world.work(priority=1)
    world.work(priority=9, sync=False)
    world.work(priority=9, delay_ms=100, sync=False)
    assert world.take(max_jobs=9) == [1]
    world.clock.advance(100)
    assert world.counters() == (0, 1, 0)
    world.engine.sync()
    assert world.take(max_jobs=9) == [2, 3]


# --------------------------------------------------------------- rows and restarts


def test_rows_are_folded_and_go_away(world: QueueWorld, small_folds: None) -> None:
    for i in range(40):
        world.work(priority=i % 3, delay_ms=10 * (i % 2))
    assert len(world.rows(Family.JOBS)) < 50
    world.clock.advance(10)
    for seq in world.take(max_jobs=100):
        world.ack(seq)
    assert world.counters() == (0, 0, 0)
    for _ in range(4):
        world.work(priority=1)
    world.restart()
    assert world.counters() == (4, 0, 0)
    assert len(world.rows(Family.JOBS)) < 12, "nothing is left of the forty"


def test_the_delayed_write_that_folds_stays_hidden(world: QueueWorld, small_folds: None) -> None:
    for _ in range(3):
        world.work(priority=1)
    world.work(1, 1, delay_ms=100, priority=2)
    assert b"\x04" in {key[8:9] for key, _ in world.rows(Family.JOBS)}, "it did fold"
    world.kill()
    assert (world.counters(), world.listed("delayed")) == ((3, 0, 0), [4, 5])
    assert [view.ready_at for view in world.jobs("delayed")] == [world.clock.now + 100] * 2
    world.clock.advance(100)
    assert world.take(max_jobs=2) == [4, 5]


def test_sets_of_chunks_that_are_done_are_removed(world: QueueWorld, small_folds: None) -> None:
    for _ in range(8):
        world.work(*[1] * 10_000, priority=4)
    world.delete(before=66_000, topic="q")
    world.counters()
    kinds = [key[8] for key, _ in world.rows(Family.JOBS)]
    assert kinds.count(3) == 1, "the set of the first chunk goes when somebody looks"
    world.delete(before=70_000, topic="q")
    for _ in range(4):
        world.work(priority=4)
    kinds = [key[8] for key, _ in world.rows(Family.JOBS)]
    assert kinds.count(3) == 1, "one set of one chunk"
    world.restart()
    assert world.counters() == (10_005, 0, 0)
    assert world.take() == [70_000]


def test_a_deleted_queue_leaves_no_rows(world: QueueWorld) -> None:
    world.queue(leases_durable=True)
    world.work(priority=1)
    world.work(delay_ms=100)
    world.claim()
    assert world.rows(Family.JOBS)
    assert world.rows(Family.LEASES)
    world.engine.delete_topic("q")
    assert not world.rows(Family.JOBS)
    assert not world.rows(Family.LEASES)


def test_a_start_reads_few_rows_however_many_jobs(world: QueueWorld) -> None:
    for i in range(3500):
        world.work(priority=1 + i % 4, delay_ms=1000 * (i % 2), sync=False)
    world.engine.sync()
    assert sum(1 for key, _ in world.rows(Family.JOBS) if key[8] == 3) == 5
    world.restart()
    queue = world.engine.queues.open("q")[1]
    assert len(queue.schedule._unfolded) < 1000
    assert world.counters() == (1750, 0, 0)


@pytest.mark.parametrize("durable", [False, True])
def test_a_job_that_came_due_and_was_claimed_is_not_hidden_again(durable: bool, small_folds: None) -> None:
    """The row of its delay outlives the delay: after a crash it must neither hide nor hand out the job twice."""
    world = QueueWorld()
    world.queue(leases_durable=durable, lease_ms=DAY)
    world.work(1, 1, delay_ms=100)
    world.clock.advance(100)
    assert world.take() == [1]
    world.clock.advance(-50)
    world.kill()
    if durable:
        assert world.counters() == (0, 1, 0)
        world.clock.advance(50)
        assert (world.counters(), world.take(max_jobs=9)) == ((1, 1, 0), [2])
    else:
        assert world.counters() == (0, 0, 0), "the clock says that it is too early"
        world.clock.advance(50)
        assert world.take(max_jobs=9) == [1, 2]


@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_stalled_append_leaves_no_schedule(world: QueueWorld, small_folds: None, before: int) -> None:
    for _ in range(before):
        world.work(priority=1)
    assert isinstance(world.store, FaultyStore)
    world.store.stalled = True
    rows = world.store.rows()
    for _ in range(5):
        with pytest.raises(TopicsError):
            world.work(priority=2, delay_ms=10)
    assert world.store.rows() == rows
    world.store.stalled = False
    world.work(1, priority=0)
    assert [world.take()[0] for _ in range(before + 1)] == list(range(1, before + 2))
    world.restart()
    assert world.counters() == (before + 1, 0, 0)


def test_a_stalled_fold_waits(world: QueueWorld, small_folds: None) -> None:
    for _ in range(4):
        world.work(delay_ms=10)
    assert isinstance(world.store, FaultyStore)
    world.store.stalled = True
    world.clock.advance(10)
    assert world.take(max_jobs=9) == [1, 2, 3, 4]
    world.store.stalled = False
    assert world.counters() == (0, 4, 0)
    assert not [key for key, _ in world.rows(Family.JOBS) if key[8] in (1, 2)]


@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_a_power_cut_loses_rows_only_with_their_records(durability: str, small_folds: None) -> None:
    for lost in range(12):
        world = QueueWorld(store := CrashStore())
        world.queue(durability=durability)
        world.work()
        for i in range(10):
            world.work(priority=1 + i % 2, delay_ms=100 * (i % 3), sync=False)
        world.cut_power(max(store.synced, store.writes - lost))
        world.engine.sync()
        live = world.seqs("q")
        world.clock.advance(200)
        order = [world.take()[0] for _ in live]
        assert world.take() == []
        assert order == sorted(live, key=lambda seq: (-(1 + (seq - 2) % 2) if seq > 1 else 0, seq))
        assert world.work(delay_ms=50)[0] > max(live)
        assert world.counters()[0] == 0


# ------------------------------------------------------- jobs that the log loses


@pytest.mark.parametrize("how", ["evict", "expire", "before", "match"])
def test_scheduled_jobs_that_the_log_loses_count_nowhere(how: str) -> None:
    world = QueueWorld()
    world.queue(cap_records=4 if how == "evict" else 0, ttl_ms=5000 if how == "expire" else 0)
    world.work(1, 1, delay_ms=10_000, tags=[b"x", b"x"])
    world.work(1, 1, priority=5, tags=[b"x", b"x"])
    assert world.counters() == (2, 0, 0)
    if how == "evict":
        world.work(1, 1, 1)
    elif how == "expire":
        world.clock.advance(5001)
    elif how == "before":
        world.delete(4, topic="q")
    else:
        world.delete(eq=b"x", topic="q")
    left = [4, 5, 6, 7] if how == "evict" else [4] if how == "before" else []
    assert world.counters() == (len(left), 0, 0)
    assert world.listed("delayed") == []
    world.clock.advance(10_000)
    world.restart()
    assert sorted(seq for _ in left for seq in world.take()) == left
    assert world.take() == []


def test_a_due_job_that_was_deleted_is_not_handed_out(world: QueueWorld) -> None:
    world.work(1, 1, delay_ms=100, tags=[None, b"x"])
    world.work(1, 1, priority=3, tags=[None, b"x"])
    world.clock.advance(100)
    assert world.counters() == (4, 0, 0)
    world.delete(eq=b"x", topic="q")
    assert (world.counters(), world.take(max_jobs=9)) == ((2, 0, 0), [1, 3])


def test_alternating_jobs_are_told_apart(world: QueueWorld) -> None:
    expected: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for i in range(60):
        priority = i % 3
        expected[priority] += world.work(priority=priority)
    world.delete(before=5, topic="q")
    world.restart()
    order = [world.take()[0] for _ in range(56)]
    assert order == [seq for priority in (2, 1, 0) for seq in expected[priority] if seq >= 5]


# ------------------------------------------------------------------------ browsing


def test_jobs_are_listed_by_state(world: QueueWorld) -> None:
    world.work(1, 1, 1, tags=[b"a", None, None])
    world.work(1, priority=4)
    world.work(1, delay_ms=500, priority=2)
    [held] = world.claim("n", lease_ms=300)
    assert held.seq == 4
    world.claim("m")
    world.nack(1, node="m", delay_ms=200)
    before = (world.rows(Family.JOBS), world.counters())
    assert (world.listed("ready"), world.listed("in_flight"), world.listed("delayed")) == ([2, 3], [4], [1, 5])
    [view] = world.jobs("in_flight")
    assert (view.state, view.deliveries, view.priority, view.node, view.deadline, view.ready_at) == (
        "in_flight", 1, 4, "n", world.clock.now + 300, None,
    )  # fmt: skip
    nacked, waiting = world.jobs("delayed")
    assert (nacked.deliveries, nacked.priority, nacked.node, nacked.ready_at) == (1, 0, None, world.clock.now + 200)
    assert (waiting.deliveries, waiting.priority, waiting.ready_at) == (0, 2, world.clock.now + 500)
    assert (world.rows(Family.JOBS), world.counters()) == before
    world.clock.advance(500)
    assert [(v.block.base_seq + v.position, v.deliveries, v.priority) for v in world.jobs("ready")] == [
        (1, 1, 0), (2, 0, 0), (3, 0, 0), (4, 1, 4), (5, 0, 2),
    ]  # fmt: skip
    assert all(view.ready_at is None and view.deadline is None for view in world.jobs("ready"))


def test_pages_end_where_they_should(world: QueueWorld) -> None:
    world.work(*[1] * 5)
    queues = world.engine.queues
    reply = queues.jobs(ListJobsRequest(topic="q", state="ready", limit=5))
    assert reply.next_after is None
    reply = queues.jobs(ListJobsRequest(topic="q", state="ready", limit=4))
    assert reply.next_after == 4
    assert world.jobs("ready", after=5) == []
    assert world.jobs("ready", after=10**18) == []
    assert world.jobs("in_flight", after=3) == []
    for limit in (0, 1001):
        with pytest.raises(TopicsError) as error:
            world.jobs("ready", limit=limit)
        assert code(error) == "invalid_request"


def test_a_page_never_shows_what_readers_do_not_see() -> None:
    world = QueueWorld()
    world.queue(durability="fsync", cap_records=3)
    world.work(1, 1)
    world.work(1, delay_ms=100, sync=False)
    world.work(1, sync=False)
    assert (world.listed("ready"), world.listed("delayed")) == ([2], [])
    world.engine.sync()
    assert (world.listed("ready"), world.listed("delayed")) == ([2, 4], [3])


# ------------------------------------------------------------------------ bitmaps


@given(numbers=st.sets(st.integers(0, 40)), start=st.integers(0, 45), size=st.integers(0, 45))
@settings(deadline=None, derandomize=True)
def test_first_absent(numbers: set[int], start: int, size: int) -> None:
    stop = start + size
    expected = next((n for n in range(start, stop) if n not in numbers), stop)
    assert first_absent(BitMap(numbers), start, stop) == expected
    assert first_absent(BitMap64(numbers), start, stop) == expected


def test_the_ready_are_found_behind_a_run_of_delayed_ones(world: QueueWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(10):
        world.work(*[1] * 1000, delay_ms=DAY)
    world.work(1, 1)
    looks: list[int] = []

    def counted(numbers: BitMap64, start: int, stop: int) -> int:
        looks.append(start)
        return first_absent(numbers, start, stop)

    monkeypatch.setattr(browse, "first_absent", counted)
    assert world.listed("ready") == [10_001, 10_002]
    assert len(looks) < 10, "not one for each"
