"""WebSockets on raw frames: limits, UTF-8, slow and absent clients, the end."""

import asyncio
import contextlib
import json
import logging
import os
import socket
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
import websockets

from support.ws import BINARY, CLOSE, CONT, PING, PONG, TEXT, frame
from topics_gateway.transport import HttpServer, Limits

KEY = b"dGhlIHNhbXBsZSBub25jZQ=="


def upgrade(path: str = "/echo", *more: str, without: Sequence[str] = (), method: str = "GET") -> bytes:
    headers = {
        "host": "test",
        "upgrade": "websocket",
        "connection": "Upgrade",
        "sec-websocket-key": KEY.decode(),
        "sec-websocket-version": "13",
    }
    lines = [f"{name}: {value}" for name, value in headers.items() if name not in without]
    return "\r\n".join([f"{method} {path} HTTP/1.1", *lines, *more, "", ""]).encode()


class Raw:
    """A client without automatic replies."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def head(self) -> str:
        return (await self.reader.readuntil(b"\r\n\r\n")).decode()

    async def frame(self) -> tuple[int, bytes]:
        first, second = await self.reader.readexactly(2)
        assert first & 0x80
        assert not second & 0x80, "servers do not mask"
        size = second
        if second == 126:
            (size,) = struct.unpack("!H", await self.reader.readexactly(2))
        elif second == 127:
            (size,) = struct.unpack("!Q", await self.reader.readexactly(8))
        return first & 0x0F, await self.reader.readexactly(size)

    async def closed(self) -> tuple[int, str]:
        """The close frame, behind anything else; then the server's end."""
        while True:
            opcode, data = await self.frame()
            if opcode == CLOSE:
                assert await self.reader.read() == b""
                return int.from_bytes(data[:2], "big"), data[2:].decode()

    def send(self, *frames: bytes) -> None:
        self.writer.write(b"".join(frames))


