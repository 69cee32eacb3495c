"""The rows of tables in RocksDB as they are at one moment."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from topics_service.storage.store import Family

if TYPE_CHECKING:
    from topics_service.storage.rocks import RocksStore

_NO_ROW: Final = "key not found"


class RocksSnapshot:
    """Implements Reader: the rows of tables at one moment.

    Iterators of rocksdict's snapshots are not of the snapshot, so scans are ordinary ones, which are of the moment
    when they begin: nothing may have been written until then.
    """

    __slots__ = ("_changes", "_rows", "_store")

    def __init__(self, store: "RocksStore") -> None:
        self._store = store
        self._rows = {family: store.families[family].snapshot() for family in (Family.ROWS, Family.INDEXES)}
        self._changes = store.changes

    def get(self, family: Family, key: bytes) -> bytes | None:
        """See Reader."""
        try:
            value: bytes = self._rows[family][key]
        except Exception as error:  # rocksdict raises bare Exception
            if str(error) == _NO_ROW:
                return None
            raise self._store.unread(str(error)) from error
        return value

    def scan(self, family: Family, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """See Reader."""
        return self._begun(self._store.scan(family, start, stop))

    def scan_back(self, family: Family, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """See Reader."""
        return self._begun(self._store.scan_back(family, start, stop))

    def _begun(self, rows: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        assert self._store.changes == self._changes, "a scan of a snapshot begins before the next write"
        return rows
