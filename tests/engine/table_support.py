"""Plans of tables made by hand, and a short way to run them."""

from collections.abc import Generator, Sequence
from typing import Any, TypeVar

from engine_support import CrashStore, FakeClock
from msgspec import Struct

from topics_service.engine.engine import Engine
from topics_service.engine.tables import plans
from topics_service.engine.tables.expressions import Binary, Column, Expression, Literal, Parameter, Side
from topics_service.engine.tables.model import ColumnSchema, Index, Table, TableName
from topics_service.engine.tables.outcomes import Outcome
from topics_service.engine.tables.tables import Tables
from topics_service.engine.tables.types import Kind, Type, Value
from topics_service.storage.store import WriteBatch
from topics_sql.reader import Reader

READER = Reader()
T = TypeVar("T")
Access = plans.Scan | plans.Lookup
BIGINT, TEXT, DOUBLE, BOOLEAN = Type(Kind.BIGINT), Type(Kind.TEXT), Type(Kind.DOUBLE), Type(Kind.BOOLEAN)


def finished(steps: Generator[None, None, T]) -> T:
    """Run steps to their end."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result


def table(
    name: str = "t",
    columns: Sequence[ColumnSchema] | None = None,
    key: Sequence[int] = (1,),
    *,
    namespace: str = "app",
    **fields: Any,
) -> Table:
    """A table to create: (id BIGINT, a BIGINT, b TEXT), unless other columns are given."""
    given = columns or (ColumnSchema(1, "id", BIGINT), ColumnSchema(2, "a", BIGINT), ColumnSchema(3, "b", TEXT))
    return Table(0, namespace, name, tuple(given), tuple(key), (), 0, **fields)


def column(of: Table, name: str, side: Side = Side.NEW) -> Column:
    found = next(each for each in of.columns if each.name == name)
    return Column(found.id, found.type, side)


def literal(value: Value, sql_type: Type = BIGINT) -> Literal:
    return Literal(value, sql_type)


def binary(op: str, left: Expression, right: Expression, sql_type: Type = BOOLEAN) -> Binary:
    return Binary(op, left, right, sql_type)


def outputs(of: Table, *names: str) -> tuple[plans.Output, ...]:
    wanted = names or [each.name for each in of.columns]
    return tuple(plans.Output(name, column(of, name), column(of, name).type) for name in wanted)


class HistoryStore(CrashStore):
    """Keeps every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.history: list[WriteBatch] = []

    def write(self, batch: WriteBatch) -> None:
        super().write(batch)
        self.history.append(batch)


def at_write(store: HistoryStore, writes: int) -> HistoryStore:
    """The store after a power cut that only the first writes outlive."""
    left = HistoryStore()
    for batch in store.history[:writes]:
        left.write(batch)
    left.sync()
    return left


