"""Values of columns: from JSON, protobuf, Python and SQL text to the engine's own (see `types`), and back."""

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from topics_service.engine.tables import datetimes, documents, numbers
from topics_service.engine.tables.errors import invalid_value
from topics_service.engine.tables.numbers import not_a
from topics_service.engine.tables.types import Kind, Type, Value

MAX_VALUE_BYTES: Final = 16 << 20
"""The most bytes of a TEXT, BYTES or JSON value, also of one that an expression makes."""
_UUID: Final = re.compile(r"\s*(\{)?((?:[0-9a-fA-F]{4}-?){7}[0-9a-fA-F]{4})(?(1)\})\s*", re.ASCII)
_USUAL_UUID: Final = re.compile("[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_WORDS: Final = {
    **{"true"[:size]: True for size in range(1, 5)},
    **{"false"[:size]: False for size in range(1, 6)},
    **dict.fromkeys(("yes", "ye", "y", "on", "1"), True),
    **dict.fromkeys(("no", "n", "off", "of", "0"), False),
}
_From = Callable[[Any, Type, str], Value]


def coerce(given: Any, sql_type: Type | None, what: str) -> Value:
    """Make a value of the type from one of JSON, protobuf, Python or SQL; text is read as PostgreSQL reads it.

    BYTES are base64, or hexadecimal after `\\x`. Text for JSON is a document, other values are taken as they are.
    With type None it keeps the type that it has. `what` names it in errors: `column "id"`, `$1`. Raises
    `invalid_value`: SQLSTATE 22P02, 22003 beyond a range, 22001 if too long.
    """
    if given is None:
        return None
    if sql_type is None:
        return coerce(given, type_of_value(given, what), what)
    return _FROM[sql_type.kind](given, sql_type, what)


def coercer(sql_type: Type, what: str) -> Callable[[Any], Value]:
    """`coerce` for one column: quick for what is of the type already, such as the rows of parameters."""
    convert = _FROM[sql_type.kind]
    if sql_type.kind in numbers.RANGES:
        low, high = numbers.RANGES[sql_type.kind]

        def integer(given: Any) -> Value:
            if given.__class__ is int and low <= given <= high:
                return int(given)
            return None if given is None else convert(given, sql_type, what)

        return integer
    if sql_type.kind is Kind.BOOLEAN:
        return lambda given: (
            given if given is None or given is True or given is False else convert(given, sql_type, what)
        )
    return lambda given: None if given is None else convert(given, sql_type, what)


def type_of_value(given: Any, what: str) -> Type:
    """The type that a value has by itself."""
    kind = next((kind for python, kind in _NATURAL if isinstance(given, python)), None)
    if kind is None:
        raise invalid_value(f"{what}: values of Python's {given.__class__.__name__} are none of SQL")
    if kind is Kind.BIGINT:
        low, high = numbers.RANGES[kind]
        return Type(kind if low <= given <= high else Kind.DECIMAL)
    return Type(kind)


def from_text(text: str, sql_type: Type, what: str) -> Value:
    """Read a literal of SQL as PostgreSQL does; BYTES are `\\x` with hexadecimal digits. Raises `invalid_value`."""
    if sql_type.kind is Kind.BYTES:
        return _hexadecimal(text, sql_type, what)
    return coerce(text, sql_type, what)


def _boolean(given: Any, sql_type: Type, what: str) -> bool:
    if isinstance(given, bool):
        return given
    word = _WORDS.get(given.strip().lower()) if isinstance(given, str) and len(given) < 100 else None
    if word is None:
        raise not_a(given, sql_type, what)
    return word


def _text(given: Any, sql_type: Type, what: str) -> str:
    if not isinstance(given, str):
        raise not_a(given, sql_type, what)
    if "\0" in given:
        raise invalid_value(f"{what}: NUL characters can't be stored in {sql_type.name}")
    if not given.isascii():
        try:
            size = len(given.encode())
        except UnicodeEncodeError:
            raise invalid_value(f"{what}: the text is no Unicode, it has half a surrogate pair") from None
    else:
        size = len(given)
    check_size(size, what)
    if sql_type.length and len(given) > sql_type.length:
        if given[sql_type.length :].strip(" "):
            raise invalid_value(f"{what}: {len(given)} characters are too long for {sql_type.name}", sqlstate="22001")
        return given[: sql_type.length]
    return given


