"""What a worker knows of its leases, and how long failed jobs rest: no server, no clock."""

import pytest

from topics_client.models import Job
from topics_client.worker.ack_sender import Backoff, Release, RetryLater, calls, outcome_of
from topics_client.worker.leases import Held, Leases
from topics_client.worker.outbox import ACKED, RELEASED, RELEASED_AT_LAST, Outbox, Outcome


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def _job(seq: int, lease: str = "a", deliveries: int = 1) -> Job:
    return Job("q", seq, f"lease_{lease}{seq}", 0, 0, b"1", False, None, deliveries, b"")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def leases(clock: Clock) -> Leases:
    return Leases(2, clock=clock)


def _running(leases: Leases, *jobs: Job) -> list[Held]:
    accepted, refused, lost = leases.take(jobs, 6.0)
    assert (refused, lost) == ([], [])
    assert all(map(leases.begin, accepted))
    return accepted


def test_a_job_runs_once_in_a_free_slot_and_is_settled(leases: Leases) -> None:
    accepted, refused, lost = leases.take([_job(1), _job(2), _job(3)], 6.0)
    assert [held.job.seq for held in accepted] == [1, 2]
    assert [held.job.seq for held in refused] == [3]
    assert lost == []
    assert leases.begin(accepted[0])
    assert not leases.begin(accepted[0])
    assert leases.begin(accepted[1])
    assert all(map(leases.finish, accepted))
    assert leases.busy == 0
    assert leases.unsettled == 3
    assert [held.job.seq for held in leases.settled(accepted, "acked", {2})] == [2]
    assert leases.settled(refused, "released") == []
    assert leases.counts() == (3, 0, {"acked": 1, "lost": 1, "released": 1})
    assert leases.unsettled == 0


def test_leases_are_due_from_a_sixth_of_their_length(leases: Leases, clock: Clock) -> None:
    first, second = _running(leases, _job(1), _job(2))
    assert leases.due() == []
    clock.now += 0.9
    assert leases.due() == []
    clock.now += 0.1
    assert leases.due() == [first, second]
    leases.extended([first, second], set(), 6.0, clock.now)
    assert leases.due() == []
    leases.recheck()
    assert leases.due() == [first, second]
    leases.finish(first)
    assert leases.due() == [first, second]  # until its ack is answered
    leases.settled([first], "acked")
    assert leases.due() == [second]


def test_a_lease_is_lost_when_an_extend_says_so_or_its_time_is_over(leases: Leases, clock: Clock) -> None:
    first, second = _running(leases, _job(1), _job(2))
    assert not leases.lost(first.job)
    assert leases.extended([first, second], {1}, 6.0, clock.now) == [first]
    assert leases.extended([first], {1}, 6.0, clock.now) == []  # reported once
    assert leases.lost(first.job)
    assert leases.due() == []
    assert not leases.finish(first)  # what it returned counts for nothing
    assert leases.finish(second)
    assert not leases.lost(second.job)
    clock.now += 6.1
    assert leases.lost(second.job)
    assert leases.settled([second], "acked") == []
    assert leases.counts() == (2, 0, {"lost": 1, "acked": 1})


def test_an_extend_that_an_ack_overtakes_loses_nothing(leases: Leases, clock: Clock) -> None:
    (held,) = _running(leases, _job(1))
    leases.finish(held)
    assert leases.extended([held], {1}, 6.0, clock.now) == []
    leases.settled([held], "acked")
    assert leases.extended([held], {1}, 6.0, clock.now) == []
    assert leases.counts() == (1, 0, {"acked": 1})


def test_a_job_that_comes_again_does_not_run_twice_at_a_time(leases: Leases) -> None:
    (before,) = _running(leases, _job(1))
    accepted, refused, lost = leases.take([_job(1, "b", 2)], 6.0)
    assert (accepted, lost) == ([], [before])
    assert leases.lost(before.job)
    assert not leases.finish(before)
    leases.settled(refused, "released")
    accepted, refused, lost = leases.take([_job(1, "c", 3)], 6.0)
    assert (refused, lost) == ([], [])
    assert leases.begin(accepted[0])
    assert leases.finish(accepted[0])
    # Given back, it may come again before the answer to that does.
    fourth, refused, lost = leases.take([_job(1, "d", 4)], 6.0)
    assert (refused, lost) == ([], [])
    assert leases.settled(accepted, "retried", set()) == []
    assert leases.begin(fourth[0])
    assert leases.due() == []
    leases.recheck()
    assert leases.due() == fourth
    assert leases.finish(fourth[0])
    fifth, _, lost = leases.take([_job(1, "e", 5)], 6.0)
    assert leases.settled(fourth, "acked", {1}) == fourth
    assert leases.begin(fifth[0])
    assert leases.finish(fifth[0])
    leases.settled(fifth, "acked")
    assert leases.counts() == (5, 0, {"lost": 2, "released": 1, "retried": 1, "acked": 1})
    assert leases.unsettled == 0


def test_a_call_names_each_job_once(leases: Leases) -> None:
    first, second = _running(leases, _job(1), _job(2))
    assert list(calls([first, second, first, first])) == [[first, second], [first], [first]]
    many, _, _ = Leases(2500).take([_job(seq) for seq in range(2500)], 6.0)
    assert [len(part) for part in calls(many)] == [1000, 1000, 500]
    assert [held.job.seq for part in calls(many) for held in part] == list(range(2500))


