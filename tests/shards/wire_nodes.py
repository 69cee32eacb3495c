"""Two nodes of a cluster, and the connection between them over TCP."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from shards.toy import METHODS, Toy

from topics_cluster.trust import Secret
from topics_shards.remote import RemoteShards
from topics_shards.wire.client import Channel
from topics_shards.wire.framing import HEAD, HELLO, PROOF
from topics_shards.wire.handshake import CallerHandshake, Identity
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

    async def listen(self, tls: ssl.SSLContext | None, sock: socket.socket | None = None) -> None:
        if sock is None:
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


class Wire:
    """A connection of an attacker, or of a caller by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.proof = b""

    def send(self, kind: int, body: bytes = b"", call: int = 0) -> None:
        self._writer.write(HEAD.pack(len(body), kind, call) + body)

    def send_raw(self, data: bytes) -> None:
        self._writer.write(data)

    async def receive(self) -> tuple[int, bytes]:
        async with asyncio.timeout(5):
            size, kind, _ = HEAD.unpack(await self._reader.readexactly(HEAD.size))
            return kind, await self._reader.readexactly(size)

    async def expect(self, kind: int) -> bytes:
        found, body = await self.receive()
        assert found == kind, (found, body)
        return body

    async def is_ended(self) -> bool:
        """Return once the peer has ended the connection."""
        async with asyncio.timeout(20):
            with suppress(ConnectionError):
                while await self._reader.read(1 << 16):
                    pass
        return True

    async def prove(self, calling: CallerHandshake) -> None:
        """Go through the handshake, but for sending the proof, which `proof` is then."""
        self.send(HELLO, calling.hello)
        assert calling.take(HELLO, memoryview(await self.expect(HELLO))) is None
        proof = calling.take(PROOF, memoryview(await self.expect(PROOF)))
        assert proof is not None
        self.proof = proof

    def close(self) -> None:
        self._writer.close()


@asynccontextmanager
async def wire(port: int) -> AsyncIterator[Wire]:
    made = Wire(*await asyncio.open_connection("127.0.0.1", port))
    try:
        yield made
    finally:
        made.close()
