"""Reading and Watching alone, against a model of a server that breaks off anywhere: no loss, no repeat."""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topics_client import Advice, CaughtUp, Gap, GapError, NotFoundError, Record, TopicDeleted, TopicsError
from topics_client.reading import Reading
from topics_client.watching import Watching, subscribe
from topics_proto.v1 import record_pb2
from topics_proto.v1.errors_pb2 import ERROR_REASON_INTERNAL, ERROR_REASON_SHUTTING_DOWN, ERROR_REASON_THROTTLED
from topics_proto.v1.record_pb2 import Tombstone
from topics_proto.v1.stream_pb2 import Frame, StreamError, Subscribed, TopicPosition
from topics_proto.v1.topics_service_pb2 import BulkDiffRequest, BulkDiffResponse
from topics_proto.v1.watch_service_pb2 import WatchRequest, WatchResponse, WatchSubscription


@dataclass
class Log:
    """A topic at the server. Seqs that are not `shown` to the reader are filtered out."""

    head: int = 0
    earliest: int = 1
    hidden: set[int] = field(default_factory=set)
    life: int = 1

    def page(self, cursor: int, limit: int, end: int) -> tuple[Tombstone | None, list[int], int]:
        """What a diff behind a cursor gives: a gap, seqs, and the next cursor."""
        lost = None
        if cursor > self.head:
            lost = Tombstone(gap_from=1, gap_to=self.head, reason=record_pb2.GAP_REASON_RECREATED)
            cursor = self.earliest - 1
        elif cursor + 1 < self.earliest:
            last = min(self.earliest - 1, end)
            lost = Tombstone(gap_from=cursor + 1, gap_to=last, reason=record_pb2.GAP_REASON_CAP)
            cursor = last
        if lost is not None:
            lost.earliest_seq, lost.head_seq = self.earliest, self.head
        found: list[int] = []
        while cursor < min(self.head, end) and len(found) < limit:
            cursor += 1
            if cursor not in self.hidden:
                found.append(cursor)
        return lost, found, cursor


def _columns(log: Log, seqs: list[int]) -> record_pb2.RecordColumns:
    columns = record_pb2.RecordColumns(kind=record_pb2.RECORD_KIND_JSON, time_ts_ms=[1], time_count=[len(seqs)])
    columns.data.data = str(log.life).encode()
    for seq in seqs:
        if columns.run_first_seq and columns.run_first_seq[-1] + columns.run_count[-1] == seq:
            columns.run_count[-1] += 1
        else:
            columns.run_first_seq.append(seq)
            columns.run_count.append(1)
    return columns


