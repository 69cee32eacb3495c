"""Workers where their surroundings misbehave: hooks that raise, old servers, several workers in one process."""

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from sdk.worker_queues import SOON, acked, add, make_queue, running, state

from support.complaints import collect_complaints
from support.server import ServerProcess
from support.waiting import poll
from topics_client.address import Address
from topics_client.aio_connection import AsyncConnection
from topics_client.connection import Connection
from topics_client.models import Job
from topics_client.worker import core
from topics_client.worker.ack_sender import Backoff
from topics_client.worker.api import AsyncWorker, RetryLater, Worker
from topics_client.worker.leases import Leases
from topics_proto.v1.queue_service_pb2 import AckRequest, StopWorkRequest, StopWorkResponse


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server")) as process:
        yield process


@pytest.fixture
def connection(server: ServerProcess) -> Iterator[Connection]:
    with Connection(Address.parse(server.grpc_target)) as connection:
        yield connection


# ------------------------------------------------------------------ hooks and handlers


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt])
def test_a_hook_that_raises_costs_no_slot_and_no_job(
    connection: Connection, caplog: pytest.LogCaptureFixture, kind: type[BaseException], is_async: bool
) -> None:
    queue = f"hook-{kind.__name__}-{is_async}".lower()
    make_queue(connection, queue, 1)

    def hook(job: Job, error: BaseException) -> None:
        raise kind("from the hook")

    def handle(job: Job) -> None:
        raise RuntimeError("from the handler")

    async def handle_async(job: Job) -> None:
        handle(job)

    worker = Worker(
        connection, queue, handle_async if is_async else handle, concurrency=1, on_error=hook, backoff=SOON,
        drain_seconds=20,
    )  # fmt: skip
    ended = list[BaseException | None]()

    def run() -> None:
        try:
            worker.run()
            ended.append(None)
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    poll(lambda: worker.statistics().retried >= (3 if kind is ValueError else 1), 20)
    began = time.monotonic()
    worker.stop()
    thread.join(20)
    assert time.monotonic() - began < 10, "the slot is free: nothing is waited for"
    assert worker.statistics().running == 0
    assert [type(error) for error in ended] == [type(None) if kind is ValueError else kind]
    assert f"{queue}: on_error failed for job 1" in caplog.text
    poll(lambda: state(connection, queue).queue.in_flight == 0)
    assert state(connection, queue).count == 1


def test_delays_that_no_call_can_carry_end_no_worker(connection: Connection) -> None:
    make_queue(connection, "delays", 3)
    waits: list[Any] = [10**30, 1.5, 0]

    def handle(job: Job) -> None:
        if job.deliveries == 1:
            raise RetryLater(waits[job.value])

    with running(connection, "delays", handle) as worker:
        acked(worker, 2)  # the one with a fraction failed as any other
        poll(lambda: worker.statistics().retried == 3)
    assert state(connection, "delays").count == 1
    assert Backoff(first_seconds=1e300, longest_seconds=1e300).delay_ms(70) == 86_400_000


def test_a_plain_function_that_fails_with_an_odd_exception_frees_its_slot(connection: Connection) -> None:
    class Odd(BaseException):
        pass

    make_queue(connection, "odd", 4)

    def handle(job: Job) -> None:
        if job.value == 0:
            raise Odd
        time.sleep(0.1)

    worker = Worker(connection, "odd", handle, concurrency=4, backoff=SOON)
    with pytest.raises(Odd):
        worker.run()
    after = worker.statistics()
    assert (after.running, after.retried, after.lost) == (0, 1, 0)
    assert after.taken == after.acked + after.retried + after.released


# ------------------------------------------------------------------ leases


def test_an_extend_of_before_a_break_proves_nothing_about_the_time_after() -> None:
    now = 1000.0
    leases = Leases(1, clock=lambda: now)
    (held,), _, _ = leases.take([Job("q", 1, "a", 0, 0, b"", False, None, 1, b"")], 3600.0)
    leases.begin(held)
    sent, now = now, now + 1
    leases.recheck()  # while the answer is on its way
    leases.extended([held], (), 3600.0, sent)
    assert leases.due() == [held], "it is asked for again at once, not in ten minutes"
    leases.extended([held], (), 3600.0, now)
    assert leases.due() == []


# ------------------------------------------------------------------ old servers, and those that hang


def _lacks_stop_work(connection: Connection) -> None:
    routes: Any = connection._routes
    connection.queues.StopWork = routes.unary_unary(  # type: ignore[method-assign]
        "/topics.v1.QueueService/NoSuchCall",
        request_serializer=StopWorkRequest.SerializeToString,
        response_deserializer=StopWorkResponse.FromString,
    )


def test_a_server_without_stop_work_is_lived_with(connection: Connection) -> None:
    make_queue(connection, "old", 500)
    _lacks_stop_work(connection)
    done = Counter[int]()

    def handle(job: Job) -> None:
        done[job.value] += 1
        time.sleep(0.002)

    for _ in range(3):
        with running(connection, "old", handle, concurrency=4) as worker:
            acked(worker, 20)
        assert worker.statistics().lost == 0
    assert state(connection, "old").queue.in_flight == 0
    # What a worker gives back at its end is due a quarter of a second later, and an empty queue does not wait for it.
    poll(lambda: (counts := state(connection, "old").queue).delayed == counts.retrying == 0)
    with running(connection, "old", handle, until_empty=True) as worker:
        poll(lambda: state(connection, "old").count == 0, 20)
    assert set(done) == set(range(500))
    assert set(done.values()) == {1}


