"""The elastic throttle: when the server is too busy or the disk too full, writes are asked to retry later.

Measured, not guessed: the event loop's lag, write stalls of the store, and the free space of the disk
(docs/contract.md, 4.6). Reads, deletes, acks and changes of configs are never throttled: they are how a crowded server
gets better. Watchers are paced while the loop lags (api.scheduling.dispatch).
"""

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from topics_service.engine.errors import Reason, TopicsError
from topics_service.statistics import SpaceStatistics

T = TypeVar("T")

_LIMIT = "min_free_bytes"
_LARGE_BYTES = 4 << 20
_FLUSH_STEP_SECONDS = 0.005
_MAX_HOLD_SECONDS = 10.0  # for writers that opted out of throttling
_STEP_SECONDS = 0.02
_LARGEST_WRITE = 128 << 20
_WRITTEN_TIMES = 3  # a byte: to the log, to a table, and by the compaction after that


class Shortage(NamedTuple):
    """Cause for refusing all writes: the limit (as in `detail` of their errors), its value, and the free bytes."""

    limit: str
    max: int
    free_bytes: int


class FreeBytes:
    """Disk space for writes of all protocols; see `engine.capacity.Space`."""

    def __init__(self, free_bytes: Callable[[], int], min_free_bytes: int, statistics: SpaceStatistics) -> None:
        self._free_bytes = free_bytes
        self._min_free_bytes = min_free_bytes
        self._statistics = statistics

    def shortage(self) -> Shortage | None:
        """Return the cause for refusing all writes, or None."""
        free = self._free_bytes() if self._min_free_bytes else 0
        if not self._min_free_bytes or (free >= self._min_free_bytes and not self._statistics.short):
            return None
        return Shortage(_LIMIT, self._min_free_bytes, max(0, free))

    def is_scarce(self) -> bool:
        """See Space."""
        return (
            bool(self._min_free_bytes) and self._free_bytes() - self._min_free_bytes < _LARGEST_WRITE * _WRITTEN_TIMES
        )

    def check(self, nbytes: int) -> None:
        """See Space."""
        if self._min_free_bytes and self._free_bytes() - nbytes * _WRITTEN_TIMES < self._min_free_bytes:
            self._statistics.refused += 1
            raise TopicsError(
                Reason.THROTTLED, "the disk is nearly full", {"limit": _LIMIT, "max": self._min_free_bytes}
            )


class Pressure:
    """Decides whether a write may proceed.

    `lag_ms` is the event loop's current lag, `free_bytes` the free space of the data directory's disk, less the space
    already committed. A limit of 0 switches its check off. `flushing` returns the number of the store's write buffers
    that are full and still in memory.
    """

    def __init__(
        self,
        *,
        lag_ms: Callable[[], float] = lambda: 0.0,
        max_lag_ms: int = 0,
        free_bytes: Callable[[], int] = lambda: 0,
        min_free_bytes: int = 0,
        statistics: SpaceStatistics | None = None,
        flushing: Callable[[], int] = lambda: 0,
    ) -> None:
        self._flushing = flushing
        self._lag_ms = lag_ms
        self._max_lag_ms = max_lag_ms
        self.space = FreeBytes(free_bytes, min_free_bytes, statistics or SpaceStatistics())

    def check(self) -> None:
        """Raise `throttled` if a write should not start now."""
        self.space.check(0)
        if wait := self.overload_ms():
            raise TopicsError(
                Reason.THROTTLED, "the server is overloaded", {"retry_after_ms": wait}, retry_after_ms=wait
            )

    def overload_ms(self) -> int:
        """The delay (ms) for work that can wait while the event loop lags; 0 when it keeps up."""
        if not self._max_lag_ms:
            return 0
        lag = self._lag_ms()
        return max(1000, round(lag)) if lag > self._max_lag_ms else 0

    async def flushed(self, nbytes: int) -> bool:
        """Wait before a large write until the write buffers of those before are in tables, so that few are in memory.

        Returns whether it took any time. Raises `throttled` when it takes more than 10 s.
        """
        if nbytes <= _LARGE_BYTES or not self._flushing():
            return False
        ends = time.perf_counter() + _MAX_HOLD_SECONDS
        while self._flushing():
            if time.perf_counter() > ends:
                raise TopicsError(
                    Reason.THROTTLED, "the storage is catching up", {"retry_after_ms": 1000}, retry_after_ms=1000
                )
            await asyncio.sleep(_FLUSH_STEP_SECONDS)
        return True

    async def push_through(self, write: Callable[[], T]) -> tuple[T, float]:
        """Run a write that must not be throttled for load: wait while it would be, at most 10 s, then try all the same.

        Returns its outcome and the milliseconds waited. A resource limit (`detail.limit`) is not load: it is raised.
        """
        started, waited = time.perf_counter(), 0.0
        while True:
            patient = waited < _MAX_HOLD_SECONDS
            try:
                if patient:
                    self.check()
                return write(), waited * 1e3
            except TopicsError as error:
                if error.reason is not Reason.THROTTLED or "limit" in (error.detail or {}) or not patient:
                    raise
            await asyncio.sleep(_STEP_SECONDS)
            waited = time.perf_counter() - started
