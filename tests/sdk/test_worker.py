"""The Worker against a real server: jobs are handled, acked, tried again and kept, by plain and by async handlers."""

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sdk.worker_queues import SOON, acked, add, jobs_in, make_queue, running, state

from support.server import ServerProcess
from support.waiting import poll
from topics_client import TopicsClient
from topics_client.address import Address
from topics_client.aio_connection import AsyncConnection
from topics_client.connection import Connection
from topics_client.errors import AuthError, ConflictError, NotFoundError
from topics_client.models import Job
from topics_client.worker.api import AsyncWorker, Backoff, Release, RetryLater, Worker
from topics_client.worker.reasons import reason_of
from topics_proto.v1.job_pb2 import JOB_STATE_DELAYED, JOB_STATE_IN_FLIGHT
from topics_proto.v1.queue_service_pb2 import AckRequest, ExtendRequest, NackRequest
from topics_proto.v1.topic_pb2 import DISCARD_POLICY_REJECT, TopicConfig
from topics_proto.v1.topics_service_pb2 import PutTopicRequest

_KEYS = "admin-key,reader:read"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server"), env={"TOPICS_API_KEYS": _KEYS}) as process:
        yield process


@pytest.fixture
def connection(server: ServerProcess) -> Iterator[Connection]:
    with Connection(Address.parse(server.grpc_target, key="admin-key")) as connection:
        yield connection


async def _run_async(server: ServerProcess, queue: str, handler: Callable[[Job], Any], **options: Any) -> AsyncWorker:
    async with AsyncConnection(Address.parse(server.grpc_target, key="admin-key")) as connection:
        worker = AsyncWorker(connection, queue, handler, **{"until_empty": True, "backoff": SOON} | options)
        await worker.run()
        return worker


def test_each_job_is_handled_and_acked(connection: Connection) -> None:
    make_queue(connection, "plain", 300)
    seen: list[Job] = []
    Worker(connection, "plain", seen.append, until_empty=True).run()
    assert sorted(job.value for job in seen) == list(range(300))
    assert {(job.queue, job.deliveries, job.tag) for job in seen} == {("plain", 1, None)}
    after = state(connection, "plain")
    assert (after.count, after.queue.ready, after.queue.in_flight) == (0, 0, 0)


def test_every_call_about_jobs_is_fenced_by_their_leases(connection: Connection) -> None:
    make_queue(connection, "fenced", 4, lease_ms=1500)
    unary: Any = connection.unary
    requests, leases = list[Any](), dict[int, str]()

    def recorded(method: Any, request: Any, **options: Any) -> Any:
        if isinstance(request, AckRequest | NackRequest | ExtendRequest):
            requests.append(request)
        return unary(method, request, **options)

    connection.unary = recorded  # type: ignore[method-assign]

    def handle(job: Job) -> None:
        leases[job.seq] = job.lease_id
        time.sleep(1.2)
        if job.value == 0:
            raise RetryLater(60_000)
        if job.value == 1:
            raise Release(60_000)

    worker = Worker(connection, "fenced", handle, until_empty=True, node="by-name")
    worker.run()
    assert {type(request).__name__ for request in requests} == {"AckRequest", "NackRequest", "ExtendRequest"}
    for request in requests:
        assert request.node == "by-name"
        assert list(request.lease_ids) == [leases[seq] for seq in request.seqs]


