"""Definitions of namespaces, tables and indexes: each is checked, then one atomic batch."""

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from msgspec import structs

from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.tables import keycode, plans, references, views
from topics_service.engine.tables.errors import invalid_value, sql_error
from topics_service.engine.tables.expressions import Literal
from topics_service.engine.tables.functions import Environment
from topics_service.engine.tables.indexing import drop_index, stage_removal
from topics_service.engine.tables.model import (
    DEFAULT_NAMESPACE,
    RESERVED_NAMESPACES,
    ColumnSchema,
    Index,
    IndexState,
    Namespace,
    Route,
    Table,
    TableName,
)
from topics_service.engine.tables.rowcode import MAX_VERSION
from topics_service.engine.tables.runtime import DAMAGE, TableRuntime, unreadable
from topics_service.engine.tables.types import Kind, Type
from topics_service.engine.transaction import Transaction
from topics_service.storage import keys
from topics_service.storage.store import Family

if TYPE_CHECKING:
    from topics_service.engine.tables.tables import Tables

_DEPENDENTS: Final = 100
MAX_COLUMNS: Final = 1600
MAX_INDEXES: Final = 64
MAX_CHECKS: Final = 1000
MAX_NAME: Final = 255
DURABILITIES: Final = ("disk", "fsync")
_NAMESPACE_EXISTS, _COLUMN_EXISTS, _OBJECT_EXISTS = "42P06", "42701", "42710"
_RESERVED_NAME, _BAD_NAME, _BAD_TABLE, _TOO_MANY = "42939", "42602", "42P16", "54011"
_WIDER: Final = {
    Kind.SMALLINT: (Kind.INTEGER, Kind.BIGINT),
    Kind.INTEGER: (Kind.BIGINT,),
    Kind.REAL: (Kind.DOUBLE,),
}


class TopicDefinitions(Protocol):
    """Definitions of topics: `topics.TopicDefinitions`."""

    def define(self, definition: Any) -> int:
        """Run a definition; return the ticket."""
        ...


