"""Claim, ack, nack, extend and expiry, rule by rule (docs/contract.md, 10)."""

from typing import Any

import pytest
from engine_support import CrashStore, FaultyStore, code
from hypothesis import given, settings
from hypothesis import strategies as st
from queue_support import LEASE, QueueWorld

from topics_service.engine.errors import TopicsError
from topics_service.engine.limits import Limits
from topics_service.engine.queue import state as queue_module
from topics_service.engine.queue.jobs import ClaimRequest, SettleRequest
from topics_service.storage.store import Family

DAY = 86_400_000
CALLS = ("ack", "nack", "extend")


@pytest.fixture
def world() -> QueueWorld:
    world = QueueWorld()
    world.queue()
    return world


# ------------------------------------------------------------------------- checks


def refused(world: QueueWorld, call: str, **request: Any) -> str:
    settle = SettleRequest(**{"topic": "q", "node": "w", "seqs": [1], **request})
    with pytest.raises(TopicsError) as error:
        getattr(world.engine.queues.settlement, call)(settle)
    return code(error)


@pytest.mark.parametrize("call", CALLS)
def test_the_checks_of_a_settlement_come_in_the_contracts_order(world: QueueWorld, call: str) -> None:
    """Malformed lease id, node, too many seqs, length of lease_ids, topic, kind of topic."""
    world.put("log")
    many = {"seqs": [1] * 1001, "topic": "absent"}
    assert refused(world, call, lease_ids=["lease_x"], node="", **many) == "invalid_request"
    assert refused(world, call, node="", **many) == "invalid_request"
    assert refused(world, call, node="n" * 129, **many) == "invalid_request"
    assert refused(world, call, lease_ids=["lease_1"], **many) == "batch_too_large"
    assert refused(world, call, lease_ids=["lease_1", ""], topic="absent") == "invalid_request"
    assert refused(world, call, seqs=[], topic="absent") == "invalid_request"
    assert refused(world, call, topic="absent") == "topic_not_found"
    assert refused(world, call, topic="log") == "not_a_queue"


def test_too_many_seqs_say_how_many_are_allowed() -> None:
    world = QueueWorld(limits=Limits(max_claim=3))
    world.queue()
    world.work(1, 1, 1, 1)
    with pytest.raises(TopicsError) as error:
        world.ack(1, 2, 3, 4)
    assert (code(error), error.value.detail) == ("batch_too_large", {"seqs": 4, "max": 3})
    assert world.take(max_jobs=9) == [1, 2, 3]


@pytest.mark.parametrize("token", ["x", "lease_", "lease_g", "lease_1 ", "LEASE_1", "lease_" + "0" * 65, "lease_é"])
def test_malformed_lease_ids_are_refused(world: QueueWorld, token: str) -> None:
    assert refused(world, "ack", lease_ids=[token]) == "invalid_request"


def test_the_checks_of_a_claim_come_in_the_contracts_order(world: QueueWorld) -> None:
    world.put("log")
    for topic, node, expected in (
        ("absent", "", "topic_not_found"),
        ("log", "", "not_a_queue"),
        ("q", "", "invalid_request"),
        ("q", "é" * 65, "invalid_request"),
    ):
        with pytest.raises(TopicsError) as error:
            world.claim(node, topic=topic)
        assert code(error) == expected
    assert world.take("é" * 64) == []


def test_a_queue_that_is_not_durable_yet_does_not_exist() -> None:
    world = QueueWorld()
    world.put("q", sync=False, type="queue")
    with pytest.raises(TopicsError) as error:
        world.claim()
    assert code(error) == "topic_not_found"
    world.engine.sync()
    assert world.take() == []


# -------------------------------------------------------------------------- claim


def test_claims_go_by_seq_and_count(world: QueueWorld) -> None:
    world.work(1, 2, 3, 4, 5)
    reply, ticket = world.try_claim()
    assert (ticket, reply.topic, reply.ready, [job.seq for job in reply.jobs]) == (0, "q", 4, [1])
    assert world.take(max_jobs=3) == [2, 3, 4]
    assert world.take(max_jobs=3) == [5]
    reply, _ = world.try_claim(max_jobs=3)
    assert (reply.jobs, reply.ready) == ([], 0)
    assert world.counters() == (0, 5, 0)


