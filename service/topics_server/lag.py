"""Lag of the event loop: the measure of an overloaded server."""

import asyncio
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable

from topics_service.statistics import Histogram

_PERIOD_SECONDS = 0.1
_MEMORY_SECONDS = 0.5
_SUSTAINED_MEASUREMENTS = 3
_BOUNDS_MS = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500)


class LoopLag:
    """Measures by how much a timer of 100 ms is late, over and over, while `run` runs.

    `lag_ms` is the average of the last half second or so, by time: one short stall hardly moves it, one that lasts
    does at once. `last_ms` is the newest measurement and `histogram` (ms) holds all of them. The loop's timers count
    in whole milliseconds, so an idle loop shows up to one. A blocked loop measures only when it continues.

    `sustained_ms` is the minimum of the last three measurements: it tells overload from a single stall (a very large
    request, a stopped process), after which no request has to be refused.
    """

    def __init__(
        self,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`now` gives seconds on a clock that never steps back; `sleep` waits for that long."""
        self._now = now
        self._sleep = sleep
        self.lag_ms = 0.0
        self.last_ms = 0.0
        self._recent = deque([0.0] * _SUSTAINED_MEASUREMENTS, maxlen=_SUSTAINED_MEASUREMENTS)
        self.histogram = Histogram(_BOUNDS_MS)

    @property
    def sustained_ms(self) -> float:
        """The lag that every recent measurement reached."""
        return min(self._recent)

    async def run(self) -> None:
        """Measure until cancelled."""
        began = self._now()
        while True:
            await self._sleep(_PERIOD_SECONDS)
            woke = self._now()
            self._observe(max(0.0, woke - began - _PERIOD_SECONDS) * 1e3, woke - began)
            began = woke

    def _observe(self, late_ms: float, seconds: float) -> None:
        self.last_ms = late_ms
        self._recent.append(late_ms)
        self.lag_ms += (late_ms - self.lag_ms) * -math.expm1(-seconds / _MEMORY_SECONDS)
        self.histogram.observe(late_ms)
