"""Rate limit for log lines that any client on the network can trigger."""

import asyncio
import logging
from typing import Final

from topics_net import background

_SECONDS: Final = 60.0
_MAX_KINDS: Final = 64
_MAX_CHARACTERS: Final = 300


class RateLimitedLogger:
    """Logs the first line of a kind immediately, then once a minute the number of further ones and the newest.

    Lines of one kind have the same message before argument substitution. A kind without lines for a minute is
    forgotten. Must be used on the event loop.
    """

    def __init__(self, log: logging.Logger, *, seconds: float = _SECONDS) -> None:
        """`seconds` is the interval, a minute by default."""
        self._log = log
        self._seconds = seconds
        self._kinds: dict[str, _Kind] = {}

    def warning(self, message: str, *arguments: object) -> None:
        """Log or count a warning."""
        self._report(logging.WARNING, message, arguments)

    def error(self, message: str, *arguments: object) -> None:
        """Log or count an error."""
        self._report(logging.ERROR, message, arguments)

    def _report(self, level: int, message: str, arguments: tuple[object, ...]) -> None:
        kind = self._kinds.get(message)
        if kind is None and len(self._kinds) >= _MAX_KINDS:  # only callers that build messages dynamically get here
            kind = self._kinds[next(iter(self._kinds))]
        if kind is not None:
            kind.more += 1
            kind.newest = (message % arguments)[:_MAX_CHARACTERS]
            return
        self._log.log(level, message, *arguments)
        self._kinds[message] = kind = _Kind(level)
        kind.timer = background.call_later(self._seconds, self._summarize, message)

    def _summarize(self, message: str) -> None:
        kind = self._kinds[message]
        if not kind.more:
            del self._kinds[message]
            return
        self._log.log(kind.level, "%d more like this within %g s: %s", kind.more, self._seconds, kind.newest)
        kind.more = 0
        kind.timer = background.call_later(self._seconds, self._summarize, message)


class _Kind:
    __slots__ = ("level", "more", "newest", "timer")

    def __init__(self, level: int) -> None:
        self.level = level
        self.more = 0  # not logged yet
        self.newest = ""
        self.timer: asyncio.TimerHandle | None = None
