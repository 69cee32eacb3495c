"""Values of parameters and of COPY, from the bytes of a client to what the engine takes."""

import re
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from topics_postgres import oids
from topics_postgres.encoding import EPOCH_DAYS, EPOCH_MICROS
from topics_postgres.errors import PgError
from topics_service.engine.tables import datetimes

Decoder = Callable[[bytes], Any]

_BASE_DIGITS: Final = 4
_NEGATIVE: Final = 0x4000
_SPECIAL: Final = {0xC000: Decimal("NaN"), 0xD000: Decimal("Infinity"), 0xF000: Decimal("-Infinity")}
_MAX_WEIGHT: Final = 40
"""The most groups of digits in front of the point, and decimals by four: more than any DECIMAL has."""
_ELEMENT: Final = re.compile(
    r"""\s*+(?:"(?P<quoted>(?:[^"\\]|\\.)*+)"\s*+|(?P<plain>(?:[^"\\{},]|\\.)++))""", re.DOTALL
)
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_MICROS: Final = (-62_135_596_800_000_000, 253_402_300_799_999_999)  # years 1 to 9999
_DAYS: Final = (-719_162, 2_932_896)
_DAY_MICROS: Final = 86_400_000_000


def decoder(oid: int, form: int) -> Decoder:
    """The function that decodes values of an OID. Raises PgError for a type that there is not in binary."""
    if not form:
        return _TEXTS.get(oid, text)
    found = BINARY.get(oid)
    if found is None:
        raise PgError("0A000", f"parameters of the type with OID {oid} are not supported in binary")
    return found


