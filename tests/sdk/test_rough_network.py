"""Producers and workers over a network that cuts, delays, hangs and swallows answers, against a record of the truth."""

import asyncio
import os
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from sdk.worker_queues import add, running, state

from support.rough_proxy import RoughProxy
from support.server import ServerProcess
from support.waiting import poll
from topics_client.address import Address
from topics_client.connection import Connection
from topics_client.decoding import records_of_columns
from topics_client.models import Job
from topics_client.producer.api import AsyncProducer, Producer
from topics_client.producer.delivery import Delivery
from topics_client.retry import Retry
from topics_proto.v1 import topics_service_pb2 as pb
from topics_proto.v1.topic_pb2 import TOPIC_TYPE_QUEUE, TopicConfig

_SECONDS = float(os.environ.get("TOPICS_SOAK_SECONDS", "4"))
_SEED = int(os.environ.get("TOPICS_SOAK_SEED", "0"))
_PLACES = [("log", 0), ("parted", 0), ("parted", 1), ("forgetful", 0)]
_QUICK = Retry(seconds=60, first_pause=0.02, longest_pause=0.2)

Appended = dict[tuple[str, int], list[tuple[str, Delivery]]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server")) as process:
        yield process


@pytest.fixture
def direct(server: ServerProcess) -> Iterator[Connection]:
    """A connection past the network."""
    with Connection(Address.parse(server.grpc_target)) as connection:
        for topic in ("log", "parted", "forgetful", "jobs"):
            connection.unary(connection.topics.DeleteTopic, pb.DeleteTopicRequest(topic=topic))
        _put(connection, "parted", partitions=2)
        _put(connection, "forgetful", idempotency_window_ms=100)
        yield connection


def _put(connection: Connection, topic: str, partitions: int = 0, **config: Any) -> None:
    request = pb.PutTopicRequest(topic=topic, partition_count=partitions, config=TopicConfig(**config))
    connection.unary(connection.topics.PutTopic, request)


def _log(connection: Connection, topic: str, partition: int = 0) -> dict[int, Any]:
    with connection.stream(connection.topics.BulkDiff, pb.BulkDiffRequest(topic=topic, partition=partition)) as frames:
        records = [record for frame in frames for record in records_of_columns(topic, partition, frame.records)]
    return {record.seq: record.value for record in records}


def _check(direct: Connection, appended: Appended) -> None:
    """Each record has the outcome of its delivery, and is nowhere else."""
    for (topic, partition), records in appended.items():
        log = _log(direct, topic, partition)
        values = list(log.values())
        assert len(values) == len(set(values)), "nothing is there twice"
        may_be_there, delivered = set[str](), list[tuple[int, str]]()
        for value, delivery in records:
            error = delivery.exception(0)
            if error is None:
                delivered.append((delivery.result(0), value))
            elif error.detail["outcome"] == "unknown":
                assert topic == "forgetful", f"{error} was given up"
                may_be_there.add(value)
            else:
                raise AssertionError(f"nothing else fails here: {error}")
        assert delivered == sorted(delivered), "in the order of the appends"
        assert [log[seq] for seq, _ in delivered] == [value for _, value in delivered]
        assert set(values) - {value for _, value in delivered} <= may_be_there


@pytest.mark.parametrize("seed", [_SEED, _SEED + 1])
def test_a_producer_stores_each_record_once_and_in_order(server: ServerProcess, direct: Connection, seed: int) -> None:
    dice, appended = random.Random(seed), Appended()
    with (
        RoughProxy(server.grpc_target, seed) as proxy,
        Connection(Address.parse(proxy.target), timeout=1.0) as connection,
        Producer(connection, retry=_QUICK, linger_ms=2, max_batch_records=200, max_in_flight=3) as producer,
    ):
        ends, number = time.monotonic() + _SECONDS, 0
        while time.monotonic() < ends:
            for _ in range(dice.randrange(100)):
                number += 1
                topic, partition = place = dice.choice(_PLACES)
                value = f"{seed}:{number}"
                appended.setdefault(place, []).append((value, producer.append(topic, value, partition=partition)))
            time.sleep(dice.uniform(0, 0.02))
        proxy.calm()
        for records in appended.values():
            for _, delivery in records:
                delivery.exception(60)
        statistics = producer.statistics()
    assert (statistics.buffered_records, statistics.buffered_bytes, statistics.in_flight) == (0, 0, 0)
    assert statistics.repeats > _SECONDS, f"it was not that rough: {proxy.done}"
    _check(direct, appended)


async def test_so_does_one_of_asyncio_whose_callers_are_cancelled(server: ServerProcess, direct: Connection) -> None:
    dice, appended, tried = random.Random(_SEED), Appended(), list[str]()
    taken: set[str] = set()

    async def append(value: str, place: tuple[str, int]) -> None:
        delivery = await producer.append(place[0], value, partition=place[1])
        appended.setdefault(place, []).append((value, delivery))
        taken.add(value)
        await delivery

    with RoughProxy(server.grpc_target, _SEED) as proxy, Connection(Address.parse(proxy.target), timeout=1.0) as own:
        async with AsyncProducer(own, retry=_QUICK, linger_ms=1, max_buffered_bytes=10_000) as producer:
            ends = asyncio.get_running_loop().time() + _SECONDS
            tasks = set[asyncio.Task[None]]()
            while asyncio.get_running_loop().time() < ends:
                for _ in range(dice.randrange(20)):
                    tried.append(f"a:{len(tried)}")
                    tasks.add(asyncio.create_task(append(tried[-1], dice.choice(_PLACES[:3]))))
                await asyncio.sleep(dice.uniform(0, 0.02))
                for task in list(tasks):
                    if task.done():
                        tasks.discard(task)
                    elif dice.random() < 0.05:
                        task.cancel()
            proxy.calm()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert not [each for each in results if each is not None and not isinstance(each, asyncio.CancelledError)]
            await producer.flush(60)
        waiting = producer._core._sender._waiting_for_room
        assert not waiting
    assert len(taken) < len(tried), "some were cancelled while they waited for room"
    _check(direct, appended)


@pytest.mark.parametrize("seed", [_SEED, _SEED + 1])
@pytest.mark.parametrize("is_async", [False, True])
def test_workers_do_every_job_and_never_one_twice_at_a_time(
    server: ServerProcess, direct: Connection, seed: int, is_async: bool
) -> None:
    _put(direct, "jobs", type=TOPIC_TYPE_QUEUE, lease_ms=600)
    lock, runs, at_once = threading.Lock(), Counter[int](), defaultdict[int, Counter[int]](Counter)
    doubled, done_in_time = list[Any](), Counter[int]()
    dice = random.Random(seed)

    def begins(worker: int, job: Job) -> float:
        with lock:
            runs[job.value] += 1
            at_once[worker][job.value] += 1
            if at_once[worker][job.value] > 1:
                doubled.append((worker, job))
            return dice.choice([0, 0, 0.01, 0.05]) if job.value % 50 else 1.0

    def ends(worker: int, job: Job) -> None:
        with lock:
            at_once[worker][job.value] -= 1
            done_in_time[job.value] += not workers[worker].lost(job)

    def handler(worker: int) -> Any:
        def handle(job: Job) -> None:
            time.sleep(begins(worker, job))
            ends(worker, job)

        async def handle_async(job: Job) -> None:
            await asyncio.sleep(begins(worker, job))
            ends(worker, job)

        return handle_async if is_async else handle

    workers = []
    with RoughProxy(server.grpc_target, seed) as proxy, ExitStack() as stack:
        for number in range(2):
            connection = stack.enter_context(Connection(Address.parse(proxy.target), timeout=1.0))
            workers.append(stack.enter_context(running(connection, "jobs", handler(number), concurrency=5)))
        deadline, number = time.monotonic() + _SECONDS, 0
        while time.monotonic() < deadline:
            add(direct, "jobs", range(number, number + 20))
            number += 20
            time.sleep(0.2)
        proxy.calm()
        poll(lambda: state(direct, "jobs").count == 0, 40, "the last acks")
        poll(lambda: not any(worker.statistics().running for worker in workers), 20)
    assert not doubled
    assert runs.keys() == set(range(number))
    assert all(done_in_time[job] for job in range(number)), "no job is gone whose lease was lost each time"
    for worker in workers:
        after = worker.statistics()
        assert after.taken == after.acked + after.retried + after.released + after.lost, after
        assert after.retried == 0
    acked, lost = (sum(getattr(worker.statistics(), name) for worker in workers) for name in ("acked", "lost"))
    assert number - lost <= acked <= number
    assert lost > 0, f"it was not that rough: {proxy.done}"
