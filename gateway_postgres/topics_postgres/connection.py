"""The bytes of one connection: messages in, within bounds; replies out, as fast as the client reads."""

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from topics_net.dead_peers import watch_peer
from topics_net.send_timeout import prepare, undrained
from topics_postgres.errors import MalformedError

if TYPE_CHECKING:
    from topics_postgres.listener import PostgresServer

MAX_STARTUP_BYTES: Final = 10_000
"""Limit of messages before authentication."""
SMALL_BYTES: Final = 64 << 10
"""A message of this size takes nothing from the memory for messages: the number of connections is bounded."""
_READ_AHEAD: Final = 256 << 10
_WRITE_BUFFER_BYTES: Final = 256 << 10
_FLUSH_BYTES: Final = 64 << 10
_MIN_BYTES_PER_SECOND: Final = 128 << 10
_HEAD_BYTES: Final = 5
_HANDSHAKE_SECONDS: Final = 15.0
_TLS_SHUTDOWN_SECONDS: Final = 1.0
_KINDS: Final = frozenset(b"QPBDECSHXFdcfp")


class Message(NamedTuple):
    """A message of the client: the byte of its kind, 0 for one at the start of a connection, and its body."""

    kind: int
    body: bytes


class Connection(asyncio.Protocol):
    """Divides the bytes into messages. `receive` gives them in order; at most 256 KiB or one message wait."""

    def __init__(self, listening: "PostgresServer") -> None:
        self._listening = listening
        self._loop = asyncio.get_running_loop()
        self.now: Final = self._loop.time
        self.transport: Any = None
        self.peer = ("", 0)
        self.is_tls = False
        self.is_started = False
        """Messages have a byte of their kind, as all have after the start."""
        self.is_authenticated = False
        self.deadline = 0.0
        """The time of the loop's clock at which the connection is closed; 0 for never."""
        self.arrival_deadline = 0.0
        """The same for the message that is arriving."""
        self.task: asyncio.Task[None] | None = None
        self.quick: Callable[[bytes], bytes | None] | None = None
        """Answers messages at once, where it can, while the session waits for the next ones; set for that time."""
        self._buffer = bytearray()
        self._messages: deque[Message] = deque()
        self._waiting = 0  # bytes of the messages
        self._taken = 0  # bytes of the memory for messages
        self._failure: Exception | None = None
        self._is_lost = False
        self._is_upgrading = False
        self._is_paused = False
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._out: list[bytes] = []
        self._out_bytes = 0

    # -------------------------------------------------------------------------------------------------- lifetime

    def connection_made(self, transport: Any) -> None:
        if self._is_upgrading:  # the same connection, now in TLS
            return
        self.transport = transport
        address = transport.get_extra_info("peername")
        self.peer = (address[0], address[1]) if address else ("", 0)
        if not self._listening.opened(self):
            transport.abort()
            return
        sock: socket.socket = transport.get_extra_info("socket")
        watch_peer(sock, reads_at_once=False)
        prepare(transport)
        transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        self.deadline = self._loop.time() + self._listening.settings.startup_seconds
        self.task = self._loop.create_task(self._listening.serve(self))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._is_upgrading or self._is_lost:
            return
        self._is_lost = True
        self.deadline = 0.0
        self._listening.send_timeouts.leave(self)
        self._listening.forget(self)
        self._take(-self._taken)
        self._wake_reader()
        self._wake_writer()
        self._listening.lost(self)

    @property
    def is_lost(self) -> bool:
        """Return whether the client is gone."""
        return self._is_lost

    def shutdown(self) -> None:
        """Finish the statement under way and accept no more."""
        self._listening.finish(self)

    def abort(self) -> None:
        """Close at once."""
        if self.transport is not None:
            self.transport.abort()

    def close(self) -> None:
        """Close after sending everything."""
        self.flush()
        if self.transport is not None and not self._is_lost:
            self.deadline = self._loop.time() + self._listening.settings.startup_seconds
            self.transport.close()

    async def start_tls(self) -> None:
        """Go on in TLS. Raises OSError for a handshake that fails, MalformedError for bytes that came before it."""
        if self._buffer or self._messages:
            raise MalformedError("data before the TLS handshake")
        assert self._listening.tls is not None, "callers have looked"
        self._is_upgrading = True
        plain = self.transport
        seconds = min(_HANDSHAKE_SECONDS, self._listening.settings.startup_seconds)
        try:
            transport = await self._loop.start_tls(
                plain, self, self._listening.tls, server_side=True, ssl_handshake_timeout=seconds,
                ssl_shutdown_timeout=_TLS_SHUTDOWN_SECONDS,
            )  # fmt: skip
            if transport is None:
                raise ConnectionResetError("the client is gone")
        except BaseException:
            self._is_upgrading = False
            plain.abort()
            self.connection_lost(None)
            raise
        self._is_upgrading = False
        self.transport = transport
        self.is_tls = True

    # --------------------------------------------------------------------------------------------------- reading

    def data_received(self, data: bytes) -> None:
        statistics = self._listening.statistics
        statistics.bytes_in += len(data)
        if self._failure is not None:
            return
        reader = self._reader
        if (
            self.quick is not None
            and reader is not None  # the session's task has nothing to do
            and not reader.done()
            and not self._buffer
            and self._writer is None
        ):
            reply = self.quick(data)
            if reply is not None:
                statistics.bytes_out += len(reply)
                self.transport.write(reply)
                return
        self._buffer += data
        self._cut()

    def eof_received(self) -> bool:
        return False

    def _cut(self) -> None:
        """Divide what has come into messages."""
        buffer, at, head = self._buffer, 0, _HEAD_BYTES if self.is_started else 4
        limit = self._limit()
        while self._waiting < _READ_AHEAD and len(buffer) - at >= head:
            kind = buffer[at] if self.is_started else 0
            length = int.from_bytes(buffer[at + head - 4 : at + head], "big") - 4
            if (self.is_started and kind not in _KINDS) or not 0 <= length <= limit:
                self._fail(MalformedError("a message has an unknown kind or an impossible length"))
                return
            end = at + head + length
            if len(buffer) < end:
                break
            self._messages.append(Message(kind, bytes(buffer[at + head : end])))
            self._waiting += length
            at = end
            if not self.is_started:
                break  # what follows depends on it
        if at:
            del buffer[:at]
        self._take(max(0, len(buffer) + self._waiting - SMALL_BYTES) - self._taken)
        if self._failure is None:
            self._watch_arrival()
        if self._messages:
            self._wake_reader()
        self._regulate()

    def _limit(self) -> int:
        return self._listening.settings.max_message_bytes if self.is_authenticated else MAX_STARTUP_BYTES

    def _take(self, by: int) -> None:
        """Take memory for messages, or give it back. What does not fit ends the connection."""
        self._taken += by
        if by and not self._listening.take(by) and by > 0:
            self._fail(MemoryError("the memory for messages is exhausted"))

    def _watch_arrival(self) -> None:
        """A message that has begun must be whole in time."""
        if not self._buffer or self._messages or self._is_paused or not self.is_authenticated:
            self.arrival_deadline = 0.0
        elif not self.arrival_deadline:
            length = int.from_bytes(self._buffer[1:5], "big") if len(self._buffer) >= _HEAD_BYTES else 0
            seconds = self._listening.settings.startup_seconds + length / _MIN_BYTES_PER_SECOND
            self.arrival_deadline = self._loop.time() + seconds

    def interrupt(self, failure: Exception) -> None:
        """End the session with this error, if it only waits for a message."""
        if self._reader is not None and not self._messages:
            self._failure = failure
            self._wake_reader()

    def _fail(self, failure: Exception) -> None:
        self._failure = failure
        self._buffer.clear()
        self._wake_reader()

    def _regulate(self) -> None:
        pause = self._waiting >= _READ_AHEAD
        if pause != self._is_paused and self.transport is not None and not self._is_lost:
            self._is_paused = pause
            (self.transport.pause_reading if pause else self.transport.resume_reading)()

    def next_kind(self) -> int:
        """The kind of the message that has arrived next; 0 if there is none."""
        return self._messages[0].kind if self._messages else 0

    def take(self) -> Message | None:
        """Take the next message if it has arrived."""
        if not self._messages:
            return None
        message = self._messages.popleft()
        self._waiting -= len(message.body)
        if self.is_started and (self._buffer or self._taken or self._is_paused):
            self._cut()
        return message

    async def receive(self) -> Message | None:
        """The next message; None when the client is gone. Raises MalformedError, MemoryError."""
        if self._buffer and not self._messages:
            self._cut()  # what came with the start
        while not self._messages:
            if self._failure is not None:
                raise self._failure
            if self._is_lost:
                return None
            self._reader = self._loop.create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        return self.take()

    def _wake_reader(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    # --------------------------------------------------------------------------------------------------- writing

    def send(self, data: bytes) -> None:
        """Send with the next flush, or when there is enough of it."""
        self._out.append(data)
        self._out_bytes += len(data)
        if self._out_bytes >= _FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Hand everything to the transport."""
        if self._out:
            data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
            self._out, self._out_bytes = [], 0
            if self.transport is not None and not self._is_lost:
                self._listening.statistics.bytes_out += len(data)
                self.transport.write(data)

    @property
    def must_wait(self) -> bool:
        """Return whether the client has to read before more is made for it."""
        return self._writer is not None

    async def drain(self) -> None:
        """Wait until the client has read enough, or is gone."""
        if self._writer is not None:
            await self._writer

    def pause_writing(self) -> None:
        if self._writer is None:
            self._writer = self._loop.create_future()
            self._listening.send_timeouts.enter(self)

    def resume_writing(self) -> None:
        self._listening.send_timeouts.leave(self)
        self._wake_writer()

    def _wake_writer(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None and not writer.done():
            writer.set_result(None)

    def undrained(self) -> object:
        """Bytes that are still to be sent."""
        return None if self.transport is None else undrained(self.transport)

    def give_up(self) -> None:
        """Close the connection: the client reads nothing."""
        self._listening.end(self, "slow", "the client stopped reading")
