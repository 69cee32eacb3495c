"""Events of changes: which records a change of a row becomes, in which topics, and their part of the commit. Hot path.

events = routing.collect()
events.change(table, Op.INSERT, new, None)
with Transaction(writer) as tx:
    ...  # rows and index entries
    events.stage(tx, now)
    tx.commit()
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest

from topics_service.engine import checks
from topics_service.engine.capacity import Capacity
from topics_service.engine.clock import Clock
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.limits import Limits
from topics_service.engine.log import Log
from topics_service.engine.model import Batch, TopicConfig
from topics_service.engine.snapshot import Snapshot
from topics_service.engine.tables import compilation, keycode
from topics_service.engine.tables.errors import SQLSTATES, sql_error
from topics_service.engine.tables.expressions import Call, Expression, Parameter, children, type_of
from topics_service.engine.tables.functions import FUNCTIONS, Environment, Volatility
from topics_service.engine.tables.messages import META_START, MessageIds, meta_end
from topics_service.engine.tables.model import Op, PayloadMode, Route, Table
from topics_service.engine.tables.payloads import Payloads, Row
from topics_service.engine.tables.topic_catalog import TopicCatalog, count_key, encode_counts
from topics_service.engine.tables.types import Kind, Type, Value
from topics_service.engine.topic import Topic
from topics_service.engine.transaction import Transaction
from topics_service.storage.store import Family

MAX_STAGED_BYTES: Final = 256 << 20
_MAX_TAG: Final = 256
_ID_BYTES: Final = 20
_NULL: Final = b"null"
_NO_PARAMETERS: Final = ()

Values = Callable[[Row, Row | None, Sequence[Value]], list[Value]]
"""The values that decide on the partition of a row."""


class Counts:
    """Numbers of changes that a route has looked at and that it let through, since it was made: of those that were
    committed. They are stored with each commit."""

    __slots__ = ("evaluated", "key", "matched")

    def __init__(self, key: bytes, evaluated: int = 0, matched: int = 0) -> None:
        self.key = key  # empty once the route is dropped
        self.evaluated = evaluated
        self.matched = matched


class _Tally:
    """Numbers of one transaction, to be added to those of a route. Implements Change."""

    __slots__ = ("counts", "evaluated", "matched")

    def __init__(self, counts: Counts) -> None:
        self.counts = counts
        self.evaluated = 0
        self.matched = 0

    def stage(self, tx: Transaction) -> None:
        """Stage the sums."""
        counts = self.counts
        if self.evaluated and counts.key:
            row = encode_counts(counts.evaluated + self.evaluated, counts.matched + self.matched)
            tx.batch.put(Family.TABLES, counts.key, row)
            tx.stage(self)

    def publish(self, ticket: int) -> int:
        """See Change."""
        self.counts.evaluated += self.evaluated
        self.counts.matched += self.matched
        return 0

    def undo(self) -> None:
        """See Change."""


class Routing:
    """The routes of all tables, compiled when they are first used and after each change of their tables."""

    def __init__(
        self,
        topics: TopicCatalog,
        capacity: Capacity,
        clock: Clock,
        limits: Limits,
        touch: Callable[[Log], None],
        environment: Environment | None = None,
    ) -> None:
        """`touch` notes that maintenance of a log is due."""
        self.topics = topics
        self.capacity = capacity
        self.limits = limits
        self.touch = touch
        self.ids = MessageIds(clock)
        self._environment = environment or Environment()
        self._compiled: dict[int, _TableRoutes] = {}
        self._counts: dict[tuple[int, int, Op], Counts] = {}
        topics.on_changed.append(self._changed)

    def load(self) -> None:
        """Take over counters, and give message ids above those of all events that are there.

        Recovery has found the topics. Raises StoreOpenError, naming the row, for a damaged one.
        """
        for route in self.topics.all_routes():
            self._counts[_identity(route)] = Counts(count_key(route), *self.topics.stored_counts(route))
        self.ids.load(self.topics.store)
        for number in {route.topic for route in self.topics.all_routes()}:
            topic = self.topics.by_number(number)
            if topic is not None:
                self.ids.start_after(max(log.state.last_ts for log in topic.logs))

    def collect(self) -> "Events":
        """The events of one transaction, none yet."""
        return Events(self)

    def counts(self, route: Route) -> Counts:
        """The counters of a route."""
        found = self._counts.get(_identity(route))
        if found is None:
            found = self._counts[_identity(route)] = Counts(count_key(route))
        return found

    def check(self, table: Table, route: Route) -> None:
        """Raise the error of a route that can't be compiled, or depends on more than the row: `unsupported_sql`."""
        for expression in (*route.partition_by, *(() if route.filter is None else (route.filter,))):
            _check_pure(expression)
        _Route(route, Counts(b""), table, self._environment, topic=None)

    def compiled(self, table: Table) -> "_TableRoutes | None":
        """The routes of a table as it is now; None if there are none."""
        found = self._compiled.get(table.number)
        if found is not None and found.table is table:
            return found
        routes = self.topics.routes(table.number)
        if not routes:
            return None
        found = self._compiled[table.number] = _TableRoutes(
            table, [_Route(r, self.counts(r), table, self._environment, self.topics.by_number(r.topic)) for r in routes]
        )
        return found

    def _changed(self, tables: Iterable[int]) -> None:
        for number in tables:
            self._compiled.pop(number, None)
            kept = set(map(_identity, self.topics.routes(number)))
            for key in [key for key in self._counts if key[1] == number and key not in kept]:
                self._counts.pop(key).key = b""


