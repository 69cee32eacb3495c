"""The Python SDK as a program uses it, against redis-py and nats-py doing the same.

Client and server share the two cores, and one peer runs at a time. Every reader takes each record's data as bytes.
"""

import asyncio
import json
import statistics
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import nats
import redis
from nats.js.api import AckPolicy, ConsumerConfig

from bench.table import Row
from bench.tools import data_of, have, nats_server, redis_server
from support.server import TOPICS, ServerProcess
from topics_client import RawJson, Record, TopicsClient

_RECORDS = 400_000
_PEER_RECORDS = 100_000
_BATCH = 1000
_HELPS = 11


@dataclass(frozen=True)
class _Rates:
    """Records a second."""

    append: float
    read: float
    watch: float


def run(directory: Path) -> list[Row]:
    """Every row of the SDK and its command line."""
    datas = [data_of(i).encode() for i in range(_BATCH)]
    with ServerProcess(directory / "topics") as server, TopicsClient(server.grpc_target) as client:
        values = [json.loads(data) for data in datas]
        objects = _rate(_RECORDS, lambda: _produce(client, "objects", values))
        ours = _Rates(
            append=_rate(_RECORDS, lambda: _produce(client, "texts", [RawJson(data) for data in datas])),
            read=_rate(_RECORDS, lambda: _count(client.read("texts"))),
            watch=_rate(_RECORDS, lambda: _count(client.watch("texts"))),
        )
    (directory / "redis").mkdir()
    with redis_server(directory / "redis", "everysec") as port, redis.Redis(port=port) as connection:
        peer = _redis(connection, datas)
    note = ""
    with_nats = have("nats-server")
    if with_nats:
        with nats_server(directory / "nats") as port:
            other = asyncio.run(_nats(port, datas))
    rows = []
    for what, name, rate, bar in (
        ("SDK: append through the producer, JSON texts", "append", ours.append, "250 k"),
        ("SDK: append through the producer, dicts", "append", objects, "250 k"),
        ("SDK: read everything", "read", ours.read, "500 k"),
        ("SDK: watch, from the first record on", "watch", ours.watch, "200 k"),
    ):
        note = f"nats-py on JetStream {getattr(other, name):,.0f} rec/s" if with_nats else ""
        rows.append(Row(what, rate, "rec/s", bar, getattr(peer, name), "redis-py", note))
    rows.append(Row("`topics --help`", _help_ms(), "ms", "300 ms", None, "", f"median of {_HELPS}"))
    return rows


def _rate(records: int, work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return records / (time.perf_counter() - started)


def _produce(client: TopicsClient, topic: str, values: list[object]) -> None:
    with client.producer() as producer:
        for i in range(_RECORDS):
            producer.append(topic, values[i % _BATCH])


def _count(records: Iterable[Record]) -> None:
    total = 0
    for record in records:
        total += len(record.data)
        if record.seq == _RECORDS:
            break
    assert total > 100 * _RECORDS


def _redis(peer: redis.Redis, datas: list[bytes]) -> _Rates:
    def append() -> None:
        for _ in range(_PEER_RECORDS // _BATCH):
            pipeline = peer.pipeline(transaction=False)
            for data in datas:
                pipeline.xadd("stream", {"d": data})
            pipeline.execute()

    def read(page: Callable[[bytes], list[tuple[bytes, dict[bytes, bytes]]]]) -> None:
        count, last = 0, b"0-0"
        while count < _PEER_RECORDS:
            entries = page(last)
            count += sum(bool(fields[b"d"]) for _, fields in entries)
            last = entries[-1][0]

    return _Rates(
        append=_rate(_PEER_RECORDS, append),
        read=_rate(_PEER_RECORDS, lambda: read(lambda last: peer.xrange("stream", b"(" + last, count=_BATCH))),
        watch=_rate(
            _PEER_RECORDS, lambda: read(lambda last: peer.xread({"stream": last}, count=_BATCH, block=1000)[0][1])
        ),
    )


async def _nats(port: int, datas: list[bytes]) -> _Rates:
    connection = await nats.connect(f"nats://127.0.0.1:{port}")
    stream = connection.jetstream()
    await stream.add_stream(name="bench", subjects=["bench"])

    async def append() -> None:
        for i in range(_PEER_RECORDS):
            await stream.publish_async("bench", datas[i % _BATCH])
        await stream.publish_async_completed()

    async def read() -> None:
        pull = await stream.pull_subscribe("bench", config=ConsumerConfig(ack_policy=AckPolicy.NONE))
        count = 0
        while count < _PEER_RECORDS:
            count += sum(bool(message.data) for message in await pull.fetch(_BATCH))

    async def watch() -> None:
        push = await stream.subscribe("bench", ordered_consumer=True)
        count = 0
        while count < _PEER_RECORDS:
            count += bool((await push.next_msg(timeout=10)).data)

    async def rate(work: Callable[[], Awaitable[None]]) -> float:
        started = time.perf_counter()
        await work()
        return _PEER_RECORDS / (time.perf_counter() - started)

    try:
        return _Rates(append=await rate(append), read=await rate(read), watch=await rate(watch))
    finally:
        await connection.close()


def _help_ms() -> float:
    def one() -> float:
        started = time.perf_counter()
        subprocess.run([TOPICS, "--help"], check=True, stdout=subprocess.DEVNULL)
        return (time.perf_counter() - started) * 1e3

    one()
    return statistics.median(one() for _ in range(_HELPS))
