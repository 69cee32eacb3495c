"""Log lines that anybody on the network can cause: one, and then how many more."""

import asyncio
import logging
from typing import Final

from topics_net import background

_SECONDS: Final = 60.0
_MOST_KINDS: Final = 64
_MOST_CHARACTERS: Final = 300


class QuietLog:
    """Logs the first line of a kind at once, and those that follow once a minute: their number and the newest of them.

    Lines of one kind have the same message before its arguments are put in. A kind of which none comes for a minute is
    forgotten. Lives on the event loop.
    """

    def __init__(self, log: logging.Logger, *, seconds: float = _SECONDS) -> None:
        """`seconds` is the minute."""
        self._log = log
        self._seconds = seconds
        self._kinds: dict[str, _Kind] = {}

    def warning(self, message: str, *arguments: object) -> None:
        """Log a warning, or count it."""
        self._tell(logging.WARNING, message, arguments)

    def error(self, message: str, *arguments: object) -> None:
        """Log an error, or count it."""
        self._tell(logging.ERROR, message, arguments)

    def _tell(self, level: int, message: str, arguments: tuple[object, ...]) -> None:
        kind = self._kinds.get(message)
        if kind is None and len(self._kinds) >= _MOST_KINDS:  # messages are few, unless a caller makes them up
            kind = self._kinds[next(iter(self._kinds))]
        if kind is not None:
            kind.more += 1
            kind.newest = (message % arguments)[:_MOST_CHARACTERS]
            return
        self._log.log(level, message, *arguments)
        self._kinds[message] = kind = _Kind(level)
        kind.timer = background.call_later(self._seconds, self._sum_up, message)

    def _sum_up(self, message: str) -> None:
        kind = self._kinds[message]
        if not kind.more:
            del self._kinds[message]
            return
        self._log.log(kind.level, "%d more like this within %g s: %s", kind.more, self._seconds, kind.newest)
        kind.more = 0
        kind.timer = background.call_later(self._seconds, self._sum_up, message)


class _Kind:
    __slots__ = ("level", "more", "newest", "timer")

    def __init__(self, level: int) -> None:
        self.level = level
        self.more = 0  # than were told
        self.newest = ""
        self.timer: asyncio.TimerHandle | None = None
