"""Clients of three nodes with eight shards: the calls that one node passes on to another, before and after they know
the owners."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import pytest
from cluster.test_every_node import owners, three
from cluster.test_every_node import world as world
from cluster.world import World

from support.waiting import until
from topics_client import AsyncTopicsClient, Retry, TopicConfig
from topics_proto.v1 import topics_service_pb2 as pb
from topics_proto.v1.topics_service_pb2_grpc import TopicsServiceStub
from topics_server.node.server import NodeServer
from topics_service.api.request_context import OWNER, POSITION
from topics_service.engine.placement import home_of, shard_of
from topics_shards.wire.client import ClientConnection

TOPICS = [f"topic-{number}" for number in range(24)]
assert len({home_of(topic, 8) for topic in TOPICS}) == 8


class Forwarded:
    """Counts calls that one node passes on to another, by method."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def of(self, *names: str) -> int:
        return sum(self.calls[name] for name in names)


@pytest.fixture
def forwarded(monkeypatch: pytest.MonkeyPatch) -> Forwarded:
    found = Forwarded()
    begin = ClientConnection._begin

    def counted(self: ClientConnection, kind: int, shard: int, method: Any, body: bytes) -> Any:
        found.calls[method.name] += 1
        return begin(self, kind, shard, method, body)

    monkeypatch.setattr(ClientConnection, "_begin", counted)
    return found


def target(node: NodeServer) -> str:
    return f"127.0.0.1:{node.grpc_port}"


async def rounds(work: Callable[[], Awaitable[object]], count: Callable[[], int]) -> None:
    """Do something again and again, until a round of it is not passed on."""
    async with asyncio.timeout(20):
        while True:
            before = count()
            await work()
            if count() == before:
                return


async def test_clients_find_the_owners(world: World, forwarded: Forwarded) -> None:
    """All of it with one cluster, which takes its time to start and to end."""
    async with three(world) as nodes:
        await until(lambda: sorted(Counter(owners(world).values()).values()) == [2, 3, 3], seconds=40)
        await appends_and_reads_go_to_the_owners(world, nodes, forwarded)
        await partitions_and_queues_have_their_owners(world, nodes, forwarded)
        await sql_goes_to_one_place(world, nodes, forwarded)
        await the_owner_is_named_behind_a_forwarded_answer_alone(world, nodes)
        await a_client_goes_on_when_a_node_leaves(world, nodes, forwarded)


async def appends_and_reads_go_to_the_owners(world: World, nodes: dict[str, NodeServer], forwarded: Forwarded) -> None:
    names = "TopicsApi.append", "TopicsApi.bulk", "TopicsApi.get_topic", "TopicsApi.diff"
    async with (
        AsyncTopicsClient(target(nodes["a"])) as client,
        AsyncTopicsClient(target(nodes["a"]), follow_owners=False) as other,
    ):
        for topic in TOPICS:
            await client.append(topic, 0)
        assert forwarded.of("TopicsApi.append") > len(TOPICS) / 3, "nothing is known yet"

        async def each() -> None:
            for topic in TOPICS:
                await client.append(topic, 1)
                await client.get_topic(topic)
                assert len([record async for record in client.read(topic)]) > 1

        await rounds(each, lambda: forwarded.of(*names))
        before = forwarded.of(*names)
        for _ in range(3):
            await each()
        assert forwarded.of(*names) == before
        for topic in TOPICS:
            is_here, before = owners(world)[home_of(topic, 8)] == "a", forwarded.of(*names)
            await other.append(topic, 2)
            assert (forwarded.of(*names) == before) is is_here, "it does not follow owners"


async def partitions_and_queues_have_their_owners(
    world: World, nodes: dict[str, NodeServer], forwarded: Forwarded
) -> None:
    async with AsyncTopicsClient(target(nodes["a"])) as client:
        await client.put_topic("wide", TopicConfig(), partitions=8)
        assert {owners(world)[shard_of("wide", partition, 8)] for partition in range(8)} == {"a", "b", "c"}

        async def each() -> None:
            for partition in range(8):
                await client.append("wide", partition, partition=partition)

        await rounds(each, lambda: forwarded.of("TopicsApi.append"))
        queue = next(f"queue-{n}" for n in range(100) if owners(world)[home_of(f"queue-{n}", 8)] == "b")
        await client.put_topic(queue, TopicConfig(type="queue"))
        await client.append_many(queue, [*range(50)])

        async def claim() -> None:
            await client.ack(queue, "n", await client.claim(queue, "n"))

        names = "QueuesApi.hand_over", "QueuesApi.ack", "QueuesApi.claim"
        await rounds(claim, lambda: forwarded.of(*names))


async def sql_goes_to_one_place(world: World, nodes: dict[str, NodeServer], forwarded: Forwarded) -> None:
    away = next(name for name in "abc" if name != owners(world)[0])
    async with AsyncTopicsClient(target(nodes[away])) as client:

        async def statement() -> None:
            await client.sql("SELECT 1")

        await rounds(statement, lambda: forwarded.of("SqlApi.execute"))
        assert forwarded.of("SqlApi.execute"), "the first one was passed on"


async def a_client_goes_on_when_a_node_leaves(world: World, nodes: dict[str, NodeServer], forwarded: Forwarded) -> None:
    async with AsyncTopicsClient([target(nodes["b"]), target(nodes["a"])], retry=Retry(seconds=30)) as client:

        async def each() -> None:
            for topic in TOPICS:
                await client.append(topic, 1)

        await rounds(each, lambda: forwarded.of("TopicsApi.append"))
        await nodes["b"].__aexit__(None, None, None)
        await until(lambda: "b" not in owners(world).values() and len(owners(world)) == 8, seconds=20)
        await each()
        await rounds(each, lambda: forwarded.of("TopicsApi.append"))
        for topic in TOPICS:
            assert len([record async for record in client.read(topic)]) >= 4


async def the_owner_is_named_behind_a_forwarded_answer_alone(world: World, nodes: dict[str, NodeServer]) -> None:
    addresses = {name: target(node) for name, node in nodes.items()}
    for name, address in addresses.items():
        async with grpc.aio.insecure_channel(address) as channel:
            for topic in TOPICS:
                call = TopicsServiceStub(channel).Append(pb.AppendRequest(topic=topic, records=[{"data": b"1"}]))
                await call
                owner = owners(world)[home_of(topic, 8)]
                found = dict(await call.trailing_metadata() or ())
                assert found.get(OWNER) == (None if owner == name else addresses[owner])
                assert OWNER not in dict(await call.initial_metadata() or ())
                assert POSITION not in found, "it would be that of one shard of many"
