"""HTTP through a node that does not own the shard: what arrives and what comes back is what was sent."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from support.forwarded import Front, bound, fronting, never, owning
from support.waiting import until
from topics_cluster.coordinator import Addresses
from topics_cluster.trust import HEADER_BYTES
from topics_gateway.transport import HttpServer

Answer = Callable[[Any, Any, Any], Any]


class Recorder:
    """A server that keeps what it gets, and answers as a test wants."""

    def __init__(self) -> None:
        self.scopes: list[dict[str, Any]] = []
        self.bodies: list[bytes] = []
        self.cancelled = 0
        self.answer: Answer = plain
        self.server = HttpServer(self, bound())

    @property
    def addresses(self) -> Addresses:
        """The address that it listens on."""
        return Addresses(http=f"127.0.0.1:{self.server.port}", grpc="")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        try:
            await self.answer(scope, receive, send)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def read(self, receive: Any) -> bytes:
        """The whole body, which is kept."""
        parts, more = [], True
        while more:
            message = await receive()
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
        self.bodies.append(b"".join(parts))
        return self.bodies[-1]


async def plain(scope: Any, receive: Any, send: Any) -> None:
    """Answer `ok` to anything."""
    await respond(send, 200, b"ok")


async def respond(send: Any, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [*headers]})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def recording() -> AsyncIterator[Recorder]:
    recorder = Recorder()
    await recorder.server.start()
    try:
        yield recorder
    finally:
        await recorder.server.stop(0)


@pytest.fixture
async def behind() -> AsyncIterator[Recorder]:
    async with recording() as recorder:
        yield recorder


@pytest.fixture
async def front(behind: Recorder) -> AsyncIterator[Front]:
    async with fronting(lambda: behind.addresses, hold_seconds=5) as made:
        yield made


@pytest.fixture
async def client(front: Front) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=front.base, trust_env=False, timeout=30) as made:
        yield made


async def exchange(port: int, text: bytes, *, until_close: bool = True) -> bytes:
    """Send these bytes on a connection to loopback and return the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(text)
    try:
        async with asyncio.timeout(20):
            return await reader.read() if until_close else await reader.readuntil(b"\r\n\r\n")
    finally:
        writer.close()


def port_of(front: Front) -> int:
    return int(front.base.rpartition(":")[2])


async def test_the_request_arrives_as_it_was_sent(behind: Recorder, front: Front) -> None:
    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await respond(send, 200, await behind.read(receive))

    behind.answer = answer
    await exchange(
        port_of(front),
        b"PUT /v0/a%2Fb/%c3%a4?x=%20y&&z HTTP/1.1\r\nHost: api.example:80\r\nX-A: 1\r\nx-a: 2\r\nTE: trailers\r\n"
        b"Connection: close, X-Hop\r\nX-Hop: gone\r\nKeep-Alive: 5\r\nContent-Length: 3\r\nAccept: */*\r\n\r\nabc",
    )
    (scope,) = behind.scopes
    assert (scope["method"], scope["raw_path"], scope["query_string"]) == ("PUT", b"/v0/a%2Fb/%c3%a4", b"x=%20y&&z")
    headers = [field for field in scope["headers"] if field[0] != HEADER_BYTES]
    assert headers == [
        (b"host", b"api.example:80"), (b"x-a", b"1"), (b"x-a", b"2"), (b"content-length", b"3"), (b"accept", b"*/*"),
    ]  # fmt: skip
    assert behind.bodies == [b"abc"]


async def test_a_client_can_not_sign(behind: Recorder, front: Front) -> None:
    text = b"GET / HTTP/1.1\r\nHost: a\r\n%b: forged\r\nConnection: close\r\n\r\n" % HEADER_BYTES
    await exchange(port_of(front), text)
    (value,) = [value for name, value in behind.scopes[0]["headers"] if name == HEADER_BYTES]
    assert value != b"forged"
    assert value.split(b";")[4].startswith(b"127.0.0.1:")


