"""A store in memory: for tests, the simulator and the records of `ephemeral` topics."""

from collections.abc import Iterator, Mapping
from itertools import islice
from weakref import WeakSet

from sortedcontainers import SortedDict

from topics_service.storage.store import Family, WriteBatch

_Change = tuple[Family, bytes, bytes | None, bytes | None]  # family, key, value or None, stop of a range or None


_SCAN_ROWS = 256
_OF_TABLES = (Family.ROWS, Family.INDEXES)
_ROW_BYTES = 200  # objects and tree nodes around one row


class MemoryBatch:
    """The changes of one write, in order."""

    def __init__(self) -> None:
        self.changes: list[_Change] = []

    def put(self, family: Family, key: bytes, value: bytes) -> None:
        """See WriteBatch."""
        self.changes.append((family, key, value, None))

    def delete(self, family: Family, key: bytes) -> None:
        """See WriteBatch."""
        self.changes.append((family, key, None, None))

    def apply(self, family: Family, changes: Mapping[bytes, bytes | None]) -> None:
        """See WriteBatch."""
        self.changes += [(family, key, value, None) for key, value in changes.items()]

    def delete_range(self, family: Family, start: bytes, stop: bytes) -> None:
        """See WriteBatch."""
        self.changes.append((family, start, None, stop))

    def is_empty(self) -> bool:
        """See WriteBatch."""
        return not self.changes

    @property
    def nbytes(self) -> int:
        """See WriteBatch."""
        return sum(len(key) + len(value or stop or b"") for _, key, value, stop in self.changes)


class MemoryStore:
    """Implements Store on sorted dictionaries; `sync` has nothing to do."""

    def __init__(self) -> None:
        self.nbytes = 0
        """The approximate size of the rows: keys, values and 200 bytes for each row."""
        self._rows: list[SortedDict[bytes, bytes]] = [SortedDict() for _ in Family]
        self._snapshots = WeakSet[MemorySnapshot]()

    def batch(self) -> MemoryBatch:
        """See Store."""
        return MemoryBatch()

    def write(self, batch: WriteBatch) -> None:
        """See Store."""
        assert isinstance(batch, MemoryBatch), "a batch belongs to the store that made it"
        if self._snapshots:  # they keep the rows as they are
            self._rows = [
                rows.copy() if family in _OF_TABLES else rows for family, rows in zip(Family, self._rows, strict=True)
            ]
            self._snapshots.clear()
        for family, key, value, stop in batch.changes:
            rows = self._rows[family]
            if value is not None:
                self._forget(key, rows.get(key))
                rows[key] = value
                self.nbytes += _ROW_BYTES + len(key) + len(value)
            elif stop is None:
                self._forget(key, rows.pop(key, None))
            else:
                for row in list(rows.irange(key, stop, inclusive=(True, False))):
                    self._forget(row, rows.pop(row))

    def sync(self) -> None:
        """See Store."""

    def get(self, family: Family, key: bytes) -> bytes | None:
        """See Store."""
        value: bytes | None = self._rows[family].get(key)
        return value

    def floor(self, family: Family, key: bytes) -> tuple[bytes, bytes] | None:
        """See Store."""
        rows = self._rows[family]
        at = rows.bisect_right(key)
        return rows.peekitem(at - 1) if at else None

    def scan(self, family: Family, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """See Store."""
        return _pieces(self._rows[family], start, stop, reverse=False)

    def scan_back(self, family: Family, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """See Store."""
        return _pieces(self._rows[family], start, stop, reverse=True)

    def snapshot(self) -> "MemorySnapshot":
        """See Store."""
        made = MemorySnapshot(self._rows)
        self._snapshots.add(made)
        return made

    def close(self) -> None:
        """See Store."""

    def _forget(self, key: bytes, value: bytes | None) -> None:
        if value is not None:
            self.nbytes -= _ROW_BYTES + len(key) + len(value)


class MemorySnapshot:
    """Implements Reader on the rows of one moment."""

    def __init__(self, rows: list["SortedDict[bytes, bytes]"]) -> None:
        self._rows = rows

    def get(self, family: Family, key: bytes) -> bytes | None:
        """See Reader."""
        value: bytes | None = self._rows[family].get(key)
        return value

    def scan(self, family: Family, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """See Reader."""
        return _pieces(self._rows[family], start, stop, reverse=False)

    def scan_back(self, family: Family, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """See Reader."""
        return _pieces(self._rows[family], start, stop, reverse=True)


def _pieces(
    rows: "SortedDict[bytes, bytes]", start: bytes, stop: bytes, *, reverse: bool
) -> Iterator[tuple[bytes, bytes]]:
    inclusive = (True, False)
    while True:  # in pieces, so that stopping early is cheap
        keys = list(islice(rows.irange(start, stop, inclusive=inclusive, reverse=reverse), _SCAN_ROWS))
        yield from [(key, rows[key]) for key in keys]
        if len(keys) < _SCAN_ROWS:
            return
        if reverse:
            stop = keys[-1]
        else:
            start, inclusive = keys[-1], (False, False)
