"""Connections over TCP that have not proven themselves: a bounded number of them, each for a bounded time."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final

from topics_net.deadlines import Deadlines
from topics_net.listener import Listener
from topics_net.rate_limited_logger import RateLimitedLogger
from topics_shards.wire.handshake import UNPROVEN_SECONDS, Identity

log: Final = logging.getLogger("topics.shards")

Refused = Callable[[str, str], object]
"""Takes the address of a peer that was refused, and the cause."""

_MAX_UNPROVEN: Final = 64
_GRACE_SECONDS: Final = 1.0


class Entrance(Listener):
    """A listening socket. `connections` are those that are not proven yet, handshakes of TLS among them.

    When there are too many, a new one takes the place of the oldest that has had a second, so that peers that never
    prove anything don't keep out others.
    """

    def __init__(self, identity: Identity, refused: Refused | None) -> None:
        super().__init__(_MAX_UNPROVEN, UNPROVEN_SECONDS)
        self.identity = identity
        self._refused = refused
        self._log = RateLimitedLogger(log)
        self._since: dict[Any, float] = {}  # oldest first
        self._deadlines: Deadlines[Any] = Deadlines(UNPROVEN_SECONDS, self._expired)

    async def open(
        self, sock: socket.socket, protocol: Callable[[], asyncio.BaseProtocol], tls: ssl.SSLContext | None
    ) -> None:
        """Listen on a bound socket, which belongs to this then. Raises OSError."""
        await self.listen(sock, protocol, tls, log, UNPROVEN_SECONDS)

    def admit(self, connection: Any) -> bool:
        """Begin the time of a connection; False if there are too many."""
        if self.draining or self.is_full():
            return False
        self.enter(connection)
        self._since[connection] = asyncio.get_running_loop().time()
        self._deadlines.start(connection)
        return True

    def leave(self, connection: Any) -> None:
        """Forget a connection, which is proven or gone."""
        if self._since.pop(connection, None) is not None:
            self._deadlines.cancel(connection)
            self.forget(connection)

    def is_full(self) -> bool:
        """See Listener; makes room if it can."""
        if not super().is_full():
            return False
        oldest = next(iter(self._since), None)
        if oldest is None or asyncio.get_running_loop().time() - self._since[oldest] < _GRACE_SECONDS:
            return True
        oldest.expire()
        self.leave(oldest)
        return False

    def refuse(self) -> None:
        """See Listener."""
        if not self.draining:
            self._log.warning("refusing a connection: there are too many, %d of them not proven", len(self.connections))

    def handshake_failed(self, peer: str, cause: str) -> None:
        """See Listener."""
        self.note(peer, f"the handshake of TLS failed ({cause or 'disconnected'})")

    def note(self, peer: str, cause: str) -> None:
        """Log that a peer is refused."""
        self._log.warning("the connection from %s is refused: %s", peer, cause)
        if self._refused is not None:
            self._refused(peer, cause)

    def _expired(self, connection: Any) -> None:
        connection.expire()
