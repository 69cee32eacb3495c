"""Parsing and formatting of points in time."""

import argparse
import re
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from topics_client import units

_AGO: Final = re.compile(r"[\d.]+ ?[A-Za-z]+", re.ASCII)


def moment(text: str, now_ms: int) -> int:
    """A time as milliseconds since the Unix epoch.

    `15m` (ms, s, m, h, d, w) is so long ago; digits alone are milliseconds since the epoch; else ISO 8601, in the
    timezone of this machine unless it names one. Raises ValueError.
    """
    if _AGO.fullmatch(text):
        with suppress(ValueError):
            return max(0, now_ms - units.milliseconds(text))
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        named = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is not a time such as 15m (ago), 2026-11-28T14:30:00Z, or milliseconds since 1970"
        ) from None
    return round(named.timestamp() * 1000)


def point(text: str) -> int:
    """A moment as an argument of the command line: milliseconds since the Unix epoch."""
    try:
        return moment(text, time.time_ns() // 1_000_000)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def shown(ts_ms: int) -> str:
    """A time as ISO 8601 with milliseconds, in UTC."""
    return datetime.fromtimestamp(ts_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
