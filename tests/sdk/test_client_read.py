"""`read` through both clients: where it begins and ends, filters, gaps, breaks."""

import threading
from collections.abc import Callable
from contextlib import closing
from itertools import islice
from typing import Any

import pytest

from support.sdk import Clients
from support.server import ServerProcess
from support.waiting import poll
from topics_client import (
    AsyncTopicsClient,
    Gap,
    GapError,
    InvalidRequestError,
    NewRecord,
    NotFoundError,
    Retry,
    TopicConfig,
    TopicsClient,
    UnavailableError,
)
from topics_client import connection as connections


def _seqs(records: Any) -> list[int]:
    return [record.seq for record in records]


def _open_streams(client: TopicsClient) -> float:
    """How many calls the server has open at the moment, but for this one."""
    (line,) = (line for line in client.metrics().splitlines() if line.startswith("topics_grpc_calls_in_flight "))
    return float(line.split()[1]) - 1


@pytest.mark.parametrize("batches", [False, True])
def test_where_a_read_begins_and_ends(client: TopicsClient, name: str, batches: bool) -> None:
    def read(*args: Any, **options: Any) -> list[int]:
        with client.read(name, *args, **options) as stream:
            return [r.seq for batch in stream.batches() for r in batch] if batches else _seqs(stream)

    client.append_many(name, [NewRecord(i, tag=f"t{i % 5}", node=f"n{i % 2}") for i in range(1, 101)])
    assert read() == list(range(1, 101))
    assert read(98) == [99, 100]
    assert read(100) == []
    assert read(95, end_seq=97) == [96, 97]
    assert read(end_seq=2) == [1, 2]
    assert read(last=3) == [98, 99, 100]
    assert read(last=0) == []
    assert read(99, end_seq=1000) == [100]
    (first,) = client.diff(name, limit=1).records
    assert read(from_ts_ms=first.ts_ms, end_seq=3) == [1, 2, 3]
    assert read(from_ts_ms=first.ts_ms + 10**6) == []
    assert read(tag="t4", end_seq=20) == [4, 9, 14, 19]
    assert read(90, tag_prefix="t") == list(range(91, 101))
    assert read(90, node="n0") == [91, 93, 95, 97, 99]
    assert read(90, node=["n0", "n1"]) == []
    with pytest.raises(InvalidRequestError):
        read(5, last=2)
    with pytest.raises(NotFoundError):
        client.read(f"{name}.none").__iter__().__next__()


def test_a_read_ends_at_the_head_of_its_beginning(client: TopicsClient, name: str) -> None:
    client.append_many(name, range(10))
    found = []
    with client.read(name) as stream:
        for record in stream:
            found.append(record.seq)
            client.append(name, "more")
    assert found == list(range(1, 11))
    assert stream.position == 10
    assert list(stream) == []


def test_the_position_is_behind_what_was_handed_out(client: TopicsClient, name: str) -> None:
    client.append_many(name, [NewRecord(i, tag="a" if i <= 50 else "b") for i in range(1, 101)])
    stream = client.read(name)
    assert stream.position == 0
    assert _seqs(islice(stream, 7)) == list(range(1, 8))
    assert stream.position == 7
    assert _seqs(islice(stream, 3)) == [8, 9, 10]
    assert _seqs(stream) == list(range(11, 101))
    assert stream.position == 100
    with client.read(name, tag="a") as stream:
        assert _seqs(stream) == list(range(1, 51))
        assert stream.position == 100  # it has passed the others
    for begins in ({"last": 5}, {"from_ts_ms": 0}):
        stream = client.read(name, **begins)  # type: ignore[call-overload]
        assert stream.position is None
        (record,) = islice(stream, 1)
        assert stream.position == record.seq
    stream = client.read(name)
    with closing(stream.batches()) as batches:  # type: ignore[type-var]
        got = _seqs(next(batches))
    assert stream.position == got[-1]


