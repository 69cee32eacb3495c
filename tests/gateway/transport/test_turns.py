"""Much work in few bytes: it is done in small steps, others have their turn in between, and in order all the same."""

import asyncio
import struct
from typing import Any

import pytest

from support import http2
from support.http2 import block, h2frame
from support.ws import CONT, PING, TEXT, frame, upgrade
from topics_gateway.transport.h2c import Http2Protocol
from topics_gateway.transport.http1 import Http1Protocol
from topics_gateway.transport.websocket import WebSocketProtocol
from topics_net.sliced_protocol import BUSY

CHUNKS = 60_000


@pytest.fixture
def fed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of bytes parsed in each step."""
    sizes: list[int] = []
    for protocol in (Http1Protocol, Http2Protocol):
        feed: Any = protocol._feed

        def feeding(self: Any, data: bytes, feed: Any = feed) -> Any:
            sizes.append(len(data))
            return feed(self, data)

        monkeypatch.setattr(protocol, "_feed", feeding)
    return sizes


def test_chunks_of_a_byte(run: Any, serve: Any, fed: list[int]) -> None:
    async def main() -> None:
        async with serve() as service:
            reader, writer = await service.connect()
            writer.write(b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
            writer.write(b"".join(b"1\r\n%c\r\n" % (97 + n % 26) for n in range(CHUNKS)) + b"0\r\n\r\n")
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
            assert head.startswith(b"HTTP/1.1 200")
            body = await asyncio.wait_for(reader.readexactly(CHUNKS), 30)
            assert body == bytes(97 + n % 26 for n in range(CHUNKS))

    run(main())
    assert max(fed) <= Http1Protocol.FIRST_BYTES
    assert sum(size > Http1Protocol.MIN_BYTES for size in fed) <= 2, fed[:10]


def test_chunks_that_are_just_calm_are_not_one_step(run: Any, serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices that are little work each are much together."""
    slices: list[int] = []
    whole = Http1Protocol._parse_backlog
    feed: Any = Http1Protocol._feed

    def step(self: Any) -> None:
        slices.append(0)
        whole(self)

    def feeding(self: Any, data: bytes) -> int:
        work: int = feed(self, data)
        if slices:
            slices[-1] += work
        return work

    monkeypatch.setattr(Http1Protocol, "_parse_backlog", step)
    monkeypatch.setattr(Http1Protocol, "_feed", feeding)
    chunk = b"28\r\n" + b"x" * 40 + b"\r\n"

    async def main() -> None:
        async with serve() as service:
            reader, writer = await service.connect()
            writer.write(b"POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
            writer.write(chunk * 5000 + b"0\r\n\r\n")
            await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
            await asyncio.wait_for(reader.readexactly(200_000), 30)

    run(main())
    assert sum(calls > 3 * BUSY for calls in slices) <= 2, slices[:10]


def test_a_long_pipeline(run: Any, serve: Any, fed: list[int]) -> None:
    async def main() -> None:
        async with serve() as service:
            reader, writer = await service.connect()
            count = 5000
            writer.write(
                b"".join(
                    b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 6\r\n\r\n%06d" % n for n in range(count)
                )
            )
            for n in range(count):
                await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
                assert await reader.readexactly(6) == b"%06d" % n

    run(main())
    assert max(fed) <= Http1Protocol.FIRST_BYTES
    assert sum(size > 2 * Http1Protocol.MIN_BYTES for size in fed) <= 2, fed[:10]


def test_large_bodies_go_in_large_steps(run: Any, serve: Any, fed: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """And what one read brought waits for no turn: each would be one of all other connections."""
    waited: list[int] = []
    go_on: Any = Http1Protocol._schedule

    def going_on(self: Any) -> None:
        waited.append(len(self._backlog))
        go_on(self)

    monkeypatch.setattr(Http1Protocol, "_schedule", going_on)

    async def main() -> None:
        async with serve() as service:
            reader, writer = await service.connect()
            body = bytes(3 << 20)
            writer.write(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
            assert await reader.readexactly(len(body)) == body

    run(main())
    assert Http1Protocol.FIRST_BYTES < max(fed) <= Http1Protocol.MAX_BYTES
    assert waited == []


def test_a_socket_that_begins_behind_much_else(run: Any, serve: Any) -> None:
    """Bytes behind the upgrade belong to the socket, however they were split."""

    async def main() -> None:
        async with serve() as service:
            reader, writer = await service.connect()
            texts = [b"%d" % n * 3000 for n in range(30)]
            writer.write(upgrade("/echo", {}) + b"".join(frame(TEXT, text) for text in texts))
            await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
            for text in texts:
                head = await asyncio.wait_for(reader.readexactly(2), 10)
                size = head[1] if head[1] < 126 else int.from_bytes(await reader.readexactly(2), "big")
                assert await reader.readexactly(size) == text
            writer.close()

    run(main())


def test_http2_frames_of_a_byte(run: Any, serve: Any, fed: list[int]) -> None:
    fields = [(":method", "POST"), (":path", "/echo"), (":scheme", "http"), (":authority", "x")]
    data = h2frame(http2.HEADERS, http2.END_HEADERS, 1, block(fields)) + h2frame(http2.DATA, 0, 1, b"x") * 20_000

    async def main() -> None:
        async with serve() as service:
            reader, writer = await service.connect()
            writer.write(http2.PREFACE + h2frame(http2.SETTINGS) + data + h2frame(http2.PING, data=b"the-end!"))
            await asyncio.wait_for(reader.readuntil(b"the-end!"), 30)
            writer.close()
            await service.idle()

    run(main())
    assert max(fed) <= Http2Protocol.MAX_BYTES
    assert sum(size > Http2Protocol.MIN_BYTES for size in fed) <= 3, fed[:10]


def test_websocket_fragments_of_a_byte(run: Any, serve: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    taken, steps = [0], [0]
    take: Any = WebSocketProtocol._take

    def taking(self: Any, event: Any) -> None:
        taken[0] += 1
        take(self, event)

    monkeypatch.setattr(WebSocketProtocol, "_take", taking)
    for name in ("data_received", "_parse_backlog"):
        step: Any = getattr(WebSocketProtocol, name)

        def stepping(self: Any, *data: bytes, step: Any = step) -> None:
            before = taken[0]
            step(self, *data)
            steps.append(taken[0] - before)

        monkeypatch.setattr(WebSocketProtocol, name, stepping)

    async def main() -> None:
        async with serve() as service:
            reader, writer = await service.connect()
            writer.write(upgrade("/echo", {}) + frame(TEXT, b"a", fin=False))
            writer.write(frame(CONT, b"b", fin=False) * 20_000 + frame(CONT, b"c"))
            await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
            assert await asyncio.wait_for(reader.readexactly(4), 30) == b"\x81\x7e" + struct.pack("!H", 20_002)
            assert await reader.readexactly(20_002) == b"a" + b"b" * 20_000 + b"c"
            writer.close()

    run(main())
    assert sum(count > 160 for count in steps) <= 2, sorted(steps)[-5:]


@pytest.mark.parametrize("silence", [frame(CONT, fin=False), frame(PING, b"x")], ids=["fragments", "pings"])
def test_websocket_frames_that_say_nothing(run: Any, serve: Any, silence: bytes) -> None:
    async def main() -> None:
        async with serve() as service:
            reader, writer = await service.connect()
            writer.write(upgrade("/echo", {}) + frame(TEXT, b"a", fin=False) + silence * 900)
            writer.write(frame(CONT, b"b"))
            await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
            heard = b""
            while b"\x81\x02ab" not in heard:
                heard += await asyncio.wait_for(reader.read(65536), 10)
            writer.write(frame(TEXT, b"a", fin=False) + silence * 5000)
            heard = b""
            while more := await asyncio.wait_for(reader.read(65536), 10):
                heard += more
            at = heard.index(b"\x88")
            assert heard[at + 2 : at + 4] == struct.pack("!H", 1008)

    run(main())