def _bytes(given: Any, sql_type: Type, what: str) -> bytes:
    if isinstance(given, bytes | bytearray | memoryview):
        check_size(len(given), what)
        return bytes(given)
    if not isinstance(given, str):
        raise not_a(given, sql_type, what)
    if given.startswith("\\x"):
        return _hexadecimal(given, sql_type, what)
    check_size(len(given) * 3 // 4, what)
    try:
        return base64.b64decode(given, validate=True)
    except (binascii.Error, ValueError):
        raise not_a(given, sql_type, what) from None


def _hexadecimal(text: str, sql_type: Type, what: str) -> bytes:
    check_size(len(text) // 2, what)
    try:
        if text.startswith("\\x"):
            return binascii.unhexlify(text[2:])
    except (binascii.Error, ValueError):
        pass
    raise not_a(text, sql_type, what)


def _json(given: Any, sql_type: Type, what: str) -> str:
    if isinstance(given, str):
        check_size(len(given), what)
        document = documents.compact(given, sql_type, what)
    elif isinstance(given, bool | int | float | Mapping | list | tuple):
        document = documents.from_value(given, sql_type, what)
    else:
        raise not_a(given, sql_type, what)
    check_size(len(document), what)
    return document


def _uuid(given: Any, sql_type: Type, what: str) -> str:
    if isinstance(given, UUID):
        return str(given)
    if not isinstance(given, str) or len(given) > 99:
        raise not_a(given, sql_type, what)
    if _USUAL_UUID.fullmatch(given):
        return given
    match = _UUID.fullmatch(given)
    if match is None:
        raise not_a(given, sql_type, what)
    digits = match[2].replace("-", "").lower()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def check_size(size: int, what: str = "the result") -> None:
    """Refuse a text, bytes or a document beyond the bound. Raises `invalid_value`."""
    if size > MAX_VALUE_BYTES:
        raise invalid_value(f"{what}: {size} bytes are too long, at most {MAX_VALUE_BYTES}", sqlstate="22001")


_FROM: Final[Mapping[Kind, _From]] = {
    Kind.BOOLEAN: _boolean,
    Kind.SMALLINT: numbers.to_integer,
    Kind.INTEGER: numbers.to_integer,
    Kind.BIGINT: numbers.to_integer,
    Kind.REAL: numbers.to_float,
    Kind.DOUBLE: numbers.to_float,
    Kind.DECIMAL: numbers.to_decimal,
    Kind.TEXT: _text,
    Kind.BYTES: _bytes,
    Kind.JSON: _json,
    Kind.TIMESTAMP: datetimes.to_timestamp,
    Kind.DATE: datetimes.to_date,
    Kind.TIME: datetimes.to_time,
    Kind.UUID: _uuid,
}
_NATURAL: Final[tuple[tuple[Any, Kind], ...]] = (
    (bool, Kind.BOOLEAN),
    (int, Kind.BIGINT),
    (float, Kind.DOUBLE),
    (str, Kind.TEXT),
    (Decimal, Kind.DECIMAL),
    (bytes | bytearray | memoryview, Kind.BYTES),
    (datetime, Kind.TIMESTAMP),
    (date, Kind.DATE),
    (time, Kind.TIME),
    (UUID, Kind.UUID),
    (Mapping | list | tuple, Kind.JSON),
)


# ------------------------------------------------------------------------ writing


def to_json(value: Value, sql_type: Type | None) -> Any:
    """A value for JSON (D14): what `orjson` can write. Type None: numbers, text and booleans as they are."""
    convert = json_converter(sql_type)
    return value if value is None or convert is None else convert(value)


def json_converter(sql_type: Type | None) -> Callable[[Any], Any] | None:
    """The function that makes values of a type, NULL excepted, ready for JSON; None if they are so already."""
    return _plain if sql_type is None else _JSON.get(sql_type.kind)


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return numbers.decimal_text(value)
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def _json_float(value: float) -> float | str:
    return value if value - value == 0 else numbers.float_text(value, Kind.DOUBLE)


def _json_real(value: float) -> float | str:
    text = numbers.float_text(value, Kind.REAL)
    return float(text) if value - value == 0 else text


_JSON: Final[Mapping[Kind, Callable[[Any], Any]]] = {
    Kind.REAL: _json_real,
    Kind.DOUBLE: _json_float,
    Kind.DECIMAL: numbers.decimal_text,
    Kind.BYTES: lambda value: base64.b64encode(value).decode(),
    Kind.JSON: documents.to_value,
    Kind.TIMESTAMP: datetimes.timestamp_iso,
    Kind.DATE: datetimes.date_text,
    Kind.TIME: datetimes.time_text,
}


def to_text(value: Value, sql_type: Type | None) -> str | None:
    """A value as PostgreSQL writes it: what a cast to TEXT gives, and what `from_text` reads."""
    if value is None:
        return None
    if sql_type is None:
        sql_type = type_of_value(value, "the value")
    convert = TEXTS.get(sql_type.kind)
    return str(value) if convert is None else convert(value)


TEXTS: Final[Mapping[Kind, Callable[[Any], str]]] = {
    Kind.BOOLEAN: lambda value: "true" if value else "false",
    Kind.REAL: lambda value: numbers.float_text(value, Kind.REAL),
    Kind.DOUBLE: lambda value: numbers.float_text(value, Kind.DOUBLE),
    Kind.DECIMAL: numbers.decimal_text,
    Kind.BYTES: lambda value: f"\\x{value.hex()}",
    Kind.TIMESTAMP: datetimes.timestamp_text,
    Kind.DATE: datetimes.date_text,
    Kind.TIME: datetimes.time_text,
}