def test_a_claimed_job_says_all_about_its_lease(world: QueueWorld) -> None:
    world.work(b"data", tags=[b"t"])
    [job] = world.claim(lease_ms=5000)
    assert (job.block.record_data(job.position), job.block.tags) == (b"data", [b"t"])
    assert (job.deadline, job.deliveries) == (world.clock.now + 5000, 1)
    assert job.lease_id == "lease_" + "1".rjust(32, "0")


@pytest.mark.parametrize(("asked", "given"), [(0, 1), (-5, 1), (1, 1), (1000, 1000), (99_999, 1000)])
def test_max_is_clamped(world: QueueWorld, asked: int, given: int) -> None:
    world.work(*[1] * 1001)
    assert len(world.take(max_jobs=asked)) == given


@pytest.mark.parametrize(("asked", "given"), [(None, LEASE), (0, 100), (99, 100), (100, 100), (DAY + 1, DAY)])
def test_a_lease_is_clamped(world: QueueWorld, asked: int | None, given: int) -> None:
    world.work()
    assert world.claim(lease_ms=asked)[0].deadline == world.clock.now + given


def test_a_reply_is_bounded_in_bytes() -> None:
    world = QueueWorld(limits=Limits(max_batch_bytes=100, max_record_bytes=60))
    world.queue()
    world.work(*[60] * 5)
    assert world.take(max_jobs=5) == [1, 2], "the one that reaches the bound still goes"
    assert world.cohort(*(ClaimRequest(topic="q", node="w", max=max_jobs) for max_jobs in (9, 1))) == [[3, 5], [4]]
    world.work(*[60] * 5)
    requests = [ClaimRequest(topic="q", node="w", max=9, max_bytes=max_jobs) for max_jobs in (50, 1 << 30)]
    assert world.cohort(*requests) == [[6], [7, 8]], "each has its own bound, but none above the server's"


def test_jobs_of_many_blocks_and_sealed_ones_are_found(world: QueueWorld, small_steps: None) -> None:
    for i in range(10):
        world.work(b"job%d" % i)
    world.maintain()
    jobs = world.claim(max_jobs=10)
    assert [job.block.record_data(job.position) for job in jobs] == [b"job%d" % i for i in range(10)]


def test_a_claim_counts_as_a_read_for_recency(world: QueueWorld) -> None:
    world.claim()
    assert world.state("q").last_read_ts == world.clock.now


# -------------------------------------------------------------------------- cohort


@pytest.mark.parametrize(
    ("jobs", "wants", "given"),
    [
        (20, (10, 10, 10, 10), ([1, 5, 9, 13, 17], [2, 6, 10, 14, 18], [3, 7, 11, 15, 19], [4, 8, 12, 16, 20])),
        (9, (2, 100), ([1, 3], [2, 4, 5, 6, 7, 8, 9])),
        (1, (5, 5), ([1], [])),
        (7, (1, 3, 1), ([1], [2, 4, 5], [3])),
        (0, (3, 3), ([], [])),
    ],
)
def test_a_cohort_shares_one_job_at_a_time(
    world: QueueWorld, jobs: int, wants: tuple[int, ...], given: tuple[list[int], ...]
) -> None:
    if jobs:
        world.work(*[1] * jobs)
    requests = [ClaimRequest(topic="q", node=f"w{i}", max=want) for i, want in enumerate(wants)]
    assert world.cohort(*requests) == list(given)


@given(jobs=st.integers(0, 60), wants=st.lists(st.integers(1, 20), min_size=1, max_size=8))
@settings(deadline=None, derandomize=True)
def test_shares_are_even(jobs: int, wants: list[int]) -> None:
    """Nobody has two jobs more than somebody who wants more."""
    world = QueueWorld()
    world.queue()
    if jobs:
        world.work(*[1] * jobs)
    given = world.cohort(*(ClaimRequest(topic="q", node=f"w{i}", max=want) for i, want in enumerate(wants)))
    assert sorted(seq for hand in given for seq in hand) == list(range(1, min(jobs, sum(wants)) + 1))
    for hand, want in zip(given, wants, strict=True):
        assert hand == sorted(hand)
        assert len(hand) == want or len(hand) >= max(map(len, given)) - 1


def test_each_of_a_cohort_has_its_own_lease(world: QueueWorld) -> None:
    world.work(1, 1)
    replies, _ = world.engine.queues.claim(
        [ClaimRequest(topic="q", node="a", lease_ms=5000), ClaimRequest(topic="q", node="b", lease_ms=60_000)]
    )
    [a], [b] = (reply.jobs for reply in replies)
    assert b.deadline - a.deadline == 55_000
    assert [reply.ready for reply in replies] == [0, 0]
    assert world.ack(a.seq, b.seq, node="a").skipped == [b.seq]


