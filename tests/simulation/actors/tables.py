"""Statements on tables in transactions, definitions of tables, indexes and routes, and readers of rows."""

from collections.abc import Callable
from typing import NamedTuple

from table_support import BIGINT, TEXT, binary, by_key, column, delete, insert, literal, query, table, update

from simulation.actors.base import Actor
from simulation.oracle import calls
from simulation.oracle.tables import NAMESPACE, NEW_VALUE, WHOLE, Change, Row, Rows, finished
from simulation.world import RefusedError
from support.log_model import demand
from topics_service.engine.tables import plans
from topics_service.engine.tables.expressions import Expression, Literal
from topics_service.engine.tables.model import ColumnSchema, Index, IndexState, Op, PayloadMode, Route, Table
from topics_service.engine.tables.transaction import TableTransaction

NAMES = ("t", "u", "v")
FEED = "feed"  # a topic with some of the changes, that may lose records
IDS, AS, BS = range(14), range(8), (None, None, "x", "y", "z", "w")
_COLUMNS = (
    ColumnSchema(1, "id", BIGINT),
    ColumnSchema(2, "a", BIGINT, not_null=True),
    ColumnSchema(3, "b", TEXT),
)
_MOST_COLUMNS = 5


class _Statement(NamedTuple):
    """A plan, what it changes, and the code that it is refused with."""

    plan: plans.Change
    changes: list[tuple[Row | None, Row | None]]
    code: str | None = None


