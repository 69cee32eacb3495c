"""Log lines that anybody on the network can cause, kept to a rate."""

import asyncio
import logging
from typing import Final

_LINES: Final = 10
_SECONDS: Final = 10.0


class QuietLog:
    """At most ten lines in ten seconds; the first one after that says how many were left out."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._since = 0.0
        self._lines = 0

    def warning(self, message: str, *arguments: object) -> None:
        """Log a warning, or count it as left out."""
        now = asyncio.get_running_loop().time()
        if now - self._since >= _SECONDS:
            if self._lines > _LINES:
                self._log.warning("%d more lines like these were left out", self._lines - _LINES)
            self._since, self._lines = now, 0
        self._lines += 1
        if self._lines <= _LINES:
            self._log.warning(message, *arguments)
