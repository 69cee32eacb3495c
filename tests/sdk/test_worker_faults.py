"""Servers that die, hang, stop and come back under a worker: each job is handled, and nothing is counted twice."""

import asyncio
import contextlib
import logging
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sdk.worker_queues import acked, add, make_queue, running, state

from support.server import ServerProcess
from support.waiting import poll
from topics_client.address import Address
from topics_client.connection import Connection
from topics_client.models import Job
from topics_client.worker import core, receiver
from topics_client.worker.api import Worker
from topics_proto.v1.topic_pb2 import DURABILITY_FSYNC


class House:
    """A place where servers come and go: always the same port and data."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._starts = 0
        self.server = ServerProcess(directory / "0", data_dir=directory / "data", same_ports=True).start()
        self.target = self.server.grpc_target

    def restart(self) -> None:
        """Another server in place of one that is gone."""
        self._starts += 1
        port = self.target.rpartition(":")[2]
        self.server = ServerProcess(
            self._directory / str(self._starts), data_dir=self._directory / "data", env={"TOPICS_GRPC_PORT": port}
        ).start()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path)
    yield house
    house.server.kill()


@pytest.fixture
def connection(house: House) -> Iterator[Connection]:
    with Connection(Address.parse(house.target)) as connection:
        yield connection


def _warnings(caplog: pytest.LogCaptureFixture, text: str) -> int:
    return sum(text in record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_server_killed_again_and_again_costs_no_job(
    house: House, connection: Connection, caplog: pytest.LogCaptureFixture, is_async: bool
) -> None:
    make_queue(connection, "killed", 600, durability=DURABILITY_FSYNC)
    handled, lock = Counter[int](), threading.Lock()

    def handle(job: Job) -> None:
        time.sleep(random.uniform(0, 0.02))
        with lock:
            handled[job.value] += 1

    async def handle_async(job: Job) -> None:
        await asyncio.sleep(random.uniform(0, 0.02))
        handled[job.value] += 1

    with contextlib.ExitStack() as stack:
        workers = [
            stack.enter_context(running(connection, "killed", handle_async if is_async else handle, concurrency=6))
            for _ in range(2)
        ]
        for kills in range(1, 4):
            poll(lambda kills=kills: len(handled) >= 150 * kills, 30, "progress")  # type: ignore[misc]
            house.server.kill()
            house.restart()
        poll(lambda: state(connection, "killed").count == 0, 30, "the last acks")
        poll(lambda: not any(worker.statistics().running for worker in workers))
    assert handled.keys() == set(range(600))
    for worker in workers:
        after = worker.statistics()
        assert after.taken == after.acked + after.retried + after.released + after.lost
        assert after.retried == 0
    done = sum(worker.statistics().acked for worker in workers)
    lost = sum(worker.statistics().lost for worker in workers)
    assert 600 - lost <= done <= 600  # the outcome of an ack without an answer is unknown
    assert handled.total() <= 600 + lost
    assert 3 <= _warnings(caplog, "killed: can't receive jobs") <= 2 * 3 + 2


def test_a_job_whose_lease_outlives_the_server_is_acked_by_its_one_run(house: House, connection: Connection) -> None:
    make_queue(connection, "kept", 2, durability=DURABILITY_FSYNC, leases_durable=True, lease_ms=20_000)
    gates, calls, lost = [threading.Event(), threading.Event()], Counter[int](), list[bool]()

    def handle(job: Job) -> None:
        calls[job.value] += 1
        gates[job.value].wait(20)
        lost.append(worker.lost(job))

    with running(connection, "kept", handle, concurrency=2) as worker:
        poll(lambda: worker.statistics().running == 2)
        house.server.kill()
        gates[0].set()  # done while no ack can be sent
        poll(lambda: worker.statistics().running == 1)
        house.restart()
        acked(worker, 1)
        add(connection, "kept", [])
        assert state(connection, "kept").count == 1
        gates[1].set()
        acked(worker, 2)
    assert calls == {0: 1, 1: 1}
    assert lost == [False, False]
    after = worker.statistics()
    assert (after.taken, after.acked, after.lost) == (2, 2, 0)


@pytest.mark.parametrize("way", ["kill", "stop"])
def test_a_job_whose_lease_went_with_the_server_is_lost_and_done_again(
    house: House, connection: Connection, way: str
) -> None:
    make_queue(connection, "gone", 1, durability=DURABILITY_FSYNC, lease_ms=60_000)
    gate, runs, told = threading.Event(), list[int](), list[bool]()

    def handle(job: Job) -> None:
        runs.append(job.deliveries)
        if len(runs) == 1:
            poll(lambda: worker.lost(job), 20)
            gate.wait(20)
            told.append(True)

    with running(connection, "gone", handle, concurrency=2) as worker:
        poll(lambda: worker.statistics().running == 1)
        getattr(house.server, way)()
        house.restart()
        poll(lambda: worker.statistics().lost == 1, 20)
        poll(lambda: worker.statistics().released >= 2)  # it comes again, but not twice at a time
        assert runs == [1]
        gate.set()
        acked(worker, 1)
    assert told == [True]
    assert len(runs) == 2
    after = worker.statistics()
    assert (after.acked, after.lost) == (1, 1)
    assert after.taken == 2 + after.released


def test_a_broken_stream_loses_its_jobs_to_others_and_the_handlers_are_told(
    connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    make_queue(connection, "broken", 4, lease_ms=60_000)
    told, gate, again = list[int](), threading.Event(), list[Job]()

    def handle(job: Job) -> None:
        if job.value == 4:
            return
        poll(lambda: worker.lost(job), 20)
        told.append(job.seq)
        gate.wait(20)

    with running(connection, "broken", handle, concurrency=4) as worker:
        poll(lambda: worker.statistics().running == 4)
        with running(connection, "broken", again.append) as other:
            cancel = worker._core._receiver._cancel
            assert cancel is not None
            cancel()
            acked(other, 4)
        poll(lambda: len(told) == 4, 20)
        add(connection, "broken", [4])  # for which there is no slot here
        poll(lambda: state(connection, "broken").count == 1)
        gate.set()
        acked(worker, 1)
    assert {job.deliveries for job in again} == {2}
    after = worker.statistics()
    assert (after.acked, after.lost) == (1, 4)
    assert state(connection, "broken").count == 0
    assert _warnings(caplog, "broken: can't receive jobs") == 1


def test_a_worker_waits_for_its_server_and_says_so_once(
    house: House, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "topics_client.worker")
    make_queue(connection, "waited-for", 3, durability=DURABILITY_FSYNC)
    house.server.kill()
    with running(connection, "waited-for", lambda job: None) as worker:
        poll(lambda: _warnings(caplog, "waited-for: can't receive jobs (unavailable: "))
        time.sleep(1)  # several attempts
        house.restart()
        acked(worker, 3)
    assert _warnings(caplog, "waited-for: can't receive jobs") == 1
    assert house.target in caplog.text
    assert sum("waited-for: receiving jobs again" in message for message in caplog.messages) == 1


def test_a_server_that_hangs_is_a_break(
    house: House, connection: Connection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(receiver, "_HEARTBEAT_SECONDS", 0.3)
    make_queue(connection, "hangs")
    with running(connection, "hangs", lambda job: None) as worker:
        poll(lambda: worker._core._receiver.is_open)
        house.server.signal(signal.SIGSTOP)
        poll(lambda: _warnings(caplog, "hangs: can't receive jobs (unavailable: no answer for 0.9 s)"), 20)
        house.server.signal(signal.SIGCONT)
        add(connection, "hangs", range(20))
        acked(worker, 20)


@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_a_worker_ends_though_its_server_is_gone(
    house: House,
    connection: Connection,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    seconds: float,
) -> None:
    monkeypatch.setattr(core, "_MIN_FLUSH_SECONDS", 1.0)
    make_queue(connection, "alone", 2)
    gate, options = threading.Event(), dict[str, Any](concurrency=2, drain_seconds=seconds)

    def handle(job: Job) -> None:
        if job.value == 1:
            gate.wait(20)

    worker = Worker(connection, "alone", handle, **options)
    thread = threading.Thread(target=worker.run)

    def kill() -> None:
        poll(lambda: worker.statistics().running == 1 and worker.statistics().acked == 1)
        house.server.kill()
        if seconds:
            gate.set()
            poll(lambda: worker.statistics().running == 0)

    thread.start()
    kill()
    began = time.monotonic()
    worker.stop()
    thread.join(20)
    assert not thread.is_alive()
    assert time.monotonic() - began < 15
    gate.set()
    after = worker.statistics()
    assert (after.taken, after.acked) == (2, 1)
    if seconds:
        assert (after.lost, after.released) == (1, 0)
        assert _warnings(caplog, "alone: could not ack 1 job, which") == 1
    else:
        assert (after.lost, after.released) == (0, 1)
