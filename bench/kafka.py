"""The Kafka listener under librdkafka and under raw connections, against a Kafka broker in the same run.

Python's confluent-kafka (librdkafka) is the client on both sides, on the core that the server leaves; the broker is one
KRaft node in its default configuration, with the heap of Kafka's own scripts. Neither waits for the disk before it
answers.
"""

import asyncio
import contextlib
import statistics
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import uvloop
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.kafka_broker import MISSING, cpu_seconds, fetched, kafka_broker, resident_bytes
from bench.table import Row
from bench.tools import data_of
from support.server import ServerProcess
from topics_kafka.protocol import ApiKey, encode_request
from topics_service.storage import recordbatch

_RECORDS = 3_000_000
_WARM_UP = 300_000
_SINGLES = 2_000
_CONNECTIONS = 100
_SECONDS = 5.0
_BATCH_BYTES = 1_000_000
_PATIENCE = 120.0
_MEMORY_BYTES = 64 << 20


@dataclass(frozen=True)
class Figures:
    """Results of one server: rates in records and requests per second, processor time in us per record."""

    produced: float
    produce_cpu: float
    consumed: float
    consume_cpu: float
    single_ms: float
    requests: float
    memory_mb: float


def run(directory: Path) -> list[Row]:
    """Every row of the Kafka listener."""
    with ServerProcess(directory / "topics", kafka=True, env={"TOPICS_MEMORY_BYTES": _MEMORY_BYTES}) as server:
        ours = _measure(server.kafka_port, server.pid)
    peer = None
    if fetched():
        with kafka_broker(directory / "kafka") as broker:
            peer = _measure(broker.port, broker.pid)
    name = "Kafka 4.3 (KRaft)" if peer else ""
    absent = "" if peer else f"no Kafka broker: {MISSING}"

    def row(what: str, ours: float, unit: str, bar: str, peer: float | None, note: str = "") -> Row:
        return Row(f"Kafka: {what}", ours, unit, bar, peer, name, note or absent)

    def of(figure: str) -> float | None:
        return getattr(peer, figure) if peer else None

    batches = "librdkafka, idempotent, batches of 1 MB, 150 B a record, not compressed"
    return [
        row("produce", ours.produced, "rec/s", "700 k, 0.8x", of("produced"), batches),
        row("consume", ours.consumed, "rec/s", "700 k, 0.8x", of("consumed"), "librdkafka, without a group"),
        row("server CPU of a record produced", ours.produce_cpu, "us", "0.5", of("produce_cpu")),
        row("server CPU of a record consumed", ours.consume_cpu, "us", "0.5", of("consume_cpu")),
        row("one record, acks=all, p50", ours.single_ms, "ms", "0.5", of("single_ms"), "librdkafka, no linger"),
        row(f"{_CONNECTIONS} connections, one record a request", ours.requests, "req/s", "8 k", of("requests")),
        row(
            "memory of the server",
            ours.memory_mb,
            "MB",
            "0.1x",
            of("memory_mb"),
            "resident, at the end; ours with TOPICS_MEMORY_BYTES of 64 MiB, all the time",
        ),
    ]


def _measure(port: int, pid: int) -> Figures:
    server = f"127.0.0.1:{port}"
    for topic in ("warm", "bulk", "single", "many"):
        admin = AdminClient({"bootstrap.servers": server})
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    _produce(server, "warm", _WARM_UP, pid)
    _consume(server, "warm", _WARM_UP, pid)
    producing = _produce(server, "bulk", _RECORDS, pid)
    consuming = _consume(server, "bulk", _RECORDS, pid)
    single = _single(server)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        requests = runner.run(_requests(port))
    return Figures(
        produced=_RECORDS / producing.seconds,
        produce_cpu=producing.cpu / _RECORDS * 1e6,
        consumed=_RECORDS / consuming.seconds,
        consume_cpu=consuming.cpu / _RECORDS * 1e6,
        single_ms=single,
        requests=requests,
        memory_mb=resident_bytes(pid) / 1e6,
    )


