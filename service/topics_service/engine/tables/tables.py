"""Tables of the engine: definitions, transactions, reads and upkeep, on the store of the topics."""

import os
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from itertools import islice
from typing import Final, Protocol
from weakref import ref

from topics_service.engine.clock import Clock
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.tables import execution, plans, references
from topics_service.engine.tables.catalog import Catalog, CatalogView, NoTopics, TopicNames
from topics_service.engine.tables.changelog import ChangeLogs
from topics_service.engine.tables.definitions import Definitions
from topics_service.engine.tables.errors import sql_error
from topics_service.engine.tables.functions import Environment
from topics_service.engine.tables.indexing import Builds
from topics_service.engine.tables.layers import LayeredReader
from topics_service.engine.tables.model import Namespace, Table, TableName
from topics_service.engine.tables.optimistic import OptimisticTransaction
from topics_service.engine.tables.outcomes import MAX_ROWS, Outcome, TopicGap
from topics_service.engine.tables.pending import Pending
from topics_service.engine.tables.removal import Removals
from topics_service.engine.tables.runtime import DAMAGE, TableRuntime, unreadable
from topics_service.engine.tables.selection import InTransaction, Readers, SelectStatement, SystemRows, no_system_rows
from topics_service.engine.tables.topic_reads import TopicReads
from topics_service.engine.tables.transaction import Events, NoEvents, TableTransaction
from topics_service.engine.tables.types import Value
from topics_service.engine.transaction import Transaction
from topics_service.engine.writer import Writer
from topics_service.storage import keys
from topics_service.storage.store import Family, Reader

_STATEMENTS: Final = 1024
"""Compiled statements that are kept, by the plan object."""
_SMALL: Final = 500
"""The most parts of a statement that is kept: values of rows, keys, nodes of a condition."""
STALE: Final = "40001"
"""The SQLSTATE of a plan of before a definition: bind the statement again."""

Steps = Generator[None, None, Outcome]


class Collector(Protocol):
    """Makes the events of transactions: `routing.Routing`."""

    def collect(self) -> Events:
        """The events of one transaction, none yet."""
        ...


class Moment:
    """The rows of some tables as they are visible at one moment. Scans have to begin before anything is written."""

    def __init__(self, tables: "Tables", wanted: Iterable[Table]) -> None:
        self._rows = tables.writer.store.snapshot()
        self._layers = {table.number: tables.pending.layer(table.number) for table in wanted}

    def reader(self, table: Table) -> Reader:
        """The rows of one of them."""
        layer = self._layers[table.number]
        return self._rows if layer is None else LayeredReader(self._rows, layer)

    def waiting(self, table: Table) -> Sequence[bytes]:
        """The keys of rows whose newest values are not visible yet."""
        layer = self._layers[table.number]
        return () if layer is None else layer.keys(Family.ROWS, *keys.prefix_range(keys.u64(table.number)))


