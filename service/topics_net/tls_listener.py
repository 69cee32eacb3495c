"""TLS listener whose connections count against the connection limit from the moment they are accepted.

The event loop's own server reports a connection only after its handshake: an unlimited number could be in a handshake,
each with a file descriptor.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from topics_net import background
from topics_net.rate_limited_logger import RateLimitedLogger

if TYPE_CHECKING:
    from topics_net.listener import Listener

_RETRY_SECONDS: Final = 1.0
_MAX_ACCEPTS: Final = 100
_GRACE_SECONDS: Final = 1.0


class TlsListener:
    """Accepts connections from a bound socket, which it owns, until `close`.

    `protocol` creates the protocol of a connection after its handshake. `options` are passed to the loop's
    `connect_accepted_socket`. At the connection limit, a new connection replaces the oldest handshake that has lasted
    at least a second, so clients that never finish a handshake do not block others for long.
    """

    def __init__(
        self,
        listener: "Listener",
        sock: socket.socket,
        protocol: Callable[[], asyncio.BaseProtocol],
        context: ssl.SSLContext,
        log: logging.Logger,
        *,
        backlog: int,
        **options: Any,
    ) -> None:
        self._listener = listener
        self._sock = sock
        self._protocol = protocol
        self._log = RateLimitedLogger(log)
        self._options = options | {"ssl": context}
        self._loop = asyncio.get_running_loop()
        self._retry: asyncio.TimerHandle | None = None
        self._running: dict[Handshake, None] = {}  # oldest first
        sock.setblocking(False)
        sock.listen(backlog)
        self._loop.add_reader(sock, self._accept)

    def close(self) -> None:
        """Stop accepting. The listener closes the connections already accepted."""
        if self._retry is not None:
            self._retry.cancel()
        self._loop.remove_reader(self._sock)
        self._sock.close()

    def _accept(self) -> None:
        for _ in range(_MAX_ACCEPTS):
            try:
                accepted, address = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # out of file descriptors: further connections wait in the kernel
                self._log.error("can't accept a connection: %s", error.strerror or error)
                self._loop.remove_reader(self._sock)
                self._retry = background.call_later(_RETRY_SECONDS, self._resume)
                return
            if self._listener.is_full() and not self._make_room():
                accepted.close()
                self._listener.refuse()
                continue
            accepted.setblocking(False)
            handshake = Handshake(accepted, f"{address[0]}:{address[1]}", self)
            self._running[handshake] = None
            self._listener.enter(handshake)

    def _make_room(self) -> bool:
        oldest = next(iter(self._running), None)
        if oldest is None or self._loop.time() - oldest.since < _GRACE_SECONDS:
            return False
        oldest.abort()
        self.leave(oldest)
        return True

    def _resume(self) -> None:
        self._retry = None
        self._loop.add_reader(self._sock, self._accept)

    # ------------------------------------------------------ for a handshake

    async def shake(self, accepted: socket.socket, handshake: "Handshake") -> None:
        """Complete a handshake and hand the connection to its protocol."""
        first = _Handover(self._protocol(), lambda: self.leave(handshake))
        try:
            await self._loop.connect_accepted_socket(lambda: first, accepted, **self._options)
        except OSError as error:  # ssl.SSLError among them
            accepted.close()
            self._listener.handshake_failed(handshake.peer, getattr(error, "reason", None) or str(error))

    def leave(self, handshake: "Handshake") -> None:
        """Remove the handshake from the listener. Idempotent."""
        if self._running.pop(handshake, self) is None:
            self._listener.forget(handshake)


class Handshake:
    """A handshake in progress, counted until the protocol takes over the connection."""

    def __init__(self, accepted: socket.socket, peer: str, listener: TlsListener) -> None:
        self.peer = peer
        self.since = asyncio.get_running_loop().time()
        self._task = asyncio.create_task(listener.shake(accepted, self))

        def done(task: asyncio.Task[None]) -> None:
            if task.cancelled():  # possibly before its first step
                accepted.close()
            listener.leave(self)

        self._task.add_done_callback(done)

    def abort(self) -> None:
        """Close the connection immediately."""
        self._task.cancel()

    shutdown = abort  # no request has started


class _Handover(asyncio.Protocol):
    """Hands the connection to its protocol once the handshake is complete."""

    def __init__(self, protocol: asyncio.BaseProtocol, leave: Callable[[], None]) -> None:
        self._protocol = protocol
        self._leave = leave

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvloop's is no subclass
        self._leave()
        transport.set_protocol(self._protocol)
        self._protocol.connection_made(transport)
