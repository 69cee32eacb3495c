"""Variable-length columns of records as stored: u32 lengths, `ABSENT` for no value, then the bytes.

A block keeps them in this form until single values are requested, which most readers never do.
"""

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

ABSENT: Final = (1 << 32) - 1
_ABSENT_BYTES: Final = b"\xff\xff\xff\xff"

Column = list[bytes | None]


class VarBinary(NamedTuple):
    """Concatenated values: that of record i ends at `ends[i]` of `data`. Records in `absent`, ascending, have none."""

    ends: "array[int]"
    data: bytes
    absent: Sequence[int] = ()

    def values(self) -> Column:
        """Return the value of each record."""
        data = self.data
        values: Column = [data[start:stop] for start, stop in pairwise((0, *self.ends))]
        for i in self.absent:
            values[i] = None
        return values

    def absent_between(self, start: int, stop: int) -> Sequence[int]:
        """Return the records of start..stop-1 without a value."""
        if not self.absent:
            return ()
        return self.absent[bisect_left(self.absent, start) : bisect_left(self.absent, stop)]


Texts = Column | VarBinary | bytes  # as values, packed, or in the stored form


def lengths(column: Column, absent: int) -> list[int]:
    """The lengths of a column's values, `absent` where there is none; three times faster for a full column."""
    try:
        return list(map(len, column))  # type: ignore[arg-type]  # None has no length: then the slow way
    except TypeError:
        return [absent if value is None else len(value) for value in column]


def pack(texts: Texts, count: int) -> VarBinary:
    """The `count` values one behind the other."""
    if isinstance(texts, VarBinary):
        return texts
    if isinstance(texts, bytes):
        sizes, absent = _read_lengths(texts, count)
        return VarBinary(array("I", accumulate(sizes)), texts[4 * count :], absent)
    try:
        return VarBinary(array("I", accumulate(map(len, texts))), b"".join(texts))  # type: ignore[arg-type]  # as in `lengths`
    except TypeError:
        absent = [i for i, value in enumerate(texts) if value is None]
        return VarBinary(array("I", accumulate(lengths(texts, 0))), b"".join(filter(None, texts)), absent)


def total(texts: Texts, count: int) -> int:
    """The bytes of all values."""
    if isinstance(texts, list):
        return sum(lengths(texts, 0))
    return len(texts.data) if isinstance(texts, VarBinary) else len(texts) - 4 * count


def stored(column: Column) -> list[bytes]:
    """The stored form, in parts to be joined."""
    return [array("I", lengths(column, ABSENT)).tobytes(), b"".join(filter(None, column))]


def stored_end(value: bytes, at: int, count: int) -> int:
    """Return the end of the stored form of `count` values that begins at byte `at`."""
    sizes = array("I", value[at : at + 4 * count])
    absent = sizes.count(ABSENT) if _ABSENT_BYTES in sizes.tobytes() else 0
    return at + 4 * count + sum(sizes) - absent * ABSENT


def _read_lengths(form: bytes, count: int) -> tuple[Sequence[int], Sequence[int]]:
    """The lengths in a stored form of `count` values, 0 for those that are absent; and which those are."""
    sizes = array("I", form[: 4 * count])
    if _ABSENT_BYTES not in form[: 4 * count]:
        return sizes, ()
    absent = [i for i, size in enumerate(sizes) if size == ABSENT]
    for i in absent:
        sizes[i] = 0
    return sizes, absent
