"""Live queries: what the changes of a table mean for the rows that a query has. Hot path."""

from collections import OrderedDict
from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from topics_service.engine.errors import Reason
from topics_service.engine.tables import compilation, plans
from topics_service.engine.tables.changelog import ChangeLog, Entry
from topics_service.engine.tables.errors import sql_error
from topics_service.engine.tables.model import Op, Table
from topics_service.engine.tables.payloads import differ
from topics_service.engine.tables.runtime import DAMAGE, unreadable
from topics_service.engine.tables.types import Value

if TYPE_CHECKING:
    from topics_service.engine.tables.tables import Tables

_KEPT: Final = 16
_INSERT, _UPDATE, _DELETE = Op.INSERT.value, Op.UPDATE.value, Op.DELETE.value
_FIELDS: Final = ("number", "namespace", "name", "columns", "versions", "primary_key")

Values = Sequence[Value]


class RowChange(Struct, frozen=True):
    """A row that began to match (`Insert`), is another one (`Update`), or ceased to match (`Delete`), with the position
    behind it. What does not match is None."""

    op: str
    row: Values | None
    old: Values | None
    position: str


class RowChanges(Struct, frozen=True):
    """Changes in order, at least one. Those who follow the same query are given the same object."""

    changes: Sequence[RowChange]


class LiveQuery:
    """A query with its parameters. Those who ask the same share one, and what it makes of each entry."""

    def __init__(self, tables: "Tables", plan: plans.Subscribe, parameters: Sequence[Value]) -> None:
        """Raises as `Tables.for_reading`."""
        self.plan = plan
        self.parameters = parameters
        self.users = 0
        runtime = tables.for_reading(plan.table)
        self.table = runtime.table
        self._tables = tables
        self._read = runtime.read
        self._matches = None if plan.filter is None else runtime.matcher(plan.filter)
        outputs = [output.expression for output in plan.select.outputs]
        self._project = compilation.compile_list(outputs, runtime.places, runtime.environment)
        self._made: OrderedDict[tuple[int, int], RowChanges | None] = OrderedDict()

    def check(self) -> None:
        """Raise `table_not_found` or `schema_changed` if the table is not what it was."""
        today = self._tables.newest.tables.get(self.table.number)
        if today is self.table:
            return
        name = self.table.table_id
        if today is None:
            raise sql_error(Reason.TABLE_NOT_FOUND, f"table {name} does not exist any more", table=name)
        if not _is_same(today, self.table):
            message = f"the columns or the name of table {name} were changed: ask again, with the last position"
            raise sql_error(Reason.SCHEMA_CHANGED, message, sqlstate="40001", table=name)
        self.table = today

    def rows(self) -> Generator[Values | None, None, None]:
        """The rows of the query at this moment, and None where others should have a turn.

        The first has to be asked for before anything is written. Raises `internal`, and the errors of expressions.
        """
        return self._tables.rows(self.plan.select, self.parameters)

    def changes(self, log: ChangeLog, entry: Entry) -> RowChanges | None:
        """The changes of the query's rows in an entry; None for none. Raises as `rows`."""
        name = entry.first, entry.last
        if name in self._made:
            return self._made[name]
        try:
            found = tuple(self._each(log, entry))
        except DAMAGE as error:
            raise unreadable(error) from error
        made = self._made[name] = RowChanges(found) if found else None
        if len(self._made) > _KEPT:
            self._made.popitem(last=False)
        return made

    def _each(self, log: ChangeLog, entry: Entry) -> Iterator[RowChange]:
        for number, (_, before, after) in enumerate(entry.changes, entry.first):
            old, new = self._shown(before), self._shown(after)
            if old is None and new is None:
                continue
            op = _INSERT if old is None else _DELETE if new is None else _UPDATE
            if op is _UPDATE and not any(differ(a, b) for a, b in zip(new or (), old or (), strict=True)):
                continue
            yield RowChange(op, new, old, log.position(number).text)

    def _shown(self, stored: bytes | None) -> Values | None:
        """The values of a row, if it matches."""
        if stored is None:
            return None
        row = self._read(stored)
        if self._matches is not None and not self._matches(row, None, self.parameters):
            return None
        return self._project(row, None, self.parameters)


class LiveQueries:
    """The live queries that somebody follows."""

    def __init__(self) -> None:
        self._queries: dict[Any, LiveQuery] = {}

    def __len__(self) -> int:
        return sum(query.users for query in self._queries.values())

    def use(self, tables: "Tables", plan: plans.Subscribe, parameters: Sequence[Value]) -> LiveQuery:
        """A query to follow, until `leave`. Raises as `Tables.for_reading`."""
        name = _name(plan, parameters)
        query = self._queries.get(name)
        if query is None:
            query = self._queries[name] = LiveQuery(tables, plan, parameters)
        query.users += 1
        return query

    def leave(self, query: LiveQuery) -> None:
        """Follow a query no longer."""
        query.users -= 1
        if not query.users:
            name = _name(query.plan, query.parameters)
            if self._queries.get(name) is query:
                del self._queries[name]


def _name(plan: plans.Subscribe, parameters: Sequence[Value]) -> Any:
    """The same plan object, which the query keeps, with the same parameters. 1 and 1.0 are two, as NaNs are."""
    return id(plan), tuple((value.__class__, value) for value in parameters)


def _is_same(today: Table, table: Table) -> bool:
    return all(getattr(today, field) == getattr(table, field) for field in _FIELDS)
