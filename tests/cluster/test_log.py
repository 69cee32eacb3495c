"""The log's two state machines: which objects begin when, what is acknowledged, and what a reader accepts."""

import heapq
import itertools
from collections.abc import Iterator

import pytest

from topics_cluster import objects
from topics_cluster.log import (
    EARLY_BYTES,
    MAX_OBJECT_BYTES,
    MAX_WINDOW,
    SMALL_BYTES,
    START,
    Appender,
    OutOfOrderError,
    Position,
    Put,
    Tail,
)
from topics_cluster.objects import Header, Kind
from topics_service.storage.store import Family

NONCE = b"n" * 16
OTHER = b"o" * 16


def appender(first: int = 20, epoch: int = 1, window: int = 4, nonce: bytes = NONCE, linger: float = 0.0) -> Appender:
    return Appender(0, epoch, first, nonce, window=window, linger=linger)


def add(writer: Appender, ticket: int, nbytes: int = 100) -> None:
    start = objects.batch_start(ticket, 1)
    parts = [start, objects.row(objects.Op.PUT, Family.BLOCKS, b"k%d" % ticket, bytes(nbytes))]
    writer.add(ticket, parts, sum(map(len, parts)))


def whole(put: Put | None) -> bytes:
    assert put is not None
    return b"".join(put.parts)


def data(number: int, epoch: int, *tickets: int, window: int = 4) -> bytes:
    writer = appender(number, epoch, window)
    for ticket in tickets:
        add(writer, ticket)
    return whole(writer.begin(0))


def fence(number: int, epoch: int, ticket: int, resume: int) -> bytes:
    return b"".join(objects.encode(Header(Kind.FENCE, 0, epoch, number, resume, ticket, NONCE)))


def test_an_idle_writer_begins_nothing() -> None:
    writer = appender()
    assert writer.begins_at is None
    assert writer.begin(1e9) is None


def test_the_first_object_begins_at_once_and_has_all_that_is_pending() -> None:
    writer = appender()
    for ticket in (5, 6, 7):
        add(writer, ticket)
    put = writer.begin(0)
    assert put is not None
    assert (put.number, put.name, put.ticket) == (20, objects.name(0, 20), 7)
    header, batches = objects.decode(0, 20, whole(put))
    assert header == Header(Kind.DATA, 0, 1, 20, 24, 7, NONCE)
    assert [batch.ticket for batch in batches] == [5, 6, 7]
    assert writer.begin(0) is None
    assert (writer.pending_bytes, writer.unacknowledged_bytes) == (0, put.nbytes)
    assert writer.created(20, 1) == 7
    assert writer.unacknowledged_bytes == 0


def test_a_further_object_waits_for_bytes_or_time() -> None:
    writer = appender()
    add(writer, 1)
    assert writer.begin(100.0)
    add(writer, 2)
    due = writer.begins_at
    assert due == 100.0 + 2 * writer.usual_seconds
    assert writer.begin(due - 1e-6) is None
    assert writer.begin(due)
    add(writer, 3, EARLY_BYTES)
    assert writer.begin(due)
    add(writer, 4)
    assert writer.begin(due) is None


def rate(writers: int, *, linger: float = 0.025, put: float = 0.002, nbytes: int = 100) -> float:
    """Objects a second, of writers that wait for each of their writes and come back one after the other."""
    back, now, order = 0.0005, 0.0, itertools.count()
    writer, ticket, acknowledged = appender(linger=linger), 0, 0
    moments: list[tuple[float, int, Put | None]] = [(back * each, next(order), None) for each in range(writers)]
    while now < 5:
        at = writer.begins_at
        if at is not None and (not moments or at <= moments[0][0]):
            now = max(now, at)
        else:
            now, _, done = heapq.heappop(moments)
            if done is None:
                ticket += 1
                add(writer, ticket, nbytes)
            elif (upto := writer.created(done.number, now)) is not None:
                for each in range(upto - acknowledged):
                    heapq.heappush(moments, (now + back * (each + 1), next(order), None))
                acknowledged = upto
        while begun := writer.begin(now):
            heapq.heappush(moments, (now + put, next(order), begun))
    return (writer.next - 20) / now


def test_a_writer_that_waits_for_each_write_does_not_linger() -> None:
    assert rate(1) == pytest.approx(1 / 0.0025, rel=0.01) == rate(1, linger=0)


@pytest.mark.parametrize("writers", [2, 4, 64])
@pytest.mark.parametrize("put", [0.002, 0.02])
def test_several_writers_of_small_writes_share_objects_that_linger(writers: int, put: float) -> None:
    assert rate(writers, put=put) <= 42
    assert rate(writers, put=put, linger=0.1) <= 12
    assert rate(writers, put=put, linger=0) > 42


