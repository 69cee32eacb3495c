"""Points in time as people write them."""

import argparse
import re
import time
from datetime import UTC, datetime
from typing import Final

_AGO: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


def moment(text: str, now_ms: int) -> int:
    """A time as milliseconds since the Unix epoch.

    `15m` (ms, s, m, h, d, w) is so long ago; digits alone are milliseconds since the epoch; else ISO 8601, in the
    timezone of this machine unless it names one. Raises ValueError.
    """
    if ago := _AGO.fullmatch(text):
        return max(0, now_ms - round(float(ago[1]) * _MS[ago[2]]))
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        named = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is not a time: 15m (so long ago), 2026-11-28T14:30:00Z, or milliseconds since 1970"
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