def bulk(log: Log, request: BulkDiffRequest, limit: int) -> Iterator[BulkDiffResponse]:
    """The frames of one call."""
    end = request.end_seq if request.HasField("end_seq") else (1 << 60 if request.follow else log.head)
    end = end if request.follow else min(end, log.head)
    cursor = request.from_seq
    if request.HasField("last"):
        cursor = max(log.head - request.last, log.earliest - 1)
    while True:
        lost, seqs, cursor = log.page(cursor, limit, end)
        done = cursor >= end
        frame = BulkDiffResponse(next_from_seq=cursor, head_seq=log.head, earliest_seq=log.earliest, done=done)
        if seqs:
            frame.records.CopyFrom(_columns(log, seqs))
        if lost is not None:
            frame.tombstone.CopyFrom(lost)
        if seqs or lost is not None or done or not request.follow:
            yield frame
        if done or not (seqs or lost is not None):
            return


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_read_that_breaks_anywhere_hands_out_all_once(data: st.DataObject) -> None:
    draw = data.draw
    log = Log(head=draw(st.integers(0, 30)))
    follow, raises = draw(st.booleans()), draw(st.booleans())
    request = BulkDiffRequest(topic="t", from_seq=draw(st.integers(0, 12)), follow=follow)
    if draw(st.booleans()):
        request.end_seq = draw(st.integers(0, 40))
    if not request.from_seq and draw(st.booleans()):
        request.last = draw(st.integers(0, 10))
    start = max(log.head - request.last, log.earliest - 1) if request.HasField("last") else request.from_seq
    known = not request.HasField("last")
    ends = request.HasField("end_seq")
    reading = Reading(request, raise_gaps=raises)
    expected = start  # the cursor of a reader that makes no mistakes
    first_head: int | None = None

    def told(seq: int) -> None:
        nonlocal expected
        between = [s for s in range(expected + 1, seq) if s not in log.hidden]
        assert not between, f"{between} were passed over on the way to {seq}"
        assert seq > expected, f"{seq} again"
        expected = seq

    for _ in range(draw(st.integers(1, 8))):
        if reading.done:
            break
        asked = reading.request()
        assert asked.HasField("last") is not known
        if known:
            assert asked.from_seq == reading.position
        else:
            expected, first_head = max(log.head - asked.last, log.earliest - 1), None
        for response in bulk(log, asked, draw(st.integers(1, 5))):
            first_head = response.head_seq if first_head is None else first_head
            items = reading.take(response)
            broken = draw(st.integers(0, len(items))) if draw(st.integers(0, 3)) == 0 else None
            for index, item in enumerate(items):
                if index == broken:
                    break
                raised = raises and isinstance(item, Gap)
                with pytest.raises(GapError) if raised else nullcontext() as error:
                    reading.at(item)
                assert error is None or error.value.gap == item
                known = True
                if isinstance(item, Gap):
                    if item.reason == "recreated":
                        expected = item.earliest_seq - 1
                    else:
                        assert item.first_seq == expected + 1
                        expected = item.last_seq
                else:
                    assert item.value == log.life
                    told(item.seq)
                assert reading.position == expected
                if raised:
                    break
            else:
                reading.passed(response)
                known = True
                passed = range(expected + 1, response.next_from_seq + 1)
                assert all(seq in log.hidden for seq in passed)
                expected = response.next_from_seq
                assert reading.position == expected
                if broken is None:
                    if draw(st.integers(0, 4)) == 0:
                        break  # between two frames
                    continue
            break
        # meanwhile, at the server
        change = draw(st.sampled_from(["none", "append", "expire", "again"]))
        if change == "append":
            for _ in range(draw(st.integers(1, 10))):
                log.head += 1
                if draw(st.booleans()):
                    log.hidden.add(log.head)
        elif change == "expire":
            log.earliest = max(log.earliest, draw(st.integers(1, log.head + 1)))
        elif change == "again" and known and expected > 0:
            # with fewer records than before: more of them are indistinguishable by seq
            log = Log(head=draw(st.integers(0, expected - 1)), life=log.life + 1)
    if reading.done and not follow and log.life == 1 and first_head is not None:
        end = min(request.end_seq, first_head) if ends else first_head
        assert expected >= end
        assert expected <= max(request.end_seq if ends else end, start)


# --------------------------------------------------------------------------- watch


@dataclass
class Stream:
    """One watch at the server: where it is in each topic that it follows."""

    at: dict[str, int]
    named: set[str]
    prefix: str | None

    def covers(self, name: str) -> bool:
        return self.prefix is not None and name.startswith(self.prefix)


