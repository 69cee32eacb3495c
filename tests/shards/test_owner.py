"""The owner that answers over gRPC name: the one other node at which all of a call was answered."""

import struct
from collections.abc import AsyncIterator
from typing import Any

import grpc
import httpx
import pytest
from shards.world import ShardsWorld
from shards.world import open_shards as opened

from topics_gateway import GatewaySettings, create_app
from topics_proto.v1 import (
    group_service_pb2,
    queue_service_pb2,
    record_pb2,
    sql_service_pb2,
    topic_pb2,
    topics_service_pb2,
    topics_service_pb2_grpc,
)
from topics_proto.v1.group_service_pb2_grpc import GroupServiceStub
from topics_proto.v1.queue_service_pb2_grpc import QueueServiceStub
from topics_proto.v1.sql_service_pb2_grpc import SqlServiceStub
from topics_server.node.peers import Standpoint
from topics_server.node.positions import stating_handler
from topics_service.api.grpc.server import GrpcPort, create_calls
from topics_service.api.request_context import OWNER, POSITION, RequestContext
from topics_service.engine.placement import home_of

OTHER = "node-b:4001"
HERE = next(name for name in "abcdefgh" if home_of(name, 3) == 0)
THERE = next(name for name in "abcdefgh" if home_of(name, 3) == 1)
MISSING = next(name for name in ("no", "none", "nothing", "nowhere", "nil") if home_of(name, 3))
RECORD = record_pb2.AppendRecord(data=b"1", kind=record_pb2.RECORD_KIND_JSON)


class Node:
    """A node with shard 0; the two others are at another node."""

    def __init__(self, world: ShardsWorld, channel: grpc.aio.Channel) -> None:
        self.world = world
        self.topics = topics_service_pb2_grpc.TopicsServiceStub(channel)
        self.queues = QueueServiceStub(channel)
        self.groups = GroupServiceStub(channel)
        self.sql = SqlServiceStub(channel)


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    async with opened(wired=True) as world:
        assert world.wire is not None
        world.wire.channel.address = OTHER
        world.api.sql = world._sql
        calls = create_calls(world.api)
        port = GrpcPort(host="127.0.0.1", port=0)
        number = await port.start(calls.interceptors, calls.handlers)
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{number}") as channel:
                yield Node(world, channel)
        finally:
            await port.stop(0)


async def owner_of(call: "grpc.aio.Call") -> str | None:
    """The owner that the end of a call names."""
    assert OWNER not in dict(await call.initial_metadata() or ()), "clients would take it for that of all topics"
    found = dict(await call.trailing_metadata() or ()).get(OWNER)
    return None if found is None else str(found)


@pytest.mark.parametrize(("topic", "owner"), [(HERE, None), (THERE, OTHER)])
async def test_calls_on_a_topic_name_its_owner(node: Node, topic: str, owner: str | None) -> None:
    calls: list[tuple[Any, Any]] = [
        (node.topics.Append, topics_service_pb2.AppendRequest(topic=topic, records=[RECORD])),
        (node.topics.GetTopic, topics_service_pb2.GetTopicRequest(topic=topic)),
        (node.topics.Diff, topics_service_pb2.DiffRequest(topic=topic)),
    ]
    for method, request in calls:
        call = method(request)
        await call
        assert await owner_of(call) == owner
    reading = node.topics.BulkDiff(topics_service_pb2.BulkDiffRequest(topic=topic))
    assert [frame.done async for frame in reading][-1]
    assert await owner_of(reading) == owner


@pytest.mark.parametrize(("topic", "owner"), [(HERE, None), (THERE, OTHER)])
async def test_calls_on_a_queue_name_its_owner(node: Node, topic: str, owner: str | None) -> None:
    config = topic_pb2.TopicConfig(type=topic_pb2.TOPIC_TYPE_QUEUE)
    await node.topics.PutTopic(topics_service_pb2.PutTopicRequest(topic=topic, config=config))
    await node.topics.Append(topics_service_pb2.AppendRequest(topic=topic, records=[RECORD]))
    claim = node.queues.Claim(queue_service_pb2.ClaimRequest(topic=topic, node="n"))
    jobs = (await claim).claimed
    assert await owner_of(claim) == owner
    leases = [job.lease_id for job in jobs]
    ack = node.queues.Ack(queue_service_pb2.AckRequest(topic=topic, node="n", seqs=[1], lease_ids=leases))
    assert list((await ack).skipped) == []
    assert await owner_of(ack) == owner


