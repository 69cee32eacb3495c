"""Deadlines of one duration, kept with one timer of the event loop."""

import asyncio
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from topics_net import background

K = TypeVar("K")

_CHECKS: Final = 64  # per duration, at most


class Deadlines(Generic[K]):
    """Calls `expired` with each key that was started `seconds` ago and not cancelled since, at most 1/64 late.

    A timer for each key would cost more than most waits, which end long before.
    """

    def __init__(self, seconds: float, expired: Callable[[K], object]) -> None:
        self.seconds = seconds
        self._expired = expired
        self._since: dict[K, float] = {}  # oldest first
        self._timer: asyncio.TimerHandle | None = None

    def start(self, key: K) -> None:
        """Start or restart the time of `key`."""
        since = self._since
        since.pop(key, None)
        since[key] = asyncio.get_running_loop().time()
        if self._timer is None:
            self._timer = background.call_later(self.seconds, self._check)

    def cancel(self, key: K) -> None:
        """Stop the time of `key`, if it runs."""
        self._since.pop(key, None)

    def _check(self) -> None:
        self._timer = None
        due = asyncio.get_running_loop().time() - self.seconds
        expired = []
        for key, since in self._since.items():
            if since > due:
                self._timer = background.call_later(max(since - due, self.seconds / _CHECKS), self._check)
                break
            expired.append(key)
        for key in expired:
            if self._since.pop(key, due + 1) <= due:  # else it was cancelled, or restarted, by another one
                self._expired(key)