def test_an_epoch_that_ends_does_not_linger() -> None:
    writer = appender(linger=10.0)
    writer._are_several, writer._sharing = True, 1.0
    writer.add(1, [b"x"], 1)
    put = writer.begin(0)
    assert put is not None
    writer.created(put.number, 0.1)
    writer.add(2, [b"x"], 1)
    assert writer.begin(0.2) is None
    writer.hurries = True
    assert writer.begin(0.2) is not None
    writer.add(3, [b"x"], 1)
    assert writer.begin(0.2) is not None, "it does not wait for the one under way either"


def test_large_writes_do_not_linger() -> None:
    assert rate(4, nbytes=SMALL_BYTES) == rate(4, nbytes=SMALL_BYTES, linger=0)


def shared(writer: Appender, now: float, count: int) -> float:
    """Write objects with batches that came at two moments each. Return the time after that."""
    for ticket in range(1, 2 * count, 2):
        add(writer, ticket)
        put = writer.begin(now)
        add(writer, ticket + 1)
        assert writer.begin(now) is None
        put = put or writer.begin(now := writer.begins_at or now)
        assert put is not None
        writer.created(put.number, now + 0.002)
    return now + 0.002


def test_a_write_after_a_pause_begins_at_once() -> None:
    writer = appender(linger=0.5)
    now = shared(writer, 0, 20)
    add(writer, 100)
    assert writer.begins_at == pytest.approx(now - 0.002 + 0.5)
    assert writer.begin(now) is None
    assert writer.begin(now + 1)


def test_a_writer_that_is_left_alone_lingers_for_some_objects_more() -> None:
    writer = appender(linger=0.5)
    now, lingered = shared(writer, 0, 20), 0
    for ticket in range(100, 200):
        add(writer, ticket)
        put = writer.begin(now)
        if put is None:
            lingered += 1
            put = writer.begin(now := writer.begins_at or now)
        assert put is not None
        now += 0.002
        writer.created(put.number, now)
    assert lingered == pytest.approx(11, abs=2)


def test_the_usual_time_follows_the_store() -> None:
    writer = appender()
    now = 0.0
    for ticket in range(1, 100):
        add(writer, ticket)
        put = writer.begin(now)
        assert put is not None
        now += 0.2
        assert writer.created(put.number, now) == ticket
    assert writer.usual_seconds == pytest.approx(0.2, rel=0.01)


@pytest.mark.parametrize("window", [1, 4, MAX_WINDOW])
def test_no_number_begins_a_window_ahead_of_the_oldest_that_is_not_acknowledged(window: int) -> None:
    writer = appender(window=window)
    for ticket in range(1, 2 * window + 2):
        add(writer, ticket, EARLY_BYTES)
    begun: list[Put] = []
    while True:
        add(writer, 100 + len(begun), MAX_OBJECT_BYTES)
        put = writer.begin(0)
        if put is None:
            break
        begun.append(put)
    assert [put.number for put in begun] == list(range(20, 20 + window))
    for put in begun[1:]:
        assert writer.created(put.number, 1) is None
        assert writer.begin(1) is None
    assert writer.created(20, 1) == begun[-1].ticket
    assert writer.begin(1)


def test_acknowledgements_go_in_order_of_numbers() -> None:
    writer = appender()
    for ticket in (1, 2, 3):
        add(writer, ticket, MAX_OBJECT_BYTES)
        assert writer.begin(0)
    assert writer.created(21, 1) is None
    assert writer.created(21, 1) is None
    assert writer.created(20, 1) == 2
    assert writer.created(20, 1) is None
    assert writer.created(22, 1) == 3
    assert writer.created(99, 1) is None


