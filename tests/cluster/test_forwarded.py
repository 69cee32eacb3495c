"""Requests with an identity that another node vouches for: taken with its signature, refused and audited without."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
import httpx
import pytest
import websockets

from support.forwarded import SECRET, Owner, owning
from support.waiting import until
from topics_cluster.trust import HEADER, Origin, Secret, Signer
from topics_proto.v1 import topics_service_pb2 as pb
from topics_proto.v1.topics_service_pb2_grpc import TopicsServiceStub
from topics_service.api.access.auth import parse_keys
from topics_service.api.access.authorizer import Authorizer
from topics_service.api.access.quota import KeyLimits, Quotas
from topics_service.engine.model import ConfigInput

ORIGIN = Origin("192.0.2.7:51234", "id-of-the-first-node")
PUT = "/topics.v1.TopicsService/PutTopic"
STRANGER = Secret([b"a secret that no node of the tests has"])


@pytest.fixture
async def owner() -> AsyncIterator[Owner]:
    async with owning() as made:
        yield made


class Http:
    """A request of HTTP that is audited."""

    door = "http"
    subject = "PUT /v0/topics/t"

    def __init__(self, owner: Owner) -> None:
        self.audience, self.verifier = owner.addresses.http, owner.http_verifier

    async def call(self, *values: str) -> str:
        """Send it with these headers; `ok`, or the code of the error."""
        headers = [(HEADER, value) for value in values]
        async with httpx.AsyncClient(trust_env=False) as client:
            reply = await client.put(f"http://{self.audience}/v0/topics/t", json={}, headers=headers)
        if reply.is_success:
            return "ok"
        assert reply.status_code == 401
        return str(reply.json()["error"]["code"])


class WebSocket:
    """The upgrade to a WebSocket."""

    door = "websocket"
    subject = "GET /v0/ws"

    def __init__(self, owner: Owner) -> None:
        self.audience, self.verifier = owner.addresses.http, owner.http_verifier

    async def call(self, *values: str) -> str:
        """See Http."""
        url, headers = f"ws://{self.audience}/v0/ws", [(HEADER, value) for value in values]
        try:
            async with websockets.connect(url, additional_headers=headers, proxy=None) as client:
                await client.send(json.dumps({"op": "ping"}))
                return "ok"
        except websockets.InvalidStatus as refused:
            status, body = refused.response.status_code, refused.response.body or b""
        assert status == 401
        return str(json.loads(body)["error"]["code"])


class Grpc:
    """A call of gRPC that is audited."""

    door = "grpc"
    subject = PUT

    def __init__(self, owner: Owner) -> None:
        self.audience, self.verifier = owner.addresses.grpc, owner.grpc_verifier

    async def call(self, *values: str) -> str:
        """See Http."""
        async with grpc.aio.insecure_channel(self.audience) as channel:
            stub: Any = TopicsServiceStub(channel)
            try:
                await stub.PutTopic(pb.PutTopicRequest(topic="t"), metadata=[(HEADER, value) for value in values])
                return "ok"
            except grpc.aio.AioRpcError as refused:
                code = refused.code()
        assert code is grpc.StatusCode.UNAUTHENTICATED
        return "unauthorized"


KINDS = (Http, WebSocket, Grpc)
Kind = Http | WebSocket | Grpc


async def forged(kind: Kind, owner: Owner) -> AsyncIterator[tuple[list[str], str]]:
    """Headers of each attempt, and the cause for which it is refused."""

    def signed(audience: str = kind.audience, subject: str = kind.subject, secret: Secret = SECRET) -> str:
        return Signer(secret).sign(ORIGIN, audience, subject)

    yield ["1;2;3"], "it is malformed"
    yield ["192.0.2.7"], "it is malformed"
    wrong = "its signature is not one of this cluster for this request"
    yield [signed(secret=STRANGER)], wrong
    yield [signed(audience="127.0.0.1:1")], wrong
    yield [signed(subject="GET /v0/topics")], wrong
    fields = signed().split(";")
    yield [";".join((*fields[:4], "10.0.0.1:1", *fields[5:]))], wrong
    late = Signer(SECRET, clock=lambda: 1.7e9)
    yield [late.sign(ORIGIN, kind.audience, kind.subject)], "it has expired, or the clocks of the nodes differ"
    early = Signer(SECRET, clock=lambda: 4e9)
    yield [early.sign(ORIGIN, kind.audience, kind.subject)], "it holds for too long, or the clocks of the nodes differ"
    yield [signed(), signed()], "there is more than one"
    used = signed()
    kind.verifier.verify(used, kind.subject)
    yield [used], "it was used before"


@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_forged_is_refused_and_audited(owner: Owner, kind: type[Kind]) -> None:
    request = kind(owner)
    async for headers, cause in forged(request, owner):
        owner.lines.clear()
        assert await request.call(*headers) == "unauthorized", cause
        (line,) = owner.lines
        wanted = {"action": "request.forward", "outcome": "refused", "reason": "unauthorized", "cause": cause}
        assert line.items() >= wanted.items()
        assert line["door"] == kind.door
        assert line["peer"].startswith("127.0.0.1:")
    assert not list(owner.api.catalog.within(None))


@pytest.mark.parametrize("kind", [Http, Grpc])
async def test_a_change_is_the_clients(owner: Owner, kind: type[Kind]) -> None:
    request = kind(owner)
    assert await request.call(Signer(SECRET).sign(ORIGIN, request.audience, request.subject)) == "ok"
    (line,) = owner.lines
    assert line["peer"] == ORIGIN.client
    assert (line["action"], line["door"]) == ("topic.put", kind.door)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_replayed_request_is_refused(owner: Owner, kind: type[Kind]) -> None:
    request = kind(owner)
    signed = Signer(SECRET).sign(ORIGIN, request.audience, request.subject)
    assert [await request.call(signed) for _ in range(3)] == ["ok", "unauthorized", "unauthorized"]


async def test_an_address_of_ipv6(owner: Owner) -> None:
    client = "[2001:db8::1]:51234"
    for kind in (Http, Grpc):
        request = kind(owner)
        owner.lines.clear()
        assert await request.call(Signer(SECRET).sign(Origin(client, ""), request.audience, request.subject)) == "ok"
        assert owner.lines[0]["peer"] == client


async def test_the_limit_of_connections_counts_those_of_clients() -> None:
    """Requests on one connection of a client come over several between the nodes, and count once, while they run."""
    quotas = Quotas(KeyLimits(connections=1))
    async with owning(Authorizer(parse_keys("key"), quotas=quotas)) as owner:
        http = Http(owner)
        signer = Signer(SECRET)

        async def diff(client: str, wait_ms: int = 0) -> int:
            path = "/v0/topics/t/diff"
            signed = signer.sign(Origin(client, ""), http.audience, f"POST {path}")
            headers = {"authorization": "Bearer key", HEADER: signed}
            async with httpx.AsyncClient(trust_env=False, timeout=30) as each:
                body = {"from_seq": 0, "wait_ms": wait_ms}
                return (await each.post(f"http://{http.audience}{path}", json=body, headers=headers)).status_code

        owner.api._engine.put_topic("t", ConfigInput(), None, None)
        usage = quotas.for_key("key1")
        waiting = asyncio.create_task(diff("192.0.2.7:1000", 20_000))
        await until(lambda: usage.connections == 1)
        assert await diff("192.0.2.7:1000") == 200
        assert await diff("192.0.2.7:1001") == 429
        waiting.cancel()
        await until(lambda: usage.connections == 0)
        assert await diff("192.0.2.7:1001") == 200
        await until(lambda: usage.connections == 0)


@pytest.mark.parametrize("kind", KINDS)
async def test_without_a_cluster_the_header_means_nothing(kind: type[Kind]) -> None:
    """A single server has no part that looks at it."""
    with_cluster = await _outcome(kind, is_cluster=True)
    assert (with_cluster, await _outcome(kind, is_cluster=False)) == ("unauthorized", "ok")


async def _outcome(kind: type[Kind], *, is_cluster: bool) -> str:
    async with owning(is_cluster=is_cluster) as owner:
        return await kind(owner).call("1;2;3")