class Definitions:
    """Runs definitions. Every one is on top of the newest state of the catalog, which can be ahead of a plan's."""

    def __init__(self, tables: "Tables") -> None:
        self._tables = tables
        self._catalog = tables.catalog
        self.topics: TopicDefinitions | None = None

    def run(self, definition: plans.Definition) -> Generator[None, None, int]:
        """See Tables.define."""
        self._tables.writer.check()
        if self._tables.in_transaction:
            raise sql_error(Reason.TRANSACTION_ERROR, "a transaction is open: definitions wait for its end")
        run = _RUN.get(type(definition))
        if run is None:
            assert self.topics is not None, "definitions of topics are wired"
            return self.topics.define(definition)
        try:
            return run(self, definition)
        except DAMAGE as error:
            raise unreadable(error) from error
        yield

    # --------------------------------------------------------------- namespaces

    def create_namespace(self, definition: plans.CreateNamespace) -> int:
        """CREATE NAMESPACE."""
        name = definition.name
        if self._catalog.state.namespace(name) is not None:
            if definition.if_not_exists:
                return self._catalog.ticket
            message = f'namespace "{name}" exists'
            raise sql_error(Reason.ALREADY_EXISTS, message, sqlstate=_NAMESPACE_EXISTS, namespace=name)
        _check_namespace(name)
        _check_name(definition.placement, "placement")
        with Transaction(self._tables.writer) as tx:
            self._catalog.stage_namespace(tx, Namespace(name, definition.placement, self._now))
            return tx.commit()

    def drop_namespace(self, definition: plans.DropNamespace) -> int:
        """DROP NAMESPACE, with CASCADE its tables too. Topics then stay, as those of no namespace do."""
        name, state = definition.name, self._catalog.state
        if state.namespace(name) is None:
            raise sql_error(Reason.NAMESPACE_NOT_FOUND, f'namespace "{name}" does not exist', namespace=name)
        if name == DEFAULT_NAMESPACE:
            raise sql_error(Reason.DEPENDENT_OBJECTS, f'namespace "{name}" is always there', namespace=name)
        tables = state.in_namespace(name)
        shown = views.in_namespace(state, name)
        names = [*sorted(table.table_id for table in tables), *sorted(map(str, shown))]
        names = [*names, *state.topics.in_namespace(name, _DEPENDENTS)][:_DEPENDENTS]
        if names and not definition.cascade:
            message = (
                f'namespace "{name}" has tables, views or topics: {", ".join(names[:5])}; drop them, or use CASCADE'
            )
            raise sql_error(Reason.DEPENDENT_OBJECTS, message, namespace=name, dependents=names)
        with Transaction(self._tables.writer) as tx:
            edit = self._catalog.edit(tx)
            for table in tables:
                self._remove(tx, table)
                edit.drop_table(table.number)
            views.drop_all(edit, shown)
            edit.drop_namespace(name)
            return tx.commit()

    # ------------------------------------------------------------------- tables

    def create_table(self, definition: plans.CreateTable) -> int:
        """CREATE TABLE; its namespace is made with it (D3)."""
        table, state = definition.table, self._catalog.state
        if state.table(TableName(table.namespace, table.name)) is not None and definition.if_not_exists:
            return self._catalog.ticket
        namespace = state.namespace(table.namespace)
        if namespace is None:
            _check_namespace(table.namespace)
        self._check_free(table.namespace, table.name)
        limit = self._tables.max_tables
        if limit and len(state.tables) >= limit:
            raise TopicsError(
                Reason.THROTTLED, "the server has reached its limit of tables", {"limit": "max_tables", "max": limit}
            )
        table = self._completed(table, namespace)
        with Transaction(self._tables.writer) as tx:
            edit = self._catalog.edit(tx)
            if namespace is None:
                edit.put_namespace(Namespace(table.namespace, created_ms=self._now))
            made = edit.add_table(table)
            if definition.changes:
                self._tables.changes.stage_begin(tx, made.number, is_kept=True)
            return tx.commit()

    def _completed(self, table: Table, namespace: Namespace | None) -> Table:
        """The table as it is stored, checked."""
        _check_name(table.name, "table")
        for column in table.columns:
            _check_name(column.name, "column")
        _check_distinct([column.name for column in table.columns], "column", _COLUMN_EXISTS)
        _check_distinct([check.name for check in table.checks], "check", _OBJECT_EXISTS)
        _check_count(len(table.columns), MAX_COLUMNS, "columns")
        _check_count(len(table.indexes), MAX_INDEXES, "indexes")
        _check_count(len(table.checks), MAX_CHECKS, "checks")
        if not table.columns or not table.primary_key:
            raise invalid_value(f'table "{table.name}" needs a column and a primary key', sqlstate=_BAD_TABLE)
        _check_durability(table.durability)
        indexes = tuple(
            structs.replace(index, number=number, state=IndexState.READY)
            for number, index in enumerate(table.indexes, 1)
        )
        _check_distinct([index.name for index in indexes], "index", _OBJECT_EXISTS)
        for index in indexes:
            self._check_index(table, index)
        ids = tuple(column.id for column in table.columns)
        made = structs.replace(
            table, indexes=indexes, next_index=len(indexes) + 1, versions=(ids,), next_column=max(ids) + 1,
            placement=table.placement if namespace is None else namespace.placement, created_ms=self._now,
        )  # fmt: skip
        self._check_compiles(made)
        return made

    def drop_table(self, definition: plans.DropTable) -> int:
        """DROP TABLE, with CASCADE its routes too, and live queries end; messages stay (D22)."""
        table = self._today(definition.table)
        routes = self._catalog.state.routes(table.number)
        if routes and not definition.cascade:
            raise self._has_routes(table, routes, "drop them, or use CASCADE")
        if not definition.cascade:
            views.check_table(self._catalog.state, table, f"table {table.table_id}")
            self._check_not_followed(table, "end them, or use CASCADE")
        with Transaction(self._tables.writer) as tx:
            self._remove(tx, table)
            edit = self._catalog.edit(tx)
            views.drop_all(edit, views.of_table(self._catalog.state, table))
            edit.drop_table(table.number)
            return tx.commit()

    def truncate(self, definition: plans.Truncate) -> int:
        """TRUNCATE: no events, so it is refused while there are routes. The table gets another number."""
        table = self._today(definition.table)
        routes = self._catalog.state.routes(table.number)
        if routes:
            raise self._has_routes(table, routes, "TRUNCATE has no events; drop the routes, or use DELETE")
        self._check_not_followed(table, "TRUNCATE has no changes; end them, or use DELETE")
        log = self._tables.changes.logs.get(table.number)
        indexes = tuple(structs.replace(index, state=IndexState.READY) for index in table.indexes)
        with Transaction(self._tables.writer) as tx:
            self._remove(tx, table)
            edit = self._catalog.edit(tx)
            edit.drop_table(table.number)
            made = edit.add_table(structs.replace(table, indexes=indexes))
            if log is not None and log.state.is_kept:
                self._tables.changes.stage_begin(tx, made.number, is_kept=True)
            return tx.commit()

    def rename_table(self, definition: plans.RenameTable) -> int:
        """ALTER TABLE RENAME TO."""
        table = self._today(definition.table)
        _check_name(definition.name, "table")
        self._check_free(table.namespace, definition.name)
        views.check_table(self._catalog.state, table, f"table {table.table_id}")
        return self._put(structs.replace(table, name=definition.name))

    def set_options(self, definition: plans.SetTableOptions) -> int:
        """ALTER TABLE SET."""
        table = self._today(definition.table)
        _check_durability(definition.durability)
        with Transaction(self._tables.writer) as tx:
            self._catalog.edit(tx).put_table(structs.replace(table, durability=definition.durability))
            if definition.changes is not None:
                self._tables.changes.stage_begin(tx, table.number, is_kept=definition.changes)
            return tx.commit()

    # ------------------------------------------------------------------ columns

    def add_column(self, definition: plans.AddColumn) -> int:
        """ADD COLUMN: rows that are there have its default of today."""
        table, column = self._today(definition.table), definition.column
        if any(each.name == column.name for each in table.columns):
            if definition.if_not_exists:
                return self._catalog.ticket
            raise _column_exists(table, column.name)
        _check_name(column.name, "column")
        _check_count(len(table.columns) + 1, MAX_COLUMNS, "columns")
        column = structs.replace(column, id=table.next_column)
        made = self._versioned(structs.replace(table, columns=(*table.columns, column), next_column=column.id + 1))
        self._check_compiles(made)
        value = None
        if column.default is not None:  # functions of time and chance are refused
            value = TableRuntime(made, Environment()).compile(column.default)((), None, ())
        if column.not_null and value is None and not self._is_empty(table):
            message = f'column "{column.name}" may not be NULL and needs a default for the rows that are there'
            raise sql_error(Reason.NOT_NULL_VIOLATION, message, table=table.table_id, column=column.name)
        initial = None if value is None else Literal(value, column.type)
        columns = (*table.columns, structs.replace(column, initial=initial))
        return self._put(structs.replace(made, columns=columns))

    def drop_column(self, definition: plans.DropColumn) -> int:
        """DROP COLUMN, with CASCADE the indexes, checks and routes that read it (D22)."""
        table = self._today(definition.table)
        column = _column(table, definition.column)
        if column.id in table.primary_key:
            message = f'column "{column.name}" is part of the primary key'
            raise sql_error(Reason.DEPENDENT_OBJECTS, message, table=table.table_id, column=column.name)
        indexes = [index for index in table.indexes if column.id in index.columns]
        checks = references.checks_with(table, column.id)
        routes = [
            route for route in self._catalog.state.routes(table.number) if column.id in references.reads_of_route(route)
        ]
        if (indexes or checks or routes) and not definition.cascade:
            dependents = [f"index {index.name}" for index in indexes] + [f"check {check}" for check in checks]
            dependents += [self._named(route) for route in routes]
            message = f'column "{column.name}" is read by {", ".join(dependents[:5])}; drop them, or use CASCADE'
            raise sql_error(
                Reason.DEPENDENT_OBJECTS, message, table=table.table_id, column=column.name, dependents=dependents
            )
        if not definition.cascade:
            views.check_table(self._catalog.state, table, f'column "{column.name}"', column.id)
        shown = views.of_table(self._catalog.state, table, column.id)
        made = self._versioned(
            structs.replace(
                table,
                columns=tuple(each for each in table.columns if each.id != column.id),
                indexes=tuple(each for each in table.indexes if each not in indexes),
                checks=tuple(check for check in table.checks if check.name not in checks),
            )
        )
        with Transaction(self._tables.writer) as tx:
            for index in indexes:
                stage_removal(self._tables, tx, table, index)
            self._remove_routes(tx, routes)
            edit = self._catalog.edit(tx)
            views.drop_all(edit, shown)
            edit.put_table(made)
            return tx.commit()

    def rename_column(self, definition: plans.RenameColumn) -> int:
        """RENAME COLUMN."""
        table = self._today(definition.table)
        column = _column(table, definition.column)
        _check_name(definition.name, "column")
        if any(each.name == definition.name for each in table.columns):
            raise _column_exists(table, definition.name)
        views.check_table(self._catalog.state, table, f'column "{column.name}"', column.id)
        return self._put(_with_column(table, structs.replace(column, name=definition.name)))

    def change_type(self, definition: plans.ChangeType) -> int:
        """ALTER COLUMN TYPE: to a wider type, whose stored values and keys are the same."""
        table = self._today(definition.table)
        column = _column(table, definition.column)
        if definition.type == column.type:
            return self._catalog.ticket
        if not _is_wider(column.type, definition.type):
            message = f'column "{column.name}" can\'t become {definition.type.name}: only a wider {column.type.name}'
            raise sql_error(Reason.UNSUPPORTED_SQL, message, table=table.table_id, column=column.name)
        routes = self._catalog.state.routes(table.number)
        readers = [f"check {name}" for name in references.checks_with(table, column.id)]
        readers += [self._named(route) for route in routes if column.id in references.reads_of_route(route)]
        if readers:
            message = f'column "{column.name}" is read by {", ".join(readers[:5])}, which count with its type'
            raise sql_error(
                Reason.DEPENDENT_OBJECTS, message, table=table.table_id, column=column.name, dependents=readers
            )
        views.check_table(self._catalog.state, table, f'column "{column.name}"', column.id)
        return self._put(_with_column(table, structs.replace(column, type=definition.type)))

    def set_default(self, definition: plans.SetDefault) -> int:
        """ALTER COLUMN SET DEFAULT, DROP DEFAULT: for rows inserted from here on."""
        table = self._today(definition.table)
        column = _column(table, definition.column)
        made = _with_column(table, structs.replace(column, default=definition.default, default_text=definition.text))
        self._check_compiles(made)
        return self._put(made)

    # -------------------------------------------------------------------- views

    def create_view(self, definition: plans.CreateView) -> int:
        """CREATE VIEW; its namespace is made with it."""
        view, state = definition.view, self._catalog.state
        _check_name(view.name, "view")
        for name, _ in view.columns:
            _check_name(name, "column")
        namespace = state.namespace(view.namespace)
        if namespace is None:
            _check_namespace(view.namespace)
        view = views.created(state, definition, self._now, lambda: self._check_free(view.namespace, view.name))
        with Transaction(self._tables.writer) as tx:
            edit = self._catalog.edit(tx)
            if namespace is None:
                edit.put_namespace(Namespace(view.namespace, created_ms=self._now))
            edit.put_view(view)
            return tx.commit()

    def drop_view(self, definition: plans.DropView) -> int:
        """DROP VIEW, with CASCADE the views over it too."""
        names = views.dropped(self._catalog.state, definition)
        with Transaction(self._tables.writer) as tx:
            views.drop_all(self._catalog.edit(tx), names)
            return tx.commit()

    # ------------------------------------------------------------------ indexes

    def create_index(self, definition: plans.CreateIndex) -> int:
        """CREATE INDEX: of an empty table it is ready at once, else `Tables.built` follows."""
        table, index = self._today(definition.table), definition.index
        if self._catalog.state.index(TableName(table.namespace, index.name)) is not None and definition.if_not_exists:
            return self._catalog.ticket
        _check_count(len(table.indexes) + 1, MAX_INDEXES, "indexes")
        is_empty = self._is_empty(table)
        state = IndexState.READY if is_empty else IndexState.BUILDING
        index = structs.replace(index, number=table.next_index, state=state, constraint=False)
        self._check_index(table, index)
        ticket = self._put(structs.replace(table, indexes=(*table.indexes, index), next_index=table.next_index + 1))
        if not is_empty:
            self._tables.builds.add(table, index)
        return ticket

    def drop_index(self, definition: plans.DropIndex) -> int:
        """DROP INDEX; the indexes of UNIQUE constraints stay."""
        table = self._today(definition.table)
        index = next((each for each in table.indexes if each.number == definition.index), None)
        if index is None:
            raise sql_error(Reason.INDEX_NOT_FOUND, f"{table.table_id} does not have that index", table=table.table_id)
        if index.constraint:
            message = f'index "{index.name}" belongs to a UNIQUE constraint of {table.table_id}'
            raise sql_error(Reason.DEPENDENT_OBJECTS, message, table=table.table_id, index=index.name)
        with Transaction(self._tables.writer) as tx:
            drop_index(self._tables, tx, table, index)
            return tx.commit()

    def _check_index(self, table: Table, index: Index) -> None:
        _check_name(index.name, "index")
        self._check_free(table.namespace, index.name)
        if not index.columns:
            raise invalid_value(f'index "{index.name}" has no column', sqlstate=_BAD_TABLE)
        _check_distinct([str(column) for column in index.columns], "column of the index", _COLUMN_EXISTS)
        keycode.encoder(tuple(_column(table, column).type for column in index.columns))

    # ---------------------------------------------------------------- internals

    @property
    def _now(self) -> int:
        return self._tables.clock.now_ms()

    def _today(self, table: Table) -> Table:
        """The table as it is written now."""
        found = self._catalog.state.tables.get(table.number)
        if found is None:
            raise sql_error(Reason.TABLE_NOT_FOUND, f"table {table.table_id} does not exist", table=table.table_id)
        return found

    def _put(self, table: Table) -> int:
        with Transaction(self._tables.writer) as tx:
            self._catalog.edit(tx).put_table(table)
            return tx.commit()

    def _versioned(self, table: Table) -> Table:
        """The table with a schema version of its columns."""
        if len(table.versions) > MAX_VERSION:
            message = f"{table.table_id} had {len(table.versions)} changes of its columns, there can be no more"
            raise sql_error(Reason.UNSUPPORTED_SQL, message, table=table.table_id)
        ids = tuple(column.id for column in table.columns)
        return structs.replace(table, versions=(*table.versions, ids))

    def _check_compiles(self, table: Table) -> None:
        """Raise the errors of keys, checks and defaults that can't be."""
        runtime = TableRuntime(table, self._tables.environment)
        assert len(runtime.defaults) == len(table.columns)

    def _check_free(self, namespace: str, name: str) -> None:
        full = TableName(namespace, name)
        if self._catalog.state.table(full) is not None:
            raise sql_error(Reason.ALREADY_EXISTS, f"table {full} exists", table=str(full))
        if self._catalog.state.index(full) is not None:
            raise sql_error(Reason.ALREADY_EXISTS, f"index {full} exists", index=str(full))
        if self._catalog.state.view(full) is not None:
            raise sql_error(Reason.ALREADY_EXISTS, f"view {full} exists", view=str(full))

    def _is_empty(self, table: Table) -> bool:
        rows = self._tables.writer.store.scan(Family.ROWS, *keys.prefix_range(keys.u64(table.number)))
        return next(iter(rows), None) is None

    def _remove(self, tx: Transaction, table: Table) -> None:
        """Stage the end of a table: its rows, entries and routes."""
        self._remove_routes(tx, self._catalog.state.routes(table.number))
        self._tables.removals.stage_table(tx, table.number)
        self._tables.changes.stage_end(tx, table.number)
        for index in table.indexes:
            if index.state is IndexState.BUILDING:
                stage_removal(self._tables, tx, table, index)

    def _remove_routes(self, tx: Transaction, routes: Sequence[Route]) -> None:
        if routes:
            self._catalog.state.topics.stage_without(tx, routes)

    def _check_not_followed(self, table: Table, remedy: str) -> None:
        log = self._tables.changes.logs.get(table.number)
        if log is not None and log.followers:
            message = f"{table.table_id} has {len(log.followers)} live queries: {remedy}"
            raise sql_error(Reason.DEPENDENT_OBJECTS, message, table=table.table_id, live_queries=len(log.followers))

    def _has_routes(self, table: Table, routes: Sequence[Route], remedy: str) -> TopicsError:
        message = f"{table.table_id} has {len(routes)} routes into topics: {remedy}"
        dependents = [self._named(route) for route in routes]
        return sql_error(Reason.DEPENDENT_OBJECTS, message, table=table.table_id, dependents=dependents)

    def _named(self, route: Route) -> str:
        return f"route of {route.op.value} into topic {self._catalog.state.topics.name_of(route.topic)}"


