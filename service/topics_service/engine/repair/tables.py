"""Tables: their definitions, and the rows that can be read. Entries of indexes are rebuilt from the rows."""

import os
from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec import structs
from xxhash import xxh3_128_intdigest

from topics_service.engine.repair.actions import Kind, Rows
from topics_service.engine.repair.catalog import Ledger
from topics_service.engine.tables import catalog
from topics_service.engine.tables.changelog import CHANGE_ROWS, ENTRIES, new_state, read_state, write_state
from topics_service.engine.tables.indexing import BUILD_ROWS
from topics_service.engine.tables.model import ColumnSchema, IndexState, Namespace, Table
from topics_service.engine.tables.removal import REMOVED_ROWS
from topics_service.engine.tables.runtime import IndexRuntime, Row, TableRuntime, key_length
from topics_service.engine.tables.types import Kind as TypeKind
from topics_service.engine.tables.types import Type
from topics_service.engine.verify import findings
from topics_service.engine.verify.definitions import UNREADABLE, Definitions
from topics_service.engine.verify.tables import NAMED, Sum, named, read_row, stretch, touched_tables
from topics_service.storage import keys
from topics_service.storage.store import Family
from topics_service.storage.verify import Damage

RECOVERED: Final = "recovered"
"""The namespace of rows whose table is lost."""
_COLUMNS: Final = (
    ColumnSchema(1, "row_key", Type(TypeKind.BYTES), not_null=True),
    ColumnSchema(2, "version", Type(TypeKind.INTEGER)),
    ColumnSchema(3, "row_values", Type(TypeKind.JSON)),
)
_HEADS_A_PASS: Final = 1 << 20
_VERSION: Final = b"\x01"
_DONE: Final[dict[findings.Kind, Kind]] = {"damaged": "lost", "mismatch": "lost", "missing": "derived"}


def save(rows: Rows, ledger: Ledger) -> None:
    """Save everything that can be read. Rows are read once, and once more for every million of them for each unique
    index."""
    _Tables(rows, ledger).save()


