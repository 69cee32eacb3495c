"""Keys of rows and indexes: values as bytes that are ordered as the values are.

A value is a tag (0 for NULL, which comes first; 1 otherwise) and its bytes:

    integers, DATE, TIME, TIMESTAMP   8 bytes, big-endian, the sign bit flipped
    BOOLEAN                           one byte
    REAL, DOUBLE                      the 8 bytes of a double, all bits flipped if it is negative, else the sign bit;
                                      -0 becomes 0, and NaN is the last
    TEXT, BYTES                       the bytes with 00 as 00 FF, then 00 01
    UUID                              16 bytes
    DECIMAL(p, s)                     16 bytes: the digits as an integer, big-endian, the sign bit flipped
    DECIMAL                           a byte for the sign, the exponent and the digits; all inverted if it is negative

The key of several values is one after the other, so the key of the first ones is a prefix of it. Integers of all
widths have the same bytes, as have REAL and DOUBLE: a column can become wider without its keys changing.
"""

import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final, NamedTuple
from uuid import UUID

from topics_service.engine.errors import Reason
from topics_service.engine.tables.errors import sql_error
from topics_service.engine.tables.numbers import DECIMALS
from topics_service.engine.tables.types import Kind, Type, Value

MAX_KEY_BYTES: Final = 8 << 10
_NULL: Final = b"\0"
_SIGN: Final = 1 << 63
_ONES: Final = (1 << 64) - 1
_DECIMAL_SIGN: Final = 1 << 127
_NUMBER: Final = struct.Struct(">BQ")
_DOUBLE: Final = struct.Struct(">d")
_BITS: Final = struct.Struct(">Q")
_EXPONENTS: Final = 1 << 15
_INVERTED: Final = bytes(255 - byte for byte in range(256))
_NAN: Final = _BITS.unpack(_DOUBLE.pack(float("nan")))[0] & ~_SIGN
_NEGATIVE, _ZERO, _POSITIVE = b"\1\1", b"\1\2", b"\1\3"
_DIGITS: Final = frozenset(b"0123456789")

_Encoded = Callable[[Any], bytes]
_Decoded = tuple[Value, int]
"""A value and where the next one begins."""


class CorruptKeyError(ValueError):
    """The stored bytes are no key of these types."""


class _Codec(NamedTuple):
    encode: _Encoded
    decode: Callable[[bytes, int], _Decoded]
    """Decodes what follows the tag, or raises CorruptKeyError, IndexError, ValueError or struct.error."""


def encode(values: Sequence[Value], types: Sequence[Type]) -> bytes:
    """Make the key of some values. Raises `record_too_large` (54000) beyond 8 KiB."""
    return encoder(tuple(types))(values)


def decode(key: bytes, types: Sequence[Type]) -> list[Value]:
    """Read a whole key. Raises CorruptKeyError."""
    values, stop = decode_prefix(key, types)
    if stop != len(key):
        raise CorruptKeyError(f"{len(key) - stop} bytes follow a key of {len(types)} values")
    return values


def decode_prefix(key: bytes, types: Sequence[Type], start: int = 0) -> tuple[list[Value], int]:
    """Read the values at `start`, and tell where they end. Raises CorruptKeyError."""
    values: list[Value] = []
    try:
        for each in types:
            tag = key[start]
            if tag == 1:
                value, start = _codec(each).decode(key, start + 1)
                values.append(value)
            elif tag == 0:
                values.append(None)
                start += 1
            else:
                raise CorruptKeyError(f"{tag} is no tag of a value in a key")
    except CorruptKeyError:
        raise
    except (IndexError, ValueError, struct.error) as error:
        raise CorruptKeyError(f"{len(key)} bytes are no key of {len(types)} values") from error
    return values, start


@lru_cache(maxsize=1024)
def encoder(types: tuple[Type, ...]) -> Callable[[Sequence[Value]], bytes]:
    """The function that makes keys of values of these types: `encode` for many keys."""
    codecs = [_codec(each).encode for each in types]
    if codecs == [_integer]:
        pack = _NUMBER.pack

        def integer(values: Sequence[Any]) -> bytes:
            (value,) = values
            return _NULL if value is None else pack(1, value + _SIGN)

        return integer

    if len(codecs) == 1:
        (only,) = codecs

        def single(values: Sequence[Value]) -> bytes:
            (value,) = values
            key = _NULL if value is None else only(value)
            return key if len(key) <= MAX_KEY_BYTES else _refused(key)

        return single

    if len(codecs) == 2:
        first, second = codecs

        def pair(values: Sequence[Value]) -> bytes:
            one, two = values
            key = (_NULL if one is None else first(one)) + (_NULL if two is None else second(two))
            return key if len(key) <= MAX_KEY_BYTES else _refused(key)

        return pair

    def several(values: Sequence[Value]) -> bytes:
        parts = [_NULL if value is None else encoded(value) for encoded, value in zip(codecs, values, strict=True)]
        key = b"".join(parts)
        return key if len(key) <= MAX_KEY_BYTES else _refused(key)

    return several


def _refused(key: bytes) -> bytes:
    raise sql_error(
        Reason.RECORD_TOO_LARGE, f"a key of {len(key)} bytes is too long: at most {MAX_KEY_BYTES}", bytes=len(key)
    )


# ------------------------------------------------------------------ fixed widths


def _integer(value: int) -> bytes:
    return _NUMBER.pack(1, value + _SIGN)


