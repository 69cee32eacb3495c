"""Timestamps, dates and times of day: ISO 8601 text to the engine's integers and back."""

import re
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import Final

from topics_service.engine.tables.errors import invalid_value
from topics_service.engine.tables.numbers import not_a
from topics_service.engine.tables.types import Type

SECOND: Final = 1_000_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
_DATE: Final = r"(\d{4})-(\d{1,2})-(\d{1,2})"
_TIME: Final = r"(\d{1,2}):(\d{2})(?::(\d{2})(?:[.,](\d{1,9}))?)?"
_ZONE: Final = r"\s?(?:([zZ])|([+-])(\d{2})(?::?(\d{2}))?)"
_TIMESTAMP_TEXT: Final = re.compile(rf"\s*{_DATE}(?:[T ]\s*{_TIME}(?:{_ZONE})?)?\s*", re.ASCII | re.IGNORECASE)
_TIME_TEXT: Final = re.compile(rf"\s*{_TIME}\s*", re.ASCII)
EPOCH: Final = date(1970, 1, 1).toordinal()
FIRST_DAY: Final = date.min.toordinal() - EPOCH
LAST_DAY: Final = date.max.toordinal() - EPOCH
FIRST: Final = FIRST_DAY * DAY
LAST: Final = (LAST_DAY + 1) * DAY - 1
"""The first and the last timestamp: years 1 to 9999."""


def to_timestamp(given: object, sql_type: Type, what: str) -> int:
    """Read ISO 8601 with or without a zone (UTC then), or take a datetime. Raises `invalid_value`."""
    if isinstance(given, datetime):
        offset = given.utcoffset() or timedelta()
        return _bounded(
            _micros(given.date(), given.time()) - offset // timedelta(microseconds=1), given, sql_type, what
        )
    if isinstance(given, date):
        return (given.toordinal() - EPOCH) * DAY
    if not isinstance(given, str) or len(given) > 99:
        raise not_a(given, sql_type, what)
    if len(given) in _USUAL_LENGTHS and (quick := _usual(given)) is not None:
        return quick
    match = _TIMESTAMP_TEXT.fullmatch(given)
    if match is None:
        raise not_a(given, sql_type, what)
    year, month, day, hour, minute, second, fraction, _, sign, zone_hours, zone_minutes = match.groups()
    try:
        days = date(int(year), int(month), int(day)).toordinal() - EPOCH
    except ValueError:
        raise invalid_value(f'{what}: "{given}" is not a date of years 1 to 9999', out_of_range=True) from None
    micros = _time_of(hour or "0", minute or "0", second, fraction, given, sql_type, what)
    ahead = 0
    if sign:
        ahead = int(zone_hours) * HOUR + int(zone_minutes or 0) * MINUTE
        if ahead >= 16 * HOUR or int(zone_minutes or 0) > 59:
            raise not_a(given, sql_type, what)
    return _bounded(days * DAY + micros - (ahead if sign == "+" else -ahead), given, sql_type, what)


_USUAL_LENGTHS: Final = frozenset({19, 20, 26, 27})
_ZERO: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - UTC by definition
_ZERO_UTC: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _usual(text: str) -> int | None:
    """Read `2026-01-31T12:00:00`, with six decimals or none, with Z or without; None for another form."""
    marks = text[4] + text[7] + text[13] + text[16]
    if marks != "--::" or text[10] not in "T " or (len(text) > 20 and text[19] != "."):
        return None  # more forms are read by `fromisoformat`
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if (len(text) in (20, 27)) is not (text[-1] == "Z") or (moment.tzinfo is None) is (text[-1] == "Z"):
        return None  # another zone, or more decimals
    since = moment - (_ZERO if moment.tzinfo is None else _ZERO_UTC)
    return (since.days * 86_400 + since.seconds) * SECOND + since.microseconds


def to_date(given: object, sql_type: Type, what: str) -> int:
    """Read a date, or the date of a timestamp as it is written there. Raises `invalid_value`."""
    if isinstance(given, datetime):
        return given.date().toordinal() - EPOCH
    if isinstance(given, date):
        return given.toordinal() - EPOCH
    if not isinstance(given, str) or len(given) > 99:
        raise not_a(given, sql_type, what)
    if len(given) == 10 and given[4] == given[7] == "-":
        try:
            return date.fromisoformat(given).toordinal() - EPOCH
        except ValueError:
            pass
    match = _TIMESTAMP_TEXT.fullmatch(given)
    if match is None:
        raise not_a(given, sql_type, what)
    text = match.string[match.start(1) : match.end(3)]
    return to_timestamp(text, sql_type, what) // DAY


def to_time(given: object, sql_type: Type, what: str) -> int:
    """Read a time of day without a zone. Raises `invalid_value`."""
    if isinstance(given, time) and given.tzinfo is None:
        return _micros(date(1970, 1, 1), given)
    match = _TIME_TEXT.fullmatch(given) if isinstance(given, str) and len(given) < 100 else None
    if match is None:
        raise not_a(given, sql_type, what)
    hour, minute, second, fraction = match.groups()
    micros = _time_of(hour, minute, second, fraction, given, sql_type, what)
    if micros >= DAY:
        raise not_a(given, sql_type, what)
    return micros


def _micros(day: date, clock: time) -> int:
    seconds = (clock.hour * 60 + clock.minute) * 60 + clock.second
    return (day.toordinal() - EPOCH) * DAY + seconds * SECOND + clock.microsecond


def _time_of(
    hour: str, minute: str, second: str | None, fraction: str | None, given: object, sql_type: Type, what: str
) -> int:
    """Microseconds of a time of day; what lies beyond them is rounded, which may reach the next day."""
    if int(hour) > 23 or int(minute) > 59 or int(second or 0) > 59:
        raise not_a(given, sql_type, what)
    micros = (int((fraction or "0").ljust(9, "0")) + 500) // 1000
    return int(hour) * HOUR + int(minute) * MINUTE + int(second or 0) * SECOND + micros


def _bounded(micros: int, given: object, sql_type: Type, what: str) -> int:
    if not FIRST <= micros <= LAST:
        raise invalid_value(f'{what}: "{given}" is out of range for {sql_type.name}', out_of_range=True)
    return micros


# ------------------------------------------------------------------------ writing


@lru_cache(maxsize=1024)
def date_text(days: int) -> str:
    """Write a date: `2026-01-31`."""
    return date.fromordinal(days + EPOCH).isoformat()


def time_text(micros: int) -> str:
    """Write a time of day: `13:05:00`, with as many decimals as it needs."""
    seconds, rest = divmod(micros, SECOND)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    fraction = f".{rest:06d}".rstrip("0") if rest else ""
    return f"{hour:02d}:{minute:02d}:{second:02d}{fraction}"


def timestamp_text(micros: int) -> str:
    """Write a timestamp as PostgreSQL does: `2026-01-31 13:05:00`."""
    days, rest = divmod(micros, DAY)
    return f"{date_text(days)} {time_text(rest)}"


@lru_cache(maxsize=256)
def timestamp_iso(micros: int) -> str:
    """Write a timestamp in ISO 8601: `2026-01-31T13:05:00Z`."""
    days, rest = divmod(micros, DAY)
    return f"{date_text(days)}T{time_text(rest)}Z"


def to_datetime(micros: int) -> datetime:
    """Make a datetime without a zone, in UTC."""
    return _ZERO + timedelta(microseconds=micros)
