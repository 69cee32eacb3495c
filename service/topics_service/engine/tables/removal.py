"""Rows and entries of what was dropped, removed once the definition is durable: until then readers see them.

A row of its own, which is written with the definition, says that they have to go, also after a restart.
"""

from collections.abc import Callable
from itertools import islice
from typing import Final, NamedTuple

from topics_service.engine.transaction import Transaction
from topics_service.engine.writer import Writer
from topics_service.storage import keys
from topics_service.storage.store import Family, Store, WriteBatch

REMOVED_ROWS: Final = b"removed\x00"
"""The kind of rows, in `Family.TABLES`, that say what has to go: then the table number of rows and entries, or table
number and index number of entries."""

_FEW_ROWS: Final = 8


class Removals:
    """Removals that are under way."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._due: dict[bytes, int] = {}
        """The prefixes of what has to go, and the tickets of their definitions."""

    def load(self) -> None:
        """Go on with the removals that were under way."""
        for key, _ in self._writer.store.scan(Family.TABLES, *keys.prefix_range(REMOVED_ROWS)):
            self._due[key[len(REMOVED_ROWS) :]] = 0

    def stage_table(self, tx: Transaction, table: int) -> None:
        """Stage the removal of all rows and entries of a table."""
        self._stage(tx, keys.u64(table))

    def stage_index(self, tx: Transaction, table: int, index: int) -> None:
        """Stage the removal of all entries of an index."""
        self._stage(tx, keys.index_prefix(table, index))

    def step(self) -> bool:
        """Remove what belongs to one definition that is durable; return True if there is more."""
        synced = self._writer.synced
        prefix = next((prefix for prefix, ticket in self._due.items() if ticket <= synced), None)
        if prefix is None:
            return False
        with Transaction(self._writer) as tx:
            for family in (Family.INDEXES, Family.ROWS) if len(prefix) == _TABLE else (Family.INDEXES,):
                remove_rows(self._writer.store, tx.batch, family, prefix)
            tx.batch.delete(Family.TABLES, REMOVED_ROWS + prefix)
            tx.commit()
        del self._due[prefix]
        return any(ticket <= synced for ticket in self._due.values())

    def _stage(self, tx: Transaction, prefix: bytes) -> None:
        tx.batch.put(Family.TABLES, REMOVED_ROWS + prefix, b"")

        def written(ticket: int) -> None:
            self._due[prefix] = ticket

        tx.stage(_Written(written))


_TABLE: Final = len(keys.u64(0))


class _Written(NamedTuple):
    """Implements Change."""

    call: Callable[[int], None]

    def publish(self, ticket: int) -> int:
        """See Change."""
        self.call(ticket)
        return ticket

    def undo(self) -> None:
        """See Change."""


def remove_rows(store: Store, batch: WriteBatch, family: Family, prefix: bytes) -> None:
    """Add the removal of all rows with a prefix to the batch.

    A deleted range costs each read of the family until it is flushed, so few rows are removed one by one.
    """
    start, stop = keys.prefix_range(prefix)
    few = [key for key, _ in islice(store.scan(family, start, stop), _FEW_ROWS + 1)]
    if len(few) > _FEW_ROWS:
        batch.delete_range(family, start, stop)
        return
    for key in few:
        batch.delete(family, key)
