"""A protocol that parses what it receives in slices, so that other connections are served in between."""

import asyncio
from typing import ClassVar, Final

from topics_net.loop_budget import LoopBudget

# A read of 256 KiB may hold 43,000 chunks of a byte, 15,000 frames or 6,700 requests, a quarter of a second of work:
# the messages, chunks or frames that are parsed in one step.
BUSY: Final = 64


class SlicedProtocol(asyncio.Protocol):
    """Base of a protocol that implements `_feed`; it may override `_is_blocked` and `_is_full`.

    After a step of much work the rest of the input waits in the queue of `loop_budget`. Slices become larger and
    smaller with the work that was in the one before.
    """

    FIRST_BYTES: ClassVar[int] = 16384
    MIN_BYTES: ClassVar[int] = 2048
    MAX_BYTES: ClassVar[int] = 65536

    def __init__(self, loop_budget: LoopBudget) -> None:
        self.transport: asyncio.Transport
        self._loop_budget = loop_budget
        self._backlog = bytearray()  # received, not parsed yet
        self._slice = self.FIRST_BYTES
        self._is_queued = False
        self._is_paused = False
        self._ended = False  # further input is dropped

    def data_received(self, data: bytes) -> None:
        if self._ended:
            return
        if not self._backlog and len(data) <= self._slice and not self._is_blocked():
            work = self._feed(data)
            if len(data) >= self.MIN_BYTES:
                self._resize(len(data), work)
            return
        self._backlog += data
        if not self._is_queued:
            self._parse_backlog()

    def abort(self) -> None:
        """Close the connection at once."""
        self.transport.abort()

    def _feed(self, data: bytes) -> int:
        """Parse a slice; return the number of messages, chunks or frames in it."""
        raise NotImplementedError

    def _is_blocked(self) -> bool:
        """Return whether nothing may be parsed now. Once that is over, call `_schedule`."""
        return False

    def _is_full(self) -> bool:
        """Return whether nothing may be read now. Whenever that changes, call `regulate`."""
        return False

    def _schedule(self) -> None:
        """Parse more of the backlog in a later step of the loop."""
        if not self._is_queued:
            self._is_queued = True
            self._loop_budget.enqueue(self._parse_backlog)

    def _parse_backlog(self) -> None:
        """Parse the input: all at once if that is little work, as for a large body."""
        self._is_queued = False
        work = 0
        while self._backlog and work <= BUSY and not self._is_blocked() and not self._ended:
            data = bytes(self._backlog[: self._slice])
            del self._backlog[: self._slice]
            done = self._feed(data)
            if len(data) >= self.MIN_BYTES:
                self._resize(len(data), done)
            work += done
        if self._ended or self.transport.is_closing():
            self._backlog.clear()
            return
        if self._backlog and work > BUSY:
            self._schedule()
        self.regulate()

    def _resize(self, size: int, work: int) -> None:
        """Choose the size of the next slice by the work in one of `size` bytes."""
        self._slice = max(self.MIN_BYTES, min(self.MAX_BYTES, size * BUSY // (work or 1)))

    def regulate(self) -> None:
        """Pause reading while anything waits to be parsed, and while `_is_full()`."""
        pause = bool(self._backlog) or self._is_full()
        if pause == self._is_paused or self._ended or self.transport.is_closing():
            return
        self._is_paused = pause
        if pause:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()