async def test_the_answer_comes_as_it_was_given(behind: Recorder, front: Front) -> None:
    async def answer(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"x-a", b"1"), (b"x-a", b"2"), (b"date", b"Mon, 01 Jan 2024 00:00:00 GMT"), (b"etag", b'"x"')]
        await respond(send, 418, b"tea", *headers, (b"content-length", b"3"))

    behind.answer = answer
    text = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    direct, forwarded = await exchange(behind.server.port, text), await exchange(port_of(front), text)
    assert forwarded == direct
    assert b"\r\nx-a: 1\r\nx-a: 2\r\n" in forwarded


@pytest.mark.parametrize("size", [0, 1, 65_536, 65_537, 5_000_000])
@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_bodies_of_any_size_both_ways(
    behind: Recorder, client: httpx.AsyncClient, size: int, framing: str
) -> None:
    async def answer(scope: Any, receive: Any, send: Any) -> None:
        body = await behind.read(receive)
        length = [(b"content-length", b"%d" % len(body))] if framing == "length" else []
        await send({"type": "http.response.start", "status": 200, "headers": length})
        for at in range(0, len(body), 100_000):
            await send({"type": "http.response.body", "body": body[at : at + 100_000], "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def parts() -> AsyncIterator[bytes]:
        for at in range(0, size, 70_000):
            yield body[at : at + 70_000]

    behind.answer = answer
    body = bytes(range(251)) * (size // 251) + b"x" * (size % 251)
    reply = await client.post("/", content=body if framing == "length" else parts())
    assert behind.bodies == [body]
    assert reply.content == body
    again = await client.post("/", content=b"another")
    assert again.content == b"another"


async def test_head_and_no_content(behind: Recorder, front: Front) -> None:
    async def answer(scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] == "HEAD":
            await respond(send, 200, b"", (b"content-length", b"1000"))
        else:
            await respond(send, 204, b"")

    behind.answer = answer
    head = b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n"
    get = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    answers = await exchange(port_of(front), head + head + get)
    assert answers.count(b"content-length: 1000\r\n") == 2
    assert b"HTTP/1.1 204 No Content\r\n" in answers
    assert answers.endswith(b"\r\n\r\n")


async def test_http_1_0(behind: Recorder, front: Front) -> None:
    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        await send({"type": "http.response.body", "body": scope["http_version"].encode()})

    behind.answer = answer
    assert (await exchange(port_of(front), b"GET / HTTP/1.0\r\n\r\n")).endswith(b"\r\n\r\na1.0")
    assert (b"host", b"") not in behind.scopes[0]["headers"]


async def test_http_2(behind: Recorder, front: Front) -> None:
    async def answer(scope: Any, receive: Any, send: Any) -> None:
        body = await behind.read(receive)
        await respond(send, 200, b"%d" % len(body), (b"connection", b"close"))

    async def parts() -> AsyncIterator[bytes]:
        yield b"x" * 100_000
        yield b"y" * 50_000

    behind.answer = answer
    async with httpx.AsyncClient(http1=False, http2=True, base_url=front.base, trust_env=False, timeout=30) as client:
        assert (await client.get("/")).text == "0"
        assert (await client.post("/", content=parts())).text == "150000"
        assert (await client.post("/", content=b"abc")).text == "3"
        replies = await asyncio.gather(*(client.post("/", content=b"z" * n) for n in range(20)))
    assert [reply.text for reply in replies] == [str(n) for n in range(20)]
    assert {name for scope in behind.scopes for name, _ in scope["headers"]} >= {b"host", b"user-agent"}


async def test_expect_continue_is_the_owners_to_answer(behind: Recorder, front: Front) -> None:
    """The client gets `100 Continue` when the owner wants the body, and none when it does not."""
    wants = True

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        assert scope["state"]["awaits_100"]()
        length = (b"content-length", b"5" if wants else b"2")
        await respond(send, 200 if wants else 413, await behind.read(receive) if wants else b"no", length)

    behind.answer = answer
    head = b"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(front))
    writer.write(head)
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b"hello")
    assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200 OK\r\n")
    writer.close()
    wants = False
    refused = await exchange(port_of(front), head)
    assert refused.startswith(b"HTTP/1.1 413 ")
    assert b"\r\nconnection: close\r\n" in refused
    assert refused.endswith(b"no")


async def test_an_answer_before_the_end_of_the_body(behind: Recorder, front: Front) -> None:
    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await respond(send, 413, b"too much", (b"connection", b"close"))

    behind.answer = answer
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(front))
    writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\n" + b"x" * 1000)
    async with asyncio.timeout(20):
        assert (await reader.read()).startswith(b"HTTP/1.1 413 ")
    writer.close()


async def test_events_come_as_they_happen(behind: Recorder, front: Front, client: httpx.AsyncClient) -> None:
    ticks: asyncio.Queue[bytes] = asyncio.Queue()

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", b"text/event-stream"), (b"connection", b"keep-alive")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"retry: 1\n\n", "more_body": True})
        while True:
            await send({"type": "http.response.body", "body": await ticks.get(), "more_body": True})

    behind.answer = answer
    async with client.stream("GET", "/") as reply:
        assert reply.headers["connection"] == "keep-alive"
        events = reply.aiter_raw()
        assert await anext(events) == b"retry: 1\n\n"
        for n in range(3):
            ticks.put_nowait(b"data: %d\n\n" % n)
            assert await anext(events) == b"data: %d\n\n" % n
    ticks.put_nowait(b"data: late\n\n")
    await until(lambda: front.http.in_flight == 0)


async def test_a_client_that_leaves_ends_the_request(behind: Recorder, front: Front) -> None:
    left = asyncio.Event()

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        left.set()

    behind.answer = answer
    _, writer = await asyncio.open_connection("127.0.0.1", port_of(front))
    writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    await until(lambda: behind.scopes)
    assert front.http.in_flight == 1
    writer.transport.abort()
    async with asyncio.timeout(10):
        await left.wait()
    await until(lambda: front.http.in_flight == 0)


async def test_a_client_that_does_not_read_holds_the_owner(behind: Recorder, front: Front) -> None:
    """Neither node keeps what the client does not take."""
    sent = 0

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        nonlocal sent
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(1000):
            await send({"type": "http.response.body", "body": b"x" * 100_000, "more_body": True})
            sent += 1
        await send({"type": "http.response.body", "body": b""})

    behind.answer = answer
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(front), limit=1000)
    writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    before = -1
    while before != sent:
        before = sent
        await asyncio.sleep(0.2)
    assert sent < 300
    while await reader.read(1 << 20):
        pass
    assert sent == 1000
    writer.close()


