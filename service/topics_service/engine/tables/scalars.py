"""The functions of SQL on values that are not NULL."""

import math
from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_UP, Decimal
from typing import Any, Final, TypeVar
from uuid import UUID

from ulid import ULID

from topics_service.engine.errors import Reason
from topics_service.engine.tables import arithmetic, documents
from topics_service.engine.tables.datetimes import DAY
from topics_service.engine.tables.errors import invalid_value, sql_error
from topics_service.engine.tables.numbers import DECIMALS, MAX_DIGITS, decimal_result, overflow
from topics_service.engine.tables.types import Kind, Type
from topics_service.engine.tables.values import check_size, to_json

Piece = TypeVar("Piece", str, bytes)
_MAX_COUNT: Final = 1 << 31
_VERSION_AND_VARIANT: Final = ~(0xF << 76 | 0x3 << 62)


def _missing(*_: Any) -> Any:
    raise sql_error(Reason.UNSUPPORTED_SQL, "functions of time and chance can't be used here")


class Environment:
    """The time, ids and random bytes for functions that are not immutable; without them such a call is refused.

    `now_us`: microseconds since 1970, the same within a statement. `message_id`: the next Snowflake id. `random`: a
    number of random bytes.
    """

    __slots__ = ("message_id", "now_us", "random")

    def __init__(
        self,
        now_us: Callable[[], int] = _missing,
        message_id: Callable[[], int] = _missing,
        random: Callable[[int], bytes] = _missing,
    ) -> None:
        self.now_us = now_us
        self.message_id = message_id
        self.random = random


# -------------------------------------------------------------------------- text


def trim(text: str, characters: str = " ") -> str:
    return text.strip(characters) if characters else text


def trim_left(text: str, characters: str = " ") -> str:
    return text.lstrip(characters) if characters else text


def trim_right(text: str, characters: str = " ") -> str:
    return text.rstrip(characters) if characters else text


def substring(text: Piece, start: int, count: int = _MAX_COUNT) -> Piece:
    """The characters at positions `start` to `start + count - 1`, as far as they are there."""
    if count < 0:
        raise invalid_value("substring has a negative count", sqlstate="22011")
    return text[max(0, start - 1) : max(0, start - 1 + count)]


def left(text: str, count: int) -> str:
    return text[:count]


def right(text: str, count: int) -> str:
    return text[-count:] if count else ""


def replace(text: str, old: str, new: str) -> str:
    if not old:
        return text
    if len(new) > len(old):
        check_size(len(text) + text.count(old) * (len(new) - len(old)))
    return text.replace(old, new)


def concatenate(*texts: str | None) -> str:
    check_size(sum([len(each) for each in texts if each]))
    return "".join([each for each in texts if each])


# ----------------------------------------------------------------------- numbers


def absolute(kind: Kind) -> Callable[[Any], Any]:
    if kind is Kind.DECIMAL:
        return lambda value: DECIMALS.abs(value)
    negate = arithmetic.negation(kind)
    assert negate is not None
    return abs if kind in (Kind.REAL, Kind.DOUBLE) else lambda value: negate(value) if value < 0 else value


def remainder(kind: Kind) -> Callable[[Any, Any], Any]:
    found = arithmetic.operator("%", kind)
    assert found is not None
    return found


def round_float(value: float) -> float:
    return float(round(value)) if math.isfinite(value) else value


def floor_float(value: float) -> float:
    return float(math.floor(value)) if math.isfinite(value) else value


def ceil_float(value: float) -> float:
    return float(math.ceil(value)) if math.isfinite(value) else value


def round_decimal(value: Decimal | int, decimals: int = 0) -> Decimal:
    number = Decimal(value)
    if decimals >= 0:
        if decimals > MAX_DIGITS:
            decimals = MAX_DIGITS
        return _quantized(number, decimals, ROUND_HALF_UP)
    if decimals < -MAX_DIGITS:
        return Decimal(0)
    tens = Decimal(1).scaleb(-decimals, context=DECIMALS)
    whole = DECIMALS.divide(number, tens).quantize(Decimal(1), ROUND_HALF_UP, context=DECIMALS)
    return decimal_result(DECIMALS.multiply(whole, tens).quantize(Decimal(1), context=DECIMALS))


def floor_decimal(value: Decimal) -> Decimal:
    return _quantized(value, 0, ROUND_FLOOR)


def ceil_decimal(value: Decimal) -> Decimal:
    return _quantized(value, 0, ROUND_CEILING)


def _quantized(value: Decimal, decimals: int, rounding: str) -> Decimal:
    unit = Decimal(1).scaleb(-decimals, context=DECIMALS)
    made = value.quantize(unit, rounding, context=DECIMALS)
    if made.adjusted() > MAX_DIGITS - 1:
        raise overflow(Kind.DECIMAL.value)
    return made if made else made.copy_abs()


# -------------------------------------------------------------- documents and ids


def array_length(document: str) -> int:
    items = documents.elements(document)
    if items is None:
        raise invalid_value(f"a JSON {documents.type_name(document)} has no length", sqlstate="22023")
    return len(items)


def json_of(value: Any, kind: Type) -> str:
    """A value as JSON."""
    if kind.kind is Kind.JSON:
        return str(value)
    if kind.kind is Kind.DECIMAL:
        return str(to_json(value, kind))
    return documents.from_value(to_json(value, kind), kind, "to_json")


def json_type(document: str) -> str:
    return documents.type_name(document)


def today(environment: Environment) -> int:
    return environment.now_us() // DAY


def uuid_v4(environment: Environment) -> str:
    return _uuid(int.from_bytes(environment.random(16), "big"), 4)


def uuid_v7(environment: Environment) -> str:
    milliseconds = environment.now_us() // 1000
    return _uuid(milliseconds << 80 | int.from_bytes(environment.random(10), "big"), 7)


def _uuid(bits: int, version: int) -> str:
    return str(UUID(int=bits & _VERSION_AND_VARIANT | version << 76 | 0x2 << 62))


def ulid(environment: Environment) -> str:
    milliseconds = environment.now_us() // 1000
    return str(ULID.from_bytes(milliseconds.to_bytes(6, "big") + environment.random(10)))
