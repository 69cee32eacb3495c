"""The open connections of a server, and the tasks that run the application."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import formatdate
from typing import Any, Final, Protocol

from topics_client.units import counted
from topics_net.deadlines import Deadlines
from topics_net.loop_budget import LoopBudget
from topics_net.rate_limited_logger import RateLimitedLogger
from topics_net.send_timeout import SendTimeouts

logger: Final = logging.getLogger("topics.http")


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a connection.

    `max_header_bytes` bounds a request head (names and values, and on HTTP/2 the compressed block too).
    `header_timeout` (seconds) bounds the wait for a complete request head, on a new and on an idle connection.
    `max_streams` bounds the requests of one HTTP/2 connection that run at the same time.
    `stream_window` and `connection_window` (bytes) bound the request body bytes that the application has not read
    yet, of one HTTP/2 stream and of all streams of one connection.
    `unread` (bytes) bounds those of all HTTP/2 connections together, beyond 64 KiB of each.
    `send_timeout` (seconds) bounds the time for which a client takes no byte of a response that waits for it.
    `max_connections` bounds the number of connections; 0 is no limit.
    `ws_max_size`, `ws_ping_interval` and `ws_ping_timeout` are those of HttpServer.
    """

    max_header_bytes: int = 65536
    header_timeout: float = 60.0
    max_streams: int = 256
    stream_window: int = 1 << 20
    connection_window: int = 16 << 20
    unread: int = 64 << 20
    send_timeout: float = 30.0
    max_connections: int = 0
    ws_max_size: int = 16 << 20
    ws_ping_interval: float | None = 20.0
    ws_ping_timeout: float | None = 20.0


class Holdable(Protocol):
    """A connection that can be made to wait."""

    def go_on(self) -> None:
        """There is room again."""


class Unread:
    """Body bytes that have arrived on HTTP/2 connections and that the application has not read yet."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held: set[Holdable] = set()
        self.nbytes = 0

    @property
    def is_full(self) -> bool:
        """True while the limit is exceeded."""
        return self.nbytes > self._max_bytes

    def hold(self, connection: Holdable) -> None:
        """Call `go_on` of the connection once there is room."""
        self._held.add(connection)

    def leave(self, connection: Holdable) -> None:
        """Undo `hold`."""
        self._held.discard(connection)

    def take(self, size: int) -> None:
        """Subtract bytes that the application has read or will not read."""
        self.nbytes -= size
        if self._held and not self.is_full:
            for connection in list(self._held):
                connection.go_on()


class Registry:
    """The shared state of a server.

    Every connection protocol is in `connections` while its socket is open and has `transport` and `shutdown()`;
    every application task is in `tasks` until it is done. `head_timeouts` has the transports of those that wait for a
    request, whose protocols have `head_timeout()`. `websocket` is the protocol of WebSockets, None if there are
    none.
    """

    def __init__(self, limits: Limits, websocket: Callable[..., asyncio.Protocol] | None = None) -> None:
        self.limits = limits
        self.websocket = websocket
        self.connections: set[Any] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.loop_budget = LoopBudget()
        self.send_timeouts = SendTimeouts(limits.send_timeout)
        self.head_timeouts = Deadlines[asyncio.Transport](limits.header_timeout, _head_timeout)
        self.draining = False
        self.unread = Unread(limits.unread)
        self._log = RateLimitedLogger(logger)
        self._emptied = asyncio.Event()
        self._date = b""
        self._date_second = 0

    def is_full(self) -> bool:
        """Return True if the number of connections has reached its limit."""
        limit = self.limits.max_connections
        return bool(limit) and len(self.connections) >= limit

    def refuse(self) -> None:
        """Log that a connection was refused for this reason."""
        self._log.warning("refusing connections: there are %d, which is the limit", self.limits.max_connections)

    def has_room(self) -> bool:
        """Return True if one more connection is accepted; a refusal is logged."""
        if self.is_full():
            self.refuse()
            return False
        return True

    def enter(self, connection: object) -> None:
        """Count a connection whose socket is open."""
        self.connections.add(connection)

    def handshake_failed(self, peer: str, cause: str) -> None:
        """Log a TLS handshake that failed or timed out."""
        logger.debug("TLS handshake with %s failed: %s", peer, cause)

    def forget(self, connection: object) -> None:
        """Remove a connection whose socket is closed, or which handed its socket to another protocol."""
        self.connections.discard(connection)
        if self.draining and not self.connections:
            self._emptied.set()

    def date(self) -> bytes:
        """Return the value of a `date` header; formatted at most once a second."""
        now = int(time.time())
        if now != self._date_second:
            self._date_second = now
            self._date = formatdate(now, usegmt=True).encode()
        return self._date

    async def drain(self, seconds: float) -> None:
        """Ask every connection to finish; after `seconds` cancel the tasks and close the sockets that are left.

        Returns when no task and no connection is left, or two seconds after the limit if a task resists its
        cancellation (logged). Cancelling the drain closes everything at once.
        """
        self.draining = self.send_timeouts.draining = True
        try:
            for connection in list(self.connections):
                connection.shutdown()
            async with asyncio.timeout(seconds):
                await self._settled()
                await self._empty()
        except TimeoutError:
            if self.tasks:
                logger.warning("closing after %g s with %s unfinished", seconds, counted(len(self.tasks), "request"))
            self._cancel_tasks()
            # Before the sockets are cut, so that HTTP/2 clients learn by RST_STREAM which requests are lost.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._settled()
        finally:
            self._cancel_tasks()
            for connection in list(self.connections):
                connection.transport.abort()
        try:
            async with asyncio.timeout(1.0):
                await self._settled()
                await self._empty()
        except TimeoutError:
            if self.tasks:
                logger.error("still running after cancellation: %s", counted(len(self.tasks), "request"))

    def _cancel_tasks(self) -> None:
        for task in self.tasks:
            task.cancel()

    async def _settled(self) -> None:
        # A finished task may have started the next pipelined request, so look again after each wait.
        while self.tasks:
            await asyncio.wait(self.tasks)

    async def _empty(self) -> None:
        if self.connections:
            self._emptied.clear()
            await self._emptied.wait()


def _head_timeout(transport: asyncio.Transport) -> None:
    protocol: Any = transport.get_protocol()
    protocol.head_timeout()


def endpoints(transport: asyncio.Transport) -> tuple[tuple[str, int] | None, tuple[str, int] | None, str]:
    """The `client`, `server` and `scheme` of a connection, for the scopes of its requests."""
    peer, own = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
    scheme = "https" if transport.get_extra_info("sslcontext") else "http"
    return (peer[0], peer[1]) if peer else None, (own[0], own[1]) if own else None, scheme
