"""The core of the producer on a clock of its own: when batches are due, what becomes of failures, and order."""

from collections import defaultdict
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topics_client.connection import DEFAULT_RETRY
from topics_client.errors import (
    AuthError,
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    TopicsError,
    UnavailableError,
)
from topics_client.producer.batch import RECORD_OVERHEAD, Batch, Limits, Parts
from topics_client.producer.batching import Batches
from topics_client.producer.delivery import Delivery
from topics_client.retry import Retry

_GONE = UnavailableError("unavailable", "gone")
_FULL = ConflictError("topic_full", "no room")
_BAD = InvalidRequestError("invalid_request", "no JSON")


class Clock:
    """Seconds, moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def _batches(clock: Clock, *, retry: Retry = DEFAULT_RETRY, timeout: float = 30.0, **limits: float) -> Batches:
    return Batches(
        Limits(**limits),  # type: ignore[arg-type]
        name="me",
        retry=retry,
        timeout=timeout,
        clock=clock,
        jitter=lambda pause: pause,
    )


def _add(batches: Batches, *datas: bytes, topic: str = "t", partition: int = 0) -> list[Delivery]:
    return [batches.add(topic, partition, data) for data in datas]


def _taken(batches: Batches) -> Batch:
    (batch,) = batches.take()
    return batch


def _error(delivery: Delivery) -> TopicsError:
    error = delivery.exception(0)
    assert error is not None
    return error


# ------------------------------------------------------------------ when they are due


def test_a_record_lingers_for_others_and_then_goes_with_them(clock: Clock) -> None:
    batches = _batches(clock, linger_ms=10)
    _add(batches, b"1")
    assert batches.stirred
    assert batches.wakes_at() == clock.now + 0.01
    clock.now += 0.009
    _add(batches, b"2")
    assert batches.take() == []
    clock.now += 0.0011
    batch = _taken(batches)
    assert batch.data == [b"1", b"2"]
    assert (batch.topic_partition, batch.key, str(batch)) == (("t", 0), "me:1", "2 records for t")
    assert batches.wakes_at() is None


@pytest.mark.parametrize("limit", [{"max_batch_records": 2}, {"max_batch_bytes": 2 * (3 + RECORD_OVERHEAD)}])
def test_a_full_batch_goes_at_once(clock: Clock, limit: dict[str, int]) -> None:
    batches = _batches(clock, linger_ms=1000, **limit)
    _add(batches, b"one", b"two", b"three")
    assert _taken(batches).data == [b"one", b"two"]
    assert batches.take() == []


def test_a_record_larger_than_a_batch_goes_alone(clock: Clock) -> None:
    batches = _batches(clock, linger_ms=0, max_batch_bytes=10)
    deliveries = _add(batches, b"1" * 50, b"2")
    first = _taken(batches)
    assert first.data == [b"1" * 50]
    batches.stored(first, 1)
    batches.stored(_taken(batches), 2)
    assert [delivery.result(0) for delivery in deliveries] == [1, 2]


def test_a_partition_has_one_batch_under_way_and_the_others_gather_behind_it(clock: Clock) -> None:
    batches = _batches(clock, linger_ms=0)
    _add(batches, b"1")
    first = _taken(batches)
    _add(batches, b"2")
    other = _add(batches, b"9", partition=1)
    clock.now += 1
    batches.stirred = False
    _add(batches, b"3")
    assert not batches.stirred, "a record behind a batch under way wakes nobody"
    batches.stored(_taken(batches), 1)
    assert other[0].result(0) == 1
    batches.stored(first, 1)
    assert _taken(batches).data == [b"2", b"3"]


def test_no_more_than_so_many_are_under_way(clock: Clock) -> None:
    batches = _batches(clock, linger_ms=0, max_in_flight=2)
    for topic in "abc":
        _add(batches, b"1", topic=topic)
    taken = batches.take()
    assert [batch.topic_partition[0] for batch in taken] == ["a", "b"]
    assert batches.wakes_at() is None
    batches.stored(taken[1], 1)
    assert _taken(batches).topic_partition[0] == "c"


def test_a_flush_lets_nothing_linger_but_for_what_comes_later(clock: Clock) -> None:
    batches = _batches(clock, linger_ms=1000)
    _add(batches, b"1")
    _add(batches, b"2", topic="u")
    number = batches.flush()
    _add(batches, b"3")
    taken = batches.take()
    assert [batch.data for batch in taken] == [[b"1"], [b"2"]]
    assert (batches.settled(number), batches.pending(number), batches.pending()) == (False, 2, 3)
    for batch in taken:
        batches.stored(batch, 1)
    assert (batches.settled(number), batches.pending(number), batches.pending()) == (True, 0, 1)
    assert batches.take() == []
    assert batches.flush() == number + 1


def test_bytes_are_counted_until_there_is_an_outcome(clock: Clock) -> None:
    batches = _batches(clock, linger_ms=0)
    _add(batches, b"12345")
    batches.add("t", 0, b"1", Parts(True, "tag", "node", b"{}", 9))
    assert batches.buffered_bytes == 5 + 10 + 2 * RECORD_OVERHEAD
    batch = _taken(batches)
    assert batches.buffered_bytes == batch.nbytes
    batches.failed(batch, _FULL)
    assert batches.buffered_bytes == 0


@pytest.mark.parametrize(
    ("topic", "partition"),
    [("", 0), (":t", 0), ("a/b", 0), ("x" * 256, 0), ("t\n", 0), (7, 0), ("t", -1), ("t", 1 << 32)],
)
def test_what_is_no_topic_is_refused_and_leaves_nothing(clock: Clock, topic: str, partition: int) -> None:
    batches = _batches(clock)
    with pytest.raises(InvalidRequestError):
        batches.add(topic, partition, b"1")
    assert (batches.pending(), batches.buffered_bytes, batches.wakes_at()) == (0, 0, None)


@pytest.mark.parametrize(
    "limits",
    [
        {"linger_ms": -1},
        {"max_batch_records": 10_001},
        {"max_batch_bytes": 0},
        {"max_in_flight": 0},
        {"max_buffered_bytes": 0},
    ],
)
def test_limits_that_make_no_sense_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=f"^{next(iter(limits))} is "):
        Limits(**limits)  # type: ignore[arg-type]


# ------------------------------------------------------------------ failures


def test_a_batch_is_repeated_as_it_was_after_pauses_that_grow(clock: Clock) -> None:
    batches = _batches(clock, linger_ms=0, retry=Retry(seconds=60, first_pause=1, longest_pause=2))
    (delivery,) = _add(batches, b"1")
    for pause in (1, 2, 2):
        batch = _taken(batches)
        assert batch.key == "me:1"
        batches.failed(batch, _GONE)
        assert batches.wakes_at() == clock.now + pause
        assert batches.trouble is _GONE
        clock.now += pause
    assert not delivery.done()
    batches.stored(_taken(batches), 7)
    assert delivery.result(0) == 7
    assert (batches.repeats, batches.delivered_records, batches.stored_batches, batches.trouble) == (3, 1, 1, None)


def test_the_server_names_the_pause_and_a_flush_does_not_shorten_it(clock: Clock) -> None:
    batches = _batches(clock, linger_ms=0)
    _add(batches, b"1")
    batches.failed(_taken(batches), UnavailableError("throttled", "slow", {}, 10_000))
    assert batches.wakes_at() == clock.now + 10
    _add(batches, b"2")
    batches.flush()
    assert batches.wakes_at() == clock.now + 10


def test_it_is_given_up_in_time_and_so_is_what_waited_as_long_behind_it(clock: Clock) -> None:
    batches = _batches(clock, linger_ms=0, retry=Retry(seconds=60, first_pause=50, longest_pause=50), timeout=30)
    (first,) = _add(batches, b"1")
    batch = _taken(batches)
    (second,) = _add(batches, b"2")
    batches.flush()
    (third,) = _add(batches, b"3")
    batches.flush()
    clock.now += 15
    batches.failed(batch, _GONE, lost_at=clock.now)  # the next attempt, 65 s after the append, would be too late
    assert _error(first).reason == "unavailable"
    assert _error(first).detail == {"topic": "t", "partition": "0", "outcome": "unknown"}
    assert str(_error(first)) == "unavailable: 1 record for t, maybe stored: gone"
    assert not second.done(), "it has not had an attempt, and not waited for long"
    batch = _taken(batches)
    (fourth,) = _add(batches, b"4")
    clock.now += 76  # hung
    batches.failed(batch, _GONE)
    assert _error(second).detail["outcome"] == "not_stored"
    assert str(_error(third)) == "unavailable: 1 record for t, not stored: gone", "91 s in the queue"
    assert not fourth.done(), "76 s in the queue"
    batches.stored(_taken(batches), 1)
    assert fourth.result(0) == 1
    assert (batches.pending(), batches.failed_records) == (0, 3)


def test_progress_gives_what_is_behind_its_own_time(clock: Clock) -> None:
    batches = _batches(clock, linger_ms=0, retry=Retry(seconds=60, first_pause=1))
    _add(batches, b"1")
    batch = _taken(batches)
    (second,) = _add(batches, b"2")
    clock.now += 600  # slow, but it continues
    batches.stored(batch, 1)
    batches.failed(_taken(batches), _GONE)
    assert not second.done()
    clock.now += 1
    batches.stored(_taken(batches), 2)
    assert second.result(0) == 2


def test_without_retries_each_batch_has_one_attempt(clock: Clock) -> None:
    batches = _batches(clock, linger_ms=0, retry=Retry(seconds=0))
    (first,) = _add(batches, b"1")
    batch = _taken(batches)
    (second,) = _add(batches, b"2")
    clock.now += 1
    batches.failed(batch, _GONE)
    assert _error(first).reason == "unavailable"
    batches.stored(_taken(batches), 1)
    assert second.result(0) == 1


@pytest.mark.parametrize(
    "error",
    [
        _FULL,
        AuthError("forbidden", "no"),
        NotFoundError("partition_not_found", "no"),
        TopicsError("outcome_unknown", "late"),
        TopicsError("internal", "bug"),
    ],
)
def test_a_refusal_fails_its_batch_at_once_and_no_other(clock: Clock, error: TopicsError) -> None:
    batches = _batches(clock, linger_ms=0)
    failed = _add(batches, b"1", b"2")
    batch = _taken(batches)
    (behind,) = _add(batches, b"3")
    batches.failed(batch, error)
    for delivery in failed:
        assert type(_error(delivery)) is type(error)
        assert (_error(delivery).reason, _error(delivery).detail["topic"]) == (error.reason, "t")
    assert batches.failures[0][1] is _error(failed[0])
    batches.stored(_taken(batches), 1)
    assert behind.result(0) == 1


def test_a_batch_with_a_bad_record_is_split_until_only_that_fails(clock: Clock) -> None:
    batches = _batches(clock, linger_ms=0)
    datas = [b"%d" % i for i in range(7)]
    datas[4] = b"bad"
    deliveries = _add(batches, *datas)
    (behind,) = _add(batches, b"7", partition=1)
    stored, keys = list[bytes](), list[str]()
    number = batches.flush()
    while not batches.settled(number):
        for batch in batches.take():
            keys.append(batch.key)
            if b"bad" in batch.data:
                batches.failed(batch, _BAD)
            else:
                batches.stored(batch, len(stored) + 1)
                stored += batch.data if batch.topic_partition == ("t", 0) else []
    assert stored == [b"0", b"1", b"2", b"3", b"5", b"6"]
    assert [None if d.exception(0) else d.result(0) for d in deliveries] == [1, 2, 3, 4, None, 5, 6]
    assert _error(deliveries[4]).reason == "invalid_request"
    assert behind.done()
    assert len(keys) == len(set(keys)), "a key belongs to exactly these records"
    assert batches.buffered_bytes == 0


def test_parts_stay_with_their_records_when_a_batch_is_split(clock: Clock) -> None:
    batches = _batches(clock, linger_ms=0)
    for i in range(3):
        batches.add("t", 0, b"%d" % i, Parts(False, f"tag{i}", None, b"", 4) if i != 1 else None)
    whole = _taken(batches)
    held = whole.nbytes
    batches.failed(whole, _BAD)
    first = _taken(batches)
    assert [parts.tag for parts in first.parts.values()] == ["tag0"]
    batches.stored(first, 1)
    second = _taken(batches)
    assert {index: parts.tag for index, parts in second.parts.items()} == {1: "tag2"}
    assert first.nbytes + second.nbytes == held


def test_a_server_that_takes_fewer_records_gets_fewer(clock: Clock) -> None:
    batches = _batches(clock, linger_ms=0)
    deliveries = _add(batches, *[b"1"] * 8)
    batches.failed(_taken(batches), InvalidRequestError("batch_too_large", "5 at most"))
    for first in (1, 5):
        batch = _taken(batches)
        assert len(batch) == 4
        batches.stored(batch, first)
    _add(batches, *[b"1"] * 8)
    assert len(_taken(batches)) == 4
    assert deliveries[7].result(0) == 8


def test_what_may_be_stored_is_not_split_for_its_size(clock: Clock) -> None:
    batches = _batches(clock, linger_ms=0, retry=Retry(first_pause=1))
    deliveries = _add(batches, b"1", b"2")
    batches.failed(_taken(batches), _GONE, lost_at=clock.now)
    clock.now += 1
    batches.failed(_taken(batches), InvalidRequestError("batch_too_large", "1 at most"))
    assert [_error(delivery).detail["outcome"] for delivery in deliveries] == ["unknown"] * 2


def test_the_first_attempt_without_an_answer_is_remembered(clock: Clock) -> None:
    batches = _batches(clock, linger_ms=0, retry=Retry(first_pause=1, longest_pause=1))
    _add(batches, b"1")
    for lost_at, remembered in ((None, None), (5.0, 5.0), (6.0, 5.0), (None, 5.0)):
        batch = _taken(batches)
        batches.failed(batch, _GONE, lost_at=lost_at)
        assert batch.lost_at == remembered
        clock.now += 1


@pytest.mark.parametrize(
    ("reason", "outcome"), [("topic_full", "not_stored"), ("invalid_request", "not_stored"), ("forbidden", "unknown")]
)
def test_a_refusal_tells_of_an_attempt_without_an_answer_if_it_looked_for_it(
    clock: Clock, reason: str, outcome: str
) -> None:
    batches = _batches(clock, linger_ms=0, retry=Retry(first_pause=1))
    (delivery,) = _add(batches, b"1")
    batches.failed(_taken(batches), _GONE, lost_at=clock.now)
    clock.now += 1
    batches.failed(_taken(batches), TopicsError(reason, "no"))
    assert _error(delivery).detail["outcome"] == outcome


def test_all_can_be_given_up(clock: Clock) -> None:
    batches = _batches(clock, linger_ms=0)
    deliveries = _add(batches, b"1")
    batches.take()
    deliveries += _add(batches, b"2") + _add(batches, b"3", topic="u")
    batches.fail_all(UnavailableError("closed", "closed"))
    assert [_error(delivery).reason for delivery in deliveries] == ["closed"] * 3
    assert [_error(delivery).detail["outcome"] for delivery in deliveries] == ["unknown", "not_stored", "not_stored"]
    assert (batches.pending(), batches.buffered_bytes, batches.wakes_at()) == (0, 0, None)
    assert batches.settled(batches.number)


# ------------------------------------------------------------------ whatever happens


@dataclass
class _Server:
    """Stores batches, recognizes their keys, and refuses what is bad."""

    logs: dict[tuple[str, int], list[bytes]] = field(default_factory=lambda: defaultdict(list))
    keys: dict[str, int] = field(default_factory=dict)

    def append(self, batch: Batch) -> int | TopicsError:
        if any(data.startswith(b"bad") for data in batch.data):
            return _BAD
        log = self.logs[batch.topic_partition]
        if batch.key not in self.keys:
            self.keys[batch.key] = len(log) + 1
            log += batch.data
        return self.keys[batch.key]


_APPEND = st.tuples(st.just("append"), st.integers(0, 2), st.booleans())
_ANSWER = st.tuples(
    st.just("answer"), st.integers(0, 3), st.sampled_from(["ok", "ok", "lost", "never", "throttled", "full"])
)
_TIME = st.tuples(st.just("time"), st.sampled_from([0.001, 0.01, 0.1, 1.0, 10.0]), st.none())
_FLUSH = st.tuples(st.just("flush"), st.none(), st.none())
_STEPS = st.lists(st.one_of(_APPEND, _APPEND, _APPEND, _ANSWER, _ANSWER, _TIME, _FLUSH), max_size=150)


@settings(max_examples=400, deadline=None)
@given(_STEPS, st.integers(1, 3), st.sampled_from([1, 2, 5, 100]), st.sampled_from([0, 3, 60]))
def test_what_is_delivered_is_there_once_and_in_order(
    steps: list[tuple[str, int, object]], in_flight: int, most: int, retry_seconds: float
) -> None:
    clock, server = Clock(), _Server()
    batches = _batches(
        clock, linger_ms=5, max_in_flight=in_flight, max_batch_records=most, retry=Retry(seconds=retry_seconds)
    )
    under_way, appended = list[Batch](), defaultdict[tuple[str, int], list[tuple[bytes, Delivery]]](list)

    def answer(batch: Batch, how: str) -> None:
        sent_at = clock.now
        if how == "throttled":
            batches.failed(batch, UnavailableError("throttled", "slow", {}, 1000))
        elif how == "full" and batch.key not in server.keys:  # which are looked up first
            batches.failed(batch, _FULL)
        elif how == "never":
            batches.failed(batch, _GONE, lost_at=sent_at)
        else:
            outcome = server.append(batch)
            if how == "lost":
                batches.failed(batch, _GONE, lost_at=sent_at)
            elif isinstance(outcome, int):
                batches.stored(batch, outcome)
            else:
                batches.failed(batch, outcome)

    def take() -> None:
        under_way.extend(batches.take())
        topic_partitions = [batch.topic_partition for batch in under_way]
        assert len(topic_partitions) == len(set(topic_partitions)) <= in_flight

    for number, (what, which, more) in enumerate(steps):
        if what == "append":
            place, data = (f"t{which}", 0), b"%s%d" % (b"bad" if more and number % 5 == 0 else b"", number)
            appended[place].append((data, batches.add(*place, data)))
        elif what == "answer" and under_way:
            answer(under_way.pop(which % len(under_way)), str(more))
        elif what == "time":
            clock.now += which
        elif what == "flush":
            batches.flush()
        take()
    last = batches.flush()
    for _ in range(10_000):
        take()
        if under_way:
            answer(under_way.pop(0), "ok")
        elif (at := batches.wakes_at()) is not None:
            clock.now = max(clock.now, at)
        else:
            break

    assert batches.settled(last)
    assert (batches.pending(), batches.buffered_bytes, batches.in_flight) == (0, 0, 0)
    for place, records in appended.items():
        log = server.logs[place]
        assert len(log) == len(set(log)), "nothing is there twice"
        delivered = [(data, delivery.result(0)) for data, delivery in records if delivery.exception(0) is None]
        assert [log[seq - 1] for _, seq in delivered] == [data for data, _ in delivered]
        assert [seq for _, seq in delivered] == sorted(seq for _, seq in delivered)
        for data, delivery in records:
            error = delivery.exception(0)
            if error is not None:
                assert error.detail["outcome"] in ("unknown", "not_stored")
                assert error.detail["outcome"] == "unknown" or data not in log
            if data.startswith(b"bad"):
                assert error is not None
    total = [delivery for records in appended.values() for _, delivery in records]
    assert batches.delivered_records + batches.failed_records == len(total)
