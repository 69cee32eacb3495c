"""`watch` through both clients: places, cursors, events, breaks."""

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Any

import pytest

from support.sdk import Clients
from support.server import ServerProcess
from support.waiting import poll
from topics_client import (
    Advice,
    CaughtUp,
    Event,
    Gap,
    GapError,
    InvalidRequestError,
    NewRecord,
    NotFoundError,
    Record,
    Retry,
    TopicConfig,
    TopicDeleted,
    TopicsClient,
    UnavailableError,
)
from topics_client.aio import records as aio_records
from topics_client.aio import streams as aio_streams
from topics_client.sync import records as sync_records
from topics_client.sync import streams as sync_streams


def _take(items: Iterable[Any], count: int) -> list[tuple[str, int]]:
    """Topic and seq of the next records, in order of topic."""
    return sorted((f"{r.topic}@{r.partition}" if r.partition else r.topic, r.seq) for r in islice(items, count))


def _until(events: Iterator[Event], kind: type[Any]) -> Any:
    return next(event for event in events if type(event) is kind)


def test_many_topics_and_where_each_begins(client: TopicsClient, name: str) -> None:
    a, b, c = (f"{name}.{letter}" for letter in "abc")
    for topic in (a, b, c):
        client.append_many(topic, [1, 2, 3])
    with client.watch({a: 0, b: 2, c: "tail"}) as stream:
        records = iter(stream)
        assert _take(records, 4) == [(a, 1), (a, 2), (a, 3), (b, 3)]
        poll(lambda: stream.cursor == {a: 3, b: 3, c: 3})
        client.append(c, 4, tag="t", node="n", meta={"k": 1})
        record = next(records)
        assert record == Record(c, 0, 4, record.ts_ms, b"4", False, "t", "n", b'{"k":1}')
        assert stream.cursor == {a: 3, b: 3, c: 4}
    with client.watch([a, b]) as stream:
        assert _take(stream, 6) == [(t, s) for t in (a, b) for s in (1, 2, 3)]
    with client.watch(iter([a])) as stream:
        assert _take(stream, 3) == [(a, 1), (a, 2), (a, 3)]


def test_what_a_watch_cannot_be(client: TopicsClient, name: str) -> None:
    wrongs: list[Any] = [[], {}, {name: -1}, {name: "head"}, {name: 1.5}]
    for wrong in wrongs:
        with pytest.raises(InvalidRequestError):
            client.watch(wrong)
    with pytest.raises(InvalidRequestError, match="mutually exclusive"):
        client.watch(name, tag="a", tag_prefix="b")
    with pytest.raises(NotFoundError) as none:
        next(iter(client.watch(name)))
    assert (none.value.reason, none.value.detail) == ("topic_not_found", {"topic": name})
    client.append(name, 1)
    with pytest.raises(NotFoundError) as partition:
        next(iter(client.watch(f"{name}@7")))
    assert partition.value.reason == "partition_not_found"
    with pytest.raises(InvalidRequestError, match="256"):
        next(iter(client.watch([f"{name}.{i}" for i in range(257)], lenient=True)))


def test_partitions_are_places(client: TopicsClient, name: str) -> None:
    client.put_topic(name, partitions=3)
    for partition in range(3):
        client.append_many(name, [1, 2], partition=partition)
    with client.watch([f"{name}@{n}" for n in range(3)]) as stream:
        assert _take(stream, 6) == sorted((p, s) for p in (name, f"{name}@1", f"{name}@2") for s in (1, 2))
        cursor = stream.cursor
    assert cursor == {name: 2, f"{name}@1": 2, f"{name}@2": 2}
    client.append(name, 3, partition=2)
    client.append(name, 3)
    with client.watch({f"{name}@0": 0, f"{name}@2": 0}, cursor=cursor) as stream:
        assert _take(stream, 2) == sorted([(name, 3), (f"{name}@2", 3)])
    with client.watch(f"{name}@0", cursor={f"{name}@0": 2}) as stream:
        assert _take(stream, 1) == [(name, 3)]
        assert stream.cursor == {name: 3}


def test_a_prefix_takes_in_what_is_made_later(client: TopicsClient, name: str) -> None:
    client.append_many(f"{name}.a", [1, 2])
    with client.watch({f"{name}.*": "tail"}) as stream:
        records = iter(stream)
        waiting: list[Record] = []
        thread = threading.Thread(target=lambda: waiting.append(next(records)))
        thread.start()
        poll(lambda: stream.cursor == {f"{name}.a": 2})
        client.append_many(f"{name}.b", ["first", "second"])
        thread.join(5)
        assert [(r.topic, r.seq, r.value) for r in waiting] == [(f"{name}.b", 1, "first")]
        assert next(records).value == "second"
        client.append(f"{name}.a", 3)
        assert next(records).seq == 3


