"""A listening socket whose connections are TLS, and count from the moment that they are accepted.

The loop's own server tells nobody of a connection before its handshake is done: any number could wait in one, each with
a file descriptor.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final, Protocol

from topics_net import background
from topics_net.quiet import QuietLog

_RETRY_SECONDS: Final = 1.0
_AT_ONCE: Final = 100
_GRACE_SECONDS: Final = 1.0


class Places(Protocol):
    """Who counts a door's connections."""

    def is_full(self) -> bool:
        """Whether there are as many as may be."""

    def refuse(self) -> None:
        """One more has come, and is closed at once: count it, or tell the operator."""

    def enter(self, handshake: "Handshake") -> None:
        """A connection whose handshake begins."""

    def forget(self, handshake: "Handshake") -> None:
        """It has ended, or makes room for the protocol that follows."""

    def handshake_failed(self, peer: str, cause: str) -> None:
        """There was no TLS, an old version of it, or nothing in time."""


class TlsListener:
    """Accepts from a bound socket, which it owns, from its making to `close`.

    `protocol` makes that of a connection whose handshake is done. `options` go to the loop's `connect_accepted_socket`.
    While every place is taken, the oldest handshake that has lasted a second gives way to a new connection: those that
    never finish theirs keep nobody out for long.
    """

    def __init__(
        self,
        places: Places,
        sock: socket.socket,
        protocol: Callable[[], asyncio.BaseProtocol],
        context: ssl.SSLContext,
        log: logging.Logger,
        *,
        backlog: int,
        **options: Any,
    ) -> None:
        self._places = places
        self._sock = sock
        self._protocol = protocol
        self._log = QuietLog(log)
        self._options = options | {"ssl": context}
        self._loop = asyncio.get_running_loop()
        self._retry: asyncio.TimerHandle | None = None
        self._running: dict[Handshake, None] = {}  # the oldest first
        sock.setblocking(False)
        sock.listen(backlog)
        self._loop.add_reader(sock, self._accept)

    def close(self) -> None:
        """Accept no more. What was accepted is ended by who counts the places."""
        if self._retry is not None:
            self._retry.cancel()
        self._loop.remove_reader(self._sock)
        self._sock.close()

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                accepted, address = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no file descriptor is left: the next ones wait in the kernel
                self._log.error("can't accept a connection: %s", error.strerror or error)
                self._loop.remove_reader(self._sock)
                self._retry = background.call_later(_RETRY_SECONDS, self._resume)
                return
            if self._places.is_full() and not self._make_room():
                accepted.close()
                self._places.refuse()
                continue
            accepted.setblocking(False)
            handshake = Handshake(accepted, f"{address[0]}:{address[1]}", self)
            self._running[handshake] = None
            self._places.enter(handshake)

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
        """Run a handshake to its end and hand the connection on."""
        first = _First(self._protocol(), lambda: self.leave(handshake))
        try:
            await self._loop.connect_accepted_socket(lambda: first, accepted, **self._options)
        except OSError as error:  # ssl.SSLError among them
            accepted.close()
            self._places.handshake_failed(handshake.peer, getattr(error, "reason", None) or str(error))

    def leave(self, handshake: "Handshake") -> None:
        """Make room for what follows, or for another."""
        if self._running.pop(handshake, self) is None:
            self._places.forget(handshake)


class Handshake:
    """One that is under way: it has a place until the protocol takes it over."""

    def __init__(self, accepted: socket.socket, peer: str, listener: TlsListener) -> None:
        self.peer = peer
        self.since = asyncio.get_running_loop().time()
        self._task = asyncio.create_task(listener.shake(accepted, self))

        def done(task: asyncio.Task[None]) -> None:
            if task.cancelled():  # before it began, perhaps
                accepted.close()
            listener.leave(self)

        self._task.add_done_callback(done)

    @property
    def transport(self) -> "Handshake":
        """What is aborted."""
        return self

    def abort(self) -> None:
        """Close at once."""
        self._task.cancel()

    shutdown = abort  # no request has begun


class _First(asyncio.Protocol):
    """Hands the connection on as soon as its handshake is done."""

    def __init__(self, protocol: asyncio.BaseProtocol, leave: Callable[[], None]) -> None:
        self._protocol = protocol
        self._leave = leave

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvloop's is no subclass
        self._leave()
        transport.set_protocol(self._protocol)
        self._protocol.connection_made(transport)
