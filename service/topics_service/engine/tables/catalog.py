"""The catalog of namespaces and tables: in memory, and as rows.

Routes and aliases of topics have rows of the same family, of kinds of their own (`topic_catalog`), as have users.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Final, Protocol, TypeVar

import msgspec
from msgspec import structs

from topics_service.engine.tables.model import DEFAULT_NAMESPACE, Index, Namespace, Route, Table, TableName, View
from topics_service.engine.tables.schema import TopicName
from topics_service.engine.tables.system_schema import SYSTEM_TABLES
from topics_service.engine.transaction import Transaction
from topics_service.engine.writer import Writer
from topics_service.storage import keys
from topics_service.storage.store import Family, StoreOpenError

NAMESPACE_ROWS: Final = b"namespace\x00"
"""The kind of definition of namespaces, in `Family.TABLES`; then the name."""
TABLE_ROWS: Final = b"table\x00"
"""The kind of definition of tables, with their schema versions, checks and indexes; then the table number."""
VIEW_ROWS: Final = b"view\x00"
"""The kind of definition of views; then the namespace, NUL and the name."""
USER_ROWS: Final = b"user\x00"
"""The kind of definition of users."""
NEXT_TABLE: Final = b"next_table"
"""The META row with the number of the next table: none is used again."""

_VERSION: Final = b"\x01"
_DURABLE: Final = 0  # what the writer knows the catalog by: logs have positive numbers, topics negative ones

encode = msgspec.msgpack.Encoder().encode
decode_namespace = msgspec.msgpack.Decoder(Namespace).decode
decode_table = msgspec.msgpack.Decoder(Table).decode
decode_view = msgspec.msgpack.Decoder(View).decode

T = TypeVar("T")


class TopicNames(Protocol):
    """The part of topics in a schema: `topic_catalog.TopicCatalog`."""

    on_changed: list[Callable[[Iterable[int]], None]]

    def topic(self, name: str) -> TopicName | None:
        """Find a topic by its name or alias."""
        ...

    def routes(self, table: int) -> tuple[Route, ...]:
        """The routes of a table."""
        ...

    def stage_without(self, tx: Transaction, routes: Sequence[Route]) -> None:
        """Stage the removal of routes."""
        ...

    def in_namespace(self, namespace: str, limit: int) -> list[str]:
        """The names of the first topics of a namespace."""
        ...

    def name_of(self, topic: int) -> str:
        """The name of a topic that has routes."""
        ...


class NoTopics:
    """Implements TopicNames where there are none."""

    def __init__(self) -> None:
        self.on_changed: list[Callable[[Iterable[int]], None]] = []

    def topic(self, name: str) -> TopicName | None:
        """See TopicNames."""
        return None

    def routes(self, table: int) -> tuple[Route, ...]:
        """See TopicNames."""
        return ()

    def stage_without(self, tx: Transaction, routes: Sequence[Route]) -> None:
        """See TopicNames."""

    def in_namespace(self, namespace: str, limit: int) -> list[str]:
        """See TopicNames."""
        return []

    def name_of(self, topic: int) -> str:
        """See TopicNames."""
        return ""


class CatalogView:
    """Implements Schema: namespaces and tables at one moment. Never changed once it is published."""

    system = SYSTEM_TABLES

    def __init__(self, topics: TopicNames, version: int = 0) -> None:
        self.version = version
        self.topics = topics
        self.namespaces: dict[str, Namespace] = {DEFAULT_NAMESPACE: Namespace(DEFAULT_NAMESPACE)}
        self.tables: dict[int, Table] = {}
        self.views: dict[TableName, View] = {}
        self._by_name: dict[TableName, Table] = {}
        self._indexes: dict[TableName, tuple[Table, Index]] = {}

    def namespace(self, name: str) -> Namespace | None:
        """See Schema."""
        return self.namespaces.get(name)

    def table(self, name: TableName) -> Table | None:
        """See Schema."""
        return self._by_name.get(name)

    def view(self, name: TableName) -> View | None:
        """See Schema."""
        return self.views.get(name)

    def index(self, name: TableName) -> tuple[Table, Index] | None:
        """See Schema."""
        return self._indexes.get(name)

    def topic(self, name: str) -> TopicName | None:
        """See Schema."""
        return self.topics.topic(name)

    def routes(self, table: int) -> tuple[Route, ...]:
        """See Schema."""
        return self.topics.routes(table)

    def in_namespace(self, name: str) -> list[Table]:
        """The tables of a namespace."""
        return [table for table in self.tables.values() if table.namespace == name]

    def copied(self) -> "CatalogView":
        """A copy to change; its version is the caller's to set."""
        copy = CatalogView(self.topics)
        copy.namespaces = dict(self.namespaces)
        copy.tables = dict(self.tables)
        copy.views = dict(self.views)
        copy._by_name = dict(self._by_name)
        copy._indexes = dict(self._indexes)
        return copy

    def put(self, table: Table) -> None:
        """Add a table, or what it is from now on."""
        self.drop(table.number)
        self.tables[table.number] = table
        self._by_name[TableName(table.namespace, table.name)] = table
        for index in table.indexes:
            self._indexes[TableName(table.namespace, index.name)] = table, index

    def drop(self, number: int) -> None:
        """Remove a table if it is there."""
        table = self.tables.pop(number, None)
        if table is not None:
            del self._by_name[TableName(table.namespace, table.name)]
            for index in table.indexes:
                del self._indexes[TableName(table.namespace, index.name)]


