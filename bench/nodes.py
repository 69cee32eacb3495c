"""Calls between nodes: an append over TCP, beside the socket between processes of one machine and a unary call of gRPC.

Both ends are in this process, so that the CPU time of a call is that of both.
"""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, NamedTuple

import grpc
import uvloop

from bench.shards import Call, Cost, measure
from bench.table import Row
from support.tls_proxy import certificate
from topics_cluster.trust import Secret
from topics_proto.v1 import topics_service_pb2 as pb
from topics_server.node.links import PeerTls
from topics_server.server import Server
from topics_server.settings import Settings
from topics_server.tls import Certificate, Source
from topics_service.api.access.auth import UNRESTRICTED
from topics_service.api.topics import TopicsApi
from topics_service.engine.model import AppendRequest, Batch
from topics_shards.remote import RemoteShards, remote_methods
from topics_shards.shards import Shard
from topics_shards.wire.client import Channel
from topics_shards.wire.handshake import Identity
from topics_shards.wire.server import ShardServer, unix
from topics_shards.wire.tcp import ALPN, tcp

_ROUNDS: Final = 5
_GRPC: Final = "gRPC"
_APPEND: Final = "/topics.v1.TopicsService/Append"


class _Size(NamedTuple):
    """Appends of one size: so many in a round, so many at a time."""

    name: str
    records: int
    record_bytes: int
    count: int
    at_a_time: int


_SIZES: Final = (
    _Size("200 B, one at a time", 1, 200, 3_000, 1),
    _Size("200 B, 64 at a time", 1, 200, 12_000, 64),
    _Size("150 kB, one at a time", 1000, 150, 300, 1),
    _Size("150 kB, 4 at a time", 1000, 150, 400, 4),
)


def _datas(size: _Size) -> list[bytes]:
    return [b'"%b"' % (b"x" * (size.record_bytes - 2))] * size.records


def _request(size: _Size) -> AppendRequest:
    return AppendRequest(topic=f"bench-{size.records}", batch=Batch(_datas(size)))


def _message(size: _Size) -> bytes:
    request = pb.AppendRequest(topic=f"bench-{size.records}")
    request.columns.data.extend(_datas(size))
    return request.SerializeToString()


class _Ways:
    """The ways to one shard, until the stack ends."""

    def __init__(self, directory: Path, stack: AsyncExitStack) -> None:
        self.shards: dict[str, RemoteShards] = {}
        self.stubs: dict[str, Callable[[bytes], Awaitable[object]]] = {}
        self._directory = directory
        self._stack = stack
        self._methods = remote_methods()
        self._secret = Secret([b"s" * 32])
        self._cert, self._key = certificate(directory)

    async def open(self) -> None:
        """Open all."""
        server = await self._served("plain")
        shard = Shard(server.api)
        self.shards["direct"] = RemoteShards(2, {1: shard}, {}, self._methods)
        await self._unix(shard)
        await self._tcp(shard, "TCP", None, lambda: None)
        settings = Settings(tls_cert_file=str(self._cert), tls_key_file=str(self._key))
        source = Source(str(self._cert), str(self._key), "TOPICS_TLS_CERT_FILE", "TOPICS_TLS_KEY_FILE")
        tls = PeerTls(settings)
        await self._tcp(shard, "TCP, TLS", Certificate(source).context([ALPN]), lambda: tls.context(ALPN))
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{server.grpc_port}")
        self.stubs[_GRPC] = (await self._stack.enter_async_context(channel)).unary_unary(_APPEND)
        secure = await self._served("tls", tls_cert_file=str(self._cert), tls_key_file=str(self._key))
        credentials = tls.credentials()
        assert credentials is not None
        channel = grpc.aio.secure_channel(f"localhost:{secure.grpc_port}", credentials)
        self.stubs[f"{_GRPC}, TLS"] = (await self._stack.enter_async_context(channel)).unary_unary(_APPEND)

    def calls(self, size: _Size) -> dict[str, Call]:
        """An append of one size by each way."""
        request, message = _request(size), _message(size)
        return {
            name: lambda shards=shards: shards.call(1, TopicsApi.append, request, principal=UNRESTRICTED)  # type: ignore[misc]
            for name, shards in self.shards.items()
        } | {name: lambda stub=stub: stub(message) for name, stub in self.stubs.items()}  # type: ignore[misc]

    async def _served(self, name: str, **options: str) -> Server:
        settings = Settings(data_dir=str(self._directory / name), port=0, grpc_port=0, drain_seconds=1, **options)
        return await self._stack.enter_async_context(Server(settings))

    async def _unix(self, shard: Shard) -> None:
        server = self._server(shard)
        await server.listen(self._directory / "socket")
        self._reached_by("Unix socket", Channel(unix(self._directory / "socket"), "b", "a"))

    async def _tcp(
        self, shard: Shard, name: str, listening: ssl.SSLContext | None, calling: Callable[[], ssl.SSLContext | None]
    ) -> None:
        sock = socket.create_server(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        await self._server(shard).listen_tcp(sock, listening, Identity("b", "bench", self._secret))
        opener = tcp("127.0.0.1", port, calling, "localhost")
        self._reached_by(name, Channel(opener, "b", "a", identity=Identity("a", "bench", self._secret)))

    def _server(self, shard: Shard) -> ShardServer:
        server = ShardServer({1: shard}, self._methods)
        self._stack.push_async_callback(server.close)
        self._stack.push_async_callback(server.drain, 1)
        return server

    def _reached_by(self, name: str, channel: Channel) -> None:
        self._stack.callback(channel.close)
        self.shards[name] = RemoteShards(2, {}, {1: channel}, self._methods)


def _row(size: _Size, way: str, best: dict[str, Cost]) -> Row:
    cost, direct, unary = best[way], best["direct"], best[f"{_GRPC}, TLS" if way.endswith("TLS") else _GRPC]
    note = f"direct {direct.cpu:.0f} us; p50 {cost.p50:.0f} us, direct {direct.p50:.0f}, gRPC {unary.p50:.0f}"
    return Row(f"append of {size.name}, {way}", cost.cpu, "us of CPU", "", unary.cpu, "by gRPC unary", note)


async def _rows(directory: Path) -> list[Row]:
    rows = []
    async with AsyncExitStack() as stack:
        ways = _Ways(directory, stack)
        await ways.open()
        for size in _SIZES:
            best: dict[str, Cost] = {}
            for _ in range(_ROUNDS):
                for name, call in ways.calls(size).items():
                    few = size.count // 4 if name.startswith(_GRPC) else size.count
                    found = await measure(call, few, size.at_a_time)
                    best[name] = Cost(*map(min, found, best.get(name, found)))
            rows += [_row(size, name, best) for name in ("Unix socket", "TCP", "TCP, TLS")]
    return rows


def run(directory: Path) -> list[Row]:
    """Measure, and return the rows."""
    directory.chmod(0o700)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_rows(directory))
