"""What the server says on a WebSocket, as JSON text (SPEC API 7.7; contract.md 9)."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from topics_gateway.record_endpoints import append_members
from topics_gateway.render import Parts, RenderCache
from topics_gateway.reply import encode
from topics_service.engine.errors import TopicsError
from topics_service.engine.frames import (
    CaughtUpFrame,
    ErrorFrame,
    Frame,
    Position,
    RecordsFrame,
    TombstoneFrame,
    TopicDeletedFrame,
)
from topics_service.engine.model import AppendReply, Slice
from topics_service.statistics import CacheStatistics

_MOST_SLICES: Final = 32  # of a frame that is kept; live ones have few
_ENTRY_WEIGHT: Final = 1000  # of a kept text beside its bytes

UNSUPPORTED: Final = encode(
    {"op": "error", "code": "unsupported_message", "message": "commands are text messages, this one was binary"}
)
SHUTTING_DOWN: Final = encode(
    {"op": "error", "request_id": None, "code": "server_shutting_down", "message": "the server is shutting down"}
)


def failure(request_id: bytes, code: str, message: str) -> bytes:
    """An `error` in answer to a command."""
    return _reply(b"error", request_id, {"code": code, "message": message})


def refusal(request_id: bytes, error: TopicsError) -> bytes:
    """An `error` that says what the service said."""
    return failure(request_id, error.reason.code, error.message)


def subscribed(request_id: bytes, positions: Mapping[str, Position]) -> bytes:
    """The answer to `subscribe`: where each topic stands, in the order given."""
    return _reply(b"subscribed", request_id, {"topics": positions})


def unsubscribed(request_id: bytes, topics: Sequence[str]) -> bytes:
    """The answer to `unsubscribe`: what was followed and is not any more."""
    return _reply(b"unsubscribed", request_id, {"topics": topics})


def pong(request_id: bytes) -> bytes:
    """The answer to `ping`."""
    return b'{"op":"pong","request_id":%b}' % request_id


def ack(request_id: bytes, reply: AppendReply, *, seqs: bool, total_ms: float) -> bytes:
    """The answer to `publish`."""
    return _reply(b"ack", request_id, append_members(reply, seqs=seqs, total_ms=total_ms))


def _reply(op: bytes, request_id: bytes, members: dict[str, Any]) -> bytes:
    return b'{"op":"%b","request_id":%b,%b' % (op, request_id, encode(members)[1:])


class SocketFrames:
    """Makes texts of a watch's frames, for all sockets: those that are given the same records share their text.

    Only the last text of a topic is kept for that, and the least recently used ones leave at `max_bytes`.
    """

    def __init__(self, rendered: RenderCache, max_bytes: int = 16 << 20) -> None:
        self.statistics = CacheStatistics()
        self._rendered = rendered
        self._max_bytes = max_bytes
        self._bytes = 0
        self._kept: OrderedDict[tuple[str, Parts], tuple[tuple[object, ...], bytes]] = OrderedDict()

    @property
    def size(self) -> int:
        """What the kept texts weigh."""
        return self._bytes

    def text(self, frame: Frame, parts: Parts) -> bytes:
        """`frame` as JSON; empty for one that is not shown."""
        match frame:
            case RecordsFrame():
                return self._records(frame, parts)
            case CaughtUpFrame():
                return b'{"op":"caught_up","topic":%b,"head_seq":%d}' % (encode(frame.topic), frame.head_seq)
            case TombstoneFrame(topic=topic, tombstone=lost):
                return encode(
                    {
                        "op": "tombstone",
                        "topic": topic,
                        "reason": lost.reason,
                        "gap_from": lost.gap_from,
                        "gap_to": lost.gap_to,
                        "earliest_seq": lost.earliest_seq,
                        "head_seq": lost.head_seq,
                    }
                )
            case TopicDeletedFrame():  # it has no head any more, and the contract shows 0
                return encode({"op": "topic_deleted", "topic": frame.topic, "head_seq": 0, "reason": frame.reason})
            case ErrorFrame():
                return encode(_error(frame))
            case _:
                return b""

    def _records(self, frame: RecordsFrame, parts: Parts) -> bytes:
        if len(frame.slices) > _MOST_SLICES:
            return self._render(frame, parts)
        name = (frame.topic, parts)
        key = (frame.from_seq, frame.to_seq, frame.head_seq, *map(_identity, frame.slices))
        kept = self._kept.get(name)
        if kept is not None and kept[0] == key:
            self.statistics.hits += 1
            return kept[1]
        self.statistics.misses += 1
        text = self._render(frame, parts)
        if kept is not None:
            del self._kept[name]
            self._bytes -= _ENTRY_WEIGHT + len(kept[1])
        if len(text) <= self._max_bytes // 8:
            self._kept[name] = key, text
            self._bytes += _ENTRY_WEIGHT + len(text)
            while self._bytes > self._max_bytes:
                self._bytes -= _ENTRY_WEIGHT + len(self._kept.popitem(last=False)[1][1])
        return text

    def _render(self, frame: RecordsFrame, parts: Parts) -> bytes:
        place = frame.from_seq, frame.to_seq, frame.head_seq
        pieces: list[bytes | memoryview] = [
            b'{"op":"record","topic":%b,"from_seq":%d,"to_seq":%d,"head_seq":%d,"records":['
            % (encode(frame.topic), *place)
        ]
        for i, run in enumerate(self._rendered.records(frame.slices, parts)):
            pieces += (b",", run) if i else (run,)
        pieces.append(b"]}")
        return b"".join(pieces)


def _identity(piece: Slice) -> tuple[int, int, int, int, int]:
    block = piece.block
    return block.log_id, block.base_seq, block.count, piece.start, piece.stop


def _error(frame: ErrorFrame) -> dict[str, Any]:
    members: dict[str, Any] = {
        "op": "error",
        "request_id": None,
        "code": frame.reason.code,
        "message": frame.message,
    }
    if frame.retry_after_ms is not None:
        members["retry_after_ms"] = frame.retry_after_ms
    if frame.topics:
        members["topics"] = frame.topics
    return members