class Catalog:
    """The catalog as writers see it (`state`), and as everybody else does (`view`): only what is durable."""

    def __init__(self, writer: Writer, topics: TopicNames) -> None:
        self._writer = writer
        self._versions = count(1)
        self.state = self.view = CatalogView(topics)
        topics.on_changed.append(self._topics_changed)
        self.next_table = 1
        self.on_changed: list[Callable[[Iterable[int]], None]] = []
        """Called with the numbers of tables that are others now, or gone, once that is written."""
        self._pending: list[tuple[int, CatalogView]] = []

    def load(self) -> None:
        """Take over the rows in the store. Raises StoreOpenError, naming the row, for a damaged one."""
        found, store = self.state.copied(), self._writer.store
        for key, value in store.scan(Family.TABLES, *keys.prefix_range(NAMESPACE_ROWS)):
            namespace = _read(key, value, decode_namespace)
            found.namespaces[namespace.name] = namespace
        for key, value in store.scan(Family.TABLES, *keys.prefix_range(TABLE_ROWS)):
            found.put(_read(key, value, decode_table))
        for key, value in store.scan(Family.TABLES, *keys.prefix_range(VIEW_ROWS)):
            view = _read(key, value, decode_view)
            found.views[TableName(view.namespace, view.name)] = view
        row = store.get(Family.META, NEXT_TABLE)
        self.next_table = max(1 if row is None else keys.read_u64(row), max(found.tables, default=0) + 1)
        found.version = next(self._versions)
        self.state = self.view = found

    def edit(self, tx: Transaction) -> "Edit":
        """Changes that take effect with the transaction."""
        made = Edit(self, tx)
        tx.stage(made)
        return made

    def stage_namespace(self, tx: Transaction, namespace: Namespace) -> None:
        """Stage a new namespace, which is there once the transaction is committed."""
        self.edit(tx).put_namespace(namespace)

    @property
    def ticket(self) -> int:
        """The ticket of the newest definition that is not durable yet; 0 for none."""
        return self._pending[-1][0] if self._pending else 0

    def is_ahead(self, numbers: Iterable[int]) -> bool:
        """Return whether one of these tables has a definition that is not durable yet."""
        if not self._pending:
            return False
        state, view = self.state.tables, self.view.tables
        return any(state.get(number) is not view.get(number) for number in numbers)

    def last(self, number: int) -> Table | None:
        """Find the newest definition of a table among those that are not durable: rows can be of its schema version."""
        return next((view.tables[number] for _, view in reversed(self._pending) if number in view.tables), None)

    def written(self, tables: CatalogView, changed: Iterable[int], ticket: int) -> None:
        """Take over what is written, and show it once it is durable."""
        tables.version = next(self._versions)
        self.state = tables
        self._pending.append((ticket, tables))
        self._writer.promote_with(_DURABLE, self._promote)
        self._writer.request_sync(ticket)
        for callback in self.on_changed:
            callback(changed)

    def _topics_changed(self, _tables: Iterable[int]) -> None:
        """Give other versions to what has other routes or aliases now."""
        for view in {id(view): view for view in (self.view, *(each for _, each in self._pending))}.values():
            view.version = next(self._versions)

    def _promote(self, synced: int) -> bool:
        while self._pending and self._pending[0][0] <= synced:
            self.view = self._pending.pop(0)[1]
        return not self._pending