def test_jobs_come_as_they_are_written_and_no_more_at_a_time_than_asked_for(connection: Connection) -> None:
    make_queue(connection, "at-a-time")
    running_now, max_jobs, lock = 0, 0, threading.Lock()

    def handle(job: Job) -> None:
        nonlocal running_now, max_jobs
        with lock:
            running_now += 1
            max_jobs = max(max_jobs, running_now)
        time.sleep(0.01)
        with lock:
            running_now -= 1

    with running(connection, "at-a-time", handle, concurrency=3) as worker:
        for start in range(0, 60, 20):
            add(connection, "at-a-time", range(start, start + 20))
            acked(worker, start + 20)
            assert state(connection, "at-a-time").queue.in_flight == 0
    assert max_jobs == 3
    statistics = worker.statistics()
    assert (statistics.taken, statistics.acked, statistics.running) == (60, 60, 0)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_what_is_prefetched_waits_here_and_is_kept(connection: Connection, concurrency: int) -> None:
    queue = f"prefetch-{concurrency}"
    make_queue(connection, queue, 20, lease_ms=1000)
    gate, begun = threading.Event(), list[Job]()

    def handle(job: Job) -> None:
        begun.append(job)
        gate.wait(30)

    with running(connection, queue, handle, concurrency=concurrency, prefetch=5) as worker:
        poll(lambda: worker.statistics().taken == concurrency + 5, what="prefetched jobs")
        time.sleep(3)  # three leases
        assert len(begun) == concurrency
        assert worker.statistics().taken == concurrency + 5
        gate.set()
        acked(worker, 20)
    assert [job.deliveries for job in begun] == [1] * 20


async def test_async_handlers_run_on_the_loop_that_awaits_run(server: ServerProcess, connection: Connection) -> None:
    make_queue(connection, "loop", 100)
    loop, running_now, max_jobs, seen = asyncio.get_running_loop(), 0, 0, list[Any]()

    async def handle(job: Job) -> None:
        nonlocal running_now, max_jobs
        assert asyncio.get_running_loop() is loop
        running_now += 1
        max_jobs = max(max_jobs, running_now)
        await asyncio.sleep(0.001)
        running_now -= 1
        seen.append(job.value)

    worker = await _run_async(server, "loop", handle, concurrency=5)
    assert sorted(seen) == list(range(100))
    assert max_jobs == 5
    assert worker.statistics().acked == 100


def test_a_worker_of_threads_runs_async_handlers_on_one_loop_of_its_own(connection: Connection) -> None:
    make_queue(connection, "own-loop", 50)
    loops = set[Any]()

    class Handler:
        async def __call__(self, job: Job) -> None:
            loops.add((asyncio.get_running_loop(), threading.current_thread()))
            await asyncio.sleep(0)

    before = set(threading.enumerate())
    Worker(connection, "own-loop", Handler(), until_empty=True).run()
    assert len(loops) == 1
    ((loop, thread),) = loops
    assert thread is not threading.current_thread()
    assert loop.is_closed()
    assert state(connection, "own-loop").count == 0
    poll(lambda: set(threading.enumerate()) <= before, what="threads that ended")