class Statements(Actor):
    """Transactions of some statements, with savepoints, that commit or roll back."""

    weight = 70

    def act(self) -> None:
        """See Actor."""
        tables = self.world.tables
        found = [each for each in (tables.named(name) for name in NAMES) if each is not None]
        if not found:
            return
        tx = self.world.call(self.world.engine.tables.begin)
        try:
            self._transaction(tx, found)
        finally:
            tx.rollback()

    def _transaction(self, tx: TableTransaction, found: list[Table]) -> None:
        tables, changes = self.world.tables, list[Change]()
        rows: dict[int, Rows] = {}
        touched: dict[int, Table] = {}
        mark: tuple[int, dict[int, Rows]] | None = None
        for _ in range(self.pick(1, 1, 1, 2, 4)):
            of = self.random.choice(found)
            touched[of.number] = of
            mine = rows.setdefault(of.number, dict(tables.state.rows[of.number]))
            if self.chance(0.2):
                self._look(tx, of, mine)
                continue
            if self.chance(0.15) and mark is None:
                self.world.call(lambda: tx.savepoint("s"))
                mark = len(changes), {number: dict(each) for number, each in rows.items()}
            statement = self._statement(of, mine)
            self.tell(f"{of.name}: {_told(statement)}")
            codes = () if statement.code is None else (statement.code,)
            try:
                self.world.call(lambda plan=statement.plan: finished(tx.run(plan)), *codes)  # type: ignore[misc]
            except RefusedError as refused:
                if refused.code != statement.code or mark is None:
                    raise
                self.world.trace.meet(f"a statement refused: {statement.code}")
                self._back(tx, mark, changes, rows, tables.state.rows)
                mark = None
                continue
            demand(statement.code is None, f"a statement is done that is {statement.code}")
            for old, new in statement.changes:
                op = Op.INSERT if old is None else Op.DELETE if new is None else Op.UPDATE
                changes.append(Change(of, op, old, new))
                if new is None:
                    assert old is not None
                    del mine[old["id"]]  # type: ignore[arg-type]
                else:
                    mine[new["id"]] = new  # type: ignore[index]
            if mark is not None and self.chance(0.25):
                self._back(tx, mark, changes, rows, tables.state.rows)
                mark = None
        if self.chance(0.1):
            self.world.trace.meet("a transaction rolled back")
            return
        tables.commit(tx, list(touched.values()), changes, rows)

    def _back(
        self, tx: TableTransaction, mark: tuple[int, dict[int, Rows]], changes: list[Change], rows: dict[int, Rows],
        stored: dict[int, Rows],
    ) -> None:  # fmt: skip
        self.tell("rolls back to the savepoint")
        self.world.call(lambda: tx.rollback_to("s"))
        self.world.call(lambda: tx.release("s"))
        del changes[mark[0] :]
        for number in rows:
            kept = mark[1].get(number, stored[number])
            rows[number].clear()
            rows[number].update(kept)
        self.world.trace.meet("a savepoint gone back to")

    def _look(self, tx: TableTransaction, of: Table, rows: Rows) -> None:
        """A transaction sees its own changes."""
        found = [tuple(row) for row in self.world.call(lambda: finished(tx.run(query(of)))).rows]
        wanted = [tuple(rows[key][each.name] for each in of.columns) for key in sorted(rows)]
        demand(found == wanted, f"a transaction sees {found}, not {wanted}")

    # ---------------------------------------------------------------- statements

    def _statement(self, of: Table, rows: Rows) -> _Statement:
        makers: tuple[Callable[[Table, Rows], _Statement], ...] = (
            self._insert, self._insert, self._insert, self._upsert, self._ignore, self._set_a, self._set_b,
            self._count_up, self._delete, self._delete_where,
        )  # fmt: skip
        if self.chance(0.05):
            makers = (self._insert_null,)
        if any(index.unique and index.state is IndexState.BUILDING for index in of.indexes):
            makers = (self._delete, self._delete_where, self._insert_plain)  # what it lets in depends on how far it is
        return self.random.choice(makers)(of, rows)

    def _row(self, of: Table) -> Row:
        made = {"id": self.pick(*IDS), "a": self.pick(*AS), "b": self.pick(*BS)}
        return {each.name: made.get(each.name, self.pick(*AS)) for each in of.columns}

    def _insert(self, of: Table, rows: Rows) -> _Statement:
        made = [self._row(of) for _ in range(self.pick(1, 1, 2, 3))]
        after, code = dict(rows), None
        for row in made:
            if row["id"] in after or _clashes(of, after, row):
                code = "unique_violation"
            after[row["id"]] = row  # type: ignore[index]
        return _Statement(insert(of, *_values(of, made)), [(None, row) for row in made], code)

    def _insert_plain(self, of: Table, rows: Rows) -> _Statement:
        row = {**self._row(of), "b": None}
        code = "unique_violation" if row["id"] in rows else None
        return _Statement(insert(of, *_values(of, [row])), [(None, row)], code)

    def _insert_null(self, of: Table, rows: Rows) -> _Statement:
        row = {**self._row(of), "a": None}
        return _Statement(insert(of, *_values(of, [row])), [], "not_null_violation")

    def _upsert(self, of: Table, rows: Rows) -> _Statement:
        row = self._row(of)
        old = rows.get(row["id"])  # type: ignore[call-overload]
        conflict = plans.OnConflict(None, assignments=((column(of, "a").column, literal(row["a"])),))
        plan = insert(of, *_values(of, [row]), conflict=conflict)
        if old is None:
            return _Statement(plan, [(None, row)], "unique_violation" if _clashes(of, rows, row) else None)
        return _Statement(plan, _updated(old, {**old, "a": row["a"]}))

    def _ignore(self, of: Table, rows: Rows) -> _Statement:
        row = self._row(of)
        plan = insert(of, *_values(of, [row]), conflict=plans.OnConflict(any=True))
        return _Statement(plan, [] if row["id"] in rows or _clashes(of, rows, row) else [(None, row)])

    def _set_a(self, of: Table, rows: Rows) -> _Statement:
        key, a = self.pick(*IDS), self.pick(*AS)
        old = rows.get(key)
        return _Statement(update(of, by_key(key), a=a), [] if old is None else _updated(old, {**old, "a": a}))

    def _set_b(self, of: Table, rows: Rows) -> _Statement:
        key, b = self.pick(*IDS), self.pick(*BS)
        old = rows.get(key)
        plan = update(of, by_key(key), b=b)
        if old is None:
            return _Statement(plan, [])
        new = {**old, "b": b}
        others = {each: row for each, row in rows.items() if each != key}
        return _Statement(plan, _updated(old, new), "unique_violation" if _clashes(of, others, new) else None)

    def _count_up(self, of: Table, rows: Rows) -> _Statement:
        """Read by the index that is changed, where there is one: no row is met twice."""
        bound = self.pick(*AS)
        plan = update(
            of, self._below(of, bound), a=binary("+", column(of, "a"), literal(1), BIGINT), where=_less(of, bound)
        )
        return _Statement(plan, [(row, {**row, "a": _a(row) + 1}) for row in rows.values() if _a(row) < bound])

    def _delete(self, of: Table, rows: Rows) -> _Statement:
        key = self.pick(*IDS)
        return _Statement(delete(of, by_key(key)), [(rows[key], None)] if key in rows else [])

    def _delete_where(self, of: Table, rows: Rows) -> _Statement:
        bound = self.pick(*AS[:3])
        plan = delete(of, self._below(of, bound), filter=_less(of, bound))
        return _Statement(plan, [(row, None) for row in rows.values() if _a(row) < bound])

    def _below(self, of: Table, bound: int) -> plans.Scan:
        place = column(of, "a").column
        ready = [i.number for i in of.indexes if i.columns[0] == place and i.state is IndexState.READY]
        if not ready:
            return plans.Scan()
        return plans.Scan(index=self.random.choice(ready), upper=plans.Bound(literal(bound), inclusive=False))


