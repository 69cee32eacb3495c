"""Connections over TCP, with TLS or without: openers for channels."""

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, Final

from topics_shards.wire.client import Open

ALPN: Final = "topics-shards"
"""The protocol that both sides name in a TLS handshake."""
CONNECT_SECONDS: Final = 3.0
"""Time for a connection, its TLS handshake among it: a host that is gone does not answer."""


def tcp(host: str, port: int, tls: Callable[[], ssl.SSLContext | None], server_hostname: str | None = None) -> Open:
    """An opener of connections to a port, for a Channel. `host` may be an IPv6 address, without brackets.

    `tls` is called for each connection, which has no TLS if it gives None. The certificate has to be one for
    `server_hostname`, the host if that is None.
    """

    async def opened(protocol: Callable[[], asyncio.BaseProtocol]) -> object:
        context = tls()
        options: dict[str, Any] = {}
        if context is not None:
            options = {"ssl": context, "server_hostname": server_hostname or host}
        async with asyncio.timeout(CONNECT_SECONDS):
            return await asyncio.get_running_loop().create_connection(protocol, host, port, **options)

    return opened