async def test_a_stream_of_appends_names_the_owner_of_its_topic(node: Node) -> None:
    for topics, owner in (([HERE], None), ([THERE], OTHER), ([HERE, THERE], None)):
        requests = [
            topics_service_pb2.AppendStreamRequest(
                request_id=number, append=topics_service_pb2.AppendRequest(topic=topic, records=[RECORD])
            )
            for number, topic in enumerate(topics * 3)
        ]
        call = node.topics.AppendStream(iter(requests))
        acks = [ack.WhichOneof("outcome") async for answer in call for ack in answer.acks]
        assert acks == ["appended"] * len(requests)
        assert await owner_of(call) == owner


async def test_what_concerns_several_nodes_names_none(node: Node) -> None:
    for topic in (HERE, THERE):
        await node.topics.Append(topics_service_pb2.AppendRequest(topic=topic, records=[RECORD]))
    listing = node.topics.ListTopics(topics_service_pb2.ListTopicsRequest())
    assert len((await listing).topics) == 2
    assert await owner_of(listing) is None
    consume = node.groups.Consume(group_service_pb2.ConsumeRequest(group=HERE, topic=THERE))
    assert len((await consume).page.records) == 1
    assert await owner_of(consume) is None


async def test_sql_is_where_its_tables_are(node: Node) -> None:
    call = node.sql.Execute(sql_service_pb2.ExecuteRequest(sql="SELECT 1"))
    await call
    assert await owner_of(call) is None  # shard 0


async def test_an_error_names_the_owner_too(node: Node) -> None:
    call = node.topics.Diff(topics_service_pb2.DiffRequest(topic=THERE))
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call
    assert failed.value.code() is grpc.StatusCode.NOT_FOUND
    assert await owner_of(call) == OTHER


async def test_a_shard_that_is_away_is_named_with_not_ready(node: Node) -> None:
    await node.topics.Append(topics_service_pb2.AppendRequest(topic=THERE, records=[RECORD]))
    assert node.world.wire is not None
    node.world.shards._patience = 0.2  # type: ignore[attr-defined]
    await node.world.wire.server.drain(0)
    await node.world.wire.server.close()
    call = node.topics.GetTopic(topics_service_pb2.GetTopicRequest(topic=THERE))
    with pytest.raises(grpc.aio.AioRpcError, match="can't be reached") as failed:
        await call
    assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
    assert await owner_of(call) == OTHER


async def test_processes_of_one_node_name_no_owner(node: Node) -> None:
    assert node.world.wire is not None
    node.world.wire.channel.address = ""
    call = node.topics.Append(topics_service_pb2.AppendRequest(topic=THERE, records=[RECORD]))
    await call
    assert await owner_of(call) is None


async def test_answers_over_grpc_web_name_the_owner_too(node: Node) -> None:
    app = create_app(node.world.api, GatewaySettings(), None, create_calls(node.world.api))
    headers = {"content-type": "application/grpc-web+proto"}
    await node.topics.Append(topics_service_pb2.AppendRequest(topic=THERE, records=[RECORD]))
    for topic in (THERE, MISSING):
        body = topics_service_pb2.GetTopicRequest(topic=topic).SerializeToString()
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            reply = await client.post(
                "/topics.v1.TopicsService/GetTopic", content=struct.pack(">BI", 0, len(body)) + body, headers=headers
            )
        assert f"{OWNER}: {OTHER}\r\n".encode() in reply.content


class Interceptor(grpc.aio.ServerInterceptor):
    """States a position, as nodes do."""

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        return stating_handler(await continuation(handler_call_details), lambda: Standpoint(epoch=3, ticket=4))


async def test_an_answer_has_its_position_beside_the_owner(node: Node) -> None:
    calls = create_calls(node.world.api)
    port = GrpcPort(host="127.0.0.1", port=0)
    number = await port.start((Interceptor(), *calls.interceptors), calls.handlers)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{number}") as channel:
        stub = topics_service_pb2_grpc.TopicsServiceStub(channel)
        for topic in (THERE, HERE):
            call = stub.Append(topics_service_pb2.AppendRequest(topic=topic, records=[RECORD]))
            await call
            found = dict(await call.trailing_metadata() or ())
            assert found[POSITION] == "3-4"
            assert found.get(OWNER) == (OTHER if topic == THERE else None)
    await port.stop(0)


def test_a_request_that_two_answered_has_no_owner() -> None:
    for answers, owner in (
        ([], ""),
        ([""], ""),
        (["a"], "a"),
        (["a", "a"], "a"),
        (["a", ""], ""),
        (["", "a"], ""),
        (["a", "b", "a"], ""),
        (["a", "", "a"], ""),
    ):
        request = RequestContext("grpc", None)
        for answer in answers:
            request.answered_at(answer)
        assert request.owner == owner