class Server:
    """Topics, and at most one watch of them."""

    def __init__(self) -> None:
        self.logs: dict[str, Log] = {}
        self.lives = 0
        self.stream: Stream | None = None
        self.gone: list[tuple[str, int]] = []

    def append(self, name: str) -> None:
        if name not in self.logs:
            self.lives += 1
            self.logs[name] = Log(life=self.lives)
            if self.stream is not None and self.stream.covers(name) and all(name != gone for gone, _ in self.gone):
                self.stream.at[name] = 0
        self.logs[name].head += 1

    def delete(self, name: str) -> None:
        log = self.logs.pop(name, None)
        if log is not None and self.stream is not None and name in self.stream.at:
            self.gone.append((name, log.head))

    def open(self, request: WatchRequest) -> WatchResponse | None:
        """The first frame; None where a topic is not there."""
        asked = request.subscription
        named = {name for name in asked.topics if not name.endswith("*")}
        if not request.lenient and not named <= set(self.logs):
            return None
        prefix = next((name[:-1] for name in asked.topics if name.endswith("*")), None)
        self.gone = []
        self.stream = Stream({}, named, prefix)
        for name, log in self.logs.items():
            given = (
                asked.topics[name]
                if name in named
                else asked.topics[f"{prefix}*"]
                if self.stream.covers(name)
                else None
            )
            if given is None:
                continue
            resumed = name not in named and any(other.startswith(prefix or "") for other in asked.cursor)
            start = 0 if resumed else log.head if given.tail else given.from_seq
            self.stream.at[name] = asked.cursor.get(name, start)
        topics = {
            name: TopicPosition(from_seq=at, head_seq=self.logs[name].head) for name, at in self.stream.at.items()
        }
        return WatchResponse(frame=Frame(subscribed=Subscribed(topics=topics), cursor=self.stream.at))

    def next(self, name: str, limit: int) -> WatchResponse | None:
        """The next frame about a topic."""
        stream = self.stream
        assert stream is not None
        frame = Frame()
        for index, (gone, head) in enumerate(self.gone):
            if gone == name:
                del self.gone[index]
                at = stream.at.pop(name)
                frame.topic_deleted.topic, frame.topic_deleted.head_seq = name, head
                if name in self.logs and stream.covers(name):
                    frame.cursor[name] = stream.at[name] = 0
                elif name in stream.named:
                    frame.cursor[name] = at
                return WatchResponse(frame=frame)
        if name not in stream.at:
            return None
        log = self.logs[name]
        lost, seqs, cursor = log.page(stream.at[name], 1 << 60 if limit == 0 else limit, log.head)
        if lost is not None:
            frame.tombstone.topic = name
            frame.tombstone.tombstone.CopyFrom(lost)
            cursor = lost.gap_to if lost.reason == record_pb2.GAP_REASON_CAP else log.earliest - 1
        elif seqs:
            frame.records.topic = name
            for seq in seqs:
                frame.records.records.add(seq=seq, data=str(log.life).encode(), kind=record_pb2.RECORD_KIND_JSON)
        elif cursor == stream.at[name]:
            frame.caught_up.topic, frame.caught_up.head_seq = name, cursor
        stream.at[name] = frame.cursor[name] = cursor
        return WatchResponse(frame=frame)


NAMES = ["p.a", "p.b", "q", "r"]