class App:
    """Each path is one behaviour."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.got = asyncio.Semaphore(0)
        self.release = asyncio.Event()
        self.sent = 0
        self.failure: BaseException | None = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            body = json.dumps(scope["method"]).encode()
            headers = [(b"content-length", b"%d" % len(body))]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": body})
            return
        self.scope = scope
        assert (await receive())["type"] == "websocket.connect"
        await getattr(self, scope["path"].strip("/"))(receive, send)

    async def echo(self, receive: Any, send: Any, **accept: Any) -> None:
        await send({"type": "websocket.accept", **accept})
        while (message := await receive())["type"] == "websocket.receive":
            self.seen.append(message)
            await send({"type": "websocket.send"} | {k: v for k, v in message.items() if k != "type"})
        self.seen.append(message)
        assert await receive() == message
        self.got.release()

    async def utf8(self, receive: Any, send: Any) -> None:
        await self.echo(receive, send, utf8=True)

    async def headers(self, receive: Any, send: Any) -> None:
        await self.echo(receive, send, headers=[(b"x-more", b"yes")], subprotocol="two")

    async def hold(self, receive: Any, send: Any) -> None:
        """Take no message until it is released."""
        await send({"type": "websocket.accept"})
        await self.release.wait()
        while (message := await receive())["type"] == "websocket.receive":
            self.seen.append(message.get("text"))
        self.got.release()

    async def flood(self, receive: Any, send: Any) -> None:
        await send({"type": "websocket.accept"})
        with contextlib.suppress(ConnectionError):
            while True:
                await send({"type": "websocket.send", "text": "x" * 65536})
                self.sent += 65536
        self.seen.append(await receive())
        self.got.release()

    async def refuse(self, receive: Any, send: Any) -> None:
        headers = [(b"content-type", b"application/json"), (b"x-more", b"yes")]
        await send({"type": "websocket.http.response.start", "status": 401, "headers": headers})
        await send({"type": "websocket.http.response.body", "body": b'{"no', "more_body": True})
        await send({"type": "websocket.http.response.body", "body": b'":1}'})
        assert (await receive())["type"] == "websocket.disconnect"
        self.got.release()

    async def forbid(self, receive: Any, send: Any) -> None:
        await send({"type": "websocket.close"})

    async def close(self, receive: Any, send: Any) -> None:
        await send({"type": "websocket.accept"})
        await receive()
        await send({"type": "websocket.close", "code": 4000, "reason": "enough"})
        with pytest.raises(ConnectionError):
            await send({"type": "websocket.send", "text": "late"})
        assert (await receive())["type"] == "websocket.disconnect"
        self.got.release()

    async def returns(self, receive: Any, send: Any) -> None:
        await send({"type": "websocket.accept"})

    async def silent(self, receive: Any, send: Any) -> None:
        """Return without an answer."""

    async def fail(self, receive: Any, send: Any) -> None:
        raise LookupError("on purpose")

    async def fail_late(self, receive: Any, send: Any) -> None:
        await send({"type": "websocket.accept"})
        raise LookupError("on purpose")

    async def goodbye(self, receive: Any, send: Any) -> None:
        await send({"type": "websocket.accept"})
        await self.release.wait()
        await send({"type": "websocket.send", "text": "bye"})
        await send({"type": "websocket.close", "code": 1001})


class Service:
    def __init__(self, app: App, server: HttpServer) -> None:
        self.app = app
        self.server = server
        self.port = server.port
        self.clients: list[Raw] = []

    async def connect(self, buffer: int = 0) -> Raw:
        sock = socket.socket()
        if buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
        raw = Raw(*await asyncio.open_connection(sock=sock, limit=1 << 16))
        self.clients.append(raw)
        return raw

    async def open(self, path: str = "/echo", *more: str, buffer: int = 0) -> Raw:
        raw = await self.connect(buffer)
        raw.send(upgrade(path, *more))
        assert (await raw.head()).startswith("HTTP/1.1 101 ")
        return raw

    async def idle(self) -> None:
        while self.server.connections or self.server.requests:
            await asyncio.sleep(0.005)  # the server has no event for it


@pytest.fixture
def serve() -> Callable[..., contextlib.AbstractAsyncContextManager[Service]]:
    @contextlib.asynccontextmanager
    async def running(**limits: Any) -> AsyncIterator[Service]:
        sock = socket.socket()
        sock.bind(("127.0.0.1", 0))
        app = App()
        server = HttpServer(app, sock, Limits(**limits))
        await server.start()
        service = Service(app, server)
        try:
            yield service
        finally:
            for raw in service.clients:
                raw.writer.transport.abort()
                with contextlib.suppress(ConnectionError):
                    await raw.writer.wait_closed()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(service.idle(), 5)
            await server.stop(0)
        assert server.connections == 0
        assert server.requests == 0

    return running


def test_scope_and_handshake(run: Any, serve: Any) -> None:
    async def main() -> None:
        async with serve() as service:
            raw = await service.connect()
            raw.send(upgrade("/he%61ders?a=b", "Sec-WebSocket-Protocol: one, two", "Authorization: Bearer k"))
            head = await raw.head()
            assert "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in head
            assert "x-more: yes" in head
            assert "Sec-WebSocket-Protocol: two" in head
            assert "Extensions" not in head
            scope = service.app.scope
            assert scope["path"] == "/headers"
            assert scope["raw_path"] == b"/he%61ders"
            assert scope["query_string"] == b"a=b"
            assert scope["subprotocols"] == ["one", "two"]
            assert (b"authorization", b"Bearer k") in scope["headers"]
            raw.send(frame(TEXT, b"hi"), frame(BINARY, b"\0\1"), frame(PING, b"p"))
            assert sorted([await raw.frame() for _ in range(3)]) == [(TEXT, b"hi"), (BINARY, b"\0\1"), (PONG, b"p")]
            raw.send(frame(CLOSE, b"\x0f\xa1why"))
            assert await raw.closed() == (4001, "why")
            await service.app.got.acquire()
            assert service.app.seen[-1] == {"type": "websocket.disconnect", "code": 4001, "reason": "why"}
            await service.idle()

    run(main())


def test_frames_that_come_with_the_request(run: Any, serve: Any) -> None:
    async def main() -> None:
        async with serve() as service:
            raw = await service.connect()
            raw.send(upgrade(), frame(TEXT, b"early"))
            await raw.head()
            assert await raw.frame() == (TEXT, b"early")
            raw = await service.connect()
            raw.send(upgrade(), b"\xff" * 100)  # no frame of RFC 6455
            await raw.head()
            assert (await raw.closed())[0] == 1002

    run(main())


@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        (upgrade(without=["sec-websocket-key"]), 400),
        (upgrade(without=["sec-websocket-version"]), 426),
        (upgrade("/echo", "Sec-WebSocket-Version: 8", without=["sec-websocket-version"]), 426),
        (upgrade("/echo", "Sec-WebSocket-Version: 13"), 426),
        (upgrade("/echo", "Sec-WebSocket-Key: short", without=["sec-websocket-key"]), 400),
        (upgrade("/echo", "Sec-WebSocket-Key: " + KEY.decode()), 400),
        (upgrade("http:///"), 400),
        (upgrade("/" + "a" * 70_000), 431),
    ],
)
def test_malformed_upgrades(run: Any, serve: Any, request_head: bytes, status: int) -> None:
    async def main() -> None:
        async with serve() as service:
            raw = await service.connect()
            raw.send(request_head)
            head = (await raw.head()).lower()
            assert head.startswith(f"http/1.1 {status} ")
            for field in ("sec-websocket-version: 13", "upgrade: websocket"):  # RFC 6455, 4.4; RFC 9110, 15.5.22
                assert (f"\r\n{field}\r\n" in head) is (status == 426)
            body = json.loads(await raw.reader.read())
            assert body["error"]["code"] == "invalid_request"
            assert body["error"]["message"]
            assert body["performance"]["server_total_ms"] >= 0

    run(main())


@pytest.mark.parametrize(
    "request_head",
    [
        upgrade(without=["upgrade"]),
        upgrade(without=["connection"]),
        upgrade("/echo", "Upgrade: h2c", without=["upgrade"]),
        upgrade(method="DELETE"),
        upgrade().replace(b"HTTP/1.1", b"HTTP/1.0", 1),
    ],
)
def test_what_is_no_upgrade_is_a_plain_request(run: Any, serve: Any, request_head: bytes) -> None:
    async def main() -> None:
        async with serve() as service:
            raw = await service.connect()
            raw.send(request_head)
            assert (await raw.head()).startswith("HTTP/1.1 200 ")

    run(main())


def test_refusals(run: Any, serve: Any) -> None:
    async def main() -> None:
        async with serve() as service:
            raw = await service.connect()
            raw.send(upgrade("/refuse"), frame(TEXT, b"x" * 1000))
            head = await raw.head()
            assert head.startswith("HTTP/1.1 401 ")
            assert "x-more: yes" in head
            assert "connection: close" in head
            assert await raw.reader.read() == b'{"no":1}'
            await service.app.got.acquire()
            raw = await service.connect()
            raw.send(upgrade("/forbid"))
            assert (await raw.head()).startswith("HTTP/1.1 403 ")
            raw.writer.transport.abort()
            await service.idle()

    run(main())


def test_texts_as_bytes(run: Any, serve: Any) -> None:
    async def main() -> None:
        async with serve() as service:
            raw = await service.open("/utf8")
            for text in ("plain", "äöü", "x" * 200, "é" * 40_000):
                raw.send(frame(TEXT, text.encode()))
                assert await raw.frame() == (TEXT, text.encode())
            assert [message["text"] for message in service.app.seen[:2]] == [b"plain", "äöü".encode()]

    run(main())


@pytest.mark.parametrize("path", ["/echo", "/utf8"])
def test_text_must_be_utf8(run: Any, serve: Any, path: str) -> None:
    async def main() -> None:
        async with serve() as service:
            raw = await service.open(path)
            raw.send(frame(TEXT, b"\xc3", fin=False), frame(CONT, b"\xa4"))  # a character over two frames
            assert await raw.frame() == (TEXT, "ä".encode())
            raw.send(frame(TEXT, b"a\xff"), frame(TEXT, b"not taken"))
            assert (await raw.closed())[0] == 1007
            await service.app.got.acquire()
            assert [message["type"] for message in service.app.seen] == ["websocket.receive", "websocket.disconnect"]

    run(main())


def test_the_size_limit_counts_whole_messages(run: Any, serve: Any) -> None:
    async def main() -> None:
        async with serve(ws_max_size=1000) as service:
            raw = await service.open()
            raw.send(frame(TEXT, b"x" * 1000))
            assert await raw.frame() == (TEXT, b"x" * 1000)
            raw.send(frame(TEXT, b"y" * 500, fin=False), frame(PING), frame(CONT, b"y" * 500))
            assert await raw.frame() == (PONG, b"")
            assert await raw.frame() == (TEXT, b"y" * 500 + b"y" * 500)
            raw.send(frame(TEXT, b"z" * 500, fin=False), frame(CONT, b"z" * 501))
            assert (await raw.closed())[0] == 1009
            raw = await service.open()
            raw.send(frame(TEXT, size=1 << 40))  # known by its head alone
            raw.send(b"x" * 300_000)  # and what follows is dropped, so that the close frame is read
            assert (await raw.closed())[0] == 1009

    run(main())


@pytest.mark.parametrize(("body", "end"), [(b"\x0f\xa1why", (4001, "why")), (b"\x03\xe8", (1000, "")), (b"", None)])
def test_a_close_between_fragments_is_answered_with_a_close(
    run: Any, serve: Any, body: bytes, end: tuple[int, str] | None
) -> None:
    """RFC 6455, 5.4: control frames may come in the middle of a message, and the application does not see them."""

    async def main() -> None:
        async with serve() as service:
            raw = await service.open()
            raw.send(frame(TEXT, b"a", fin=False), frame(PING, b"p"), frame(CONT, b"b", fin=False), frame(CLOSE, body))
            assert [await raw.frame() for _ in range(2)] == [(PONG, b"p"), (CLOSE, body)]
            assert await raw.reader.read() == b""
            await service.app.got.acquire()
            code, reason = end or (1005, "")
            assert service.app.seen[-1] == {"type": "websocket.disconnect", "code": code, "reason": reason}
            await service.idle()

    run(main())


@pytest.mark.parametrize(
    "frames",
    [
        [frame(3)],
        [frame(CONT)],
        [frame(TEXT, fin=False), frame(TEXT)],
        [frame(PING, b"x" * 126)],
        [frame(PING, fin=False)],
        [b"\x81\x02hi"],  # not masked
        [b"\xc1\x80\0\0\0\0"],  # a reserved bit: compressed, which was not agreed on
        [frame(TEXT, fin=False), frame(CLOSE, b"\0")],
        [frame(CLOSE, b"\0")],
    ],
)
def test_frames_against_the_rules(run: Any, serve: Any, frames: list[bytes]) -> None:
    async def main() -> None:
        async with serve() as service:
            raw = await service.open()
            raw.send(*frames)
            assert (await raw.closed())[0] == 1002
            await service.app.got.acquire()
            raw.writer.close()
            await service.idle()

    run(main())


def test_endless_fragments_take_no_memory(run: Any, serve: Any) -> None:
    async def main() -> None:
        async with serve(ws_max_size=100) as service:
            raw = await service.open()
            raw.send(frame(TEXT, b"a", fin=False))
            for _ in range(9):
                raw.send(frame(CONT, fin=False) * 100)
                await raw.writer.drain()
            raw.send(frame(CONT, b"b"))
            assert await raw.frame() == (TEXT, b"ab")
            raw.send(frame(TEXT, b"a", fin=False), *[frame(CONT, fin=False)] * 100_000)
            assert (await raw.closed())[0] == 1008  # and by then it is not read any more

    run(main())


def test_reading_stops_while_messages_wait(run: Any, serve: Any) -> None:
    async def main() -> None:
        async with serve() as service:
            raw = await service.open("/hold")
            piece = frame(TEXT, b"x" * 10) * 1000
            sent = 0
            with contextlib.suppress(TimeoutError):
                while sent * 16 < 32 << 20:
                    raw.send(piece)
                    sent += 1000
                    await asyncio.wait_for(raw.writer.drain(), 0.2)
            assert sent * 16 < 16 << 20  # what two kernels and one read of the server take
            service.app.release.set()
            raw.send(frame(CLOSE))
            assert (await raw.closed())[0] == 0  # an empty one
            await service.app.got.acquire()
            assert len(service.app.seen) == sent

    run(main())


def test_a_client_that_reads_slowly_gets_everything(run: Any, serve: Any) -> None:
    async def main() -> None:
        async with serve(send_timeout=0.5, ws_ping_interval=0.05, ws_ping_timeout=0.05) as service:
            raw = await service.open("/flood", buffer=4096)
            for _ in range(20):
                await asyncio.sleep(0.1)  # longer than the timeouts, in all
                opcode, data = await raw.frame()
                assert opcode == PING or len(data) == 65536
            assert service.app.sent < 16 << 20

    run(main())


def test_a_client_that_never_reads_is_closed(run: Any, serve: Any) -> None:
    async def main() -> None:
        async with serve(send_timeout=0.2) as service:
            raw = await service.open("/flood", buffer=4096)
            raw.writer.transport.pause_reading()
            await service.app.got.acquire()
            assert service.app.seen[0]["code"] == 1013
            # Within the moment that it is given, it finds out why.
            raw.writer.transport.resume_reading()
            assert await raw.closed() == (1013, "the client did not read for too long")
            await service.idle()
            raw = await service.open("/flood", buffer=4096)
            raw.writer.transport.pause_reading()
            await service.app.got.acquire()
            await service.idle()  # after it

    run(main())


def test_pings_of_a_client_that_never_reads_take_no_memory(run: Any, serve: Any) -> None:
    async def main() -> None:
        async with serve() as service:
            raw = await service.open("/flood", buffer=4096)
            raw.writer.transport.pause_reading()
            sent = -1
            while sent != service.app.sent or not sent:  # until the buffers are full
                sent = service.app.sent
                await asyncio.sleep(0.2)
            (protocol,) = service.server._registry.connections
            before = protocol.transport.get_write_buffer_size()
            for i in range(900):
                raw.send(frame(PING, b"%d" % i))
            await raw.writer.drain()
            while protocol._late_pong[2:] != b"899":
                await asyncio.sleep(0.01)
            assert protocol.transport.get_write_buffer_size() <= before
            raw.writer.transport.resume_reading()
            async with asyncio.timeout(10):
                while (await raw.frame()) != (PONG, b"899"):
                    pass

    run(main())


def test_half_open_connections_end(run: Any, serve: Any) -> None:
    async def main() -> None:
        async with serve(ws_ping_interval=0.05, ws_ping_timeout=1) as service:
            raw = await service.open()
            assert await raw.frame() == (PING, b"")
            assert await raw.closed() == (1011, "no answer to a ping")
            await service.app.got.acquire()
            assert service.app.seen[-1]["code"] == 1011
            raw.writer.close()
            await service.idle()
            # An answer of any kind keeps it, also in the middle of a message.
            raw = await service.open()
            for _ in range(5):
                assert await raw.frame() == (PING, b"")
                raw.send(frame(CONT if raw.reader.at_eof() else PONG))
            raw.send(frame(TEXT, b"x" * 10)[:4])
            for _ in range(5):
                assert await raw.frame() == (PING, b"")
                raw.send(frame(TEXT, b"x" * 10)[4:5])

    run(main())


def test_closing(run: Any, serve: Any) -> None:
    async def main() -> None:
        async with serve() as service:
            async with websockets.connect(f"ws://127.0.0.1:{service.port}/close", proxy=None) as client:
                await client.send("x")
                with pytest.raises(websockets.ConnectionClosedError) as caught:
                    await client.recv()
                assert (caught.value.rcvd.code, caught.value.rcvd.reason) == (4000, "enough")
            await service.app.got.acquire()
            raw = await service.open("/returns")
            assert await raw.frame() == (CLOSE, b"\x03\xe8")
            raw.send(frame(TEXT, b"not taken"), frame(PING, b"x"), frame(CLOSE, b"\x03\xe8"))
            assert await raw.frame() == (PONG, b"x")
            assert await raw.reader.read() == b""
            await service.idle()

    run(main())


def test_a_client_that_leaves_without_a_word(run: Any, serve: Any) -> None:
    async def main() -> None:
        async with serve() as service:
            for leave in ("close", "abort"):
                raw = await service.open()
                raw.send(frame(TEXT, b"x"))
                await raw.frame()
                getattr(raw.writer.transport, leave)()
                await service.app.got.acquire()
                assert service.app.seen[-1]["code"] == 1006
                await service.idle()

    run(main())


def test_failures_of_the_application(run: Any, serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with serve() as service:
            for path in ("/fail", "/silent"):
                raw = await service.connect()
                raw.send(upgrade(path))
                assert (await raw.head()).startswith("HTTP/1.1 500 ")
                assert json.loads(await raw.reader.read())["error"]["code"] == "internal"
            raw = await service.open("/fail_late")
            raw.send(frame(CLOSE, b"\x03\xf3"))
            assert await raw.closed() == (1011, "internal error")
        errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
        assert errors == [
            "exception in the application: WebSocket /fail",
            "no answer by the application: WebSocket /silent",
            "exception in the application: WebSocket /fail_late",
        ]
        caplog.clear()

    run(main())


def test_stop(run: Any, serve: Any) -> None:
    async def main() -> None:
        async with serve() as service:
            waiting, polite = await service.open(), await service.open("/goodbye")
            slow = await service.open("/flood", buffer=4096)
            slow.writer.transport.pause_reading()
            stopping = asyncio.create_task(service.server.stop(20))
            await asyncio.sleep(0)
            service.app.release.set()
            assert await polite.frame() == (TEXT, b"bye")
            assert await polite.frame() == (CLOSE, b"\x03\xe9")
            polite.send(frame(CLOSE, b"\x03\xe9"))
            assert await waiting.frame() == (CLOSE, b"\x03\xf4the server is shutting down")
            waiting.send(frame(CLOSE, b"\x03\xf4"))
            await asyncio.wait_for(stopping, 8)  # although one does not read

    run(main())


def test_many_come_and_go(run: Any, serve: Any) -> None:
    async def main() -> None:
        async with serve() as service:
            files = len(os.listdir("/proc/self/fd"))
            for i in range(500):
                raw = await service.open()
                if i % 3 == 0:
                    raw.send(frame(TEXT, b"x"), frame(CLOSE))
                elif i % 3 == 1:
                    raw.send(frame(TEXT, b"x" * 20)[:9])
                raw.writer.transport.abort()
                service.clients.clear()
            await service.idle()
            async with asyncio.timeout(20):
                while len(os.listdir("/proc/self/fd")) > files:
                    await asyncio.sleep(0.01)

    run(main())
