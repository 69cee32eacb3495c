"""One queue as the contract describes it: what each job waits for, who holds it, and who gets it next.

The simulation and the state machine of queues compare with this model. The jobs are the records of a log, see
`log_model`: here is what the queue knows beyond them."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, get_args

from msgspec.structs import astuple

from support.log_model import LogState, Rec, demand, read
from topics_service.engine.model import QueueCounters, TopicConfig
from topics_service.engine.queue.jobs import ClaimReply, ClaimRequest, JobState, JobView, SettleReply, SettleRequest

STATES: tuple[JobState, ...] = get_args(JobState)
STAMPS = ("$dead_letter_from", "$dead_letter_deliveries", "$dead_letter_src_seq", "$dead_letter_attempts")
_DAY_MS = 86_400_000
_BACKOFF_MAX_MS = 60_000
_ATTEMPTS = 8


class Attempt(NamedTuple):
    """A delivery that failed; `is_told` if the worker gave the reason."""

    delivery: int
    ended_at: int
    node: str
    reason: str
    is_told: bool


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease of a job: its holder, its token and its end."""

    node: str
    token: str
    deadline: int


@dataclass(frozen=True, slots=True)
class Touched:
    """A job that was delivered: held, or given back and free at `free_at` (0: now)."""

    deliveries: int
    lease: Lease | None = None
    free_at: int = 0
    attempts: tuple[Attempt, ...] = ()

    def failed(self, when: int, reason: str, *, is_told: bool = False) -> "Touched":
        """The same after the failure of its delivery."""
        assert self.lease is not None
        newest = Attempt(self.deliveries, when, self.lease.node, reason, is_told)
        return Touched(self.deliveries, attempts=(*self.attempts, newest)[-_ATTEMPTS:])

    @property
    def told(self) -> tuple[Attempt, ...]:
        """The attempts as others see them: none unless a worker has given a reason."""
        return self.attempts if any(attempt.is_told for attempt in self.attempts) else ()


_FRESH = Touched(0)
Kept = tuple[Mapping[int, Touched], int]  # what a start finds: the rows of leases, and the number of jobs dead-lettered


class Shown(Protocol):
    """The log of a queue: as written last, and as readers see it."""

    written: LogState
    view: LogState


class Jobs(Protocol):
    """The topic of a queue."""

    name: str
    config: TopicConfig

    @property
    def log(self) -> Shown:
        """Its only log."""


