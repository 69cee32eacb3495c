"""Connections over TCP, with TLS or without: openers for channels, and what the sockets say of their peers."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Final

Open = Callable[[Callable[[], asyncio.BaseProtocol]], Awaitable[object]]
"""Opens a connection with such a protocol. Raises OSError."""

ALPN: Final = "topics-shards"
"""The protocol that both sides name in a handshake of TLS."""
CONNECT_SECONDS: Final = 3.0
"""Time for a connection, with its handshake of TLS: a host that is gone does not answer."""


def tcp(host: str, port: int, tls: Callable[[], ssl.SSLContext | None], server_hostname: str | None = None) -> Open:
    """An opener of connections to a port, for a Channel. An IPv6 address may be in brackets.

    `tls` is called for each connection, which has no TLS if it gives None; its contexts offer `ALPN`. The certificate
    has to be one for `server_hostname`, or for the host if that is None.
    """
    host = host.strip("[]")

    async def opened(protocol: Callable[[], asyncio.BaseProtocol]) -> object:
        context = tls()
        options: dict[str, Any] = {}
        if context is not None:
            options = {"ssl": context, "server_hostname": server_hostname or host}
        async with asyncio.timeout(CONNECT_SECONDS):
            return await asyncio.get_running_loop().create_connection(protocol, host, port, **options)

    return opened


def is_foreign(transport: Any) -> bool:
    """Return whether the peer's end of TLS is of another protocol; false without TLS."""
    tls = transport.get_extra_info("ssl_object")
    return tls is not None and tls.selected_alpn_protocol() != ALPN


def address_of(transport: Any) -> str:
    """The peer's address, as host:port, for log lines."""
    address = transport.get_extra_info("peername")
    if not address:
        return "?"
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
