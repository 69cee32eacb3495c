"""When a call is made again."""

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from topics_client.errors import UnavailableError

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Retry:
    """Pauses between attempts: each up to twice the one before, with full jitter, never less than a server asks for.

    `seconds` is how long all attempts together may take; 0 means one attempt.
    """

    seconds: float = 60.0
    first_pause: float = 0.05
    longest_pause: float = 5.0

    def pauses(self) -> Iterator[float]:
        """The upper ends of the pauses, without end."""
        pause = self.first_pause
        while True:
            yield pause
            pause = min(2 * pause, self.longest_pause)

    def run(self, attempt: Callable[[], _Result], *, sleep: Callable[[float], None] = time.sleep) -> _Result:
        """The result of `attempt`, made again after UnavailableError until the time is up; then its last error."""
        patience = Patience(self, sleep=sleep)
        while True:
            try:
                return attempt()
            except UnavailableError as error:
                if not patience.waited(error):
                    raise


class Patience:
    """How long something goes on trying without getting further."""

    def __init__(self, retry: Retry, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._retry = retry
        self._sleep = sleep
        self._pauses = retry.pauses()
        self._ends: float | None = None

    def renew(self) -> None:
        """It got further: the time begins anew with the next failure."""
        self._ends = None

    def pause(self, error: UnavailableError) -> float | None:
        """How long to wait before another attempt, in seconds; None if the time is up by then."""
        if self._ends is None:
            self._ends = time.monotonic() + self._retry.seconds
            self._pauses = self._retry.pauses()
        pause = max(random.uniform(0, next(self._pauses)), (error.retry_after_ms or 0) / 1e3)
        return None if time.monotonic() + pause > self._ends else pause

    def waited(self, error: UnavailableError) -> bool:
        """Sleep before another attempt; False, at once, if the time is up by then."""
        pause = self.pause(error)
        if pause is None:
            return False
        self._sleep(pause)
        return True