def test_a_cursor_given_back_goes_on_without_loss_or_repeat(client: TopicsClient, name: str) -> None:
    topics = [f"{name}.{i}" for i in range(3)]
    for topic in topics:
        client.append_many(topic, range(100))
    found: list[tuple[str, int]] = []
    cursor: dict[str, int] | None = None
    for step in (1, 7, 120, 172):
        with client.watch(topics, cursor=cursor) as stream:
            found += _take(stream, step)
            cursor = stream.cursor
    assert sorted(found) == [(topic, seq) for topic in topics for seq in range(1, 101)]
    assert cursor == dict.fromkeys(topics, 100)
    with client.watch(topics[0], cursor=cursor | {"elsewhere": 9}) as stream:
        client.append(topics[0], "next")
        assert _take(stream, 1) == [(topics[0], 101)]
        assert stream.cursor["elsewhere"] == 9


def test_iterated_again_it_goes_on_in_the_middle_of_a_frame(client: TopicsClient, name: str) -> None:
    client.append_many(name, range(500))
    with client.watch(name) as stream:
        assert [record.seq for record in islice(stream, 123)] == list(range(1, 124))
        assert stream.cursor == {name: 123}
        assert [record.seq for record in islice(stream, 1)] == [124]
        batch = next(iter(stream.batches()))
        assert batch[0].seq == 125
        assert stream.cursor == {name: batch[-1].seq}


def test_filters_and_nodes_move_the_cursor_past_what_they_leave_out(client: TopicsClient, name: str) -> None:
    client.append_many(name, [NewRecord(i, tag="ab"[i % 2], node="xy"[i % 2]) for i in range(1, 11)])
    with client.watch(name, tag="a", events=True) as stream:
        events = iter(stream)
        assert [event.seq for event in islice(events, 5) if isinstance(event, Record)] == [2, 4, 6, 8, 10]
    with client.watch(name, node="y", events=True) as stream:
        assert [event.seq for event in islice(stream, 5) if isinstance(event, Record)] == [2, 4, 6, 8, 10]
    client.append(name, 11, tag="b", node="y")
    for options in ({"tag": "a"}, {"tag_prefix": "a"}, {"node": ["y"]}):
        with client.watch(name, events=True, **options) as stream:
            for event in stream:
                if isinstance(event, CaughtUp):
                    assert event == CaughtUp(name, 0, 11)
                    break
            assert stream.cursor == {name: 11}


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_strong(client: TopicsClient, name: str, durability: Any) -> None:
    client.put_topic(name, TopicConfig(durability=durability))
    client.append_many(name, [1, 2])
    with client.watch(name, strong=True) as stream:
        assert _take(stream, 2) == [(name, 1), (name, 2)]


def test_lenient_leaves_out_what_is_not_there_and_keeps_it_out(client: TopicsClient, name: str) -> None:
    client.append(name, 1)
    with client.watch([name, f"{name}.none"], lenient=True) as stream:
        assert _take(stream, 1) == [(name, 1)]
        client.append(f"{name}.none", "made later")
        client.append(name, 2)
        assert _take(stream, 1) == [(name, 2)]  # a stream of its own: it was left out once and for all
    assert list(client.watch(f"{name}.never", lenient=True)) == []


# ------------------------------------------------------------------------- events


def test_gaps_and_the_ends_of_topics_are_events(client: TopicsClient, name: str) -> None:
    a, b = f"{name}.a", f"{name}.b"
    client.put_topic(a, TopicConfig(cap_records=2))
    client.append_many(a, [1, 2, 3, 4])
    client.append(b, 1)
    with client.watch([a, b], events=True) as stream:
        events = iter(stream)
        gap = _until(events, Gap)
        assert (gap.topic, gap.first_seq, gap.last_seq, gap.missed_estimate) == (a, 1, 2, 2)
        assert (gap.earliest_seq, gap.head_seq, gap.reason) == (3, 4, "from_seq_too_old")
        assert stream.cursor[a] == 2
        client.delete_topic(b)
        assert _until(events, TopicDeleted) == TopicDeleted(b, 0, 1)
        assert b not in stream.cursor
        client.append(b, "another one")
        client.append(a, 5)
        while (record := _until(events, Record)).seq != 5:
            assert record.topic == a
        assert stream.cursor == {a: 5}
        client.delete_topic(a)
        assert _until(events, TopicDeleted).topic == a
        assert list(events) == []  # nothing is left
        assert list(stream) == []