# ----------------------------------------------------------------------------- ack


def test_an_ack_deletes_and_counts(world: QueueWorld) -> None:
    world.work(1, 1, 1)
    world.claim(max_jobs=2)
    reply = world.ack(1)
    assert (reply.topic, reply.done, reply.skipped, reply.ready, reply.in_flight) == ("q", 1, [], 1, 1)
    assert (world.seqs("q"), world.state("q").earliest_seq) == ([2, 3], 2)


def test_skipped_keeps_the_order_of_the_request(world: QueueWorld) -> None:
    world.work(1, 1, 1)
    world.claim(max_jobs=2)
    assert world.ack(99, 3, 1, 0, 1, 2).skipped == [99, 3, 0, 1], "a duplicate counts once"
    reply = world.ack(2, 1)
    assert (reply.done, reply.skipped) == (0, [2, 1])


def test_only_the_holder_settles(world: QueueWorld) -> None:
    world.work(1, 1)
    world.claim("a", 1)
    world.claim("b", 1)
    for call in CALLS:
        reply = world.settle(call, [1, 2], "c", lease_ms=5000)
        assert (reply.done, reply.skipped) == (0, [1, 2])
    reply = world.settle("ack", [1, 2], "b")
    assert (reply.done, reply.skipped) == (1, [1])


@pytest.mark.parametrize("call", CALLS)
def test_a_lease_id_fences(world: QueueWorld, call: str) -> None:
    world.work()
    [old] = world.claim(lease_ms=100)
    world.clock.advance(101)
    [new] = world.claim()
    assert new.lease_id != old.lease_id
    for stale in (old.lease_id, "lease_1", "lease_ffffffff", "lease_" + "a" * 32):
        assert world.settle(call, [1], tokens=[stale], lease_ms=5000).skipped == [1]
    assert world.counters() == (0, 1, 0)
    assert world.settle(call, [1], tokens=[new.lease_id], lease_ms=5000).done == 1


def test_an_empty_lease_id_leaves_the_seq_to_the_node(world: QueueWorld) -> None:
    world.work(1, 1)
    jobs = world.claim(max_jobs=2)
    assert world.ack(1, 2, tokens=["", jobs[0].lease_id]).skipped == [2]


def test_one_write_for_an_ack_of_many(world: QueueWorld) -> None:
    world.work(*[1] * 100)
    taken = world.take(max_jobs=100)
    before = world.engine.writer.written
    world.ack(*taken)
    assert world.engine.writer.written == before + 1
    assert world.ack(*taken).done == 0
    assert world.engine.writer.written == before + 1, "nothing to write"


def test_acks_at_the_front_free_the_log(world: QueueWorld, small_steps: None) -> None:
    for _ in range(20):
        world.work()
    for seq in world.take(max_jobs=19):
        world.ack(seq)
    world.maintain()
    assert (world.state("q").earliest_seq, world.rows(Family.DELETES)) != (1, [])
    assert len(world.rows(Family.BLOCKS)) < 5


# ------------------------------------------------------------------- nack, extend


def test_a_nack_gives_the_job_back_first_in_line(world: QueueWorld) -> None:
    world.work(1, 1, 1)
    [first] = world.claim()
    reply = world.nack(1)
    assert (reply.done, reply.ready, reply.in_flight) == (1, 3, 0)
    [again] = world.claim("other")
    assert (again.seq, again.deliveries) == (1, 2)
    assert again.lease_id != first.lease_id
    assert world.ack(1).skipped == [1]


def test_a_release_takes_the_attempt_back(world: QueueWorld) -> None:
    world.work()
    for expected in (1, 1, 2):
        [job] = world.claim()
        assert job.deliveries == expected
        world.nack(1, mode="release" if expected == 1 and job.lease_id.endswith("1") else "retry")


def test_a_delayed_nack_counts_nowhere_until_its_time(world: QueueWorld) -> None:
    world.work(1, 1)
    world.claim()
    reply = world.nack(1, delay_ms=500)
    assert (reply.ready, reply.in_flight) == (1, 0)
    assert world.take(max_jobs=5) == [2]
    world.clock.advance(499)
    assert (world.take(), world.counters()) == ([], (0, 1, 0))
    world.clock.advance(1)
    assert world.counters() == (1, 1, 0)
    [job] = world.claim()
    assert (job.seq, job.deliveries) == (1, 2)


