"""A node whose signatures the owner refuses tells its clients to ask another, and is not ready until it is trusted."""

import asyncio
import logging
from collections.abc import AsyncIterator

import grpc
import httpx
import pytest
import websockets

from support.fake_time import in_fake_time, steps
from support.forwarded import Front, Owner, fronting, owning
from topics_cluster.owner_search import DISTRUSTED, DistrustedError, no_owner
from topics_cluster.trust import Origin, Secret
from topics_proto.v1 import topics_service_pb2 as pb
from topics_proto.v1.topics_service_pb2_grpc import TopicsServiceStub
from topics_server.node.acceptance import Acceptance
from topics_server.node.peers import STANDPOINT
from topics_server.node.place import Place
from topics_service.statistics import NodeStatistics

CAUSE = "its signature is not one of this cluster for this request"
STRANGER = Secret([b"a secret that no other node of the tests has"])


@pytest.fixture
async def owner() -> AsyncIterator[Owner]:
    async with owning() as made:
        yield made


@pytest.fixture
async def front(owner: Owner) -> AsyncIterator[Front]:
    """A node with another secret than the owner."""
    async with fronting(lambda: owner.addresses, secret=STRANGER) as made:
        yield made


async def test_requests_of_http_are_not_ready(front: Front) -> None:
    async with httpx.AsyncClient(base_url=front.base, trust_env=False) as client:
        reply = await client.put("/v0/topics/t", json={})
    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (503, "not_ready")
    assert error["message"].startswith("ask another node")
    assert CAUSE in error["message"]
    assert DISTRUSTED not in reply.headers
    assert front.refusals == [CAUSE]


async def test_web_sockets_are_not_ready(front: Front) -> None:
    with pytest.raises(websockets.InvalidStatus) as refused:
        await websockets.connect(f"{front.base.replace('http', 'ws')}/v0/ws", proxy=None)
    assert refused.value.response.status_code == 503
    assert front.refusals == [CAUSE]


async def test_calls_of_grpc_are_not_ready(front: Front) -> None:
    async with grpc.aio.insecure_channel(front.target) as channel:
        stub = TopicsServiceStub(channel)  # type: ignore[no-untyped-call]
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.PutTopic(pb.PutTopicRequest(topic="t"))
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert CAUSE in (refused.value.details() or "")
        assert DISTRUSTED not in dict(refused.value.trailing_metadata() or ())
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            [_ async for _ in stub.BulkDiff(pb.BulkDiffRequest(topic="t"))]
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert front.refusals == [CAUSE, CAUSE]


async def test_a_nodes_own_call_names_the_cause(front: Front) -> None:
    with pytest.raises(DistrustedError) as error:
        await front.grpc.ask(STANDPOINT, b"", Origin("n", ""), 5)
    assert error.value.cause == CAUSE


@in_fake_time
async def test_a_node_is_not_ready_until_a_call_of_its_own_is_accepted(caplog: pytest.LogCaptureFixture) -> None:
    place, statistics = Place(), NodeStatistics()
    answers = [no_owner(), DistrustedError(CAUSE), DistrustedError(CAUSE), no_owner(), None]

    async def ask() -> None:
        answer = answers.pop(0)
        if answer is not None:
            raise answer

    acceptance = Acceptance(place, ask, statistics)
    seen = []
    with caplog.at_level(logging.INFO, "topics.cluster"):
        for _ in range(2):
            acceptance.refused(CAUSE)
        for _ in range(5):
            await steps(3)
            seen.append(place.is_refused)
            await asyncio.sleep(1)
    assert seen == [False, True, True, True, False]
    assert statistics.refused == 2
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]
    assert CAUSE in caplog.text


@in_fake_time
async def test_a_request_that_is_refused_alone_changes_nothing() -> None:
    """A client may have brought it about."""
    place = Place()

    async def ask() -> None:
        assert not place.is_refused

    acceptance = Acceptance(place, ask, NodeStatistics())
    acceptance.refused(CAUSE)
    await steps(3)
    assert not place.is_refused
    acceptance.stop()
