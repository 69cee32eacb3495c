"""Time as the engine sees it."""

import time
from typing import Protocol


class Clock(Protocol):
    """Milliseconds since the Unix epoch. May step in either direction; records never go back in time."""

    def now_ms(self) -> int:
        """The current wall-clock time."""
        ...


class SystemClock:
    """The machine's wall clock."""

    def now_ms(self) -> int:
        """The current wall-clock time in milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000
