"""Real Kafka clients at a cluster of three nodes, each in a zone of its own, over four shards."""

import select
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support.cluster import Cluster
from support.etcd import Etcd
from support.kafka_batches import Rec, aiokafka_batch, read_by_aiokafka
from support.kafka_clients import check_places, records_of, value_of
from support.kafka_kinds import usable
from support.kafka_wire import Wire
from support.local_s3 import LocalS3
from support.s3 import S3
from support.waiting import poll
from topics_cluster.forward_connections import node_id
from topics_kafka.protocol import ApiKey, Message

SHARDS = 4
PARTITIONS = 4
COUNT = 2000
ZONES = {"a": "north", "b": "south", "c": "west"}


@pytest.fixture
def cluster(tmp_path: Path, etcd: Etcd, s3: S3) -> Iterator[Cluster]:
    own = {name: {"TOPICS_CLUSTER_ZONE": zone} for name, zone in ZONES.items()}
    env = {"TOPICS_KAFKA_INITIAL_REBALANCE_MS": 200, "TOPICS_CLUSTER_LEASE_SECONDS": 2, "TOPICS_CLUSTER_FOLLOWERS": 2}
    with Cluster(tmp_path, etcd.address, s3.bucket(), s3.environment, env=env, own=own, shards=SHARDS) as cluster:
        yield cluster


def connection(cluster: Cluster) -> dict[str, str]:
    """The addresses of all nodes, as client programs have them."""
    return {"bootstrap": ",".join(node.kafka_target for node in cluster.nodes)}


def leaders(admin: AdminClient, topic: str) -> dict[int, int]:
    """The broker that leads each partition."""
    found = admin.list_topics(topic, timeout=20).topics[topic]
    return {number: partition.leader for number, partition in found.partitions.items()}


def head(bootstrap: str, topic: str) -> int:
    """The number of records that a topic has; 0 while some partition has no leader."""
    consumer = Consumer({"log_level": 0, "bootstrap.servers": bootstrap, "group.id": "heads"})
    try:
        return sum(consumer.get_watermark_offsets(TopicPartition(topic, n), 5)[1] for n in range(PARTITIONS))
    except KafkaException:
        return 0
    finally:
        consumer.close()


