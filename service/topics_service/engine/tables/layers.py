"""Rows of the store with others in front of them: those that a transaction staged, or those that were there before
changes that are not durable yet."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Protocol

from topics_service.storage.store import Family, Reader

Item = tuple[bytes, bytes]


class Absent:
    """The type of ABSENT."""


ABSENT: Final = Absent()
"""The answer of a layer for a key that it does not have."""


class Layer(Protocol):
    """Keys with their values; None for one that is removed."""

    def find(self, family: Family, key: bytes) -> bytes | Absent | None:
        """The value of a key."""
        ...

    def keys(self, family: Family, start: bytes, stop: bytes) -> Sequence[bytes]:
        """The keys from `start` up to `stop`, in order."""
        ...


class KeyOrder:
    """The keys of a dictionary in order, sorted when they are first wanted, and again when there are others."""

    __slots__ = ("_of", "_size", "_sorted")

    def __init__(self, of: Mapping[bytes, bytes | None]) -> None:
        self._of = of
        self._sorted: list[bytes] = []
        self._size = 0

    def between(self, start: bytes, stop: bytes) -> list[bytes]:
        """The keys from `start` up to `stop`. The dictionary never loses one."""
        if self._size != len(self._of):
            self._sorted, self._size = sorted(self._of), len(self._of)
        return self._sorted[bisect_left(self._sorted, start) : bisect_left(self._sorted, stop)]


class LayeredReader:
    """Implements Reader: `layer` in front of `base`."""

    def __init__(self, base: Reader, layer: Layer) -> None:
        self._base = base
        self._layer = layer

    def get(self, family: Family, key: bytes) -> bytes | None:
        """See Reader."""
        found = self._layer.find(family, key)
        return self._base.get(family, key) if isinstance(found, Absent) else found

    def scan(self, family: Family, start: bytes, stop: bytes) -> Iterator[Item]:
        """See Reader."""
        over = self._layer.keys(family, start, stop)
        rows = self._base.scan(family, start, stop)
        return self._merged(family, rows, over, reverse=False) if over else rows

    def scan_back(self, family: Family, start: bytes, stop: bytes) -> Iterator[Item]:
        """See Reader."""
        over = self._layer.keys(family, start, stop)
        rows = self._base.scan_back(family, start, stop)
        return self._merged(family, rows, over[::-1], reverse=True) if over else rows

    def _merged(self, family: Family, rows: Iterator[Item], over: Sequence[bytes], *, reverse: bool) -> Iterator[Item]:
        find, at = self._layer.find, 0
        for row in rows:
            key = row[0]
            while at < len(over) and (over[at] > key if reverse else over[at] < key):
                value = find(family, over[at])
                if isinstance(value, bytes):
                    yield over[at], value
                at += 1
            if at < len(over) and over[at] == key:
                value = find(family, key)
                at += 1
                if isinstance(value, Absent):
                    yield row
                elif value is not None:
                    yield key, value
            else:
                yield row
        for key in over[at:]:
            value = find(family, key)
            if isinstance(value, bytes):
                yield key, value
