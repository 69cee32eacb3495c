"""The bytes of one connection: frames in, within the memory budget; responses out, as fast as the client reads."""

import asyncio
import socket
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from topics_kafka.session import Session
from topics_net.loop_budget import SLICE_SECONDS
from topics_net.send_timeout import undrained
from topics_service.api.budget import Share

if TYPE_CHECKING:
    from topics_kafka.listener import KafkaServer

MIN_FRAME_BYTES: Final = 8
MAX_FRAME_BYTES: Final = 100 << 20
MAX_UNAUTHENTICATED_FRAME_BYTES: Final = 512 << 10
"""Limit before authentication."""

_FIRST_BYTES: Final = 16 << 10
_GROWTH: Final = 8
_MIN_BYTES_PER_SECOND: Final = 128 << 10
_CRAWLED_SECONDS: Final = 5
_JOIN_BYTES: Final = 64 << 10
_WRITE_BUFFER_BYTES: Final = 256 << 10
_UNACKNOWLEDGED_MS: Final = 60_000
_HTTP: Final = (b"GET ", b"POST", b"HEAD", b"PUT ", b"DELE", b"OPTI", b"PATC", b"PRI ", b"CONN", b"TRAC")

Buffer = bytes | bytearray | memoryview


class Connection(asyncio.BufferedProtocol):
    """Splits the incoming bytes into frames for `frames`, and sends responses.

    While `frames` accepts no more, at most 64 KiB are read ahead. Memory for a frame is taken from the budget as its
    bytes arrive: announcing a large frame costs nothing. While the budget is exhausted, reading is paused.
    The listener calls `expire` after `deadline`, a time of the loop's clock; 0 means never.
    """

    def __init__(self, listening: "KafkaServer", frames: Callable[["Connection"], Session]) -> None:
        self._listening = listening
        self._make_frames = frames
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self._frames: Session
        self.peer = ""
        self.deadline = 0.0
        self.write_paused = False
        self._opened_at = 0.0
        self._unread: bytes = b""  # received, not yet fed as a frame
        self._body: bytearray | None = None  # the frame being received: as much of it as memory was granted for
        self._length = 0  # of the frame being received
        self._got = 0
        self._taken = 0  # bytes taken from the budget for it
        self._asked = 0  # bytes requested from the exhausted budget
        self._credit = 0  # bytes granted since then
        self._yielding = False
        self._paused = False
        self._seen = 0  # bytes of the frame received a second ago
        self._crawled = 0  # seconds below the minimum rate
        self._unsent = 0  # bytes of responses waiting for the client

    # -------------------------------------------------------------- lifetime

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        address = transport.get_extra_info("peername")
        self.peer = f"{address[0]}:{address[1]}" if address else "?"
        self._frames = self._make_frames(self)
        if not self._listening.opened(self):
            self.end("limit", "TOPICS_KAFKA_MAX_CONNECTIONS is reached")
            return
        sock: socket.socket = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if sys.platform == "linux":
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MS)
        transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        self._opened_at = self._loop.time()
        self.deadline = self._opened_at + self._listening.first_request_seconds

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.deadline = 0.0
        self._listening.send_timeouts.leave(self)
        self._count_unsent(0)
        self._listening.forget(self)
        self._listening.budget.leave(self)
        self._listening.budget.release(self._taken + self._credit, self.share)
        self._taken = self._credit = 0
        self._body, self._unread = None, b""
        self._frames.lost()

    def end(self, reason: str, message: str, *arguments: object) -> None:
        """Abort the connection; count and log the reason."""
        if self._transport is None:
            return
        self._listening.statistics.closed[reason] += 1
        self._listening.log.warning("closing the connection from %s: " + message, self.peer, *arguments)
        transport, self._transport = self._transport, None
        transport.abort()

    def close(self) -> None:
        """Close after sending everything."""
        if self._transport is not None:
            self.deadline = self._loop.time() + self._listening.first_request_seconds
            self._transport.close()

    def abort(self) -> None:
        """Abort the connection when the server stops."""
        if self._transport is not None:
            self._transport.abort()

    def shutdown(self) -> None:
        """Finish running requests and accept no new ones."""
        self._frames.shutdown()

    def expire(self) -> None:
        """Close the connection: its deadline has passed."""
        self.deadline = 0.0
        if self._body is not None or self._unread or self.write_paused:
            self.end("slow", "a request took too long to arrive")
        else:
            self.end("idle", "idle timeout")

    def check_rate(self) -> None:
        """Close the connection if it sends too slowly. Called once a second while frame memory is short."""
        if self._body is None or self._asked or self._got - self._seen >= _MIN_BYTES_PER_SECOND:
            self._crawled = 0
        else:
            self._crawled += 1
        self._seen = self._got
        if self._crawled >= _CRAWLED_SECONDS:
            self.end("slow", "a request arrives too slowly while frame memory is short")

    @property
    def share(self) -> Share | None:
        """See MemoryBudget."""
        return self._frames.share

    # --------------------------------------------------------------- reading

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._body is None:
            return self._listening.scratch  # shared by all connections: its content is consumed before the next read
        return memoryview(self._body)[self._got :]

    def buffer_updated(self, nbytes: int) -> None:
        self._listening.statistics.bytes_in += nbytes
        if self._transport is None:
            return
        if self._body is not None:
            self._got += nbytes
            if self._got == len(self._body):
                self._filled()
        elif self._unread or not self._frames.room():
            self._unread += bytes(self._listening.scratch[:nbytes])
            self.proceed()
        else:
            self._cut(self._listening.scratch[:nbytes])

    def proceed(self) -> None:
        """Feed received bytes as long as `frames` accepts frames."""
        if self._transport is None or self._asked or self._yielding or self._body is not None:
            return
        self._cut(self._unread)

    def granted(self) -> None:
        """Called when the budget grants the requested bytes."""
        self._credit, self._asked = self._asked, 0
        if self._transport is None:
            return
        if self._body is not None:
            self.deadline = self._arrival_deadline(self._length - self._got)
            self._filled()
        else:
            self._cut(self._unread)

    def _cut(self, data: bytes | memoryview) -> None:
        """Feed the complete frames in `data`, start to receive an incomplete one, and keep the rest for later."""
        position, end = 0, len(data)
        self._unread = b""
        slice_ends = self._loop.time() + SLICE_SECONDS
        while end - position >= 4 and self._frames.room():
            if not self._listening.loop_budget.has_time():
                self._yield()
                break
            length = int.from_bytes(data[position : position + 4], "big")
            if not self._is_length(length, data[position : position + 4]):
                return
            have = end - position - 4
            size = length if have >= length else min(length, max(have, _FIRST_BYTES))
            if not self._take(size):
                break
            start = position + 4
            if have < length:
                self._begin(length, size, data[start:])
                position = end
                break
            position = start + length
            self._listening.budget.complete(self)
            self.deadline = 0.0
            self._frames.feed(bytes(data[start:position]), length)
            if self._transport is None:
                return
            if end - position >= 4 and self._loop.time() > slice_ends:
                self._yield()
                break
        self._unread = bytes(data[position:])
        if self._unread and not self.deadline and self._frames.room() and not self._asked and not self._yielding:
            self.deadline = self._loop.time() + self._listening.first_request_seconds
        self.regulate()

    def _yield(self) -> None:
        self._yielding = True
        self.deadline = 0.0
        self._listening.loop_budget.enqueue(self._after_wait)

    def _after_wait(self) -> None:
        self._yielding = False
        if self._transport is None or self._transport.is_closing():
            return
        if self._body is not None:
            self._filled()
        else:
            self.proceed()

    def _begin(self, length: int, size: int, data: bytes | memoryview) -> None:
        self._body = bytearray(size)
        self._body[: len(data)] = data
        self._length, self._got = length, len(data)
        self._seen = self._crawled = 0
        self._taken = size
        self.deadline = self._arrival_deadline(length)
        if self._got == size:
            self._filled()

    def _filled(self) -> None:
        """The buffer is full: get memory for more of the frame, or feed the complete frame."""
        body = self._body
        assert body is not None, "a frame is being received"
        if len(body) < self._length:
            size = min(self._length, len(body) * _GROWTH)
            if self._take(size - len(body)):
                self._body = bytearray(size)
                self._body[: len(body)] = body
                self._taken = size
            self.regulate()
            return
        if not self._listening.loop_budget.has_time():
            self._yield()
            self.regulate()
            return
        self.deadline = 0.0
        self._body, taken, self._taken = None, self._taken, 0
        self._listening.budget.complete(self)
        self._frames.feed(body, taken)
        self.regulate()

    def _take(self, size: int) -> bool:
        if self._credit:  # more may have arrived since the request
            self._listening.budget.adjust(size - self._credit, self.share)
            self._credit = 0
            return True
        if self._listening.budget.take(self, size):
            return True
        self._asked = size
        self.deadline = 0.0
        return False

    def _arrival_deadline(self, length: int) -> float:
        """The time by which `length` more bytes must have arrived."""
        return self._loop.time() + self._listening.first_request_seconds + length / _MIN_BYTES_PER_SECOND

    def regulate(self) -> None:
        """Pause or resume reading. While reading is paused, a disconnect goes unnoticed."""
        if self._transport is None:
            return
        frames = self._frames
        pause = bool(self._asked) or self._yielding or frames.is_writing or (bool(self._unread) and not frames.room())
        if pause and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        elif not pause and self._paused:
            self._paused = False
            self._transport.resume_reading()

    def idle(self) -> None:
        """Start the idle timeout: no request is running or being received."""
        if self._body is None and not self._unread:
            if self._frames.authenticated:
                self.deadline = self._loop.time() + self._listening.idle_seconds
            else:
                self.deadline = self._opened_at + self._listening.first_request_seconds

    def _is_length(self, length: int, head: bytes | memoryview) -> bool:
        limit = MAX_FRAME_BYTES if self._frames.authenticated else MAX_UNAUTHENTICATED_FRAME_BYTES
        if MIN_FRAME_BYTES <= length <= limit:
            return True
        first = bytes(head)
        if first in _HTTP:
            self.end("http", "HTTP request on the Kafka port")
        elif first[:2] == b"\x16\x03":
            self.end("tls", "TLS handshake on a Kafka port without TLS")
        else:
            self.end("length", "invalid frame length %d", length)
        return False

    # --------------------------------------------------------------- writing

    def send(self, parts: Sequence[Buffer]) -> None:
        """Send one response, prefixed with its length."""
        if self._transport is None:
            return
        size = sum(map(len, parts))
        self._listening.statistics.bytes_out += size + 4
        whole = [size.to_bytes(4, "big"), *parts]
        if size <= _JOIN_BYTES:
            self._transport.write(b"".join(whole))
        else:
            self._transport.writelines(whole)

    def pause_writing(self) -> None:
        if self._transport is None:
            return
        self.write_paused = True
        self._listening.send_timeouts.enter(self)
        self._count_unsent(self._transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self.write_paused = False
        self._listening.send_timeouts.leave(self)
        self._count_unsent(0)
        self._frames.writable()

    def _count_unsent(self, size: int) -> None:
        self._listening.unsent += size - self._unsent
        self._unsent = size

    def undrained(self) -> object:
        """Bytes that are still to be sent."""
        return None if self._transport is None else undrained(self._transport)

    def give_up(self) -> None:
        """Close the connection: the client reads nothing of its response."""
        self.end("slow", "send timeout: the client stopped reading")