class _Tables:
    def __init__(self, rows: Rows, ledger: Ledger) -> None:
        self._rows = rows
        self._ledger = ledger
        self._definitions = Definitions(self._found)
        self._due: dict[tuple[int, int], Sum] = {}
        self._recovered: dict[int, TableRuntime] = {}
        self._lost: dict[int, int] = {}

    def save(self) -> None:
        """See `save`."""
        rows, definitions = self._rows, self._definitions
        found = list(rows.family(Family.TABLES))
        definitions.is_whole = not rows.holes[Family.TABLES]
        for hole in rows.holes[Family.TABLES]:
            rows.report("lost", f"definitions of tables, routes or users can't be read: {hole.why}")
        for key, _ in found:
            if key.startswith(catalog.TABLE_ROWS) and len(key) == len(catalog.TABLE_ROWS) + 8:
                self._ledger.see_table(keys.read_u64(key, len(catalog.TABLE_ROWS)))
        definitions.load(found, set(self._ledger.topics))
        for number, runtime in definitions.tables.items():
            for part in runtime.indexes:
                self._due[number, part.index.number] = Sum()
        self._save_rows()
        self._check_indexes()
        self._save_definitions()

    def _found(self, kind: findings.Kind, text: str, table: str | None) -> None:
        end = "" if kind == "missing" else ": left out"
        self._rows.report(_DONE.get(kind, "dropped"), text + end, table=table)

    # --------------------------------------------------------------------- rows

    def _save_rows(self) -> None:
        rows, tables = self._rows, self._definitions.tables
        gone: set[int] = set()
        for key, stored in rows.family(Family.ROWS):
            if key.startswith(ENTRIES):
                continue  # what was lost has no entry: who followed a table gets a snapshot of what is left
            number = keys.read_u64(key) if len(key) > 8 else 0
            self._ledger.see_table(number)
            runtime = tables.get(number)
            if runtime is not None:
                self._save_row(runtime, key, stored)
            elif key[:8] in self._definitions.removed:
                continue
            elif number and (number in self._definitions.unread or not self._definitions.is_whole):
                self._recover(number, key, stored)
            elif number not in gone:
                gone.add(number)
                rows.report("dropped", f"the rows of table {number}, which does not exist")
        for hole in rows.holes[Family.ROWS]:
            self._hole(hole)
        for number, count in self._lost.items():
            if count > NAMED:
                runtime = tables.get(number) or self._recovered[number]
                rows.report("lost", f"{count - NAMED:,} more rows that are damaged", table=runtime.table.table_id)

    def _save_row(self, runtime: TableRuntime, key: bytes, stored: bytes) -> None:
        row, fault = read_row(runtime, key, stored)
        number = runtime.table.number
        if fault is not None:
            self._lose(runtime, f"the row {named(runtime, key)} {fault.text}")
            return
        self._rows.put(Family.ROWS, key, stored)
        value = key_length(key)
        for part in runtime.indexes:
            if part.index.state is IndexState.READY:
                entry = part.head(row) + key[8:]
                self._rows.put(Family.INDEXES, entry, value)
                self._due[number, part.index.number].add(entry, value)

    def _lose(self, runtime: TableRuntime, text: str) -> None:
        number = runtime.table.number
        self._lost[number] = self._lost.get(number, 0) + 1
        if self._lost[number] <= NAMED:
            self._rows.report("lost", text, table=runtime.table.table_id)

    def _hole(self, hole: Damage) -> None:
        touched = touched_tables(self._definitions, hole)
        if len(touched) == 1:
            runtime = self._definitions.tables[touched[0]]
            text, table = f"rows{stretch(runtime, hole)} can't be read: {hole.why}", runtime.table.table_id
            self._rows.report("lost", text, table=table)
            return
        of = ", ".join(str(self._definitions.name(number)) for number in touched[:5])
        self._rows.report("lost", f"rows of tables{of and f' ({of})'} can't be read: {hole.why}")

    def _recover(self, number: int, key: bytes, stored: bytes) -> None:
        """Keep a row whose table is lost in a table made for such rows: its key as bytes, its values as JSON."""
        runtime = self._recovered.get(number) or self._substitute(number)
        try:
            version = int.from_bytes(stored[:2])
            row: Row = [key[8:], version, msgspec.json.encode(msgspec.msgpack.decode(stored[2:])).decode()]
            self._rows.put(Family.ROWS, runtime.key(row), runtime.encode(row))
        except UNREADABLE as error:
            self._lose(runtime, f"the row {key[8:].hex()} can't be kept: {error}")

    def _substitute(self, number: int) -> TableRuntime:
        name = f"table_{number}"
        while any(found.table.namespace == RECOVERED and found.table.name == name for found in self._all()):
            name += "_"
        table = Table(number, RECOVERED, name, _COLUMNS, (1,), ((1, 2, 3),), 4)
        found = self._recovered[number] = TableRuntime(table, self._definitions.environment)
        text = "the definition of the table that these rows are of, with its name, columns, indexes and routes"
        self._rows.report("lost", text, table=table.table_id)
        return found

    def _all(self) -> Iterator[TableRuntime]:
        yield from self._definitions.tables.values()
        yield from self._recovered.values()

    # ------------------------------------------------------------------- indexes

    def _check_indexes(self) -> None:
        """Report the indexes whose entries were others, and those whose rows are not unique any more."""
        found = {name: Sum() for name in self._due}
        strange: set[tuple[int, int]] = set()
        for key, value in self._rows.family(Family.INDEXES):
            name = (keys.read_u64(key), int.from_bytes(key[8:12])) if len(key) > 12 else (0, 0)
            self._ledger.see_table(name[0])
            if name in found:
                found[name].add(key, value)
            elif self._definitions.removed.isdisjoint((key[:8], key[:12])):
                strange.add(name)
        for table, index in sorted(strange):
            self._rows.report("dropped", f"the entries of index {index} of table {table}, which does not exist")
        for hole in self._rows.holes[Family.INDEXES]:
            self._rows.report("derived", f"entries of indexes, which can't be read: {hole.why}")
        for runtime in self._definitions.tables.values():
            for part in runtime.indexes:
                name = runtime.table.number, part.index.number
                if part.index.state is IndexState.BUILDING:
                    if found[name].count:
                        self._derived(runtime, part, "is built from its start again")
                    continue
                if found[name] != self._due[name]:
                    self._derived(runtime, part, "is rebuilt from the rows")
                if part.unique:
                    self._check_unique(runtime, part, self._due[name].count)

    def _derived(self, runtime: TableRuntime, part: IndexRuntime, what: str) -> None:
        self._rows.report("derived", f'the index "{part.index.name}" {what}', table=runtime.table.table_id)

    def _check_unique(self, runtime: TableRuntime, part: IndexRuntime, count: int) -> None:
        """Let an index be an ordinary one if two rows have the same values: it is lost which of them was removed."""
        passes = count // _HEADS_A_PASS + 1
        for each in range(passes):
            seen: set[int] = set()
            for key, row in self._readable(runtime):
                if any(row[place] is None for place in part.places):
                    continue
                head = part.head(row)
                digest = xxh3_128_intdigest(head)
                if digest % passes != each:
                    continue
                if digest in seen:
                    self._make_plain(runtime, part, head, key)
                    return
                seen.add(digest)

    def _make_plain(self, runtime: TableRuntime, part: IndexRuntime, head: bytes, key: bytes) -> None:
        number = runtime.table.number
        first = next(other for other, row in self._readable(runtime) if part.head(row) == head)
        text = (
            f'the index "{part.index.name}" is not unique any more: the rows {named(runtime, first)} and '
            f"{named(runtime, key)} have the same values, and it is lost which of them was removed"
        )
        self._rows.report("lost", text, table=runtime.table.table_id)
        table = self._definitions.tables[number].table
        indexes = tuple(
            structs.replace(index, unique=False, constraint=False) if index.number == part.index.number else index
            for index in table.indexes
        )
        self._definitions.tables[number].table = structs.replace(table, indexes=indexes)

    def _readable(self, runtime: TableRuntime) -> Iterator[tuple[bytes, Row]]:
        """The rows of a table that are saved."""
        for found in self._rows.source.rows(Family.ROWS, runtime.prefix):
            if isinstance(found, Damage):
                continue
            if not found[0].startswith(runtime.prefix):
                return
            row, fault = read_row(runtime, *found)
            if fault is None:
                yield found[0], row

    # --------------------------------------------------------------- definitions

    def _save_definitions(self) -> None:
        written = self._definitions.rows
        for key, value in written.items():
            if key.startswith(CHANGE_ROWS):
                if read_state(value).is_kept:
                    self._rows.put(Family.TABLES, key, write_state(new_state(os.urandom, is_kept=True)))
            elif not key.startswith((catalog.TABLE_ROWS, BUILD_ROWS, REMOVED_ROWS)):
                self._rows.put(Family.TABLES, key, value)
        namespaces = set(self._definitions.namespaces)
        for runtime in self._all():
            table = runtime.table
            self._rows.put(Family.TABLES, catalog.TABLE_ROWS + keys.u64(table.number), _encoded(table))
            if table.namespace not in namespaces:
                namespaces.add(table.namespace)
                key = catalog.NAMESPACE_ROWS + table.namespace.encode()
                self._rows.put(Family.TABLES, key, _encoded(Namespace(table.namespace)))


def _encoded(definition: Table | Namespace) -> bytes:
    return _VERSION + catalog.encode(definition)
