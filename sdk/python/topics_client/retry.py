"""Retry policies."""

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from topics_client.errors import UnavailableError

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Retry:
    """A retry policy: exponential backoff with full jitter, and at least the delay that the server asks for.

    `seconds` limits the total time of all attempts; 0 means a single attempt.
    """

    seconds: float = 60.0
    first_pause: float = 0.05
    longest_pause: float = 5.0

    def pauses(self) -> Iterator[float]:
        """Yield the upper bounds of the pauses, endlessly."""
        pause = self.first_pause
        while True:
            yield pause
            pause = min(2 * pause, self.longest_pause)

    def run(self, attempt: Callable[[], _Result], *, sleep: Callable[[float], None] = time.sleep) -> _Result:
        """Call `attempt`, retrying after UnavailableError until the time is up. Raises its last error."""
        patience = Patience(self, sleep=sleep)
        while True:
            try:
                return attempt()
            except UnavailableError as error:
                if not patience.waited(error):
                    raise


class Patience:
    """The state of a sequence of retries without progress."""

    def __init__(self, retry: Retry, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._retry = retry
        self._sleep = sleep
        self._pauses = retry.pauses()
        self._ends: float | None = None
        self._moves = self._most = 0

    def renew(self) -> None:
        """Record progress: the time restarts with the next failure."""
        self._ends = None
        self._moves = self._most = 0

    def moves(self, error: UnavailableError) -> bool:
        """Return whether to try another node at once: nothing was sent to the one that failed, and some are left."""
        self._most = max(self._most, error._others)
        self._moves += error._never_sent
        return error._never_sent and self._moves <= self._most

    def pause(self, error: UnavailableError) -> float | None:
        """Return the seconds to wait before another attempt; None if the time would be up by then."""
        if self._ends is None:
            self._ends = time.monotonic() + self._retry.seconds
            self._pauses = self._retry.pauses()
        pause = max(random.uniform(0, next(self._pauses)), (error.retry_after_ms or 0) / 1e3)
        return None if time.monotonic() + pause > self._ends else pause

    def waited(self, error: UnavailableError) -> bool:
        """Sleep before another attempt. Returns False at once if the time would be up by then."""
        pause = self.pause(error)
        if pause is None:
            return False
        self._sleep(pause)
        return True
