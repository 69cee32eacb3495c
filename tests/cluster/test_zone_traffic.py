"""Bytes between nodes for a topic that names a zone: its producers and consumers there cause none."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import confluent_kafka as kafka
import grpc
import httpx
import pytest
from cluster.test_every_node import owners, texts
from cluster.world import World, client, world_of

from support.waiting import until
from topics_cluster.forward_grpc import GrpcForwarder
from topics_proto.v1 import topics_service_pb2 as pb
from topics_server.node.server import NodeServer
from topics_service.engine.placement import home_of
from topics_shards.wire.client import ClientConnection
from topics_shards.wire.methods import RemoteMethod

SHARDS = 3
ZONES = {"a": "north", "b": "south", "c": "west"}
COUNT = 20


class Traffic:
    """The bytes that nodes send each other to have calls run there, by method; those to the object store are none."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: Counter[str] = Counter()
        begin, take = ClientConnection._begin, ClientConnection.take

        def begun(link: ClientConnection, kind: int, shard: int, method: RemoteMethod, body: bytes) -> Any:
            self.sent[method.name] += len(body) + 1
            return begin(link, kind, shard, method, body)

        def taken(link: ClientConnection, kind: int, call: int, body: memoryview) -> None:
            outgoing = link._calls.get(call)
            if outgoing is not None:
                self.sent[outgoing.method.name] += len(body)
            take(link, kind, call, body)

        ask = GrpcForwarder.ask

        async def asked(link: GrpcForwarder, *args: Any, **more: Any) -> Any:
            reply = await ask(link, *args, **more)
            self.sent["passed on"] += 1 + sum(len(each) for each in (*args, reply) if isinstance(each, bytes))
            return reply

        monkeypatch.setattr(ClientConnection, "_begin", begun)
        monkeypatch.setattr(ClientConnection, "take", taken)
        monkeypatch.setattr(GrpcForwarder, "ask", asked)


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return await world_of(SHARDS, tmp_path, monkeypatch)


@contextlib.asynccontextmanager
async def in_zones(world: World) -> AsyncIterator[dict[str, NodeServer]]:
    """A node in each zone; the shards 0 and 1 prefer that of a."""
    async with contextlib.AsyncExitStack() as stack:
        nodes = {
            name: await stack.enter_async_context(
                world.node(name, cluster_zone=zone, kafka_port="0", kafka_initial_rebalance_ms=0)
            )
            for name, zone in ZONES.items()
        }
        for shard in (0, 1):
            await world.coordinators["a"].prefer(shard, "north")
        await world.coordinators["a"].prefer(2, "south")
        await until(lambda: owners(world) == {0: "a", 1: "a", 2: "b"} and not world.entries.wanted, seconds=60)
        yield nodes


def group_of(shard: int) -> str:
    return next(name for name in (f"g{number}" for number in range(100)) if home_of(name, SHARDS) == shard)


async def used(node: NodeServer, at: httpx.AsyncClient, topic: str) -> None:
    """Write to a topic and read it back, over every protocol, through one node."""
    for number in range(COUNT):
        body = {"records": [{"data": f"http {number}"}], "partition": number % 2}
        assert (await at.post(f"/v0/topics/{topic}", json=body)).status_code == 200
    async with grpc.aio.insecure_channel(f"127.0.0.1:{node.grpc_port}") as channel:
        call: Any = channel.unary_unary("/topics.v1.TopicsService/Append")
        for number in range(COUNT):
            request = pb.AppendRequest(topic=topic, partition=number % 2)
            request.columns.data.append(b'"grpc %d"' % number)
            await call(request.SerializeToString())
    assert len(await texts(at, topic)) >= COUNT
    await asyncio.to_thread(over_kafka, node.kafka_port, topic)


def over_kafka(port: int, topic: str) -> None:
    conf = {"log_level": 0, "bootstrap.servers": f"127.0.0.1:{port}", "client.id": "zone_id=north"}
    producer = kafka.Producer(conf)
    for number in range(COUNT):
        producer.produce(topic, f"kafka {number}".encode(), partition=number % 2)
    assert producer.flush(20) == 0
    consumer = kafka.Consumer({**conf, "group.id": group_of(1), "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic])
        found = 0
        while found < 3 * COUNT:
            message = consumer.poll(20)
            assert message is not None
            assert message.error() is None
            found += 1
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()


@pytest.mark.timeout(180)
async def test_producers_and_consumers_of_a_topic_in_its_zone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async with in_zones(world) as nodes, client(nodes["a"]) as at_a:
        made = await at_a.put("/v0/topics/near", json={"zone": "north", "partition_count": 2})
        assert made.json()["zone"] == "north"
        assert (await at_a.put("/v0/topics/far", json={"zone": "south", "partition_count": 2})).is_success
        await used(nodes["a"], at_a, "near")  # what a node asks once, such as where the topic lies, it knows then
        traffic = Traffic(monkeypatch)
        await used(nodes["a"], at_a, "near")
        near, traffic.sent = traffic.sent, Counter()
        await used(nodes["a"], at_a, "far")
        far = traffic.sent
        assert sum(far.values()) > 3 * COUNT * 20, "else nothing is counted"
        assert not near.keys() & {name for name, nbytes in far.items() if name not in UPKEEP}, near
        assert near.keys() <= UPKEEP, near


UPKEEP = frozenset({"CatalogApi.follow", "ProcessApi.figures", "ProcessApi.stored_users"})
"""Calls that nodes make of each other whether anything is written or not."""
