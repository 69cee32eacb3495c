"""Fields and units of times: extract and date_trunc."""

import re
from calendar import monthrange
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Final

from topics_service.engine.errors import TopicsError
from topics_service.engine.tables.datetimes import DAY, FIRST, HOUR, LAST, MINUTE, SECOND, to_datetime
from topics_service.engine.tables.errors import invalid_value
from topics_service.engine.tables.numbers import DECIMALS
from topics_service.engine.tables.types import Kind

_TIME_FIELDS: Final[dict[str, Callable[[int], int | Decimal]]] = {
    "hour": lambda clock: clock // HOUR,
    "minute": lambda clock: clock // MINUTE % 60,
    "second": lambda clock: _decimal(clock % MINUTE, 6),
    "milliseconds": lambda clock: _decimal(clock % MINUTE, 3),
    "microseconds": lambda clock: clock % MINUTE,
}
_DATE_FIELDS: Final[dict[str, Callable[[datetime], int]]] = {
    "year": lambda day: day.year,
    "quarter": lambda day: (day.month + 2) // 3,
    "month": lambda day: day.month,
    "week": lambda day: day.isocalendar().week,
    "day": lambda day: day.day,
    "doy": lambda day: day.timetuple().tm_yday,
    "dow": lambda day: day.isoweekday() % 7,
    "isodow": lambda day: day.isoweekday(),
    "isoyear": lambda day: day.isocalendar().year,
}
FIELDS: Final = (*_DATE_FIELDS, *_TIME_FIELDS, "epoch")
_LENGTHS: Final = {
    "microseconds": 1, "milliseconds": 1000, "second": SECOND, "minute": MINUTE, "hour": HOUR, "day": DAY,
}  # fmt: skip
UNITS: Final = (*_LENGTHS, "week", "month", "quarter", "year")


def extract(field: str, value: int, kind: Kind) -> Decimal:
    """A field of a TIMESTAMP, DATE or TIME. Raises `invalid_value` 22023."""
    name = field.lower()
    micros = value * DAY if kind is Kind.DATE else value
    if name == "epoch":
        return _decimal(micros, 6)
    if name in _TIME_FIELDS and kind is not Kind.DATE:
        return Decimal(_TIME_FIELDS[name](micros % DAY))
    if name in _DATE_FIELDS and kind is not Kind.TIME:
        return Decimal(_DATE_FIELDS[name](to_datetime(micros)))
    raise _unknown(f'{kind.value} has no field "{field[:40]}"')


