"""Calls through a socket: their ends, broken connections, bounds, and peers that send what they may not."""

import asyncio
import contextlib
import logging
import os
import socket
import tempfile
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop
from shards.toy import METHODS, Toy

from support.waiting import until
from topics_service.api.access.auth import Principal
from topics_service.api.request_context import begin, current_request
from topics_service.engine.errors import Reason, TopicsError
from topics_shards.remote import RemoteShards
from topics_shards.shards import LostCallError
from topics_shards.wire import client, framing, server
from topics_shards.wire.client import Channel
from topics_shards.wire.framing import CALL, HEAD, HELLO, OPEN, RUN, VERSION, Hello
from topics_shards.wire.server import ShardServer, unix


class Pair:
    """A caller and the process that it calls."""

    def __init__(self, directory: Path, patience: float) -> None:
        self.path = directory / "socket"
        self.toy = Toy()
        self.served: dict[int, Any] = {1: self.toy}
        self.local: dict[int, Any] = {}
        self.server = ShardServer(self.served, METHODS, "shard")
        self.channel = Channel(unix(self.path), "the shard", "the caller")
        self.owners = {1: self.channel}
        self.shards = RemoteShards(2, self.local, self.owners, METHODS, patience)

    async def restart(self) -> None:
        """Let another process take the place of the one that is called."""
        await self.kill()
        self.server = ShardServer(self.served, METHODS, "next")
        await self.server.listen(self.path)

    async def kill(self) -> None:
        """End the process that is called, without a word."""
        await self.server.drain(0)
        await self.server.close()

    def sever(self) -> None:
        """Break the connection."""
        for connection in list(self.server.connections):
            connection.transport.abort()


@contextlib.asynccontextmanager
async def pair(patience: float = 5.0) -> AsyncIterator[Pair]:
    with tempfile.TemporaryDirectory(prefix="pair-") as directory:
        found = Pair(Path(directory), patience)
        await found.server.listen(found.path)
        try:
            yield found
        finally:
            found.channel.close()
            await found.kill()


async def test_results_and_errors() -> None:
    async with pair() as both:
        assert await both.shards.call(1, Toy.echo, b"value") == b"value"
        with pytest.raises(TopicsError) as caught:
            await both.shards.call(1, Toy.fail, Reason.THROTTLED)
        assert (caught.value.reason, caught.value.detail, caught.value.retry_after_ms) == (
            Reason.THROTTLED,
            {"a": 1},
            5,
        )


@pytest.mark.parametrize("size", [0, 1, 65_000, 65_536, 262_135, 262_144, 262_145, 5_000_000])
async def test_values_of_any_size(size: int) -> None:
    async with pair() as both:
        value = os.urandom(size)
        many = await asyncio.gather(*(both.shards.call(1, Toy.echo, value) for _ in range(5)))
        assert set(many) == {value}


def test_on_the_loop_of_servers() -> None:
    async def run() -> None:
        async with pair() as both:
            values = [os.urandom(size) for size in (0, 10, 100_000, 1_000_000)] * 10
            assert await asyncio.gather(*(both.shards.call(1, Toy.echo, value) for value in values)) == values

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


async def test_calls_do_not_wait_for_each_other() -> None:
    async with pair() as both:
        slow = asyncio.create_task(both.shards.call(1, Toy.wait, "slow"))
        assert await both.shards.call(1, Toy.echo, b"quick") == b"quick"
        assert not slow.done()
        both.toy.gate.set()
        assert await slow == 1


async def test_cancelling_the_caller_cancels_the_call() -> None:
    async with pair() as both:
        call = asyncio.create_task(both.shards.call(1, Toy.wait, "one"))
        await until(lambda: both.toy.began == ["one"])
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: both.toy.ended == ["one"])


async def test_a_call_that_is_cancelled_at_once_comes_to_its_end() -> None:
    async with pair() as both:
        await both.shards.call(1, Toy.echo, b"connected")
        call = asyncio.create_task(both.shards.call(1, Toy.wait, "one"))
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait((call,))
        await until(lambda: both.toy.ended == ["one"])
        (connection,) = both.server.connections
        await until(lambda: connection.is_idle)


async def test_a_caller_that_dies_cancels_its_calls() -> None:
    async with pair() as both:
        call = asyncio.create_task(both.shards.call(1, Toy.wait, "one"))
        await until(lambda: both.toy.began == ["one"])
        both.channel.close()
        with pytest.raises(LostCallError):
            await call
        await until(lambda: both.toy.ended == ["one"])


