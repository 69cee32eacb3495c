"""The frames of a watch as server-sent events (docs/contract.md, 8.4)."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from re import compile as pattern
from typing import Any, Final

import msgspec

from topics_gateway.frame_cache import FrameCache, partition_member, partition_text
from topics_gateway.json_fields import parse_object
from topics_gateway.render import Parts, RenderCache
from topics_gateway.response import encode
from topics_gateway.sse import error, event, heartbeat
from topics_service.api.watch_journal import MAX_IN_ID
from topics_service.api.watch_stream import INSTANCE, SessionStream
from topics_service.engine.config import U64_MAX
from topics_service.engine.errors import TopicsError
from topics_service.engine.watch.frames import (
    CaughtUpFrame,
    ErrorFrame,
    Frame,
    HeartbeatFrame,
    RecordsFrame,
    TombstoneFrame,
    TopicDeletedFrame,
)

_BASE64URL: Final = pattern(rb"[A-Za-z0-9_-]+")
_SORTED: Final = msgspec.json.Encoder(order="sorted")
_TOGETHER_BYTES: Final = 16384
_MARKED: Final = pattern(rb'"([^"]+)":\d+([ \t\r\n]+)')
_DIGITS: Final = b" \t\r\n"  # of a number in base 4 that a JSON decoder passes over
_MAX_DIGITS: Final = 32
_MAX_PARTS: Final = 4096


def event_id(stream: SessionStream) -> bytes:
    """The id of an event: the stream's cursors, or beyond 64 topics a token for them in the session."""
    return cursor_id(stream.resume_cursors) if len(stream.cursors) <= MAX_IN_ID else stream.resume_token().encode()


def cursor_id(cursors: Mapping[str, int]) -> bytes:
    """`WatchStream.resume_cursors` as base64url of `{topic: seq}`, sorted by name.

    If the cursors name the instance of a topic, it is encoded as white space behind the seq: a decoded id shows only
    the map.
    """
    instances = [name for name in cursors if name.endswith(INSTANCE)]
    if not instances:
        return urlsafe_b64encode(_SORTED.encode(cursors)).rstrip(b"=")
    topics = sorted(name for name in cursors if not name.endswith(INSTANCE))
    members = (
        b'"%b":%d%b' % (name.encode(), cursors[name], _in_white(cursors.get(name + INSTANCE, 0))) for name in topics
    )
    return urlsafe_b64encode(b"{%b}" % b",".join(members)).rstrip(b"=")


def read_cursor_id(text: bytes) -> dict[str, int] | None:
    """The cursors in an id of ours that is a map; None for anything else. Padding is not ours."""
    if not _BASE64URL.fullmatch(text) or len(text) % 4 == 1:
        return None
    content = urlsafe_b64decode(text + b"=" * (-len(text) % 4))
    try:
        members = parse_object(content, max_parts=_MAX_PARTS).members
    except TopicsError:
        return None
    cursors: dict[str, Any] = dict(members)
    if any(type(seq) is not int or not 0 <= seq <= U64_MAX for seq in cursors.values()):
        return None
    for name, digits in _MARKED.findall(content):
        if (topic := name.decode()) in cursors and len(digits) <= _MAX_DIGITS:
            cursors[topic + INSTANCE] = _from_white(digits)
    return cursors


def _in_white(number: int) -> bytes:
    digits = bytearray()
    while number:
        digits.append(_DIGITS[number & 3])
        number >>= 2
    return bytes(reversed(digits))


def _from_white(digits: bytes) -> int:
    number = 0
    for digit in digits:
        number = number * 4 + _DIGITS.index(digit)
    return number


class EventSource:
    """The events of one stream, as bytes.

    `together` says that the transport takes a few events at once or none: then those that are due at the same time
    come in one piece, for each piece is a system call.
    """

    def __init__(self, stream: SessionStream, encoded: Callable[[Frame], bytes], *, together: bool) -> None:
        self._stream = stream
        self._encoded = encoded
        self._enough = _TOGETHER_BYTES if together else 0

    def __aiter__(self) -> "EventSource":
        return self

    async def __anext__(self) -> bytes:
        """Wait for the next events. The call confirms that the previous ones were handed to the transport."""
        stream = self._stream
        while (frame := stream.poll()) is None:
            if stream.over:
                raise StopAsyncIteration
            await stream.ready()
        events = self._encoded(frame)
        while len(events) < self._enough and (frame := stream.poll(handed_over=False)) is not None:
            events += self._encoded(frame)
        return events


