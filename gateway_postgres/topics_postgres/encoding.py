"""Values of results as bytes, in text and in binary."""

import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final

from topics_postgres import oids
from topics_postgres.oids import CatalogKind
from topics_service.engine.tables import datetimes, numbers
from topics_service.engine.tables.types import Kind, Type, Value
from topics_service.engine.tables.values import to_text

Encoder = Callable[[Any], bytes]

EPOCH_MICROS: Final = 946_684_800_000_000
"""Microseconds from 1970 to 2000, where PostgreSQL counts from."""
EPOCH_DAYS: Final = 10_957
_BASE_DIGITS: Final = 4
_NEGATIVE: Final = 0x4000
_NAN: Final = 0xC000
_INFINITE: Final = 0xD000

_I16: Final = struct.Struct(">h").pack
_I32: Final = struct.Struct(">i").pack
_I64: Final = struct.Struct(">q").pack
_F32: Final = struct.Struct(">f").pack
_F64: Final = struct.Struct(">d").pack


def encoder(kind: Type | None, form: int) -> Encoder:
    """The function that encodes values of a type other than NULL; `form` is 0 for text, 1 for binary."""
    if kind is None:
        return _untyped
    return (BINARY if form else TEXT)[kind.kind]


def encoders(types: Sequence[Type | None], formats: Sequence[int]) -> list[Encoder]:
    """Those of the columns of a result."""
    return [encoder(kind, form) for kind, form in zip(types, formats, strict=True)]


def _untyped(value: Value) -> bytes:
    if isinstance(value, bool):
        return b"t" if value else b"f"
    return (to_text(value, None) or "").encode()


def decimal_binary(value: Decimal) -> bytes:
    """A NUMERIC: digits of base 10,000, the weight of the first, sign and scale."""
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        if value.is_nan():
            return struct.pack(">hhHh", 0, 0, _NAN, 0)
        return struct.pack(">hhHh", 0, 0, _INFINITE + (0x2000 if sign else 0), 0)
    scale = max(0, -exponent)
    text = "".join(map(str, digits)) + "0" * max(0, exponent)
    whole, fraction = (text[:-scale].lstrip("0"), text[-scale:].rjust(scale, "0")) if scale else (text.lstrip("0"), "")
    whole = whole.rjust(-(-len(whole) // _BASE_DIGITS) * _BASE_DIGITS, "0")
    fraction = fraction.ljust(-(-len(fraction) // _BASE_DIGITS) * _BASE_DIGITS, "0")
    weight = len(whole) // _BASE_DIGITS - 1
    joined = whole + fraction
    groups = [int(joined[at : at + _BASE_DIGITS]) for at in range(0, len(joined), _BASE_DIGITS)]
    while groups and not groups[0]:
        del groups[0]
        weight -= 1
    while groups and not groups[-1]:
        del groups[-1]
    if not groups:
        weight = 0
    flag = _NEGATIVE if sign and groups else 0
    return struct.pack(f">hhHh{len(groups)}h", len(groups), weight, flag, scale, *groups)


# Without frames of Python, as there is a call for each value of a result:
_text: Final = str.encode
_integer: Final = b"%d".__mod__
_boolean_text: Final = {False: b"f", True: b"t"}.__getitem__
_boolean: Final = {False: b"\0", True: b"\1"}.__getitem__


def array_of(element: int, encode: Encoder) -> Encoder:
    """The function that encodes arrays of one dimension in binary."""
    head = struct.Struct(">iiiii").pack

    def array(values: Sequence[Any]) -> bytes:
        parts = [head(1, int(None in values), element, len(values), 1) if values else _I32(0) * 2 + _I32(element)]
        for value in values:
            if value is None:
                parts.append(_I32(-1))
            else:
                made = encode(value)
                parts += (_I32(len(made)), made)
        return b"".join(parts)

    return array


def array_text(values: Sequence[Any]) -> bytes:
    """An array in text: `{a,"b c",NULL}`."""
    return "{{{}}}".format(",".join(map(_element, values))).encode()


def _element(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "t" if value else "f"
    text = str(value)
    if text and text.upper() != "NULL" and not any(each in '{},"\\' or each.isspace() for each in text):
        return text
    return '"{}"'.format(text.replace("\\", "\\\\").replace('"', '\\"'))


def _vector(values: Sequence[Any]) -> bytes:
    return " ".join(map(str, values)).encode()


TEXT: Final[dict[Kind | CatalogKind, Encoder]] = {
    Kind.BOOLEAN: _boolean_text,
    Kind.SMALLINT: _integer,
    Kind.INTEGER: _integer,
    Kind.BIGINT: _integer,
    Kind.REAL: lambda value: numbers.float_text(value, Kind.REAL).encode(),
    Kind.DOUBLE: lambda value: numbers.float_text(value, Kind.DOUBLE).encode(),
    Kind.DECIMAL: lambda value: numbers.decimal_text(value).encode(),
    Kind.TEXT: _text,
    Kind.BYTES: lambda value: b"\\x" + value.hex().encode(),
    Kind.JSON: _text,
    Kind.TIMESTAMP: lambda value: datetimes.timestamp_text(value).encode() + b"+00",
    Kind.DATE: lambda value: datetimes.date_text(value).encode(),
    Kind.TIME: lambda value: datetimes.time_text(value).encode(),
    Kind.UUID: _text,
}
BINARY: Final[dict[Kind | CatalogKind, Encoder]] = {
    Kind.BOOLEAN: _boolean,
    Kind.SMALLINT: _I16,
    Kind.INTEGER: _I32,
    Kind.BIGINT: _I64,
    Kind.REAL: _F32,
    Kind.DOUBLE: _F64,
    Kind.DECIMAL: decimal_binary,
    Kind.TEXT: _text,
    Kind.BYTES: bytes,
    Kind.JSON: lambda value: b"\1" + value.encode(),
    Kind.TIMESTAMP: lambda value: _I64(value - EPOCH_MICROS),
    Kind.DATE: lambda value: _I32(value - EPOCH_DAYS),
    Kind.TIME: _I64,
    Kind.UUID: lambda value: bytes.fromhex(value.replace("-", "")),
}

_U32: Final = struct.Struct(">I").pack
TEXT.update(dict.fromkeys(CatalogKind, array_text))
TEXT.update(
    {
        CatalogKind.OID: lambda value: str(value).encode(),
        CatalogKind.XID: lambda value: str(value).encode(),
        CatalogKind.INT2_VECTOR: _vector,
        CatalogKind.OID_VECTOR: _vector,
    }
)
BINARY.update(
    {
        CatalogKind.OID: _U32,
        CatalogKind.XID: _U32,
        CatalogKind.INT2_VECTOR: array_of(oids.INT2, _I16),
        CatalogKind.OID_VECTOR: array_of(oids.OID, _U32),
        CatalogKind.BOOL_ARRAY: array_of(oids.BOOL, BINARY[Kind.BOOLEAN]),
        CatalogKind.INT2_ARRAY: array_of(oids.INT2, _I16),
        CatalogKind.INT4_ARRAY: array_of(oids.INT4, _I32),
        CatalogKind.INT8_ARRAY: array_of(oids.INT8, _I64),
        CatalogKind.FLOAT4_ARRAY: array_of(oids.FLOAT4, _F32),
        CatalogKind.FLOAT8_ARRAY: array_of(oids.FLOAT8, _F64),
        CatalogKind.OID_ARRAY: array_of(oids.OID, _U32),
        CatalogKind.TEXT_ARRAY: array_of(oids.TEXT, _text),
    }
)
