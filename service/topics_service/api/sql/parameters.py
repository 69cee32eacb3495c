"""Parameters of statements, from the values of a request to those of the engine."""

from collections.abc import Sequence
from typing import Any, Final

from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.tables.errors import sql_error
from topics_service.engine.tables.types import Kind, Type, Value
from topics_service.engine.tables.values import MAX_VALUE_BYTES, coerce, coercer

_NULL: Final = type(None)
_RANGES: Final = {
    Kind.SMALLINT: (-(1 << 15), (1 << 15) - 1),
    Kind.INTEGER: (-(1 << 31), (1 << 31) - 1),
    Kind.BIGINT: (-(1 << 63), (1 << 63) - 1),
}


def one_row(given: Sequence[Any], types: Sequence[Type | None], *, exactly: bool = True) -> list[Value]:
    """The values of $1, $2 and so on. Raises `invalid_request` for a wrong number, `invalid_value` for a bad value.

    `exactly`: there may not be more of them than the statement uses.
    """
    if len(given) < len(types) or (exactly and len(given) > len(types)):
        raise _wrong_count(len(given), types)
    pairs = zip(given, types, strict=False)
    return [coerce(value, wanted, f"${number}") for number, (value, wanted) in enumerate(pairs, 1)]


def many_rows(rows: Sequence[Sequence[Any]], types: Sequence[Type | None]) -> list[Sequence[Value]]:
    """The rows of parameters of one statement, read a column at a time. Raises as `one_row`, with the `row`, from 0."""
    for number, row in enumerate(rows):
        if len(row) != len(types):
            raise _wrong_count(len(row), types, row=number)
    if not types:
        return [()] * len(rows)
    columns = zip(zip(*rows, strict=True), types, strict=True)
    read = [_column(column, wanted, f"${number}") for number, (column, wanted) in enumerate(columns, 1)]
    return list(zip(*read, strict=True))


def _column(given: Sequence[Any], wanted: Type | None, what: str) -> Sequence[Value]:
    if wanted is not None and _is_plain(given, wanted):
        return given
    convert = coercer(wanted, what) if wanted is not None else lambda value: coerce(value, None, what)
    read: list[Value] = []
    try:
        read.extend(map(convert, given))  # those before an error
    except TopicsError as error:
        error.detail = {**(error.detail or {}), "row": len(read)}
        raise
    return read


def _is_plain(given: Sequence[Any], wanted: Type) -> bool:
    """Return whether all values are already as the engine has those of the type; looks at all of them at once."""
    classes = set(map(type, given))
    if _NULL in classes:
        classes.discard(_NULL)
        given = [value for value in given if value is not None]
    if not given or (classes == {bool} and wanted.kind is Kind.BOOLEAN):
        return True
    if classes == {int} and wanted.kind in _RANGES:
        low, high = _RANGES[wanted.kind]
        return bool(low <= min(given) and max(given) <= high)
    if classes == {str} and wanted == Type(Kind.TEXT):
        text = "".join(given)
        return text.isascii() and "\0" not in text and len(text) <= MAX_VALUE_BYTES
    return False


def _wrong_count(given: int, types: Sequence[Type | None], **facts: Any) -> TopicsError:
    message = f"the statement has {len(types)} parameters, and {given} values are given"
    return sql_error(Reason.INVALID_REQUEST, message, **facts)
