"""Kills of the server: between append and reply under idempotent producers, and in the middle of a rebalance."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.http import Api
from support.kafka_clients import Client
from support.kafka_group import Churn
from support.kafka_kinds import usable
from support.kafka_proxy import Proxy
from support.server import ServerProcess
from support.waiting import poll

QUICK_GROUPS = {"TOPICS_KAFKA_INITIAL_REBALANCE_MS": 200}
KILLS = 2


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with Proxy() as proxy:
        yield proxy


@pytest.fixture
def mortal(tmp_path: Path, proxy: Proxy) -> Iterator[ServerProcess]:
    """A server behind the proxy, on a port that it keeps over restarts."""
    env = {**QUICK_GROUPS, "TOPICS_KAFKA_ADVERTISED": f"127.0.0.1:{proxy.port}"}
    with ServerProcess(tmp_path / "server", env=env, kafka=True, same_ports=True) as server:
        proxy.target = server.kafka_port
        yield server


def restart(server: ServerProcess, proxy: Proxy) -> None:
    """Kill the server, losing all pending answers, and restart it on the same files."""
    server.kill()
    proxy.drop()
    server.start()


def heads(server: ServerProcess, topic: str, partitions: int) -> int:
    """The total number of records that the partitions have ever had."""
    with Api(server.base) as api:
        return sum(api.read(topic, partition=p, limit=1)["head_seq"] for p in range(partitions))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ["confluent-kafka", "java", "franz-go", "kafka-python", "aiokafka"])
def test_killed_between_append_and_reply(
    mortal: ServerProcess, proxy: Proxy, topic: str, tmp_path: Path, name: str
) -> None:
    count, partitions = 3000, 2
    connection = {"bootstrap": f"127.0.0.1:{proxy.port}"}
    with (
        usable(name).start(connection, tmp_path) as writer,
        usable("confluent-kafka").start(connection, tmp_path, "2") as reader,
    ):
        reader.call("create_topic", topic=topic, partitions=partitions)
        facts = {"partitions": partitions, "count": count, "pause_ms": 40, "seconds": 60}
        writer.send("produce_many", topic=topic, acks=-1, idempotent=True, **facts)
        for _ in range(KILLS):
            seen = heads(mortal, topic, partitions)
            poll(lambda seen=seen: heads(mortal, topic, partitions) > seen + 20, 20, "writes go on")
            proxy.hold()
            assert proxy.withheld.wait(20), "an append without its reply"
            restart(mortal, proxy)
        places = writer.receive(90)
        check(reader, topic, count, partitions, places)


def check(reader: Client, topic: str, count: int, partitions: int, places: list[list[int]]) -> None:
    """Check that every record exists once, in order, at its acknowledged offset."""
    found = reader.read(topic, dict.fromkeys(range(partitions), "earliest"))
    for partition in range(partitions):
        values = [int(record.value or b"") for record in found.records if record.partition == partition]
        assert values == list(range(partition, count, partitions))
    by_value = {int(record.value or b""): [record.partition, record.offset] for record in found.records}
    assert [by_value[number] for number in range(count)] == places


@pytest.mark.timeout(120)
@pytest.mark.parametrize("protocol", ["range", "cooperative", "consumer"])
def test_killed_in_a_rebalance(mortal: ServerProcess, proxy: Proxy, topic: str, tmp_path: Path, protocol: str) -> None:
    with Churn(f"127.0.0.1:{proxy.port}", tmp_path, topic, protocol) as churn:
        churn.produce(count=2000, pause_ms=50)
        churn.join("a", "confluent-kafka")
        churn.settled()
        churn.join("b", "java")
        restart(mortal, proxy)
        churn.settled(60)
        churn.join("c", "franz-go")
        proxy.hold()
        restart(mortal, proxy)
        churn.settled(60)
        churn.finish(60)
