"""A table without a database: its rows are a dict, its changes become events, and both are one commit."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from topics_service.engine.clock import Clock
from topics_service.engine.engine import Engine
from topics_service.engine.limits import Limits
from topics_service.engine.model import ConfigInput, DiffRequest
from topics_service.engine.tables import plans
from topics_service.engine.tables.expressions import Binary, Column, Expression, Literal, Parameter, Side
from topics_service.engine.tables.model import ColumnSchema, Namespace, Op, PayloadMode, Route, Table
from topics_service.engine.tables.topic_catalog import Applied
from topics_service.engine.tables.topics import TopicDefinitions
from topics_service.engine.tables.types import Kind, Type
from topics_service.engine.transaction import Transaction
from topics_service.storage.memory import MemoryStore
from topics_service.storage.store import Store

BIGINT, TEXT, BOOLEAN = Type(Kind.BIGINT), Type(Kind.TEXT), Type(Kind.BOOLEAN)
NOW = 1_780_000_000_000
Row = list[Any]


def a_table(number: int = 1, name: str = "messages", key: Sequence[int] = (1,), **more: Any) -> Table:
    """`id` BIGINT, `owner` TEXT, `body` TEXT, `score` BIGINT, with the column ids 1 to 4."""
    kinds = {"id": BIGINT, "owner": TEXT, "body": TEXT, "score": BIGINT}
    columns = tuple(ColumnSchema(place, name, kind) for place, (name, kind) in enumerate(kinds.items(), 1))
    return Table(
        number=number, namespace="chat", name=name, columns=columns, primary_key=tuple(key),
        versions=((1, 2, 3, 4),), next_column=5, **more,
    )  # fmt: skip


def column(number: int, kind: Type = BIGINT, side: Side = Side.NEW) -> Column:
    return Column(number, kind, side)


def binary(op: str, left: Expression, right: Any, kind: Type = BOOLEAN) -> Binary:
    value = (
        right
        if isinstance(right, Column | Binary | Parameter)
        else Literal(right, BIGINT if isinstance(right, int) else TEXT)
    )
    return Binary(op, left, value, kind)


class Event(NamedTuple):
    """A record as a reader has it."""

    partition: int
    seq: int
    ts: int
    tag: str | None
    data: Any
    meta: dict[str, str]


class Catalog:
    """The tables and namespaces that definitions of topics ask for."""

    def __init__(self, *tables: Table) -> None:
        self.tables = {table.number: table for table in tables}
        self.namespaces: dict[str, Namespace] = {}

    def namespace(self, name: str) -> Namespace | None:
        return self.namespaces.get(name)

    def table_by_number(self, number: int) -> Table | None:
        return self.tables.get(number)

    def stage_namespace(self, tx: Transaction, namespace: Namespace) -> None:
        tx.stage(Applied(lambda: self.namespaces.__setitem__(namespace.name, namespace)))


class SetClock:
    """A clock that stands until a test sets it."""

    def __init__(self) -> None:
        self.now = NOW

    def now_ms(self) -> int:
        return self.now


class RoutedTables:
    """An engine with tables whose rows are in `rows`, by table number and primary key."""

    def __init__(
        self, *tables: Table, store: Store | None = None, limits: Limits | None = None, clock: Clock | None = None
    ) -> None:
        self.clock = clock or SetClock()
        self.store = store or MemoryStore()
        self.limits = limits
        self.tables = tables or (a_table(),)
        self.rows: dict[int, dict[tuple[Any, ...], Row]] = {table.number: {} for table in self.tables}
        self._open()

    def restart(self) -> None:
        """Open the store again."""
        self.engine.sync()
        self.engine.close()
        self._open()

    def _open(self) -> None:
        self.engine = Engine(self.store, self.clock, limits=self.limits)
        self.catalog = Catalog(*self.tables)
        self.definitions = TopicDefinitions(
            self.engine, self.engine.catalog, self.engine.writer, self.clock, self.engine.topic_catalog,
            self.engine.routing, self.catalog, lambda _log: None,
        )  # fmt: skip

    def define(self, definition: Any) -> int:
        ticket = self.definitions.define(definition)
        self.engine.sync()
        return ticket

    def create(self, topic: str, partitions: int | None = None, **options: Any) -> None:
        self.define(plans.CreateTopic(topic, ConfigInput(**options), partitions))

    def route(self, topic: str, op: Op, mode: PayloadMode = PayloadMode.FULL, *, table: int = 1, **more: Any) -> None:
        self.define(plans.AddSource(topic, Route(0, table, op, mode, **more)))

    def write(self, *changes: tuple[int, Row | None, Row | None]) -> None:
        """Commit changes (table number, new row, old row) together with their events, or raise and change nothing."""
        events, engine = self.engine.routing.collect(), self.engine
        for number, new, old in changes:
            op = Op.INSERT if old is None else Op.DELETE if new is None else Op.UPDATE
            events.change(self.catalog.tables[number], op, new, old)
        with Transaction(engine.writer) as tx:
            events.stage(tx, self.clock.now_ms())
            tx.commit()
        for number, new, old in changes:
            table, rows = self.catalog.tables[number], self.rows[number]
            row = new or old
            assert row is not None
            key = tuple(row[place - 1] for place in table.primary_key)
            if new is None:
                del rows[key]
            else:
                rows[key] = new

    def events(self, topic: str, partition: int | None = None, from_seq: int = 0) -> list[Event]:
        """The events of a topic behind a seq, at most 1000 of each partition."""
        self.engine.sync()
        found = []
        count = len(self.engine.catalog.topics[topic].logs)
        for number in range(count) if partition is None else (partition,):
            reply = self.engine.diff(request(topic, number, from_seq))
            for piece in reply.slices:
                block = piece.block
                for i in range(piece.start, piece.stop):
                    tag = block.tags[i] if block.tags else None
                    meta = block.metas[i] if block.metas else None
                    found.append(
                        Event(
                            partition=number,
                            seq=block.base_seq + i,
                            ts=block.ts_at(i),
                            tag=None if tag is None else tag.decode(),
                            data=msgspec.json.decode(block.record_data(i)),
                            meta={} if meta is None else msgspec.json.decode(meta),
                        )
                    )
        return found


def request(topic: str, partition: int, from_seq: int) -> DiffRequest:
    return DiffRequest(topic=topic, partition=partition, from_seq=from_seq, limit=1000, max_batch_bytes=8 << 20)
