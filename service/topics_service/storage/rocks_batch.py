"""The batches of the store on RocksDB."""

from collections.abc import Mapping
from typing import Final

from rocksdict import ColumnFamily
from rocksdict import WriteBatch as RawBatch

from topics_service.storage import segments
from topics_service.storage.store import Family

_BLOCKS: Final = Family.BLOCKS  # an attribute of an enum costs more than a name


class RocksBatch:
    """A batch bound to the open database's column families.

    Large values of BLOCKS go to `segments`: `placed` are theirs, `removed` the keys and ranges whose values go.
    """

    __slots__ = ("_handles", "_usage", "placed", "raw", "removed")

    def __init__(self, handles: list[ColumnFamily], usage: segments.Usage) -> None:
        self.raw = RawBatch(raw_mode=True)
        self.placed: list[tuple[bytes, segments.Reference]] = []
        self.removed: list[tuple[bytes, bytes | None]] = []
        self._handles = handles
        self._usage = usage

    def put(self, family: Family, key: bytes, value: bytes) -> None:
        """See WriteBatch."""
        if family is _BLOCKS and segments.is_apart(value):
            value = self._place(key, value)
        self.raw.put(key, value, self._handles[family])

    def _place(self, key: bytes, value: bytes) -> bytes:
        """Keep a value of BLOCKS apart; return what its row has instead."""
        reference = self._usage.place(len(value))
        self.placed.append((key, reference))
        self.raw.put(segments.key(reference.position, key), value, self._handles[Family.SEGMENTS])
        return segments.encode(reference)

    def delete(self, family: Family, key: bytes) -> None:
        """See WriteBatch."""
        if family is Family.BLOCKS:
            self.removed.append((key, None))
        self.raw.delete(key, self._handles[family])

    def apply(self, family: Family, changes: Mapping[bytes, bytes | None]) -> None:
        """See WriteBatch."""
        put, delete, handle = self.raw.put, self.raw.delete, self._handles[family]
        for key, value in changes.items():
            if family is Family.BLOCKS:
                self.put(family, key, value) if value is not None else self.delete(family, key)
            elif value is None:
                delete(key, handle)
            else:
                put(key, value, handle)

    def delete_range(self, family: Family, start: bytes, stop: bytes) -> None:
        """See WriteBatch."""
        if family is Family.BLOCKS:
            self.removed.append((start, stop))
        self.raw.delete_range(start, stop, self._handles[family])

    def is_empty(self) -> bool:
        """See WriteBatch."""
        return bool(self.raw.is_empty())

    @property
    def nbytes(self) -> int:
        """See WriteBatch."""
        return int(self.raw.size_in_bytes())
