"""Memory budget for requests being received or served, over all connections. Pure."""

from collections import deque
from collections.abc import Callable
from typing import Protocol


class Share:
    """Memory held by the connections of one API key, at most `max_bytes()`; 0 means no separate limit."""

    __slots__ = ("__weakref__", "max_bytes", "prioritized", "used", "waiting")

    def __init__(self, max_bytes: Callable[[], int]) -> None:
        self.max_bytes = max_bytes
        self.used = 0  # including bytes that wait for the shared memory
        self.prioritized: Waiter | None = None
        self.waiting: deque[tuple[Waiter, int]] = deque()

    def exceeds(self, size: int) -> bool:
        """True if `size` more bytes would exceed the limit."""
        maximum = self.max_bytes()
        return bool(maximum) and self.used + size > maximum


class Waiter(Protocol):
    """A connection that waits for memory. `share` is its key's, None without a key."""

    @property
    def share(self) -> Share | None: ...

    def granted(self) -> None:
        """The requested bytes have been taken."""


class MemoryBudget:
    """Grants up to `max_bytes` in order of arrival.

    One waiter at a time, the oldest, may exceed that; otherwise connections that each hold a part of
    a request could wait for each other forever. So the budget is exceeded by at most one request.

    A key is limited to its share, again with one waiter beyond it. Waiters for their key's share wait separately,
    before they join the common queue.
    """

    def __init__(self, max_bytes: int, on_change: Callable[[int], None] = lambda _: None) -> None:
        """`on_change` is called with the bytes in use whenever they change."""
        self.max_bytes = max_bytes
        self._on_change = on_change
        self._used = 0
        self._waiting: deque[tuple[Waiter, int]] = deque()
        self._prioritized: Waiter | None = None

    @property
    def used(self) -> int:
        """Bytes in use."""
        return self._used

    @property
    def is_short(self) -> bool:
        """True while a connection waits."""
        return bool(self._waiting)

    @property
    def waiting(self) -> int:
        """Bytes that connections wait for."""
        return sum(size for _, size in self._waiting)

    def take(self, waiter: Waiter, size: int) -> bool:
        """Take `size` bytes now, or return False and call `waiter.granted` once they are taken."""
        share = waiter.share
        if share is not None and not self._take_share(share, waiter, size):
            share.waiting.append((waiter, size))
            return False
        return self._enter(waiter, size)

    def release(self, size: int, share: Share | None = None) -> None:
        """Release `size` bytes that were taken with `share`."""
        self._add(-size)
        if share is not None:
            share.used -= size
            self._grant_share(share)
        self._grant()

    def adjust(self, size: int, share: Share | None = None) -> None:
        """Correct a grant by the few bytes that arrived since."""
        self._add(size)
        if share is not None:
            share.used += size

    def complete(self, waiter: Waiter) -> None:
        """End the priority of `waiter`, whose request is complete. Its bytes stay taken."""
        if self._prioritized is waiter:
            self._prioritized = None
            self._grant()
        share = waiter.share
        if share is not None and share.prioritized is waiter:
            share.prioritized = None
            self._grant_share(share)

    def leave(self, waiter: Waiter) -> None:
        """Remove a closed connection, which releases its bytes separately."""
        share = waiter.share
        if share is not None:
            share.used -= sum(size for each, size in self._waiting if each is waiter)
            share.waiting = deque(entry for entry in share.waiting if entry[0] is not waiter)
        self._waiting = deque(entry for entry in self._waiting if entry[0] is not waiter)
        self.complete(waiter)
        self._grant()
        if share is not None:
            self._grant_share(share)

    def _take_share(self, share: Share, waiter: Waiter, size: int) -> bool:
        """Count `size` in the share of the waiter's key, if it fits or the waiter has priority."""
        if share.exceeds(size) and self._prioritized is not waiter:  # it must not wait: all others wait for it
            if share.prioritized not in (None, waiter):
                return False
            share.prioritized = waiter
        share.used += size
        return True

    def _enter(self, waiter: Waiter, size: int) -> bool:
        """Take `size` bytes of the shared memory, or queue for them."""
        if self._used + size <= self.max_bytes and not self._waiting:
            self._add(size)
            return True
        if self._prioritized is waiter or (self._prioritized is None and not self._waiting):
            self._prioritized = waiter
            self._add(size)
            return True
        self._waiting.append((waiter, size))
        return False

    def _grant_share(self, share: Share) -> None:
        while share.waiting and self._take_share(share, *share.waiting[0]):
            waiter, size = share.waiting.popleft()
            if self._enter(waiter, size):
                waiter.granted()

    def _grant(self) -> None:
        while self._waiting:
            waiter, size = self._waiting[0]
            if self._used + size > self.max_bytes:
                if self._prioritized is not None:
                    return
                self._prioritized = waiter
            self._waiting.popleft()
            self._add(size)
            waiter.granted()

    def _add(self, size: int) -> None:
        self._used += size
        self._on_change(self._used)
