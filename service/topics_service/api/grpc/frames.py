"""The frames of a watch as serialized messages: WatchResponse and OpenWatchResponse, which are alike (stream.proto)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from topics_proto.v1 import errors_pb2, record_pb2, stream_pb2
from topics_service.api.grpc.convert import tombstone_message
from topics_service.api.grpc.record_runs import Parts, RunCache
from topics_service.api.watch_stream import SessionStream
from topics_service.engine.errors import Reason
from topics_service.engine.limits import Limits
from topics_service.engine.model import Slice
from topics_service.engine.watch.frames import (
    CaughtUpFrame,
    ErrorFrame,
    Frame,
    HeartbeatFrame,
    Position,
    RecordsFrame,
    TombstoneFrame,
    TopicDeletedFrame,
)

# Clients take messages of 4 MiB by default: this limits data and meta of a message, and the other parts of its records.
_DATA_BYTES: Final = 3 << 20
_REST_BYTES: Final = 3 << 18
_RECORD_BYTES: Final = 48  # seq, time, kind, and the lengths of everything


class FrameWriter:
    """Writes the messages of one stream.

    The cursor of a message holds only positions that have moved since the one before. A frame that is too large for one
    message becomes several, each with its own part of the way.
    """

    def __init__(self, runs: RunCache, limits: Limits, stream: SessionStream) -> None:
        """`runs` is shared by all streams."""
        request = stream.request
        self._runs = runs
        self._stream = stream
        self._named = request.topics
        self._parts = Parts(request.include_tags, request.include_metas, request.include_data)
        max_record_bytes = _RECORD_BYTES + limits.max_node_bytes + (limits.max_tag_bytes if request.include_tags else 0)
        self._max_records = max(1, _REST_BYTES // max_record_bytes)
        self._sent: dict[str, int] = {}

    def subscribed(self) -> bytes:
        """The first message: where every topic stands."""
        topics = {name: position_message(position) for name, position in self._stream.positions.items()}
        return _message(_body(stream_pb2.Frame(subscribed=stream_pb2.Subscribed(topics=topics))), self._moved())

    def messages(self, frame: Frame) -> Iterator[bytes]:
        """The messages of the frame that the stream gave last."""
        if isinstance(frame, RecordsFrame):
            moved = self._moved()
            *first, last = _batches(frame.slices, self._max_records)
            from_seq = frame.from_seq
            for slices in first:
                to_seq = slices[-1].block.base_seq + slices[-1].stop - 1
                yield _message(self._records(frame, slices, from_seq, to_seq), {frame.topic_partition: to_seq})
                from_seq = to_seq
            yield _message(self._records(frame, last, from_seq, frame.to_seq), moved)
        elif isinstance(frame, TopicDeletedFrame):
            yield _message(_body(_rare(frame)), self._departed(frame.topic_partition))
        else:
            yield _message(_body(_rare(frame)), self._moved())

    def _moved(self) -> dict[str, int]:
        sent = self._sent
        moved = {topic: seq for topic, seq in self._stream.resume_cursors.items() if sent.get(topic) != seq}
        sent.update(moved)
        return moved

    def _departed(self, topic: str) -> dict[str, int]:
        """Return the moved cursors after a topic left the client's map; one subscribed by name is added again.

        One that came through a pattern is left out, unless it was recreated and so has another position already.
        """
        stood = self._sent.pop(topic, None)
        moved = self._moved()
        if topic not in self._named and topic in moved and moved[topic] == stood:
            del moved[topic], self._sent[topic]
        return moved

    def _records(
        self, frame: RecordsFrame, slices: Sequence[Slice], from_seq: int, to_seq: int
    ) -> list[bytes | memoryview]:
        """A Frame's `records`, as pieces."""
        topic = frame.topic.encode()
        runs = self._runs.records(slices, self._parts)
        head = b"\x0a%b%b" % (_varint(len(topic)), topic)
        tail = b"\x18%b\x20%b\x28%b" % (_varint(from_seq), _varint(to_seq), _varint(frame.head_seq))
        if frame.partition:
            tail += b"\x30" + _varint(frame.partition)
        size = len(head) + sum(map(len, runs)) + len(tail)
        return [b"\x12%b%b" % (_varint(size), head), *runs, tail]