class QueueModel:
    """`due` are delayed jobs whose time has come, `aside` exhausted ones that let the others pass up to a time, `rows`
    the leases on the disk, `ending` the jobs that a call is about to give back. After a start a queue is not `loaded`
    until somebody asks."""

    def __init__(self, topic: Jobs, tokens: set[str]) -> None:
        """`tokens` are those that any queue has ever given out."""
        self.topic = topic
        self.touched: dict[int, Touched] = {}
        self.gone: dict[int, Lease] = {}
        self.due: set[int] = set()
        self.aside: dict[int, int] = {}
        self.rows: dict[int, Touched] = {}
        self.ending: dict[int, Touched] = {}
        self.dead_lettered = 0
        self.stuck_until = 0
        self.failures = 0
        self.moves = 0
        self.loaded = True
        self._limit = 0
        self._tokens = tokens

    # ------------------------------------------------------------ time and losses

    def load(self) -> None:
        """Somebody asks for the first time since a start: what is gone by now is not remembered."""
        if not self.loaded:
            live = self.topic.log.written.live
            self.loaded, self._limit = True, self.limit
            self.touched = {seq: job for seq, job in self.touched.items() if seq in live}

    def refresh(self, now: int) -> None:
        """Take in the time that has passed and the losses of the log, as every call does first."""
        self.load()
        live = self.topic.log.written.live
        if self._limit != self.limit:
            self._limit = self.limit
            self.aside.clear()
        for seq, job in list(self.touched.items()):
            if seq not in live:
                del self.touched[seq]
                self.aside.pop(seq, None)
                if job.lease is not None:
                    self.gone[seq] = job.lease
            elif job.lease is not None and now > job.lease.deadline:
                self.touched[seq] = job.failed(job.lease.deadline, "lease expired")
            elif 0 < job.free_at <= now:
                self.touched[seq] = replace(job, free_at=0)
        self.gone = {seq: lease for seq, lease in self.gone.items() if now <= lease.deadline}
        self.aside = {seq: until for seq, until in self.aside.items() if now < until}
        self.due.update(seq for seq, rec in live.items() if 0 < rec.ready_at <= now)
        if self.stuck_until - now > _BACKOFF_MAX_MS:  # the clock was set back
            self.stuck_until = now

    def reconfigured(self, was_durable: bool) -> None:
        """The topic has another config: with `leases_durable` what was touched is on the disk, without it nothing."""
        if self.topic.config.leases_durable != was_durable:
            self.load()
            self.rows = {} if was_durable else dict(self.touched)

    @property
    def kept(self) -> Kept:
        """The rows and the count of dead letters that a start would find."""
        return dict(self.rows), self.dead_lettered

    def restarted(self, kept: Kept) -> None:
        """A start found this; what only memory knew is forgotten."""
        rows, self.dead_lettered = kept
        self.rows, self.touched = dict(rows), dict(rows)
        self.gone, self.due, self.aside, self.ending = {}, set(), {}, {}
        self.stuck_until = self.failures = 0
        self.loaded = False

    # --------------------------------------------------------------------- views

    @property
    def limit(self) -> int:
        """The deliveries that a job gets; 0 for no limit."""
        return self.topic.config.max_deliveries if self.topic.config.dead_letter is not None else 0

    def is_last(self, deliveries: int) -> bool:
        """Return whether no delivery follows that with this number."""
        return 0 < self.limit <= deliveries

    def is_exhausted(self, seq: int) -> bool:
        """Return whether the job is to be a dead letter."""
        job = self.touched.get(seq)
        return job is not None and job.lease is None and not job.free_at and self.is_last(job.deliveries)

    def state_of(self, seq: int) -> JobState:
        """The state of a live job."""
        job = self.touched.get(seq)
        if job is None:
            return "delayed" if self.topic.log.written.live[seq].ready_at and seq not in self.due else "ready"
        if job.lease is not None:
            return "in_flight"
        if job.free_at:
            return "delayed"
        return "exhausted" if self.is_last(job.deliveries) else "ready"

    def by_state(self) -> dict[JobState, list[int]]:
        """The jobs that readers see."""
        head = self.topic.log.view.head
        found: dict[JobState, list[int]] = {state: [] for state in STATES}
        for seq in self.topic.log.written.live:
            if seq <= head:
                found[self.state_of(seq)].append(seq)
        return found

    def lease(self, seq: int) -> Lease | None:
        """The lease of a job, also of one that the log has lost."""
        job = self.touched.get(seq)
        return self.gone.get(seq) if job is None else job.lease

    @property
    def leases(self) -> dict[int, Lease]:
        """All of them."""
        return {seq: job.lease for seq, job in self.touched.items() if job.lease is not None} | self.gone

    @property
    def soonest(self) -> int | None:
        """The time at which the next job becomes free unless it is settled first."""
        moments = [job.lease.deadline + 1 for job in self.touched.values() if job.lease is not None]
        moments += [job.free_at for job in self.touched.values() if job.free_at]
        for seq, rec in self.topic.log.written.live.items():
            if rec.ready_at and seq not in self.due and seq not in self.touched:
                moments.append(rec.ready_at)
        return min(moments, default=None)

    def check(self, counters: QueueCounters, listed: Callable[[JobState], Iterable[JobView]]) -> None:
        """Every job that readers see is counted and listed once, as what it is."""
        name, live, states = self.topic.name, self.topic.log.written.live, self.by_state()
        expected = QueueCounters(
            **{state: len(seqs) for state, seqs in states.items()},
            dead_lettered=self.dead_lettered,
            retrying=sum(seq in self.touched for seq in states["delayed"]),
        )
        demand(counters == expected, f"{name} counts {counters}, not {expected}")
        for state, seqs in states.items():
            found = [
                (
                    read(view.block, view.position), view.state, view.deliveries, view.priority, view.node,
                    view.deadline, view.ready_at,
                    tuple(Attempt(*astuple(attempt)) for attempt in view.attempts),
                )
                for view in listed(state)
            ]  # fmt: skip
            wanted = []
            for seq in seqs:
                rec, job = live[seq], self.touched.get(seq, _FRESH)
                lease = (job.lease.node, job.lease.deadline) if job.lease else (None, None)
                ready_at = (rec.ready_at if job is _FRESH else job.free_at) if state == "delayed" else None
                wanted.append((rec, state, job.deliveries, rec.priority, *lease, ready_at, job.told))
            if found != wanted:  # the text of it takes longer than the comparison
                demand(False, f"{name} lists {found} as {state}, not {wanted}")

    # -------------------------------------------------------------------- claims

    def deal(self, wants: Sequence[int]) -> list[list[int]]:
        """The jobs of each claim, one in turn: those given back first, then by priority, then by seq."""
        ready, live = self.by_state()["ready"], self.topic.log.written.live
        order = [seq for seq in ready if seq in self.touched]
        order += sorted((seq for seq in ready if seq not in self.touched), key=lambda seq: (-live[seq].priority, seq))
        hands: list[list[int]] = [[] for _ in wants]
        while order and (hungry := [hand for hand, most in zip(hands, wants, strict=True) if len(hand) < most]):
            for hand, seq in zip(hungry, order, strict=False):
                hand.append(seq)
            del order[: len(hungry)]
        return [sorted(hand) for hand in hands]

    def claimed(self, requests: Sequence[ClaimRequest], replies: Sequence[ClaimReply], now: int) -> list[int]:
        """Check a pass of claims, and lease the jobs; returns those that were delivered before."""
        live = self.topic.log.written.live
        hands = self.deal([request.max for request in requests])
        for request, reply, hand in zip(requests, replies, hands, strict=True):
            given = self.topic.config.lease_ms if request.lease_ms is None else request.lease_ms
            deadline = now + _lease_ms(given)
            before = [self.touched.get(seq, _FRESH) for seq in hand]
            wanted = [
                (seq, live[seq], job.deliveries + 1, deadline, self.is_last(job.deliveries + 1))
                for seq, job in zip(hand, before, strict=True)
            ]
            found = [
                (job.seq, read(job.block, job.position), job.deliveries, job.deadline, job.is_last)
                for job in reply.jobs
            ]
            if found != wanted:
                demand(False, f"{request.node} gets {found} of {self.topic.name}, not {wanted}")
            for job, was in zip(reply.jobs, before, strict=True):
                demand(job.lease_id not in self._tokens, "a token is given out twice")
                self._tokens.add(job.lease_id)
                lease = Lease(request.node, job.lease_id, deadline)
                self.touched[job.seq] = Touched(job.deliveries, lease, attempts=was.attempts)
        taken = [seq for hand in hands for seq in hand]
        self._write(taken)
        left = len(self.by_state()["ready"])
        told = [reply.ready for reply in replies]
        demand(told == [left] * len(replies), f"claims are told that {told} jobs are left, not {left}")
        return [seq for seq in taken if self.touched[seq].deliveries > 1]

    # ---------------------------------------------------------------- settlement

    def holds(self, seq: int, node: str | None, token: str) -> bool:
        """Return whether `node` (None: anyone) holds the job, under this token if one is given."""
        lease = self.lease(seq)
        return lease is not None and node in (None, lease.node) and token in ("", lease.token)

    def settling(self, call: str, request: SettleRequest, now: int) -> tuple[list[int], list[int]]:
        """The seqs that a call will settle, and those that it will skip."""
        done: list[int] = []
        skipped: list[int] = []
        reasons: dict[int, str] = {}
        columns = (request.lease_ids or [""] * len(request.seqs), request.reasons or [""] * len(request.seqs))
        for seq, token, reason in zip(request.seqs, *columns, strict=True):
            holds = seq not in done and self.holds(seq, request.node, token)
            (done if holds else skipped).append(seq)
            reasons.setdefault(seq, reason)
        self.ending = {}
        if call == "extend":
            skipped = [seq for seq in skipped if seq not in done]
        elif call == "nack":
            free_at = now + min(request.delay_ms, _DAY_MS) if request.delay_ms else 0
            for seq in done:
                if (job := self.touched.get(seq)) is not None:
                    self.ending[seq] = self._ended(job, request.mode == "release", now, free_at, reasons[seq])
        return done, skipped

    def settled(
        self, call: str, request: SettleRequest, done: Sequence[int], skipped: Sequence[int], reply: SettleReply,
        now: int,
    ) -> list[int]:  # fmt: skip
        """Check the outcome of a call, and settle; returns the jobs that it changed and that the log still has."""
        found = (reply.done, reply.skipped)
        demand(found == (len(done), skipped), f"{call} of {request.seqs} does {found}, not {done} without {skipped}")
        live = [seq for seq in done if seq not in self.gone]
        deadline = now + _lease_ms(request.lease_ms)
        for seq in done:
            lease = self.gone.pop(seq, None)
            if call == "extend":
                if lease is not None:
                    self.gone[seq] = replace(lease, deadline=deadline)
                else:
                    job = self.touched[seq]
                    assert job.lease is not None
                    self.touched[seq] = replace(job, lease=replace(job.lease, deadline=deadline))
            elif call == "ack" and lease is None:
                del self.touched[seq]
        if call == "extend":
            demand(reply.deadlines == dict.fromkeys(done, deadline), f"leases end at {reply.deadlines}, not {deadline}")
        if call == "nack":
            moved = sorted(seq for seq in live if seq not in self.touched)
            demand(sorted(reply.dead_lettered) == moved, f"{reply.dead_lettered} are called letters, and {moved} are")
            self._give_back()
            spent = [seq for seq in done if self.is_exhausted(seq)]
            demand(reply.exhausted == spent, f"{reply.exhausted} are called exhausted, and {spent} are")
        self._write(live)
        return live

    def check_counts(self, reply: SettleReply) -> None:
        """A call tells what is left, once it is done."""
        states = self.by_state()
        found, wanted = (reply.ready, reply.in_flight), (len(states["ready"]), len(states["in_flight"]))
        demand(found == wanted, f"{found} jobs of {self.topic.name} are told to be ready and in flight, not {wanted}")

    def releasing(self, held: Mapping[int, str], now: int) -> list[int]:
        """The seqs that are given back when a connection that held these tokens ends."""
        mine = [seq for seq, token in held.items() if token and self.holds(seq, None, token)]
        jobs = {seq: self.touched[seq] for seq in mine if seq in self.touched}
        self.ending = {seq: job.failed(now, "connection ended") for seq, job in jobs.items()}
        return mine

    def released(self, mine: Iterable[int]) -> None:
        """They are."""
        for seq in mine:
            self.gone.pop(seq, None)
        self._write(self._give_back())

    # -------------------------------------------------------------- dead letters

    def to_move(self) -> list[int]:
        """The jobs that a search for exhausted ones finds."""
        return [seq for seq in sorted(self.touched) if self.is_exhausted(seq) and seq not in self.aside]

    def must_move(self, now: int) -> bool:
        """Return whether a claim has to try to move some."""
        return bool(self.to_move()) and now >= self.stuck_until

    @property
    def last_ending(self) -> list[int]:
        """Those of the jobs about to be given back that get no further delivery."""
        return sorted(seq for seq, job in self.ending.items() if self.is_last(job.deliveries))

    def moving(self, seqs: Sequence[int], now: int, *, ends: bool) -> None:
        """The engine tries to move these, in a call that gives them back if it `ends` their delivery."""
        wanted = self.last_ending if ends else self.to_move()
        demand(list(seqs) == wanted, f"jobs {seqs} of {self.topic.name} are to become letters, not {wanted}")
        demand(now >= self.stuck_until, f"{self.topic.name} tries again at {now}, not at {self.stuck_until}")
        self.moves += 1

    def refused(self, first: int, code: str, now: int) -> None:
        """The move was refused: the next one comes later each time; a job that never fits lets the others pass."""
        if code in ("record_too_large", "internal"):
            self.aside[first] = now + _BACKOFF_MAX_MS
        self.stuck_until = now + min(1000 << self.failures, _BACKOFF_MAX_MS)
        self.failures += 1

    def moved(self, letters: Mapping[int, Rec], *, ends: bool) -> None:
        """The log is about to lose these jobs, which were moved: `letters` are the records made of them."""
        live = self.topic.log.written.live
        for seq, letter in letters.items():
            self._check_letter(live[seq], letter, self.ending[seq] if ends else self.touched[seq])
            del self.touched[seq]
            self.rows.pop(seq, None)
        self.failures = 0
        self.dead_lettered += len(letters)
        if ends and self.topic.config.leases_durable:
            self.rows |= {seq: job for seq, job in self.ending.items() if seq not in letters}

    def _check_letter(self, rec: Rec, letter: Rec, job: Touched) -> None:
        demand(plain(letter) == plain(rec), f"job {rec} becomes letter {letter}")
        meta = json.loads(letter.meta or b"{}")
        *told, attempts = [meta.get(name) for name in STAMPS]
        stamps = [self.topic.name, str(self.topic.config.max_deliveries), str(rec.seq)]
        demand(told == stamps, f"a letter is stamped {told}, not {stamps}")
        found = [tuple(each.values()) for each in attempts or ()]
        wanted = [attempt[:4] for attempt in job.told]
        demand(found == wanted, f"a letter tells of the attempts {found}, not {wanted}")

    # ----------------------------------------------------------------- internals

    def _ended(self, job: Touched, released: bool, now: int, free_at: int, reason: str) -> Touched:
        if released:
            after = Touched(job.deliveries - 1, attempts=job.attempts)
        else:
            after = job.failed(now, reason, is_told=reason != "")
        return after if self.is_last(after.deliveries) else replace(after, free_at=free_at)

    def _give_back(self) -> list[int]:
        """End the deliveries of those jobs that were not moved."""
        left = [seq for seq in self.ending if seq in self.touched]
        self.touched |= {seq: self.ending[seq] for seq in left}
        return left

    def _write(self, seqs: Iterable[int]) -> None:
        """These were written, if the config asks for it."""
        for seq in seqs:
            self.rows.pop(seq, None)
            if self.topic.config.leases_durable and seq in self.touched:
                self.rows[seq] = self.touched[seq]


def origin(rec: Rec) -> object:
    """The queue that a dead letter came from, None if it is not one."""
    return json.loads(rec.meta or b"{}").get(STAMPS[0])


def plain(rec: Rec) -> tuple[object, ...]:
    """The parts of a record that a move leaves as they are."""
    meta = json.loads(rec.meta or b"{}")
    for name in STAMPS:
        meta.pop(name, None)
    return rec.data, rec.tag, rec.node, meta


def _lease_ms(given: int) -> int:
    return max(100, min(given, _DAY_MS))
