"""WebSockets through a node that does not own the shard."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import websockets
from websockets.asyncio.client import ClientConnection

from support.forwarded import Front, Owner, bound, fronting, never, owning
from support.waiting import until
from topics_cluster.coordinator import Addresses
from topics_gateway.transport import HttpServer, Limits
from topics_service.api.access.auth import parse_keys
from topics_service.api.access.authorizer import Authorizer


class Behind:
    """A server whose WebSockets do as a test wants."""

    def __init__(self) -> None:
        self.scopes: list[dict[str, Any]] = []
        self.ends: list[tuple[int, str]] = []
        self.server = HttpServer(self, bound(), Limits(ws_max_size=8 << 20))

    @property
    def addresses(self) -> Addresses:
        """The address that it listens on."""
        return Addresses(http=f"127.0.0.1:{self.server.port}", grpc="")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        await receive()
        headers = [(b"x-a", b"1")]
        await send(
            {"type": "websocket.accept", "headers": headers, "subprotocol": (scope["subprotocols"] or [None])[-1]}
        )
        while True:
            message = await receive()
            if message["type"] == "websocket.disconnect":
                self.ends.append((message["code"], message["reason"]))
                return
            if message.get("text") == "end":
                await send({"type": "websocket.close", "code": 4001, "reason": "as you wish"})
                return
            if message.get("text") == "die":
                raise asyncio.CancelledError
            kind = "text" if message.get("text") is not None else "bytes"
            await send({"type": "websocket.send", kind: message[kind]})


@pytest.fixture
async def behind() -> AsyncIterator[Behind]:
    made = Behind()
    await made.server.start()
    yield made
    await made.server.stop(0)


@pytest.fixture
async def front(behind: Behind) -> AsyncIterator[Front]:
    async with fronting(lambda: behind.addresses, hold_seconds=10) as made:
        yield made


def opened(front: Front, path: str = "/v0/ws", **options: Any) -> Any:
    return websockets.connect(f"ws{front.base[4:]}{path}", proxy=None, max_size=None, **options)


async def test_messages_of_both_kinds_and_any_size(behind: Behind, front: Front) -> None:
    async with opened(front) as client:
        for message in ("", "text", "\u00e4\U0001f600" * 1000, b"", b"\0\xff", "x" * 5_000_000, b"y" * 5_000_000):
            await client.send(message)
            assert await client.recv() == message


async def test_the_handshake_is_the_clients(behind: Behind, front: Front) -> None:
    headers = {"Authorization": "Bearer key", "X-A": "1", "Host-Less": "2"}
    options = {"subprotocols": ["one", "two"], "origin": "https://app.example", "user_agent_header": "mine"}
    async with opened(front, "/v0/ws?x=%20y&z", additional_headers=headers, **options) as client:
        assert client.subprotocol == "two"
        assert client.response.headers["x-a"] == "1"
        assert len(client.response.headers.get_all("date")) == 1
    (scope,) = behind.scopes
    assert (scope["raw_path"], scope["query_string"]) == (b"/v0/ws", b"x=%20y&z")
    assert scope["subprotocols"] == ["one", "two"]
    got = dict(scope["headers"])
    assert got[b"host"] == front.base[7:].encode()
    assert got[b"authorization"] == b"Bearer key"
    assert got[b"origin"] == b"https://app.example"
    assert got[b"user-agent"] == b"mine"
    assert b"sec-websocket-extensions" not in got


async def test_the_end_of_either_side_reaches_the_other(behind: Behind, front: Front) -> None:
    async with opened(front) as client:
        await client.close(4002, "enough")
        await until(lambda: behind.ends)
    assert behind.ends == [(4002, "enough")]
    async with opened(front) as client:
        await client.send("end")
        with pytest.raises(websockets.ConnectionClosed):
            await client.recv()
        assert (client.close_code, client.close_reason) == (4001, "as you wish")
    await until(lambda: front.http.in_flight == 0)


async def test_an_owner_that_dies(behind: Behind, front: Front) -> None:
    async with opened(front) as client:
        await client.send("die")
        with pytest.raises(websockets.ConnectionClosed):
            await client.recv()
        assert (client.close_code, client.close_reason) == (1012, "the owner of the shard was lost")


async def test_a_client_that_dies(behind: Behind, front: Front) -> None:
    client: ClientConnection
    async with opened(front) as client:
        await client.send("x")
        await client.recv()
        client.transport.abort()
        await until(lambda: behind.ends)
    assert behind.ends[0][0] == 1001
    await until(lambda: front.http.in_flight == 0)


async def test_a_node_that_is_known_to_be_lost_is_left(behind: Behind, front: Front) -> None:
    async with opened(front) as client:
        front.http.leave(behind.addresses.http)
        with pytest.raises(websockets.ConnectionClosed):
            await client.recv()
        assert client.close_code == 1012


async def test_large_messages_are_bounded_together(
    behind: Behind, front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("topics_cluster.forward_websocket._MAX_HELD_BYTES", 100_000)
    async with opened(front) as client:
        for _ in range(20):
            await client.send("x" * 50_000)
            assert await client.recv() == "x" * 50_000
        await client.send("y" * 200_000)
        with pytest.raises(websockets.ConnectionClosed):
            await client.recv()
        assert client.close_code == 1013


async def test_without_an_owner_the_upgrade_is_refused() -> None:
    async with fronting(never, hold_seconds=0.2) as front:
        with pytest.raises(websockets.InvalidStatus) as refused:
            async with opened(front):
                pass
    assert refused.value.response.status_code == 503
    assert json.loads(refused.value.response.body or b"")["error"]["code"] == "not_ready"


async def test_a_refusal_of_the_owner_is_given_through() -> None:
    async with owning(Authorizer(parse_keys("right"))) as owner, fronting(lambda: owner.addresses) as front:
        with pytest.raises(websockets.InvalidStatus) as refused:
            async with opened(front, additional_headers={"Authorization": "Bearer wrong"}):
                pass
        assert refused.value.response.status_code == 401
        assert json.loads(refused.value.response.body or b"")["error"]["code"] == "unauthorized"


async def test_a_node_that_has_lost_the_shard_is_not_asked_twice() -> None:
    old: Owner
    async with owning() as old, owning() as new:
        old.has_lost, owner = True, [old]
        async with fronting(lambda: owner[0].addresses, hold_seconds=20) as front:
            opening = asyncio.create_task(_watch(front))
            await asyncio.sleep(0.1)
            owner[0] = new
            assert (await opening)["request_id"] == "x"


async def _watch(front: Front) -> Any:
    async with opened(front) as client:
        await client.send(json.dumps({"op": "ping", "request_id": "x"}))
        return json.loads(await client.recv())
