"""Fields and units of times: extract and date_trunc."""

from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
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
