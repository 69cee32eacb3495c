"""A queue as the contract describes it, the slow and obvious way: a list of jobs that each know their state."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

DAY = 86_400_000
Attempt = tuple[int, int, str, str, bool]  # delivery, when it ended, node, reason, whether the worker gave one


@dataclass(frozen=True)
class Lease:
    """Who holds a job, under which token, up to when."""

    node: str
    token: str
    deadline: int


@dataclass(frozen=True)
class Row:
    """What a restart finds of a touched job with `leases_durable`."""

    lease: Lease | None
    free_at: int
    deliveries: int
    attempts: tuple[Attempt, ...]


@dataclass
class Job:
    """One live job. `touched` from its first claim on; then it is held, or given back and free at `free_at`."""

    seq: int
    ts: int
    data: bytes
    tag: bytes | None
    ticket: int
    priority: int = 0
    ready_at: int = 0
    due: bool = True
    touched: bool = False
    lease: Lease | None = None
    free_at: int = 0
    deliveries: int = 0
    attempts: tuple[Attempt, ...] = ()
    row: Row | None = None

    def failed(self, when: int, reason: str, *, is_told: bool = False) -> None:
        """The delivery under way has failed."""
        assert self.lease is not None
        self.attempts = (*self.attempts, (self.deliveries, when, self.lease.node, reason, is_told))[-8:]

    @property
    def told(self) -> tuple[Attempt, ...]:
        """What a dead letter tells of the attempts."""
        return self.attempts if any(is_told for *_, is_told in self.attempts) else ()


@dataclass
class Config:
    """The part of a topic's configuration that matters here."""

    lease_ms: int = 1000
    max_deliveries: int = 0
    dead_letter: str | None = None
    leases_durable: bool = False
    durability: str = "disk"
    cap_records: int = 0
    ttl_ms: int = 0

    @property
    def limit(self) -> int:
        return self.max_deliveries if self.dead_letter else 0