def test_an_object_has_at_most_so_many_bytes_but_a_batch_is_never_split() -> None:
    writer = appender()
    for ticket, nbytes in ((1, MAX_OBJECT_BYTES // 2), (2, MAX_OBJECT_BYTES // 2), (3, 3 * MAX_OBJECT_BYTES), (4, 1)):
        add(writer, ticket, nbytes)
    begun = [writer.begin(now) for now in (0, 0, 0, 1)]
    assert [put and put.ticket for put in begun] == [1, 2, 3, 4]
    assert len(whole(begun[2])) > 3 * MAX_OBJECT_BYTES


@pytest.mark.parametrize("window", [0, MAX_WINDOW + 1])
def test_a_window_out_of_bounds_is_refused(window: int) -> None:
    with pytest.raises(ValueError, match="window"):
        appender(window=window)


def test_an_object_that_is_there_is_ours_only_with_the_same_bytes() -> None:
    writer = appender()
    add(writer, 1)
    put = writer.begin(0)
    assert writer.exists(20, None) == "again"
    assert writer.exists(20, whole(put)) == "ours"
    assert writer.created(20, 1) == 1
    assert writer.exists(20, whole(put)) == "ours"
    add(writer, 2)
    assert writer.begin(2)
    assert writer.exists(21, fence(21, 2, 1, 37)) == "fenced"


def test_the_same_rows_of_another_life_are_not_ours() -> None:
    lives = [appender(), appender(nonce=OTHER)]
    for life in lives:
        add(life, 1)
    mine, other = [life.begin(0) for life in lives]
    assert lives[1].exists(20, whole(mine)) == "fenced"
    assert whole(mine) != whole(other)


def test_a_fenced_writer_begins_and_acknowledges_nothing() -> None:
    writer = appender()
    for ticket in (1, 2, 3):
        add(writer, ticket, MAX_OBJECT_BYTES)
    assert writer.begin(0)
    assert writer.begin(0)
    assert writer.exists(21, fence(21, 2, 1, 37)) == "fenced"
    assert writer.fenced
    assert writer.created(20, 1) is None
    assert writer.begin(1) is None
    assert writer.begins_at is None


def log_of_two_epochs() -> Iterator[tuple[int, bytes]]:
    yield 1, fence(1, 1, 0, 17)
    yield 17, data(17, 1, 1, 2)
    yield 18, data(18, 1, 3)
    yield 19, fence(19, 2, 3, 35)
    yield 35, data(35, 2, 4)


def test_a_reader_follows_the_epochs_to_the_end() -> None:
    tail, tickets = Tail(0, START), []
    for number, content in log_of_two_epochs():
        assert tail.next == number
        found = tail.read(content)
        assert found is not None
        tickets += [batch.ticket for batch in found.batches]
    assert tail.read(None) is None
    assert tail.position == Position(2, 36, 4)
    assert tickets == [1, 2, 3, 4]


def test_a_reader_fences_the_end_and_goes_on_behind_the_window() -> None:
    tail = Tail(0, Position(2, 36, 4))
    put = tail.fence(OTHER)
    assert (put.number, put.name) == (36, objects.name(0, 36))
    found = tail.read(whole(put))
    assert found is not None
    assert found.header == Header(Kind.FENCE, 0, 3, 36, 36 + MAX_WINDOW, 4, OTHER)
    assert tail.position == Position(3, 36 + MAX_WINDOW, 4)


def test_what_a_fenced_writer_still_had_under_way_is_not_read() -> None:
    writer = appender(window=MAX_WINDOW)
    begun = []
    for ticket in range(1, 2 * MAX_WINDOW):
        add(writer, ticket, MAX_OBJECT_BYTES)
        put = writer.begin(0)
        begun += [] if put is None else [put]
    tail = Tail(0, Position(1, 20, 0))
    assert tail.read(whole(tail.fence(OTHER)))
    assert begun[-1].number < tail.next


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (data(36, 1, 5), "data of epoch 1 follows epoch 2"),
        (data(36, 3, 5), "data of epoch 3 follows epoch 2"),
        (data(36, 2, 6), "begins with ticket 6, read was ticket 4"),
        (fence(36, 2, 4, 52), "a fence of epoch 2 follows epoch 2"),
        (fence(36, 1, 4, 52), "a fence of epoch 1 follows epoch 2"),
        (fence(36, 3, 5, 52), "at ticket 5, read was ticket 4"),
    ],
)
def test_what_does_not_continue_the_log_is_out_of_order(content: bytes, why: str) -> None:
    tail = Tail(0, Position(2, 36, 4))
    with pytest.raises(OutOfOrderError, match=why) as caught:
        tail.read(content)
    assert caught.value.name == objects.name(0, 36)
    assert tail.position == Position(2, 36, 4)


def test_a_former_owner_reads_past_what_it_has() -> None:
    tail = Tail(0, Position(1, 17, 0), applied=3)
    tickets = []
    for number, content in (each for each in log_of_two_epochs() if each[0] > 1):
        assert tail.is_ahead == (number < 19)
        found = tail.read(content)
        assert found is not None
        tickets += [batch.ticket for batch in found.batches]
    assert tickets == [4]
    assert tail.applied == 4


def test_rows_that_were_fenced_off_are_out_of_order() -> None:
    tail = Tail(0, Position(1, 19, 3), applied=4)
    with pytest.raises(OutOfOrderError, match="rows up to 4 are here"):
        tail.read(fence(19, 2, 3, 35))


def test_a_number_is_missing_when_one_a_window_ahead_is_there() -> None:
    tail = Tail(0, Position(1, 17, 0))
    assert not tail.lacks(17 + MAX_WINDOW - 1)
    assert tail.lacks(17 + MAX_WINDOW)


def test_a_fence_ahead_counts_when_all_below_it_was_read() -> None:
    tail = Tail(0, Position(1, 17, 4))
    ahead = tail.fence(OTHER, ahead=3)
    assert ahead.number == 20
    for number in (17, 18, 19):
        assert tail.read(data(number, 1, number - 12))
    assert tail.read(whole(ahead))
    assert tail.position == Position(2, 20 + MAX_WINDOW, 7)


def test_a_fence_ahead_is_left_out_by_one_at_the_end() -> None:
    tail = Tail(0, Position(1, 17, 4))
    ahead = tail.fence(OTHER, ahead=MAX_WINDOW - 1)
    assert tail.read(whole(tail.fence(NONCE)))
    assert tail.next == ahead.number + 1
    for wrong in (-1, MAX_WINDOW):
        with pytest.raises(AssertionError):
            tail.fence(OTHER, ahead=wrong)
