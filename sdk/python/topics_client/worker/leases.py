"""The leases that a worker holds: jobs that may run, leases to extend, and lost leases. No I/O."""

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from enum import Enum, auto
from threading import Lock
from typing import Final, Literal

from topics_client.models import Job

Fate = Literal["acked", "retried", "given_up", "released", "lost"]
_EXTENDED_AT: Final = 1 / 6
"""The age, as a part of its length, from which a lease is extended. The renewer checks as often: none gets past 1/3."""


class Stage(Enum):
    """The stage of a delivery."""

    ACCEPTED = auto()
    RUNNING = auto()
    SETTLING = auto()
    """The handler is done."""
    RETURNING = auto()
    """The handler was never started."""
    GONE = auto()


class Held:
    """One delivery of a job, from its arrival until its outcome is known. Guarded by the lock of Leases."""

    __slots__ = ("ends", "extended", "is_over", "job", "length", "reason", "stage")

    def __init__(self, job: Job, stage: Stage, length: float, now: float) -> None:
        self.job = job
        self.stage = stage
        self.length = length
        self.extended = now
        self.ends = now + length
        self.reason = ""
        """The reason of a failed handler, to be stored by the server."""
        self.is_over = (
            False  # the lease is not ours any more, or was given up: the handler's outcome counts for nothing
        )