def test_a_delay_is_clamped(world: QueueWorld) -> None:
    world.work()
    world.claim()
    world.nack(1, delay_ms=DAY * 9)
    assert world.jobs("delayed")[0].ready_at == world.clock.now + DAY


def test_given_back_jobs_are_served_lowest_first_and_before_fresh_ones(world: QueueWorld) -> None:
    world.work(*[1] * 8)
    world.claim(max_jobs=6)
    world.nack(5)
    world.nack(2, 4)
    assert world.take(max_jobs=4) == [2, 4, 5, 7]


def test_a_seq_that_comes_again_is_extended_once_and_not_skipped(world: QueueWorld) -> None:
    world.work(b"1", b"2", b"3")
    one, two = world.claim(max_jobs=2)
    stale = "lease_" + "0" * 32
    deadline = world.clock.now + 500
    for seqs, tokens in (
        ([1, 1, 2, 1], []),
        ([1, 2, 1], [one.lease_id, two.lease_id, stale]),
        ([1, 2, 1], [stale, two.lease_id, one.lease_id]),
    ):
        reply = world.extend(*seqs, tokens=tokens, lease_ms=500)
        assert (reply.done, reply.skipped, reply.deadlines) == (2, [], {1: deadline, 2: deadline})
    reply = world.extend(1, 3, 1, 3, lease_ms=500)
    assert (reply.done, reply.skipped, reply.deadlines) == (1, [3, 3], {1: deadline}), "what is not held, each time"
    assert world.nack(1, 1).skipped == [1]
    assert world.ack(2, 2).skipped == [2]


def test_an_extension_sets_the_deadline_and_keeps_the_rest(world: QueueWorld) -> None:
    world.work()
    [job] = world.claim(lease_ms=200)
    world.clock.advance(200)
    reply = world.extend(1, lease_ms=300)
    assert (reply.done, reply.skipped, reply.deadlines) == (1, [], {1: world.clock.now + 300})
    world.clock.advance(300)
    assert world.counters() == (0, 1, 0)
    assert world.extend(1, tokens=[job.lease_id], lease_ms=100).done == 1, "the lease id stays"
    world.clock.advance(101)
    [again] = world.claim()
    assert again.deliveries == 2


def test_an_extension_can_shorten(world: QueueWorld) -> None:
    world.work()
    world.claim(lease_ms=10_000)
    world.extend(1, lease_ms=100)
    world.clock.advance(101)
    assert world.counters() == (1, 0, 0)


# -------------------------------------------------------------------------- expiry


def test_a_lease_holds_at_its_deadline_and_not_after(world: QueueWorld) -> None:
    world.work()
    world.claim("a", lease_ms=500)
    world.clock.advance(500)
    assert (world.take("b"), world.counters()) == ([], (0, 1, 0))
    world.clock.advance(1)
    assert world.counters() == (1, 0, 0)
    for call in CALLS:
        assert world.settle(call, [1], "a", lease_ms=500).skipped == [1], "expired, though nobody claimed it again"
    [job] = world.claim("b")
    assert (job.seq, job.deliveries) == (1, 2)


def test_a_clock_that_steps_back_only_makes_leases_longer(world: QueueWorld) -> None:
    world.work(1, 1)
    world.claim()
    world.clock.advance(-500_000)
    [job] = world.claim()
    assert (job.seq, job.deadline) == (2, world.clock.now + LEASE)
    world.clock.advance(LEASE + 1)
    assert world.counters() == (1, 1, 0)
    world.clock.advance(500_000)
    assert world.counters() == (2, 0, 0)


def test_next_due_is_when_time_alone_gives_jobs(world: QueueWorld) -> None:
    queues, now = world.engine.queues, world.clock.now
    assert queues.next_due("q") is None
    world.work(1, 1, 1)
    world.work(delay_ms=5000)
    assert queues.next_due("q") == now + 5000
    world.claim(max_jobs=3)
    assert queues.next_due("q") == now + LEASE + 1, "held at the deadline"
    world.nack(1, delay_ms=300)
    assert queues.next_due("q") == now + 300
    world.clock.advance(300)
    assert queues.next_due("q") == now + 301, "what has come due is not passed over before somebody has looked"
    assert world.counters() == (1, 2, 0)
    assert queues.next_due("q") == now + LEASE + 1
    world.ack(2, 3)
    assert queues.next_due("q") == now + 5000
    assert queues.next_due("absent") is None


