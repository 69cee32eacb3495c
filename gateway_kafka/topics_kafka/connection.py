"""One connection's bytes: frames in, within the memory budget; responses out, as fast as the client reads."""

import asyncio
import socket
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from topics_kafka.loop_budget import SLICE_SECONDS, LoopBudget
from topics_net.quiet import QuietLog
from topics_net.slow import SlowClients, undrained
from topics_service.api.budget import MemoryBudget, Share
from topics_service.statistics import KafkaStatistics

MIN_FRAME_BYTES: Final = 8
MAX_FRAME_BYTES: Final = 100 << 20
MAX_UNAUTHENTICATED_FRAME_BYTES: Final = 512 << 10
"""Before the client has said who it is."""

_FIRST_BYTES: Final = 16 << 10
_GROWTH: Final = 8
_MIN_BYTES_PER_SECOND: Final = 128 << 10
_CRAWLED_SECONDS: Final = 5
_JOIN_BYTES: Final = 64 << 10
_WRITE_BUFFER_BYTES: Final = 256 << 10
_UNACKNOWLEDGED_MS: Final = 60_000
_HTTP: Final = (b"GET ", b"POST", b"HEAD", b"PUT ", b"DELE", b"OPTI", b"PATC", b"PRI ", b"CONN", b"TRAC")

Buffer = bytes | bytearray | memoryview


class Frames(Protocol):
    """Who takes a connection's frames and answers them."""

    @property
    def authenticated(self) -> bool:
        """Whether the client has said who it is, or need not."""

    @property
    def share(self) -> Share | None:
        """What its key may hold of the budget; None while there is no key."""

    def feed(self, frame: Buffer, taken: int) -> None:
        """Take a frame, which holds `taken` bytes of the budget until they are released. Only while there is room."""

    def room(self) -> bool:
        """Whether it takes another frame now."""

    @property
    def is_writing(self) -> bool:
        """Whether a frame is to be written also if the client leaves behind it."""

    def writable(self) -> None:
        """The client reads again."""

    def shutdown(self) -> None:
        """Finish what runs and close."""

    def lost(self) -> None:
        """The connection is gone."""


class Listening(Protocol):
    """What the connections of one listener share."""

    statistics: KafkaStatistics
    budget: MemoryBudget
    loop_budget: LoopBudget
    unsent: int
    slow: SlowClients
    log: QuietLog
    scratch: memoryview
    idle_seconds: float
    first_request_seconds: float

    def opened(self, connection: "Connection") -> bool:
        """Whether there is room for one more connection."""

    def closed(self, connection: "Connection") -> None:
        """The connection is gone, or was never taken in."""


