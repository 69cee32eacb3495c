"""The memory of requests that are being received or served, over all connections."""

from collections import deque
from typing import Protocol

from topics_service.statistics import KafkaStatistics


class Waiter(Protocol):
    """A connection that waits for memory."""

    def granted(self) -> None:
        """The bytes that were asked for are taken."""


class FrameBudget:
    """Hands out `most` bytes, first come first served.

    One waiter at a time, the oldest, gets what it asks for beyond that: else connections that each hold a part of a
    request could wait for each other for ever. So at most one request more than `most` is held.
    """

    def __init__(self, most: int, statistics: KafkaStatistics) -> None:
        self._most = most
        self._statistics = statistics
        self._used = 0
        self._waiting: deque[tuple[Waiter, int]] = deque()
        self._favoured: Waiter | None = None

    @property
    def used(self) -> int:
        """Bytes that are handed out."""
        return self._used

    @property
    def is_short(self) -> bool:
        """Whether somebody waits."""
        return bool(self._waiting)

    def take(self, waiter: Waiter, size: int) -> bool:
        """Take `size` bytes now; or False, and `waiter.granted` is called when they are taken."""
        if self._used + size <= self._most and not self._waiting:
            self._add(size)
            return True
        if self._favoured is waiter or (self._favoured is None and not self._waiting):
            self._favoured = waiter
            self._add(size)
            return True
        self._waiting.append((waiter, size))
        return False

    def release(self, size: int) -> None:
        """Give `size` bytes back."""
        self._add(-size)
        self._grant()

    def adjust(self, size: int) -> None:
        """Take a little more than was granted (or less): what arrived meanwhile."""
        self._add(size)

    def complete(self, waiter: Waiter) -> None:
        """The request that `waiter` received is whole: it needs no favour any more. Its bytes stay taken."""
        if self._favoured is waiter:
            self._favoured = None
            self._grant()

    def leave(self, waiter: Waiter) -> None:
        """The connection is gone; what it has taken it releases apart from this."""
        self._waiting = deque(entry for entry in self._waiting if entry[0] is not waiter)
        self.complete(waiter)
        self._grant()

    def _grant(self) -> None:
        while self._waiting:
            waiter, size = self._waiting[0]
            if self._used + size > self._most:
                if self._favoured is not None:
                    return
                self._favoured = waiter
            self._waiting.popleft()
            self._add(size)
            waiter.granted()

    def _add(self, size: int) -> None:
        self._used += size
        self._statistics.frame_bytes = self._used
