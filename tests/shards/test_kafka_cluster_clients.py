"""Real Kafka clients at three nodes whose shards move, die and come back."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from shards.kafka_cluster import KafkaCluster, open_cluster

from support.kafka_clients import check_places
from support.kafka_kinds import usable
from support.waiting import until
from topics_service.engine.placement import shard_of

SHARDS = 6
PARTITIONS = 3
COUNT = 1800


@pytest.fixture
async def cluster() -> AsyncIterator[KafkaCluster]:
    async with open_cluster(SHARDS) as world:
        yield world


def connection(cluster: KafkaCluster, name: str) -> dict[str, str]:
    """The address of one node for the programs that take no more, and that of all for others."""
    return {"bootstrap": f"127.0.0.1:{cluster.nodes[1].port}" if name == "franz-go" else cluster.addresses}


def written(cluster: KafkaCluster, topic: str) -> int:
    shards = {shard_of(topic, number, SHARDS) for number in range(PARTITIONS)}
    parts = [cluster.world.engines[shard].catalog.topics.get(topic) for shard in shards]
    return sum(log.view.head for part in parts if part is not None for log in part.logs)


async def disturb(cluster: KafkaCluster, topic: str) -> None:
    """Move, lose and take over shards while something is written."""
    view = cluster.view
    shards = [shard_of(topic, number, SHARDS) for number in range(PARTITIONS)]

    async def progress() -> None:
        before = written(cluster, topic)
        await until(lambda: written(cluster, topic) > before + 60, seconds=30)

    await progress()
    view.move(shards[0], (view.owners[shards[0]] or 1) % 3 + 1)
    await progress()
    for lost in ("lost_before", "lost_after"):
        for node in cluster.nodes.values():
            getattr(node.shards, lost)["append"] = 1
        await progress()
    view.move(shards[1], None)
    await asyncio.sleep(0.2)
    view.move(shards[1], (view.owners[shards[1]] or 1) % 3 + 1)
    await progress()
    dying = view.owners[shards[2]] or 1
    heir = dying % 3 + 1
    for node in cluster.nodes.values():
        node.shards.lost_after["append"] = 1
    await cluster.nodes[dying].die()
    await asyncio.sleep(0.2)
    for shard, owner in view.owners.items():
        if owner is None:
            view.move(shard, heir)
    await progress()
    await cluster.nodes[dying].restart()
    view.move(shards[2], dying)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ["confluent-kafka", "java", "franz-go", "kafka-python", "aiokafka"])
async def test_an_idempotent_producer_writes_each_record_once(cluster: KafkaCluster, tmp_path: Path, name: str) -> None:
    with (
        usable(name).start(connection(cluster, name), tmp_path) as writer,
        usable("confluent-kafka").start(connection(cluster, "confluent-kafka"), tmp_path, "2") as reader,
    ):
        await asyncio.to_thread(reader.call, "create_topic", topic="t", partitions=PARTITIONS)
        facts = {"topic": "t", "partitions": PARTITIONS, "count": COUNT, "pause_ms": 40, "seconds": 60}
        writer.send("produce_many", acks=-1, idempotent=True, **facts)
        await disturb(cluster, "t")
        places = await asyncio.to_thread(writer.receive, 90)
        await asyncio.to_thread(check_places, reader, places, PARTITIONS)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("name", "protocol"),
    [("confluent-kafka", "consumer"), ("java", "range"), ("java", "consumer"), ("franz-go", "cooperative")],
)
async def test_a_group_reads_on_while_its_coordinator_moves(
    cluster: KafkaCluster, tmp_path: Path, name: str, protocol: str
) -> None:
    with (
        usable("confluent-kafka").start(connection(cluster, "confluent-kafka"), tmp_path, "2") as writer,
        usable(name).start(connection(cluster, name), tmp_path) as reader,
    ):
        await asyncio.to_thread(writer.call, "create_topic", topic="t", partitions=PARTITIONS)
        facts = {"topic": "t", "partitions": PARTITIONS, "count": COUNT, "pause_ms": 40, "seconds": 60}
        writer.send("produce_many", acks=-1, idempotent=True, **facts)
        reader.send("consume", topic="t", group="g", count=COUNT, protocol=protocol, seconds=60)
        moving = asyncio.ensure_future(disturb(cluster, "t"))
        view, group = cluster.view, shard_of("g", 0, SHARDS)
        for _ in range(3):
            await asyncio.sleep(0.4)
            for node in cluster.nodes.values():
                for method in ("heartbeat", "beat", "commit", "positions"):
                    node.shards.lost_after[method] = 1
            view.move(group, None)
            await asyncio.sleep(0.1)
            view.move(group, min(view.nodes))
        await moving
        await asyncio.to_thread(writer.receive, 90)
        found = await asyncio.to_thread(reader.receive, 90)
        assert len(found) >= COUNT
        for node in cluster.nodes.values():
            node.shards.lost_after.clear()  # admin clients do not repeat requests
        committed = await asyncio.to_thread(reader.committed, "t", "g")
        assert committed == dict.fromkeys(range(PARTITIONS), COUNT // PARTITIONS)


async def test_librdkafka_stays_in_its_zone(cluster: KafkaCluster) -> None:
    conf: dict[str, Any] = {"bootstrap.servers": cluster.addresses, "client.id": "zone_id=b,app=test"}

    def run() -> set[int]:
        admin = AdminClient(conf)
        admin.create_topics([NewTopic("t", SHARDS)])["t"].result()
        seen = admin.list_topics("t", timeout=20)
        leaders = {partition.leader for partition in seen.topics["t"].partitions.values()}
        assert set(seen.brokers) == leaders == {2}
        errors: list[KafkaError] = []
        producer = Producer({**conf, "enable.idempotence": True})
        for number in range(120):
            producer.produce(
                "t", b"%d" % number, partition=number % SHARDS, on_delivery=lambda e, _: errors.append(e) if e else None
            )
        assert producer.flush(20) == 0
        assert not errors
        consumer = Consumer({**conf, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.assign([TopicPartition("t", number, 0) for number in range(SHARDS)])
        found: set[int] = set()
        while len(found) < 120:
            message = consumer.poll(20)
            assert message is not None
            assert message.error() is None
            found.add(int(message.value() or b""))
        consumer.close()
        return found

    for number in (1, 3):  # clients ask these only where the brokers are
        cluster.nodes[number].shards.calls.clear()
    assert await asyncio.to_thread(run) == set(range(120))
    data = {"append", "fetch", "offsets", "commit"}
    for number in (1, 3):
        assert not {name for name, _ in cluster.nodes[number].shards.calls} & data