def truncate(unit: str, micros: int) -> int:
    """The beginning of the unit that a timestamp is in. Raises `invalid_value` 22023, or 22003 before the year 1."""
    name = unit.lower()
    length = _LENGTHS.get(name)
    if length is not None:
        return micros // length * length
    moment = to_datetime(micros // DAY * DAY)
    if name == "week":
        return _in_range(micros // DAY * DAY - moment.weekday() * DAY)
    if name == "month":
        first = moment.replace(day=1)
    elif name == "quarter":
        first = moment.replace(month=(moment.month - 1) // 3 * 3 + 1, day=1)
    elif name == "year":
        first = moment.replace(month=1, day=1)
    else:
        raise _unknown(f'there is no unit "{unit[:40]}" of time')
    return (first - datetime(1970, 1, 1)) // timedelta(microseconds=1)  # noqa: DTZ001 - both in UTC


def add(micros: int, interval: str) -> int:
    """The timestamp an interval later. Raises `invalid_value`: 22007 for text that is no interval, 22003."""
    months, rest = parse_interval(interval)
    return _in_range(_months_later(micros, months) + rest)


def subtract(micros: int, interval: str) -> int:
    """The timestamp an interval earlier. Raises `invalid_value`: 22007 for text that is no interval, 22003."""
    months, rest = parse_interval(interval)
    return _in_range(_months_later(micros, -months) - rest)


def binned(interval: str, micros: int, origin: int) -> int:
    """The beginning of the interval that a timestamp is in. Raises `invalid_value` for one of months, or none."""
    months, length = parse_interval(interval)
    if months:
        raise invalid_value("date_bin takes no interval of months or years", sqlstate="0A000")
    if length <= 0:
        raise invalid_value("date_bin takes an interval above zero", sqlstate="22008")
    return _in_range(micros - (micros - origin) % length)


def _months_later(micros: int, months: int) -> int:
    """The same day and time of another month, or the last day of a month that is shorter."""
    if not months:
        return micros
    moment = to_datetime(micros)
    year, month = divmod(moment.year * 12 + moment.month - 1 + months, 12)
    if not 1 <= year <= 9999:
        raise invalid_value("the result is out of range for TIMESTAMP", out_of_range=True)
    last = monthrange(year, month + 1)[1]
    moved = moment.replace(year=year, month=month + 1, day=min(moment.day, last))
    return (moved - datetime(1970, 1, 1)) // timedelta(microseconds=1)  # noqa: DTZ001 - both in UTC


@lru_cache(maxsize=256)
def parse_interval(text: str) -> tuple[int, int]:
    """Read `1 year -2 days 03:04:05`: months and microseconds. A day has 24 hours. Raises `invalid_value` 22007."""
    stripped = text.strip() if len(text) <= 200 else ""
    parts = _PART.findall(stripped) if _INTERVAL.fullmatch(stripped) else ()
    if not parts:
        raise invalid_value(f'"{text[:60]}" is not an interval, such as "1 day 12 hours"', sqlstate="22007")
    months, micros = 0, Decimal(0)
    for sign, number, unit, hour, minute, second in parts:
        factor = -1 if sign == "-" else 1
        if hour:
            micros += factor * (int(hour) * HOUR + int(minute) * MINUTE + Decimal(second or 0) * SECOND)
            continue
        length = _unit(unit.lower())
        if length is None or (length < 0 and "." in number):
            raise invalid_value(f'"{number[:20]} {unit[:40]}" is not a part of an interval', sqlstate="22007")
        if length < 0:
            months -= factor * int(number) * length
        else:
            micros += factor * Decimal(number) * length
    if abs(months) > 240_000 or abs(micros) > 2 * LAST:
        raise invalid_value(f'the interval "{text[:60]}" is out of range', out_of_range=True)
    return months, int(micros.to_integral_value())


def _unit(name: str) -> int | None:
    return _INTERVAL_UNITS.get(name) or _INTERVAL_UNITS.get(name.removesuffix("s"))


_PART: Final = re.compile(
    r"(?:([+-])\s*)?(?:(\d{1,15}(?:\.\d{1,9})?)\s*([a-zA-Z]+)|(\d{1,9}):(\d{2})(?::(\d{2}(?:\.\d{1,6})?))?)\s*",
    re.ASCII,
)
_INTERVAL: Final = re.compile(rf"(?:{_PART.pattern})+", re.ASCII)
_INTERVAL_UNITS: Final = {
    "microsecond": 1, "us": 1, "millisecond": 1000, "ms": 1000, "second": SECOND, "sec": SECOND, "s": SECOND,
    "minute": MINUTE, "min": MINUTE, "m": MINUTE, "hour": HOUR, "hr": HOUR, "h": HOUR, "day": DAY, "d": DAY,
    "week": 7 * DAY, "w": 7 * DAY, "month": -1, "mon": -1, "quarter": -3, "year": -12, "yr": -12, "y": -12,
}  # fmt: skip
"""Microseconds; months as negative numbers."""


def from_seconds(seconds: float) -> int:
    """The timestamp that is a number of seconds after 1970. Raises `invalid_value` 22003."""
    if not FIRST <= seconds * SECOND <= LAST:  # NaN is not either
        raise invalid_value("the result is out of range for TIMESTAMP", out_of_range=True)
    return _in_range(round(seconds * SECOND))


def _in_range(micros: int) -> int:
    if not FIRST <= micros <= LAST:
        raise invalid_value("the result is out of range for TIMESTAMP", out_of_range=True)
    return micros


def _decimal(number: int, scale: int) -> Decimal:
    return Decimal(number).scaleb(-scale, context=DECIMALS)


def _unknown(message: str) -> TopicsError:
    return invalid_value(message, sqlstate="22023")