def test_a_read_follows(client: TopicsClient, shared: ServerProcess, name: str) -> None:
    client.append(name, 1, tag="a")
    with TopicsClient(shared.grpc_target) as other, client.read(name, follow=True, tag="a") as stream:
        records = iter(stream)
        assert next(records).value == 1
        assert stream.position == 1
        other.append(name, 2, tag="b")
        other.append(name, 3, tag="a")
        assert next(records).value == 3
        other.append(name, 4, tag="b")
        other.delete_topic(name)
        with pytest.raises(NotFoundError):
            next(records)


def test_a_read_that_follows_ends_at_a_seq_if_it_is_told_one(client: TopicsClient, name: str) -> None:
    client.append_many(name, [1, 2])
    records = iter(client.read(name, follow=True, end_seq=4))
    assert _seqs([next(records), next(records)]) == [1, 2]
    client.append_many(name, [3, 4, 5])
    assert _seqs(records) == [3, 4]


# --------------------------------------------------------------------------- gaps


def _capped(client: TopicsClient, name: str, **config: Any) -> None:
    client.put_topic(name, TopicConfig(**config))


def test_a_gap_raises_or_is_an_object(client: TopicsClient, name: str) -> None:
    _capped(client, name, cap_records=4)
    client.append_many(name, range(1, 11))
    gap = Gap(name, 0, 1, 6, "cap", 6, 7, 10)
    assert client.read(name, gaps="yield").__iter__().__next__() == gap
    items = list(client.read(name, gaps="yield"))
    assert items[0] == gap
    assert _seqs(items[1:]) == [7, 8, 9, 10]
    (batch,) = client.read(name, gaps="yield").batches()
    assert list(batch) == items

    for iterate in (iter, lambda stream: stream.batches()):
        stream = client.read(name)
        with pytest.raises(GapError) as raised:
            list(iterate(stream))
        assert raised.value.gap == gap
        assert raised.value.reason == "gap"
        assert raised.value.detail == {"topic": name, "gap_from": "1", "gap_to": "6"}
        assert "seq 1 to 6 is gone (cap)" in str(raised.value)
        assert stream.position == 6
        assert _seqs(stream) == [7, 8, 9, 10]

    assert _seqs(client.read(name, 7, end_seq=9, gaps="yield")) == [8, 9]
    (cut,) = client.read(name, 2, end_seq=4, gaps="yield")
    assert isinstance(cut, Gap)
    assert (cut.first_seq, cut.last_seq) == (3, 4)


def test_a_gap_in_the_middle_of_following(client: TopicsClient, name: str) -> None:
    _capped(client, name, cap_records=2)
    client.append_many(name, [1, 2])
    stream = client.read(name, follow=True)
    assert _seqs(islice(stream, 1)) == [1]
    client.append_many(name, [3, 4, 5])
    with pytest.raises(GapError) as lost:
        next(iter(stream))
    assert (lost.value.gap.first_seq, lost.value.gap.last_seq) == (2, 3)
    assert _seqs(islice(stream, 2)) == [4, 5]


def test_records_that_grew_old_are_a_gap(client: TopicsClient, name: str) -> None:
    _capped(client, name, ttl_ms=50)
    client.append_many(name, [1, 2])
    poll(lambda: client.get_topic(name).count == 0)
    (gap,) = client.read(name, gaps="yield")
    assert isinstance(gap, Gap)
    assert (gap.reason, gap.first_seq, gap.last_seq) == ("ttl", 1, 2)


def test_a_topic_that_was_made_again(client: TopicsClient, name: str) -> None:
    client.append_many(name, range(9))
    stream = client.read(name, follow=True)
    assert len(list(islice(stream, 9))) == 9
    client.delete_topic(name)
    client.put_topic(name)
    with pytest.raises(GapError) as again:
        next(iter(stream))
    assert again.value.gap.reason == "recreated"
    assert stream.position == 0
    client.append_many(name, ["new", "newer"])
    assert [record.value for record in islice(stream, 2)] == ["new", "newer"]
    again_from_there = client.read(name, 9, gaps="yield")
    gap, *records = again_from_there
    assert isinstance(gap, Gap)
    assert (gap.reason, _seqs(records), again_from_there.position) == ("recreated", [1, 2], 2)