class Definer(Actor):
    """Makes, changes and drops tables, indexes, topics and routes."""

    weight = 16

    def act(self) -> None:
        """See Actor."""
        tables, name = self.world.tables, self.pick(*NAMES)
        of = tables.named(name)
        if of is None:
            self._create(name)
        else:
            rare = (self._drop_index, self._truncate, self._unroute, self._column, self._durability, self._drop)
            self.random.choice(rare if self.chance(0.35) else (self._index, self._route, self._route))(of)

    def _create(self, name: str) -> None:
        indexes = (Index(0, f"{name}_b", (3,), unique=True, constraint=True),) if self.chance(0.4) else ()
        durability = self.pick("disk", "disk", "fsync")
        self.tell(f"creates {name}, {durability}, {len(indexes)} indexes")
        made = table(name, _COLUMNS, namespace=NAMESPACE, indexes=indexes, durability=durability)
        self.world.tables.define(plans.CreateTable(made))
        demand(self.world.tables.named(name) is not None, "a table is made, and is not there")

    def _index(self, of: Table) -> None:
        columns, unique = self.pick(((2,), False), ((2, 3), False), ((3,), True), ((3,), False))
        name = f"{of.name}_{self.random.randrange(4)}"
        self.tell(f"creates the index {name} of {columns}, unique {unique}")
        codes = ("already_exists",) if any(each.name == name for each in of.indexes) else ()
        self.world.tables.define(plans.CreateIndex(of, Index(0, name, columns, unique=unique)), *codes)

    def _drop_index(self, of: Table) -> None:
        if of.indexes:
            index = self.random.choice(of.indexes)
            self.tell(f"drops the index {index.name}, {index.state.value}")
            codes = ("dependent_objects",) if index.constraint else ()
            self.world.tables.define(plans.DropIndex(of, index.number), *codes)

    def _truncate(self, of: Table) -> None:
        self.tell(f"truncates {of.name}")
        codes = ("dependent_objects",) if self.world.tables.routes_of(of.number) else ()
        self.world.tables.define(plans.Truncate(of), *codes)

    def _drop(self, of: Table) -> None:
        cascade = self.chance(0.7)
        self.tell(f"drops {of.name}")
        codes = ("dependent_objects",) if self.world.tables.routes_of(of.number) and not cascade else ()
        self.world.tables.define(plans.DropTable(of, cascade), *codes)

    def _column(self, of: Table) -> None:
        if len(of.columns) > len(_COLUMNS) and self.chance(0.5):
            self.tell(f"drops the column {of.columns[-1].name} of {of.name}")
            self.world.tables.define(plans.DropColumn(of, of.columns[-1].id))
        elif len(of.columns) < _MOST_COLUMNS:
            name = f"c{of.next_column}"
            self.tell(f"adds the column {name} to {of.name}")
            made = ColumnSchema(of.next_column, name, BIGINT, default=Literal(NEW_VALUE, BIGINT), default_text="7")
            self.world.tables.define(plans.AddColumn(of, made))

    def _durability(self, of: Table) -> None:
        durability = self.pick("disk", "fsync")
        self.tell(f"{of.name} is of the class {durability}")
        self.world.tables.define(plans.SetTableOptions(of, durability))

    # -------------------------------------------------------------------- routes

    def _route(self, of: Table) -> None:
        name = self.pick(WHOLE, FEED)
        topic = self.world.topics.find(name)
        if topic is None or self.chance(0.1):
            given: dict[str, object] = {"durability": self.pick("disk", "disk", "fsync", "memory")}
            if name == FEED:
                given |= {
                    "ttl_ms": self.pick(0, 2000),
                    "cap_records": self.pick(0, 5, 12),
                    "discard": self.pick("old", "reject"),
                }
            self.tell(f"{name} {given}")
            calls.put(self.world, name, given)
        elif not self.world.is_visible(topic):
            self.world.sync()
        else:
            self._add(of, name, topic.number)

    def _add(self, of: Table, name: str, number: int) -> None:
        tables, topic = self.world.tables, self.world.topics.by_name[name]
        missing = [op for op in Op if not any(r.op is op and r.topic == number for r in tables.routes_of(of.number))]
        if name == WHOLE:
            for op in missing:
                self.tell(f"{op.value} of {of.name} goes to {name}")
                tables.define(plans.AddSource(name, Route(0, of.number, op, PayloadMode.FULL)))
            if missing:
                tables.whole(of, topic)
            return
        op, mode = self.pick(*Op), self.pick(*PayloadMode)
        condition: Expression | None = None
        if self.chance(0.4):
            condition = binary(">", column(of, "a"), literal(self.pick(*AS)))
        tombstones = mode is PayloadMode.FULL and op is Op.DELETE and self.chance(0.5)
        self.tell(f"{op.value} of {of.name} goes to {name}, {mode.value}")
        route = Route(
            0, of.number, op, mode, filter=condition, filter_text="a > 1" if condition else "", tombstones=tombstones
        )
        tables.define(plans.AddSource(name, route), *(() if op in missing else ("already_exists",)))

    def _unroute(self, of: Table) -> None:
        name = self.pick(WHOLE, FEED, FEED)
        topic = self.world.topics.find(name)
        if topic is None:
            return
        if self.chance(0.3):
            self.tell(f"deletes {name}")
            calls.delete_topic(self.world, name)
            return
        if self.world.is_visible(topic):
            mine = [route for route in self.world.tables.routes_of(of.number) if route.topic == topic.number]
            op = None if name == WHOLE else self.pick(None, *Op)
            known = any(op in (None, route.op) for route in mine)
            self.tell(f"{op} of {of.name} goes to {name} no more")
            self.world.tables.define(plans.DropSource(name, of, op), *(() if known else ("route_not_found",)))


class RowReader(Actor):
    """Reads rows, some by an index."""

    weight = 12

    def act(self) -> None:
        """See Actor."""
        found = self.world.tables.named(self.pick(*NAMES))
        if found is not None:
            self.world.tables.read(found, self.pick(*AS))


def _values(of: Table, rows: list[Row]) -> list[list[object]]:
    return [[row[each.name] for each in of.columns] for row in rows]


def _updated(old: Row, new: Row) -> list[tuple[Row | None, Row | None]]:
    return [(old, new)] if old != new else []


def _clashes(of: Table, rows: Rows, row: Row) -> bool:
    """True if another row has the same values in a unique index."""
    names = {each.id: each.name for each in of.columns}
    for index in of.indexes:
        mine = [row[names[each]] for each in index.columns]
        others = ([other[names[each]] for each in index.columns] for other in rows.values())
        if index.unique and None not in mine and mine in others:
            return True
    return False


def _a(row: Row) -> int:
    value = row["a"]
    assert isinstance(value, int)
    return value


def _less(of: Table, bound: int) -> Expression:
    return binary("<", column(of, "a"), literal(bound))


def _told(statement: _Statement) -> str:
    return f"{type(statement.plan).__name__.lower()} {statement.changes} {statement.code or ''}"
