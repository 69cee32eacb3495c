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
from topics_net.listener import Listener
from topics_net.rate_limited_logger import RateLimitedLogger

logger: Final = logging.getLogger("topics.http")


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of clients.

    - `max_header_bytes`: a larger request head (names and values, and on HTTP/2 the compressed block too) is answered
      with 431 (HTTP/1.1) or ends the connection (HTTP/2).
    - `header_timeout` (seconds): a connection that has no running request and completes no request head for this
      long is closed. It is also the keep-alive limit. A stalled request body is not limited here: the application
      waits in `receive` and may set its own limit.
    - `max_streams`: running requests per HTTP/2 connection; more are refused with REFUSED_STREAM (safe to retry).
    - `stream_window`, `connection_window` (bytes): received body bytes that the application has not read yet, per
      HTTP/2 stream and connection; `unread` those of all connections together, beyond 64 KiB of each: then they are not
      read. On HTTP/1.1 reading stops at 64 KiB.
    - `send_timeout` (seconds): a streaming response is ended when its client takes no byte of it for this long (on
      HTTP/1.1 after `scope["state"]["timeout_event"]`, bytes that the application may leave there for it).
    - `max_connections`: further ones are closed at once, since each takes a file descriptor; 0 is unlimited.
    - `ws_ping_interval`, `ws_ping_timeout` (seconds): a WebSocket client that says nothing for the first is pinged, and
      closed when it neither answers nor takes a byte for the second; None turns pings off.
    - `ws_max_size` (bytes): the largest WebSocket message, over all its fragments.
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


class Registry(Listener):
    """The shared state of a server.

    Every application task is in `tasks` until it is done. `head_timeouts` has the transports of the connections that
    wait for a request. `websocket` is the protocol of WebSockets, None if there are none.
    """

    def __init__(self, limits: Limits, websocket: Callable[..., asyncio.Protocol] | None = None) -> None:
        super().__init__(limits.max_connections, limits.send_timeout)
        self.limits = limits
        self.websocket = websocket
        self.tasks: set[asyncio.Task[None]] = set()
        self.head_timeouts = Deadlines[asyncio.Transport](limits.header_timeout, _shut_down)
        self.unread = Unread(limits.unread)
        self._log = RateLimitedLogger(logger)
        self._date = b""
        self._date_second = 0

    def has_room(self) -> bool:
        """Return True if one more connection is accepted; a refusal is logged."""
        if self.is_full():
            self.refuse()
            return False
        return True

    def refuse(self) -> None:
        self._log.warning("refusing connections: there are %d, which is the limit", self.limits.max_connections)

    def handshake_failed(self, peer: str, cause: str) -> None:
        logger.debug("TLS handshake with %s failed: %s", peer, cause)

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
        try:
            self.shut_down()
            async with asyncio.timeout(seconds):
                await self._settled()
                await self.empty()
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
            self.abort()
        try:
            async with asyncio.timeout(1.0):
                await self._settled()
                await self.empty()
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


def _shut_down(transport: asyncio.Transport) -> None:
    protocol: Any = transport.get_protocol()
    protocol.shutdown()


def endpoints(transport: asyncio.Transport) -> tuple[tuple[str, int] | None, tuple[str, int] | None, str]:
    """The `client`, `server` and `scheme` of a connection, for the scopes of its requests."""
    peer, own = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
    scheme = "https" if transport.get_extra_info("sslcontext") else "http"
    return (peer[0], peer[1]) if peer else None, (own[0], own[1]) if own else None, scheme
