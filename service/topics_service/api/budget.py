"""The memory of requests that are being received or served, over all connections. Pure."""

from collections import deque
from collections.abc import Callable
from typing import Protocol


class Share:
    """What the connections of one API key hold of it. `most` is how much they may; 0 is no limit of its own."""

    __slots__ = ("favoured", "most", "used", "waiting")

    def __init__(self, most: Callable[[], int]) -> None:
        self.most = most
        self.used = 0  # what waits for the memory of all too
        self.favoured: Waiter | None = None
        self.waiting: deque[tuple[Waiter, int]] = deque()

    def exceeds(self, size: int) -> bool:
        """Whether `size` more would be too much."""
        most = self.most()
        return bool(most) and self.used + size > most


class Waiter(Protocol):
    """A connection that waits for memory. `share` is that of its key; None without one."""

    @property
    def share(self) -> Share | None: ...

    def granted(self) -> None:
        """The bytes that were asked for are taken."""


class MemoryBudget:
    """Hands out `most` bytes, first come first served.

    One waiter at a time, the oldest, gets what it asks for beyond that: else connections that each hold a part of a
    request could wait for each other for ever. So at most one request more than `most` is held.

    A key has a share of it and no more, with one waiter beyond as well. Who waits for others of his own key waits
    apart, before he stands in line with everybody.
    """

    def __init__(self, most: int, told: Callable[[int], None] = lambda _: None) -> None:
        """`told` is told how much is handed out, whenever that changes."""
        self.most = most
        self._told = told
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

    @property
    def waiting(self) -> int:
        """Bytes that others wait for."""
        return sum(size for _, size in self._waiting)

    def take(self, waiter: Waiter, size: int) -> bool:
        """Take `size` bytes now; or False, and `waiter.granted` is called when they are taken."""
        share = waiter.share
        if share is not None and not self._take_share(share, waiter, size):
            share.waiting.append((waiter, size))
            return False
        return self._enter(waiter, size)

    def release(self, size: int, share: Share | None = None) -> None:
        """Give `size` bytes back, which were taken with that share."""
        self._add(-size)
        if share is not None:
            share.used -= size
            self._grant_share(share)
        self._grant()

    def adjust(self, size: int, share: Share | None = None) -> None:
        """Take a little more than was granted (or less): what arrived meanwhile."""
        self._add(size)
        if share is not None:
            share.used += size

    def complete(self, waiter: Waiter) -> None:
        """The request that `waiter` received is whole: it needs no favour any more. Its bytes stay taken."""
        if self._favoured is waiter:
            self._favoured = None
            self._grant()
        share = waiter.share
        if share is not None and share.favoured is waiter:
            share.favoured = None
            self._grant_share(share)

    def leave(self, waiter: Waiter) -> None:
        """The connection is gone; what it has taken it releases apart from this."""
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
        """Let `size` count in the share of the waiter's key, if there is room, or by favour."""
        if share.exceeds(size) and self._favoured is not waiter:  # whom everybody waits for, waits for nobody
            if share.favoured not in (None, waiter):
                return False
            share.favoured = waiter
        share.used += size
        return True

    def _enter(self, waiter: Waiter, size: int) -> bool:
        """Take `size` of the memory of all, or stand in line for it."""
        if self._used + size <= self.most and not self._waiting:
            self._add(size)
            return True
        if self._favoured is waiter or (self._favoured is None and not self._waiting):
            self._favoured = waiter
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
            if self._used + size > self.most:
                if self._favoured is not None:
                    return
                self._favoured = waiter
            self._waiting.popleft()
            self._add(size)
            waiter.granted()

    def _add(self, size: int) -> None:
        self._used += size
        self._told(self._used)
