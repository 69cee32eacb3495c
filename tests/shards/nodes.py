"""Two nodes of a cluster, and the connection between them over TCP."""

import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from shards.toy import METHODS, Toy

from topics_cluster.trust import Secret
from topics_shards.remote import RemoteShards
from topics_shards.wire.client import Channel
from topics_shards.wire.handshake import Identity
from topics_shards.wire.methods import RemoteMethod
from topics_shards.wire.server import ShardServer
from topics_shards.wire.tcp import ALPN, tcp

NODE: Final = (1 << 31) + 5
"""A number that stands for a node."""
SECRET: Final = b"s" * 32
OTHER_SECRET: Final = b"o" * 32


def identity(node: str, *secrets: bytes, cluster: str = "cluster-id") -> Identity:
    return Identity(node, cluster, Secret(secrets or (SECRET,)))


class Served:
    """The node `b`, which serves a toy as shard 1 and as itself. `refused` are the causes."""

    def __init__(self, host: str, own: Identity, methods: list[RemoteMethod]) -> None:
        self.toy = Toy()
        self.shards: dict[int, Any] = {1: self.toy, NODE: self.toy}
        self.server = ShardServer(self.shards, methods, own.node)
        self.identity = own
        self.refused: list[str] = []
        self.host = host
        self.port = 0
        self._channels: list[Channel] = []

    async def listen(self, tls: ssl.SSLContext | None) -> None:
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        sock = socket.create_server((self.host, 0), family=family)
        self.port = sock.getsockname()[1]
        await self.server.listen_tcp(sock, tls, self.identity, lambda _, cause: self.refused.append(cause))

    def channel(
        self, own: Identity | None = None, tls: ssl.SSLContext | None = None, *, name: str = "b", port: int = 0
    ) -> Channel:
        """A channel from the node `a`, or another, which ends with this."""
        opener = tcp(self.host, port or self.port, lambda: tls, "localhost")
        own = own or identity("a")
        made = Channel(opener, name, own.node, identity=own)
        self._channels.append(made)
        return made

    def shards_by(self, channel: Channel, patience: float = 5.0, methods: list[RemoteMethod] = METHODS) -> RemoteShards:
        owners: Mapping[int, Channel] = {1: channel, NODE: channel}
        return RemoteShards(2, {}, owners, methods, patience)

    async def close(self) -> None:
        for channel in self._channels:
            channel.close()
        await self.server.drain(0)
        await self.server.close()


@asynccontextmanager
async def serving(
    own: Identity | None = None,
    *,
    host: str = "127.0.0.1",
    tls: ssl.SSLContext | None = None,
    methods: list[RemoteMethod] = METHODS,
) -> AsyncIterator[Served]:
    """The node `b`, or another one."""
    served = Served(host, own or identity("b"), methods)
    await served.listen(tls)
    try:
        yield served
    finally:
        await served.close()


def listening_context(cert: str, key: str | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    context.set_alpn_protocols([ALPN])
    return context


def calling_context(ca: str, protocol: str = ALPN) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca)
    context.set_alpn_protocols([protocol])
    return context