def test_alarms_stay_in_proportion(world: QueueWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topics_service.engine.queue.alarms._SLACK", 8)
    world.work(1, 1)
    world.claim(max_jobs=2)
    queue = world.engine.queues.open("q")[1]
    for _ in range(200):
        world.extend(1, 2)
        world.clock.advance(1)
    assert queue._expiries._size <= 20
    world.clock.advance(LEASE)
    assert world.counters() == (2, 0, 0)


# ------------------------------------------------------------- release and held


def test_a_connection_gives_back_what_it_still_holds(world: QueueWorld) -> None:
    world.work(*[1] * 5)
    mine = {job.seq: job.lease_id for job in world.claim(max_jobs=3)}
    assert world.take() == [4], "another claim of the same node"
    world.ack(1)
    queues = world.engine.queues
    assert (
        queues.settlement.held("q", mine),
        queues.settlement.held("q", {}),
        queues.settlement.held("absent", mine),
    ) == ({2, 3}, set(), set())
    assert queues.settlement.release("q", {**mine, 4: "lease_" + "0" * 32}) == 2
    assert world.counters() == (3, 1, 0)
    assert [job.deliveries for job in world.claim(max_jobs=2)] == [2, 2], "the delivery counts"
    assert queues.settlement.release("q", mine) == 0, "the leases are others' now"
    assert queues.settlement.release("absent", mine) == 0


def test_a_deleted_queue_takes_its_leases_along(world: QueueWorld) -> None:
    world.work()
    [job] = world.claim()
    world.engine.delete_topic("q")
    assert world.engine.queues.settlement.release("q", {1: job.lease_id}) == 0
    world.queue()
    world.work()
    assert world.counters() == (1, 0, 0)
    assert world.ack(1, tokens=[job.lease_id]).skipped == [1]
    [new] = world.claim()
    assert (new.seq, new.deliveries) == (1, 1)
    world.engine.delete_topic("q")
    world.put("q")
    assert world.engine.queues.settlement.release("q", {1: new.lease_id}) == 0
    assert world.engine.queues.settlement.held("q", {1: new.lease_id}) == set()


def test_all_leases_are_counted(world: QueueWorld) -> None:
    world.queue("p")
    world.work(1, 1)
    world.work(topic="p")
    world.claim(max_jobs=2)
    world.claim(topic="p")
    assert world.engine.queues.leases_in_flight == 3


# ------------------------------------------------- jobs that the log loses meanwhile


@pytest.mark.parametrize("how", ["evict", "expire", "before", "match"])
def test_lost_jobs_count_nowhere_but_their_holder_can_ack(how: str) -> None:
    world = QueueWorld()
    world.queue(cap_records=4 if how == "evict" else 0, ttl_ms=5000 if how == "expire" else 0, lease_ms=60_000)
    for _ in range(4):
        world.work(tags=[b"x"])
    jobs = world.claim(max_jobs=3)
    world.nack(2, delay_ms=100)
    world.nack(3)
    assert world.counters() == (2, 1, 0)
    if how == "evict":
        world.work(*[1] * 4)
    elif how == "expire":
        world.clock.advance(5001)
    elif how == "before":
        world.delete(5, topic="q")
    else:
        world.delete(eq=b"x", topic="q")
    assert world.counters() == (4 if how == "evict" else 0, 0, 0)
    assert (world.listed("in_flight"), world.listed("delayed")) == ([], [])
    assert world.extend(1, tokens=[jobs[0].lease_id]).done == 1
    reply = world.ack(1, 2, 3)
    assert (reply.done, reply.skipped) == (1, [2, 3])
    assert world.ack(1).done == 0
    world.clock.advance(200)
    assert world.take(max_jobs=9) == ([5, 6, 7, 8] if how == "evict" else [])


def test_leases_of_lost_jobs_expire_and_are_bounded(world: QueueWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_module, "GONE_MAX", 3)
    world.work(*[1] * 6)
    world.claim(max_jobs=6)
    world.delete(6, topic="q")
    assert world.counters() == (0, 1, 0)
    assert world.ack(1, 2, 3).done == 1, "the first two were forgotten"
    world.clock.advance(LEASE + 1)
    assert world.ack(4, 5).done == 0
    assert not world.engine.queues.open("q")[1].gone


def test_deleted_stretches_are_passed(world: QueueWorld) -> None:
    world.work(*[1] * 5, tags=[b"x", b"", b"x", b"x", b""])
    world.delete(eq=b"x", topic="q")
    assert world.counters() == (2, 0, 0)
    assert world.take(max_jobs=5) == [2, 5]


# ------------------------------------------------------------------- durability


def test_jobs_of_an_fsync_queue_are_claimed_when_they_are_durable() -> None:
    world = QueueWorld()
    world.queue(durability="fsync")
    world.work()
    world.work(sync=False)
    assert world.counters() == (1, 0, 0)
    assert world.take(max_jobs=5) == [1]
    assert world.counters() == (0, 1, 0)
    world.engine.sync()
    assert world.take(max_jobs=5) == [2]


def test_an_ack_of_an_fsync_queue_waits_and_is_not_undone_meanwhile() -> None:
    world = QueueWorld()
    world.queue(durability="fsync")
    world.work(1, 1)
    world.claim(max_jobs=1)
    reply, ticket = world.engine.queues.settlement.ack(SettleRequest(topic="q", node="w", seqs=[1]))
    assert ticket > world.engine.writer.synced
    assert (reply.done, reply.ready, reply.in_flight) == (1, 1, 0)
    assert world.seqs("q") == [1, 2], "readers see it until the ack is durable"
    assert world.take(max_jobs=5) == [2], "but nobody gets it"
    repeated, waits = world.engine.queues.settlement.ack(SettleRequest(topic="q", node="w", seqs=[1]))
    assert (repeated.skipped, waits) == ([1], ticket)
    world.engine.sync()
    assert (world.seqs("q"), world.counters()) == ([2], (0, 1, 0))


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk"])
def test_acks_of_other_classes_are_done_at_once(durability: str) -> None:
    world = QueueWorld()
    world.queue(durability=durability)
    world.work(1, 1)
    world.claim()
    assert world.engine.queues.settlement.ack(SettleRequest(topic="q", node="w", seqs=[1]))[1] == 0
    assert world.seqs("q") == [2]


@pytest.mark.parametrize("durable", [False, True])
def test_a_store_that_stalls_changes_nothing(durable: bool) -> None:
    world = QueueWorld(FaultyStore())
    world.queue(leases_durable=durable)
    world.work(1, 1, 1)
    world.work(priority=3)
    assert world.take(max_jobs=2) == [1, 4], "the one with priority, and the first"
    world.nack(1)
    store = world.store
    assert isinstance(store, FaultyStore)
    store.stalled = True
    state, rows = world.counters(), store.rows()
    calls: list[Any] = [lambda: world.ack(4)]
    if durable:
        calls += [lambda: world.claim(max_jobs=5), lambda: world.nack(4), lambda: world.extend(4)]
    for call in calls:
        with pytest.raises(TopicsError) as error:
            call()
        assert code(error) == "throttled"
        assert (world.counters(), store.rows()) == (state, rows)
    store.stalled = False
    assert world.take(max_jobs=5) == [1, 2, 3]
    assert world.ack(1, 2, 3, 4).done == 4


def test_a_read_only_server_hands_nothing_out(world: QueueWorld) -> None:
    world.work()
    world.engine.sync_failed(OSError())
    for call in (world.claim, lambda: world.ack(1), lambda: world.nack(1), lambda: world.extend(1)):
        with pytest.raises(TopicsError) as error:
            call()
        assert code(error) == "internal"


def test_a_damaged_block_fails_the_claim_and_nothing_else() -> None:
    world = QueueWorld(cache_bytes=1)
    world.queue()
    world.work(1)
    world.work(2)
    world.work(3)
    key, row = world.rows(Family.BLOCKS)[1]
    batch = world.store.batch()
    batch.put(Family.BLOCKS, key, row[:-1] + b"?")
    world.store.write(batch)
    with pytest.raises(TopicsError) as error:
        world.claim(max_jobs=3)
    assert code(error) == "internal"
    assert world.counters() == (3, 0, 0)
    assert world.take() == [1]


def test_a_power_cut_brings_back_jobs_whose_ack_was_not_durable() -> None:
    world = QueueWorld(CrashStore())
    world.queue()
    world.work(1, 1)
    world.claim(max_jobs=2)
    world.settle("ack", [1])
    world.cut_power()
    assert world.take(max_jobs=5) == [1, 2]