async def test_a_call_is_lost_with_its_connection_unless_it_only_reads() -> None:
    async with pair() as both:
        write = asyncio.create_task(both.shards.call(1, Toy.wait, "write"))
        read = asyncio.create_task(both.shards.call(1, Toy.read, "read"))
        await until(lambda: sorted(both.toy.began) == ["read", "write"])
        both.sever()
        with pytest.raises(LostCallError):
            await write
        await until(lambda: both.toy.began.count("read") == 2)
        both.toy.gate.set()
        assert await read == 1
        assert both.toy.began.count("write") == 1


async def test_a_call_waits_for_a_process_that_starts() -> None:
    async with pair() as both:
        await both.shards.call(1, Toy.echo, b"")
        await both.kill()
        await until(lambda: both.channel.connection is None)
        call = asyncio.create_task(both.shards.call(1, Toy.echo, b"again"))
        await asyncio.sleep(0.05)
        assert not call.done()
        both.server = ShardServer(both.served, METHODS)
        await both.server.listen(both.path)
        assert await call == b"again"


async def test_a_call_that_does_not_reach_its_shard_is_not_ready() -> None:
    async with pair(patience=0.1) as both:
        await both.kill()
        with pytest.raises(TopicsError) as caught:
            await both.shards.call(1, Toy.echo, b"")
        assert caught.value.reason is Reason.NOT_READY
        assert caught.value.retry_after_ms
        both.owners.clear()
        with pytest.raises(TopicsError, match="shard 1"):
            await both.shards.call(1, Toy.echo, b"")


async def test_a_shard_that_moves() -> None:
    async with pair() as both:
        del both.served[1]
        call = asyncio.create_task(both.shards.call(1, Toy.echo, b"value"))
        await asyncio.sleep(0.02)
        both.local[1] = Toy()
        assert await call == b"value"
        assert both.local[1].seen
        del both.local[1]
        both.served[1] = both.toy
        assert await both.shards.call(1, Toy.echo, b"back") == b"back"
        assert len(both.toy.seen) == 1


async def test_a_shard_that_nobody_serves_is_not_ready() -> None:
    async with pair(patience=0.12) as both:
        both.served.clear()
        for call in (both.shards.call(1, Toy.echo, b""), anext(both.shards.stream(1, Toy.items, 3))):
            with pytest.raises(TopicsError) as caught:
                await call
            assert caught.value.reason is Reason.NOT_READY


async def test_a_process_that_drains_ends_its_calls_and_takes_no_more() -> None:
    async with pair() as both:
        call = asyncio.create_task(both.shards.call(1, Toy.wait, "one"))
        await until(lambda: both.toy.began == ["one"])
        draining = asyncio.create_task(both.server.drain(5))
        await until(lambda: both.channel.connection is None)
        later = asyncio.create_task(both.shards.call(1, Toy.echo, b"later"))
        both.toy.gate.set()
        assert await call == 1
        await draining
        assert not later.done()
        await both.restart()
        assert await later == b"later"


async def test_calls_that_do_not_end_are_broken_off() -> None:
    async with pair() as both:
        call = asyncio.create_task(both.shards.call(1, Toy.wait, "one"))
        await until(lambda: both.toy.began == ["one"])
        await both.server.drain(0.01)
        with pytest.raises(LostCallError):
            await call
        assert both.toy.ended == ["one"]


# ---------------------------------------------------------------------- streams


async def test_items_are_made_when_they_are_asked_for() -> None:
    async with pair() as both:
        items = both.shards.stream(1, Toy.items, 3)
        assert await anext(items) == 0
        await both.shards.call(1, Toy.echo, b"")
        assert both.toy.began == ["0"]
        assert [item async for item in items] == [1, 2]
        assert both.toy.ended == ["items"]


async def test_closing_a_stream_ends_it() -> None:
    async with pair() as both:
        items = both.shards.stream(1, Toy.items, 100)
        assert await anext(items) == 0
        await items.aclose()
        await until(lambda: both.toy.ended == ["items"])
        assert both.toy.began == ["0"]


async def test_a_stream_is_lost_with_its_connection() -> None:
    async with pair() as both:
        items = both.shards.stream(1, Toy.items, 100)
        assert await anext(items) == 0
        both.sever()
        with pytest.raises(LostCallError):
            async for _ in items:
                pass
        await until(lambda: both.toy.ended == ["items"])


# ---------------------------------------------------------------------- requests


async def test_the_request_of_the_client_goes_with_the_call() -> None:
    async with pair() as both:
        await both.shards.call(1, Toy.echo, b"")
        request = begin("my-id", ("1.2.3.4", 5), "websocket")
        request.principal = Principal("key7", frozenset(), None)
        try:
            await both.shards.call(1, Toy.echo, b"")
        finally:
            current_request.set(None)
        nobody, seen = both.toy.seen
        assert nobody is None
        assert seen is not None
        assert (seen.protocol, seen.text, seen.peer) == ("websocket", "my-id", "1.2.3.4:5")
        assert seen.principal == request.principal


