"""A real server on port 0, an application that shows what it is given, and clients down to raw sockets."""

import asyncio
import contextlib
import json
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import h2.config
import h2.connection
import h2.events
import httpx
import pytest
import uvloop

from support.complaints import collect_complaints
from topics_gateway.transport import HttpServer, Limits

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a coroutine on each kind of loop; an exception that reached the loop fails the test."""

    def runner(main: Coroutine[Any, Any, None]) -> None:
        caught: list[dict[str, Any]] = []

        async def guarded() -> None:
            nonlocal caught
            loop = asyncio.get_running_loop()
            caught = collect_complaints(loop)
            loop.slow_callback_duration = 10  # a busy machine is no failure under `python -X dev`
            async with asyncio.timeout(30):
                await main

        factory = uvloop.new_event_loop if request.param == "uvloop" else None
        with asyncio.Runner(loop_factory=factory) as runs:
            runs.run(guarded())
        assert caught == []

    return runner


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Nothing is logged, unless the test looks at the records and clears them."""
    yield
    records = [record for record in caplog.get_records("call") if record.levelno >= logging.WARNING]
    assert [record.getMessage() for record in records] == []


class App:
    """Each path is one behaviour; the events tell a test what the application has seen."""

    def __init__(self) -> None:
        self.started = asyncio.Semaphore(0)
        self.disconnected = asyncio.Semaphore(0)
        self.cancelled = asyncio.Semaphore(0)
        self.release = asyncio.Event()
        self.read = 0
        self.sent = 0
        self.running = 0
        self.peak = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await self.websocket(receive, send)
            return
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            await getattr(self, scope["path"].strip("/").replace("-", "_") or "scope", self.scope)(scope, receive, send)
        except asyncio.CancelledError:
            self.cancelled.release()
            raise
        finally:
            self.running -= 1

    async def answer(self, send: Any, body: bytes = b"ok", status: int = 200) -> None:
        headers = [(b"content-length", b"%d" % len(body))] if status != 204 else []
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def body(self, receive: Any) -> bytes:
        parts = []
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.disconnected.release()
                return b"".join(parts)
            parts.append(message["body"])
            self.read += len(message["body"])
            if not message["more_body"]:
                return b"".join(parts)

    async def scope(self, scope: Any, receive: Any, send: Any) -> None:
        shown = {k: v.decode() if isinstance(v, bytes) else v for k, v in scope.items()}
        del shown["state"]  # what it holds is no text
        shown["headers"] = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in scope["headers"]]
        await self.answer(send, json.dumps(shown).encode())

    async def echo(self, scope: Any, receive: Any, send: Any) -> None:
        await self.answer(send, await self.body(receive))

    async def stream(self, scope: Any, receive: Any, send: Any) -> None:
        """Echo each part of the body at once."""
        await send({"type": "http.response.start", "status": 200, "headers": []})
        self.started.release()
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.disconnected.release()
                return
            more = message["more_body"]
            await send({"type": "http.response.body", "body": message["body"], "more_body": more})

    async def big(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        self.started.release()
        for _ in range(int(scope["query_string"])):
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
            self.sent += 65536
        await send({"type": "http.response.body", "body": b""})

    async def timeout_event(self, scope: Any, receive: Any, send: Any) -> None:
        scope["state"]["timeout_event"] = b"the end"
        await self.big(scope, receive, send)

    async def wait(self, scope: Any, receive: Any, send: Any) -> None:
        """A long poll: ends when the client does."""
        await self.body(receive)
        self.started.release()
        assert (await receive())["type"] == "http.disconnect"
        self.disconnected.release()

    async def hold(self, scope: Any, receive: Any, send: Any) -> None:
        await self.body(receive)
        self.started.release()
        await self.release.wait()
        await self.answer(send)

    async def hold_unread(self, scope: Any, receive: Any, send: Any) -> None:
        self.started.release()
        await self.release.wait()
        await self.answer(send, await self.body(receive))

    async def half(self, scope: Any, receive: Any, send: Any) -> None:
        """Send a part of the response, then hold."""
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"first,", "more_body": True})
        self.started.release()
        await self.release.wait()
        await send({"type": "http.response.body", "body": b"last"})

    async def early(self, scope: Any, receive: Any, send: Any) -> None:
        await self.answer(send, b"no", 413)

    async def nothing(self, scope: Any, receive: Any, send: Any) -> None:
        await self.answer(send, b"", 204)

    async def fail(self, scope: Any, receive: Any, send: Any) -> None:
        raise LookupError("on purpose")

    async def fail_late(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"part", "more_body": True})
        raise LookupError("on purpose")

    async def silent(self, scope: Any, receive: Any, send: Any) -> None:
        """Return without a response."""

    async def after(self, scope: Any, receive: Any, send: Any) -> None:
        await self.answer(send)
        assert (await receive())["type"] == "http.disconnect"

    async def date(self, scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"date", b"mine"), (b"Connection", b"keep-alive"), (b"X-Case", b"Kept")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    async def websocket(self, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "websocket.connect"
        await send({"type": "websocket.accept"})
        self.started.release()
        while (message := await receive())["type"] == "websocket.receive":
            await send({"type": "websocket.send", "text": message["text"]})
        self.disconnected.release()


async def refused(port: int) -> None:
    """Wait until the port is closed."""
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionRefusedError:
            return
        except ConnectionResetError:
            continue
        writer.close()


class Service:
    """A running server with its application."""

    def __init__(self, app: App, server: HttpServer) -> None:
        self.app = app
        self.server = server
        self.port = server.port
        self.writers: list[asyncio.StreamWriter] = []
        self.url = f"http://127.0.0.1:{self.port}"

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 24)
        self.writers.append(writer)
        return reader, writer

    async def hang_up(self) -> None:
        for writer in self.writers:
            writer.transport.abort()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    def client(self, version: str) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=300)
        return httpx.AsyncClient(
            base_url=self.url,
            http1=version == "1.1",
            http2=version == "2",
            limits=limits,
            timeout=20,
            trust_env=False,
            verify=False,  # there is no TLS, and reading the certificates of all authorities takes 30 ms
        )

    async def refuses(self) -> None:
        await refused(self.port)

    async def idle(self) -> None:
        """Wait until no connection and no task is left."""
        while self.server.connections or self.server.requests:
            await asyncio.sleep(0.005)  # the server has no event for it


