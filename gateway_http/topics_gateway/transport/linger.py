"""Closing a connection whose peer may still be sending."""

import asyncio
from typing import Final

from topics_gateway.transport.registry import Registry
from topics_net import background

LINGER_SECONDS: Final = 2.0
DRAINING_LINGER_SECONDS: Final = 0.5


class Linger(asyncio.Protocol):
    """Takes over a transport: ends our side after the buffered output, drops the input until the peer ends its side.

    A socket that is closed with unread input makes the kernel send RST, and the peer may lose the answer that
    explains why. Bounded in time, so a peer that keeps sending is cut off. TLS can't end one side alone: there the
    peer, which sees by the length of the answer that it is complete, is left to close.
    """

    def __init__(self, registry: Registry, transport: asyncio.Transport) -> None:
        self._registry = registry
        self.transport = transport
        registry.connections.add(self)
        transport.set_protocol(self)
        transport.resume_reading()
        end_side(transport)
        seconds = DRAINING_LINGER_SECONDS if registry.draining else LINGER_SECONDS
        self._timer = background.call_later(seconds, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        self._registry.forget(self)

    def shutdown(self) -> None:
        """Nothing to finish: the answer is already with the kernel."""
        self.transport.close()

    def abort(self) -> None:
        """Close at once."""
        self.transport.abort()


def end_side(transport: asyncio.Transport) -> None:
    """Half-close the connection; TLS has no half-close."""
    if transport.can_write_eof():
        transport.write_eof()