@settings(max_examples=250, deadline=None)
@given(data=st.data())
def test_a_watch_that_breaks_anywhere_hands_out_all_once(data: st.DataObject) -> None:
    draw = data.draw
    server = Server()
    for name in NAMES:
        for _ in range(draw(st.integers(0, 5))):
            server.append(name)
    events, tail = draw(st.booleans()), draw(st.booleans())
    topics: dict[str, Any] = {name: 0 for name in NAMES if name in server.logs and draw(st.booleans())}
    if draw(st.booleans()) or not topics:
        topics["p.*"] = "tail" if tail else 0
    subscription = WatchSubscription()
    subscribe(subscription, topics)
    watching = Watching(WatchRequest(subscription=subscription), events=events)
    # What a reader that makes no mistakes knows: the life of each topic that it follows, and the last seq of it.
    following: dict[str, tuple[int, int]] = {}
    left: set[str] = set()
    began = False

    def expect_gone(name: str) -> None:
        known = following.pop(name, None)
        log = server.logs.get(name)
        assert log is None or known is None or log.life != known[0], f"{name} is there, and was told as gone"
        if not (name.startswith("p.") and "p.*" in topics):
            left.add(name)

    def told(item: Any) -> None:
        if isinstance(item, CaughtUp):
            return
        assert item.topic not in left
        if isinstance(item, TopicDeleted):
            expect_gone(item.topic)
        elif isinstance(item, Gap):
            life, cursor = following.setdefault(item.topic, (server.logs[item.topic].life, 0))
            if item.reason == "recreated":
                following[item.topic] = (server.logs[item.topic].life, item.earliest_seq - 1)
            else:
                assert item.first_seq == cursor + 1
                following[item.topic] = (life, item.last_seq)
        elif isinstance(item, Record):
            life, cursor = following.setdefault(item.topic, (item.value, 0))
            assert (item.value, item.seq) == (life, cursor + 1)
            following[item.topic] = (life, item.seq)

    for _ in range(draw(st.integers(1, 6))):
        if watching.done:
            break
        first = server.open(watching.request())
        if first is None:
            assert not began, "it asks for a topic that went, and does not stand it"
            return
        frames = [first]
        for _ in range(draw(st.integers(0, 12))):
            response = frames.pop()
            items = watching.take(response)
            stop = draw(st.integers(1, len(items))) if items and draw(st.integers(0, 4)) == 0 else None
            broken = False
            for index, item in enumerate(items, 1):
                broken = not events and isinstance(item, Gap | TopicDeleted)
                with pytest.raises((GapError, NotFoundError)) if broken else nullcontext():
                    watching.at(item)
                assert not isinstance(item, Advice)
                told(item)
                if item.topic in following:
                    assert watching.cursor.get(item.topic, 0) == following[item.topic][1]
                else:
                    assert item.topic not in watching.cursor
                if index == stop:
                    broken = True
                if broken:
                    break
            if broken:
                break
            watching.passed(response)
            if not began:
                began = True
                for name, position in first.frame.subscribed.topics.items():
                    following[name] = (server.logs[name].life, position.from_seq)
            for name, (_, cursor) in following.items():
                assert watching.cursor.get(name, 0) == cursor, name
            while not frames and draw(st.integers(0, 5)):
                name = draw(st.sampled_from(NAMES))
                change = draw(st.sampled_from(["append", "append", "delete", "expire", "read", "read", "read"]))
                if change == "append":
                    server.append(name)
                elif change == "delete":
                    server.delete(name)
                elif change == "expire" and name in server.logs:
                    log = server.logs[name]
                    log.earliest = max(log.earliest, draw(st.integers(1, log.head + 1)))
                else:
                    response = server.next(name, draw(st.integers(0, 3)))  # type: ignore[assignment]
                    frames += [response] if response is not None else []
            if not frames:
                break
        server.stream = None
        for name in NAMES:
            change = draw(st.sampled_from(["none", "append", "delete"]))
            if change == "append":
                server.append(name)
            elif change == "delete" and name in server.logs:
                server.delete(name)
        server.gone = []
        for name, (life, cursor) in following.items():
            now = server.logs.get(name)
            if now is not None and now.life != life and now.head >= cursor:
                del server.logs[name]  # recreated with as many records: indistinguishable by seq
    assert not [name for name in watching.cursor if name in left]


# ------------------------------------------------------------------ single decisions


def _watching(*topics: str, events: bool = False) -> Watching:
    subscription = WatchSubscription()
    subscribe(subscription, topics)
    return Watching(WatchRequest(subscription=subscription), events=events)


def _error(reason: Any, *, terminal: bool = False, retry: int | None = None) -> WatchResponse:
    said = StreamError(reason=reason, message="text", topics=["a"], retry_after_ms=retry, terminal=terminal)
    return WatchResponse(frame=Frame(error=said))


def test_what_the_server_says_of_a_stream() -> None:
    with_events, without = _watching("a", events=True), _watching("a")
    paced, refused = _error(ERROR_REASON_THROTTLED, retry=5), _error(ERROR_REASON_THROTTLED)
    failed = _error(ERROR_REASON_INTERNAL)
    (advice,) = with_events.take(paced)
    assert advice == Advice("throttled", "text", ("a",), 5)
    for watching in (with_events, without):
        watching.at(watching.take(paced)[0])  # pacing loses nothing
        assert watching.take(_error(ERROR_REASON_SHUTTING_DOWN, terminal=True)) == []  # the status says it
    for response, reason in ((refused, "throttled"), (failed, "internal")):
        with_events.at(with_events.take(response)[0])
        with pytest.raises(TopicsError) as raised:
            without.at(without.take(response)[0])
        assert (raised.value.reason, raised.value.detail) == (reason, {"topics": "a"})


def test_frames_of_a_kind_from_the_future_move_the_cursor() -> None:
    watching = _watching("a")
    response = WatchResponse(frame=Frame(cursor={"a": 7}))
    assert watching.take(response) == []
    watching.passed(response)
    assert watching.cursor == {"a": 7}
    assert dict(watching.request().subscription.cursor) == {"a": 7}
