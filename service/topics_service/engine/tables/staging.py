"""Changes of a transaction that are not written yet: rows, index entries, and who holds unique keys."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.tables.errors import sql_error
from topics_service.engine.tables.layers import ABSENT, Absent, KeyOrder
from topics_service.engine.tables.runtime import IndexRuntime, Row, TableRuntime, key_length, key_of_entry
from topics_service.engine.tables.spread import Spread
from topics_service.storage import keys
from topics_service.storage.store import Family, Store

MAX_BYTES: Final = 256 << 20
"""The bytes of rows and index entries that a transaction may change."""
_ROW_BYTES: Final = 64

_LARGE: Final = 1 << 20
"""The bytes from which changes are spread over many dictionaries."""

Changes = dict[bytes, bytes | None] | Spread


class Clash(NamedTuple):
    """A row that has the same unique key as another: the primary key, or that of an index."""

    of: IndexRuntime | None
    key: bytes


class Mark(NamedTuple):
    """The changes at one moment."""

    rows: Changes
    entries: Changes
    rows_before: Changes
    entries_before: Changes
    holders: Changes
    nbytes: int


class Staged:
    """Implements Layer. `rows` and `entries` are what is written with the commit; of those that were in the store,
    `rows_before` and `entries_before` have the values there."""

    __slots__ = (
        "_get", "_holders", "_limit", "_orders", "_store", "entries", "entries_before", "nbytes", "rows",
        "rows_before",
    )  # fmt: skip

    def __init__(self, store: Store) -> None:
        self._store = store
        self._get = store.get
        self.rows: Changes = {}
        self.entries: Changes = {}
        self.rows_before: Changes = {}
        self.entries_before: Changes = {}
        self._holders: Changes = {}
        self.nbytes = 0
        self._limit = min(_LARGE, MAX_BYTES)
        self._orders: dict[Family, KeyOrder] = {}

    # ------------------------------------------------------------------- reading

    def find(self, family: Family, key: bytes) -> bytes | Absent | None:
        """See Layer."""
        return (self.rows if family is Family.ROWS else self.entries).get(key, ABSENT)

    def keys(self, family: Family, start: bytes, stop: bytes) -> Sequence[bytes]:
        """See Layer."""
        order = self._orders.get(family)
        if order is None:
            order = self._orders[family] = KeyOrder(self.rows if family is Family.ROWS else self.entries)
        return order.between(start, stop)

    @property
    def holders(self) -> Changes:
        """The keys of the rows that have a unique key since this transaction, None for none, by the entry up to it."""
        return self._holders

    def stored(self, key: bytes) -> bytes | None:
        """A row as this transaction left it."""
        return self.rows[key] if key in self.rows else self._store.get(Family.ROWS, key)

    def holder(self, runtime: TableRuntime, index: IndexRuntime, head: bytes, row: Row) -> bytes | None:
        """The key of the row that has the same values in a unique index; `head` is the entry up to the primary key."""
        if head in self._holders:
            return self._holders[head]
        for place in index.places:
            if row[place] is None:
                return None
        for entry, length in self._store.scan(Family.INDEXES, *keys.prefix_range(head)):
            return key_of_entry(runtime.prefix, entry, length)
        return None

    # ------------------------------------------------------------------- changing

    def insert(self, runtime: TableRuntime, row: Row) -> Clash | None:
        """Add a row; if another has one of its unique keys nothing is added, and that is returned."""
        key = runtime.key(row)
        if (self.rows[key] if key in self.rows else self._get(Family.ROWS, key)) is not None:
            return Clash(None, key)
        stored = runtime.encode(row)
        size = _ROW_BYTES + len(key) + len(stored)
        if runtime.indexes:
            heads = [index.head(row) for index in runtime.indexes]
            if runtime.unique:
                clash = self._clash(runtime, heads, row, key)
                if clash is not None:
                    return clash
            tail, length, entries = key[8:], key_length(key), self.entries
            for head in heads:
                entries[head + tail] = length
                size += _ROW_BYTES + len(head)
        self.rows[key] = stored
        self.nbytes += size
        if self.nbytes > self._limit:
            self._grown()
        return None

    def _clash(self, runtime: TableRuntime, heads: Sequence[bytes], row: Row, key: bytes) -> Clash | None:
        """The first unique index in which another row has the same values; if there is none the row has them now."""
        indexes = [pair for pair in zip(runtime.indexes, heads, strict=True) if pair[0].unique]
        for index, head in indexes:
            holder = self.holder(runtime, index, head, row)
            if holder is not None:
                return Clash(index, holder)
        for index, head in indexes:
            self._hold(index, head, row, key)
        return None

    def remove(self, runtime: TableRuntime, key: bytes, stored: bytes, row: Row) -> None:
        """Remove a row; `stored` is its form."""
        if key not in self.rows:
            self.rows_before[key] = stored
        self.rows[key] = None
        for index in runtime.indexes:
            self._remove_entry(index, index.head(row), row, key)
        self._count(_ROW_BYTES + len(key) + len(stored))

    def replace(self, runtime: TableRuntime, key: bytes, stored: bytes, old: Row, new: Row) -> None:
        """Put another row in the place of one with the same primary key; its unique keys are free."""
        if key not in self.rows:
            self.rows_before[key] = stored
        made = self.rows[key] = runtime.encode(new)
        size = _ROW_BYTES + len(key) + len(stored) + len(made)
        for index in runtime.indexes:
            before, after = index.head(old), index.head(new)
            if before != after:
                self._remove_entry(index, before, old, key)
                self.entries[after + key[8:]] = key_length(key)
                size += 2 * _ROW_BYTES + len(before) + len(after)
                if index.unique:
                    self._hold(index, after, new, key)
        self._count(size)

    def _remove_entry(self, index: IndexRuntime, head: bytes, row: Row, key: bytes) -> None:
        entry = head + key[8:]
        if entry not in self.entries:
            self.entries_before[entry] = key_length(key)
        self.entries[entry] = None
        if index.unique:
            self._hold(index, head, row, None)

    def _hold(self, index: IndexRuntime, head: bytes, row: Row, key: bytes | None) -> None:
        for place in index.places:
            if row[place] is None:
                return
        self._holders[head] = key

    def _count(self, size: int) -> None:
        self.nbytes += size
        if self.nbytes > self._limit:
            self._grown()

    def _grown(self) -> None:
        """Spread the changes once there are many. Raises `result_too_large` for too many."""
        if self.nbytes > MAX_BYTES:
            raise self._too_large()
        self._limit = MAX_BYTES
        self.rows, self.entries = Spread(self.rows), Spread(self.entries)
        self.rows_before, self.entries_before = Spread(self.rows_before), Spread(self.entries_before)
        self._holders = Spread(self._holders)
        self._orders.clear()

    def _too_large(self) -> TopicsError:
        message = f"a transaction changes at most {MAX_BYTES} bytes of rows and index entries"
        return sql_error(Reason.RESULT_TOO_LARGE, message, max_bytes=MAX_BYTES)

    # ------------------------------------------------------------------- savepoints

    def mark(self) -> Mark:
        """The changes so far, to come back to."""
        return Mark(
            self.rows.copy(), self.entries.copy(), self.rows_before.copy(), self.entries_before.copy(),
            self._holders.copy(), self.nbytes,
        )  # fmt: skip

    def reset(self, mark: Mark) -> None:
        """Forget the changes since the mark, which stays."""
        self.rows, self.entries = mark.rows.copy(), mark.entries.copy()
        self.rows_before, self.entries_before = mark.rows_before.copy(), mark.entries_before.copy()
        self._holders, self.nbytes = mark.holders.copy(), mark.nbytes
        self._limit = MAX_BYTES if isinstance(self.rows, Spread) else min(_LARGE, MAX_BYTES)
        self._orders.clear()
