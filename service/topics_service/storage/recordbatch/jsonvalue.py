"""Detection of JSON values: exactly one JSON text in UTF-8, checked as strictly as an append does."""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Raw

JSON: Final = 0  # the bytes of a kinds column
BINARY: Final = 1

_VALUE: Final = msgspec.json.Decoder(Raw)
_VALUES: Final = msgspec.json.Decoder(list[Raw])
_STARTS: Final = frozenset(b'{["-0123456789tfn \t\r\n')
_RUN: Final = 64
_RUN_BYTES: Final = 1 << 20  # that are joined: the copy takes no more memory than that, as text four times as much
# msgspec reports bad text as any of these, depending on where it stumbles.
MALFORMED: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def is_json(value: bytes) -> bool:
    """Return whether this is one JSON text. Outer white space is allowed; lone surrogates and deep nesting are not."""
    try:
        if not value.isascii():
            value.decode()  # msgspec skips over string bytes when it makes a Raw
        _VALUE.decode(value)
    except MALFORMED:
        return False
    return True


def kinds_of(values: Sequence[bytes]) -> bytes | None:
    """The kind of each value, one byte for each; None if all are JSON.

    Mostly one pass over all of them; only runs of values with a doubtful one in it are looked at one by one.
    """
    if all_json(values):
        return None
    kinds = bytearray([BINARY]) * len(values)
    doubtful = [i for i, value in enumerate(values) if value and value[0] in _STARTS]
    for at in range(0, len(doubtful), _RUN):
        run = doubtful[at : at + _RUN]
        if all_json([values[i] for i in run]):
            for i in run:
                kinds[i] = JSON
        else:
            for i in run:
                if is_json(values[i]):
                    kinds[i] = JSON
    return bytes(kinds) if BINARY in kinds else None


def all_json(values: Sequence[bytes]) -> bool:
    """Return whether every value is one JSON text in UTF-8 without white space around it.

    One pass over a megabyte of them, several times cheaper than a call for each. False says nothing about which value
    is the reason; `is_json` tells.
    """
    sizes = list(map(len, values))
    if sum(sizes) <= _RUN_BYTES:
        return _all_json(values, sizes)
    start = nbytes = 0
    for i, size in enumerate(sizes):
        if nbytes + size > _RUN_BYTES and i > start:
            if not _all_json(values[start:i], sizes[start:i]):
                return False
            start, nbytes = i, 0
        nbytes += size
    return _all_json(values[start:], sizes[start:])


def _all_json(values: Sequence[bytes], sizes: list[int]) -> bool:
    joined = b"[%b]" % b",".join(values)
    try:
        if not joined.isascii():
            joined.decode()
        texts = _VALUES.decode(joined)
    except MALFORMED:
        return False
    # `1,2` + `[3` + `4]` is three values too, only not these three. Equal lengths leave no byte for white space
    # between the values and so put each of them where its text is.
    return list(map(len, texts)) == sizes
