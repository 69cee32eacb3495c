"""Servers with a Kafka port: real processes, with and without keys, and servers in this process with test handlers."""

import asyncio
import contextlib
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[2]))
from support.kafka_wire import Wire
from support.server import ServerProcess
from topics_kafka.handlers import Handler, ServerContext, sasl
from topics_kafka.listener import KafkaServer
from topics_kafka.protocol import ApiKey, Message, decode_response, encode_request
from topics_kafka.registry import APIS
from topics_kafka.settings import KafkaSettings
from topics_service.api.access.auth import KeyRing, parse_keys
from topics_service.api.access.authorizer import Authorizer
from topics_service.api.scheduling.commit import GroupCommit
from topics_service.api.topics import TopicsApi
from topics_service.engine.clock import SystemClock
from topics_service.engine.engine import Engine
from topics_service.storage.memory import MemoryStore

KEYS = {
    "full": "sekret-full",
    "read": "sekret-read:read",
    "write": "sekret-write:write",
    "delete": "sekret-delete:delete",
    "admin": "sekret-admin:admin",
    "t42": "sekret-t42::t42.",
}
SECRETS = {name: entry.partition(":")[0] for name, entry in KEYS.items()}


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server without keys."""
    with ServerProcess(tmp_path_factory.mktemp("kafka"), kafka=True) as process:
        yield process


@pytest.fixture(scope="session")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with the keys of KEYS."""
    env = {"TOPICS_API_KEYS": ",".join(KEYS.values())}
    with ServerProcess(tmp_path_factory.mktemp("keyed"), env=env, kafka=True) as process:
        yield process


@pytest.fixture
def wire(server: ServerProcess) -> Iterator[Wire]:
    """A connection to the server without keys."""
    with Wire(server.kafka_port) as connection:
        yield connection


@pytest.fixture
def login(keyed: ServerProcess) -> Iterator[Callable[[str], Wire]]:
    """Connections to the server with keys, as the owner of a key of KEYS."""
    with contextlib.ExitStack() as stack:

        def log_in(name: str) -> Wire:
            connection = stack.enter_context(Wire(keyed.kafka_port))
            answer = connection.authenticate(SECRETS[name])
            assert answer["error_code"] == 0, answer
            return connection

        yield log_in


class Client:
    """One asyncio connection to a server in this process."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, api: ApiKey, version: int, correlation: int, **body: Any) -> None:
        """Send a request."""
        frame = b"".join(encode_request(api, version, correlation, "client", body))
        self.writer.write(len(frame).to_bytes(4, "big") + frame)

    async def frame(self) -> bytes:
        """The next frame."""
        async with asyncio.timeout(10):
            length = int.from_bytes(await self.reader.readexactly(4), "big")
            return await self.reader.readexactly(length)

    async def receive(self, api: ApiKey, version: int) -> tuple[int, Message]:
        """Return the next response: its correlation id and body."""
        return decode_response(api, version, await self.frame())

    async def log_in(self, password: str) -> int:
        """Authenticate with SASL/PLAIN. Returns the error code."""
        self.send(ApiKey.SASL_HANDSHAKE, 1, 1, mechanism="PLAIN")
        await self.receive(ApiKey.SASL_HANDSHAKE, 1)
        self.send(ApiKey.SASL_AUTHENTICATE, 1, 2, auth_bytes=f"\0any\0{password}".encode())
        return int((await self.receive(ApiKey.SASL_AUTHENTICATE, 1))[1]["error_code"])

    async def ended(self) -> bool:
        """Wait until the server closes the connection; ignore what it still sends."""
        async with asyncio.timeout(10):
            with contextlib.suppress(ConnectionError):
                while await self.reader.read(65536):
                    pass
        return True


Serve = Callable[..., Awaitable[KafkaServer]]
Connect = Callable[..., Awaitable[Client]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Start servers in this process, on an engine in memory: SASL, and the handlers and settings of the test."""
    started: list[tuple[KafkaServer, GroupCommit]] = []

    async def make(
        handlers: Mapping[int, Handler],
        *,
        keys: KeyRing | None = None,
        max_inflight: int = 0,
        tls: ssl.SSLContext | None = None,
        **settings: Any,
    ) -> KafkaServer:
        engine = Engine(MemoryStore(), SystemClock())
        commit = GroupCommit.for_engine(engine)
        api = TopicsApi(engine, commit)
        sock = socket.create_server(("127.0.0.1", 0))
        sock.setblocking(False)
        context = ServerContext(
            apis=APIS,
            api=api,
            authorizer=Authorizer(keys, max_inflight=max_inflight),
            settings=KafkaSettings(**settings),
            statistics=api.metrics.kafka,
            cluster_id="cluster",
        )
        server = KafkaServer(context, sock, tls=tls, handlers=lambda context: {**sasl.handlers(context), **handlers})
        context.port = sock.getsockname()[1]
        await server.start()
        started.append((server, commit))
        return server

    yield make
    for server, commit in started:
        await server.stop(0)
        await asyncio.to_thread(commit.stop)


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Open connections to servers of `serve`."""
    writers: list[asyncio.StreamWriter] = []

    async def make(server: KafkaServer, tls: ssl.SSLContext | None = None) -> Client:
        name = None if tls is None else "localhost"
        reader, writer = await asyncio.open_connection("127.0.0.1", server.context.port, ssl=tls, server_hostname=name)
        writers.append(writer)
        return Client(reader, writer)

    yield make
    for writer in writers:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def keys(text: str) -> KeyRing:
    """A ring of keys that is not empty."""
    ring = parse_keys(text)
    assert ring is not None
    return ring