def test_without_events_gaps_and_deleted_topics_raise(client: TopicsClient, name: str) -> None:
    a, b = f"{name}.a", f"{name}.b"
    client.put_topic(a, TopicConfig(cap_records=2))
    client.append_many(a, [1, 2, 3, 4])
    client.append(b, 1)
    with client.watch([a, b]) as stream:
        with pytest.raises(GapError) as lost:
            list(stream)
        assert (lost.value.gap.topic, lost.value.gap.first_seq, lost.value.gap.last_seq) == (a, 1, 2)
        assert _take(stream, 3) == [(a, 3), (a, 4), (b, 1)]
        client.delete_topic(b)
        with pytest.raises(NotFoundError) as gone:
            list(stream)
        assert gone.value.detail["topic"] == b
        client.append(b, "another one")
        client.append(a, 5)
        assert _take(stream, 1) == [(a, 5)]


def test_a_topic_that_goes_within_a_stream_has_left_it(client: TopicsClient, name: str) -> None:
    a, b = f"{name}.a", f"{name}.b"
    client.append(a, 1)
    client.append(b, 1)
    with client.watch([a, b]) as stream:
        records = iter(stream)
        assert _take(records, 2) == [(a, 1), (b, 1)]
        client.delete_topic(b)
        with pytest.raises(NotFoundError, match=f"{b} was deleted"):
            next(records)
        client.append(b, "another one")
        client.append(a, 2)
        assert _take(stream, 1) == [(a, 2)]
        assert stream.cursor == {a: 2}


@pytest.mark.parametrize("events", [False, True])
def test_a_topic_of_a_prefix_that_is_made_again_is_read_from_its_first_record(
    client: TopicsClient, name: str, events: Any
) -> None:
    """Also when the end of the one before was handed out last, and the next iteration begins with a new call."""
    topic = f"{name}.a"
    client.append_many(topic, ["old"] * 3)
    client.append(f"{name}.b", "b")
    stream: Any = client.watch(f"{name}.*", events=events)
    assert _take((event for event in stream if isinstance(event, Record)), 4) == [
        (topic, 1), (topic, 2), (topic, 3), (f"{name}.b", 1),
    ]  # fmt: skip
    client.delete_topic(topic)
    client.append_many(topic, ["new"] * 5)
    # seqs alone can't identify the old topic once the stream is reopened: this one has more than before
    client.delete_topic(f"{name}.b")
    if events:
        assert _until(iter(stream), TopicDeleted).topic == f"{name}.b"
    else:
        with pytest.raises(NotFoundError, match=f"{name}.b was deleted"):
            for _ in stream:
                pass
    client.append_many(f"{name}.b", ["again", "and again"])
    found = list(islice((e for e in stream if isinstance(e, Record) and e.topic == f"{name}.b"), 2))
    assert [(record.seq, record.value) for record in found] == [(1, "again"), (2, "and again")]
    stream.close()


def test_a_gap_that_was_handed_out_is_not_told_again(client: TopicsClient, name: str) -> None:
    client.put_topic(name, TopicConfig(cap_records=2))
    client.append_many(name, [1, 2, 3, 4])
    stream = client.watch(name, events=True)
    assert isinstance(next(iter(stream)), Gap)
    assert stream.cursor == {name: 2}
    assert [event.seq for event in islice(stream, 2) if isinstance(event, Record)] == [3, 4]
    stream.close()


def test_a_topic_that_went_while_nobody_looked_is_told_and_the_others_go_on(client: TopicsClient, name: str) -> None:
    topics = [f"{name}.{letter}" for letter in "abc"]
    for events in (True, False):
        for topic in topics:
            client.append(topic, 1)
        stream: Any = client.watch(topics, events=events)
        assert len(_take((event for event in stream if isinstance(event, Record)), 3)) == 3
        client.delete_topic(topics[0])
        client.delete_topic(topics[1])
        client.append(topics[2], 2)
        told = []
        while True:
            try:
                event = next(event for event in stream if not isinstance(event, CaughtUp))
            except NotFoundError as error:
                told.append(error.detail["topic"])
                continue
            if isinstance(event, Record):
                break
            told.append(event.topic)
            assert event.head_seq == 1
        assert told == topics[:2]
        assert (event.topic, event.seq) == (topics[2], 2)
        assert stream.cursor == {topics[2]: 2}
        stream.close()
        client.delete_topic(topics[2])


def test_a_topic_that_was_made_again_while_nobody_looked(client: TopicsClient, name: str) -> None:
    client.append_many(name, range(9))
    stream = client.watch(name)
    assert len(_take(stream, 9)) == 9
    client.delete_topic(name)
    client.append_many(name, ["new", "newer"])
    with pytest.raises(GapError) as again:
        next(iter(stream))
    assert (again.value.gap.reason, stream.cursor) == ("recreated", {name: 0})
    assert [record.value for record in islice(stream, 2)] == ["new", "newer"]
    stream.close()