def _identity(route: Route) -> tuple[int, int, Op]:
    return route.topic, route.table, route.op


class Events:
    """The records that the changes of one transaction become, in the order of the changes."""

    __slots__ = ("_count", "_routing", "_steps", "_topics", "nbytes")

    def __init__(self, routing: Routing) -> None:
        self._routing = routing
        self._topics: dict[int, _TopicEvents] = {}
        self._steps: dict[int, _Steps] = {}  # by the id of their routes
        self._count = 0
        self.nbytes = 0
        """The bytes of the payloads so far."""

    def change(self, table: Table, op: Op, new: Row | None, old: Row | None) -> None:
        """Add the events of a change: `new` is None for a Delete, `old` for an Insert.

        Rows are values in the order of the table's columns. Raises the error of a filter, `record_too_large`, and
        `result_too_large` for more than 256 MiB: no event of this change is kept then.
        """
        compiled = self._routing.compiled(table)
        if compiled is None:
            return
        routes = compiled.insert if op is Op.INSERT else compiled.update if op is Op.UPDATE else compiled.delete
        steps = self._steps.get(id(routes))
        if steps is None:
            steps = self._steps[id(routes)] = _Steps(routes, [(route, _Tally(route.counts)) for route in routes])
        row = old if new is None else new
        assert row is not None, "one of them is there"
        key: bytes | None = None
        full: bytes | None = None
        tag: bytes | None = None
        tagged = False
        for route, tally in steps.pairs:
            tally.evaluated += 1
            matches = route.matches
            if matches is not None:
                try:
                    if not matches(row, old, _NO_PARAMETERS):
                        continue
                except TopicsError as error:
                    raise route.failed(error) from error
            topic = route.topic
            if topic is None:
                continue
            tally.matched += 1
            mode = route.mode
            if route.tombstones and op is Op.DELETE:
                data = _NULL
            elif mode is PayloadMode.FULL:
                data = full = compiled.payloads.full(row) if full is None else full
            elif mode is PayloadMode.KEY:
                data = key = compiled.payloads.key(row) if key is None else key
            else:
                data = compiled.payloads.diff(new, old)
            if not tagged:
                tag, tagged = compiled.payloads.tag(row, key), True
                if len(tag) > _MAX_TAG:
                    tag = None
            self._add(route, topic, row, old, data, tag)

    def _add(self, route: "_Route", topic: Topic, row: Row, old: Row | None, data: bytes, tag: bytes | None) -> None:
        target = self._topics.get(topic.number)
        if target is None:
            target = self._topics[topic.number] = _TopicEvents(topic)
        size = len(data)
        limit = self._routing.limits.max_record_bytes
        if size + len(route.meta_end) + _ID_BYTES + len(META_START) > limit:
            raise route.failed(
                sql_error(Reason.RECORD_TOO_LARGE, f"the event has {size} bytes, more than a record of {limit} holds")
            )
        self.nbytes += size
        if self.nbytes > MAX_STAGED_BYTES:
            raise sql_error(
                Reason.RESULT_TOO_LARGE, f"the events of a transaction have at most {MAX_STAGED_BYTES} bytes"
            )
        parts = target.parts
        part = parts[0] if len(parts) == 1 else parts[route.partition(row, old, len(parts))]
        part.datas.append(data)
        part.tags.append(tag)
        part.meta_ends.append(route.meta_end)
        part.places.append(self._count)
        self._count += 1

    def mark(self) -> "Mark":
        """The events so far, to come back to with `reset`."""
        lengths = {number: [len(part.datas) for part in found.parts] for number, found in self._topics.items()}
        tallies = [
            (tally, tally.evaluated, tally.matched) for steps in self._steps.values() for _, tally in steps.pairs
        ]
        return Mark(self.nbytes, self._count, lengths, tallies)

    def reset(self, mark: "Mark") -> None:
        """Forget the events since the mark."""
        self.nbytes, self._count = mark.nbytes, mark.events
        for steps in self._steps.values():
            for _, tally in steps.pairs:
                tally.evaluated = tally.matched = 0
        for tally, evaluated, matched in mark.tallies:
            tally.evaluated, tally.matched = evaluated, matched
        for number in list(self._topics):
            lengths = mark.lengths.get(number)
            if lengths is None:
                del self._topics[number]
                continue
            for part, length in zip(self._topics[number].parts, lengths, strict=True):
                del part.datas[length:], part.tags[length:], part.meta_ends[length:], part.places[length:]

    def stage(self, tx: Transaction, now: int) -> bool:
        """Stage the events: one append for each log. Returns whether a topic of the `fsync` class takes part.

        Nothing may happen between this call and the commit. Raises `topic_full`, `record_too_large` (more than a
        topic's whole cap) or `throttled` for any of the topics; then nothing is staged.
        """
        for steps in self._steps.values():
            for _, tally in steps.pairs:
                tally.stage(tx)
        routing = self._routing
        appends = list(self._appends(now)) if self._topics else ()
        routing.ids.stage(tx)
        for each in appends:
            each.log.append(tx, each.state, each.batch, each.config, now)
            routing.touch(each.log)
        return any(each.config.durability == "fsync" for each in appends)

    def _appends(self, now: int) -> Iterator["_Append"]:
        routing, nbytes, ids = self._routing, 0, self._routing.ids.take(self._count)
        for number, events in self._topics.items():
            if routing.topics.by_number(number) is not events.topic:
                continue  # deleted since
            topic = events.topic
            for log, part in zip(topic.logs, events.parts, strict=False):
                if not part.datas:
                    continue
                config, batch = topic.config, part.batch(ids)
                state, size = log.begin(config, now), checks.batch_bytes(batch)
                _check_cap(topic, len(batch.datas), size)
                if routing.capacity.is_checked(topic):
                    # The bytes of the logs before are taken as well.
                    routing.capacity.check(topic, state, len(batch.datas), size, -nbytes, log=log)
                nbytes += size
                yield _Append(log, state, batch, config)


