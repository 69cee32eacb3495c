"""CAST: which types can become which, and how; the same conversions happen where operands of numbers differ."""

import math
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, Final

from topics_service.engine.errors import Reason
from topics_service.engine.tables import datetimes, documents, numbers
from topics_service.engine.tables.errors import invalid_value, sql_error
from topics_service.engine.tables.types import Kind, Type, Value
from topics_service.engine.tables.values import TEXTS, coerce, from_text

Conversion = Callable[[Any], Value]
INTEGERS: Final = frozenset({Kind.SMALLINT, Kind.INTEGER, Kind.BIGINT})
FLOATS: Final = frozenset({Kind.REAL, Kind.DOUBLE})
NUMBERS: Final = INTEGERS | FLOATS | {Kind.DECIMAL}
_WHAT: Final = "CAST"


def castable(source: Type | None, target: Type) -> bool:
    """Tell whether values of one type can be cast to another. None is the type of NULL and of untyped parameters."""
    if source is None or source.kind is target.kind or Kind.TEXT in (source.kind, target.kind):
        return True
    if target.kind in NUMBERS:
        return source.kind in NUMBERS or source.kind is Kind.JSON or _is(source, Kind.BOOLEAN, target, INTEGERS)
    return (source.kind, target.kind) in _OTHERS or (target.kind is Kind.BOOLEAN and source.kind in INTEGERS)


def _is(source: Type, kind: Kind, target: Type, kinds: frozenset[Kind]) -> bool:
    return source.kind is kind and target.kind in kinds


def caster(source: Type | None, target: Type) -> Conversion | None:
    """The function of a CAST for values that are not NULL; None if they stay as they are.

    Raises `unsupported_sql` (42846) for types that can't be cast.
    """
    if not castable(source, target):
        assert source is not None
        message = f"a value of type {source.name} can't be cast to {target.name}"
        raise sql_error(Reason.UNSUPPORTED_SQL, message, sqlstate="42846")
    if source is None:
        return lambda value: coerce(value, target, _WHAT)
    if target.kind is Kind.TEXT:
        return _to_text(source, target)
    if source.kind is Kind.TEXT:
        return lambda value: from_text(value, target, _WHAT)
    if source.kind is Kind.JSON and target.kind is not Kind.JSON:
        return lambda value: _from_document(value, target)
    if target.kind in INTEGERS:
        return _to_integer(source, target)
    if target.kind in FLOATS:
        if target.kind is source.kind or (source.kind is Kind.REAL and target.kind is Kind.DOUBLE):
            return None
        return lambda value: numbers.to_float(value, target, _WHAT)
    if target.kind is Kind.DECIMAL:
        if source.kind is Kind.DECIMAL and (not target.precision or source == target):
            return None
        return lambda value: numbers.to_decimal(value, target, _WHAT)
    if target.kind is Kind.BOOLEAN and source.kind in INTEGERS:
        return lambda value: bool(value)
    return _OTHERS.get((source.kind, target.kind))


def _to_text(source: Type, target: Type) -> Conversion | None:
    text = TEXTS.get(source.kind)
    if text is None and source.kind in INTEGERS:
        text = str
    length = target.length
    if not length or (source.kind is Kind.TEXT and 0 < source.length <= length):
        return text
    if text is None:
        return lambda value: str(value[:length])  # a cast cuts; only a stored value that is too long is refused
    return lambda value: str(text(value))[:length]


def _to_integer(source: Type, target: Type) -> Conversion | None:
    low, high = numbers.RANGES[target.kind]
    if source.kind is Kind.BOOLEAN:
        return lambda value: int(value)
    if source.kind in INTEGERS:
        source_low, _ = numbers.RANGES[source.kind]
        if source_low >= low:
            return None
    is_float = source.kind in FLOATS

    def convert(value: Any) -> int:
        number: int
        if is_float:
            if not math.isfinite(value):
                raise numbers.out_of_range(value, target, _WHAT)
            number = round(value)  # half to even
        elif isinstance(value, Decimal):
            number = int(value.to_integral_value(ROUND_HALF_UP))
        else:
            number = int(value)
        if not low <= number <= high:
            raise numbers.out_of_range(value, target, _WHAT)
        return number

    return convert


def _from_document(document: str, target: Type) -> Value:
    """Read a JSON number or boolean. Raises `invalid_value` for another value."""
    text = documents.text_of(document)
    if text is None:
        return None
    if document.startswith(('"', "[", "{")) or (document in ("true", "false")) != (target.kind is Kind.BOOLEAN):
        raise invalid_value(f"{_WHAT}: a JSON {documents.type_name(document)} is not a valid {target.name}")
    if target.kind in INTEGERS:
        number = numbers.to_decimal(text, Type(Kind.DECIMAL), _WHAT)
        return numbers.to_integer(number.to_integral_value(ROUND_HALF_UP), target, _WHAT)
    return from_text(text, target, _WHAT)


_OTHERS: Final[dict[tuple[Kind, Kind], Conversion]] = {
    (Kind.DATE, Kind.TIMESTAMP): lambda value: value * datetimes.DAY,
    (Kind.TIMESTAMP, Kind.DATE): lambda value: value // datetimes.DAY,
    (Kind.TIMESTAMP, Kind.TIME): lambda value: value % datetimes.DAY,
    (Kind.JSON, Kind.BOOLEAN): lambda value: _from_document(value, Type(Kind.BOOLEAN)),
}


def common(types: list[Type | None]) -> Type | None:
    """The type that values of these types share, as CASE, COALESCE and IN need it. Raises `invalid_value` 42804."""
    known = [each for each in types if each is not None]
    if not known:
        return None
    widest = known[0]
    for each in known[1:]:
        if each == widest:
            continue
        kinds = {each.kind, widest.kind}
        if len(kinds) == 1:
            widest = Type(each.kind)
        elif kinds <= NUMBERS:
            widest = Type(max(kinds, key=_WIDTHS.index))
        elif kinds == {Kind.DATE, Kind.TIMESTAMP}:
            widest = Type(Kind.TIMESTAMP)
        else:
            message = f"values of types {widest.name} and {each.name} can't be matched"
            raise invalid_value(message, sqlstate="42804")
    return widest


_WIDTHS: Final = (Kind.SMALLINT, Kind.INTEGER, Kind.BIGINT, Kind.DECIMAL, Kind.REAL, Kind.DOUBLE)