async def test_a_body_that_the_owner_does_not_read_holds_the_client(behind: Recorder, front: Front) -> None:
    go_on = asyncio.Event()

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await go_on.wait()
        await respond(send, 200, b"%d" % len(await behind.read(receive)))

    behind.answer = answer
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(front))
    size = 100_000_000
    writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % size)
    taken = 0

    async def push() -> None:
        nonlocal taken
        for _ in range(size // 100_000):
            writer.write(b"x" * 100_000)
            await writer.drain()
            taken += 100_000

    pushing = asyncio.create_task(push())
    before = -1
    while before != taken:
        before = taken
        await asyncio.sleep(0.2)
    assert taken < 40_000_000
    go_on.set()
    async with asyncio.timeout(60):
        await pushing
        assert b"100000000" in await reader.read()
    writer.close()


async def test_connections_are_used_again(behind: Recorder, client: httpx.AsyncClient) -> None:
    for _ in range(20):
        assert (await client.get("/")).text == "ok"
    assert len({scope["client"] for scope in behind.scopes}) == 1


# ------------------------------------------------------------ without an owner, and between two


async def test_without_an_owner_it_is_held_then_not_ready() -> None:
    async with fronting(never, hold_seconds=0.3) as front, httpx.AsyncClient(trust_env=False) as client:
        began = time.monotonic()
        reply = await client.post(f"{front.base}/v0/topics/t", json={}, headers={"x-request-id": "mine"})
        assert 0.3 <= time.monotonic() - began < 5
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "not_ready")
    assert reply.headers["retry-after"] == "1"
    assert reply.headers["x-request-id"] == "mine"