@pytest.mark.timeout(240)
def test_each_record_once_over_a_kill_and_moves(cluster: Cluster, tmp_path: Path) -> None:
    bootstrap = connection(cluster)["bootstrap"]
    admin = AdminClient({"log_level": 0, "bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic("t", PARTITIONS, config={"topics.durability": "fsync"})])["t"].result()
    poll(lambda: len(set(leaders(admin, "t").values()) - {-1}) == 3, 60, "each node leads")
    with (
        usable("java").start(connection(cluster), tmp_path) as writer,
        usable("confluent-kafka").start(connection(cluster), tmp_path) as reader,
    ):
        facts = {"topic": "t", "partitions": PARTITIONS, "count": COUNT, "pause_ms": 100, "seconds": 120}
        writer.send("produce_many", acks=-1, idempotent=True, **facts)
        reader.send("consume", topic="t", group="g", count=COUNT, protocol="range", seconds=120)
        poll(lambda: head(bootstrap, "t") > 200, 60, "writes go on")
        cluster["b"].kill()
        poll(lambda: not {node_id("b"), -1} & {*leaders(admin, "t").values()}, 30, "others lead")
        before = poll(lambda: head(bootstrap, "t"), 30, "the partitions have leaders")
        poll(lambda: head(bootstrap, "t") > min(before + 100, COUNT - 1), 60, "writes go on")
        cluster["b"].start()
        poll(lambda: node_id("b") in leaders(admin, "t").values(), 90, "shards move to it")
        places = writer.receive(120)
        assert {value_of(each) for each in records_of(reader.receive(120))} == set(range(COUNT))
        check_places(reader, places, PARTITIONS)


@pytest.mark.timeout(240)
def test_clients_of_a_zone(cluster: Cluster) -> None:
    bootstrap = connection(cluster)["bootstrap"]
    admin = AdminClient({"log_level": 0, "bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic("t", PARTITIONS)])["t"].result()
    ids = {name: node_id(name) for name in ZONES}
    poll(lambda: set(leaders(admin, "t").values()) == set(ids.values()), 60, "each node leads")
    assert set(admin.list_topics(timeout=20).brokers) == set(ids.values())
    for name, zone in ZONES.items():
        conf = {"log_level": 0, "bootstrap.servers": bootstrap, "client.id": f"zone_id={zone},app=test"}
        seen = AdminClient(conf).list_topics("t", timeout=20)
        assert set(seen.brokers) == {ids[name]}
        assert {each.leader for each in seen.topics["t"].partitions.values()} == {ids[name]}
        producer = Producer({**conf, "enable.idempotence": True})
        for number in range(40):
            producer.produce("t", f"{zone}-{number}".encode(), partition=number % PARTITIONS)
        assert producer.flush(20) == 0
        consumer = Consumer({**conf, "group.id": f"in-{zone}", "auto.offset.reset": "earliest"})
        consumer.subscribe(["t"])
        wanted, found = {f"{zone}-{number}" for number in range(40)}, set[str]()
        ends = time.monotonic() + 30
        while not wanted <= found and time.monotonic() < ends:
            message = consumer.poll(1)
            if message is not None:
                assert message.error() is None
                found.add((message.value() or b"").decode())
        assert wanted <= found
        consumer.commit(asynchronous=False)
        consumer.close()
    cluster["c"].stop()
    gone = AdminClient({"log_level": 0, "bootstrap.servers": bootstrap, "client.id": "zone_id=west"})
    poll(lambda: set(gone.list_topics(timeout=20).brokers) == {ids["a"], ids["b"]}, 30, "all that are left")


@pytest.mark.timeout(240)
def test_a_node_of_the_zone_reads_from_its_replica(cluster: Cluster, tmp_path: Path) -> None:
    """It answers with everything that was acknowledged before, and the records come from its own rows."""
    bootstrap = connection(cluster)["bootstrap"]
    admin = AdminClient({"log_level": 0, "bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic("t", PARTITIONS, config={"topics.durability": "fsync"})])["t"].result()
    poll(lambda: set(leaders(admin, "t").values()) == set(map(node_id, ZONES)), 60, "each node leads")
    north, south = cluster["a"], cluster["b"]
    reads = "topics_cluster_follower_reads_total"
    partitions = [number for number, leader in leaders(admin, "t").items() if leader != node_id("a")]
    at = partitions[0]
    with Wire(north.kafka_port) as near, Wire(south.kafka_port) as far:

        def produced(wire: Wire, number: int) -> int:
            records = aiokafka_batch([Rec(None, b"%d" % number, (), 1_700_000_000_000)])
            topic = {"name": "t", "partition_data": [{"index": at, "records": records}]}
            answer = wire.call(ApiKey.PRODUCE, 12, transactional_id=None, acks=-1, timeout=9000, topic_data=[topic])
            (found,) = answer["responses"][0]["partition_responses"]
            assert found["error_code"] == 0, found
            return int(found["base_offset"])

        def fetched(offset: int, max_wait: int = 0) -> tuple[int, bytes]:
            partition = {"partition": at, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
            asked = {"topic": "t", "partitions": [{**partition, "current_leader_epoch": -1}]}
            answer = near.call(
                ApiKey.FETCH, 11, max_wait=max_wait, min_bytes=1, max_bytes=1 << 20, topics=[asked], rack_id=""
            )
            (found,) = answer["responses"][0]["partitions"]
            assert found["error_code"] == 0, found
            return found["high_watermark"], bytes(found["records"] or b"")

        def all_reads() -> float:
            return north.metrics()[reads]

        produced(far, 0)
        poll(lambda: fetched(0)[0] == 1 and all_reads() > 0, 60, "the node follows the shard")
        before, rounds = all_reads(), 20
        for number in range(1, rounds + 1):
            offset = produced(far if number % 2 else near, number)
            high, records = fetched(offset)
            assert high == offset + 1, "what was acknowledged before is there"
            assert [record.value for _, record in read_by_aiokafka(records)] == [b"%d" % number]
        assert all_reads() - before > rounds / 2, "an object that is late is read at the owner"
        waiting = threading.Thread(target=lambda: (time.sleep(0.5), produced(far, 99)))
        waiting.start()
        began = time.monotonic()
        assert fetched(rounds + 1, 20_000)[0] == rounds + 2
        assert time.monotonic() - began < 15, "it is woken"
        waiting.join()
    conf = {"log_level": 0, "bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    reader = Consumer({**conf, "client.rack": ZONES["a"]})
    try:
        reader.assign([TopicPartition("t", at, 0)])
        before = all_reads()
        assert values_of(reader, rounds + 2) == {*map(str, range(rounds + 1)), "99"}
        assert all_reads() > before, "librdkafka reads in its zone"
        with usable("java").start(connection(cluster), tmp_path) as java:
            before = all_reads()
            facts = {"topic": "t", "start": {str(at): "earliest"}, "rack": ZONES["a"]}
            java.send("read", **facts)
            assert len(java.receive(60)["records"]) == rounds + 2
            assert all_reads() > before, "the Java client reads in its zone"
            north.kill()
            with Wire(south.kafka_port) as far:
                produced(far, 100)
            assert values_of(reader, 1) == {"100"}, "without a node in the zone it reads elsewhere"
            java.send("read", **facts)
            assert len(java.receive(60)["records"]) == rounds + 3
    finally:
        reader.close()


def values_of(consumer: Consumer, count: int) -> set[str]:
    """So many records, as they come within a minute."""
    found, ends = set[str](), time.monotonic() + 60
    while len(found) < count and time.monotonic() < ends:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            found.add((message.value() or b"").decode())
    return found


@pytest.mark.timeout(120)
def test_acks_all_waits_for_the_store_whatever_the_class_of_the_topic(tmp_path: Path, etcd: Etcd) -> None:
    """At the owner of a partition, and at the node that passes the write on."""
    with (
        LocalS3() as store,
        Cluster(tmp_path, etcd.address, "s3://bucket/t", store.environment, nodes=2, shards=2) as cluster,
    ):
        bootstrap = connection(cluster)["bootstrap"]
        admin = AdminClient({"log_level": 0, "bootstrap.servers": bootstrap})
        classes = ("disk", "memory", "ephemeral")
        topics = [NewTopic(name, 2, config={"topics.durability": name}) for name in classes]
        for made in admin.create_topics(topics).values():
            made.result()
        poll(lambda: set(leaders(admin, "disk").values()) == {node_id("a"), node_id("b")}, 60, "each node leads")
        records = aiokafka_batch([Rec(None, b"x", (), 1_700_000_000_000)])

        def body(name: str, acks: int) -> dict[str, object]:
            data = [{"index": number, "records": records} for number in range(2)]
            topic = {"name": name, "partition_data": data}
            return {"transactional_id": None, "acks": acks, "timeout": 9000, "topic_data": [topic]}

        def check(answer: Message) -> None:
            (topic,) = answer["responses"]
            assert [each["error_code"] for each in topic["partition_responses"]] == [0, 0], topic

        with ExitStack() as stack:
            quick = stack.enter_context(Wire(cluster["a"].kafka_port))
            waiting = {name: stack.enter_context(Wire(cluster["a"].kafka_port)) for name in ("disk", "memory")}
            for name in classes:
                check(quick.call(ApiKey.PRODUCE, 12, **body(name, -1)))
            with store.away("refuses", 0):
                sent = {name: wire.send(ApiKey.PRODUCE, 12, body(name, -1)) for name, wire in waiting.items()}
                for name in ("disk", "memory"):
                    check(quick.call(ApiKey.PRODUCE, 12, **body(name, 1)))
                check(quick.call(ApiKey.PRODUCE, 12, **body("ephemeral", -1)))
                answered, _, _ = select.select([wire.socket for wire in waiting.values()], [], [], 0.3)
                assert not answered, "the store has none of it"
            for name, wire in waiting.items():
                check(wire.receive(ApiKey.PRODUCE, 12, sent[name]))
