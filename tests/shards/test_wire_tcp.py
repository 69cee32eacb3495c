"""Calls over TCP, with TLS and without."""

import os
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from shards.toy import METHODS, Toy

from support.tls_proxy import certificate
from topics_shards.remote import RemoteShards
from topics_shards.wire.client import Channel
from topics_shards.wire.server import ShardServer
from topics_shards.wire.tcp import tcp

NODE = (1 << 31) + 5
"""A number that stands for a node."""


@asynccontextmanager
async def served(host: str, folder: Path | None = None) -> AsyncIterator[RemoteShards]:
    """Shards of which a peer serves shard 1 and the node, over TLS if there is a folder for its certificate."""
    listening: ssl.SSLContext | None = None
    calling: ssl.SSLContext | None = None
    if folder is not None:
        cert, key = certificate(folder)
        listening = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        listening.load_cert_chain(cert, key)
        calling = ssl.create_default_context(cafile=str(cert))
    toy = Toy()
    server = ShardServer({1: toy, NODE: toy}, METHODS, "peer")  # type: ignore[dict-item]
    sock = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    port = sock.getsockname()[1]
    await server.listen_tcp(sock, listening)
    channel = Channel(tcp(host, port, lambda: calling, "localhost"), "peer", "caller")
    try:
        yield RemoteShards(2, {}, {1: channel, NODE: channel}, METHODS)
    finally:
        channel.close()
        await server.drain(1)
        await server.close()


@pytest.mark.parametrize("with_tls", [False, True], ids=["plain", "TLS"])
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_calls_of_any_size(host: str, with_tls: bool, tmp_path: Path) -> None:
    async with served(host, tmp_path if with_tls else None) as shards:
        for size in (0, 10, 65_536, 262_145, 5_000_000):
            value = os.urandom(size)
            assert await shards.call(1, Toy.echo, value) == value
        assert [item async for item in shards.stream(1, Toy.items, 3)] == [0, 1, 2]


async def test_a_call_on_a_node_as_a_whole() -> None:
    async with served("127.0.0.1") as shards:
        assert await shards.call(NODE, Toy.echo, b"value") == b"value"
