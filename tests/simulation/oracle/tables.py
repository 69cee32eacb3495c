"""Tables: their rows as dictionaries, what readers see of them, and what a crash would bring back."""

import json
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from table_support import BOOLEAN, column, query

from simulation.oracle.topics import History, TopicModel, back, keep, prune
from support.log_model import Rec, demand, read
from topics_service.engine.tables import plans
from topics_service.engine.tables.catalog import CatalogView
from topics_service.engine.tables.expressions import Binary, Literal
from topics_service.engine.tables.model import IndexState, Op, PayloadMode, Route, Table
from topics_service.engine.tables.removal import REMOVED_ROWS
from topics_service.engine.tables.transaction import TableTransaction
from topics_service.engine.tables.types import Value
from topics_service.storage import keys
from topics_service.storage.block import Block
from topics_service.storage.store import Family

if TYPE_CHECKING:
    from simulation.world import World

T = TypeVar("T")
Row = Mapping[str, Value]  # by the name of the column
Rows = dict[int, Row]  # by primary key
NAMESPACE = "app"
WHOLE = "changes"  # the topic with all changes of a table, from which its rows can be made again
NEW_VALUE = 7  # of rows that were there before their column


class Change(NamedTuple):
    """The effect of a statement on a row."""

    table: Table
    op: Op
    old: Row | None
    new: Row | None


@dataclass(frozen=True)
class Fold:
    """The rows of a table when its routes were complete, and the head of the topic then."""

    base: Rows
    head: int


@dataclass(frozen=True)
class State:
    """A version of all tables, never changed."""

    tables: dict[int, Table] = field(default_factory=dict)
    rows: dict[int, Rows] = field(default_factory=dict)
    routes: frozenset[Route] = frozenset()
    folds: dict[int, Fold] = field(default_factory=dict)
    last_id: int = 0
    """The highest message id."""


