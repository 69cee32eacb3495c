"""The elastic throttle: when the server is too busy or the disk too full, a write is told to come back later.

Measured, not guessed: the event loop's lag, write stalls of the store, and the free space of the disk (SPEC API 0.6;
contract.md lists the codes). Reads and deletes are never throttled: they are how a crowded server gets better. Watchers
are paced while the loop lags (api.dispatch).
"""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

from topics_service.engine.errors import Reason, TopicsError

T = TypeVar("T")

_PATIENCE_SECONDS = 10.0  # how long a loader that opted out of throttling is held at most
_STEP_SECONDS = 0.02


class Pressure:
    """Says whether a write may go on.

    `lag_ms` is the event loop's current lag, `free_bytes` the free space of the data directory's disk as measured
    last. A limit of 0 switches its check off.
    """

    def __init__(
        self,
        *,
        lag_ms: Callable[[], float] = lambda: 0.0,
        max_lag_ms: int = 0,
        free_bytes: Callable[[], int] = lambda: 0,
        min_free_bytes: int = 0,
    ) -> None:
        self._lag_ms = lag_ms
        self._max_lag_ms = max_lag_ms
        self._free_bytes = free_bytes
        self._min_free_bytes = min_free_bytes

    def check(self) -> None:
        """Raise `throttled` if a write should not start now."""
        if self._min_free_bytes and self._free_bytes() < self._min_free_bytes:
            raise TopicsError(
                Reason.THROTTLED,
                "the disk is nearly full",
                {"limit": "min_free_bytes", "max": self._min_free_bytes},
            )
        if wait := self.overload_ms():
            raise TopicsError(
                Reason.THROTTLED, "the server is overloaded", {"retry_after_ms": wait}, retry_after_ms=wait
            )

    def overload_ms(self) -> int:
        """For how long (ms) whoever can wait should, because the event loop lags; 0 when it keeps up."""
        if not self._max_lag_ms:
            return 0
        lag = self._lag_ms()
        return max(1000, round(lag)) if lag > self._max_lag_ms else 0

    async def push_through(self, write: Callable[[], T]) -> tuple[T, float]:
        """Run a write that must not be throttled for load: wait while it would be, at most 10 s, then try all the same.

        Returns its outcome and the milliseconds waited. A resource limit (`detail.limit`) is not load: it is raised.
        """
        started, waited = time.perf_counter(), 0.0
        while True:
            patient = waited < _PATIENCE_SECONDS
            try:
                if patient:
                    self.check()
                return write(), waited * 1e3
            except TopicsError as error:
                if error.reason is not Reason.THROTTLED or "limit" in (error.detail or {}) or not patient:
                    raise
            await asyncio.sleep(_STEP_SECONDS)
            waited = time.perf_counter() - started
