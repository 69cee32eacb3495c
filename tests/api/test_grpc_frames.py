"""Frames as bytes: what is spliced from shared runs is what the messages would be."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topics_proto.v1 import record_pb2, stream_pb2
from topics_proto.v1 import watch_service_pb2 as pb
from topics_service.api.grpc.frames import FrameWriter, error_message
from topics_service.api.grpc.record_runs import Parts, RunCache
from topics_service.api.grpc.records import add_records
from topics_service.engine.errors import Reason
from topics_service.engine.limits import Limits
from topics_service.engine.model import GapReason, Slice, Tombstone
from topics_service.engine.watch.frames import (
    CaughtUpFrame,
    ErrorFrame,
    HeartbeatFrame,
    Position,
    RecordsFrame,
    TombstoneFrame,
    TopicDeletedFrame,
    WatchRequest,
    WatchTopic,
)
from topics_service.storage.block import Block, build, merge

BYTES = st.one_of(st.binary(max_size=200), st.integers(0, 70_000).map(bytes))
TEXTS = st.none() | st.text(max_size=5).map(str.encode)


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    """A block of one or two appends."""
    base, appended = draw(st.sampled_from((1, 120, 1 << 40))), []
    for ts in draw(st.lists(st.integers(0, 1 << 41), min_size=1, max_size=2, unique=True).map(sorted)):
        count = draw(st.integers(1, 6))
        column = st.none() | st.lists(TEXTS, min_size=count, max_size=count)
        datas = draw(st.lists(BYTES, min_size=count, max_size=count))
        kinds = draw(
            st.none() | st.binary(min_size=count, max_size=count).map(lambda kinds: bytes(k & 1 for k in kinds))
        )
        appended.append(build(7, base, ts, datas, draw(column), draw(column), draw(column), kinds, 0))
        base += count
    return merge(appended) if len(appended) > 1 else appended[0]


@st.composite
def slices(draw: st.DrawFn) -> list[Slice]:
    found = []
    for block in draw(st.lists(blocks(), min_size=1, max_size=3)):
        start = draw(st.integers(0, block.count - 1))
        found.append(Slice(block, start, draw(st.integers(start + 1, block.count))))
    return found


def built(pieces: list[Slice], parts: Parts) -> stream_pb2.RecordBatch:
    batch = stream_pb2.RecordBatch()
    add_records(batch, pieces, include_tags=parts.tags, include_meta=parts.metas, include_data=parts.datas)
    return batch


@settings(deadline=None, derandomize=True, max_examples=100)
@given(pieces=slices(), parts=st.builds(Parts, st.booleans(), st.booleans(), st.booleans()), cached=st.booleans())
def test_runs_are_the_records_of_a_batch(pieces: list[Slice], parts: Parts, cached: bool) -> None:
    for piece in pieces:
        runs = RunCache(1 << 20)
        if cached:
            runs.records([Slice(piece.block, 0, piece.block.count)], parts)
        spliced = b"".join(runs.records([piece], parts))
        assert stream_pb2.RecordBatch.FromString(spliced) == built([piece], parts)
        assert spliced == built([piece], parts).SerializeToString()


def test_a_block_is_serialized_once_and_the_cache_is_bounded() -> None:
    made = [build(1, 1 + 100 * i, 5, [b"x" * 100] * 100, None, None, None, None, 0) for i in range(20)]
    plain = Parts(tags=False, metas=True)
    runs = RunCache(200_000)
    for _ in range(3):
        runs.records([Slice(made[0], 0, 100)], plain)
        runs.records([Slice(made[0], 90, 100)], plain)
    assert (runs.statistics.hits, runs.statistics.misses) == (5, 1)
    runs.records([Slice(made[1], 0, 10)], plain)
    assert runs.statistics.misses == 2, "a small part is made alone, and not kept"
    runs.records([Slice(made[1], 0, 10)], plain)
    assert runs.statistics.misses == 3
    for block in made:
        runs.records([Slice(block, 0, 100)], plain)
        assert 0 < runs.size <= 200_000
    runs.records([Slice(made[0], 0, 100)], plain)
    assert runs.statistics.misses == 3 + 19 + 1, "the least recently used has left"
    huge = build(2, 1, 5, [b"x" * 50_000], None, None, None, None, 0)
    size = runs.size
    runs.records([Slice(huge, 0, 1)], plain)
    assert runs.size == size, "one block does not push out all others"


# ------------------------------------------------------------------- messages


class FakeStream:
    """Stands for a WatchStream whose cursors a test moves."""

    def __init__(self, *topics: str, **cursors: int) -> None:
        self.request = WatchRequest(topics=dict.fromkeys(topics, WatchTopic()))
        self.cursors = cursors
        self.positions = {t: Position(from_seq=at, head_seq=9, earliest_seq=1) for t, at in cursors.items()}

    resume_cursors = property(lambda self: self.cursors)


def writer(stream: FakeStream, **limits: int) -> FrameWriter:
    return FrameWriter(RunCache(1 << 20), Limits(**limits), stream)  # type: ignore[arg-type]


def parsed(message: bytes) -> stream_pb2.Frame:
    assert pb.OpenWatchResponse.FromString(message).frame == pb.WatchResponse.FromString(message).frame
    return pb.WatchResponse.FromString(message).frame


def told(writer: FrameWriter, frame: Any) -> list[stream_pb2.Frame]:
    return [parsed(message) for message in writer.messages(frame)]


def records_frame(topic: str, pieces: list[Slice], to_seq: int = 0) -> RecordsFrame:
    first = pieces[0].block.base_seq + pieces[0].start
    last = pieces[-1].block.base_seq + pieces[-1].stop - 1
    return RecordsFrame(topic=topic, slices=pieces, from_seq=first - 1, to_seq=to_seq or last, head_seq=to_seq or last)


def test_the_cursor_is_what_has_moved() -> None:
    stream = FakeStream("a", "é", a=0, é=1 << 63)
    frames = writer(stream)
    first = parsed(frames.subscribed())
    assert first.cursor == {"a": 0, "é": 1 << 63}
    assert first.subscribed.topics["é"] == stream_pb2.TopicPosition(from_seq=1 << 63, head_seq=9, earliest_seq=1)
    stream.cursors["a"] = 130
    (frame,) = told(frames, records_frame("a", [Slice(build(1, 130, 1, [b"1"], None, None, None, None, 0), 0, 1)]))
    assert (frame.records.topic, frame.records.from_seq, frame.records.to_seq) == ("a", 129, 130)
    assert frame.cursor == {"a": 130}
    (frame,) = told(frames, CaughtUpFrame(topic="a", head_seq=130))
    assert (frame.caught_up.head_seq, dict(frame.cursor)) == (130, {})
    stream.cursors["é"] += 1
    (frame,) = told(frames, HeartbeatFrame(ts=5))
    assert (frame.heartbeat.ts_ms, dict(frame.cursor)) == (5, {"é": (1 << 63) + 1})


def test_a_deleted_topic_leaves_the_cursor_unless_it_was_named() -> None:
    stream = FakeStream("a", "t*", a=1, t1=2, t2=0)
    frames = writer(stream)
    frames.subscribed()
    gone = {topic: TopicDeletedFrame(topic=topic, head_seq=7) for topic in ("a", "t1", "t2")}
    (frame,) = told(frames, gone["a"])
    assert (frame.topic_deleted.reason, dict(frame.cursor)) == ("deleted", {"a": 1})
    (frame,) = told(frames, gone["t1"])
    assert frame.cursor == {}
    stream.cursors["t1"] = 0
    (frame,) = told(frames, CaughtUpFrame(topic="t1", head_seq=0))
    assert frame.cursor == {"t1": 0}, "it was made again"
    stream.cursors["t2"] = 5
    (frame,) = told(frames, gone["t2"])
    assert frame.cursor == {"t2": 5}, "it was made again already"


def test_a_large_frame_is_several_messages() -> None:
    block = build(1, 1, 1, [b"x" * 400_000] * 9, None, None, None, None, 0)
    large = build(1, 10, 1, [b"x" * (5 << 20)], None, None, None, None, 0)
    stream = FakeStream("a", "b", a=12, b=3)
    frames = writer(stream)
    pieces = [Slice(block, 0, 9), Slice(large, 0, 1)]
    found = told(frames, records_frame("a", pieces, to_seq=12))
    assert [[r.seq for r in f.records.records] for f in found] == [[1, 2, 3, 4, 5, 6, 7], [8, 9], [10]]
    assert [(f.records.from_seq, f.records.to_seq) for f in found] == [(0, 7), (7, 9), (9, 12)]
    assert [dict(f.cursor) for f in found] == [{"a": 7}, {"a": 9}, {"a": 12, "b": 3}]
    assert all(f.ByteSize() < 4 << 20 for f in found[:2])


def test_records_of_nothing_but_parts_are_bounded_too() -> None:
    block = build(1, 1, 1, [b""] * 1000, None, [b"n" * 8000] * 1000, None, None, 0)
    found = told(writer(FakeStream("a", a=1000), max_node_bytes=8000), records_frame("a", [Slice(block, 0, 1000)]))
    assert sum(len(f.records.records) for f in found) == 1000
    assert all(f.ByteSize() < 4 << 20 for f in found)


@pytest.mark.parametrize(
    ("reason", "opening", "shown"),
    [("cap", True, 6), ("ttl", True, 6), ("mixed", True, 6), ("cap", False, 1), ("recreated", True, 4),
     ("source_trim", True, 5)],
)  # fmt: skip
def test_a_stale_cursor_is_told_as_such(reason: GapReason, opening: bool, shown: int) -> None:
    lost = Tombstone(gap_from=1, gap_to=2, reason=reason, missed_estimate=2, earliest_seq=3, head_seq=4)
    (frame,) = told(writer(FakeStream("a", a=2)), TombstoneFrame(topic="a", tombstone=lost, opening=opening))
    assert frame.tombstone.topic == "a"
    assert frame.tombstone.tombstone == record_pb2.Tombstone(
        gap_from=1, gap_to=2, reason=shown, missed_estimate=2, earliest_seq=3, head_seq=4
    )


def test_errors() -> None:
    advice = ErrorFrame(
        reason=Reason.THROTTLED, code=429, message="slow", retry_after_ms=5, topics=("a",), terminal=False
    )
    assert error_message(advice) == stream_pb2.StreamError(
        reason=18, code=429, message="slow", retry_after_ms=5, topics=["a"]
    )
    drain = error_message(ErrorFrame(reason=Reason.SHUTTING_DOWN, code=503, message="bye"))
    assert (drain.reason, drain.terminal, drain.HasField("retry_after_ms")) == (24, True, False)
