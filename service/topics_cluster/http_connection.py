"""Connections to the HTTP port of another node: HTTP/1.1, one request at a time, and a bounded pool of them.

A general client hides what a proxy has to pass on: interim responses, an answer that comes before the request is
complete, header fields as they were sent, and whether a request was sent at all.
"""

import asyncio
import ssl
import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

import httptools

from topics_net.dead_peers import watch_peer

_READ_BYTES: Final = 64 << 10
_MAX_HEAD_BYTES: Final = 256 << 10


class LostError(Exception):
    """The connection ended in the middle of an exchange, or the peer broke the rules of HTTP."""


class FullError(Exception):
    """As many connections are in use as may be."""


class Head(NamedTuple):
    """The head of a response. Names of headers are in lower case."""

    status: int
    headers: list[tuple[bytes, bytes]]


class HttpConnection:
    """A connection to a node. An exchange is `begin`, `send` as often as needed, `head` until it is final, `body` to
    its end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str) -> None:
        self.address = address
        self.idle_since = 0.0
        self._reader = reader
        self._writer = writer
        self._answer = _Answer()
        self._is_head = False
        self._is_broken = False

    @classmethod
    async def open(cls, address: str, tls: ssl.SSLContext | None) -> "HttpConnection":
        """Connect to host:port. Raises OSError."""
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        reader, writer = await asyncio.open_connection(
            host, int(port), limit=_READ_BYTES, ssl=tls, server_hostname=host if tls is not None else None
        )
        watch_peer(writer.get_extra_info("socket"))
        return cls(reader, writer, address)

    @property
    def is_open(self) -> bool:
        """True unless the peer has ended the connection, as far as is known."""
        return not (self._is_broken or self._reader.at_eof() or self._writer.transport.is_closing())

    @property
    def is_reusable(self) -> bool:
        """True once the exchange is over, if another may follow."""
        return self.is_open and self._answer.is_complete and self._answer.keep_alive

    def begin(self, method: str) -> None:
        """Begin an exchange."""
        self._is_head = method == "HEAD"
        self._answer = _Answer()

    async def send(self, data: bytes) -> None:
        """Send a part of the request, once there is room for it. Raises LostError."""
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError as error:
            self._is_broken = True
            raise LostError(str(error)) from error

    async def head(self) -> Head:
        """The next head of a response, interim ones among them. Raises LostError."""
        answer = self._answer
        while not answer.heads:
            if answer.unfinished > _MAX_HEAD_BYTES:
                raise self._lost("the head of the response is too large")
            if not await self._read():
                raise self._lost("the connection ended before the response")
        head = answer.heads.popleft()
        if head.status == 101:
            raise self._lost("the connection became one of another protocol")
        if self._is_head and head.status >= 200:
            answer.is_complete = True  # llhttp can't know that no body comes
        return head

    async def body(self) -> tuple[bytes, bool]:
        """The next part of the body, and whether there may be more. Raises LostError."""
        answer = self._answer
        while not answer.parts and not answer.is_complete:
            if not await self._read():
                if answer.is_framed:
                    raise self._lost("the connection ended inside the response")
                answer.is_complete = True
        if self._is_head:
            return b"", False
        parts, answer.parts = answer.parts, []
        return parts[0] if len(parts) == 1 else b"".join(parts), not answer.is_complete

    async def _read(self) -> bool:
        """Take what has arrived; False at the end of the connection."""
        try:
            data = await self._reader.read(_READ_BYTES)
        except OSError as error:
            self._is_broken = True
            raise LostError(str(error)) from error
        if data:
            try:
                self._answer.feed(data)
            except httptools.HttpParserError as error:
                raise self._lost(f"the response is malformed: {error}") from error
        return bool(data)

    def _lost(self, message: str) -> LostError:
        self._is_broken = True
        return LostError(message)

    def close(self) -> None:
        """Close at once. What runs on it gets LostError."""
        self._is_broken = True
        self._writer.transport.abort()


class _Answer:
    """The part of a response that has arrived."""

    def __init__(self) -> None:
        self.heads: deque[Head] = deque()
        self.parts: list[bytes] = []
        self.is_complete = False
        self.is_framed = True  # False: the end of the connection ends the body
        self.keep_alive = False
        self.unfinished = 0  # bytes since the last head
        self._headers: list[tuple[bytes, bytes]] = []
        self._parser = httptools.HttpResponseParser(self)
        self._is_final = False

    def feed(self, data: bytes) -> None:
        """Parse. Raises httptools.HttpParserError."""
        self.unfinished += len(data)
        self._parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A field of a head, or of a trailer."""
        if not self._is_final:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """A head is complete."""
        status, headers, self._headers = self._parser.get_status_code(), self._headers, []
        self.heads.append(Head(status, headers))
        self.unfinished = 0
        self._is_final = status >= 200
        names = {name for name, _ in headers}
        self.is_framed = status in (204, 304) or b"content-length" in names or b"transfer-encoding" in names
        self.keep_alive = self._parser.should_keep_alive()

    def on_body(self, data: bytes) -> None:
        """A part of the body."""
        self.unfinished = 0
        self.parts.append(data)

    def on_message_complete(self) -> None:
        """A response is complete, interim ones among them."""
        self.is_complete = self._is_final


