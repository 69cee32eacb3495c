"""The end of a worker: running jobs are finished or given back, signals are handled, no more jobs are taken."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from sdk.worker_queues import SOON, acked, add, jobs_in, make_queue, running, state

from support.server import DIE_WITH_US, ServerProcess
from support.waiting import poll
from topics_client.address import Address
from topics_client.aio_connection import AsyncConnection
from topics_client.connection import Connection
from topics_client.errors import TopicsError
from topics_client.models import Job
from topics_client.worker.api import AsyncWorker, Worker
from topics_proto.v1.job_pb2 import JOB_STATE_IN_FLIGHT, JOB_STATE_READY


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server")) as process:
        yield process


@pytest.fixture
def connection(server: ServerProcess) -> Iterator[Connection]:
    with Connection(Address.parse(server.grpc_target)) as connection:
        yield connection


# -------------------------------------------------------------------- stop


def test_stop_lets_what_runs_end_and_takes_nothing_new(connection: Connection) -> None:
    make_queue(connection, "drained", 40)
    gate, seen = threading.Event(), list[Job]()

    def handle(job: Job) -> None:
        seen.append(job)
        gate.wait(30)

    with running(connection, "drained", handle, concurrency=4, prefetch=4) as worker:
        poll(lambda: worker.statistics().taken == 8 and len(seen) == 4)
        worker.stop()
        # The four that waited are given back, and whatever the server sends in their place.
        poll(lambda: worker.statistics().released >= 4)
        assert worker.statistics().running == 4
        assert len(seen) == 4
        gate.set()
    after = worker.statistics()
    assert len(seen) == 4
    assert (after.acked, after.lost, after.retried, after.running) == (4, 0, 0, 0)
    assert after.taken == after.acked + after.released
    left = state(connection, "drained")
    assert (left.count, left.queue.in_flight) == (36, 0)
    assert {view.record.seq for view in jobs_in(connection, "drained", JOB_STATE_READY)}.isdisjoint(
        job.seq for job in seen
    )


def test_jobs_that_were_not_begun_count_no_delivery(connection: Connection) -> None:
    make_queue(connection, "unbegun", 5)
    begun, gate = threading.Event(), threading.Event()

    def handle(job: Job) -> None:
        begun.set()
        gate.wait(30)

    with running(connection, "unbegun", handle, concurrency=1, prefetch=4) as worker:
        poll(lambda: begun.is_set() and worker.statistics().taken == 5)
        worker.stop()
        poll(lambda: worker.statistics().running == 1)
        gate.set()
    poll(lambda: state(connection, "unbegun").queue.ready == 4)
    assert {view.deliveries for view in jobs_in(connection, "unbegun", JOB_STATE_READY)} == {0}
    assert (worker.statistics().acked, worker.statistics().released) == (1, 4)


def test_stops_on_a_busy_queue_cost_no_job_a_delivery(connection: Connection) -> None:
    jobs = 2000
    make_queue(connection, "busy-stop", jobs, max_deliveries=1, dead_letter="busy-stop:dead")
    done = 0
    for _ in range(10):
        with running(connection, "busy-stop", lambda job: time.sleep(0.002), concurrency=8) as worker:
            poll(lambda: worker.statistics().acked >= 8, 20, "some jobs")
        done += worker.statistics().acked
        assert worker.statistics().lost == 0
    assert state(connection, "busy-stop").count == jobs - done > 0
    with running(connection, "busy-stop", lambda job: None, concurrency=50) as worker:
        poll(lambda: worker.statistics().acked == jobs - done, 20, "the rest")
    assert state(connection, "busy-stop").queue.dead_lettered == 0


def test_what_comes_while_it_stops_goes_to_others_and_not_round_and_round(connection: Connection) -> None:
    make_queue(connection, "rotating", 1000)
    gate = threading.Event()

    def handle(job: Job) -> None:
        if job.seq <= 4:
            gate.wait(20)

    with running(connection, "rotating", handle, concurrency=8) as worker:
        acked(worker, 100)
        worker.stop()
        time.sleep(1)
        assert worker.statistics().released <= 8  # what was on its way: the server sends no more
        with running(connection, "rotating", lambda job: None) as other:
            poll(lambda: state(connection, "rotating").count == 4)
            assert worker.statistics().running == 4
            gate.set()
    assert worker.statistics().acked + other.statistics().acked == 1000


def test_handlers_that_are_not_done_in_time_are_told_and_their_jobs_given_back(
    connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    make_queue(connection, "late", 3, lease_ms=60_000)
    told, gate = list[int](), threading.Event()

    def handle(job: Job) -> None:
        if job.value == 0:
            return
        poll(lambda: worker.lost(job))
        told.append(job.seq)
        gate.wait(30)

    began = time.monotonic()
    with running(connection, "late", handle, concurrency=3, drain_seconds=0.5) as worker:
        acked(worker, 1)
        worker.stop()
        poll(lambda: sorted(told) == [2, 3])
    took = time.monotonic() - began
    assert 0.5 <= took < 20
    after = worker.statistics()
    assert (after.taken, after.acked, after.released, after.lost) == (3, 1, 2, 0)
    poll(lambda: state(connection, "late").queue.ready == 2)  # long before their leases end
    assert "2 handlers did not finish in time, releasing their jobs: seq 2, 3" in caplog.text
    gate.set()
    poll(lambda: worker.statistics().running == 0)
    assert worker.statistics().acked == 1
    assert state(connection, "late").queue.ready == 2


def test_stop_before_run_ends_it_at_once(connection: Connection) -> None:
    make_queue(connection, "stopped", 3)
    seen = list[Job]()
    worker = Worker(connection, "stopped", seen.append)
    worker.stop()
    worker.run()
    assert worker.statistics().acked == len(seen)
    assert state(connection, "stopped").queue.in_flight == 0


def test_a_handler_may_stop_its_worker(connection: Connection) -> None:
    make_queue(connection, "self-stopped", 10)
    worker = Worker(connection, "self-stopped", lambda job: worker.stop(), concurrency=1)
    worker.run()
    assert worker.statistics().acked == 1
    assert state(connection, "self-stopped").count == 9


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("is_async", [False, True])
def test_what_is_no_exception_ends_the_run_and_is_raised(
    connection: Connection, kind: type[BaseException], is_async: bool
) -> None:
    queue = f"{kind.__name__}-{is_async}".lower()
    make_queue(connection, queue, 5)

    def handle(job: Job) -> None:
        if job.value == 0:
            raise kind("enough")

    async def handle_async(job: Job) -> None:
        handle(job)

    worker = Worker(connection, queue, handle_async if is_async else handle, concurrency=1)
    with pytest.raises(kind, match="enough"):
        worker.run()
    after = worker.statistics()
    assert (after.acked, after.retried) == (0, 1)  # it counts as a delivery: such a job does not circulate without end
    assert state(connection, queue).count == 5


def test_a_connection_that_is_closed_under_it_ends_the_run(server: ServerProcess, connection: Connection) -> None:
    make_queue(connection, "closed", 1)
    begun, gate = threading.Event(), threading.Event()

    def handle(job: Job) -> None:
        begun.set()
        gate.wait(30)

    own = Connection(Address.parse(server.grpc_target))

    def close() -> None:
        begun.wait(30)
        own.close()
        gate.set()

    closing = threading.Thread(target=close)
    closing.start()
    worker = Worker(own, "closed", handle)
    with pytest.raises(TopicsError, match=r"cancelled: .*the client is closed"):
        worker.run()
    closing.join()
    assert worker.statistics().lost == 1
    poll(lambda: state(connection, "closed").queue.ready == 1)


# -------------------------------------------------------------- asyncio


async def test_cancelling_the_run_cancels_the_handlers_and_gives_their_jobs_back(
    server: ServerProcess, connection: Connection
) -> None:
    make_queue(connection, "cancelled", 6, lease_ms=60_000)
    cancelled, done = list[Any](), list[Any]()

    async def handle(job: Job) -> None:
        try:
            await asyncio.sleep(0 if job.value < 3 else 60)
        except asyncio.CancelledError:
            cancelled.append((job.value, worker.lost(job)))
            raise
        done.append(job.value)

    async with AsyncConnection(Address.parse(server.grpc_target)) as own:
        worker = AsyncWorker(own, "cancelled", handle, concurrency=6)
        run = asyncio.create_task(worker.run())
        while worker.statistics().running != 3 or len(done) != 3:
            await asyncio.sleep(0.01)
        run.cancel()
        began = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert time.monotonic() - began < 5
    assert sorted(cancelled) == [(3, True), (4, True), (5, True)]
    after = worker.statistics()
    assert (after.acked, after.released, after.lost, after.running) == (3, 3, 0, 0)
    poll(lambda: state(connection, "cancelled").queue.ready == 3)
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


async def test_async_handlers_that_are_not_done_in_time_are_cancelled(
    server: ServerProcess, connection: Connection
) -> None:
    make_queue(connection, "late-async", 2, lease_ms=60_000)
    cancelled = list[int]()

    async def handle(job: Job) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        cancelled.append(job.seq)

    async with AsyncConnection(Address.parse(server.grpc_target)) as own:
        worker = AsyncWorker(own, "late-async", handle, drain_seconds=0.3)
        run = asyncio.create_task(worker.run())
        while worker.statistics().running != 2:
            await asyncio.sleep(0.01)
        worker.stop()
        await run
    assert sorted(cancelled) == [1, 2]
    after = worker.statistics()
    assert (after.acked, after.released, after.running) == (0, 2, 0)
    poll(lambda: state(connection, "late-async").queue.ready == 2)


def test_own_loops_leave_no_tasks_behind(connection: Connection) -> None:
    make_queue(connection, "late-own", 2, lease_ms=60_000)
    begun, cancelled = list[int](), list[int]()

    async def handle(job: Job) -> None:
        begun.append(job.seq)
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.append(job.seq)

    with running(connection, "late-own", handle, drain_seconds=0.1) as worker:
        poll(lambda: len(begun) == 2)
        assert worker.statistics().running == 2
    assert sorted(cancelled) == [1, 2]


async def test_context_variables_of_the_caller_reach_async_handlers(
    server: ServerProcess, connection: Connection
) -> None:
    import contextvars

    make_queue(connection, "context", 3)
    name, seen = contextvars.ContextVar[str]("name"), list[str]()
    name.set("caller")

    async def handle(job: Job) -> None:
        seen.append(name.get())
        name.set("a job's own")

    async with AsyncConnection(Address.parse(server.grpc_target)) as own:
        await AsyncWorker(own, "context", handle, until_empty=True).run()
    assert seen == ["caller"] * 3


# -------------------------------------------------------------- processes

_PROGRAM = """
import asyncio, json, logging, os, sys, time, threading
from topics_client.address import Address
from topics_client.aio_connection import AsyncConnection
from topics_client.connection import Connection
from topics_client.worker.api import AsyncWorker, Worker