def test_what_is_set_aside_is_abandoned_too(leases: Leases) -> None:
    (before,) = _running(leases, _job(1))
    leases.finish(before)
    (again,), _, _ = leases.take([_job(1, "b", 2)], 6.0)
    assert leases.unsettled == 2
    assert leases.abandon() == 1
    assert not leases.begin(again)
    assert leases.unsettled == 0
    assert leases.counts() == (2, 0, {"lost": 1, "released": 1})


def test_a_job_that_comes_again_before_it_began_runs_once(leases: Leases) -> None:
    (before,), _, _ = leases.take([_job(1)], 6.0)
    (again,), refused, lost = leases.take([_job(1, "b", 2)], 6.0)
    assert (refused, lost) == ([], [before])
    assert not leases.begin(before)
    assert leases.begin(again)
    assert leases.finish(again)
    leases.settled([again], "acked")
    assert leases.abandon() == 0
    assert leases.counts() == (2, 0, {"lost": 1, "acked": 1})
    assert leases.unsettled == 0


def test_a_job_that_is_lost_before_it_begins_frees_its_slot(leases: Leases, clock: Clock) -> None:
    accepted, *_ = leases.take([_job(1), _job(2)], 6.0)
    assert leases.extended(accepted, {1}, 6.0, clock.now) == accepted[:1]
    assert not leases.begin(accepted[0])
    assert leases.busy == 1
    assert leases.unsettled == 1


def test_once_closed_nothing_begins_and_what_runs_may_be_left(leases: Leases) -> None:
    accepted, *_ = leases.take([_job(1), _job(2)], 6.0)
    assert leases.begin(accepted[0])
    assert leases.close() == accepted[1:]
    assert not leases.begin(accepted[1])
    assert leases.busy == 1
    none, refused, _ = leases.take([_job(3)], 6.0)
    assert none == []
    assert leases.leave() == accepted[:1]
    assert leases.lost(accepted[0].job)
    assert leases.settled([accepted[0], accepted[1], *refused], "released") == []
    assert not leases.finish(accepted[0])
    assert leases.counts() == (3, 0, {"released": 3})
    assert leases.unsettled == 0


def test_what_is_abandoned_is_counted_once(leases: Leases) -> None:
    first, second = _running(leases, _job(1), _job(2))
    _, refused, _ = leases.take([_job(3)], 6.0)
    leases.finish(first)
    assert leases.abandon() == 1
    assert leases.abandon() == 0
    assert not leases.finish(second)
    assert leases.settled([first, second, *refused], "acked") == []
    assert leases.counts() == (3, 0, {"lost": 1, "released": 2})
    assert leases.unsettled == 0


def test_a_failed_job_rests_longer_each_time_but_not_for_ever() -> None:
    backoff = Backoff(first_seconds=1, longest_seconds=10)
    for deliveries, top in ((0, 1000), (1, 1000), (2, 2000), (3, 4000), (4, 8000), (5, 10_000), (5000, 10_000)):
        delays = {backoff.delay_ms(deliveries) for _ in range(500)}
        assert max(delays) == top
        assert min(delays) == top / 10
        assert len(delays) == 10
    assert Backoff(first_seconds=0).delay_ms(3) == 1


def test_what_a_handler_raises_says_what_becomes_of_its_job() -> None:
    backoff, job = Backoff(first_seconds=1, longest_seconds=1), _job(1)
    assert outcome_of(None, job, backoff) == ACKED
    assert outcome_of(Release(), job, backoff) == Outcome("released", 0)
    assert outcome_of(Release(7), job, backoff) == Outcome("released", 7)
    assert outcome_of(RetryLater(5000), job, backoff) == Outcome("retried", 5000)
    failed = outcome_of(ValueError(), job, backoff)
    assert failed.fate == "retried"
    assert 100 <= failed.delay_ms <= 1000
    for kind in (Release, RetryLater):
        with pytest.raises(ValueError, match="delay_ms is -1"):
            kind(-1)


def test_outcomes_are_gathered_by_kind(leases: Leases) -> None:
    first, second = _running(leases, _job(1), _job(2))
    outbox = Outbox(lambda: False)
    outbox.put(first, ACKED)
    outbox.put(second, Outcome("retried", 5))
    assert outbox.gather() == ({ACKED: [first], Outcome("retried", 5): [second]}, True)
    for _ in range(1500):
        outbox.put(first, ACKED)
    outbox.close()
    assert outbox.gather() == ({ACKED: [first] * 1000}, True)
    assert outbox.gather() == ({ACKED: [first] * 500}, False)


def test_what_can_not_run_here_is_held_for_a_moment(leases: Leases, clock: Clock) -> None:
    _, refused, _ = leases.take([_job(seq) for seq in range(1, 6)], 6.0)
    outbox = Outbox(lambda: False, clock=clock)
    outbox.give_back(refused[0])
    assert outbox.gather() == ({}, True)
    clock.now += 0.2
    outbox.give_back(refused[1])
    assert outbox.gather() == ({}, True)
    clock.now += 0.06
    assert outbox.gather() == ({RELEASED: refused[:2]}, True)
    outbox.give_back(refused[2])
    outbox.close()
    assert outbox.gather() == ({RELEASED_AT_LAST: refused[2:]}, False)