async def test_a_generated_id_is_the_same_on_both_sides() -> None:
    async with pair() as both:
        request = begin(None, None)
        try:
            await both.shards.call(1, Toy.echo, b"")
        finally:
            current_request.set(None)
        assert both.toy.seen[0] is not None
        assert both.toy.seen[0].text == request.text
        assert both.toy.seen[0].peer == "?"


# ---------------------------------------------------------------------- bounds


async def test_what_is_too_large_is_refused_and_the_connection_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topics_shards.remote.MAX_FRAME", 1000)
    async with pair() as both:
        with pytest.raises(TopicsError) as caught:
            await both.shards.call(1, Toy.echo, bytes(1000))
        assert caught.value.reason is Reason.PAYLOAD_TOO_LARGE
        for connection in await connected(both):
            connection.max_frame = 1000
        with pytest.raises(TopicsError) as caught:
            await both.shards.call(1, Toy.large, 1000)
        assert caught.value.reason is Reason.RESULT_TOO_LARGE
        assert await both.shards.call(1, Toy.echo, b"still there") == b"still there"


async def connected(both: Pair) -> list[Any]:
    await both.shards.call(1, Toy.echo, b"")
    return list(both.server.connections)


async def test_idle_connections_take_little_memory() -> None:
    async with pair() as both:
        await connected(both)
        tracemalloc.start()
        try:
            channels = [Channel(unix(both.path), "the shard", "the caller") for _ in range(20)]
            await until(lambda: all(channel.connection is not None for channel in channels))
            taken, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            for channel in channels:
                channel.close()
        assert taken / len(channels) < 50_000, "both ends of a connection"


async def test_callers_wait_while_the_shard_does_not_read() -> None:
    async with pair() as both:
        (connection,) = await connected(both)
        connection.transport.pause_reading()
        calls = [asyncio.create_task(both.shards.call(1, Toy.echo, bytes(100_000))) for _ in range(100)]
        assert both.channel.connection is not None
        transport = both.channel.connection.transport
        await until(lambda: transport.get_write_buffer_size() >= framing.HIGH_WATER)
        await asyncio.sleep(0.05)
        assert framing.HIGH_WATER <= transport.get_write_buffer_size() < framing.HIGH_WATER + 300_000
        connection.transport.resume_reading()
        assert {len(value) for value in await asyncio.gather(*calls)} == {100_000}


async def test_a_shard_reads_no_more_than_it_may_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_MAX_HELD_BYTES", 1000)
    async with pair() as both:
        await connected(both)
        calls = [asyncio.create_task(both.shards.call(1, Toy.wait, f"{i}{'x' * 400_000}")) for i in range(5)]
        await until(lambda: bool(both.toy.began))
        await asyncio.sleep(0.05)
        assert len(both.toy.began) == 1
        both.toy.gate.set()
        assert await asyncio.gather(*calls) == [1] * 5


async def test_callers_wait_when_too_many_calls_are_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_MAX_CALLS", 3)
    async with pair() as both:
        await connected(both)
        calls = [asyncio.create_task(both.shards.call(1, Toy.wait, str(i))) for i in range(5)]
        await until(lambda: len(both.toy.began) == 3)
        calls[0].cancel()
        await until(lambda: len(both.toy.began) == 4)
        both.toy.gate.set()
        assert await asyncio.gather(*calls[1:]) == [1] * 4


# ---------------------------------------------------------------------- peers that send what they may not


def frame(kind: int, call: int = 1, body: bytes = b"") -> bytes:
    return HEAD.pack(len(body), kind, call) + body


GREETING = frame(HELLO, 0, msgspec.msgpack.encode(Hello(VERSION, "test")))
ECHO, ITEMS = 0, 4
VIOLATIONS = {
    "too large": HEAD.pack(framing.MAX_FRAME + 1, RUN, 1),
    "unknown kind": GREETING + frame(77),
    "result from a caller": GREETING + frame(framing.RESULT),
    "no hello": frame(RUN, 1, CALL.pack(1, ECHO)),
    "two hellos": GREETING + GREETING,
    "hello that is none": frame(HELLO, 0, b"\xc1"),
    "hello with a name that is no text": frame(HELLO, 0, b"\x92\x01\xa1\xff"),
    "hello of another version": frame(HELLO, 0, msgspec.msgpack.encode(Hello(0, "test"))),
    "short call": GREETING + frame(RUN, 1, b"\0"),
    "unknown method": GREETING + frame(RUN, 1, CALL.pack(1, 99)),
    "a stream as a call": GREETING + frame(RUN, 1, CALL.pack(1, ITEMS)),
    "a call as a stream": GREETING + frame(OPEN, 1, CALL.pack(1, ECHO)),
    "a number twice": GREETING + 2 * frame(RUN, 1, CALL.pack(1, 1) + msgspec.msgpack.encode((None, (), "x"))),
}


