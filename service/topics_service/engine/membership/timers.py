"""Alarms of many groups in one heap: putting one off costs nothing, and none is ever searched for."""

import heapq
from collections.abc import Callable

_MIN_STALE = 64


class Alarm:
    """Rings once at `due`, unless it is reset or cancelled before. Times are milliseconds of one clock."""

    __slots__ = ("_timers", "due", "queued", "ring")

    def __init__(self, timers: "Timers", ring: Callable[[], None]) -> None:
        self.due: int | None = None
        self.queued: int | None = None  # the time of its valid entry in the heap
        self.ring = ring
        self._timers = timers

    def set(self, due: int) -> None:
        """Ring at `due`, instead of any time set before."""
        if self.due is None:
            self._timers.alive += 1
        self.due = due
        if self.queued is None or due < self.queued:
            self._timers.push(self, due)

    def cancel(self) -> None:
        """Do not ring."""
        if self.due is not None:
            self.due = None
            self._timers.alive -= 1


class Timers:
    """All alarms; `alive` of them are set. Entries of cancelled ones are swept when they are the majority."""

    def __init__(self) -> None:
        self.alive = 0
        self._heap: list[tuple[int, int, Alarm]] = []
        self._serial = 0

    def __len__(self) -> int:
        """Return the number of heap entries."""
        return len(self._heap)

    def push(self, alarm: Alarm, due: int) -> None:
        """Queue the alarm for `due`; for `Alarm` only."""
        if len(self._heap) > 2 * self.alive + _MIN_STALE:
            self._sweep()
        self._serial += 1
        alarm.queued = due
        heapq.heappush(self._heap, (due, self._serial, alarm))

    def next_due(self) -> int | None:
        """Return the time of the next alarm; None without one."""
        while self._heap:
            due, _, alarm = self._heap[0]
            if alarm.due == due == alarm.queued:
                return due
            heapq.heappop(self._heap)
            if alarm.queued == due:
                alarm.queued = None
                if alarm.due is not None:
                    self.push(alarm, alarm.due)
        return None

    def tick(self, now: int) -> None:
        """Ring every alarm that is due at `now`, in the order of their times."""
        while (due := self.next_due()) is not None and due <= now:
            alarm = heapq.heappop(self._heap)[2]
            alarm.queued = None
            alarm.cancel()
            alarm.ring()

    def _sweep(self) -> None:
        kept = []
        for entry in self._heap:
            due, _, alarm = entry
            if alarm.queued != due:
                continue
            if alarm.due is None:
                alarm.queued = None
            else:
                kept.append(entry)
        heapq.heapify(kept)
        self._heap = kept