class TableWorld:
    """An engine on a store that crashes, and plans over its tables."""

    def __init__(self, store: Any = None) -> None:
        self.store = store or HistoryStore()
        self.clock = FakeClock()
        self.start()

    def start(self) -> None:
        self.engine = Engine(self.store, self.clock, boot_id="boot-1")

    @property
    def tables(self) -> Tables:
        return self.engine.tables

    def sync(self) -> None:
        self.engine.sync()

    def define(self, definition: plans.Definition, *, sync: bool = True) -> int:
        ticket = finished(self.tables.define(definition))
        if isinstance(definition, plans.CreateIndex):
            ticket = finished(self.tables.built(definition))
        if sync:
            self.sync()
        return ticket

    def create(self, made: Table | None = None, **fields: Any) -> Table:
        """CREATE TABLE, durable."""
        wanted = made or table(**fields)
        self.define(plans.CreateTable(wanted))
        return self.named(wanted.name, wanted.namespace)

    def named(self, name: str = "t", namespace: str = "app") -> Table:
        found = self.tables.newest.table(TableName(namespace, name))
        assert found is not None
        return found

    def index(self, of: Table, name: str, *columns: str, unique: bool = False) -> Table:
        ids = tuple(column(of, each).column for each in columns)
        self.define(plans.CreateIndex(of, Index(0, name, ids, unique=unique)))
        return self.named(of.name, of.namespace)

    def run(self, *actions: Any, parameters: Sequence[Value] = (), sync: bool = True) -> Outcome:
        """Statements in one transaction; the outcome of the last."""
        transaction = self.tables.begin()
        outcome = Outcome((), 0)
        try:
            for action in actions:
                outcome = finished(transaction.run(action, parameters))
            transaction.commit()
        finally:
            transaction.rollback()
        if sync:
            self.sync()
        return outcome

    def select(self, action: plans.Select, parameters: Sequence[Value] = ()) -> list[tuple[Value, ...]]:
        return [tuple(row) for row in finished(self.tables.select(action, parameters)).rows]

    def rows(self, of: Table, access: Access | None = None, **select: Any) -> list[tuple[Value, ...]]:
        return self.select(query(of, access, **select))

    def sql(self, text: str, *parameters: Value, sync: bool = True) -> list[tuple[Value, ...]]:
        """Run statements, each a commit of its own; the rows of the last one."""
        rows: list[tuple[Value, ...]] = []
        for statement in READER.parse(text):
            action = READER.bind(statement, self.tables.newest, "app").action
            if isinstance(action, plans.Select):
                rows = self.select(action, parameters)
            elif isinstance(action, plans.Insert | plans.Update | plans.Delete):
                rows = [tuple(row) for row in self.run(action, parameters=parameters, sync=sync).rows]
            elif not isinstance(action, plans.Nothing):
                self.define(action, sync=sync)
        return rows

    def plan(self, text: str) -> Any:
        """The action of a statement."""
        (statement,) = READER.parse(text)
        return READER.bind(statement, self.tables.newest, "app").action

    def upkeep(self) -> None:
        """Do all that is due."""
        self.sync()
        while self.tables.upkeep():
            pass
        self.sync()

    def kill(self) -> None:
        """SIGKILL."""
        self.start()

    def cut_power(self, writes: int | None = None) -> None:
        """All batches but the first `writes`, or the synced ones, are lost."""
        self.store.cut_power(self.store.synced if writes is None else writes)
        self.start()


def query(of: Table, access: Access | None = None, *names: str, **select: Any) -> plans.Select:
    """SELECT columns FROM a table; all of them by default."""
    source = plans.TableSource(of, access or plans.Scan())
    return plans.Select(source, select.pop("outputs", None) or outputs(of, *names), **select)


def insert(of: Table, *rows: Sequence[Any], **fields: Any) -> plans.Insert:
    """INSERT of values into all columns."""
    ids = tuple(each.id for each in of.columns)
    made = tuple(
        tuple(
            value if hasattr(value, "__struct_fields__") else Literal(value, each.type)
            for value, each in zip(row, of.columns, strict=True)
        )
        for row in rows
    )
    return plans.Insert(of, ids, made, **fields)


def _expression(value: Any, sql_type: Type | None) -> Expression:
    return value if isinstance(value, Struct) else Literal(value, sql_type)


def insert_parameters(of: Table) -> plans.Insert:
    """INSERT of one row of parameters."""
    row = tuple(Parameter(number, each.type) for number, each in enumerate(of.columns, 1))
    return plans.Insert(of, tuple(each.id for each in of.columns), (row,))


def update(of: Table, access: Access | None = None, /, **values: Any) -> plans.Update:
    """UPDATE: constants, or expressions."""
    filtered = values.pop("where", None)
    returning = values.pop("returning", ())
    pairs = tuple(
        (
            column(of, name).column,
            value if hasattr(value, "__struct_fields__") else Literal(value, column(of, name).type),
        )
        for name, value in values.items()
    )
    return plans.Update(of, access or plans.Scan(), pairs, filtered, returning)


def delete(of: Table, access: Access | None = None, **fields: Any) -> plans.Delete:
    return plans.Delete(of, access or plans.Scan(), **fields)


def by_key(*values: Value) -> plans.Lookup:
    """Rows whose single key is one of the values."""
    return plans.Lookup(tuple((Literal(value, BIGINT if isinstance(value, int) else TEXT),) for value in values))
