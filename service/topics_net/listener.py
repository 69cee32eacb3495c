"""A listening socket and its open connections: their limit, TLS, and their end."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Any, ClassVar, Final

from topics_net.loop_budget import LoopBudget
from topics_net.send_timeout import SendTimeouts
from topics_net.tls_listener import TlsListener

_HANDSHAKE_SECONDS: Final = 15.0
_BACKLOG: Final = 2048  # connections that the kernel may queue


class Listener:
    """Base of a server. `connections` are those whose socket is open, TLS handshakes among them.

    Each of them has `shutdown()`, which finishes running requests and accepts no more, and `abort()`.
    """

    TLS_SHUTDOWN_SECONDS: ClassVar[float] = 2.0  # for the peer's close_notify

    def __init__(self, max_connections: int, send_seconds: float) -> None:
        """`max_connections` 0 is no limit."""
        self.connections: set[Any] = set()
        self.send_timeouts = SendTimeouts(send_seconds)
        self.loop_budget = LoopBudget()
        self.draining = False
        self._max_connections = max_connections
        self._emptied = asyncio.Event()
        self._server: asyncio.Server | TlsListener | None = None

    async def listen(
        self,
        sock: socket.socket,
        protocol: Callable[[], asyncio.BaseProtocol],
        tls: ssl.SSLContext | None,
        log: logging.Logger,
        request_seconds: float,
    ) -> None:
        """Accept connections from a bound socket. A handshake may take as long as a request, at most 15 s.

        Raises OSError if the socket can't listen.
        """
        if tls is None:
            self._server = await asyncio.get_running_loop().create_server(protocol, sock=sock, backlog=_BACKLOG)
            return
        self._server = TlsListener(
            self,
            sock,
            protocol,
            tls,
            log,
            backlog=_BACKLOG,
            ssl_handshake_timeout=min(_HANDSHAKE_SECONDS, request_seconds),
            ssl_shutdown_timeout=self.TLS_SHUTDOWN_SECONDS,
        )

    def is_full(self) -> bool:
        """Return whether the number of connections has reached its limit."""
        return bool(self._max_connections) and len(self.connections) >= self._max_connections

    def enter(self, connection: object) -> None:
        """Count a connection whose socket is open."""
        self.connections.add(connection)

    def forget(self, connection: object) -> None:
        """Remove a connection whose socket is closed, or which handed its socket to another protocol."""
        self.connections.discard(connection)
        if not self.connections:
            self._emptied.set()

    def refuse(self) -> None:
        """Log that a connection was refused for the limit."""
        raise NotImplementedError

    def handshake_failed(self, peer: str, cause: str) -> None:
        """Log a TLS handshake that failed or timed out."""
        raise NotImplementedError

    def shut_down(self) -> None:
        """Accept no more connections, and ask the open ones to finish."""
        if self._server is not None:
            self._server.close()
        self.draining = self.send_timeouts.draining = True
        for connection in list(self.connections):
            connection.shutdown()

    def abort(self) -> None:
        """Close all connections at once."""
        for connection in list(self.connections):
            connection.abort()

    async def empty(self) -> None:
        """Wait until no connection is left."""
        if self.connections:
            self._emptied.clear()
            await self._emptied.wait()