@pytest.mark.parametrize("sent", VIOLATIONS.values(), ids=VIOLATIONS)
async def test_a_peer_that_violates_the_framing_is_cut_off(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with pair() as both:
        with caplog.at_level(logging.ERROR, "topics.shards"):
            reader, writer = await asyncio.open_unix_connection(str(both.path))
            writer.write(sent)
            async with asyncio.timeout(5):
                with contextlib.suppress(ConnectionError):
                    await reader.read()
            writer.close()
        assert "is cut off" in caplog.text
        assert await both.shards.call(1, Toy.echo, b"others are served") == b"others are served"


async def test_a_call_that_cannot_be_read_is_internal(caplog: pytest.LogCaptureFixture) -> None:
    async with pair() as both:
        reader, writer = await asyncio.open_unix_connection(str(both.path))
        writer.write(GREETING + frame(RUN, 7, CALL.pack(1, ECHO) + msgspec.msgpack.encode((None, (), 17))))
        await received(reader, HELLO)
        kind, call, body = await received(reader, framing.FAILED)
        writer.close()
        assert (kind, call) == (framing.FAILED, 7)
        assert b"internal error" in body
        assert "Toy.echo" in caplog.text


async def received(reader: asyncio.StreamReader, kind: int) -> tuple[int, int, bytes]:
    size, found, call = HEAD.unpack(await reader.readexactly(HEAD.size))
    assert found == kind
    return found, call, await reader.readexactly(size)


async def test_bytes_that_come_one_by_one() -> None:
    async with pair() as both:
        reader, writer = await asyncio.open_unix_connection(str(both.path))
        for byte in GREETING + frame(RUN, 7, CALL.pack(1, ECHO) + msgspec.msgpack.encode((None, (), b"value"))):
            writer.write(bytes((byte,)))
            await writer.drain()
            await asyncio.sleep(0)
        await received(reader, HELLO)
        _, call, body = await received(reader, framing.RESULT)
        writer.close()
        assert (call, msgspec.msgpack.decode(body)) == (7, [b"value"])


async def test_a_shard_that_answers_nonsense_is_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    with tempfile.TemporaryDirectory(prefix="odd-") as directory:
        path = Path(directory) / "socket"

        async def odd(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            open_now.append(writer)
            with contextlib.suppress(asyncio.IncompleteReadError):
                await received(reader, HELLO)
                writer.write(frame(HELLO, 0, msgspec.msgpack.encode(Hello(VERSION, "odd", ["Toy.echo"]))))
                _, call, _ = await received(reader, RUN)
                writer.write(frame(framing.RESULT, call, b"\xc1"))
                await reader.read()
            writer.close()
            open_now.remove(writer)

        open_now: list[asyncio.StreamWriter] = []
        listening = await asyncio.start_unix_server(odd, str(path))
        channel = Channel(unix(path), "the odd one", "test")
        shards = RemoteShards(2, {}, {1: channel}, METHODS, 1.0)
        with pytest.raises(LostCallError):
            await shards.call(1, Toy.echo, b"")
        with pytest.raises(TopicsError, match="can't be reached"):  # it has no such method
            await shards.call(1, Toy.wait, "")
        channel.close()
        await until(lambda: not open_now)
        listening.close()
        assert "the odd one is cut off" in caplog.text


async def test_the_directory_of_the_socket_is_ones_own() -> None:
    with tempfile.TemporaryDirectory(prefix="open-") as directory:
        os.chmod(directory, 0o755)
        with pytest.raises(PermissionError, match="other users"):
            await ShardServer({}, METHODS).listen(Path(directory) / "socket")


async def test_what_is_left_of_a_dead_process_is_replaced() -> None:
    with tempfile.TemporaryDirectory(prefix="left-") as directory:
        path = Path(directory) / "socket"
        left = socket.socket(socket.AF_UNIX)
        left.bind(str(path))
        left.close()
        listening = ShardServer({1: Toy()}, METHODS)  # type: ignore[dict-item]
        await listening.listen(path)
        channel = Channel(unix(path), "shard", "test")
        assert await RemoteShards(2, {}, {1: channel}, METHODS).call(1, Toy.echo, b"1") == b"1"
        channel.close()
        await listening.drain(1)
        await listening.close()
        assert not path.exists()