def _read_integer(key: bytes, start: int) -> _Decoded:
    return _BITS.unpack_from(key, start)[0] - _SIGN, start + 8


def _boolean(value: bool) -> bytes:
    return b"\1\1" if value else b"\1\0"


def _read_boolean(key: bytes, start: int) -> _Decoded:
    if key[start] > 1:
        raise CorruptKeyError("a boolean in a key is neither 0 nor 1")
    return key[start] == 1, start + 1


def _float(value: float) -> bytes:
    if value != value:
        return _NUMBER.pack(1, _NAN | _SIGN)
    bits = _BITS.unpack(_DOUBLE.pack(value + 0.0))[0]  # -0.0 + 0.0 is 0.0
    return _NUMBER.pack(1, bits ^ _ONES if bits & _SIGN else bits | _SIGN)


def _read_float(key: bytes, start: int) -> _Decoded:
    bits = _BITS.unpack_from(key, start)[0]
    return _DOUBLE.unpack(_BITS.pack(bits & ~_SIGN if bits & _SIGN else bits ^ _ONES))[0], start + 8


def _uuid(value: str) -> bytes:
    return b"\1" + bytes.fromhex(value.replace("-", ""))


def _read_uuid(key: bytes, start: int) -> _Decoded:
    return str(UUID(bytes=key[start : start + 16])), start + 16


# --------------------------------------------------------------- text and decimals


def _bytes(value: bytes) -> bytes:
    return b"\1" + (value.replace(b"\0", b"\0\xff") if b"\0" in value else value) + b"\0\1"


def _read_bytes(key: bytes, start: int) -> tuple[bytes, int]:
    at = start
    while True:
        at = key.index(b"\0", at)
        if key[at + 1] == 1:
            return key[start:at].replace(b"\0\xff", b"\0"), at + 2
        if key[at + 1] != 0xFF:
            raise CorruptKeyError("a NUL in a key is neither escaped nor the end of a text")
        at += 2


def _text(value: str) -> bytes:
    return _bytes(value.encode())


def _read_text(key: bytes, start: int) -> _Decoded:
    text, stop = _read_bytes(key, start)
    return text.decode(), stop


def _scaled(scale: int) -> _Codec:
    unit = Decimal(1).scaleb(-scale, context=DECIMALS)

    def encoded(value: Decimal) -> bytes:
        digits = int(value.scaleb(scale, context=DECIMALS))
        return b"\1" + (digits + _DECIMAL_SIGN).to_bytes(16, "big")

    def decoded(key: bytes, start: int) -> _Decoded:
        if len(key) < start + 16:
            raise CorruptKeyError("a decimal in a key is cut off")
        digits = int.from_bytes(key[start : start + 16], "big") - _DECIMAL_SIGN
        return DECIMALS.multiply(Decimal(digits), unit), start + 16

    return _Codec(encoded, decoded)


def _decimal(value: Decimal) -> bytes:
    if not value:
        return _ZERO
    exponent = value.adjusted() + _EXPONENTS
    digits = "".join(map(str, value.as_tuple().digits)).rstrip("0").encode()
    body = exponent.to_bytes(2, "big") + digits + b"\0"
    return _POSITIVE + body if value > 0 else _NEGATIVE + body.translate(_INVERTED)


def _read_decimal(key: bytes, start: int) -> _Decoded:
    sign = key[start : start + 1]
    if sign == b"\2":
        return Decimal(0), start + 1
    if sign not in (b"\1", b"\3"):
        raise CorruptKeyError("a decimal in a key has no sign")
    positive = sign == b"\3"
    stop = key.index(b"\0" if positive else b"\xff", start + 3)
    body = key[start + 1 : stop] if positive else key[start + 1 : stop].translate(_INVERTED)
    digits, exponent = body[2:], int.from_bytes(body[:2], "big") - _EXPONENTS
    if not digits or not _DIGITS.issuperset(digits) or len(digits) > 80 or abs(exponent) > 80:
        raise CorruptKeyError("a decimal in a key has no digits, or too many")
    number = Decimal(int(digits)).scaleb(exponent - len(digits) + 1, context=DECIMALS)
    return number if positive else number.copy_negate(), stop + 1


_CODECS: Final = {
    **dict.fromkeys(
        (Kind.SMALLINT, Kind.INTEGER, Kind.BIGINT, Kind.TIMESTAMP, Kind.DATE, Kind.TIME),
        _Codec(_integer, _read_integer),
    ),
    **dict.fromkeys((Kind.REAL, Kind.DOUBLE), _Codec(_float, _read_float)),
    Kind.BOOLEAN: _Codec(_boolean, _read_boolean),
    Kind.TEXT: _Codec(_text, _read_text),
    Kind.BYTES: _Codec(_bytes, _read_bytes),
    Kind.UUID: _Codec(_uuid, _read_uuid),
    Kind.DECIMAL: _Codec(_decimal, _read_decimal),
}


@lru_cache(maxsize=1024)
def _codec(sql_type: Type) -> _Codec:
    if sql_type.kind is Kind.DECIMAL and sql_type.precision:
        return _scaled(sql_type.scale)
    codec = _CODECS.get(sql_type.kind)
    if codec is None:
        raise sql_error(Reason.UNSUPPORTED_SQL, f"{sql_type.name} has no order: it can't be part of a key")
    return codec