class Edit:
    """Implements Change: changes of the catalog on their way."""

    def __init__(self, catalog: Catalog, tx: Transaction) -> None:
        self.tables = catalog.state.copied()
        self._catalog = catalog
        self._base = catalog.state
        self._batch = tx.batch
        self._changed: set[int] = set()

    def put_namespace(self, namespace: Namespace) -> None:
        """Add or change a namespace."""
        self.tables.namespaces[namespace.name] = namespace
        self._batch.put(Family.TABLES, NAMESPACE_ROWS + namespace.name.encode(), _VERSION + encode(namespace))

    def drop_namespace(self, name: str) -> None:
        """Remove a namespace."""
        del self.tables.namespaces[name]
        self._batch.delete(Family.TABLES, NAMESPACE_ROWS + name.encode())

    def add_table(self, table: Table) -> Table:
        """Add a table, which gets its number."""
        table = structs.replace(table, number=self._catalog.next_table)
        self._catalog.next_table += 1  # a number that was never written may be left out
        self._batch.put(Family.META, NEXT_TABLE, keys.u64(self._catalog.next_table))
        self.put_table(table)
        return table

    def put_table(self, table: Table) -> None:
        """Change a table."""
        self.tables.put(table)
        self._changed.add(table.number)
        self._batch.put(Family.TABLES, TABLE_ROWS + keys.u64(table.number), _VERSION + encode(table))

    def drop_table(self, number: int) -> None:
        """Remove a table; its rows are the caller's."""
        self.tables.drop(number)
        self._changed.add(number)
        self._batch.delete(Family.TABLES, TABLE_ROWS + keys.u64(number))

    def put_view(self, view: View) -> None:
        """Add or change a view."""
        name = TableName(view.namespace, view.name)
        self.tables.views[name] = view
        self._batch.put(Family.TABLES, view_key(name), _VERSION + encode(view))

    def drop_view(self, name: TableName) -> None:
        """Remove a view."""
        del self.tables.views[name]
        self._batch.delete(Family.TABLES, view_key(name))

    def publish(self, ticket: int) -> int:
        """See Change."""
        assert self._catalog.state is self._base, "one change of the catalog at a time"
        self._catalog.written(self.tables, self._changed, ticket)
        return ticket

    def undo(self) -> None:
        """See Change."""


def view_key(name: TableName) -> bytes:
    """The key of a view's row."""
    return VIEW_ROWS + name.namespace.encode() + b"\x00" + name.name.encode()


def _read(key: bytes, value: bytes, decode: Callable[[bytes], T]) -> T:
    try:
        if value[:1] != _VERSION:
            raise ValueError(f"it is of version {value[:1].hex()}")
        return decode(value[1:])
    except (ValueError, msgspec.MsgspecError) as error:
        raise StoreOpenError(f"the definition {key!r} is damaged: {error}") from error