class Leases:
    """All deliveries of one worker. Thread-safe. Times are of `clock`, in seconds.

    A job runs only if one of `slots` is free. Running handlers whose jobs were lost still occupy slots, and a closed
    worker has none. No job runs twice at the same time.
    """

    def __init__(self, slots: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._slots = slots
        self._clock = clock
        self._lock = Lock()
        self._held: dict[int, Held] = {}  # by seq: running, or to be extended
        self._aside: set[Held] = set()  # the other unsettled ones
        self._busy = 0
        self._unsettled = 0
        self._taken = 0
        self._fates: Counter[Fate] = Counter()
        self._is_closed = False
        self._doubted = -math.inf  # when all were last rechecked

    # ----------------------------------------------------------- life of a job

    def take(self, jobs: Iterable[Job], length: float) -> tuple[list[Held], list[Held], list[Held]]:
        """Add received jobs, under leases of `length` seconds. Returns the jobs to run, to return, and found to be
        lost.

        The lost ones are earlier deliveries of the same jobs whose handlers are still running.
        """
        accepted, refused, lost = [], [], list[Held]()
        with self._lock:
            now = self._clock()
            for job in jobs:
                self._taken += 1
                self._unsettled += 1
                before = self._held.get(job.seq)
                if before is not None and before.stage in (Stage.ACCEPTED, Stage.RUNNING):
                    self._lose(before, lost)
                runs_still = before is not None and before.stage is Stage.RUNNING
                if self._is_closed or self._busy >= self._slots or runs_still:
                    refused.append(Held(job, Stage.RETURNING, length, now))
                    continue
                if before is not None and before.stage is not Stage.GONE:
                    self._aside.add(before)  # it was returned, and the response is in transit
                self._busy += 1
                held = self._held[job.seq] = Held(job, Stage.ACCEPTED, length, now)
                accepted.append(held)
            self._aside.update(refused)
        return accepted, refused, lost

    def begin(self, held: Held) -> bool:
        """Mark a job as running. Returns False if its handler must not be called."""
        with self._lock:
            if held.stage is not Stage.ACCEPTED or held.is_over:
                return False
            held.stage = Stage.RUNNING
            return True

    def finish(self, held: Held) -> bool:
        """Mark a handler as done. Returns True if the outcome is valid and is to be sent."""
        with self._lock:
            self._busy -= 1
            if held.is_over:
                self._forget(held)
                return False
            held.stage = Stage.SETTLING
            return True

    def settled(self, batch: Iterable[Held], fate: Fate, skipped: Collection[int] = ()) -> list[Held]:
        """Record the server's response. Returns the jobs whose leases turned out to be lost."""
        lost = list[Held]()
        with self._lock:
            for held in batch:
                if held.stage in (Stage.GONE, Stage.RUNNING):
                    continue  # abandoned, or left: already counted
                if held.job.seq in skipped:
                    self._lose(held, lost)
                else:
                    self._fates[fate] += 1
                self._forget(held)
        return lost

    # --------------------------------------------------------------- extending

    def due(self) -> list[Held]:
        """The jobs whose leases are to be extended now; report the result to `extended` or `recheck`."""
        with self._lock:
            now = self._clock()
            return [
                held
                for held in self._held.values()
                if not held.is_over and now - held.extended >= held.length * _EXTENDED_AT
            ]

    def extended(self, batch: Iterable[Held], skipped: Collection[int], length: float, sent: float) -> list[Held]:
        """Record an extension sent at `sent`. Returns the jobs that turned out to be lost."""
        lost = list[Held]()
        with self._lock:
            for held in batch:
                if held.job.seq not in skipped:
                    held.length, held.ends = length, sent + length
                    held.extended = sent if sent >= self._doubted else -math.inf  # it is older than the recheck
                elif held.stage in (Stage.ACCEPTED, Stage.RUNNING):  # otherwise an ack or nack came first
                    self._lose(held, lost)
        return lost

    def recheck(self) -> None:
        """Make all leases due at once, as they may be lost."""
        with self._lock:
            self._doubted = self._clock()
            for held in self._held.values():
                held.extended = -math.inf

    def lost(self, job: Job) -> bool:
        """Return True if the worker no longer holds this delivery, as far as is known locally."""
        held = self._held.get(job.seq)
        return held is None or held.job.lease_id != job.lease_id or held.is_over or self._clock() > held.ends

    # ---------------------------------------------------------------- shutdown

    def close(self) -> list[Held]:
        """Stop starting handlers. Returns the jobs that were waiting, to be returned."""
        with self._lock:
            self._is_closed = True
            unbegun = [held for held in self._held.values() if held.stage is Stage.ACCEPTED and not held.is_over]
            for held in unbegun:
                held.stage = Stage.RETURNING
                self._busy -= 1
            return unbegun

    def leave(self) -> list[Held]:
        """Give up the running handlers at the end of their time, which `lost` reports to them. Returns their jobs."""
        with self._lock:
            left = [held for held in self._held.values() if held.stage is Stage.RUNNING and not held.is_over]
            for held in left:
                held.is_over = True
            self._fates["released"] += len(left)
            return left

    def abandon(self) -> int:
        """Give up all jobs. Returns the number of finished jobs without an ack, which may be processed again."""
        with self._lock:
            self._is_closed = True
            undone = 0
            for held in [*self._held.values(), *self._aside]:
                if not held.is_over:
                    held.is_over = True
                    undone += held.stage is Stage.SETTLING
                    self._fates["lost" if held.stage is Stage.SETTLING else "released"] += 1
                self._busy -= held.stage is Stage.ACCEPTED
                if held.stage is not Stage.RUNNING:
                    self._forget(held)
            return undone

    # --------------------------------------------------------------- counts

    @property
    def is_closed(self) -> bool:
        """True once no more handlers are started."""
        return self._is_closed

    @property
    def busy(self) -> int:
        """The number of occupied slots."""
        return self._busy

    @property
    def unsettled(self) -> int:
        """The number of deliveries with an unknown outcome or a running handler."""
        return self._unsettled

    def counts(self) -> tuple[int, int, Counter[Fate]]:
        """A consistent snapshot: jobs taken, busy slots, and the number of jobs by fate."""
        with self._lock:
            return self._taken, self._busy, Counter(self._fates)

    # -------------------------------------------------------------- internals

    def _lose(self, held: Held, lost: list[Held]) -> None:
        if held.is_over:
            return
        held.is_over = True
        self._fates["lost"] += 1
        lost.append(held)
        if held.stage is Stage.ACCEPTED:
            self._busy -= 1
            self._forget(held)

    def _forget(self, held: Held) -> None:
        held.stage = Stage.GONE
        self._unsettled -= 1
        self._aside.discard(held)
        if self._held.get(held.job.seq) is held:
            del self._held[held.job.seq]