@dataclass
class QueueModel:
    """The queue and what its dead letter topic holds of it, as (data, tag, attempts)."""

    config: Config = field(default_factory=Config)
    jobs: dict[int, Job] = field(default_factory=dict)
    letters: list[tuple[bytes, bytes | None, tuple[Attempt, ...]]] = field(default_factory=list)
    gone: dict[int, Lease] = field(default_factory=dict)
    dead_lettered: int = 0
    stuck_until: int = 0
    failures: int = 0
    open: bool = True  # the dead letter topic has room
    last_ts: int = 0

    def copy(self) -> "QueueModel":
        return replace(
            self,
            jobs={seq: replace(job) for seq, job in self.jobs.items()},
            letters=list(self.letters),
            gone=dict(self.gone),
        )

    # ------------------------------------------------------------------ time and loss

    def stamp(self, now: int) -> int:
        """The time of a job that is appended now: a log's never go back."""
        self.last_ts = max(now, self.last_ts)
        return self.last_ts

    def refresh(self, now: int) -> None:
        """What every call does first."""
        if self.config.ttl_ms:
            self.lose(seq for seq, job in self.jobs.items() if now - job.ts > self.config.ttl_ms)
        for job in self.jobs.values():
            if job.lease is not None and now > job.lease.deadline:
                job.failed(job.lease.deadline, "lease expired")
                job.lease, job.free_at = None, 0
            job.due = job.due or job.ready_at <= now
            if job.free_at <= now:
                job.free_at = 0
        self.gone = {seq: lease for seq, lease in self.gone.items() if now <= lease.deadline}

    def lose(self, seqs: Iterable[int]) -> None:
        for seq in list(seqs):
            job = self.jobs.pop(seq)
            if job.lease is not None:
                self.gone[seq] = job.lease

    def evict(self) -> None:
        cap = self.config.cap_records
        if cap and len(self.jobs) > cap:
            self.lose(sorted(self.jobs)[: len(self.jobs) - cap])

    def restarted(self) -> None:
        """Forget what only memory knew."""
        self.gone, self.stuck_until, self.failures = {}, 0, 0
        for job in self.jobs.values():
            row = job.row if self.config.leases_durable else None
            job.touched = row is not None
            job.lease = row.lease if row else None
            job.free_at = row.free_at if row else 0
            job.deliveries = row.deliveries if row else 0
            job.attempts = row.attempts if row else ()
            job.row = row
            job.ticket = 0
            job.due = job.touched or not job.ready_at

    def keep_rows(self, seqs: Iterable[int]) -> None:
        """These jobs were written, if the config asks for it."""
        if self.config.leases_durable:
            for seq in seqs:
                job = self.jobs.get(seq)
                if job is not None:
                    job.row = Row(job.lease, job.free_at, job.deliveries, job.attempts)

    # ------------------------------------------------------------------------ views

    def visible(self, synced: int) -> list[Job]:
        return [job for seq, job in sorted(self.jobs.items()) if job.ticket <= synced]

    def is_exhausted(self, job: Job) -> bool:
        limit = self.config.limit
        return bool(limit and job.touched and not job.lease and not job.free_at and job.deliveries >= limit)

    def state_of(self, job: Job) -> str:
        if job.lease is not None:
            return "in_flight"
        if self.is_exhausted(job):
            return "exhausted"
        return "ready" if job.due and not job.free_at else "delayed"

    # ------------------------------------------------------------------------ calls

    def bury(self, now: int, *, stalled: bool, only: Iterable[int] | None = None) -> list[int]:
        """What a claim does first, the timer, and a nack with what it gives back: move what is exhausted, or not."""
        seqs = sorted(self.jobs if only is None else only)
        exhausted = [job for seq in seqs if (job := self.jobs.get(seq)) and self.is_exhausted(job)]
        if not exhausted or now < self.stuck_until:
            return []
        if not self.open or stalled:
            self.stuck_until = now + min(1000 << self.failures, 60_000)
            self.failures += 1
            return []
        self.failures = 0
        self.dead_lettered += len(exhausted)
        for job in exhausted:
            self.letters.append((job.data, job.tag, job.told))
            del self.jobs[job.seq]
        return [job.seq for job in exhausted]

    def deal(self, wants: list[int], synced: int) -> list[list[Job]]:
        """Who gets which job; nothing is changed."""
        ready = [job for job in self.visible(synced) if not job.lease and job.due and not job.free_at]
        order = [job for job in ready if job.touched and not self.is_exhausted(job)]
        order += sorted((job for job in ready if not job.touched), key=lambda job: (-job.priority, job.seq))
        hands: list[list[Job]] = [[] for _ in wants]
        while order:
            hungry = [hand for hand, want in zip(hands, wants, strict=True) if len(hand) < want]
            if not hungry:
                break
            for hand in hungry:
                if order:
                    hand.append(order.pop(0))
        return [sorted(hand, key=lambda job: job.seq) for hand in hands]

    def holds(self, seq: int, node: str | None, token: str) -> bool:
        job = self.jobs.get(seq)
        lease = job.lease if job is not None else self.gone.get(seq)
        if lease is None or (node is not None and lease.node != node):
            return False
        return not token or lease.token == token

    def ack(self, seq: int) -> None:
        if self.jobs.pop(seq, None) is None:
            del self.gone[seq]

    def give_back(
        self, seq: int, free_at: int, *, released: bool, now: int, reason: str, is_told: bool = False
    ) -> None:
        job = self.jobs.get(seq)
        if job is None:
            del self.gone[seq]
            return
        if not released:
            job.failed(now, reason, is_told=is_told)
        job.lease, job.free_at, job.deliveries = None, 0, job.deliveries - released
        if not self.is_exhausted(job):
            job.free_at = free_at

    def extend(self, seq: int, deadline: int) -> None:
        job = self.jobs.get(seq)
        if job is None:
            self.gone[seq] = replace(self.gone[seq], deadline=deadline)
        else:
            assert job.lease is not None
            job.lease = replace(job.lease, deadline=deadline)