def position_message(position: Position) -> stream_pb2.TopicPosition:
    """Convert the position of a topic."""
    return stream_pb2.TopicPosition(
        from_seq=position.from_seq, head_seq=position.head_seq, earliest_seq=position.earliest_seq
    )


def error_message(frame: ErrorFrame) -> stream_pb2.StreamError:
    """A problem of a stream. A drain has a separate reason here, so that clients don't take it for a refused call."""
    name = "SERVER_SHUTTING_DOWN" if frame.reason is Reason.SHUTTING_DOWN else frame.reason.name
    return stream_pb2.StreamError(
        reason=errors_pb2.ErrorReason.Value(f"ERROR_REASON_{name}"),
        code=frame.code,
        message=frame.message,
        retry_after_ms=frame.retry_after_ms,
        topics=frame.topics,
        terminal=frame.terminal,
    )


def _rare(
    frame: TombstoneFrame | CaughtUpFrame | TopicDeletedFrame | HeartbeatFrame | ErrorFrame,
) -> stream_pb2.Frame:
    match frame:
        case TombstoneFrame():
            tombstone = tombstone_message(frame.tombstone)
            if frame.too_old:
                tombstone.reason = record_pb2.GAP_REASON_FROM_SEQ_TOO_OLD
            lost = stream_pb2.TopicTombstone(topic=frame.topic, tombstone=tombstone, partition=frame.partition or 0)
            return stream_pb2.Frame(tombstone=lost)
        case CaughtUpFrame():
            drained = stream_pb2.CaughtUp(topic=frame.topic, head_seq=frame.head_seq, partition=frame.partition or 0)
            return stream_pb2.Frame(caught_up=drained)
        case TopicDeletedFrame():
            deleted = stream_pb2.TopicDeleted(
                topic=frame.topic, head_seq=frame.head_seq, reason=frame.reason, partition=frame.partition or 0
            )
            return stream_pb2.Frame(topic_deleted=deleted)
        case HeartbeatFrame():
            return stream_pb2.Frame(heartbeat=stream_pb2.Heartbeat(ts_ms=frame.ts))
        case ErrorFrame():
            return stream_pb2.Frame(error=error_message(frame))


def _batches(slices: Sequence[Slice], max_records: int) -> list[list[Slice]]:
    """The slices in as many parts as it takes messages to carry them; a record that is too large has one alone."""
    parts: list[list[Slice]] = [[]]
    room, left = _DATA_BYTES, max_records
    for piece in slices:
        block, start = piece.block, piece.start
        while start < piece.stop:
            stop = min(piece.stop, block.fit(start, room), start + left)
            if stop == start and not parts[-1]:
                stop = start + 1
            if stop > start:
                parts[-1].append(Slice(block, start, stop))
                room -= block.sizes_upto(stop) - block.sizes_upto(start)
                left -= stop - start
                start = stop
            if start < piece.stop:
                parts.append([])
                room, left = _DATA_BYTES, max_records
    return parts


# ------------------------------------------------------------------------ the wire, where it is not left to protobuf


def _body(frame: stream_pb2.Frame) -> list[bytes | memoryview]:
    return [frame.SerializeToString()]


def _message(body: Iterable[bytes | memoryview], cursor: Mapping[str, int]) -> bytes:
    """A response with one field `frame`, of these pieces and a cursor."""
    pieces = list(body)
    for topic, seq in cursor.items():
        name = topic.encode()
        entry = b"\x0a%b%b\x10%b" % (_varint(len(name)), name, _varint(seq))
        pieces.append(b"\x4a%b%b" % (_varint(len(entry)), entry))
    return b"".join((b"\x0a", _varint(sum(map(len, pieces))), *pieces))


def _varint(number: int) -> bytes:
    if number < 0x80:
        return _SMALL[number]
    digits = bytearray()
    while number >= 0x80:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    digits.append(number)
    return bytes(digits)


_SMALL: Final = [bytes((number,)) for number in range(0x80)]