def test_draining_beside_a_server_that_hangs_ends(
    server: ServerProcess, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "_MIN_FLUSH_SECONDS", 1.0)
    make_queue(connection, "hung", 10)
    gate = threading.Event()
    worker = Worker(connection, "hung", lambda job: gate.wait(20), concurrency=4, drain_seconds=1)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        poll(lambda: worker.statistics().running == 4)
        server.signal(signal.SIGSTOP)
        began = time.monotonic()
        worker.stop()
        gate.set()
        thread.join(30)
        assert not thread.is_alive()
        assert time.monotonic() - began < 12
    finally:
        server.signal(signal.SIGCONT)
        gate.set()
    after = worker.statistics()
    assert after.taken == after.acked + after.released + after.lost
    poll(lambda: state(connection, "hung").queue.in_flight == 0, 20)


def test_jobs_on_their_way_while_acks_are_answered_late_cost_no_delivery(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Connection(Address.parse(server.grpc_target)) as slow, Connection(Address.parse(server.grpc_target)) as other:
        make_queue(other, "late-acks", 1000, max_deliveries=1, dead_letter="late-acks:dead")
        unary, done = slow.unary, 0

        def answered_late(method: Any, request: Any, **options: Any) -> Any:
            reply = unary(method, request, **options)
            if isinstance(request, AckRequest):
                time.sleep(0.03)
            return reply

        monkeypatch.setattr(slow, "unary", answered_late)
        for _ in range(8):
            with running(slow, "late-acks", lambda job: time.sleep(0.002), concurrency=8) as worker:
                took = worker._core._receiver._took

                def later(jobs: list[Job], took: Any = took) -> None:
                    time.sleep(0.02)
                    took(jobs)

                worker._core._receiver._took = later
                acked(worker, 16)
            done += worker.statistics().acked
            assert worker.statistics().lost == 0
        assert state(other, "late-acks").count == 1000 - done
        assert state(other, "late-acks").queue.dead_lettered == 0
        with running(other, "late-acks", lambda job: None, concurrency=50) as worker:
            acked(worker, 1000 - done)
        assert state(other, "late-acks").queue.dead_lettered == 0


def test_a_stream_that_opens_while_it_stops_brings_nothing_round_and_round(
    server: ServerProcess, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_queue(connection, "too-late", 1)
    gate, go, streams = threading.Event(), threading.Event(), 0
    with Connection(Address.parse(server.grpc_target)) as own:
        stream = own.stream

        def late(*args: Any, **options: Any) -> Any:
            nonlocal streams
            streams += 1
            if streams > 1:
                go.wait(20)
            return stream(*args, **options)

        monkeypatch.setattr(own, "stream", late)
        with running(own, "too-late", lambda job: gate.wait(20), concurrency=4) as worker:
            poll(lambda: worker.statistics().running == 1)
            cancel = worker._core._receiver._cancel
            assert cancel is not None
            cancel()
            poll(lambda: streams == 2)
            add(connection, "too-late", range(1, 100))
            worker.stop()
            poll(lambda: worker._core._is_stopped)
            go.set()
            poll(lambda: worker._core._receiver.is_open)
            time.sleep(0.5)
            assert worker.statistics().released <= 8
            assert state(connection, "too-late").queue.in_flight == 0
            gate.set()
    assert state(connection, "too-late").count == 100


# ------------------------------------------------------------------ several in one process


async def test_a_signal_is_for_all_the_workers_of_a_loop(server: ServerProcess, connection: Connection) -> None:
    make_queue(connection, "ear-1", 3)
    make_queue(connection, "ear-2", 3)
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}

    async def handle(job: Job) -> None:
        await asyncio.sleep(0)

    async with AsyncConnection(Address.parse(server.grpc_target)) as own:
        short = AsyncWorker(own, "ear-1", handle)
        long = [AsyncWorker(own, queue, handle) for queue in ("ear-1", "ear-2")]
        runs = [asyncio.create_task(worker.run()) for worker in (long[0], short, long[1])]
        while sum(worker.statistics().acked for worker in (short, *long)) < 6:
            await asyncio.sleep(0.01)
        short.stop()
        await runs[1]
        assert not runs[0].done()
        assert not runs[2].done()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(asyncio.gather(*runs), 10)
    assert {each: signal.getsignal(each) for each in before} == before


async def test_workers_in_debug_mode_are_not_complained_about(
    server: ServerProcess, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    make_queue(connection, "debugged", 200)
    loop = asyncio.get_running_loop()
    loop.set_debug(True)
    loop.slow_callback_duration = 60  # a busy machine is no complaint
    complaints = collect_complaints(loop)
    done = set[int]()

    async def handle(job: Job) -> None:
        await asyncio.sleep(0.001)
        done.add(job.value)

    async with AsyncConnection(Address.parse(server.grpc_target)) as own:
        await asyncio.gather(*[AsyncWorker(own, "debugged", handle, until_empty=True).run() for _ in range(2)])
    gc.collect()
    assert done == set(range(200))
    assert not complaints
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_workers_keep_nothing_of_jobs_that_are_done(connection: Connection) -> None:
    jobs = 20_000
    make_queue(connection, "kept-nothing", 2000)
    measured = list[int]()

    def handle(job: Job) -> None:
        if job.seq in (4000, jobs):
            gc.collect()
            measured.append(sys.getallocatedblocks())

    with running(connection, "kept-nothing", handle, concurrency=8) as worker:
        for start in range(2000, jobs, 2000):
            add(connection, "kept-nothing", range(start, start + 2000))
        acked(worker, jobs, 60)
        leases = worker._core.leases
        poll(lambda: leases.unsettled == 0)
        assert not leases._held
        assert not leases._aside
    after = worker.statistics()
    assert (after.taken, after.running, after.acked) == (jobs, 0, jobs)
    assert measured[1] - measured[0] < jobs, "a job leaves nothing behind"
