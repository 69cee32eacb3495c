"""Indexes that are filled with the rows that are there, in slices, while writers keep them."""

import struct
from collections.abc import Generator
from itertools import islice
from typing import TYPE_CHECKING, Final

from msgspec import structs

from topics_service.engine.errors import TopicsError
from topics_service.engine.tables.model import Index, IndexState, Table, TableName
from topics_service.engine.tables.runtime import DAMAGE, IndexRuntime, Row, TableRuntime, key_length, unreadable
from topics_service.engine.transaction import Transaction
from topics_service.storage import keys
from topics_service.storage.store import Family

if TYPE_CHECKING:
    from topics_service.engine.tables.tables import Tables

BUILD_ROWS: Final = b"build\x00"
"""The kind of rows that say how far a build has come, in `Family.TABLES`; then table number, index number. The value is
the key of the last row that has its entry."""

_ROWS_A_SLICE: Final = 256
_FAILURES: Final = 1000
_KEY: Final = struct.Struct(">QI")

Name = tuple[int, int]
"""The numbers of a table and an index of it."""


class Builds:
    """Builds under way, one slice of one at a time."""

    def __init__(self, tables: "Tables") -> None:
        self._tables = tables
        self._running: dict[Name, bytes] = {}
        self._failures: dict[TableName, TopicsError] = {}

    def load(self) -> None:
        """Go on with the builds that were under way."""
        store = self._tables.writer.store
        for table in self._tables.newest.tables.values():
            for index in table.indexes:
                if index.state is IndexState.BUILDING:
                    name = table.number, index.number
                    self._running[name] = store.get(Family.TABLES, BUILD_ROWS + _KEY.pack(*name)) or b""

    def add(self, table: Table, index: Index) -> None:
        """Begin a build, which the catalog knows already."""
        self._running[table.number, index.number] = b""
        self._failures.pop(TableName(table.namespace, index.name), None)

    def step(self) -> bool:
        """Build one slice; return True if there is more. Does nothing while a transaction is open."""
        if not self._running or self._tables.in_transaction:
            return False
        name = next(iter(self._running))
        table = self._tables.newest.tables.get(name[0])
        index = None if table is None else next((each for each in table.indexes if each.number == name[1]), None)
        if table is None or index is None:
            del self._running[name]  # dropped
        else:
            try:
                self._fill(table, index, name)
            except DAMAGE as error:  # until the next start
                self._end(table, index, unreadable(error))
        return bool(self._running)

    def finish(self, name: TableName) -> Generator[None, None, int]:
        """Wait in slices until an index is built; return the ticket. Raises `unique_violation`: it is dropped then."""
        found = self._tables.newest.index(name)
        if found is not None:
            number = found[0].number, found[1].number
            while number in self._running:
                self.step()
                yield
        failure = self._failures.pop(name, None)
        if failure is not None:
            raise failure
        return self._tables.catalog.ticket

    # ---------------------------------------------------------------- internals

    def _fill(self, table: Table, index: Index, name: Name) -> None:
        tables = self._tables
        runtime = tables.runtime(table)
        part = runtime.index(index.number)
        start, stop = keys.prefix_range(runtime.prefix)
        after = self._running[name]
        rows = list(
            islice(tables.writer.store.scan(Family.ROWS, after + b"\x00" if after else start, stop), _ROWS_A_SLICE)
        )
        progress, seen = BUILD_ROWS + _KEY.pack(*name), dict[bytes, bytes]()
        with Transaction(tables.writer) as tx:
            for key, stored in rows:
                row = runtime.read(stored)
                head = part.head(row)
                if part.unique and self._is_taken(runtime, part, head, row, key, seen):
                    self._fail(table, index, runtime.taken(part, row))
                    return
                tx.batch.put(Family.INDEXES, head + key[8:], key_length(key))
            if len(rows) < _ROWS_A_SLICE:
                tx.batch.delete(Family.TABLES, progress)
                tables.catalog.edit(tx).put_table(_with_state(table, index, IndexState.READY))
            else:
                tx.batch.put(Family.TABLES, progress, rows[-1][0])
            tx.commit()
        if len(rows) < _ROWS_A_SLICE:
            del self._running[name]
        else:
            self._running[name] = rows[-1][0]

    def _is_taken(
        self, runtime: TableRuntime, part: IndexRuntime, head: bytes, row: Row, key: bytes, seen: dict[bytes, bytes]
    ) -> bool:
        """Return whether another row has the same values: one with an entry, or of this slice."""
        if any(row[place] is None for place in part.places):
            return False
        if seen.setdefault(head, key) != key:
            return True
        entries = self._tables.writer.store.scan(Family.INDEXES, *keys.prefix_range(head))
        return any(entry != head + key[8:] for entry, _ in islice(entries, 2))

    def _fail(self, table: Table, index: Index, error: TopicsError) -> None:
        with Transaction(self._tables.writer) as tx:
            drop_index(self._tables, tx, table, index)
            tx.commit()
        self._end(table, index, error)

    def _end(self, table: Table, index: Index, error: TopicsError) -> None:
        del self._running[table.number, index.number]
        if len(self._failures) == _FAILURES:
            self._failures.pop(next(iter(self._failures)))
        self._failures[TableName(table.namespace, index.name)] = error


def drop_index(tables: "Tables", tx: Transaction, table: Table, index: Index) -> Table:
    """Stage the removal of an index and its entries; return the table without it."""
    stage_removal(tables, tx, table, index)
    left = structs.replace(table, indexes=tuple(each for each in table.indexes if each.number != index.number))
    tables.catalog.edit(tx).put_table(left)
    return left


def stage_removal(tables: "Tables", tx: Transaction, table: Table, index: Index) -> None:
    """Stage the removal of the entries of an index, and of the progress of its build."""
    tables.removals.stage_index(tx, table.number, index.number)
    if index.state is IndexState.BUILDING:
        tx.batch.delete(Family.TABLES, BUILD_ROWS + _KEY.pack(table.number, index.number))


def _with_state(table: Table, index: Index, state: IndexState) -> Table:
    changed = structs.replace(index, state=state)
    return structs.replace(
        table, indexes=tuple(changed if each.number == index.number else each for each in table.indexes)
    )
