"""Kafka connections through a node that does not own the shard: bytes to the owner and back."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from support.forwarded import bound, never
from support.waiting import until
from topics_cluster.coordinator import Addresses
from topics_cluster.forward_connections import Splice, node_id


class Echo:
    """A server that gives back what it gets, in the same order; `open` are its connections."""

    def __init__(self) -> None:
        self.open: set[asyncio.StreamWriter] = set()
        self.address = ""

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open.add(writer)
        try:
            while data := await reader.read(65536):
                if data.startswith(b"bye"):
                    writer.write(b"answer of the last request")
                    break
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            self.open.discard(writer)
            writer.close()


@asynccontextmanager
async def echoing() -> AsyncIterator[Echo]:
    echo = Echo()
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    echo.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield echo
    finally:
        server.close()


@asynccontextmanager
async def spliced(owner: Callable[[], Any], sock: socket.socket | None = None, **options: Any) -> AsyncIterator[int]:
    """The port of a splice."""
    sock = sock or bound()
    port = sock.getsockname()[1]
    splice = Splice(sock, owner, **options)
    await splice.start()
    try:
        yield port
    finally:
        await splice.stop()
    assert not splice.connections


def at(address: str) -> Addresses:
    return Addresses(http="", grpc="", kafka=address)


async def test_bytes_both_ways() -> None:
    async with echoing() as echo, spliced(lambda: at(echo.address)) as port:
        pairs = [await asyncio.open_connection("127.0.0.1", port) for _ in range(10)]
        for n, (reader, writer) in enumerate(pairs):
            for size in (1, 70_000, 3_000_000):
                data = bytes([n]) * size
                writer.write(data)
                async with asyncio.timeout(20):
                    assert await reader.readexactly(size) == data
        for _, writer in pairs:
            writer.close()
        await until(lambda: not echo.open)


async def test_what_was_sent_before_the_end_arrives() -> None:
    """An owner that refuses a client says why, then closes."""
    async with echoing() as echo, spliced(lambda: at(echo.address)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"bye")
        async with asyncio.timeout(20):
            assert await reader.read() == b"answer of the last request"
        writer.close()


async def test_a_client_that_does_not_read_holds_the_owner() -> None:
    sent = 0

    async def flood(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        try:
            for _ in range(1000):
                writer.write(b"x" * 100_000)
                await writer.drain()
                sent += 1
        except OSError:
            pass
        writer.close()

    server = await asyncio.start_server(flood, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with spliced(lambda: at(address)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1000)
        before = -1
        while before != sent:
            before = sent
            await asyncio.sleep(0.2)
        assert sent < 300
        got = 0
        while data := await reader.read(1 << 20):
            got += len(data)
        assert got == 100_000_000
        writer.close()
    server.close()


async def test_a_client_waits_for_an_owner() -> None:
    ready = asyncio.Event()
    async with echoing() as echo:

        async def owner() -> Addresses:
            await ready.wait()
            return at(echo.address)

        async with spliced(owner) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"early")
            await asyncio.sleep(0.05)
            assert not echo.open
            ready.set()
            async with asyncio.timeout(10):
                assert await reader.readexactly(5) == b"early"
            writer.close()


@pytest.mark.parametrize("owner", [never, lambda: at("127.0.0.1:1"), lambda: at("")])
async def test_without_an_owner_the_connection_is_closed(owner: Callable[[], Any]) -> None:
    async with spliced(owner, hold_seconds=0.2) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        writer.close()


async def test_connections_are_bounded() -> None:
    async with echoing() as echo, spliced(lambda: at(echo.address), max_connections=2) as port:
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        await until(lambda: len(echo.open) == 2)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        writer.close()
        for _, writer in held:
            writer.close()
        await until(lambda: not echo.open)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"now")
        assert await reader.readexactly(3) == b"now"
        writer.close()


async def test_a_stop_ends_connections_and_leaves_the_port_to_another() -> None:
    """Clients that come while the role changes wait in the kernel until the next server accepts from the socket."""
    sock = bound()
    async with echoing() as echo:
        async with spliced(lambda: at(echo.address), sock.dup()) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"x")
            assert await reader.readexactly(1) == b"x"
        assert await reader.read() == b""
        writer.close()
        early = await asyncio.open_connection("127.0.0.1", port)
        early[1].write(b"early")
        async with spliced(lambda: at(echo.address), sock.dup()):
            async with asyncio.timeout(10):
                assert await early[0].readexactly(5) == b"early"
            early[1].close()
    sock.close()


def test_ids_of_nodes() -> None:
    assert node_id("node-1") == node_id("node-1")
    found = {node_id(f"node-{n}") for n in range(1000)}
    assert len(found) == 1000
    assert all(0 < each < 1 << 31 for each in found)