class WatchEvents:
    """Makes events of frames, for all streams: those that are given the same frame share its bytes."""

    def __init__(self, rendered: RenderCache, max_bytes: int = 16 << 20) -> None:
        self.cache = FrameCache(self._make, lambda made: 2 * len(made.data), max_bytes)
        self._rendered = rendered

    def for_stream(self, stream: SessionStream, *, together: bool = True) -> EventSource:
        """The events of a stream, to be asked for in place of its frames."""
        request = stream.request
        parts = Parts(request.include_tags, request.include_metas, request.include_data)

        def encoded(frame: Frame) -> bytes:
            if isinstance(frame, RecordsFrame):
                return self._records(frame, parts, stream)
            if isinstance(frame, CaughtUpFrame):
                return self._caught_up(frame, parts, stream)
            return _rare(frame, stream)

        return EventSource(stream, encoded, together=together)

    def _records(self, frame: RecordsFrame, parts: Parts, stream: SessionStream) -> bytes:
        made = self.cache.get(frame, parts)
        cursors = stream.resume_cursors if len(stream.cursors) == 1 else {}
        if len(cursors) != 1:
            return event(b"record", made.data, event_id(stream))
        at = cursors[frame.topic_partition]
        if made.event_at != at:
            made.event_at, made.event = at, event(b"record", made.data, cursor_id(cursors))
        return made.event

    def _caught_up(self, frame: CaughtUpFrame, parts: Parts, stream: SessionStream) -> bytes:
        cursors = stream.resume_cursors if len(stream.cursors) == 1 else {}
        made = self.cache.last(frame, parts) if len(cursors) == 1 else None
        if made is not None and made.caught_up_at == frame.head_seq:
            return made.caught_up
        data = {"topic": frame.topic, **partition_member(frame), "head_seq": frame.head_seq}
        text = event(b"caught-up", encode(data), event_id(stream))
        if made is not None and cursors[frame.topic_partition] == frame.head_seq:
            made.caught_up_at, made.caught_up = frame.head_seq, text
        return text

    def _make(self, frame: RecordsFrame, parts: Parts) -> "_SharedEvent":
        pieces: list[bytes | memoryview] = [b'{"topic":', encode(frame.topic), partition_text(frame), b',"records":[']
        for i, run in enumerate(self._rendered.records(frame.slices, parts)):
            pieces += (b",", run) if i else (run,)
        pieces.append(b'],"from_seq":%d,"to_seq":%d,"head_seq":%d}' % (frame.from_seq, frame.to_seq, frame.head_seq))
        return _SharedEvent(b"".join(pieces))


class _SharedEvent:
    """The encodings of a frame: its data, and the whole events for watches of this topic alone."""

    __slots__ = ("caught_up", "caught_up_at", "data", "event", "event_at")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.event = self.caught_up = b""
        self.event_at = self.caught_up_at = -1


def _rare(frame: TombstoneFrame | TopicDeletedFrame | HeartbeatFrame | ErrorFrame, stream: SessionStream) -> bytes:
    match frame:
        case TombstoneFrame():
            return event(b"tombstone", encode(_tombstone(frame)), event_id(stream))
        case TopicDeletedFrame():
            data = {
                "topic": frame.topic,
                **partition_member(frame),
                "head_seq": frame.head_seq,
                "reason": frame.reason,
            }
            return event(b"topic-deleted", encode(data), event_id(stream))
        case HeartbeatFrame():
            return heartbeat(frame)
        case ErrorFrame():
            return error(frame)


def _tombstone(frame: TombstoneFrame) -> dict[str, Any]:
    lost = frame.tombstone
    return {
        "topic": frame.topic,
        **partition_member(frame),
        "reason": "from_seq_too_old" if frame.too_old else lost.reason,
        "gap_from": lost.gap_from,
        "gap_to": lost.gap_to,
        "earliest_seq": lost.earliest_seq,
        "head_seq": lost.head_seq,
    }
