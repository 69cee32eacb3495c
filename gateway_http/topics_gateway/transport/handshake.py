"""A listening socket whose connections are TLS, and count from the moment that they are accepted.

The loop's own server tells nobody of a connection before its handshake is done: any number could wait in one, each with
a file descriptor.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final

from topics_gateway.transport.registry import Registry, logger

_RETRY_SECONDS: Final = 1.0
_AT_ONCE: Final = 100


class TlsListener:
    """Accepts from a bound socket, which it owns, from its making to `close`.

    `protocol` makes that of a connection whose handshake is done. `options` go to the loop's `connect_accepted_socket`.
    """

    def __init__(
        self,
        registry: Registry,
        sock: socket.socket,
        protocol: Callable[[], asyncio.Protocol],
        context: ssl.SSLContext,
        *,
        backlog: int,
        **options: Any,
    ) -> None:
        self._registry = registry
        self._sock = sock
        self._protocol = protocol
        self._options = options | {"ssl": context}
        self._loop = asyncio.get_running_loop()
        self._retry: asyncio.TimerHandle | None = None
        sock.setblocking(False)
        sock.listen(backlog)
        self._loop.add_reader(sock, self._accept)

    def close(self) -> None:
        """Accept no more. What was accepted is the registry's to end."""
        if self._retry is not None:
            self._retry.cancel()
        self._loop.remove_reader(self._sock)
        self._sock.close()

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                accepted, _address = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no file descriptor is left: the next ones wait in the kernel
                logger.error("can't accept a connection: %s", error.strerror or error)
                self._loop.remove_reader(self._sock)
                self._retry = self._loop.call_later(_RETRY_SECONDS, self._resume)
                return
            if self._registry.has_room():
                accepted.setblocking(False)
                _Handshake(self._registry, accepted, self._protocol, self._options)
            else:
                accepted.close()

    def _resume(self) -> None:
        self._retry = None
        self._loop.add_reader(self._sock, self._accept)


class _Handshake:
    """One that is under way: it is among the registry's connections until the protocol takes its place."""

    def __init__(
        self,
        registry: Registry,
        accepted: socket.socket,
        protocol: Callable[[], asyncio.Protocol],
        options: dict[str, Any],
    ) -> None:
        self._registry = registry
        self._protocol = protocol
        registry.connections.add(self)
        self._task = asyncio.create_task(self._run(accepted, options))

    @property
    def transport(self) -> "_Handshake":
        """What the registry aborts."""
        return self

    def abort(self) -> None:
        """Close at once."""
        self._task.cancel()

    shutdown = abort  # no request has begun

    def leave(self) -> None:
        """Make room for what follows, or for another."""
        self._registry.forget(self)

    async def _run(self, accepted: socket.socket, options: dict[str, Any]) -> None:
        first = _First(self._protocol(), self.leave)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: first, accepted, **options)
        except OSError:  # ssl.SSLError among them: no TLS, an old version, too slow, gone
            accepted.close()
        except asyncio.CancelledError:
            accepted.close()
            raise
        finally:
            self.leave()


class _First(asyncio.Protocol):
    """Hands the connection on as soon as its handshake is done."""

    def __init__(self, protocol: asyncio.Protocol, leave: Callable[[], None]) -> None:
        self._protocol = protocol
        self._leave = leave

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvloop's is no subclass
        self._leave()
        transport.set_protocol(self._protocol)
        self._protocol.connection_made(transport)
