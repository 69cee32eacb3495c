"""SIGKILL while workers are at work, again and again: no job is lost, none comes back, none is held by two."""

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable
from typing import Any, Self

import grpc
import httpx
import pytest
from crash.queue_oracle import LEASE_MS, Job, QueueOracle, QueueSubject

from support.http import Api, ok, path
from support.push import EndedError, PushStream
from support.server import ServerProcess
from support.waiting import poll
from topics_proto.v1 import queue_service_pb2 as pb
from topics_proto.v1 import queue_service_pb2_grpc

KILLS = 6
SOAK_SECONDS = float(os.environ.get("TOPICS_SOAK_SECONDS", "0"))


class GoneError(Exception):
    """The server is gone, as it should be."""


class HttpCalls:
    """Queue calls over HTTP."""

    def __init__(self, server: ServerProcess) -> None:
        self._api = Api(server.base)
        self.close = self._api.close

    def _call(self, topic: str, op: str, **body: Any) -> dict[str, Any]:
        try:
            return ok(self._api.send("POST", path(topic, op), body), 200, 201)
        except httpx.TransportError as error:
            raise GoneError from error

    def append(self, topic: str, ids: list[int], **more: Any) -> None:
        self._call(topic, "", records=[{"data": number} for number in ids], **more)

    def claim(self, topic: str, node: str, max_jobs: int, lease_ms: int) -> list[Job]:
        claimed = self._call(topic, "/claim", node=node, max=max_jobs, lease_ms=lease_ms)["claimed"]
        return [Job(job["data"], job["$seq"], job["lease_id"], job["deadline"], job["deliveries"]) for job in claimed]

    def ack(self, topic: str, node: str, jobs: list[Job], *, fenced: bool) -> list[int]:
        ids = [job.lease_id for job in jobs] if fenced else []
        skipped: list[int] = self._call(
            topic, "/ack", node=node, seqs=[job.seq for job in jobs], lease_ids=ids
        )["skipped"]  # fmt: skip
        return skipped

    def nack(self, topic: str, node: str, jobs: list[Job], delay_ms: int) -> None:
        ids = [job.lease_id for job in jobs]
        self._call(topic, "/nack", node=node, seqs=[job.seq for job in jobs], lease_ids=ids, delay_ms=delay_ms)

    def extend(self, topic: str, node: str, jobs: list[Job], lease_ms: int) -> dict[int, int]:
        ids = [job.lease_id for job in jobs]
        seqs = [job.seq for job in jobs]
        reply = self._call(topic, "/extend", node=node, seqs=seqs, lease_ids=ids, lease_ms=lease_ms)
        return {int(seq): deadline for seq, deadline in reply["deadlines"].items()}


class GrpcCalls:
    """The same over gRPC."""

    def __init__(self, server: ServerProcess) -> None:
        self._channel = grpc.insecure_channel(server.grpc_target, [("grpc.use_local_subchannel_pool", 1)])
        self.stub = queue_service_pb2_grpc.QueueServiceStub(self._channel)
        self.close = self._channel.close

    def _call(self, name: str, request: Any) -> Any:
        try:
            return getattr(self.stub, name)(request, timeout=20)
        except grpc.RpcError as error:
            raise _gone(error) from error

    def claim(self, topic: str, node: str, max_jobs: int, lease_ms: int) -> list[Job]:
        reply = self._call("Claim", pb.ClaimRequest(topic=topic, node=node, max=max_jobs, lease_ms=lease_ms))
        return list(map(_job, reply.claimed))

    def ack(self, topic: str, node: str, jobs: list[Job], *, fenced: bool) -> list[int]:
        ids = [job.lease_id for job in jobs] if fenced else []
        request = pb.AckRequest(topic=topic, node=node, seqs=[job.seq for job in jobs], lease_ids=ids)
        return list(self._call("Ack", request).skipped)

    def nack(self, topic: str, node: str, jobs: list[Job], delay_ms: int) -> None:
        seqs, ids = [job.seq for job in jobs], [job.lease_id for job in jobs]
        self._call("Nack", pb.NackRequest(topic=topic, node=node, seqs=seqs, lease_ids=ids, delay_ms=delay_ms))

    def extend(self, topic: str, node: str, jobs: list[Job], lease_ms: int) -> dict[int, int]:
        seqs, ids = [job.seq for job in jobs], [job.lease_id for job in jobs]
        request = pb.ExtendRequest(topic=topic, node=node, seqs=seqs, lease_ids=ids, lease_ms=lease_ms)
        return dict(self._call("Extend", request).deadlines_ts_ms)


Calls = HttpCalls | GrpcCalls


def _job(job: Any) -> Job:
    return Job(int(job.data), job.seq, job.lease_id, job.deadline_ts_ms, job.deliveries)