async def test_a_request_waits_for_an_owner(behind: Recorder) -> None:
    ready = asyncio.Event()

    async def owner() -> Addresses:
        await ready.wait()
        return behind.addresses

    async with fronting(owner, hold_seconds=20) as front, httpx.AsyncClient(trust_env=False, timeout=30) as client:
        waiting = asyncio.create_task(client.post(front.base, content=b"once"))
        await asyncio.sleep(0.05)
        assert not behind.scopes
        ready.set()
        assert (await waiting).text == "ok"
    assert len(behind.scopes) == 1


async def test_an_owner_that_refuses_connections_is_asked_for_again(behind: Recorder) -> None:
    gone = bound()
    addresses = [Addresses(http=f"127.0.0.1:{gone.getsockname()[1]}", grpc="")] * 3
    async with (
        fronting(lambda: addresses.pop() if addresses else behind.addresses, hold_seconds=20) as front,
        httpx.AsyncClient(trust_env=False, timeout=30) as client,
    ):
        reply = await client.post(front.base, content=b"body")
    gone.close()
    assert reply.text == "ok"
    assert not addresses
    assert len(behind.scopes) == 1


async def test_a_client_that_leaves_while_it_is_held(behind: Recorder) -> None:
    ready = asyncio.Event()

    async def owner() -> Addresses:
        await ready.wait()
        return behind.addresses

    async with fronting(owner, hold_seconds=20) as front:
        _, writer = await asyncio.open_connection("127.0.0.1", port_of(front))
        writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
        await asyncio.sleep(0.05)
        writer.transport.abort()
        await asyncio.sleep(0.05)
        ready.set()
        await asyncio.sleep(0.1)
        assert not behind.scopes


class Dying(Recorder):
    """Ends its first connections in the middle of a request."""

    def __init__(self, deaths: int) -> None:
        super().__init__()
        self.deaths = deaths
        self.answer = self._die

    async def _die(self, scope: Any, receive: Any, send: Any) -> None:
        await self.read(receive)
        if self.deaths:
            self.deaths -= 1
            raise asyncio.CancelledError
        await respond(send, 200, b"alive")


REPEATED: list[tuple[str, str, dict[str, str]]] = [
    ("GET", "/v0/topics/t", {}),
    ("HEAD", "/v0/topics/t", {}),
    ("POST", "/v0/topics/t/diff", {}),
    ("POST", "/v0/topics/t", {"idempotency-key": "k"}),
    ("DELETE", "/v0/topics/t", {}),
]
NOT_REPEATED: list[tuple[str, str, dict[str, str]]] = [
    ("POST", "/v0/topics/t", {}),
    ("POST", "/v0/topics/t/claim", {}),
    ("POST", "/nowhere", {}),
]


@asynccontextmanager
async def before_dying(deaths: int) -> AsyncIterator[tuple[Dying, httpx.AsyncClient]]:
    behind = Dying(deaths)
    await behind.server.start()
    try:
        async with (
            fronting(lambda: behind.addresses, hold_seconds=20) as front,
            httpx.AsyncClient(base_url=front.base, trust_env=False, timeout=30) as client,
        ):
            yield behind, client
    finally:
        await behind.server.stop(0)


@pytest.mark.parametrize(("method", "path", "headers"), REPEATED)
async def test_what_may_be_repeated_is_repeated(method: str, path: str, headers: dict[str, str]) -> None:
    async with before_dying(2) as (behind, client):
        reply = await client.request(method, path, headers=headers, content=b"body" if method == "POST" else None)
    assert reply.status_code == 200
    assert behind.bodies == ([b"body"] * 3 if method == "POST" else [b""] * 3)


@pytest.mark.parametrize(("method", "path", "headers"), NOT_REPEATED)
async def test_what_may_not_be_repeated_ends_without_an_answer(method: str, path: str, headers: dict[str, str]) -> None:
    async with before_dying(1) as (behind, client):
        with pytest.raises(httpx.RemoteProtocolError):
            await client.request(method, path, headers=headers, content=b"body")
        assert len(behind.scopes) == 1
        assert (await client.get("/")).text == "alive"