def test_a_topic_too_many_is_not_lost_in_silence(client: TopicsClient, name: str, shared: ServerProcess) -> None:
    with TopicsClient(shared.grpc_target) as other, ThreadPoolExecutor(8) as pool:
        made = [f"{name}.{i:03}" for i in range(256)]
        list(pool.map(lambda each: other.put_topic(each, TopicConfig(durability="ephemeral")), made))
        for events in (True, False):
            with client.watch(f"{name}.*", events=events) as stream:
                items = iter(stream)
                if events:
                    assert [type(next(items)) for _ in made] == [CaughtUp] * 256
                    other.put_topic(f"{name}.x")
                    advice = _until(items, Advice)
                    assert (advice.reason, advice.topics, advice.retry_after_ms) == ("throttled", (f"{name}.x",), None)
                    assert "not followed" in advice.message
                else:
                    timer = threading.Timer(0.5, other.put_topic, (f"{name}.x",))
                    timer.start()
                    with pytest.raises(UnavailableError, match="not followed") as refused:
                        next(items)
                    assert refused.value.detail == {"topics": f"{name}.x"}
                    timer.join()
                del items  # the iteration ends, and the next is another call
                with pytest.raises(InvalidRequestError, match="256"):
                    next(iter(stream))
            other.delete_topic(f"{name}.x")


# ------------------------------------------------------------------------- breaks


def test_three_topics_are_written_while_the_server_is_killed_twice(
    clients: Clients, restarted: Callable[[], ServerProcess]
) -> None:
    server = restarted()
    topics = ["a", "b", "c"]
    retry = Retry(seconds=30, longest_pause=0.5)
    stop = threading.Event()

    def write(topic: str) -> int:
        with TopicsClient(server.grpc_target, retry=retry) as writer:
            sent = 0
            while not stop.is_set():
                writer.append_many(topic, range(sent, sent + 20))
                sent += 20
            return sent

    client = clients(server.grpc_target, retry=retry)
    for topic in topics:
        client.put_topic(topic)
    found: dict[str, list[tuple[int, Any]]] = {topic: [] for topic in topics}

    def follow() -> None:
        for batch in stream.batches():
            for record in batch:
                found[record.topic].append((record.seq, record.value))

    def seen(many: int) -> bool:
        return sum(stream.cursor.values()) > many

    with ThreadPoolExecutor(4) as pool, client.watch(topics) as stream:
        following = pool.submit(follow)
        writing = [pool.submit(write, topic) for topic in topics]
        for many in (500, 1500):
            poll(partial(seen, many), 20)
            restarted()
        stop.set()
        written = {topic: each.result(30) for topic, each in zip(topics, writing, strict=True)}
        poll(lambda: stream.cursor == written, 20)
        stream.close()
        following.result(5)
    for topic in topics:
        assert found[topic] == [(record.seq, record.value) for record in client.read(topic)]
        assert [value for _, value in found[topic]] == list(range(written[topic]))  # appended once each


def test_topics_made_while_the_stream_was_down_are_read_from_their_first_record(
    clients: Clients, restarted: Callable[[], ServerProcess]
) -> None:
    server = restarted()
    client = clients(server.grpc_target, retry=Retry(seconds=30, longest_pause=1.5, first_pause=1.5))
    client.append_many("p.a", [1, 2])
    with client.watch({"p.*": "tail"}) as stream:
        records = iter(stream)
        waiting: list[Record] = []
        thread = threading.Thread(target=lambda: waiting.extend(islice(records, 4)))
        thread.start()
        poll(lambda: stream.cursor == {"p.a": 2})
        restarted()
        with TopicsClient(server.grpc_target, retry=Retry(seconds=20)) as other:
            other.append_many("p.b", ["x", "y"])
            other.append("p.a", 3)
            other.append("p.c", 1)
        thread.join(20)
        assert sorted((record.topic, record.seq) for record in waiting) == [
            ("p.a", 3), ("p.b", 1), ("p.b", 2), ("p.c", 1),
        ]  # fmt: skip


def test_a_server_that_hangs_is_a_break(
    clients: Clients, restarted: Callable[[], ServerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (aio_streams, sync_streams, aio_records, sync_records):
        monkeypatch.setattr(module, "HEARTBEAT_SECONDS", 1)
    for streams in (aio_streams, sync_streams):
        monkeypatch.setattr(streams, "_SILENT_HEARTBEATS", 1.5)
    server = restarted()
    client = clients(server.grpc_target, retry=Retry(seconds=0.2))
    client.append("t", 1)
    with client.watch("t") as stream:
        records = iter(stream)
        assert next(records).seq == 1
        timer = threading.Timer(2.2, client.append, ("t", 2))  # it is silent until then but for heartbeats
        timer.start()
        assert next(records).seq == 2
        timer.join()
        server.signal(signal.SIGSTOP)
        with pytest.raises(UnavailableError, match=r"no answer for 1.5 s"):
            next(records)
        server.signal(signal.SIGCONT)
        poll(client.ready)
        client.append("t", 3)
        assert next(iter(stream)).seq == 3