class Tables:
    """All tables, as written last (`state`), and the rows that readers see (`view`)."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.state = State()
        self.view: dict[int, Rows] = {}
        self._pending: list[tuple[int, dict[int, Rows]]] = []
        self._history: History[State] = [(0, self.state)]

    def named(self, name: str) -> Table | None:
        """The table of this name, as it is written."""
        return next((table for table in self.state.tables.values() if table.name == name), None)

    def routes_of(self, table: int) -> list[Route]:
        """The routes of a table."""
        return [route for route in self.state.routes if route.table == table]

    # -------------------------------------------------------------- definitions

    def hook(self) -> None:
        """The engine is new: see each of its changes of the catalog, also of those that it makes by itself."""
        catalog = self._world.engine.tables.catalog
        written = catalog.written

        def told(tables: CatalogView, changed: Iterable[int], ticket: int) -> None:
            written(tables, changed, ticket)
            self._redefined(tables)

        catalog.written = told  # type: ignore[method-assign]

    def define(self, definition: plans.Definition, *codes: str) -> None:
        """Run a definition, which may be refused with one of these codes, or must be if there is one."""
        world = self._world
        written = world.w
        ticket = world.call(lambda: finished(world.engine.tables.define(definition)), *codes)
        demand(not codes, f"a definition is taken that is {codes}")
        routes = frozenset(world.engine.topic_catalog.all_routes())
        if routes != self.state.routes:
            folds = {n: fold for n, fold in self.state.folds.items() if not _removed(self.state.routes, routes, n)}
            self._keep(replace(self.state, routes=routes, folds=folds))
        if world.w != written:
            world.owe(ticket, world.w, f"{type(definition).__name__}")
        world.trace.meet(f"a definition: {type(definition).__name__}")
        self.published(world.synced)

    def _redefined(self, tables: CatalogView) -> None:
        before, world = self.state.tables, self._world
        for number, table in tables.tables.items():
            old = before.get(number)
            for index in old.indexes if old is not None else ():
                now = next((each for each in table.indexes if each.number == index.number), None)
                if index.state is IndexState.BUILDING and now is None and index.unique:
                    world.trace.meet("a unique index that could not be built")
                elif index.state is IndexState.BUILDING and now is not None and now.state is IndexState.READY:
                    world.trace.meet("an index built")
        kept = {number: self.state.rows.get(number, {}) for number in tables.tables}
        for number, table in tables.tables.items():
            kept[number] = {key: _shaped(table, row) for key, row in kept[number].items()}
            self.view[number] = {key: _shaped(table, row) for key, row in self.view.get(number, {}).items()}
            for _, rows in self._pending:
                if number in rows:
                    rows[number] = {key: _shaped(table, row) for key, row in rows[number].items()}
        folds = {number: fold for number, fold in self.state.folds.items() if number in kept}
        self._keep(replace(self.state, tables=dict(tables.tables), rows=kept, folds=folds))

    def whole(self, table: Table, topic: TopicModel) -> None:
        """All changes of the table go to this topic from here on."""
        fold = Fold(self.state.rows[table.number], topic.log.written.head)
        self._keep(replace(self.state, folds={**self.state.folds, table.number: fold}))

    def topic_removed(self, number: int) -> None:
        """A topic is gone, and its routes with it."""
        left = frozenset(route for route in self.state.routes if route.topic != number)
        if left != self.state.routes:
            self._world.trace.meet("a topic deleted that has routes")
            folds = {n: fold for n, fold in self.state.folds.items() if not _removed(self.state.routes, left, n)}
            self._keep(replace(self.state, routes=left, folds=folds))

    # -------------------------------------------------------------- transactions

    def commit(
        self, tx: TableTransaction, touched: Sequence[Table], changes: Sequence[Change], rows: dict[int, Rows]
    ) -> None:
        """Commit a transaction that made these changes and left these rows of the tables that it touched."""
        world = self._world
        targets = self._targets(changes)
        topics = {topic.name: topic for topic, _, _ in targets}
        heads = {name: world.log(topic).state.head for name, topic in topics.items()}
        capped = any(topic.config.cap_records or topic.config.cap_bytes for topic in topics.values())
        codes = ("topic_full", "record_too_large") if capped else ()
        written = world.w
        ticket = world.call(tx.commit, *codes)
        if not changes:
            return
        demand(world.w > written, "changes are acknowledged that were not written")
        waits = any(table.durability == "fsync" for table in touched)
        waits = waits or any(topic.config.durability == "fsync" for topic in topics.values())
        demand(ticket > world.synced or not waits, "changes of the class fsync are shown before the fsync")
        ids: list[int] = []
        for name, topic in topics.items():
            ids += self._appended(topic, heads[name], [each[1:] for each in targets if each[0] is topic])
        demand(len(set(ids)) == len(ids), f"the message ids {ids} are not unique")
        last = max([self.state.last_id, *ids])
        self._keep(replace(self.state, rows={**self.state.rows, **rows}, last_id=last))
        if ticket > world.synced:
            self._pending.append((ticket, dict(rows)))
            world.trace.meet("a commit that waits for its fsync")
        else:
            demand(
                not any(number in each for _, each in self._pending for number in rows), "a commit overtakes another"
            )
            self.view.update(rows)
        world.owe(ticket, world.w if waits else None, f"{len(changes)} changes of rows")
        world.trace.meet("a change of a row", len(changes))

    def _targets(self, changes: Sequence[Change]) -> list[tuple[TopicModel, Route, Change]]:
        found = []
        for change in changes:
            for route in self.routes_of(change.table.number):
                topic = self._world.topics.by_number(route.topic)
                if topic is not None and route.op is change.op and _passes(route, change):
                    found.append((topic, route, change))
        return found

    def _appended(self, topic: TopicModel, head: int, wanted: Sequence[tuple[Route, Change]]) -> list[int]:
        """The events of a commit are in the log, behind `head`. Returns their message ids."""
        world, log = self._world, topic.log
        engine = world.log(topic)
        found: list[Rec] = []
        for seq in range(head + 1, engine.state.head + 1):
            block = engine.blocks.records(seq)
            assert isinstance(block, Block)
            found.append(read(block, seq - block.base_seq))
        expected = sorted(_event(route, change) for route, change in wanted)
        told = sorted((rec.tag or b"", json.dumps(_meta(rec)), json.dumps(json.loads(rec.data))) for rec in found)
        demand(told == expected, f"the events of a commit are {told}, not {expected}")
        state = log.written.expired(topic.config.ttl_ms, world.now, world.hold(topic, 0))
        ids, last = list[int](), self.state.last_id
        for rec in found:
            demand(rec.ts >= max(world.now, state.last_ts), "the time of an event goes back")
            ids.append(int(json.loads(rec.meta or b"{}")["message_id"]))
            demand(ids[-1] > last, f"the message id {ids[-1]} is not above {last}")
            last = ids[-1]
        after = state.appended(found, topic.config, world.hold(topic, 0))
        log.commit(after, world.w, engine, topic.config)
        for route, _ in wanted:
            world.trace.meet(f"an event: {route.mode.value}")
        return ids

    def come_to_rest(self) -> None:
        """Indexes are built, and what was dropped is removed."""
        world, store = self._world, self._world.store
        idle = 0
        while idle < 2:  # what the last slice dropped is removed by another one, once that is durable
            world.sync()
            idle = 0 if world.call(world.engine.tables.upkeep) else idle + 1
        world.sync()
        left = list(store.scan(Family.TABLES, *keys.prefix_range(REMOVED_ROWS)))
        demand(not left, f"{left} are not removed")
        indexes = [index for table in self.state.tables.values() for index in table.indexes]
        building = [index for index in indexes if index.state is IndexState.BUILDING]
        demand(not building, f"the indexes {building} are not built")

    # ------------------------------------------------------------------- reading

    def published(self, synced: int) -> None:
        """An fsync covers the writes up to this ticket."""
        while self._pending and self._pending[0][0] <= synced:
            self.view.update(self._pending.pop(0)[1])

    def check(self) -> None:
        """The rows of every table as readers see them by each of its keys, and the fold of its events."""
        tables = self._world.engine.tables
        for number, table in tables.schema.tables.items():
            today = tables.newest.tables.get(number)
            newest = today or tables.catalog.last(number) or table
            if not set(table.columns) <= set(newest.columns):
                continue  # a column was dropped, which is not durable yet
            if today is None:
                self._world.trace.meet("a table read that was dropped just now")
            rows = self.view[number]
            self._same(table, rows, self._selected(query(table)))
            for index in table.indexes:
                if index not in newest.indexes and newest.versions != table.versions:
                    continue  # it was dropped, and the columns are others, which is not durable yet
                if index.state is IndexState.READY:
                    self._by_index(table, index.number, index.columns, rows)
        self._folded()

    def read(self, table: Table, a: int) -> None:
        """The rows with this value of `a`, by an index where there is one."""
        tables = self._world.engine.tables
        if tables.schema.tables.get(table.number) is not table:
            return
        if tables.newest.tables.get(table.number) is not table:
            return
        place = next(each for each in table.columns if each.name == "a")
        value = Literal(a, place.type)
        ready = [i.number for i in table.indexes if i.columns[0] == place.id and i.state is IndexState.READY]
        access = plans.Scan(index=ready[0], prefix=(value,)) if ready else plans.Scan()
        condition = None if ready else Binary("=", column(table, "a"), value, BOOLEAN)
        found = self._selected(query(table, access, filter=condition))
        self._same(table, {key: row for key, row in self.view[table.number].items() if row["a"] == a}, found)
        self._world.trace.meet("a read by an index" if ready else "a read of a table")

    def _selected(self, select: plans.Select) -> list[tuple[Value, ...]]:
        steps = self._world.engine.tables.select(select)
        return [tuple(row) for row in finished(steps).rows]

    def _same(self, table: Table, rows: Rows, found: Sequence[tuple[Value, ...]]) -> None:
        wanted = sorted(tuple(row[column.name] for column in table.columns) for row in rows.values())
        demand(sorted(found) == wanted, f"{table.table_id} has the rows {found}, not {wanted}")

    def _by_index(self, table: Table, number: int, columns: Sequence[int], rows: Rows) -> None:
        found = self._selected(query(table, plans.Scan(index=number)))
        self._same(table, rows, found)
        places = [next(at for at, each in enumerate(table.columns) if each.id == column) for column in columns]
        order = [tuple(_ordered(row[place]) for place in places) for row in found]
        demand(order == sorted(order), f"an index of {table.table_id} is not in order")

    def _folded(self) -> None:
        topic = self._world.topics.find(WHOLE)
        for number, fold in self.state.folds.items():
            assert topic is not None
            rows = {key: {name: row[name] for name in ("id", "a", "b")} for key, row in fold.base.items()}
            for rec in topic.log.written.between(fold.head, topic.log.written.head):
                meta, row = _meta(rec), json.loads(rec.data)
                if meta["source_table"] != self.state.tables[number].table_id:
                    continue
                demand(
                    (row["id"] in rows) == (meta["op"] != "Insert"),
                    f"an event {meta} of a row that is, or is not, there",
                )
                if meta["op"] == "Delete":
                    del rows[row["id"]]
                else:
                    rows[row["id"]] = {name: row[name] for name in ("id", "a", "b")}
            wanted = {
                key: {name: row[name] for name in ("id", "a", "b")} for key, row in self.state.rows[number].items()
            }
            demand(rows == wanted, f"the events come to {rows}, the rows are {wanted}")
            self._world.trace.meet("events that come to the rows")

    # ------------------------------------------------------------------- crashes

    def prune(self, synced: int) -> None:
        """See Topics."""
        prune(self._history, synced)

    def back(self, w: int) -> None:
        """After a crash that left `w` writes: all of each commit, or nothing of it."""
        self.state = back(self._history, w)
        self._pending = []
        self.view = dict(self.state.rows)
        engine = self._world.engine
        found = dict(engine.tables.newest.tables)
        demand(found == self.state.tables, f"the tables are {found}, not {self.state.tables}")
        routes = frozenset(engine.topic_catalog.all_routes())
        demand(routes == self.state.routes, f"the routes are {routes}, not {self.state.routes}")

    def _keep(self, state: State) -> None:
        self.state = state
        keep(self._history, self._world.w, state)


def finished(steps: Generator[None, None, T]) -> T:
    """Run steps to their end."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result