Serve = Callable[..., contextlib.AbstractAsyncContextManager[Service]]


@pytest.fixture
def serve() -> Serve:
    """`async with serve(**limits) as service`: stops at the end and checks that nothing is left."""

    @contextlib.asynccontextmanager
    async def running(tls: ssl.SSLContext | None = None, **limits: Any) -> AsyncIterator[Service]:
        sock = socket.socket()
        sock.bind(("127.0.0.1", 0))
        app = App()
        server = HttpServer(app, sock, Limits(**limits), tls=tls)
        await server.start()
        service = Service(app, server)
        try:
            yield service
        finally:
            await service.hang_up()
            await server.stop(0)
        assert server.connections == 0
        assert server.requests == 0
        assert app.running == 0

    return running


class GoawayTolerant(h2.connection.H2ConnectionStateMachine):
    """h2 (and so httpx) gives up at GOAWAY; real clients finish their streams first, and so must this one."""

    _transitions = h2.connection.H2ConnectionStateMachine._transitions | {
        (h2.connection.ConnectionState.CLIENT_OPEN, goaway): (None, h2.connection.ConnectionState.CLIENT_OPEN)
        for goaway in (h2.connection.ConnectionInputs.SEND_GOAWAY, h2.connection.ConnectionInputs.RECV_GOAWAY)
    }


class H2Client:
    """An HTTP/2 client without automatic replies; windows open only if `acknowledge` is on."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="ascii"))
        self.h2.state_machine = GoawayTolerant()
        self.events: list[h2.events.Event] = []
        self.acknowledge = True
        self.closed = False

    async def flush(self) -> None:
        self.writer.write(self.h2.data_to_send())
        await self.writer.drain()

    async def request(
        self, path: str, method: str = "GET", *, end: bool = True, headers: tuple[tuple[str, str], ...] = ()
    ) -> int:
        stream_id = self.h2.get_next_available_stream_id()
        fields = [(":method", method), (":path", path), (":scheme", "http"), (":authority", "test"), *headers]
        self.h2.send_headers(stream_id, fields, end_stream=end)
        await self.flush()
        return int(stream_id)

    async def until(self, kind: type, stream_id: int | None = None) -> Any:
        """Read until such an event has come (events that came before count); None at the end of the connection."""
        seen = 0
        while True:
            for event in self.events[seen:]:
                if isinstance(event, kind) and stream_id in (None, getattr(event, "stream_id", None)):
                    return event
            seen = len(self.events)
            if self.closed:
                return None
            await self.read()

    async def read(self) -> None:
        try:
            data = await self.reader.read(1 << 20)
        except ConnectionResetError:
            data = b""
        if not data:
            self.closed = True
            return
        for event in self.h2.receive_data(data):
            self.events.append(event)
            if self.acknowledge and isinstance(event, h2.events.DataReceived):
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        await self.flush()

    def body(self, stream_id: int) -> bytes:
        return b"".join(
            event.data
            for event in self.events
            if isinstance(event, h2.events.DataReceived) and event.stream_id == stream_id
        )

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


@pytest.fixture
def h2_connect() -> Callable[[Service], Coroutine[Any, Any, H2Client]]:
    async def connect(service: Service) -> H2Client:
        client = H2Client(*await service.connect())
        client.h2.initiate_connection()
        await client.flush()
        return client

    return connect