target, queue, kind = sys.argv[1:4]
options = json.loads(sys.argv[4])
logging.basicConfig(level=logging.INFO, stream=sys.stderr)

def say(*what):
    sys.stdout.write(" ".join(map(str, what)) + "\\n")
    sys.stdout.flush()

def handle(job):
    say("begins", job.value)
    time.sleep(job.value)
    say("ends", job.value)

async def handle_async(job):
    say("begins", job.value)
    await asyncio.sleep(job.value)
    say("ends", job.value)

def told(worker):
    say("statistics", json.dumps({name: getattr(worker.statistics(), name) for name in worker.statistics().__slots__}))

async def main():
    async with AsyncConnection(Address.parse(target)) as connection:
        worker = AsyncWorker(connection, queue, handle_async, **options)
        try:
            await worker.run()
        finally:
            told(worker)

import signal
before = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]
if kind == "async":
    asyncio.run(main())
else:
    with Connection(Address.parse(target)) as connection:
        worker = Worker(connection, queue, handle, **options)
        try:
            worker.run()
        finally:
            told(worker)
assert before == [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]
say("over")
"""


class WorkerProcess:
    """A program with a worker, whose jobs are numbers of seconds to take."""

    def __init__(self, directory: Path, target: str, queue: str, kind: str = "plain", **options: Any) -> None:
        self._out, self._err = directory / f"{queue}.out", directory / f"{queue}.err"
        program = directory / "program.py"
        program.write_text(textwrap.dedent(_PROGRAM))
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen(
                [*DIE_WITH_US, sys.executable, str(program), target, queue, kind, json.dumps(options)],
                stdout=out,
                stderr=err,
                env={name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")},
            )

    @property
    def said(self) -> list[str]:
        """Lines of its output."""
        return self._out.read_text().splitlines()

    @property
    def logged(self) -> str:
        """What it logged."""
        return self._err.read_text()

    @property
    def statistics(self) -> dict[str, int]:
        """What it said at the end."""
        (line,) = [line for line in self.said if line.startswith("statistics ")]
        found: dict[str, int] = json.loads(line.removeprefix("statistics "))
        return found

    def wait_for(self, line: str) -> None:
        """Until it has said this."""
        poll(lambda: line in self.said or self.process.poll() is not None, 30, f"{line}; {self.logged}")
        assert line in self.said, self.logged

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(10)


@pytest.mark.parametrize("kind", ["plain", "async"])
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_job_end_and_the_process_exit_well(
    server: ServerProcess, connection: Connection, tmp_path: Path, kind: str, signum: signal.Signals
) -> None:
    queue = f"signal-{kind}-{signum.name}"
    make_queue(connection, queue)
    add(connection, queue, [3.0, 60, 60])
    with WorkerProcess(tmp_path, server.grpc_target, queue, kind, concurrency=1) as worker:
        worker.wait_for("begins 3.0")
        worker.process.send_signal(signum)
        assert worker.process.wait(30) == 0, worker.logged
        assert worker.said[:2] == ["begins 3.0", "ends 3.0"]
        assert worker.said[-1] == "over"
        assert "Traceback" not in worker.logged
        assert worker.statistics["acked"] == 1
        assert not [line for line in worker.said if "60" in line.split()]
    left = state(connection, queue)
    assert (left.count, left.queue.in_flight) == (2, 0)


@pytest.mark.parametrize("kind", ["plain", "async"])
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, -signal.SIGINT)])
def test_a_second_signal_ends_the_process_at_once(
    server: ServerProcess, connection: Connection, tmp_path: Path, kind: str, signum: signal.Signals, code: int
) -> None:
    queue = f"twice-{kind}-{signum.name}"
    make_queue(connection, queue, lease_ms=60_000)
    add(connection, queue, [60, 60])
    with WorkerProcess(tmp_path, server.grpc_target, queue, kind, concurrency=2) as worker:
        poll(lambda: worker.said.count("begins 60") == 2, 30, worker.logged)
        worker.process.send_signal(signum)
        poll(lambda: "stopping, 2 handlers have" in worker.logged, what=worker.logged)
        worker.process.send_signal(signum)
        began = time.monotonic()
        assert worker.process.wait(30) == code, worker.logged
        assert time.monotonic() - began < 20
        assert "ends 60" not in worker.said
        assert worker.statistics["released"] == 2
    poll(lambda: state(connection, queue).queue.ready == 2)


def test_jobs_of_a_process_that_is_killed_are_done_by_another(
    server: ServerProcess, connection: Connection, tmp_path: Path
) -> None:
    make_queue(connection, "killed", lease_ms=60_000)
    add(connection, "killed", [60, 60, 60])
    with WorkerProcess(tmp_path, server.grpc_target, "killed", concurrency=3) as worker:
        poll(lambda: worker.said.count("begins 60") == 3, 30, worker.logged)
        seen = list[Job]()
        with running(connection, "killed", seen.append) as other:
            assert len(jobs_in(connection, "killed", JOB_STATE_IN_FLIGHT)) == 3
            worker.process.kill()
            acked(other, 3, 20)  # at once, not when their leases end
    assert [job.deliveries for job in seen] == [2, 2, 2]
    assert state(connection, "killed").count == 0


def test_a_process_that_hangs_loses_its_jobs_and_knows(
    server: ServerProcess, connection: Connection, tmp_path: Path
) -> None:
    make_queue(connection, "hangs", lease_ms=1000)
    add(connection, "hangs", [3.0])
    with WorkerProcess(tmp_path, server.grpc_target, "hangs") as worker:
        worker.wait_for("begins 3.0")
        worker.process.send_signal(signal.SIGSTOP)
        with running(connection, "hangs", lambda job: None) as other:
            acked(other, 1)
        worker.process.send_signal(signal.SIGCONT)
        worker.wait_for("ends 3.0")
        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(30) == 0, worker.logged
        assert worker.statistics["acked"] == 0
        assert worker.statistics["lost"] >= 1  # it may have been sent again while it was not read


def test_handlers_of_before_are_back_and_other_threads_install_none(connection: Connection) -> None:
    make_queue(connection, "handlers", 1)
    told = list[int]()

    def before(signum: int, _: object) -> None:
        told.append(signum)

    found = list[Any]()

    def look(job: Job) -> None:
        found.append(signal.getsignal(signal.SIGTERM))

    was = signal.signal(signal.SIGTERM, before)
    try:
        Worker(connection, "handlers", look, until_empty=True).run()
        assert found[0] is not before
        assert signal.getsignal(signal.SIGTERM) is before
        add(connection, "handlers", [1])
        Worker(connection, "handlers", look, until_empty=True, install_signals=False).run()
        with running(connection, "handlers", look) as worker:
            add(connection, "handlers", [2])
            acked(worker, 1)
        assert found[1:] == [before, before]
        os.kill(os.getpid(), signal.SIGTERM)
        poll(lambda: told == [signal.SIGTERM])
    finally:
        signal.signal(signal.SIGTERM, was)


async def test_a_loop_gives_back_the_handlers_of_before(server: ServerProcess, connection: Connection) -> None:
    make_queue(connection, "loop-handlers", 1)
    told, found = list[int](), list[Any]()

    async def look(job: Job) -> None:
        found.append(signal.getsignal(signal.SIGTERM))

    def before(signum: int, _: object) -> None:
        told.append(signum)

    was = signal.signal(signal.SIGTERM, before)
    try:
        async with AsyncConnection(Address.parse(server.grpc_target)) as own:
            await AsyncWorker(own, "loop-handlers", look, until_empty=True).run()
            assert found[0] is not before
            assert signal.getsignal(signal.SIGTERM) is before
            add(connection, "loop-handlers", [1])
            await AsyncWorker(own, "loop-handlers", look, until_empty=True, install_signals=False).run()
        assert found[1] is before
        os.kill(os.getpid(), signal.SIGTERM)
        assert told == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, was)


def test_statistics_tell_of_a_failing_queue_while_it_runs(connection: Connection) -> None:
    make_queue(connection, "counted", 3, max_deliveries=2, dead_letter="counted-dead")

    def handle(job: Job) -> None:
        raise ValueError

    with running(connection, "counted", handle, backoff=SOON, on_error=lambda job, error: None) as worker:
        poll(lambda: worker.statistics().given_up == 3)
        assert (worker.statistics().retried, worker.statistics().taken) == (3, 6)