def text(data: bytes) -> str:
    """A text."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise PgError("22021", "the value is not valid UTF-8") from None


def bytea_text(data: bytes) -> bytes:
    """Bytes in text: `\\x` with hexadecimal digits, or the older form with octal escapes."""
    if data.startswith(b"\\x"):
        try:
            return bytes.fromhex(data[2:].decode("ascii"))
        except ValueError:
            raise PgError("22P02", "invalid hexadecimal data for bytea") from None
    if b"\\" not in data:
        return data
    made, at = bytearray(), 0
    while at < len(data):
        if data[at] != 0x5C:
            made.append(data[at])
            at += 1
        elif data[at + 1 : at + 2] == b"\\":
            made.append(0x5C)
            at += 2
        else:
            octal = data[at + 1 : at + 4]
            if len(octal) != 3 or not octal.isdigit() or not octal < b"400" or b"8" in octal or b"9" in octal:
                raise PgError("22P02", "invalid escape in bytea")
            made.append(int(octal, 8))
            at += 4
    return bytes(made)


def _number(make: Callable[[str], Any], name: str) -> Decoder:
    def decode(data: bytes) -> Any:
        given = text(data)
        try:
            return make(given) if len(given) < 2000 and "_" not in given else given
        except (ValueError, ArithmeticError):
            return given  # the engine says what is wrong with it

    decode.__doc__ = f"A number of type {name}."
    return decode


def _unpacked(form: str) -> Decoder:
    layout = struct.Struct(form)

    def decode(data: bytes) -> Any:
        if len(data) != layout.size:
            raise PgError("22P03", f"a binary value has {len(data)} bytes, its type has {layout.size}")
        return layout.unpack(data)[0]

    return decode


def decimal_binary(data: bytes) -> Decimal:
    """A NUMERIC."""
    if len(data) < 8:
        raise _malformed("numeric")
    count, weight, sign, scale = struct.unpack_from(">hhHH", data)
    if sign in _SPECIAL:
        return _SPECIAL[sign]
    if sign not in (0, _NEGATIVE) or count < 0 or len(data) != 8 + 2 * count:
        raise _malformed("numeric")
    if not -_MAX_WEIGHT <= weight <= _MAX_WEIGHT or count > 2 * _MAX_WEIGHT or scale > _BASE_DIGITS * _MAX_WEIGHT:
        raise PgError("22003", "the number has too many digits")
    digits = struct.unpack_from(f">{count}h", data, 8)
    if any(not 0 <= digit < 10**_BASE_DIGITS for digit in digits):
        raise _malformed("numeric")
    whole = int("".join(f"{digit:04d}" for digit in digits) or "0")
    value = Decimal(f"{'-' if sign else ''}{whole}E{(weight - count + 1) * _BASE_DIGITS}")
    return Decimal(format(value, f".{scale}f"))


_i64: Final = _unpacked(">q")
_i32: Final = _unpacked(">i")
_flag: Final = _unpacked(">?")


def _timestamp(data: bytes) -> str:
    micros = _i64(data) + EPOCH_MICROS
    if not _MICROS[0] <= micros <= _MICROS[1]:
        raise PgError("22008", "the timestamp is outside the years 1 to 9999")
    return datetimes.timestamp_iso(micros)


def _date(data: bytes) -> str:
    days = _i32(data) + EPOCH_DAYS
    if not _DAYS[0] <= days <= _DAYS[1]:
        raise PgError("22008", "the date is outside the years 1 to 9999")
    return datetimes.date_text(days)


def _time(data: bytes) -> str:
    micros = _i64(data)
    if not 0 <= micros < _DAY_MICROS:
        raise PgError("22008", "the time is outside a day")
    return datetimes.time_text(micros)


def _uuid(data: bytes) -> str:
    if len(data) != 16:
        raise _malformed("uuid")
    return str(UUID(bytes=data))


def _jsonb(data: bytes) -> str:
    if data[:1] != b"\1":
        raise _malformed("jsonb")
    return text(data[1:])


def array_text(given: str) -> list[str | None]:
    """The elements of an array of one dimension in text: `{a,"b c",NULL}`. Raises PgError."""
    text = given.strip()
    if not text.startswith("{") or not text.endswith("}"):
        raise PgError("22P02", f'malformed array literal: "{given[:80]}"')
    found: list[str | None] = []
    at, end = 1, len(text) - 1
    if not text[1:end].strip():
        return found
    while True:
        element = _ELEMENT.match(text, at, end)
        if element is None:
            raise PgError("22P02", f'malformed array literal: "{given[:80]}"')
        whole, at = element["quoted"], element.end()
        if whole is None:
            plain = element["plain"].strip()
            found.append(None if plain.upper() == "NULL" else _ESCAPE.sub(r"\1", plain))
        else:
            found.append(_ESCAPE.sub(r"\1", whole))
        if at >= end:
            return found
        if text[at] != ",":
            raise PgError("22P02", f'malformed array literal: "{given[:80]}"')
        at += 1


def _array_in_text(element: int) -> Decoder:
    decode = _TEXTS.get(element, text)
    return lambda data: [None if each is None else decode(each.encode()) for each in array_text(text(data))]


def _array_in_binary(element: int) -> Decoder:
    """The function that decodes arrays of one dimension."""
    decode = BINARY[element]

    def array(data: bytes) -> list[Any]:
        if len(data) < 12:
            raise _malformed("array")
        dimensions, _, given = struct.unpack_from(">iii", data)
        if not dimensions:
            return []
        if dimensions != 1 or len(data) < 20:
            raise PgError("0A000", "arrays of several dimensions are not supported")
        if ELEMENTS_ALIKE.get(given, given) != ELEMENTS_ALIKE.get(element, element):
            raise _malformed("array")
        count, at = struct.unpack_from(">i", data, 12)[0], 20
        if not 0 <= count <= len(data) // 4:
            raise _malformed("array")
        values: list[Any] = []
        for _ in range(count):
            if len(data) < at + 4:
                raise _malformed("array")
            size = struct.unpack_from(">i", data, at)[0]
            at += 4
            if size < -1 or at + max(size, 0) > len(data):
                raise _malformed("array")
            values.append(None if size < 0 else decode(data[at : at + size]))
            at += max(size, 0)
        if at != len(data):
            raise _malformed("array")
        return values

    return array


def _malformed(name: str) -> PgError:
    return PgError("22P03", f"a binary value is none of type {name}")


_TEXTS: Final[dict[int, Decoder]] = {
    oids.BYTEA: bytea_text,
    oids.INT2: _number(int, "smallint"),
    oids.INT4: _number(int, "integer"),
    oids.INT8: _number(int, "bigint"),
    oids.OID: _number(int, "oid"),
    oids.FLOAT4: _number(float, "real"),
    oids.FLOAT8: _number(float, "double precision"),
    oids.NUMERIC: _number(Decimal, "numeric"),
}
BINARY: Final[dict[int, Decoder]] = {
    oids.BOOL: _flag,
    oids.INT2: _unpacked(">h"),
    oids.INT4: _i32,
    oids.INT8: _i64,
    oids.OID: _unpacked(">I"),
    oids.FLOAT4: _unpacked(">f"),
    oids.FLOAT8: _unpacked(">d"),
    oids.NUMERIC: decimal_binary,
    oids.BYTEA: bytes,
    oids.JSONB: _jsonb,
    oids.TIMESTAMP: _timestamp,
    oids.TIMESTAMPTZ: _timestamp,
    oids.DATE: _date,
    oids.TIME: _time,
    oids.UUID: _uuid,
    **dict.fromkeys((oids.TEXT, oids.VARCHAR, oids.BPCHAR, oids.NAME, oids.CHAR, oids.UNKNOWN, oids.JSON, 0), text),
}
ELEMENTS_ALIKE: Final = dict.fromkeys((oids.TEXT, oids.VARCHAR, oids.BPCHAR, oids.NAME, oids.CHAR), oids.TEXT)
"""Types that clients take for one another in arrays."""
_TEXTS.update({array: _array_in_text(element) for element, array in oids.ARRAYS.items()})
BINARY.update({array: _array_in_binary(element) for element, array in oids.ARRAYS.items()})
