"""Outcomes of jobs to be sent to the server, gathered into batches."""

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
    """The outcome of a job."""

    fate: Fate
    delay_ms: int = 0


ACKED: Final = Outcome("acked")
RELEASED: Final = Outcome("released")
RELEASED_AT_LAST: Final = Outcome("released", 250)
"""With a delay, so that this worker, which still has a stream but runs nothing more, does not receive the job again."""

Groups = dict[Outcome, list[Held]]


class Outbox:
    """A queue of outcomes: filled by any thread, emptied by one.

    Jobs that can't run here are parked briefly before they are returned, as each makes room on the server for another
    that can't run either. They circulate four times a second, so that other workers get them, instead of in a busy
    loop.
    """

    def __init__(self, is_busy: Callable[[], object], *, clock: Callable[[], float] = time.monotonic) -> None:
        """`is_busy` returns True if more outcomes may follow soon."""
        self._is_busy = is_busy
        self._clock = clock
        self._items: SimpleQueue[tuple[Held, Outcome | None] | None] = SimpleQueue()
        self._parked: list[Held] = []
        self._parked_until = 0.0

    def put(self, held: Held, outcome: Outcome) -> None:
        """Add an outcome."""
        self._items.put((held, outcome))

    def give_back(self, held: Held) -> None:
        """Return a job that can't run here to the queue."""
        self._items.put((held, None))

    def close(self) -> None:
        """Signal the end of outcomes. Usable from signal handlers, as `put` is."""
        self._items.put(None)

    def gather(self) -> tuple[Groups, bool]:
        """Wait for outcomes. Returns up to 1000, grouped by kind, and True if more may follow."""
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
                    # Other running handlers may finish in a moment, too.
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
