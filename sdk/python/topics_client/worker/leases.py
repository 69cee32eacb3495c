"""The leases that a worker holds: which jobs may run, which leases are to be extended, which are lost. No I/O."""

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
    """How far a delivery has come."""

    ACCEPTED = auto()
    RUNNING = auto()
    SETTLING = auto()
    """Its handler is done."""
    RETURNING = auto()
    """It was never begun."""
    GONE = auto()


class Held:
    """One delivery of a job, from its arrival until it is known what became of it. Guarded by the lock of Leases."""

    __slots__ = ("ends", "extended", "is_over", "job", "length", "reason", "stage")

    def __init__(self, job: Job, stage: Stage, length: float, now: float) -> None:
        self.job = job
        self.stage = stage
        self.length = length
        self.extended = now
        self.ends = now + length
        self.reason = ""
        """Why its handler failed, for the server to keep."""
        self.is_over = (
            False  # the lease is not ours any more, or was given up: the handler's outcome counts for nothing
        )


class Leases:
    """All deliveries of one worker; usable by any thread. Times are of `clock`, in seconds.

    A job runs only while one of `slots` is free. There is none for it if handlers still run whose jobs were lost, or
    once the worker is closed; nor does one job run twice at a time.
    """

    def __init__(self, slots: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._slots = slots
        self._clock = clock
        self._lock = Lock()
        self._held: dict[int, Held] = {}  # by seq: what runs, or is to be extended
        self._aside: set[Held] = set()  # the others that are not settled yet
        self._busy = 0
        self._unsettled = 0
        self._taken = 0
        self._fates: Counter[Fate] = Counter()
        self._is_closed = False
        self._doubted = -math.inf  # when all of them were last in doubt

    # ------------------------------------------------------------ a job's way

    def take(self, jobs: Iterable[Job], length: float) -> tuple[list[Held], list[Held], list[Held]]:
        """Jobs have come, under leases of `length` seconds: those to run, those to give back, those found to be lost.

        The lost ones are earlier deliveries of the same jobs whose handlers run still.
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
                    self._aside.add(before)  # it was given back, and the answer to that is on its way
                self._busy += 1
                held = self._held[job.seq] = Held(job, Stage.ACCEPTED, length, now)
                accepted.append(held)
            self._aside.update(refused)
        return accepted, refused, lost

    def begin(self, held: Held) -> bool:
        """Its handler is about to be called; False: it is not to be."""
        with self._lock:
            if held.stage is not Stage.ACCEPTED or held.is_over:
                return False
            held.stage = Stage.RUNNING
            return True

    def finish(self, held: Held) -> bool:
        """Its handler is done; whether the outcome counts, and is to be settled."""
        with self._lock:
            self._busy -= 1
            if held.is_over:
                self._forget(held)
                return False
            held.stage = Stage.SETTLING
            return True

    def settled(self, batch: Iterable[Held], fate: Fate, skipped: Collection[int] = ()) -> list[Held]:
        """The server has answered; those whose leases turned out to be lost."""
        lost = list[Held]()
        with self._lock:
            for held in batch:
                if held.stage in (Stage.GONE, Stage.RUNNING):
                    continue  # abandoned, or left: that counts already
                if held.job.seq in skipped:
                    self._lose(held, lost)
                else:
                    self._fates[fate] += 1
                self._forget(held)
        return lost

    # --------------------------------------------------------------- extending

    def due(self) -> list[Held]:
        """Those whose leases are to be extended now; `extended` or `recheck` tells of the call."""
        with self._lock:
            now = self._clock()
            return [
                held
                for held in self._held.values()
                if not held.is_over and now - held.extended >= held.length * _EXTENDED_AT
            ]

    def extended(self, batch: Iterable[Held], skipped: Collection[int], length: float, sent: float) -> list[Held]:
        """A call that was sent at `sent` has extended them; those that turned out to be lost."""
        lost = list[Held]()
        with self._lock:
            for held in batch:
                if held.job.seq not in skipped:
                    held.length, held.ends = length, sent + length
                    held.extended = sent if sent >= self._doubted else -math.inf  # it tells of the time before
                elif held.stage in (Stage.ACCEPTED, Stage.RUNNING):  # else an ack or a nack was faster
                    self._lose(held, lost)
        return lost

    def recheck(self) -> None:
        """They may all be lost: the next `due` gives each."""
        with self._lock:
            self._doubted = self._clock()
            for held in self._held.values():
                held.extended = -math.inf

    def lost(self, job: Job) -> bool:
        """Whether this delivery is the worker's no longer, for all that is known here."""
        held = self._held.get(job.seq)
        return held is None or held.job.lease_id != job.lease_id or held.is_over or self._clock() > held.ends

    # ------------------------------------------------------------- the end

    def close(self) -> list[Held]:
        """No handler is called from now on; those that were about to be, to give back."""
        with self._lock:
            self._is_closed = True
            unbegun = [held for held in self._held.values() if held.stage is Stage.ACCEPTED and not held.is_over]
            for held in unbegun:
                held.stage = Stage.RETURNING
                self._busy -= 1
            return unbegun

    def leave(self) -> list[Held]:
        """The time of the handlers that run is up: their jobs are given up, as `lost` tells them; to give back."""
        with self._lock:
            left = [held for held in self._held.values() if held.stage is Stage.RUNNING and not held.is_over]
            for held in left:
                held.is_over = True
            self._fates["released"] += len(left)
            return left

    def abandon(self) -> int:
        """Nothing is settled any more; how many jobs were done, and may be done again for want of an ack."""
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
        """Whether no handler is called any more."""
        return self._is_closed

    @property
    def busy(self) -> int:
        """Slots that are taken."""
        return self._busy

    @property
    def unsettled(self) -> int:
        """Deliveries of which it is not known what became of them, or whose handlers still run."""
        return self._unsettled

    def counts(self) -> tuple[int, int, Counter[Fate]]:
        """Taken, busy, and what became of how many, at one moment."""
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