class Mark(NamedTuple):
    """A point in the events of a transaction."""

    nbytes: int
    events: int
    lengths: dict[int, list[int]]
    tallies: list[tuple[_Tally, int, int]]


class _Steps(NamedTuple):
    """The routes of one table and operation, each with its numbers in a transaction."""

    routes: "tuple[_Route, ...]"
    pairs: "list[tuple[_Route, _Tally]]"


class _Append(NamedTuple):
    log: Log
    state: Snapshot
    batch: Batch
    config: TopicConfig


class _PartitionEvents:
    """Events of one log, as columns. `places` count the events of the transaction."""

    __slots__ = ("datas", "meta_ends", "places", "tags")

    def __init__(self) -> None:
        self.datas: list[bytes] = []
        self.tags: list[bytes | None] = []
        self.meta_ends: list[bytes] = []
        self.places: list[int] = []

    def batch(self, ids: Sequence[int]) -> Batch:
        """The records, with the message ids of the transaction."""
        metas: list[bytes | None] = [
            b"%b%d%b" % (META_START, ids[place], end) for place, end in zip(self.places, self.meta_ends, strict=True)
        ]
        return Batch(datas=self.datas, tags=self.tags, metas=metas)


class _TopicEvents:
    """Events of one topic by partition. The number of partitions is that of the first event."""

    __slots__ = ("parts", "topic")

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.parts = [_PartitionEvents() for _ in topic.logs]


