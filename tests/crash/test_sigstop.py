"""The process is stopped and goes on, for longer than leases, heartbeats and sessions: nothing is held twice or lost.

A stop is what a machine does that sleeps, is moved, or has no time for the process. The server can't see it but by its
clocks, and its clients see a peer that says nothing.
"""

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from crash import test_queue_sigkill as queues
from crash.oracle import Oracle, Subject
from crash.queue_oracle import QueueOracle
from crash.test_sigkill import GrpcWriter, HttpWriter

from support.http import Api, ok, path
from support.push import PushStream, WatchStream
from support.server import ServerProcess
from support.waiting import poll

SOAK_SECONDS = float(os.environ.get("TOPICS_SOAK_SECONDS", "0"))
PAUSES = (0.02, 0.1, 0.5, 2.0)  # leases are 0.1 to 1.5 s, heartbeats 0.1 s


@contextmanager
def stopped(server: ServerProcess) -> Iterator[None]:
    """The process does nothing within the block."""
    server.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        server.signal(signal.SIGCONT)


def pause(server: ServerProcess, rng: random.Random, seconds: float) -> int:
    """Stop and go on at random for so long; returns how often."""
    end, pauses = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        time.sleep(rng.uniform(0.01, 0.3))
        with stopped(server):
            time.sleep(rng.choice(PAUSES) * rng.random())
        pauses += 1
    return pauses


class Writers:
    """Appends over both protocols, with the books of what was acknowledged, until told to stop."""

    def __init__(self, server: ServerProcess, oracle: Oracle) -> None:
        self._oracle, self._over = oracle, False
        self.failure: BaseException | None = None
        writers: list[Any] = [HttpWriter(server), GrpcWriter(server), HttpWriter(server)]
        self._threads = [threading.Thread(target=self._run, args=(writer, i)) for i, writer in enumerate(writers)]
        for thread in self._threads:
            thread.start()

    def _run(self, writer: Any, number: int) -> None:
        rng = random.Random(number)
        try:
            while not self._over:
                batch = self._oracle.sending(
                    rng.choice(self._oracle.subjects), f"w{number}", rng.choice((1, 9)), keyed=True
                )
                first_seq, count, deduped = writer.write(batch)
                assert not deduped
                self._oracle.acked(batch, first_seq, count)
                time.sleep(0.002)
        except BaseException as error:
            self.failure = error
        finally:
            writer.close()

    def stop(self) -> None:
        self._over = True
        for thread in self._threads:
            thread.join(40)
            assert not thread.is_alive()
        if self.failure is not None:
            raise self.failure


class Follower(threading.Thread):
    """Watches one topic on one SSE stream for as long as it lasts; `seqs` is what came."""

    def __init__(self, server: ServerProcess, topic: str) -> None:
        super().__init__()
        self.seqs: list[int] = []
        self.failure: BaseException | None = None
        self._server, self._topic = server, topic
        self.over = False
        self.start()

    def run(self) -> None:
        try:
            with Api(self._server.base) as api:
                body = {"topics": {self._topic: {}}, "heartbeat_ms": 100}
                url = ok(api.send("POST", "/v0/watch", body))["stream_url"]
            with WatchStream(self._server.http_port, url) as stream:
                while not self.over:
                    event = stream.next(20)
                    if event.event == "record":
                        self.seqs += [record["$seq"] for record in event.data["records"]]
        except BaseException as error:
            self.failure = error


def stop_and_go(server: ServerProcess, seed: int, seconds: float) -> int:
    rng = random.Random(seed)
    oracle = Oracle([Subject(f"plain-{durability}", durability) for durability in ("disk", "fsync", "ephemeral")])
    jobs = QueueOracle()
    with Api(server.base) as api:
        for topic in oracle.subjects:
            ok(api.put(topic.name, **topic.config), 201)
        for queue in jobs.subjects:
            ok(api.put(queue.name, type="queue", **queue.config), 201)
        followers = [Follower(server, topic.name) for topic in oracle.subjects]
        writers = Writers(server, oracle)
        work = queues.Load(server, jobs, rng.randrange(1 << 30))
        for thread in work._threads:
            thread.start()
        pauses = pause(server, rng, seconds)
        writers.stop()
        work._over = True
        for thread in work._threads:
            thread.join(40)
            assert not thread.is_alive()
        if work.failure is not None:
            raise work.failure
        for topic, follower in zip(oracle.subjects, followers, strict=True):
            head = api.state(topic.name)["head_seq"]
            poll(lambda follower=follower, head=head: follower.failure or len(follower.seqs) >= head, 20, "all came")
            follower.over = True
        api.append("plain-disk", 1)  # a frame for each of them, to see that it is over
        for follower in followers:
            follower.join(25)
            assert follower.failure is None, follower.failure
            assert follower.seqs == list(range(1, len(follower.seqs) + 1)), "one stream, each record once, in order"
        api.rm("plain-disk", before_seq=api.state("plain-disk")["head_seq"] + 1)
        oracle.subjects[0].deletes = True  # what the last line took away
        for batch in oracle.subjects[0].batches:
            batch.deleting = True
        oracle.check(api)
    calls = queues.HttpCalls(server)
    with Api(server.base) as api:
        for queue in jobs.subjects:
            queues.finish(queue, calls, api)
    calls.close()
    return pauses


def test_stops_under_load(make_server: Callable[..., ServerProcess]) -> None:
    server = make_server().start()
    assert stop_and_go(server, 1, 2.5) >= 2
    assert server.stop() == 0


@pytest.mark.soak
@pytest.mark.skipif(not SOAK_SECONDS, reason="TOPICS_SOAK_SECONDS says for how long")
@pytest.mark.timeout(SOAK_SECONDS + 300)
def test_sigstop_soak(make_server: Callable[..., ServerProcess]) -> None:
    server = make_server().start()
    seed = int(os.environ.get("TOPICS_SOAK_SEED", time.time_ns() % 100_000))
    print(f"{stop_and_go(server, seed, SOAK_SECONDS)} stops with TOPICS_SOAK_SEED={seed}")
    assert server.stop() == 0


def test_a_stop_longer_than_a_lease(make_server: Callable[..., ServerProcess]) -> None:
    """The lease is over when the server goes on: its token is worth nothing once somebody else has the job."""
    server = make_server().start()
    with Api(server.base) as api:
        ok(api.put("jobs", type="queue", lease_ms=300), 201)
        api.append("jobs", 1)
        [job] = ok(api.send("POST", path("jobs", "/claim"), {"node": "a"}))["claimed"]
        with PushStream(server.http_port, "jobs", node="b", lease_ms=60_000) as waiting:
            with stopped(server):
                time.sleep(1)
                impatient = httpx.Client(base_url=server.base, timeout=0.2, trust_env=False, verify=False)
                with impatient, pytest.raises(httpx.TimeoutException):
                    impatient.post(path("jobs"), json={"records": [{"data": 2}], "idempotency_key": "k"})
            [again] = waiting.jobs(1)
            assert (again["$seq"], again["deliveries"]) == (job["$seq"], 2)
        body = {"node": "a", "seqs": [job["$seq"]], "lease_ids": [job["lease_id"]]}
        assert ok(api.send("POST", path("jobs", "/ack"), body))["skipped"] == [job["$seq"]]
        api.append("jobs", 2, idempotency_key="k")  # whether the first try arrived or not
        assert [record["data"] for record in api.read_all("jobs")] == [1, 2]
    assert server.stop() == 0
