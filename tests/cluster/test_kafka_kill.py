"""Every Kafka client at three nodes with eight shards, of which one is killed while they write and read."""

import contextlib
from pathlib import Path
from typing import Final

import pytest

from support.cluster import Cluster
from support.etcd import Etcd
from support.http import Api
from support.kafka_clients import Client, check_places, records_of, value_of
from support.kafka_kinds import KINDS, usable
from support.s3 import S3
from support.waiting import poll

SHARDS: Final = 8
PARTITIONS: Final = 4
COUNT: Final = 1600
CLIENTS: Final = ("confluent-kafka", "kafka-python", "aiokafka", "java", "franz-go")
WRITING: Final = {"partitions": PARTITIONS, "count": COUNT, "pause_ms": 100, "seconds": 90}
SLOWLY: Final = WRITING | {"pause_ms": 200}
"""For librdkafka, which has written everything before others have begun."""
ENV: Final = {"TOPICS_KAFKA_INITIAL_REBALANCE_MS": 200, "TOPICS_KAFKA_CONSUMER_SESSION_TIMEOUT_MS": 8000}


@pytest.mark.timeout(240)
@pytest.mark.parametrize("protocol", [-1, pytest.param(0, marks=pytest.mark.soak)], ids=["newest", "range"])
def test_every_client_has_each_record_once_over_a_kill(tmp_path: Path, s3: S3, etcd: Etcd, protocol: int) -> None:
    """Each writes with idempotence to a topic of its own, and reads it in a group, by the protocol of that index among
    its own. One more writes with acks=1; what was acknowledged is there too. All topics are of the class `fsync`."""
    with (
        Cluster(tmp_path / "nodes", etcd.address, s3.bucket(), s3.environment, env=ENV, shards=SHARDS) as cluster,
        contextlib.ExitStack() as stack,
    ):
        bootstrap = {"bootstrap": ",".join(node.kafka_target for node in cluster.nodes)}

        def started(name: str, mark: str) -> Client:
            return stack.enter_context(usable(name).start(bootstrap, tmp_path, mark))

        admin = started("confluent-kafka", "-admin")
        topics = {name: f"t-{name}" for name in (*CLIENTS, "acks")}
        for topic in topics.values():
            admin.call("create_topic", topic=topic, partitions=PARTITIONS, configs={"topics.durability": "fsync"})
        writers = {name: started(name, "-writer") for name in CLIENTS}
        readers = {name: started(name, "-reader") for name in CLIENTS}
        plain = started("confluent-kafka", "-plain")
        for client in (*writers.values(), *readers.values()):
            client.call("describe_topic", topic="t-java")  # it takes a while to start
        for name, topic in topics.items():
            if name != "acks":
                writing = SLOWLY if name == "confluent-kafka" else WRITING
                writers[name].send("produce_many", topic=topic, acks=-1, idempotent=True, **writing)
                facts = {"count": COUNT, "protocol": KINDS[name].protocols[protocol], "seconds": 90}
                readers[name].send("consume", topic=topic, group=f"g-{name}", **facts)
        plain.send("produce_many", topic=topics["acks"], acks=1, idempotent=False, **SLOWLY)

        cluster.wait_for_followers(1)
        with Api(cluster["a"].base) as api:

            def written() -> dict[str, int]:
                counts = {topic: api.state(topic)["partitions"] for topic in topics.values()}
                return {topic: sum(each["head_seq"] for each in found) for topic, found in counts.items()}

            poll(lambda: min(written().values()) > COUNT // 20, 60, lambda: f"all write: {written()}")
            assert max(written().values()) < COUNT, "some have written everything before the kill"
            victim = max(cluster.nodes, key=lambda node: len(cluster.owned(node)))
            victim.kill()
            cluster.wait_until_taken_over(victim)
            victim.start()
        places = {name: writer.receive(120) for name, writer in writers.items()}
        for name in CLIENTS:
            read = {value_of(record) for record in records_of(readers[name].receive(120))}
            if len(read) < COUNT:  # what a lost commit has brought again was counted
                facts = {"topic": topics[name], "group": f"g-{name}", "protocol": KINDS[name].protocols[protocol]}
                read |= {value_of(record) for record in readers[name].consume(count=COUNT - len(read), **facts)}
            assert read == set(range(COUNT)), name
            check_places(admin, places[name], PARTITIONS, topics[name])
            committed = admin.committed(topics[name], f"g-{name}")
            assert committed == dict.fromkeys(range(PARTITIONS), COUNT // PARTITIONS), name
        found = admin.read(topics["acks"], dict.fromkeys(range(PARTITIONS), "earliest"))
        there = {(record.partition, record.offset): value_of(record) for record in found.records}
        for number, (partition, offset) in enumerate(plain.receive(120)):
            assert there[partition, offset] == number