# ------------------------------------------------------------------- ends and leaks


def test_nothing_is_left_open(client: TopicsClient, name: str) -> None:
    client.append_many(name, range(9_000))
    for _ in range(3):
        next(iter(client.read(name, follow=True)))
        next(iter(client.watch(name)))
        with client.read(name, follow=True) as stream:
            iterator = iter(stream)
            next(iterator)
        with client.watch(name) as watch:
            next(iter(watch))
        del iterator
    poll(lambda: _open_streams(client) == 0)
    kept = [iter(client.read(name, follow=True)), iter(client.watch(name))]
    for each in kept:
        next(each)
    poll(lambda: _open_streams(client) == 2)
    del each, kept
    poll(lambda: _open_streams(client) == 0)


@pytest.mark.parametrize("what", ["read", "watch"])
@pytest.mark.parametrize("batches", [False, True])
def test_close_ends_who_waits(client: TopicsClient, name: str, what: str, batches: bool) -> None:
    client.append_many(name, [1, 2])
    stream: Any = client.read(name, follow=True) if what == "read" else client.watch(name)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend([*(stream.batches() if batches else stream), "ended"]))
    thread.start()
    poll(lambda: _open_streams(client) == 1)
    poll(lambda: stream.position == 2 if what == "read" else stream.cursor == {name: 2})
    stream.close()
    thread.join(5)
    assert found[-1] == "ended"
    assert list(stream) == []
    poll(lambda: _open_streams(client) == 0)


def test_close_within_a_batch_ends_it_there(client: TopicsClient, name: str) -> None:
    client.append_many(name, range(100))
    found = []
    stream = client.read(name)
    for record in stream:
        found.append(record.seq)
        if len(found) == 5:
            stream.close()
    assert (found, stream.position) == ([1, 2, 3, 4, 5], 5)


def test_close_ends_who_waits_for_a_server_that_is_away(
    clients: Clients, restarted: Callable[[], ServerProcess]
) -> None:
    server = restarted()
    client = clients(server.grpc_target, retry=Retry(seconds=600, first_pause=300, longest_pause=300))
    client.append("t", 1)
    stream = client.read("t", follow=True)
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend([*stream, "ended"]))
    thread.start()
    poll(lambda: stream.position == 1)
    server.kill()
    gone = threading.Event()
    gone.wait(0.3)  # it sleeps by now, for minutes
    stream.close()
    thread.join(5)
    assert found[-1] == "ended"


def test_a_client_that_is_closed_says_so(clients: Clients, shared: ServerProcess, name: str) -> None:
    from topics_client import TopicsError

    client = clients(shared.grpc_target)
    client.append(name, 1)
    failure: list[BaseException] = []
    stream = client.read(name, follow=True)

    def follow() -> None:
        try:
            list(stream)
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=follow)
    thread.start()
    poll(lambda: stream.position == 1)
    client.close()
    thread.join(5)
    calls: list[Callable[[], Any]] = [lambda: client.append(name, 1), lambda: list(client.read(name))]
    for call in calls:
        with pytest.raises(TopicsError, match="closed") as closed:
            call()
        assert closed.value.reason == "cancelled"
    assert [type(error) for error in failure] == [TopicsError]


# ------------------------------------------------------------------------- breaks


def test_a_server_that_is_killed_in_the_middle_of_a_long_read(
    clients: Clients, restarted: Callable[[], ServerProcess]
) -> None:
    server = restarted()
    client = clients(server.grpc_target, retry=Retry(seconds=30))
    for first in range(1, 100_001, 10_000):
        client.append_many("long", range(first, first + 10_000))
    found: list[int] = []
    killed = False
    with client.read("long") as stream:
        for batch in stream.batches():
            found += [record.value for record in batch]
            assert stream.position == found[-1]
            if not killed and len(found) > 30_000:
                restarted()
                killed = True
    assert found == list(range(1, 100_001))