class Tables:
    """All tables of a data directory.

    Writes have an order: from `begin` until `commit` or `rollback`, and while a definition runs, the caller lets no
    other transaction or definition begin (the API holds a lock); waiting for a ticket comes after. Reads need none.
    """

    def __init__(
        self,
        writer: Writer,
        clock: Clock,
        topics: TopicNames | None = None,
        *,
        max_tables: int = 0,
        random: Callable[[int], bytes] = os.urandom,
    ) -> None:
        """At most `max_tables` are made; 0 for no bound."""
        self.writer = writer
        self.clock = clock
        self.max_tables = max_tables
        self.environment = Environment(now_us=lambda: self._now_us, random=random)
        """The sources of time and chance for functions; the engine sets `message_id`."""
        self._now_us = 0
        topics = topics or NoTopics()
        topics.on_changed.append(self._rerouted)
        self.catalog = Catalog(writer, topics)
        self.catalog.on_changed.append(self._forget)
        self.pending = Pending(writer)
        self.changes = ChangeLogs(writer, clock, self.pending, random)
        self.catalog.on_changed.append(self.changes.changed)
        self.routing: Collector | None = None
        self.topics: TopicReads | None = None
        """Reads topics as tables; the engine sets it."""
        self.on_rows: Callable[[Iterable[int], Mapping[bytes, bytes | None]], None] | None = None
        """Called after each commit with the tables that it touched and the rows that it changed, by their keys."""
        self.builds = Builds(self)
        self.removals = Removals(writer)
        self.definitions = Definitions(self)
        self.runtimes: dict[int, TableRuntime] = {}
        """The compiled forms of tables as they are written; those that have changed are forgotten."""
        self._open: ref[TableTransaction] | None = None
        self.last_commit = 0
        self.commits: dict[int, int] = {}
        """The numbers of the last commits that changed or read a table, since the start."""
        self._statements: OrderedDict[int, tuple[object, TableRuntime | None, execution.Statement]] = OrderedDict()

    def load(self) -> None:
        """Recover the catalog; O(tables). Raises StoreOpenError, naming the row, for a damaged one."""
        self.catalog.load()
        self.changes.load(self.newest.tables)
        self.builds.load()
        self.removals.load()

    # ----------------------------------------------------------------- catalog

    @property
    def schema(self) -> CatalogView:
        """The catalog as it is durable: for reads."""
        return self.catalog.view

    @property
    def newest(self) -> CatalogView:
        """The catalog as it is written: for transactions and definitions, whose acknowledgement waits for it."""
        return self.catalog.state

    def namespace(self, name: str) -> Namespace | None:
        """Find a namespace that is written."""
        return self.newest.namespace(name)

    def table_by_number(self, number: int) -> Table | None:
        """Find a table as it is written."""
        return self.newest.tables.get(number)

    def stage_namespace(self, tx: Transaction, namespace: Namespace) -> None:
        """Stage a new namespace, which is there once the transaction is committed."""
        self.catalog.stage_namespace(tx, namespace)

    def define(self, definition: plans.Definition) -> Generator[None, None, int]:
        """Run a definition in slices; return the ticket that its acknowledgement must wait for.

        Raises `already_exists`, `dependent_objects`, `invalid_value`, `unsupported_sql`, `table_not_found` and others.
        """
        return self.definitions.run(definition)

    # ----------------------------------------------------------------- changes

    def begin(self) -> TableTransaction:
        """Begin a transaction. Raises `internal` when the server is read-only."""
        self.writer.check()
        transaction = TableTransaction(self)
        self._open = ref(transaction)
        return transaction

    def begin_optimistic(self) -> OptimisticTransaction:
        """Begin a transaction that needs the order of writes only from its `validate` on. Raises as `begin`."""
        self.writer.check()
        return OptimisticTransaction(self)

    def opened(self, transaction: TableTransaction) -> None:
        """Note that a transaction has the order of writes."""
        self._open = ref(transaction)

    def collect(self) -> Events:
        """The events of one transaction, none yet."""
        return NoEvents() if self.routing is None else self.routing.collect()

    # ------------------------------------------------------------------- reads

    def select(
        self, action: plans.Select, parameters: Sequence[Value] = (), system_rows: SystemRows = no_system_rows
    ) -> Steps:
        """Run a query in slices on what is visible: rows that are durable for the strictest class of their commit.

        All of it is of one moment. `system_rows` gives the rows of a system table.
        """
        query = self._query(action)
        return self.at(self.clock.now_ms() * 1000, query.run(self._visible(query), parameters, system_rows))

    def rows(
        self,
        action: plans.Select,
        parameters: Sequence[Value] = (),
        system_rows: SystemRows = no_system_rows,
        gaps: list[TopicGap] | None = None,
    ) -> Generator[Sequence[Value] | None, None, None]:
        """The rows of a query one by one, and None where others should have a turn. Otherwise as `select`.

        `gaps` gets what a topic has lost of what is read.
        """
        query, now_us = self._query(action), self.clock.now_ms() * 1000
        rows = query.rows(self._visible(query), parameters, system_rows, MAX_ROWS, gaps)
        while True:
            self._now_us = now_us
            try:
                row = next(rows)
            except StopIteration:
                return
            except DAMAGE as error:
                raise unreadable(error) from error
            yield row

    def _query(self, action: plans.Select) -> SelectStatement:
        statement = self.compiled(action)
        assert isinstance(statement, InTransaction)
        return statement.statement

    def _visible(self, query: SelectStatement) -> Readers:
        """The durable rows of tables, as a query reads them."""

        def visible(table: Table) -> Reader:
            store = self.writer.store
            base = store if query.is_point else store.snapshot()
            layer = self.pending.layer(table.number)
            return base if layer is None else LayeredReader(base, layer)

        return visible

    def moment(self, wanted: Iterable[Table]) -> Moment:
        """The rows of tables as they are visible now."""
        return Moment(self, wanted)

    def for_reading(self, table: Table) -> TableRuntime:
        """The compiled form of a table for a query of all its rows. Raises as `runtime`."""
        return self._for_reading(plans.TableSource(table, plans.Scan()))

    def at(self, now_us: int, steps: Steps) -> Steps:
        """Run a statement to which it is this time (microseconds since 1970) in all of its slices.

        Raises `internal` for rows that can't be read.
        """
        while True:
            self._now_us = now_us
            try:
                next(steps)
            except StopIteration as done:
                outcome: Outcome = done.value
                return outcome
            except DAMAGE as error:
                raise unreadable(error) from error
            yield

    # ------------------------------------------------------------------ upkeep

    def upkeep(self) -> bool:
        """Fill indexes that are being built, and remove what was dropped: one slice; return True if there is more."""
        more = self.removals.step() or self.changes.upkeep()
        return self.builds.step() or more

    def built(self, definition: plans.CreateIndex) -> Generator[None, None, int]:
        """Wait in slices until the index of a definition is ready; return the ticket to wait for.

        It needs no order of writes: others write meanwhile. Raises `unique_violation`: the index is dropped then.
        """
        return self.builds.finish(TableName(definition.table.namespace, definition.index.name))

    # --------------------------------------------------------------- internals

    @property
    def in_transaction(self) -> bool:
        """Return whether a transaction is open."""
        transaction = None if self._open is None else self._open()
        return transaction is not None and transaction.is_open

    def runtime(self, table: Table) -> TableRuntime:
        """The compiled form of a table as it is written. Raises `table_not_found`, and `transaction_error` (40001) for
        a plan of before a definition: bind the statement again."""
        number = table.number
        found = self.runtimes.get(number)
        if found is not None and found.table is table:
            return found  # of today, others are forgotten
        today = self.newest.tables.get(number)
        if today is None:
            raise sql_error(Reason.TABLE_NOT_FOUND, f"table {table.table_id} does not exist", table=table.table_id)
        if today is not table and not _has_columns(today, table):
            raise _stale(table)
        if found is None or found.table is not today:
            found = self.runtimes[number] = TableRuntime(today, self.environment)
            found.is_routed = bool(self.newest.routes(number))
        return found

    def _for_reading(self, source: plans.TableSource) -> TableRuntime:
        """The compiled form of a table for a query: as it was where a definition that removes what the query needs is
        not durable yet."""
        table, access = source.table, source.access
        today, view = self.newest.tables.get(table.number), self.schema.tables.get(table.number)
        if view is not None and view is not today:
            index = access.index if isinstance(access, plans.Scan) else None
            last = today or self.catalog.last(table.number) or view
            lacks_index = last.versions == view.versions and index not in (
                None,
                *(each.number for each in last.indexes),
            )
            if today is None or lacks_index:
                found = view if lacks_index else last
                if not _has_columns(found, table):
                    raise _stale(table)
                return TableRuntime(found, self.environment)
        return self.runtime(table)

    def compiled(self, action: plans.Select | plans.Change) -> execution.Statement:
        """The compiled form of a plan. Raises as `runtime`."""
        known = self._statements.get(id(action))
        if known is not None and known[0] is action:
            runtime = known[1]
            if runtime is None or self.runtimes.get(runtime.table.number) is runtime:
                return known[2]
        runtime, statement = self._compile(action)
        if not _is_small(action):
            return statement
        self._statements[id(action)] = action, runtime, statement
        self._statements.move_to_end(id(action))
        if len(self._statements) > _STATEMENTS:
            self._statements.popitem(last=False)
        return statement

    def _compile(self, action: plans.Select | plans.Change) -> tuple[TableRuntime | None, execution.Statement]:
        if isinstance(action, plans.Select):
            select = self._select(action)
            return select.runtime, InTransaction(select)
        runtime = self.runtime(action.table)
        if isinstance(action, plans.Insert):
            source = None if action.select is None else self._select(action.select)
            return runtime, execution.InsertStatement(runtime, action, source)
        if isinstance(action, plans.Update):
            return runtime, execution.UpdateStatement(runtime, action)
        return runtime, execution.DeleteStatement(runtime, action)

    def _select(self, action: plans.Select) -> SelectStatement:
        source = action.source
        runtime = self._for_reading(source) if isinstance(source, plans.TableSource) else None
        return SelectStatement(action, runtime, self.environment, self.topics)

    def _rerouted(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            if number in self.runtimes:
                self.runtimes[number].is_routed = bool(self.newest.routes(number))

    def _forget(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self.runtimes.pop(number, None)
            self.commits.pop(number, None)


def _is_small(action: plans.Select | plans.Change) -> bool:
    """Return whether a plan takes so little memory that many may be kept."""
    if isinstance(action, plans.Insert):
        return len(action.rows) * len(action.columns) <= _SMALL and (action.select is None or _is_small(action.select))
    source = action.source if isinstance(action, plans.Select) else None
    if isinstance(source, plans.TopicSource) and sum(len(fact.values) for fact in source.scan.facts) > _SMALL:
        return False
    access = action.access if not isinstance(action, plans.Select) else getattr(source, "access", None)
    if isinstance(access, plans.Lookup) and len(access.keys) > _SMALL:
        return False
    return action.filter is None or len(list(islice(references.nodes(action.filter), _SMALL))) < _SMALL


def _stale(table: Table) -> TopicsError:
    message = f"table {table.table_id} was changed since the statement was read: run it again"
    return sql_error(Reason.TRANSACTION_ERROR, message, sqlstate=STALE, table=table.table_id)


def _has_columns(today: Table, table: Table) -> bool:
    """Return whether a statement that was read for `table` means the same of the table as it is today."""
    types = {column.id: column.type for column in today.columns}
    return all(types.get(column.id) == column.type for column in table.columns)
