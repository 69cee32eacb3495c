"""A data directory with everything in it, made by a real server and its clients."""

import random
from pathlib import Path
from typing import NamedTuple

from backup.states import fill
from confluent_kafka import Producer
from corruption.harness import Truth, copied, truth

from support.server import ServerProcess
from topics_client import NewRecord, TopicConfig, TopicsClient

LARGE = 30_000
BATCH = 100
KAFKA = 4000


class Originals(NamedTuple):
    """The directories of a server that was killed and of one that was stopped, with the same records."""

    killed: Path
    stopped: Path
    truth: Truth


def make_originals(work_dir: Path) -> Originals:
    """Make them."""
    server = make(work_dir / "server")
    with TopicsClient(server.grpc_target) as client:
        expected = truth(client)
    server.kill()
    killed = copied(server.data_dir, work_dir / "killed")
    assert server.start().stop() == 0
    return Originals(killed, copied(server.data_dir, work_dir / "stopped"), expected)


def make(work_dir: Path) -> ServerProcess:
    """A running server with topics of all kinds: `large` (tagged, sealed in part), `kafka` (compressed batches),
    a queue whose jobs have delays and priorities, routers, groups, deletes, gaps, idempotency keys."""
    server = ServerProcess(work_dir, kafka=True).start()
    with TopicsClient(server.grpc_target) as client:
        fill(client)
        _fill_large(client)
        client.put_topic("kafka")
        _produce(server.kafka_port)
        client.delete_records("kafka", before_seq=100)
        client.put_topic("gone")
        client.append_many("gone", range(100))
        client.delete_topic("gone")
        client.put_topic("ephemeral", TopicConfig(durability="ephemeral"))
        client.append_many("ephemeral", range(100))
    return server


def _fill_large(client: TopicsClient) -> None:
    """Data that does not compress, so that it fills blocks of table files."""
    source = random.Random(9)
    client.put_topic("large")
    for first in range(0, LARGE, BATCH):
        values = [NewRecord(source.randbytes(60), tag=f"t{(first + i) % 50}" if i % 10 else None) for i in range(BATCH)]
        client.append_many("large", values)
    client.delete_records("large", tag="t7")


def _produce(port: int) -> None:
    for codec, idempotent in (("lz4", True), ("gzip", False), ("none", True), ("zstd", False)):
        producer = Producer(
            {
                "bootstrap.servers": f"127.0.0.1:{port}",
                "compression.type": codec,
                "enable.idempotence": idempotent,
                "linger.ms": 60_000,  # every batch is full, however busy the machine; `flush` does not wait for it
                "batch.num.messages": 100,
            }
        )
        for number in range(KAFKA // 4):
            producer.produce("kafka", f"value {number}".encode() * 5, key=f"k{number % 20}".encode())
            if not number % 100:
                producer.poll(0)
        assert producer.flush(20) == 0