def _gone(error: Any) -> Exception:
    return GoneError() if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED) else error


class Load:
    """Producers and workers of all kinds; leaving the block kills the server under them."""

    def __init__(self, server: ServerProcess, oracle: QueueOracle, seed: int) -> None:
        self._server, self._oracle, self._seed = server, oracle, seed
        self._over = False
        self.failure: BaseException | None = None
        kinds = [
            self._produce, lambda n, rng: self._poll(HttpCalls, n, rng), lambda n, rng: self._poll(GrpcCalls, n, rng),
            lambda n, rng: self._poll(HttpCalls, n, rng), self._push_http, self._push_grpc,
        ]  # fmt: skip
        self._threads = [threading.Thread(target=self._run, args=(work, i)) for i, work in enumerate(kinds)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.kill()
        self._over = True
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()
        if self.failure is not None:
            raise self.failure

    def _run(self, work: Callable[[int, random.Random], None], number: int) -> None:
        try:
            work(number, random.Random(f"{self._seed}:{number}"))
        except GoneError:
            pass
        except BaseException as error:
            self.failure, self._over = error, True

    def _produce(self, _: int, rng: random.Random) -> None:
        calls = HttpCalls(self._server)
        try:
            while not self._over:
                subject = rng.choice(self._oracle.subjects)
                if subject.left > 400:
                    time.sleep(0.005)
                    continue
                ids = subject.producing(rng.choice((1, 5, 20)))
                more = rng.choice(({}, {}, {"priority": rng.randrange(10)}, {"delay_ms": rng.randrange(1, 100)}))
                calls.append(subject.name, ids, **more)
                subject.produced(ids)
        finally:
            calls.close()

    def _poll(self, protocol: type[Calls], number: int, rng: random.Random) -> None:
        calls, node = protocol(self._server), f"poll{number}"
        try:
            while not self._over:
                subject = rng.choice(self._oracle.subjects)
                lease_ms = rng.choice(LEASE_MS)
                jobs = calls.claim(subject.name, node, rng.choice((1, 3, 8)), lease_ms)
                for job in jobs:
                    subject.delivered(job, lease_ms)
                self._work(calls, subject, node, jobs, rng)
        finally:
            calls.close()

    def _work(self, calls: Calls, subject: QueueSubject, node: str, jobs: list[Job], rng: random.Random) -> None:
        """Do something with the jobs; most are acked, some are given back, some left to their leases."""
        while jobs:
            some, jobs = jobs[: (cut := rng.choice((1, 2, 8)))], jobs[cut:]
            fate = rng.random()
            if fate < 0.7:
                subject.acking(some)
                subject.acked(some, calls.ack(subject.name, node, some, fenced=rng.random() < 0.5))
            elif fate < 0.8:
                subject.letting_go(some)
                calls.nack(subject.name, node, some, rng.choice((0, 0, 50)))
            elif fate < 0.9:
                subject.extending(some)
                subject.extended(some, calls.extend(subject.name, node, some, rng.choice(LEASE_MS)))

    def _push_http(self, number: int, rng: random.Random) -> None:
        calls, node = HttpCalls(self._server), f"push{number}"
        try:
            while not self._over:
                subject, max_jobs = rng.choice(self._oracle.subjects), rng.choice((1, 4))
                lease_ms = rng.choice(LEASE_MS)
                query = {"node": node, "max": max_jobs, "lease_ms": lease_ms}
                try:
                    with PushStream(self._server.http_port, subject.name, **query) as stream:
                        assert stream.status == 200
                        self._take_pushed(stream, calls, subject, node, lease_ms, rng)
                except (EndedError, ConnectionError) as error:
                    raise GoneError from error
        finally:
            calls.close()

    def _take_pushed(
        self, stream: PushStream, calls: Calls, subject: QueueSubject, node: str, lease_ms: int, rng: random.Random
    ) -> None:
        held: list[Job] = []
        with contextlib.suppress(TimeoutError):
            for _ in range(rng.randrange(1, 20)):
                event = stream.next(0.5)
                if event.event:
                    found = event.data
                    job = Job(found["data"], *(found[k] for k in ("$seq", "lease_id", "deadline", "deliveries")))
                    subject.delivered(job, lease_ms)
                    held.append(job)
                    self._work(calls, subject, node, [job], rng)
        subject.letting_go(held)

    def _push_grpc(self, number: int, rng: random.Random) -> None:
        calls, node = GrpcCalls(self._server), f"push{number}"
        try:
            while not self._over:
                subject, max_jobs = rng.choice(self._oracle.subjects), rng.choice((1, 4))
                lease_ms = rng.choice(LEASE_MS)
                request = pb.WorkRequest(topic=subject.name, node=node, max=max_jobs, lease_ms=lease_ms)
                stream = calls.stub.Work(request)
                held: list[Job] = []
                leaving, gate = threading.Event(), threading.Lock()

                def leave(
                    subject: QueueSubject = subject, stream: Any = stream, held: list[Job] = held,
                    leaving: threading.Event = leaving, gate: threading.Lock = gate,
                ) -> None:  # fmt: skip
                    with gate:
                        leaving.set()
                        subject.letting_go(held)
                    stream.cancel()

                timer = threading.Timer(rng.uniform(0.1, 1), leave)
                timer.start()
                try:
                    for response in stream:
                        jobs = list(map(_job, response.frame.jobs.jobs))
                        held += jobs
                        with gate:
                            for job in jobs:
                                subject.delivered(job, lease_ms, let_go=leaving.is_set())
                        self._work(calls, subject, node, jobs, rng)
                except grpc.RpcError as error:
                    if not leaving.is_set():
                        raise _gone(error) from error
                finally:
                    timer.cancel()
                    timer.join()
        finally:
            calls.close()


def kill_and_check(server: ServerProcess, seed: int, until: Callable[[int], bool]) -> int:
    """Load, kill and start as long as `until(kills)` says no, then finish every job; returns the kills."""
    rng = random.Random(seed)
    oracle = QueueOracle()
    kills = 0
    server.start()
    with Api(server.base) as api:
        for subject in oracle.subjects:
            ok(api.put(subject.name, type="queue", **subject.config), 201)
    while not until(kills):
        with Load(server, oracle, rng.randrange(1 << 30)) as load:
            target = oracle.acks + rng.choice((20, 150, 500)) + rng.randrange(50)
            poll(lambda load=load, target=target: oracle.acks >= target or load.failure, 60, f"{target} acks")
        kills += 1
        server.start()
        oracle.restarted()
    calls = HttpCalls(server)
    with Api(server.base) as api:
        for subject in oracle.subjects:
            finish(subject, calls, api)
        for subject in oracle.subjects:
            state = api.state(subject.name)
            assert (state["count"], state["queue"]["ready"], state["queue"]["in_flight"]) == (0, 0, 0), subject.name
    calls.close()
    return kills


def finish(subject: QueueSubject, calls: HttpCalls, api: Api) -> None:
    """One last worker does all that is left."""
    deadline = time.monotonic() + 30 + max(LEASE_MS) / 1e3
    while subject.left:
        assert time.monotonic() < deadline, f"{subject.name}: lost {sorted(subject.missing)[:20]}"
        jobs = calls.claim(subject.name, "last", 50, 5000)
        for job in jobs:
            subject.delivered(job, 5000)
        if jobs:
            subject.acking(jobs)
            assert calls.ack(subject.name, "last", jobs, fenced=True) == []
            subject.acked(jobs, [])
        else:
            time.sleep(0.02)
    while api.state(subject.name)["count"]:  # their append was under way at a kill, and a lease of theirs can go on
        assert time.monotonic() < deadline, f"{subject.name}: jobs that nobody can claim"
        jobs = calls.claim(subject.name, "last", 50, 5000)
        for job in jobs:
            subject.delivered(job, 5000)
        if jobs:
            calls.ack(subject.name, "last", jobs, fenced=True)
        else:
            time.sleep(0.02)


def test_no_job_is_lost_doubled_or_done_twice(make_server: Callable[..., ServerProcess]) -> None:
    assert kill_and_check(make_server(), 1, lambda kills: kills == KILLS) == KILLS


def test_the_books_know_of_an_ack_without_an_answer() -> None:
    """Two workers ack one job, one is told that it is not its own, the other is never told: it may be done."""
    subject = QueueSubject("q", {})
    ids = subject.producing(1)
    subject.produced(ids)
    jobs = [Job(ids[0], 1, "lease", 0, 1)]
    subject.acking(jobs)
    subject.acking(jobs)
    subject.acked(jobs, skipped=[1])
    assert not subject.missing
    subject.acked(jobs, skipped=[1])
    assert subject.missing == {ids[0]}


@pytest.mark.soak
@pytest.mark.skipif(not SOAK_SECONDS, reason="TOPICS_SOAK_SECONDS says for how long")
@pytest.mark.timeout(SOAK_SECONDS + 300)
def test_queue_sigkill_soak(make_server: Callable[..., ServerProcess]) -> None:
    end = time.monotonic() + SOAK_SECONDS
    seed = int(os.environ.get("TOPICS_SOAK_SEED", time.time_ns() % 100_000))
    kills = kill_and_check(make_server(), seed, lambda _: time.monotonic() > end)
    print(f"{kills} kills with TOPICS_SOAK_SEED={seed}")
