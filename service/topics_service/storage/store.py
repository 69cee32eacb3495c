"""The ordered store that the engine writes to: the protocol and its guarantees."""

from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Protocol


class Family(IntEnum):
    """The column families: one key space for each kind of row (layouts in `keys`)."""

    META = 0
    TOPICS = 1
    LOGS = 2
    CEILINGS = 3
    BLOCKS = 4
    TAGS = 5
    DELETES = 6
    GAPS = 7
    IDEMPOTENCY = 8
    IDEMPOTENCY_EXPIRY = 9
    ROUTERS = 10
    ROUTER_COPIES = 11
    LEASES = 12
    JOBS = 13
    PRODUCERS = 14
    GROUPS = 15
    POSITIONS = 16
    ROWS = 17
    INDEXES = 18
    TABLES = 19
    SEGMENTS = 20  # of the store alone: large values of BLOCKS


FIRST_FAMILIES = tuple(family for family in Family if family <= Family.POSITIONS)
"""The families that a database of any format has; the others came later."""


class StoreError(Exception):
    """The store failed: the change may not have happened, and the cause persists. `file` is
    the name of the damaged file, where it is known."""

    def __init__(self, text: str, file: str | None = None) -> None:
        super().__init__(text)
        self.file = file


class StoreLostError(StoreError):
    """The data belongs to another process now. What this one wrote last may or may not be there."""


class StoreStalledError(Exception):
    """The store can't take writes right now; nothing was written, a retry later helps."""


class StoreOpenError(StoreError):
    """The data directory can't be opened: in use, damaged, of an unknown format or not accessible."""


class WriteBatch(Protocol):
    """Changes that take effect together or not at all. Not reusable after `Store.write`."""

    def put(self, family: Family, key: bytes, value: bytes) -> None:
        """Set a row."""
        ...

    def delete(self, family: Family, key: bytes) -> None:
        """Remove a row; an absent one is fine."""
        ...

    def apply(self, family: Family, changes: Mapping[bytes, bytes | None]) -> None:
        """Set many rows, and remove those whose value is None."""
        ...

    def delete_range(self, family: Family, start: bytes, stop: bytes) -> None:
        """Remove every row with start <= key < stop."""
        ...

    def is_empty(self) -> bool:
        """Return whether there is nothing to write."""
        ...

    @property
    def nbytes(self) -> int:
        """Return the approximate size of the batch in the write-ahead log; valid until it is written."""
        ...


class Reader(Protocol):
    """The rows of a store, for reading."""

    def get(self, family: Family, key: bytes) -> bytes | None:
        """The row's value, or None."""
        ...

    def scan(self, family: Family, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Rows with start <= key < stop in key order, as they stood when the scan began."""
        ...

    def scan_back(self, family: Family, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Rows with start <= key < stop from the last to the first, as they stood when the scan began."""
        ...


class Store(Reader, Protocol):
    """An ordered, atomic key-value store with a write-ahead log. Single writer; `sync` may run on another thread."""

    def batch(self) -> WriteBatch:
        """A new, empty batch."""
        ...

    def write(self, batch: WriteBatch) -> None:
        """Apply a batch atomically; on return it survives the death of the process, not yet of the machine.

        Raises StoreStalledError (nothing written) or StoreError.
        """
        ...

    def sync(self) -> None:
        """Block until everything written before the call survives a power cut. Raises StoreError."""
        ...

    def snapshot(self) -> Reader:
        """The rows of tables and their indexes as they are now, whatever is written later.

        Scans of it have to begin before the next write.
        """
        ...

    def floor(self, family: Family, key: bytes) -> tuple[bytes, bytes] | None:
        """The row with the greatest key that is <= `key`, or None."""
        ...

    def close(self) -> None:
        """Make everything durable and release the data directory."""
        ...
