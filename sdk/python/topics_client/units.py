"""Human-readable sizes and durations, shared by the server's settings and the command line.

Pure, without slow imports. Invalid text raises ValueError, whose message states the expected format.
"""

import re
from typing import Final

_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_BYTES: Final = {"b": 1} | {
    prefix + suffix: base**power
    for power, prefix in enumerate("kmgt", 1)
    for suffix, base in (("", 1024), ("ib", 1024), ("b", 1000))
}
_NUMBER: Final = re.compile(r"(\d{1,20})(?:\.(\d{1,9}))? ?([A-Za-z]*)", re.ASCII)
_U64: Final = 1 << 64


def milliseconds(text: str, *, bare: str | None = "ms") -> int:
    """Parse a duration in ms: `500ms`, `1.5s`, `5m`, `2h`, `7d`, `2w`, or a plain number in the unit `bare`. If `bare`
    is None, a unit is required."""
    return _scaled(text, _MS if bare is None else _MS | {"": _MS[bare]}, "a time such as 500ms, 30s, 5m, 2h or 7d")


def whole_seconds(text: str) -> int:
    """Parse a duration in whole seconds, a plain number or one with a unit."""
    expected = "a whole number of seconds, or a time such as 30s, 5m, 2h or 7d"
    value, rest = divmod(_scaled(text, _MS | {"": 1_000}, expected), 1_000)
    if rest:
        raise ValueError(expected)
    return value


def size(text: str) -> int:
    """Parse a size in bytes: `64KiB`, `10MiB`, `2GiB` (`k`, `m` and `g` mean the same), `500MB`, or a plain number."""
    return _scaled(text, _BYTES | {"": 1}, "a size such as 65536, 64KiB, 500MB or 2GiB")


def _scaled(text: str, units: dict[str, int], expected: str) -> int:
    found = _NUMBER.fullmatch(text)
    unit = units.get(found[3].lower()) if found else None
    if found is None or unit is None or (found[2] is not None and unit == 1):
        raise ValueError(expected)
    part = found[2] or ""
    value = int(found[1]) * unit + (int(part) * unit // 10 ** len(part) if part else 0)
    if value >= _U64:
        raise ValueError(f"{expected}, below 2**64")
    return value


def shown_size(nbytes: int) -> str:
    """Format a size so that `size` parses it to the same value: `1GiB`, `64KiB`, or the plain number."""
    return _largest(nbytes, (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))) or str(nbytes)


def shown_ms(ms: int) -> str:
    """Format a duration so that `milliseconds` parses it to the same value: `7d`, `30m`, `45s`, `500ms`."""
    return _largest(ms, (("d", _MS["d"]), ("h", _MS["h"]), ("m", _MS["m"]), ("s", _MS["s"]))) or f"{ms}ms"


def _largest(value: int, units: tuple[tuple[str, int], ...]) -> str | None:
    return next((f"{value // unit}{name}" for name, unit in units if value and value % unit == 0), None)


def human_size(nbytes: int) -> str:
    """Format bytes with two or three digits: 512B, 1.5KiB, 20MiB."""
    value, unit = float(nbytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB", "PiB"):
        if value < 999.5 or unit == "PiB":
            break
        value /= 1024
    return f"{value:.0f}{unit}" if unit == "B" or value >= 9.95 else f"{value:.1f}{unit}"


def counted(number: int, noun: str) -> str:
    """Format a number with its noun: `1 record`, `2,000 records`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
