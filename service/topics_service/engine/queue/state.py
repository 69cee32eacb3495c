"""The state of one queue: held, returned, delayed and fresh jobs. No I/O, no timers, memory only for jobs under way.

A job is *touched* from its first delivery until it is done: it is in `jobs` and in exactly one of the sets `held`,
`free`, `delayed`, `exhausted` and `aside`. All others are found by their order: the schedule's levels, then the seqs
from the cursor on. Records removed from the log by others (`prune`) no longer count.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from pyroaring import BitMap64

from topics_service.engine.deletes import CHUNK_BITS, Deletes
from topics_service.engine.queue.alarms import Alarms
from topics_service.engine.queue.attempts import Attempt, remembered
from topics_service.engine.queue.leases import Delivery
from topics_service.engine.queue.schedule import Schedule
from topics_service.engine.snapshot import Snapshot

GONE_MAX = 10_000  # leases of jobs that the log has lost: their holders may still ack
_FREE = -1  # the level of jobs given back
_RUN = 4096  # how far ahead the fresh jobs are looked at


class Queue:
    """The lease state of one queue.

    Calls take `s`, the newest written state of the log, and `head`, the highest visible seq: invisible records are not
    handed out, nor are acked ones, though readers may still see them.
    """

    __slots__ = (
        "_delays",
        "_deletes",
        "_earliest",
        "_expiries",
        "_limit",
        "_taken",
        "_taken_from",
        "aside",
        "cursor",
        "dead_lettered",
        "delayed",
        "exhausted",
        "failures",
        "free",
        "gone",
        "held",
        "jobs",
        "last_error",
        "schedule",
        "stuck_until",
        "trash",
    )

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.cursor = 1
        """Seqs from here on were never handed out, but for scheduled ones."""
        self.jobs: dict[int, Delivery] = {}
        self.held = BitMap64()
        self.free = BitMap64()
        self.delayed = BitMap64()
        """Given back, to rest for a while."""
        self.exhausted = BitMap64()
        """Given back after the last delivery that `max_deliveries` allows: on the way to the dead letters."""
        self.aside = BitMap64()
        """Exhausted, too; their own move was refused, so that they let the others pass for a while."""
        self.gone: dict[int, Delivery] = {}
        """Leases of jobs that were deleted, evicted or expired since: a later ack of the holder counts."""
        self.dead_lettered = 0
        self.stuck_until = 0
        """Until then exhausted jobs stay where they are: moving them has failed."""
        self.failures = 0
        self.last_error: str | None = None
        self.trash: list[int] = []
        """Seqs whose rows cover nothing any more."""
        self._limit = 0
        self._expiries = Alarms(self._expires)
        self._delays = Alarms(self._rests)
        self._earliest = 1
        self._deletes = Deletes()
        self._taken: dict[int, int] = {}  # the level of the offered jobs, except fresh ones
        self._taken_from = 1

    # ----------------------------------------------------------------- counters

    def ready(self, s: Snapshot, head: int) -> int:
        """Return the number of claimable jobs."""
        live = s.count
        if head < s.head:
            live -= s.live_between(head + 1, s.head + 1)
        return live - len(self.held) - self.not_due(s, head) - self.spent

    def not_due(self, s: Snapshot, head: int) -> int:
        """Return the number of jobs that wait for their time: appended or given back with a delay."""
        waiting = self.schedule.waiting
        return len(self.delayed) + (len(waiting) if head >= s.head else waiting.range_cardinality(0, head + 1))

    @property
    def spent(self) -> int:
        """Return the number of exhausted jobs that have not become dead letters yet."""
        return len(self.exhausted) + len(self.aside)

    def oldest_ready(self, s: Snapshot, head: int) -> int | None:
        """Return the lowest claimable seq; None if there is none."""
        found = [self._first_fresh(s, head)]
        found += [_first_live(numbers, s, head) for numbers in (self.free, *self.schedule.levels.values())]
        return min((seq for seq in found if seq is not None), default=None)

    @property
    def in_flight(self) -> int:
        """Return the number of leased jobs."""
        return len(self.held)

    def next_due(self) -> int | None:
        """Return the time (ms) at which the next lease expires or delay ends; None if there is none."""
        expiry, end = self._expiries.next(), self._delays.next()
        due = [] if expiry is None else [expiry + 1]
        if end is not None:
            due.append(end)
        if self.schedule.soonest is not None:
            due.append(self.schedule.soonest)
        return min(due, default=None)

    def next_move(self, now: int) -> int | None:
        """Return the time (ms) of the next search for exhausted jobs that can move; None if nothing is pending."""
        if not self._limit:
            return None
        expiry, end = self._expiries.next(), self._delays.next()
        due = [] if expiry is None else [expiry + 1]
        if end is not None:
            due.append(end)
        if self.exhausted:
            due.append(max(now, self.stuck_until))
        return min(due, default=None)

    # --------------------------------------------------------- time and the log

    def sweep(self, now: int) -> None:
        """Take back expired leases (deadline < now) and end delays (<= now). O(changes)."""
        for seq in self._expiries.until(now - 1):
            if seq in self.jobs:
                self._expire(self.jobs[seq])
                self._file(seq)
            else:
                del self.gone[seq]
        for seq in self._delays.until(now):
            self._file(seq)
        self.schedule.advance(now)

    def limit(self, deliveries: int) -> bool:
        """Set the number of deliveries (0: unlimited) after which a returned job is exhausted, including jobs returned
        before, once their delay is over.

        Returns whether the limit has changed.
        """
        if deliveries == self._limit:
            return False
        self._limit = deliveries
        for seq in self.free | self.exhausted | self.aside:
            self._file(seq)
        return True

    def is_last(self, deliveries: int) -> bool:
        """Return whether the delivery with this number is the last one."""
        return 0 < self._limit <= deliveries

    def prune(self, s: Snapshot) -> None:
        """Forget jobs that the log has lost since the last call. O(lost jobs), or chunks of them if that is less.

        Held ones move to `gone`.
        """
        waiting = self.schedule.waiting
        sets = self._sets
        if s.earliest > self._earliest:
            for numbers in sets:
                if numbers and (first := numbers.min()) < s.earliest:
                    for seq in numbers & BitMap64(range(first, s.earliest)):
                        self._lost(seq)
            self.schedule.forget_below(s.earliest)
            self._earliest = s.earliest
        if s.deletes is not self._deletes:
            for base, marks in s.deletes.since(self._deletes):
                end = base + (1 << CHUNK_BITS)
                if sum(numbers.range_cardinality(base, end) for numbers in (*sets, waiting)) < len(marks):
                    within = BitMap64(range(base, end))
                    lost = [seq for numbers in sets for seq in numbers & within if seq - base in marks]
                    lost += [seq for seq in waiting & within if seq - base in marks]
                else:
                    lost = [base + mark for mark in marks]
                for seq in lost:
                    self._lost(seq)
            self._deletes = s.deletes

    def seen(self, s: Snapshot) -> None:
        """Note that the log's state is `s` by changes of the queue itself: there is nothing to prune."""
        self._earliest = s.earliest
        self._deletes = s.deletes

    # ------------------------------------------------------------------- claims

    def offer(self, s: Snapshot, head: int) -> Iterator[int]:
        """Yield the claimable jobs in the order of service: returned ones, then by priority, then by seq.

        Yielded jobs are taken: `grant` them, or `put_back` all of them.
        """
        self._taken = {}
        self._taken_from = self.cursor
        self.schedule.skip.remove_range(0, self.cursor)
        return self._offer(s, head)

    def put_back(self) -> None:
        """Put back all jobs that `offer` has yielded."""
        for seq, level in self._taken.items():
            (self.free if level == _FREE else self.schedule.levels[level]).add(seq)
        self.cursor = self._taken_from

    def grant(self, seqs: Sequence[int], node: str, tokens: Iterable[str], deadline: int) -> list[Delivery]:
        """Return the leases of taken jobs for `node`; `granted` applies them."""
        jobs, taken = self.jobs, self._taken
        deliveries = []
        for seq, token in zip(seqs, tokens, strict=True):
            before = jobs.get(seq)
            if before is None:
                deliveries.append(Delivery(node, token, deadline, 1, taken.get(seq, 0)))
            else:
                count = before.deliveries + 1
                deliveries.append(Delivery(node, token, deadline, count, before.priority, before.attempts))
        return deliveries

    def granted(self, seqs: Sequence[int], deliveries: Sequence[Delivery]) -> None:
        """Apply leases with one common deadline."""
        self.jobs.update(zip(seqs, deliveries, strict=True))
        self.held.update(seqs)
        self._expiries.set(deliveries[0].deadline, seqs)

    # --------------------------------------------------------------- settlement

    def find(self, seq: int) -> Delivery | None:
        """Return the job's delivery, if it was delivered and is not done."""
        return self.jobs.get(seq) or self.gone.get(seq)

    def done(self, seqs: Iterable[int]) -> None:
        """Remove jobs that are acked or moved away."""
        for seq in seqs:
            if self.jobs.pop(seq, None) is None:
                self.gone.pop(seq, None)
            else:
                self._leave(seq)

    def give_back(self, ended: Mapping[int, Delivery], ready_at: int) -> None:
        """End the leases of jobs, whose delivery counts and attempts become these; they can be claimed again from
        `ready_at` on.

        0 means now. A job after its last delivery is exhausted at once.
        """
        later = []
        for seq, row in ended.items():
            delivery = self.jobs.get(seq)
            if delivery is None:
                self.gone.pop(seq, None)
                continue
            delivery.deliveries, delivery.attempts = row.deliveries, row.attempts
            if not ready_at or self.is_last(row.deliveries):
                self._file(seq)
                continue
            self._rest(seq, self.delayed, ready_at)
            later.append(seq)
        if later:
            self._delays.set(ready_at, later)

    def set_aside(self, seq: int, until: int) -> None:
        """Set an exhausted job aside until a time (ms), so that others can move."""
        self._rest(seq, self.aside, until)
        self._delays.set(until, (seq,))

    def extend(self, seqs: Sequence[int], deadline: int) -> None:
        """Move the deadline of leases."""
        for seq in seqs:
            (self.jobs.get(seq) or self.gone[seq]).deadline = deadline
        if seqs:
            self._expiries.set(deadline, seqs)

    def restore(self, seq: int, delivery: Delivery, now: int) -> None:
        """Restore a live job from its row."""
        self.schedule.forget(seq)
        self.jobs[seq] = delivery
        if delivery.node is not None and now <= delivery.deadline:
            self.granted((seq,), (delivery,))
        elif delivery.node is None and now < delivery.deadline:
            self.delayed.add(seq)
            self._delays.set(delivery.deadline, (seq,))
        else:
            if delivery.node is not None:
                self._expire(delivery)
            self._file(seq)

    # ---------------------------------------------------------------- internals

    @staticmethod
    def _expire(delivery: Delivery) -> None:
        failed = Attempt(delivery.deliveries, delivery.deadline, delivery.node or "", "lease expired")
        delivery.attempts = remembered(delivery.attempts, failed)

    def _file(self, seq: int) -> None:
        """Add a touched job to the set that claims take it from."""
        self._leave(seq)
        delivery = self.jobs[seq]
        delivery.node, delivery.lease_id, delivery.deadline = None, "", 0
        (self.exhausted if self.is_last(delivery.deliveries) else self.free).add(seq)

    def _rest(self, seq: int, numbers: BitMap64, until: int) -> None:
        self._leave(seq)
        delivery = self.jobs[seq]
        delivery.node, delivery.lease_id, delivery.deadline = None, "", until
        numbers.add(seq)

    @property
    def _sets(self) -> tuple[BitMap64, ...]:
        return self.held, self.free, self.delayed, self.exhausted, self.aside

    def _leave(self, seq: int) -> None:
        for numbers in self._sets:
            numbers.discard(seq)

    def _lost(self, seq: int) -> None:
        self.schedule.waiting.discard(seq)
        delivery = self.jobs.pop(seq, None)
        if delivery is None:
            return
        self._leave(seq)
        if delivery.node is not None:
            self.gone[seq] = delivery
            if len(self.gone) > GONE_MAX:
                del self.gone[next(iter(self.gone))]
        if len(self.trash) < GONE_MAX:
            self.trash.append(seq)

    def _expires(self, deadline: int, seq: int) -> bool:
        """Return whether an alarm belongs to a valid lease."""
        delivery = self.jobs.get(seq) or self.gone.get(seq)
        return delivery is not None and delivery.node is not None and delivery.deadline == deadline

    def _rests(self, end: int, seq: int) -> bool:
        """Return whether an alarm belongs to a pending delay."""
        return (seq in self.delayed or seq in self.aside) and self.jobs[seq].deadline == end

    def _offer(self, s: Snapshot, head: int) -> Iterator[int]:
        yield from self._drain(self.free, _FREE, s, head)
        for priority, level in self.schedule.levels.items():
            if priority:
                yield from self._drain(level, priority, s, head)
        due = self.schedule.levels.get(0)  # delayed once, no priority: by seq among the fresh ones
        while due and (seq := due.min()) <= head:
            yield from self._fresh(s, seq - 1)
            due.discard(seq)
            if s.is_live(seq):
                self._taken[seq] = 0
                yield seq
        yield from self._fresh(s, head)

    def _drain(self, numbers: BitMap64, level: int, s: Snapshot, head: int) -> Iterator[int]:
        while numbers and (seq := numbers.min()) <= head:
            numbers.discard(seq)
            if s.is_live(seq):
                self._taken[seq] = level
                yield seq

    def _first_fresh(self, s: Snapshot, last: int) -> int | None:
        at = max(self.cursor, s.earliest)
        while at <= last:
            live = s.first_live(at)
            at = self.schedule.first_unscheduled(live, last + 1)
            if at == live and live <= last:
                return live
        return None

    def _fresh(self, s: Snapshot, last: int) -> Iterator[int]:
        """Yield the jobs from the cursor up to `last` that are served in order of seqs."""
        skip = self.schedule.skip
        self.cursor = max(self.cursor, s.earliest)
        while self.cursor <= last:
            live = s.first_live(self.cursor)
            self.cursor = at = self.schedule.first_unscheduled(live, last + 1)  # seqs below are never fresh again
            if at != live:
                continue
            gap = s.next_gap(at)
            stop = min(last + 1 if gap is None else gap.start, last + 1, at + _RUN)
            stop = s.deletes.first_marked(at, stop)
            while at < stop and at not in skip:
                self.cursor = at + 1
                yield at
                at += 1


def _first_live(numbers: BitMap64, s: Snapshot, last: int) -> int | None:
    at = 0
    while (rank := numbers.rank(at - 1) if at else 0) < len(numbers):
        seq = int(numbers[rank])
        if seq > last:
            return None
        at = s.first_live(seq)
        if at == seq:
            return seq
    return None
