"""Real Kafka clients at `topics serve --processes 2`: whichever process a connection comes to answers it."""

import time
import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from support.http import Api
from support.server import ServerProcess

RECORDS = 600
TOPICS = [f"clicks{number}" for number in range(4)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    env = {"TOPICS_PROCESSES": 2, "TOPICS_SHARDS": 4, "TOPICS_KAFKA_INITIAL_REBALANCE_MS": 200}
    with ServerProcess(tmp_path_factory.mktemp("kafka"), env=env, kafka=True) as process:
        yield process


@pytest.fixture(scope="module")
def address(server: ServerProcess) -> dict[str, str]:
    return {"bootstrap.servers": f"127.0.0.1:{server.kafka_port}"}


@pytest.fixture(scope="module")
def written(address: dict[str, str]) -> dict[tuple[str, int], list[bytes]]:
    """Values by topic and partition, as an idempotent producer wrote them."""
    admin = AdminClient(address)
    for made in admin.create_topics([NewTopic(name, 4) for name in TOPICS]).values():
        made.result()
    written: dict[tuple[str, int], list[bytes]] = {}
    errors: list[object] = []
    producer = Producer({**address, "enable.idempotence": True, "compression.type": "zstd", "linger.ms": 1})
    for number in range(RECORDS):
        topic, partition, value = TOPICS[number % 4], number // 4 % 4, b'{"n":%d}' % number
        written.setdefault((topic, partition), []).append(value)
        producer.produce(topic, value, partition=partition, on_delivery=lambda e, _: errors.append(e) if e else None)
        if not number % 50:
            producer.flush(20)
    assert producer.flush(20) == 0
    assert not errors
    return written


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_reads_everything_in_order_and_comes_back_to_where_it_was(
    address: dict[str, str], written: dict[tuple[str, int], list[bytes]], protocol: str
) -> None:
    group = f"{protocol}-{uuid.uuid4().hex[:8]}"
    conf = {**address, "group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    conf["group.protocol"] = protocol
    consumers = [Consumer(conf) for _ in range(2)]
    read: dict[tuple[str, int], list[bytes]] = {}
    by_member = [0, 0]
    for consumer in consumers:
        consumer.subscribe(["^clicks.*"])
    deadline = time.monotonic() + 60
    while sum(by_member) < RECORDS and time.monotonic() < deadline:
        for member, consumer in enumerate(consumers):
            for message in consumer.consume(500, 0.2):
                assert message.error() is None, message.error()
                read.setdefault((message.topic(), message.partition()), []).append(message.value())
                by_member[member] += 1
    assert read == written
    assert all(by_member), "both members have partitions"
    for consumer in consumers:
        consumer.commit(asynchronous=False)
        consumer.close()
    again = Consumer(conf)
    places = [TopicPartition(*place) for place in written]
    positions = {(each.topic, each.partition): each.offset for each in again.committed(places, 20)}
    again.close()
    assert positions == {place: len(values) for place, values in written.items()}


def test_other_protocols_see_the_records(server: ServerProcess, written: dict[tuple[str, int], list[bytes]]) -> None:
    with Api(server.base) as api:
        for (topic, partition), values in written.items():
            reply = api.diff(topic, from_seq=0, partition=partition)
            found = [record["data"]["n"] for record in reply.json()["records"]]
            assert [b'{"n":%d}' % n for n in found] == values


def test_a_consumer_waits_for_records_of_any_partition(address: dict[str, str]) -> None:
    admin = AdminClient(address)
    admin.create_topics([NewTopic("news", 4)])["news"].result()
    consumer = Consumer({**address, "group.id": "waits", "fetch.wait.max.ms": 20_000, "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition("news", partition, 0) for partition in range(4)])
    assert consumer.poll(0.5) is None
    producer = Producer(address)
    for partition in range(4):
        began = time.monotonic()
        producer.produce("news", b"%d" % partition, partition=partition)
        assert producer.flush(20) == 0
        message = consumer.poll(20)
        assert message is not None
        assert (message.partition(), message.value()) == (partition, b"%d" % partition)
        assert time.monotonic() - began < 10, "it did not wait for the fetch to end"
    consumer.close()