class _TableRoutes:
    """The compiled routes of a table."""

    __slots__ = ("delete", "insert", "payloads", "table", "update")

    def __init__(self, table: Table, routes: Sequence["_Route"]) -> None:
        self.table = table
        self.payloads = Payloads(table)
        self.insert, self.update, self.delete = (
            tuple(route for route in routes if route.op is op) for op in (Op.INSERT, Op.UPDATE, Op.DELETE)
        )


class _Route:
    """A compiled route."""

    __slots__ = ("_types", "_values", "counts", "matches", "meta_end", "mode", "op", "table_id", "tombstones", "topic")

    def __init__(
        self, route: Route, counts: Counts, table: Table, environment: Environment, topic: Topic | None
    ) -> None:
        places = {column.id: place for place, column in enumerate(table.columns)}
        self.counts = counts
        self.op, self.mode, self.tombstones, self.topic = route.op, route.mode, route.tombstones, topic
        self.table_id = table.table_id
        self.meta_end = meta_end(table.table_id, route.op, route.mode)
        self.matches = None if route.filter is None else compilation.compile_filter(route.filter, places, environment)
        if route.partition_by:
            self._values: Values = compilation.compile_list(route.partition_by, places, environment)
            types = [type_of(each) for each in route.partition_by]
        else:
            self._values = _key_of(table, places)
            types = [table.columns[places[column]].type for column in table.primary_key]
        self._types = [each or Type(Kind.TEXT) for each in types]  # a bare NULL has no type

    def partition(self, row: Row, old: Row | None, count: int) -> int:
        """The partition of a row: equal values have the same as long as the number of partitions does not change."""
        try:
            key = keycode.encode(self._values(row, old, _NO_PARAMETERS), self._types)
        except TopicsError as error:
            raise self.failed(error) from error
        return xxh3_64_intdigest(key) % count

    def failed(self, error: TopicsError) -> TopicsError:
        """The error of a route, which refuses the write, with the topic and the table of the route."""
        topic = "" if self.topic is None else self.topic.name
        detail = {"sqlstate": SQLSTATES.get(error.reason, "XX000"), **(error.detail or {})}
        detail |= {"topic": topic, "table": self.table_id}
        return TopicsError(error.reason, f'route from {self.table_id} into topic "{topic}": {error.message}', detail)


def _key_of(table: Table, places: Mapping[int, int]) -> Values:
    """The values of the primary key."""
    key = [places[column] for column in table.primary_key]
    return lambda row, _old, _parameters: [row[place] for place in key]


def _check_pure(expression: Expression) -> None:
    """Refuse parameters, of which a write has none for its routes, and functions that are not immutable."""
    if isinstance(expression, Parameter):
        raise sql_error(Reason.UNSUPPORTED_SQL, "a route has no parameters: write the value in its place")
    if isinstance(expression, Call):
        function = FUNCTIONS.get(expression.function)
        if function is not None and function.volatility is not Volatility.IMMUTABLE:
            raise sql_error(
                Reason.UNSUPPORTED_SQL, f"a route can't use {function.name}(), which depends on more than the row"
            )
    for each in children(expression):
        _check_pure(each)


def _check_cap(topic: Topic, count: int, nbytes: int) -> None:
    """Refuse a transaction of which a topic could not keep all events: it would evict its own."""
    config = topic.config
    if (config.cap_records and count > config.cap_records) or (config.cap_bytes and nbytes > config.cap_bytes):
        raise sql_error(
            Reason.RECORD_TOO_LARGE,
            f'the events of the transaction are more than topic "{topic.name}" may hold',
            topic=topic.name, cap_records=config.cap_records, cap_bytes=config.cap_bytes,
        )  # fmt: skip
