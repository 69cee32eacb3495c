"""Server messages on a WebSocket as JSON text (docs/contract.md, 9)."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from topics_gateway.frame_cache import FrameCache, partition_member, partition_text
from topics_gateway.record_endpoints import append_members
from topics_gateway.render import Parts, RenderCache
from topics_gateway.response import encode
from topics_service.engine.errors import TopicsError
from topics_service.engine.model import AppendReply
from topics_service.engine.watch.frames import (
    CaughtUpFrame,
    ErrorFrame,
    Frame,
    Position,
    RecordsFrame,
    TombstoneFrame,
    TopicDeletedFrame,
)

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
    """An `error` with the service's error."""
    return failure(request_id, error.reason.code, error.message)


def subscribed(request_id: bytes, positions: Mapping[str, Position]) -> bytes:
    """The answer to `subscribe`: where each topic stands, in the order given."""
    return _reply(b"subscribed", request_id, {"topics": positions})


def unsubscribed(request_id: bytes, topics: Sequence[str]) -> bytes:
    """The answer to `unsubscribe`: topics that were followed until now."""
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
    """Makes texts of a watch's frames, for all sockets: those that are given the same records share their text."""

    def __init__(self, rendered: RenderCache, max_bytes: int = 16 << 20) -> None:
        self.cache = FrameCache(self._make, len, max_bytes)
        self._rendered = rendered

    def text(self, frame: Frame, parts: Parts) -> bytes:
        """`frame` as JSON; empty for one that is not shown."""
        match frame:
            case RecordsFrame():
                return self.cache.get(frame, parts)
            case CaughtUpFrame():
                name = encode(frame.topic) + partition_text(frame)
                return b'{"op":"caught_up","topic":%b,"head_seq":%d}' % (name, frame.head_seq)
            case TombstoneFrame(topic=topic, tombstone=lost):
                return encode(
                    {
                        "op": "tombstone",
                        "topic": topic,
                        **partition_member(frame),
                        "reason": lost.reason,
                        "gap_from": lost.gap_from,
                        "gap_to": lost.gap_to,
                        "earliest_seq": lost.earliest_seq,
                        "head_seq": lost.head_seq,
                    }
                )
            case TopicDeletedFrame():  # it has no head any more, and the contract shows 0
                ended = {"op": "topic_deleted", "topic": frame.topic, **partition_member(frame)}
                return encode(ended | {"head_seq": 0, "reason": frame.reason})
            case ErrorFrame():
                return encode(_error(frame))
            case _:
                return b""

    def _make(self, frame: RecordsFrame, parts: Parts) -> bytes:
        seqs = frame.from_seq, frame.to_seq, frame.head_seq
        pieces: list[bytes | memoryview] = [
            b'{"op":"record","topic":%b,"from_seq":%d,"to_seq":%d,"head_seq":%d,"records":['
            % (encode(frame.topic) + partition_text(frame), *seqs)
        ]
        for i, run in enumerate(self._rendered.records(frame.slices, parts)):
            pieces += (b",", run) if i else (run,)
        pieces.append(b"]}")
        return b"".join(pieces)


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