class Connection(asyncio.BufferedProtocol):
    """Cuts what arrives into frames and feeds them to `frames`; sends what it is given.

    While `frames` takes no more, at most 64 KiB are read ahead. A frame's memory is taken from the budget as its bytes
    arrive, so that to announce a large one costs nothing; while there is none, the client is not read from.
    `deadline`, on the loop's clock, is when the listener should call `expire`; 0 is never.
    """

    def __init__(self, listening: Listening, frames: Callable[["Connection"], Frames]) -> None:
        self._listening = listening
        self._make_frames = frames
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self._frames: Frames
        self.peer = ""
        self.deadline = 0.0
        self.write_paused = False
        self._opened_at = 0.0
        self._unread: bytes = b""  # arrived, not yet a frame that was taken
        self._body: bytearray | None = None  # a frame that is being received, as far as there is memory for it
        self._length = 0  # of that frame
        self._got = 0
        self._taken = 0  # from the budget, for it
        self._asked = 0  # of the budget, which has too little
        self._credit = 0  # granted since
        self._yielding = False
        self._paused = False
        self._seen = 0  # what had arrived of the frame a second ago
        self._crawled = 0  # seconds
        self._unsent = 0  # bytes of a response that the client did not take at once

    # -------------------------------------------------------------- lifetime

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        address = transport.get_extra_info("peername")
        self.peer = f"{address[0]}:{address[1]}" if address else "?"
        self._frames = self._make_frames(self)
        if not self._listening.opened(self):
            self.end("limit", "there are as many connections as TOPICS_KAFKA_MAX_CONNECTIONS allows")
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
        self._listening.slow.leave(self)
        self._count_unsent(0)
        self._listening.closed(self)
        self._listening.budget.leave(self)
        self._listening.budget.release(self._taken + self._credit, self.share)
        self._taken = self._credit = 0
        self._body, self._unread = None, b""
        self._frames.lost()

    def end(self, reason: str, message: str, *arguments: object) -> None:
        """Cut the connection now, count and log why."""
        if self._transport is None:
            return
        self._listening.statistics.closed[reason] += 1
        self._listening.log.warning("closing the connection from %s: " + message, self.peer, *arguments)
        transport, self._transport = self._transport, None
        transport.abort()

    def close(self) -> None:
        """Close once everything is sent."""
        if self._transport is not None:
            self.deadline = self._loop.time() + self._listening.first_request_seconds
            self._transport.close()

    def abort(self) -> None:
        """Cut the connection; for the end of the server."""
        if self._transport is not None:
            self._transport.abort()

    def shutdown(self) -> None:
        """The server stops: finish what runs, take nothing new."""
        self._frames.shutdown()

    def expire(self) -> None:
        """The deadline has passed."""
        self.deadline = 0.0
        if self._body is not None or self._unread or self.write_paused:
            self.end("slow", "a request took too long to arrive")
        else:
            self.end("idle", "there was no request for too long")

    def check_rate(self) -> None:
        """Called once a second while others wait for memory: who holds some and sends next to nothing is cut."""
        if self._body is None or self._asked or self._got - self._seen >= _MIN_BYTES_PER_SECOND:
            self._crawled = 0
        else:
            self._crawled += 1
        self._seen = self._got
        if self._crawled >= _CRAWLED_SECONDS:
            self.end("slow", "a request arrives too slowly while memory is short")

    @property
    def share(self) -> Share | None:
        """See MemoryBudget."""
        return self._frames.share

    # --------------------------------------------------------------- reading

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._body is None:
            return self._listening.scratch  # of all connections: what is read is taken out before the next read
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
        """Go on with what has arrived, as far as `frames` takes it."""
        if self._transport is None or self._asked or self._yielding or self._body is not None:
            return
        self._cut(self._unread)

    def granted(self) -> None:
        """The budget has given what was asked for."""
        self._credit, self._asked = self._asked, 0
        if self._transport is None:
            return
        if self._body is not None:
            self.deadline = self._arrival_deadline(self._length - self._got)
            self._filled()
        else:
            self._cut(self._unread)

    def _cut(self, data: bytes | memoryview) -> None:
        """Feed the whole frames in `data`, begin the one that is cut off, and keep what can't be taken now."""
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
        """What there is memory for has arrived: take more, or feed the frame."""
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
        if self._credit:  # more may have arrived since it was asked for
            self._listening.budget.adjust(size - self._credit, self.share)
            self._credit = 0
            return True
        if self._listening.budget.take(self, size):
            return True
        self._asked = size
        self.deadline = 0.0
        return False

    def _arrival_deadline(self, length: int) -> float:
        """When so many bytes must be here."""
        return self._loop.time() + self._listening.first_request_seconds + length / _MIN_BYTES_PER_SECOND

    def regulate(self) -> None:
        """Read from the client, or not. While it is not read from, its end is not noticed either."""
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
        """No request runs and none has begun: the client has the idle time for its next one."""
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
            self.end("http", "it speaks HTTP to the Kafka port")
        elif first[:2] == b"\x16\x03":
            self.end("tls", "it speaks TLS to a Kafka port without TLS")
        else:
            self.end("length", "a request of %d bytes is announced", length)
        return False

    # --------------------------------------------------------------- writing

    def send(self, parts: Sequence[Buffer]) -> None:
        """Send one response, whose length goes in front."""
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
        self._listening.slow.enter(self)
        self._count_unsent(self._transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self.write_paused = False
        self._listening.slow.leave(self)
        self._count_unsent(0)
        self._frames.writable()

    def _count_unsent(self, size: int) -> None:
        self._listening.unsent += size - self._unsent
        self._unsent = size

    def undrained(self) -> object:
        """What is still to leave."""
        return None if self._transport is None else undrained(self._transport)

    def give_up(self) -> None:
        """The client takes nothing of its response."""
        self.end("slow", "it does not read its responses")
