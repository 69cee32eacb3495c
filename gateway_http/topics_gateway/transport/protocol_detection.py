"""Detection of HTTP/1.1 or HTTP/2 by the first bytes of a connection."""

import asyncio
import socket
from collections.abc import Callable
from typing import Final

from topics_gateway.transport.registry import Registry

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

ProtocolFactory = Callable[[], asyncio.Protocol]


class ProtocolDetector(asyncio.Protocol):
    """The first protocol of every connection; replaces itself on the transport and costs nothing afterwards.

    The preface of HTTP/2 (RFC 9113, 3.4) selects `http2`, anything else `http1`. While the bytes are a proper
    prefix of the preface it waits, for at most the header timeout.
    """

    def __init__(self, registry: Registry, http1: ProtocolFactory, http2: ProtocolFactory) -> None:
        self._registry = registry
        self._http1 = http1
        self._http2 = http2
        self._seen = b""
        self.transport: asyncio.Transport
        self._is_taken = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvloop's is no subclass
        self.transport = transport
        if not self._registry.has_room():
            transport.abort()
            return
        self._registry.connections.add(self)
        sock = transport.get_extra_info("socket")
        # Not relied on as a default of the loop: a 40 ms delay of small frames is hard to find later.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._is_taken = True
        self._registry.head_timeouts.start(transport)

    def data_received(self, data: bytes) -> None:
        if not self._is_taken:
            return
        seen = self._seen + data
        if seen.startswith(PREFACE):
            protocol = self._http2()
        elif PREFACE.startswith(seen):
            self._seen = seen
            return
        else:
            protocol = self._http1()
        self.transport.set_protocol(protocol)
        protocol.connection_made(self.transport)
        self._registry.forget(self)
        protocol.data_received(seen)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._is_taken:
            self._registry.head_timeouts.cancel(self.transport)
            self._registry.forget(self)

    def shutdown(self) -> None:
        """No request has begun."""
        self.transport.close()

    def abort(self) -> None:
        """Close at once."""
        self.transport.abort()
