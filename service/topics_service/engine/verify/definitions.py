"""Definitions of tables, routes and aliases: each can be read, and speaks of what exists."""

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from topics_service.engine.tables import catalog, compilation, references, topic_catalog
from topics_service.engine.tables.indexing import BUILD_ROWS
from topics_service.engine.tables.messages import LAST_ID
from topics_service.engine.tables.model import DEFAULT_NAMESPACE, IndexState, Namespace, Route, Table, TableName, View
from topics_service.engine.tables.removal import REMOVED_ROWS
from topics_service.engine.tables.runtime import TableRuntime
from topics_service.engine.tables.scalars import Environment
from topics_service.engine.verify.findings import DECODING, Findings, Kind
from topics_service.storage import keys
from topics_service.storage.store import Family

UNREADABLE: Final = (*DECODING, ArithmeticError, RecursionError, TypeError, AttributeError)
"""Errors of definitions and rows for values that can't be."""
_BUILD: Final = struct.Struct(">QI")

Report = Callable[[Kind, str, str | None], None]
"""Takes the kind of a problem, what it is, and the table."""


class Definitions:
    """The definitions that are sound, of a list of rows."""

    def __init__(self, report: Report) -> None:
        self.rows: dict[bytes, bytes] = {}
        """The rows that are sound."""
        self.tables: dict[int, TableRuntime] = {}
        self.unread: set[int] = set()
        """The numbers of tables whose definitions are not sound."""
        self.namespaces: set[str] = {DEFAULT_NAMESPACE}
        self.removed: set[bytes] = set()
        """Prefixes of the rows and entries that have to go: of tables and indexes that were dropped."""
        self.is_whole = True
        """True if all rows could be read."""
        self.environment = Environment()
        self._report = report
        self._names: set[TableName] = set()
        self._aliases: set[str] = set()
        self._refused: set[bytes] = set()

    def load(self, found: Iterable[tuple[bytes, bytes]], topics: Iterable[int]) -> None:
        """Take over these rows; `topics` are the numbers of those that exist. Reports each row that is not sound."""
        rows, known = dict(found), frozenset(topics)
        self._each(rows, catalog.NAMESPACE_ROWS, "namespace", self._namespace)
        self._each(rows, catalog.TABLE_ROWS, "table", self._table)
        self._each(rows, topic_catalog.ROUTE_ROWS, "route", lambda key, value: self._route(key, value, known))
        self._each(rows, topic_catalog.COUNT_ROWS, "counter", self._counts)
        self._each(rows, catalog.VIEW_ROWS, "view", self._view)
        self._each(rows, topic_catalog.ALIAS_ROWS, "alias", lambda key, value: self._alias(key, value, known))
        self._each(rows, BUILD_ROWS, "build", self._build)
        self._each(rows, REMOVED_ROWS, "removal", self._removal)
        self._each(rows, catalog.USER_ROWS, "user", lambda _key, _value: True)
        for key in rows:
            self._report("damaged", f"the definition {key.hex()} is of no known kind", None)

    def name(self, number: int) -> str | None:
        """The name of a table."""
        runtime = self.tables.get(number)
        return None if runtime is None else runtime.table.table_id

    def _each(self, rows: dict[bytes, bytes], kind: bytes, what: str, take: Callable[[bytes, bytes], bool]) -> None:
        for key in [key for key in rows if key.startswith(kind)]:
            value = rows.pop(key)
            try:
                if take(key, value):
                    self.rows[key] = value
                    continue
            except UNREADABLE as error:
                self._report(
                    "damaged", f"the definition {key[len(kind) :].hex()} of a {what} is damaged: {error}", None
                )

    def _namespace(self, key: bytes, value: bytes) -> bool:
        namespace: Namespace = _decoded(value, catalog.decode_namespace)
        if catalog.NAMESPACE_ROWS + namespace.name.encode() != key:
            raise ValueError(f'it is that of "{namespace.name}"')
        self.namespaces.add(namespace.name)
        return True

    def _table(self, key: bytes, value: bytes) -> bool:
        number = keys.read_u64(key, len(catalog.TABLE_ROWS))
        self.unread.add(number)
        table: Table = _decoded(value, catalog.decode_table)
        if table.number != number:
            raise ValueError(f"it is that of table {table.number}")
        for fault in faults(table):
            raise ValueError(fault)
        runtime = TableRuntime(table, self.environment)
        assert runtime.defaults is not None  # they compile
        names = [TableName(table.namespace, each) for each in (table.name, *(index.name for index in table.indexes))]
        for name in names:
            if name in self._names or names.count(name) > 1:
                self._report("mismatch", f"there are two tables or indexes {name}", table.table_id)
                return False
        self._names.update(names)
        if table.namespace not in self.namespaces:
            self._report("missing", f'there is no namespace "{table.namespace}"', table.table_id)
        self.unread.discard(number)
        self.tables[number] = runtime
        return True

    def _view(self, key: bytes, value: bytes) -> bool:
        view: View = _decoded(value, catalog.decode_view)
        name = TableName(view.namespace, view.name)
        if catalog.view_key(name) != key:
            raise ValueError(f"it is that of {name}")
        if name in self._names:
            self._report("mismatch", f"there are two tables, indexes or views {name}", view.view_id)
            return False
        self._names.add(name)
        if view.namespace not in self.namespaces:
            self._report("missing", f'there is no namespace "{view.namespace}"', view.view_id)
        return True

    def _route(self, key: bytes, value: bytes, topics: frozenset[int]) -> bool:
        route = topic_catalog.decode_route(value)
        if topic_catalog.route_key(route) != key:
            raise ValueError("it is that of another route")
        what = f"the route of {route.op.value} into topic {route.topic}"
        runtime = self.tables.get(route.table)
        if runtime is None:
            if route.table not in self.unread and self.is_whole:
                self._report("orphan", f"{what} is of table {route.table}, which does not exist", None)
            return False
        if route.topic not in topics:
            self._report("orphan", f"{what} is of a topic that does not exist", runtime.table.table_id)
            return False
        return self._reads(route, runtime, what)

    def _reads(self, route: Route, runtime: TableRuntime, what: str) -> bool:
        strange = references.reads_of_route(route) - runtime.places.keys()
        if strange:
            self._report("mismatch", f"{what} reads columns that do not exist", runtime.table.table_id)
            return False
        if route.filter is not None:
            compilation.compile_filter(route.filter, runtime.places, self.environment)
        compilation.compile_list(route.partition_by, runtime.places, self.environment)
        return True

    def _counts(self, key: bytes, value: bytes) -> bool:
        topic_catalog.decode_counts(value)
        route = topic_catalog.ROUTE_ROWS + key[len(topic_catalog.COUNT_ROWS) :]
        if route in self.rows:
            return True
        if route not in self._refused and self.is_whole:
            text = f"the counters {key[len(topic_catalog.COUNT_ROWS) :].hex()} are of a route that does not exist"
            self._report("orphan", text, None)
        return False

    def _alias(self, key: bytes, value: bytes, topics: frozenset[int]) -> bool:
        alias = topic_catalog.decode_alias(value)
        if topic_catalog.alias_key(alias.topic) != key:
            raise ValueError(f"it is that of topic {alias.topic}")
        if alias.topic not in topics:
            self._report("orphan", f'the alias "{alias.name}" is of topic {alias.topic}, which does not exist', None)
            return False
        if alias.name in self._aliases:
            self._report("mismatch", f'there are two topics with the alias "{alias.name}"', None)
            return False
        self._aliases.add(alias.name)
        return True

    def _build(self, key: bytes, value: bytes) -> bool:
        table, number = _BUILD.unpack(key[len(BUILD_ROWS) :])
        runtime = self.tables.get(table)
        if runtime is None and (table in self.unread or not self.is_whole):
            return False
        indexes = () if runtime is None else runtime.table.indexes
        if not any(index.number == number and index.state is IndexState.BUILDING for index in indexes):
            text = f"the progress of building index {number} of table {table} is of an index that is not being built"
            self._report("orphan", text, self.name(table))
            return False
        if value[:8] != keys.u64(table):
            raise ValueError("it is no key of a row of the table")
        return True

    def _removal(self, key: bytes, value: bytes) -> bool:
        prefix = key[len(REMOVED_ROWS) :]
        if value or len(prefix) not in (8, _BUILD.size):
            raise ValueError("it is no removal")
        runtime = self.tables.get(keys.read_u64(prefix))
        if runtime is not None and (len(prefix) == 8 or any(part.prefix == prefix for part in runtime.indexes)):
            raise ValueError("it is of a table or an index that exists")
        self.removed.add(prefix)
        return True