def _removed(before: frozenset[Route], after: frozenset[Route], table: int) -> bool:
    return any(route.table == table and route.mode is PayloadMode.FULL for route in before - after)


def _shaped(table: Table, row: Row) -> Row:
    """A row with the columns that its table has now."""
    return {column.name: row.get(column.name, NEW_VALUE) for column in table.columns}


def _passes(route: Route, change: Change) -> bool:
    """Filters are `a > value`, of the row after the change, or the one that is gone."""
    if route.filter is None:
        return True
    assert isinstance(route.filter, Binary)
    assert isinstance(route.filter.right, Literal)
    row = change.old if change.new is None else change.new
    assert row is not None
    return row["a"] > route.filter.right.value  # type: ignore[operator]


def _event(route: Route, change: Change) -> tuple[bytes, str, str]:
    """The tag, the meta without its id, and the payload that the event of a change has."""
    old, new = change.old, change.new
    row = old if new is None else new
    assert row is not None
    data: Any
    if route.tombstones and new is None:
        data = None
    elif route.mode is PayloadMode.KEY:
        data = {"id": row["id"]}
    elif route.mode is PayloadMode.FULL:
        data = row
    elif old is None or new is None:
        data = {"key": {"id": row["id"]}, "before": old, "after": new}
    else:
        names = [name for name in new if new[name] != old[name]]
        before, after = ({name: each[name] for name in names} for each in (old, new))
        data = {"key": {"id": row["id"]}, "before": before, "after": after}
    meta = {"source_table": change.table.table_id, "op": change.op.value, "payload_mode": route.mode.value}
    return str(row["id"]).encode(), json.dumps(meta), json.dumps(data)


def _meta(rec: Rec) -> dict[str, Any]:
    meta: dict[str, Any] = json.loads(rec.meta or b"{}")
    meta.pop("message_id", None)
    return meta


def _ordered(value: Value) -> tuple[bool, Any]:
    return value is not None, "" if value is None else value
