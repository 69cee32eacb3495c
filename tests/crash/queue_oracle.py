"""What clients of queues know: which jobs were taken in, which are done, and who holds what until when."""

import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

LEASE_MS = (100, 300, 1500)


class Job(NamedTuple):
    """One delivery. `id` is the job's data, its own in all queues."""

    id: int
    seq: int
    lease_id: str
    deadline: int
    deliveries: int


@dataclass
class Lease:
    """Who holds a job: nobody else may before `end` (ms), unless it was `let_go`, or is being changed."""

    lease_id: str
    end: int
    let_go: bool = False
    changing: bool = False


@dataclass
class QueueSubject:
    """One queue under load. Its jobs are numbers; every method may be called from any thread."""

    name: str
    config: dict[str, object]
    acks: int = 0
    _next: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _taken_in: set[int] = field(default_factory=set)  # the append was acknowledged
    _unsure: set[int] = field(default_factory=set)  # it was sent
    _done: dict[int, int] = field(default_factory=dict)  # when the ack was acknowledged (ms)
    _maybe_done: Counter[int] = field(default_factory=Counter)  # acks that were sent and had no answer
    _leases: dict[int, Lease] = field(default_factory=dict)

    @property
    def missing(self) -> set[int]:
        """Jobs that must still be there."""
        with self._lock:
            return self._taken_in - self._done.keys() - self._maybe_done.keys()

    @property
    def left(self) -> int:
        """How many of those there are."""
        return len(self.missing)

    def producing(self, count: int) -> list[int]:
        """New jobs, about to be sent."""
        with self._lock:
            ids = list(range(self._next, self._next + count))
            self._next += count
            self._unsure |= set(ids)
            return ids

    def produced(self, ids: list[int]) -> None:
        """Their append was acknowledged."""
        with self._lock:
            self._taken_in |= set(ids)

    def delivered(self, job: Job, lease_ms: int, *, let_go: bool = False) -> None:
        """A worker got the job: it was there, not done, and held by nobody else. `let_go`: it is about to leave."""
        leased_at = job.deadline - lease_ms
        with self._lock:
            assert job.id in self._unsure, f"{self.name}: {job} was never sent"
            done = self._done.get(job.id)
            assert done is None or leased_at <= done, f"{self.name}: {job} came back, done at {done}"
            before = self._leases.get(job.id)
            if before is not None:
                assert before.lease_id != job.lease_id
                if before.end >= job.deadline:
                    return  # the answer of the later delivery was faster
                assert before.let_go or before.changing or leased_at > before.end, (
                    f"{self.name}: {job}, held under {before}"
                )
            self._leases[job.id] = Lease(job.lease_id, job.deadline, let_go)

    def acking(self, jobs: list[Job]) -> None:
        """An ack is about to be sent."""
        with self._lock:
            self._maybe_done.update(job.id for job in jobs)

    def acked(self, jobs: list[Job], skipped: list[int]) -> None:
        """The ack was answered."""
        now = time.time_ns() // 1_000_000
        with self._lock:
            for job in jobs:
                if job.seq not in skipped:
                    assert job.id not in self._done, f"{self.name}: {job} was done twice"
                    self._done[job.id] = now
                    self.acks += 1
                # One of two workers that thought to have it may have had no answer: only what it sent is settled.
                self._maybe_done -= Counter([job.id])

    def letting_go(self, jobs: list[Job]) -> None:
        """A nack is about to be sent, or the stream to be closed."""
        with self._lock:
            for lease in self._held(jobs):
                lease.let_go = True

    def extending(self, jobs: list[Job]) -> None:
        """An extend is about to be sent: it may also shorten the lease."""
        with self._lock:
            for lease in self._held(jobs):
                lease.changing = True

    def extended(self, jobs: list[Job], deadlines: dict[int, int]) -> None:
        """The extend was answered."""
        with self._lock:
            for job in jobs:
                lease = self._leases.get(job.id)
                if lease is not None and lease.lease_id == job.lease_id:
                    lease.end = deadlines.get(job.seq, lease.end)
                    lease.changing = False

    def _held(self, jobs: list[Job]) -> list[Lease]:
        """The leases of these deliveries, where no later one is known."""
        found = ((self._leases.get(job.id), job) for job in jobs)
        return [lease for lease, job in found if lease is not None and lease.lease_id == job.lease_id]

    def restarted(self) -> None:
        """The server was killed. Leases that are not kept are over."""
        if not self.config.get("leases_durable"):
            with self._lock:
                self._leases.clear()


class QueueOracle:
    """The queues under load, one of each kind."""

    def __init__(self) -> None:
        self.subjects = [
            QueueSubject(
                f"{durability}-{'kept' if kept else 'lost'}", {"durability": durability, "leases_durable": kept}
            )
            for durability in ("fsync", "disk")
            for kept in (False, True)
        ]

    @property
    def acks(self) -> int:
        """Jobs done so far."""
        return sum(subject.acks for subject in self.subjects)

    def restarted(self) -> None:
        """The server was killed and started."""
        for subject in self.subjects:
            subject.restarted()