async def test_a_large_body_is_not_sent_twice() -> None:
    async with before_dying(1) as (behind, client):
        with pytest.raises(httpx.RemoteProtocolError):
            await client.post("/v0/topics/t/diff", content=b"x" * 100_000)
    assert len(behind.scopes) == 1


async def test_an_answer_that_breaks_off_breaks_off(behind: Recorder, client: httpx.AsyncClient) -> None:
    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise asyncio.CancelledError

    behind.answer = answer
    with pytest.raises(httpx.RemoteProtocolError):
        await client.get("/v0/topics/t")
    assert len(behind.scopes) == 1


async def test_too_many_requests_are_throttled(behind: Recorder) -> None:
    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await go_on.wait()
        await respond(send, 200, b"ok")

    go_on, behind.answer = asyncio.Event(), answer
    async with (
        fronting(lambda: behind.addresses, max_connections=2) as front,
        httpx.AsyncClient(base_url=front.base, trust_env=False, timeout=30) as client,
    ):
        held = [asyncio.create_task(client.get("/")) for _ in range(2)]
        await until(lambda: front.http.in_flight == 2)
        reply = await client.get("/")
        assert (reply.status_code, reply.json()["error"]["code"]) == (429, "throttled")
        go_on.set()
        assert [(await each).text for each in held] == ["ok", "ok"]
        assert (await client.get("/")).text == "ok"


async def test_a_node_that_is_known_to_be_lost_is_left(behind: Recorder) -> None:
    """A request that waits for an answer goes on at the new owner, and not when the old one's machine is missed."""
    asked = asyncio.Event()

    async def hang(scope: Any, receive: Any, send: Any) -> None:
        asked.set()
        await asyncio.Event().wait()

    async with recording() as old:
        old.answer, owner = hang, [old.addresses]
        async with (
            fronting(lambda: owner[0], hold_seconds=20) as front,
            httpx.AsyncClient(base_url=front.base, trust_env=False, timeout=30) as client,
        ):
            waiting = asyncio.create_task(client.get("/v0/topics/t"))
            await asked.wait()
            owner[0] = behind.addresses
            front.http.leave(old.addresses.http)
            assert (await waiting).text == "ok"


# ------------------------------------------------------------ with real servers


async def test_a_forwarded_request_is_not_forwarded_again() -> None:
    """A node that has lost the shard says so, and the request goes to the new owner, whatever it asks for."""
    async with owning() as old, owning() as new:
        owner = [old]
        async with (
            fronting(lambda: owner[0].addresses, hold_seconds=20) as front,
            httpx.AsyncClient(base_url=front.base, trust_env=False, timeout=30) as client,
        ):
            assert (await client.put("/v0/topics/t", json={})).status_code == 201
            old.has_lost = True
            writing = asyncio.create_task(client.post("/v0/topics/t", json={"records": [{"data": 1}]}))
            await asyncio.sleep(0.1)
            owner[0] = new
            assert (await writing).status_code == 201
            reply = await client.post("/v0/topics/t/diff", json={"from_seq": 0})
    assert [record["data"] for record in reply.json()["records"]] == [1]


async def test_a_large_body_at_a_node_that_has_lost_the_shard() -> None:
    async with owning() as old, fronting(lambda: old.addresses, hold_seconds=1) as front:
        old.has_lost = True
        async with httpx.AsyncClient(base_url=front.base, trust_env=False, timeout=30) as client:
            reply = await client.post("/v0/topics/t", content=b"x" * 1_000_000)
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "not_ready")


async def test_the_clients_address_arrives() -> None:
    async with owning() as owner, fronting(lambda: owner.addresses) as front:
        async with httpx.AsyncClient(base_url=front.base, trust_env=False) as client:
            await client.put("/v0/topics/t", json={})
            stream = client._transport  # type: ignore[attr-defined]
            (connection,) = stream._pool.connections
            local = connection._connection._network_stream.get_extra_info("client_addr")
        (line,) = owner.lines
    assert line["peer"] == f"127.0.0.1:{local[1]}"