async def test_plain_handlers_of_an_async_worker_leave_the_loop_alone(
    server: ServerProcess, connection: Connection
) -> None:
    make_queue(connection, "plain-async", 8)
    threads = set[threading.Thread]()

    def handle(job: Job) -> None:
        threads.add(threading.current_thread())
        time.sleep(0.02)

    await _run_async(server, "plain-async", handle, concurrency=4)
    assert threading.current_thread() not in threads
    assert 1 < len(threads) <= 4


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_a_failed_job_is_tried_again_and_set_aside_in_the_end(
    server: ServerProcess, connection: Connection, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    queue = f"failing-{kind}"
    make_queue(connection, queue, 6, max_deliveries=3, dead_letter=f"{queue}-dead")
    tries, told = Counter[int](), list[tuple[int, str]]()

    def handle(job: Job) -> None:
        tries[job.value] += 1
        assert job.deliveries == tries[job.value]
        if job.value == 0 or (job.value < 3 and job.deliveries < 3):
            raise ValueError(f"no {job.value}")

    async def handle_async(job: Job) -> None:
        handle(job)

    def on_error(job: Job, error: BaseException) -> None:
        told.append((job.value, str(error)))
        raise RuntimeError("what a hook raises harms nobody")

    worker = AsyncWorker(
        connection, queue, handle if kind == "plain" else handle_async, backoff=SOON, on_error=on_error, concurrency=2
    )
    ended = asyncio.create_task(worker.run())
    done = lambda: state(connection, queue).queue.dead_lettered == 1 and worker.statistics().acked == 5  # noqa: E731
    await asyncio.to_thread(poll, done, 10)
    worker.stop()
    await ended
    assert tries == {0: 3, 1: 3, 2: 3, 3: 1, 4: 1, 5: 1}
    assert Counter(told) == {(0, "no 0"): 3, (1, "no 1"): 2, (2, "no 2"): 2}
    assert "on_error failed" in caplog.text
    after = worker.statistics()
    assert (after.taken, after.acked, after.retried, after.given_up) == (12, 5, 6, 1)
    assert (after.released, after.lost) == (0, 0)
    assert state(connection, f"{queue}-dead").count == 1


def test_a_failure_is_logged_with_its_traceback(connection: Connection, caplog: pytest.LogCaptureFixture) -> None:
    make_queue(connection, "logged", 1)

    def handle(job: Job) -> None:
        raise LookupError("the reason why")

    backoff = Backoff(first_seconds=60, longest_seconds=60)
    with caplog.at_level(logging.INFO, "topics_client.worker"):
        Worker(connection, "logged", handle, until_empty=True, backoff=backoff).run()
    assert "logged: nothing is ready; jobs waiting for a retry: 1" in caplog.text
    (record,) = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert record.name == "topics_client.worker"
    assert "logged: job 1 failed (delivery 1)" in record.getMessage()
    assert "the reason why" in caplog.text
    assert "in handle" in caplog.text
    (rests,) = jobs_in(connection, "logged", JOB_STATE_DELAYED)  # without a limit, retries may never end
    assert rests.ready_at_ts_ms > time.time() * 1000 + 4000


@pytest.mark.parametrize("has_room", [True, False])
def test_no_retry_is_promised_that_never_comes(
    connection: Connection, caplog: pytest.LogCaptureFixture, has_room: bool
) -> None:
    queue = "last" if has_room else "last-of-all"
    make_queue(connection, queue, 1, max_deliveries=2, dead_letter=f"{queue}-dead")
    config = TopicConfig(cap_records=1, discard=DISCARD_POLICY_REJECT)
    connection.unary(connection.topics.PutTopic, PutTopicRequest(topic=f"{queue}-dead", config=config))
    if not has_room:
        add(connection, f"{queue}-dead", [0])

    def handle(job: Job) -> None:
        raise LookupError(f"last: {job.is_last}")

    with caplog.at_level(logging.INFO, "topics_client.worker"):
        worker = Worker(connection, queue, handle, until_empty=True, backoff=SOON)
        worker.run()
    told = [each.getMessage() for each in caplog.records if "seq" in each.msg or each.levelno == logging.WARNING]
    assert [line.split(", retry in ")[0] for line in told] == [
        f"{queue}: job 1 failed (delivery 1)",
        f"{queue}: job 1 failed for the last time, after 2 deliveries",
        f"{queue}: dead-lettered: seq 1"
        if has_room
        else f"{queue}: out of deliveries, but not yet accepted by the dead-letter topic: seq 1",
    ]
    assert ["last: False" in caplog.text, "last: True" in caplog.text] == [True, True]
    counts, after = state(connection, queue).queue, worker.statistics()
    assert (after.retried, after.given_up) == (1, 1), "it has waited for the retry"
    assert (counts.ready, counts.delayed, counts.dead_lettered, counts.exhausted) == (0, 0, has_room, not has_room)
    left = f"{queue}: nothing is ready; jobs not accepted by the dead-letter topic: 1"
    assert (left in caplog.text) == (not has_room)


def test_a_dead_letter_tells_why(server: ServerProcess, connection: Connection) -> None:
    make_queue(connection, "why", 3, max_deliveries=2, dead_letter="why-dead")

    def fail(text: str) -> None:
        raise LookupError(text)

    def handle(job: Job) -> None:
        if job.value == 2:
            raise RetryLater(1)
        try:
            fail(f"no user {job.value}" + "é" * 5000 * job.value)
        except LookupError as error:
            if job.is_last:
                raise RetryLater(1) from error
            raise

    worker = Worker(connection, "why", handle, until_empty=True, backoff=SOON, node="me", on_error=lambda *_: None)
    worker.run()
    with TopicsClient(server.grpc_target, key="admin-key") as topics:
        letters = {record.value: record.meta for record in topics.read("why-dead")}
    assert "$dead_letter_attempts" not in letters[2], "it has said nothing"
    first, last = letters[0]["$dead_letter_attempts"]
    assert [(each["delivery"], each["node"]) for each in (first, last)] == [(1, "me"), (2, "me")]
    for each in (first, last):
        assert each["reason"].startswith("LookupError: no user 0\nTraceback (most recent call last):")
    assert "in fail" in last["reason"]
    assert last["reason"].endswith("LookupError: no user 0")
    (*_, long) = letters[1]["$dead_letter_attempts"]
    assert long["reason"].startswith("LookupError: no user 1éé")
    assert 4000 < len(long["reason"].encode()) <= 4096


def test_a_reason_is_made_of_anything() -> None:
    class AwkwardError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    assert reason_of(None) == reason_of(RetryLater(1)) == reason_of(Release()) == ""
    assert "AwkwardError" in reason_of(AwkwardError())
    assert reason_of(ValueError("\ud800")).startswith("ValueError: \\ud800")
    for count in (500, 1000, 1024, 2000, 4096, 5000):
        assert len(reason_of(ValueError("é" * count)).encode()) <= 4096


def test_a_handler_can_give_back_and_name_the_time(connection: Connection) -> None:
    make_queue(connection, "choices", 2, max_deliveries=2, dead_letter="choices-dead")
    releases = 0

    def handle(job: Job) -> None:
        nonlocal releases
        if job.value == 1:
            raise RetryLater(3_600_000)
        if releases < 5:
            releases += 1
            assert job.deliveries == 1
            raise Release(1)

    with running(connection, "choices", handle) as worker:
        acked(worker, 1)
        poll(lambda: worker.statistics().retried == 1)
    after = worker.statistics()
    assert (after.taken, after.released, after.retried, after.acked) == (7, 5, 1, 1)
    (later,) = jobs_in(connection, "choices", JOB_STATE_DELAYED)
    assert later.deliveries == 1
    assert time.time() * 1000 + 3_500_000 < later.ready_at_ts_ms < time.time() * 1000 + 3_700_000


def test_a_coroutine_that_nobody_awaits_is_a_failure(connection: Connection, caplog: pytest.LogCaptureFixture) -> None:
    make_queue(connection, "unawaited", 1, max_deliveries=1, dead_letter="unawaited-dead")

    async def handle(job: Job) -> None:
        raise AssertionError("never")

    with running(connection, "unawaited", lambda job: handle(job)):
        poll(lambda: state(connection, "unawaited").queue.dead_lettered == 1)
    assert "pass the async function itself to the worker" in caplog.text


# ------------------------------------------------------------------ leases


def _sleep(job: Job) -> None:
    time.sleep(2.5)


def _spin(job: Job) -> None:
    """Use the interpreter all the time."""
    ends = time.monotonic() + 2.5
    while time.monotonic() < ends:
        pass


async def _sleep_async(job: Job) -> None:
    await asyncio.sleep(2.5)


async def _block(job: Job) -> None:
    """Hold up the loop."""
    time.sleep(2.5)  # noqa: ASYNC251


@pytest.mark.parametrize("handler", [_sleep, _spin, _sleep_async, _block])
def test_a_job_longer_than_its_lease_is_delivered_once(connection: Connection, handler: Callable[[Job], Any]) -> None:
    queue = f"long{handler.__name__}"
    make_queue(connection, queue, 1)
    delivered = list[Job]()

    def other(job: Job) -> None:
        delivered.append(job)

    with running(connection, queue, handler, lease_ms=1000, concurrency=1) as worker:
        poll(lambda: worker.statistics().running)
        with running(connection, queue, other, concurrency=1):  # which would get it
            acked(worker, 1)
    assert delivered == []
    assert worker.statistics().taken == 1
    assert state(connection, queue).count == 0


async def test_an_async_handler_that_blocks_the_callers_loop_keeps_its_lease(
    server: ServerProcess, connection: Connection
) -> None:
    make_queue(connection, "blocked", 3, lease_ms=1000)
    worker = await _run_async(server, "blocked", _block, concurrency=3)  # one after the other, for 7.5 s
    assert (worker.statistics().taken, worker.statistics().acked) == (3, 3)


def test_the_length_of_a_lease_is_the_queues_by_default(connection: Connection) -> None:
    make_queue(connection, "lengths", 1, lease_ms=77_000)
    deadlines = list[int]()
    Worker(connection, "lengths", lambda job: deadlines.append(job.deadline_ts_ms), until_empty=True).run()
    assert abs(deadlines[0] - time.time() * 1000 - 77_000) < 5000


def test_what_a_handler_returns_after_its_lease_was_lost_counts_for_nothing(
    connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    make_queue(connection, "taken-away", 2, lease_ms=1000)
    gate, done = threading.Event(), dict[tuple[int, int], bool]()

    def handle(job: Job) -> None:
        if job.deliveries > 1:
            return
        poll(lambda: worker.lost(job), what="the loss")
        gate.wait(30)
        done[job.seq, job.deliveries] = worker.lost(job)

    with running(connection, "taken-away", handle, concurrency=2) as worker:
        poll(lambda: worker.statistics().running == 2)
        held = jobs_in(connection, "taken-away", JOB_STATE_IN_FLIGHT)
        assert {view.node for view in held} == {worker.node}
        # Somebody else's nack in its name: without the lease_ids the name decides.
        from topics_proto.v1 import queue_service_pb2 as qpb

        nack = qpb.NackRequest(topic="taken-away", node=worker.node, seqs=[1, 2], delay_ms=1500)
        assert connection.unary(connection.queues.Nack, nack, repeatable=False).nacked == 2
        poll(lambda: worker.statistics().lost == 2)
        gate.set()
        acked(worker, 2)
    assert done == {(1, 1): True, (2, 1): True}
    after = worker.statistics()
    assert (after.taken, after.acked, after.lost) == (4, 2, 2)
    assert sum("with running handlers; other workers" in message for message in caplog.messages) in (1, 2)


# ------------------------------------------------------------------ errors


def test_what_trying_again_can_not_help_ends_the_run(server: ServerProcess, connection: Connection) -> None:
    make_queue(connection, "there", 1)
    log = list[Job]()
    with pytest.raises(NotFoundError, match="topic_not_found"):
        Worker(connection, "nowhere", log.append).run()
    add(connection, "a-log", [])
    from topics_proto.v1 import topics_service_pb2 as pb

    connection.unary(connection.topics.PutTopic, pb.PutTopicRequest(topic="a-log"))
    with pytest.raises(ConflictError, match="not_a_queue"):
        Worker(connection, "a-log", log.append).run()
    for key, reason in (("wrong", "unauthorized"), ("reader", "forbidden")):
        with Connection(Address.parse(server.grpc_target, key=key)) as other:
            with pytest.raises(AuthError, match=reason):
                Worker(other, "there", log.append).run()
            with pytest.raises(AuthError, match=reason):
                Worker(other, "there", log.append, lease_ms=1000).run()
    assert log == []
    assert state(connection, "there").queue.ready == 1


async def test_an_async_run_ends_by_the_same_errors(server: ServerProcess, connection: Connection) -> None:
    with pytest.raises(NotFoundError, match="topic_not_found"):
        await _run_async(server, "nowhere", _sleep_async)


def test_a_queue_that_is_deleted_under_it_ends_the_run(connection: Connection) -> None:
    from topics_proto.v1 import topics_service_pb2 as pb

    make_queue(connection, "deleted", 2, lease_ms=1500)
    begun = threading.Event()

    def handle(job: Job) -> None:
        begun.set()
        poll(lambda: worker.lost(job))

    def delete() -> None:
        assert begun.wait(20)
        connection.unary(connection.topics.DeleteTopic, pb.DeleteTopicRequest(topic="deleted"))

    worker = Worker(connection, "deleted", handle)
    deleting = threading.Thread(target=delete)
    deleting.start()
    with pytest.raises((NotFoundError, ConflictError)):
        worker.run()
    deleting.join()
    assert worker.statistics().lost == 2


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"concurrency": 0}, "concurrency is 0"),
        ({"concurrency": 1001}, "concurrency is 1001"),
        ({"prefetch": 993}, "prefetch is 993"),
        ({"prefetch": -1}, "prefetch is -1"),
        ({"lease_ms": 99}, "lease_ms is 99"),
        ({"lease_ms": 86_400_001}, "lease_ms is 86400001"),
        ({"node": "n" * 129}, "node has 129 bytes"),
        ({"drain_seconds": -1}, "drain_seconds is -1"),
    ],
)
def test_options_that_can_not_be_are_refused(connection: Connection, options: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Worker(connection, "q", _sleep, **options)


def test_a_handler_is_callable_and_a_worker_runs_once(connection: Connection) -> None:
    with pytest.raises(TypeError, match="a handler is a function of a job"):
        Worker(connection, "q", "handle")  # type: ignore[arg-type]
    make_queue(connection, "once")
    worker = Worker(connection, "once", _sleep, until_empty=True)
    worker.run()
    with pytest.raises(RuntimeError, match="a worker runs once"):
        worker.run()


# -------------------------------------------------------------- until_empty


def test_until_empty_waits_for_what_runs_here_and_not_for_what_others_hold(
    connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    make_queue(connection, "others", 3)
    begun, gate = threading.Event(), threading.Event()

    def hold(job: Job) -> None:
        begun.set()
        gate.wait(30)

    with running(connection, "others", hold, concurrency=1):
        assert begun.wait(20)
        done = list[Job]()

        def handle(job: Job) -> None:
            time.sleep(0.3)
            done.append(job)

        with caplog.at_level(logging.INFO, "topics_client.worker"):
            Worker(connection, "others", handle, until_empty=True, concurrency=1).run()
        assert len(done) == 2
        assert "others: nothing is ready; jobs leased by other workers: 1" in caplog.text
        assert state(connection, "others").queue.in_flight == 1
        gate.set()


def test_many_workers_and_random_failures_do_every_job_once(server: ServerProcess, connection: Connection) -> None:
    """Each job is acked exactly once, or set aside after its deliveries are used up."""
    import random

    make_queue(connection, "many", 2000, max_deliveries=4, dead_letter="many-dead")
    rng, lock = random.Random(7), threading.Lock()
    tries, ended = Counter[int](), Counter[int]()
    doomed = set(rng.sample(range(2000), 40))

    def handle(job: Job) -> None:
        with lock:
            tries[job.value] += 1
            fails = job.value in doomed or (job.deliveries < 4 and rng.random() < 0.2)
            if not fails:
                ended[job.value] += 1
        if fails:
            raise RuntimeError("by chance")

    async def handle_async(job: Job) -> None:
        await asyncio.sleep(0)
        handle(job)

    quiet: Any = {"on_error": lambda job, error: None, "concurrency": 10}
    with (
        running(connection, "many", handle, **quiet) as first,
        running(connection, "many", handle, **quiet) as second,
        running(connection, "many", handle_async, **quiet) as third,
    ):
        workers = [first, second, third]
        poll(lambda: sum(worker.statistics().acked for worker in workers) == 1960, 40)
        poll(lambda: state(connection, "many").queue.dead_lettered == 40, 20)
    statistics = [worker.statistics() for worker in workers]
    assert ended == Counter(set(range(2000)) - doomed)
    assert {tries[job] for job in doomed} == {4}
    assert sum(each.acked for each in statistics) == 1960
    assert sum(each.lost for each in statistics) == 0
    assert sum(each.given_up for each in statistics) == 40
    assert sum(each.retried for each in statistics) == sum(tries.values()) - 2000
    for each in statistics:
        assert each.taken == each.acked + each.retried + each.given_up + each.released + each.lost
    assert state(connection, "many").count == 0
    assert state(connection, "many-dead").count == 40