def faults(table: Table) -> Iterator[str]:
    """Contradictions in the definition of a table, as texts."""
    ids = tuple(column.id for column in table.columns)
    if not ids or len(set(ids)) < len(ids) or len({column.name for column in table.columns}) < len(ids):
        yield "it has no columns, or two of the same number or name"
    if not table.primary_key or not set(table.primary_key) <= set(ids):
        yield "its primary key has columns that do not exist"
    if not table.versions or table.versions[-1] != ids:
        yield "its newest schema version has other columns"
    if any(column >= table.next_column for version in table.versions for column in version):
        yield f"the number of its next column, {table.next_column}, is not above those that were there"
    for index in table.indexes:
        if not index.columns or not set(index.columns) <= set(ids):
            yield f'the index "{index.name}" has columns that do not exist'
    numbers = [index.number for index in table.indexes]
    if len(set(numbers)) < len(numbers) or any(number >= table.next_index for number in numbers):
        yield f"two of its indexes have the same number, or one that is not below {table.next_index}"


def check(findings: Findings, topics: Iterable[int]) -> Definitions:
    """Read and check all definitions, and the counter of tables."""
    found = Definitions(lambda kind, text, table: findings.report(kind, text, table=table))
    holes = findings.holes
    rows = list(findings.rows(Family.TABLES))
    found.is_whole = findings.holes == holes
    found.load(rows, topics)
    numbers = [
        keys.read_u64(key, len(catalog.TABLE_ROWS))
        for key, _ in rows
        if key.startswith(catalog.TABLE_ROWS) and len(key) == len(catalog.TABLE_ROWS) + 8
    ]
    last = max(numbers, default=0)
    with findings.decoding("the counter of tables"):
        value = dict(findings.rows(Family.META, catalog.NEXT_TABLE, catalog.NEXT_TABLE + b"\0")).get(catalog.NEXT_TABLE)
        if value is None:
            if last:
                findings.report("missing", "there is no counter of tables")
        elif keys.read_u64(value) <= last:
            findings.report("mismatch", f"the counter of tables is not above {last}")
    for _, row in findings.rows(Family.META, LAST_ID, LAST_ID + b"\0"):
        if len(row) != 8:
            findings.report("damaged", f"the last message id has {len(row)} bytes")
    return found


def _decoded(value: bytes, decode: Callable[[bytes], Any]) -> Any:
    if value[:1] != b"\x01":
        raise ValueError(f"it is of version {value[:1].hex()}")
    return decode(value[1:])