class HttpPool:
    """Connections to the nodes: at most `max_connections` in use, and 64 idle ones, which are used again."""

    MAX_IDLE: Final = 64

    def __init__(
        self,
        *,
        max_connections: int,
        idle_seconds: float,
        connect_seconds: float,
        tls: Callable[[], ssl.SSLContext | None],
    ) -> None:
        """An idle connection is not used after `idle_seconds`, which must be less than the nodes allow it to idle."""
        self._max_connections = max_connections
        self._idle_seconds = idle_seconds
        self._connect_seconds = connect_seconds
        self._tls = tls
        self._idle: deque[HttpConnection] = deque()
        self._used: set[HttpConnection] = set()
        self._reserved = 0

    @property
    def in_use(self) -> int:
        """Connections in use, and those that are being opened."""
        return self._reserved

    def reserve(self) -> None:
        """Count one more connection, until `free`. Raises FullError."""
        if self._reserved >= self._max_connections:
            raise FullError
        self._reserved += 1

    def free(self) -> None:
        """Undo `reserve`."""
        self._reserved -= 1

    async def take(self, address: str) -> HttpConnection:
        """A connection to host:port, for which one must be reserved. Raises OSError, TimeoutError among them."""
        self.reserve()
        try:
            connection = self._reused(address)
            if connection is None:
                async with asyncio.timeout(self._connect_seconds):
                    connection = await HttpConnection.open(address, self._tls())
        except BaseException:
            self.free()
            raise
        self._used.add(connection)
        return connection

    def _reused(self, address: str) -> HttpConnection | None:
        oldest = time.monotonic() - self._idle_seconds
        while self._idle:
            connection = self._idle.pop()
            if connection.address == address and connection.idle_since >= oldest and connection.is_open:
                return connection
            connection.close()
        return None

    def give_back(self, connection: HttpConnection) -> None:
        """Keep a connection for another exchange, or close it."""
        self._used.discard(connection)
        self.free()
        if not connection.is_reusable:
            connection.close()
            return
        connection.idle_since = time.monotonic()
        self._idle.append(connection)
        if len(self._idle) > self.MAX_IDLE:
            self._idle.popleft().close()

    def leave(self, address: str) -> None:
        """Close all connections to a node that is lost: what runs on them gets LostError."""
        for connection in [each for each in (*self._idle, *self._used) if each.address == address]:
            connection.close()

    def close(self) -> None:
        """Close all connections."""
        for connection in (*self._idle, *self._used):
            connection.close()
        self._idle.clear()
