"""Times at which something happens to jobs, kept without a timer for each."""

import heapq
from collections.abc import Callable, Iterator, Sequence

_SLACK = 1024


class Alarms:
    """A heap of times (ms) with the seqs that each is about.

    Entries are never taken out early: `holds(at, seq)` says whether one still counts. They are removed when they
    outnumber the live ones twice, so that the heap stays proportional.
    """

    def __init__(self, holds: Callable[[int, int], bool]) -> None:
        self._holds = holds
        self._heap: list[tuple[int, int, Sequence[int]]] = []  # time, serial number, seqs
        self._serial = 0
        self._size = 0
        self._max = _SLACK

    def set(self, at: int, seqs: Sequence[int]) -> None:
        """Add an entry for each of the seqs."""
        self._serial += 1
        heapq.heappush(self._heap, (at, self._serial, seqs))
        self._size += len(seqs)
        if self._size > self._max:
            kept = [
                (then, serial, [seq for seq in some if self._holds(then, seq)]) for then, serial, some in self._heap
            ]
            self._heap = [entry for entry in kept if entry[2]]
            heapq.heapify(self._heap)
            self._size = sum(len(some) for _, _, some in self._heap)
            self._max = 2 * self._size + _SLACK

    def until(self, now: int) -> Iterator[int]:
        """Take out the entries up to and including `now`; gives those that hold when they are reached."""
        while self._heap and self._heap[0][0] <= now:
            at, _, seqs = heapq.heappop(self._heap)
            self._size -= len(seqs)
            for seq in seqs:
                if self._holds(at, seq):
                    yield seq

    def next(self) -> int | None:
        """The time of the first entry that holds."""
        while self._heap:
            at, _, seqs = self._heap[0]
            if any(self._holds(at, seq) for seq in seqs):
                return at
            heapq.heappop(self._heap)
            self._size -= len(seqs)
        return None