def _check_namespace(name: str) -> None:
    _check_name(name, "namespace")
    if name in RESERVED_NAMESPACES:
        message = f'the namespace "{name}" is reserved'
        raise invalid_value(message, sqlstate=_RESERVED_NAME, namespace=name)


def _check_name(name: str, what: str) -> None:
    if not 0 < len(name) <= MAX_NAME or not name.isprintable() or name != name.strip():
        message = f"the name of a {what} has 1 to {MAX_NAME} printable characters, no space at its ends"
        raise invalid_value(message, sqlstate=_BAD_NAME)


def _check_distinct(names: Sequence[str], what: str, sqlstate: str) -> None:
    seen = set[str]()
    for name in names:
        if name in seen:
            raise sql_error(Reason.ALREADY_EXISTS, f'the {what} "{name}" is there twice', sqlstate=sqlstate)
        seen.add(name)


def _check_count(count: int, limit: int, what: str) -> None:
    if count > limit:
        raise sql_error(Reason.UNSUPPORTED_SQL, f"a table has at most {limit} {what}", sqlstate=_TOO_MANY)


def _check_durability(durability: str) -> None:
    if durability not in DURABILITIES:
        raise invalid_value(f"the durability of a table is one of {', '.join(DURABILITIES)}")


def _column(table: Table, number: int) -> ColumnSchema:
    found = next((column for column in table.columns if column.id == number), None)
    if found is None:
        raise sql_error(Reason.COLUMN_NOT_FOUND, f"{table.table_id} does not have that column", table=table.table_id)
    return found