def test_a_kill_between_two_records(clients: Clients, restarted: Callable[[], ServerProcess]) -> None:
    server = restarted()
    client = clients(server.grpc_target, retry=Retry(seconds=30))
    client.append_many("t", range(10_000))
    found = []
    for record in client.read("t"):
        found.append(record.seq)
        if record.seq in (1, 4321):
            restarted()
            client.append("t", "behind the end")
    assert found == list(range(1, 10_001))


def test_a_server_that_is_stopped_in_the_proper_way_ends_no_stream(
    clients: Clients, restarted: Callable[[], ServerProcess]
) -> None:
    server = restarted()
    client = clients(server.grpc_target, retry=Retry(seconds=30))
    client.append_many("t", range(3))
    streams: list[Any] = [client.read("t", follow=True), client.watch("t"), client.watch("*")]
    iterators = [iter(stream) for stream in streams]
    for records in iterators:
        assert _seqs(islice(records, 3)) == [1, 2, 3]
    assert server.stop() == 0
    restarted()
    client.append("t", 3)
    assert [next(records).seq for records in iterators] == [4, 4, 4]
    for stream in streams:
        stream.close()


def test_a_server_that_stays_away_is_told_once_the_time_is_up(
    clients: Clients, restarted: Callable[[], ServerProcess]
) -> None:
    server = restarted()
    client = clients(server.grpc_target, retry=Retry(seconds=0.3))
    client.append_many("t", [1, 2])
    for stream in (client.read("t", follow=True), client.watch("t")):
        items = iter(stream)
        assert _seqs([next(items), next(items)]) == [1, 2]
        server.kill()
        with pytest.raises(UnavailableError) as away:
            next(items)
        assert (away.value.reason, server.grpc_target in str(away.value)) == ("unavailable", True)
        server = restarted()
        poll(client.ready)
        client.append("t", 3)
        assert next(iter(stream)).seq == 3  # and resumes where it was
        client.delete_records("t", before_seq=100)
        client.delete_topic("t")
        client.append_many("t", [1, 2])


def test_a_read_from_a_server_that_hangs_breaks(
    clients: Clients, restarted: Callable[[], ServerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    import signal

    quick = [option for option in connections.CHANNEL_OPTIONS if "keepalive" not in option[0]]
    quick += [("grpc.keepalive_time_ms", 1000), ("grpc.keepalive_timeout_ms", 500)]
    monkeypatch.setattr(connections, "CHANNEL_OPTIONS", tuple(quick))
    server = restarted()
    client = clients(server.grpc_target, retry=Retry(seconds=30))
    client.append("t", 1)
    with client.read("t", follow=True) as stream:
        records = iter(stream)
        assert next(records).value == 1
        server.signal(signal.SIGSTOP)
        timer = threading.Timer(3, server.signal, (signal.SIGCONT,))
        timer.start()
        with TopicsClient(server.grpc_target, timeout=1, retry=Retry(seconds=20)) as other:
            other.append("t", 2, idempotency_key="once")
        assert next(records).value == 2
        timer.join()
    assert client.get_topic("t").head_seq == 2


async def test_a_context_that_is_left_ends_its_iteration(shared: ServerProcess) -> None:
    """Not some time later, when the loop may be closing."""
    async with AsyncTopicsClient(shared.grpc_target) as client:
        await client.append_many("left-early", [1, 2, 3])
        for batches in (False, True):
            async with client.read("left-early", follow=True) as stream:
                items: Any = stream.batches() if batches else aiter(stream)
                assert await anext(items)
                assert items.ag_frame is not None
            assert items.ag_frame is None
            assert await anext(items, "the end") == "the end"
