"""Zigzag varints, the numbers inside records."""

from typing import Final

_MASK: Final = (1 << 64) - 1


class MalformedRecordError(ValueError):
    """The bytes are not a record."""


def varint(value: int) -> bytes:
    """The varint of a signed 64-bit number."""
    rest = (value << 1 ^ value >> 63) & _MASK
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at `at` and where it ends. Raises MalformedRecordError if `data` ends first, or after ten bytes."""
    value = shift = 0
    try:
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 63:
                raise MalformedRecordError("a number of more than ten bytes")
    except IndexError:
        raise MalformedRecordError("a number is cut off") from None
    value &= _MASK
    value = value >> 1 ^ -(value & 1)
    return value, at