def _column_exists(table: Table, name: str) -> TopicsError:
    message = f'{table.table_id} has a column "{name}" already'
    return sql_error(Reason.ALREADY_EXISTS, message, sqlstate=_COLUMN_EXISTS, table=table.table_id, column=name)


def _with_column(table: Table, column: ColumnSchema) -> Table:
    columns = tuple(column if each.id == column.id else each for each in table.columns)
    return structs.replace(table, columns=columns)


def _is_wider(old: Type, new: Type) -> bool:
    if new.kind in _WIDER.get(old.kind, ()):
        return True
    if old.kind is not new.kind:
        return False
    if old.kind is Kind.TEXT:
        return bool(old.length) and (not new.length or new.length > old.length)
    return old.kind is Kind.DECIMAL and bool(old.precision) and new.scale == old.scale and new.precision > old.precision


_RUN: Final[dict[type, Callable[[Definitions, Any], int]]] = {
    plans.CreateNamespace: Definitions.create_namespace,
    plans.DropNamespace: Definitions.drop_namespace,
    plans.CreateTable: Definitions.create_table,
    plans.DropTable: Definitions.drop_table,
    plans.Truncate: Definitions.truncate,
    plans.RenameTable: Definitions.rename_table,
    plans.SetTableOptions: Definitions.set_options,
    plans.AddColumn: Definitions.add_column,
    plans.DropColumn: Definitions.drop_column,
    plans.RenameColumn: Definitions.rename_column,
    plans.ChangeType: Definitions.change_type,
    plans.SetDefault: Definitions.set_default,
    plans.CreateView: Definitions.create_view,
    plans.DropView: Definitions.drop_view,
    plans.CreateIndex: Definitions.create_index,
    plans.DropIndex: Definitions.drop_index,
}
