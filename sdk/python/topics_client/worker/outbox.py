"""Outcomes of jobs on their way to the server, gathered into batches."""

import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple

from topics_client.worker.leases import Fate, Held

_MAX_BATCH: Final = 1000
_NAP_SECONDS: Final = 0.0001
_NAPS: Final = 5
_PARK_SECONDS: Final = 0.25
_PARK_PART: Final = 1 / 3  # of a lease


class Outcome(NamedTuple):
    """What to tell the server of a job."""

    fate: Fate
    delay_ms: int = 0


ACKED: Final = Outcome("acked")
RELEASED: Final = Outcome("released")
RELEASED_AT_LAST: Final = Outcome("released", 250)
"""With a delay, as this worker, which still has a stream but runs nothing any more, must not get the job once again."""

Groups = dict[Outcome, list[Held]]


class Outbox:
    """Any thread puts outcomes in, one takes them out.

    Jobs that can't run here are held for a moment before they are given back: each makes room at the server for another
    that can't run either. So they go round four times a second, and others get them, rather than as fast as can be.
    """

    def __init__(self, is_busy: Callable[[], object], *, clock: Callable[[], float] = time.monotonic) -> None:
        """`is_busy` says whether more outcomes may be about to come."""
        self._is_busy = is_busy
        self._clock = clock
        self._items: SimpleQueue[tuple[Held, Outcome | None] | None] = SimpleQueue()
        self._parked: list[Held] = []
        self._parked_until = 0.0

    def put(self, held: Held, outcome: Outcome) -> None:
        """Tell the server of a job, soon."""
        self._items.put((held, outcome))

    def give_back(self, held: Held) -> None:
        """Let others have a job that can't run here."""
        self._items.put((held, None))

    def close(self) -> None:
        """Nothing is put any more. Usable from signal handlers, as `put` is."""
        self._items.put(None)

    def gather(self) -> tuple[Groups, bool]:
        """Wait for outcomes; those of one kind together, at most 1000, and whether there may be more later."""
        groups: Groups = {}
        try:
            item = self._items.get(timeout=max(0.0, self._parked_until - self._clock()) if self._parked else None)
        except Empty:
            self._unpark(groups, RELEASED)
            return groups, True
        count = naps = minimum = 0
        while item is not None:
            held, outcome = item
            if outcome is None:
                self._park(held)
            else:
                groups.setdefault(outcome, []).append(held)
            count += 1
            if count >= _MAX_BATCH:
                break
            while True:
                try:
                    item = self._items.get_nowait()
                    break
                except Empty:
                    if count < minimum or not self._is_busy() or naps == _NAPS:
                        return groups, True
                    # Handlers that run now may be done in a moment, as these were.
                    naps, minimum = naps + 1, count + 1
                    time.sleep(_NAP_SECONDS)
        if item is None:
            self._unpark(groups, RELEASED_AT_LAST)
        return groups, item is not None

    def _park(self, held: Held) -> None:
        if not self._parked:
            self._parked_until = self._clock() + min(_PARK_SECONDS, held.length * _PARK_PART)
        self._parked.append(held)

    def _unpark(self, groups: Groups, outcome: Outcome) -> None:
        if self._parked:
            groups.setdefault(outcome, []).extend(self._parked)
            self._parked = []
