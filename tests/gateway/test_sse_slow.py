"""Watch streams through the whole gateway and a real socket, for tests that reach into the server."""

import asyncio
import contextlib
import json
import re
import socket
from collections.abc import AsyncIterator
from typing import Any

import h2.config
import h2.connection
import h2.errors
import h2.events
import httpx
import pytest

from topics_gateway import GatewaySettings, create_app
from topics_gateway.transport import HttpServer, Limits
from topics_service.api.topics import TopicsApi
from topics_service.engine.model import AppendRequest, Batch

SEND_TIMEOUT = 0.4
RECORD = b'"%b"' % (b"x" * 4000)


class Service:
    """A server on a port, and a client for what is not a stream."""

    def __init__(self, api: TopicsApi, server: HttpServer, client: httpx.AsyncClient) -> None:
        self.api = api
        self.server = server
        self.port = server.port
        self.client = client

    async def session(self, topic: str, **body: Any) -> str:
        """The path of a new session's stream."""
        await self.client.put(f"/v0/topics/{topic}", json={})
        reply = await self.client.post("/v0/watch", json={"topics": {topic: {}}, **body})
        return str(reply.json()["stream_url"])

    async def write(self, topic: str, count: int) -> None:
        engine = self.api._engine
        for _ in range(count // 100):
            engine.append(AppendRequest(topic=topic, batch=Batch(datas=[RECORD] * 100)))
        engine.sync()

    async def until(self, connections: int) -> None:
        async with asyncio.timeout(10):
            while self.api.metrics.watch.connections != connections:
                await asyncio.sleep(0.01)


@pytest.fixture
async def service(api: TopicsApi, settings: GatewaySettings) -> AsyncIterator[Service]:
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    server = HttpServer(create_app(api, settings), sock, Limits(send_timeout=SEND_TIMEOUT))
    await server.start()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", trust_env=False, verify=False) as client:
        yield Service(api, server, client)
    await server.stop(0)


@contextlib.asynccontextmanager
async def connected(service: Service, data: bytes) -> AsyncIterator[socket.socket]:
    """A socket that sent `data`, with a small receive buffer."""
    loop = asyncio.get_running_loop()
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        sock.setblocking(False)
        await loop.sock_connect(sock, ("127.0.0.1", service.port))
        await loop.sock_sendall(sock, data)
        yield sock


def get(url: str, place: str = "") -> bytes:
    last = f"Last-Event-ID: {place}\r\n" if place else ""
    return f"GET {url} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n{last}\r\n".encode()


async def read_all(sock: socket.socket) -> bytes:
    """Everything until the other side closes."""
    received = b""
    while data := await asyncio.get_running_loop().sock_recv(sock, 1 << 20):
        received += data
    return received


def unchunk(data: bytes) -> str:
    """The body of a response with its chunks put together, and complete."""
    data = data.partition(b"\r\n\r\n")[2]
    body = b""
    while True:
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        if not length:
            assert data == b"\r\n"
            return body.decode()
        assert data[length : length + 2] == b"\r\n"
        body, data = body + data[:length], data[length + 2 :]


async def test_a_client_that_takes_nothing_gets_an_error_and_resumes_without_loss(service: Service) -> None:
    url = await service.session("t", limit=50)
    await service.write("t", 1000)
    async with connected(service, get(url)) as sock:
        await service.until(1)
        await service.until(0)  # its slot is free before the connection is
        text = unchunk(await read_all(sock))
    *events, last, rest = text.split("\n\n")
    assert rest == ""
    assert last.startswith('event: error\ndata: {"code":408,"error":"')
    seen = [record["$seq"] for event in events if "data: " in event for record in read_data(event)["records"]]
    assert seen == list(range(1, len(seen) + 1))
    assert 0 < len(seen) < 1000
    place = re.findall(r"^id: (.*)$", text, re.MULTILINE)[-1]
    async with service.client.stream("GET", url, headers={"last-event-id": place}) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: ") and '"records"' in line:
                seen += [record["$seq"] for record in read_data(line)["records"]]
            if line == "event: caught-up":
                break
    assert seen == list(range(1, 1001))


async def test_a_session_of_a_client_that_took_nothing_stands_where_frames_were_handed_over(service: Service) -> None:
    """Not where the log is: what waits in no buffer is read again."""
    url = await service.session("t", limit=50)
    await service.write("t", 1000)
    async with connected(service, get(url)):
        await service.until(1)
        await service.until(0)
    session = service.api.watches._sessions.find(url.rpartition("/")[2])
    assert session.cursors["t"] < 500


async def test_a_client_that_reads_slowly_is_not_cut_off(service: Service) -> None:
    url = await service.session("t", limit=1000, max_batch_bytes=8 << 20)
    await service.write("t", 300)
    loop = asyncio.get_running_loop()
    async with connected(service, get(url)) as sock:
        received = b""
        until = loop.time() + 4 * SEND_TIMEOUT
        while loop.time() < until:
            received += await loop.sock_recv(sock, 4096)
            await asyncio.sleep(0.01)
        while b"event: caught-up" not in received:
            received += await loop.sock_recv(sock, 1 << 20)
        assert received.count(b'"$seq":') == 300
        assert b"event: error" not in received


async def test_an_http2_client_that_opens_no_window_is_reset(service: Service) -> None:
    """Its connection continues, and so do other streams on it."""
    url = await service.session("t")
    await service.write("t", 100)
    client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    client.initiate_connection()
    fields = [(":method", "GET"), (":path", url), (":scheme", "http"), (":authority", "localhost")]
    client.send_headers(1, fields, end_stream=True)
    async with connected(service, client.data_to_send()) as sock:
        reset = await h2_until(client, sock, h2.events.StreamReset)
        assert reset.error_code == h2.errors.ErrorCodes.CANCEL
        await service.until(0)
        client.increment_flow_control_window(1 << 20)
        client.send_headers(3, [*fields[:1], (":path", "/v0/health"), *fields[2:]], end_stream=True)
        await asyncio.get_running_loop().sock_sendall(sock, client.data_to_send())
        await h2_until(client, sock, h2.events.StreamEnded)


async def h2_until(client: h2.connection.H2Connection, sock: socket.socket, kind: type) -> Any:
    loop = asyncio.get_running_loop()
    while True:
        data = await loop.sock_recv(sock, 1 << 16)
        assert data, "closed"
        for event in client.receive_data(data):
            if isinstance(event, kind):
                return event
        await loop.sock_sendall(sock, client.data_to_send())


async def test_a_removed_session_is_reported(service: Service) -> None:
    """As when its key is revoked."""
    url = await service.session("t")
    async with service.client.stream("GET", url) as response:
        lines = response.aiter_lines()
        async for line in lines:
            if line == "event: caught-up":
                break
        assert service.api.watches.remove_sessions("") == 1
        rest = [line async for line in lines if line]
    assert rest[-2] == "event: error"
    assert json.loads(rest[-1].removeprefix("data: "))["code"] == 410
    gone = await service.client.get(url)
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "not_found")


async def test_an_expired_session_is_as_unknown(service: Service) -> None:
    url = await service.session("t")
    service.api.watches._sessions._ttl_ms = 0
    gone = await service.client.get(url)
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "not_found")


async def test_a_host_that_vanishes_is_given_up_by_the_kernel(service: Service) -> None:
    """No packet reports it, so the time of unacknowledged bytes is bounded: heartbeats are sent."""
    url = await service.session("t")
    async with connected(service, get(url)):
        await service.until(1)
        assert service.server._registry is not None
        sockets = [each.transport.get_extra_info("socket") for each in service.server._registry.connections]
        limits = [each.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) for each in sockets]
    assert sorted(limits) == [0, 60_000]  # the other one is of requests that are over at once


def read_data(event: str) -> Any:
    return json.loads(event.partition("data: ")[2])