@dataclass
class _Span:
    seconds: float = 0.0
    cpu: float = 0.0


@contextlib.contextmanager
def _timed(pid: int) -> Iterator[_Span]:
    """The time that the block takes, and the processor time of the server in it."""
    span, cpu, begun = _Span(), cpu_seconds(pid), time.perf_counter()
    yield span
    span.seconds = time.perf_counter() - begun
    span.cpu = cpu_seconds(pid) - cpu


def _value() -> bytes:
    """About 150 bytes of JSON, as in the other groups."""
    return data_of(1).encode()[:150].ljust(150)


def _produce(server: str, topic: str, count: int, pid: int) -> _Span:
    """Write the given number of records; the time begins when the producer has its id and a first record is
    acknowledged.
    """
    producer = Producer(
        {
            "bootstrap.servers": server,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 20,
            "batch.size": _BATCH_BYTES,
            "batch.num.messages": 100_000,
            "message.max.bytes": _BATCH_BYTES,
            "queue.buffering.max.messages": 200_000,
        }
    )
    value, produce = _value(), producer.produce
    produce(topic, value)
    producer.flush(_PATIENCE)
    with _timed(pid) as span:
        for _ in range(count - 1):
            try:
                produce(topic, value)
            except BufferError:
                while len(producer) > 150_000:
                    producer.poll(0.01)
                produce(topic, value)
        if producer.flush(_PATIENCE):
            raise RuntimeError("records are left over")
    return span


def _consume(server: str, topic: str, count: int, pid: int) -> _Span:
    """Read the given number of records; the time begins when the first have come."""
    consumer = Consumer(
        {
            "bootstrap.servers": server,
            "group.id": "bench",
            "enable.auto.commit": False,
            "queued.min.messages": 400_000,
            "fetch.message.max.bytes": 4 * _BATCH_BYTES,
            "fetch.queue.backoff.ms": 2,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    left, deadline = count - len(consumer.consume(1, _PATIENCE)), time.monotonic() + _PATIENCE
    with _timed(pid) as span:
        while left > 0:
            left -= len(consumer.consume(10_000, 1.0))
            if time.monotonic() > deadline:
                raise RuntimeError(f"{left} records did not come")
    consumer.close()
    return span


def _single(server: str) -> float:
    """Milliseconds from one record to its acknowledgement, the median."""
    producer = Producer({"bootstrap.servers": server, "enable.idempotence": True, "acks": "all", "linger.ms": 0})
    value, taken, done = _value(), [], []

    def delivered(error: object, _: Message) -> None:
        if error is not None:
            raise RuntimeError(error)
        done.append(True)

    for _ in range(_SINGLES):
        begun = time.perf_counter()
        done.clear()
        producer.produce("single", value, on_delivery=delivered)
        while not done:
            producer.poll(1)
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken[_SINGLES // 10 :]) * 1e3


async def _requests(port: int) -> float:
    """Requests a second of connections that each wait for the answer to one before the next."""
    columns = recordbatch.Columns([_value()], None, None, None)
    batch = recordbatch.encoded(0, [int(time.time() * 1000)], columns, None)
    topic = {"name": "many", "partition_data": [{"index": 0, "records": batch}]}
    body = {"transactional_id": None, "acks": -1, "timeout_ms": 30_000, "topic_data": [topic]}
    frame = b"".join(encode_request(ApiKey.PRODUCE, 9, 1, "bench", body))
    request = struct.pack(">i", len(frame)) + frame
    begun = time.perf_counter()
    until, done = begun + _SECONDS, 0

    async def call() -> None:
        nonlocal done
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.perf_counter() < until:
            writer.write(request)
            (length,) = struct.unpack(">i", await reader.readexactly(4))
            await reader.readexactly(length)
            done += 1
        writer.close()

    await asyncio.gather(*(call() for _ in range(_CONNECTIONS)))
    return done / (time.perf_counter() - begun)
