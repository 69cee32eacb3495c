"""Routes and aliases of topics, in memory and as rows."""

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Final, NamedTuple, TypeVar

import msgspec

from topics_service.engine.catalog import Catalog
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.model import TopicConfig
from topics_service.engine.tables.errors import invalid_value, sql_error
from topics_service.engine.tables.model import Alias, Op, Route
from topics_service.engine.tables.schema import TopicName
from topics_service.engine.topic import Topic
from topics_service.engine.transaction import Transaction
from topics_service.storage import keys
from topics_service.storage.store import Family, Store, StoreOpenError

ROUTE_ROWS: Final = b"route\x00"
"""The kind of definition of routes, in `Family.TABLES`; then table number, topic number, op."""
ALIAS_ROWS: Final = b"alias\x00"
"""The kind of definition of aliases; then the topic number."""
COUNT_ROWS: Final = b"routed\x00"
"""The kind of the counters of routes; then as `ROUTE_ROWS`."""

_ROUTE_KEY: Final = struct.Struct(">QQB")
_COUNTS: Final = struct.Struct(">QQ")
_OPS: Final = tuple(Op)

_VERSION: Final = b"\x01"

_encode = msgspec.msgpack.Encoder().encode
_decode_route = msgspec.msgpack.Decoder(Route).decode
_decode_alias = msgspec.msgpack.Decoder(Alias).decode

T = TypeVar("T")


def encode(row: Route | Alias) -> bytes:
    """The stored form of a route or an alias."""
    return _VERSION + _encode(row)


def decode_route(value: bytes) -> Route:
    """Read a route. Raises ValueError or MsgspecError for a row that can't be one."""
    return _decode(value, _decode_route)


def decode_alias(value: bytes) -> Alias:
    """Read an alias. Raises ValueError or MsgspecError for a row that can't be one."""
    return _decode(value, _decode_alias)


def encode_counts(evaluated: int, matched: int) -> bytes:
    """The stored form of a route's counters."""
    return _VERSION + _COUNTS.pack(evaluated, matched)


def decode_counts(value: bytes) -> tuple[int, int]:
    """Read the counters of a route. Raises ValueError for a row that can't be one."""
    if len(value) != 1 + _COUNTS.size:
        raise ValueError(f"it has {len(value)} bytes")
    evaluated, matched = _decode(value, _COUNTS.unpack)
    return evaluated, matched


def _decode(value: bytes, decode: Callable[[bytes], T]) -> T:
    if value[:1] != _VERSION:
        raise ValueError(f"it is of version {value[:1].hex()}")
    return decode(value[1:])


def route_key(route: Route) -> bytes:
    """The key of a route's row."""
    return ROUTE_ROWS + _ROUTE_KEY.pack(route.table, route.topic, _OPS.index(route.op))


def count_key(route: Route) -> bytes:
    """The key of the row with a route's counters."""
    return COUNT_ROWS + route_key(route)[len(ROUTE_ROWS) :]


def alias_key(topic: int) -> bytes:
    """The key of the row of a topic's alias."""
    return ALIAS_ROWS + keys.u64(topic)


class Applied(NamedTuple):
    """A change of what is in memory, made once the transaction that has its rows is written."""

    apply: Callable[[], None]

    def publish(self, ticket: int) -> int:
        """See Change. Definitions are acknowledged when they are durable."""
        self.apply()
        return ticket

    def undo(self) -> None:
        """See Change."""


class TopicCatalog:
    """Routes by table and by topic, aliases by name. Methods named `stage` take effect with their transaction."""

    def __init__(self, topics: Catalog, store: Store) -> None:
        self.on_changed: list[Callable[[Iterable[int]], None]] = []
        """Called after a change, with the numbers of the tables whose routes are others now."""
        self._topics = topics
        self.store = store
        self._by_number: dict[int, Topic] = {}  # those with a route or an alias
        self._of_table: dict[int, tuple[Route, ...]] = {}
        self._of_topic: dict[int, tuple[Route, ...]] = {}
        self._aliases: dict[str, int] = {}
        self._alias_of: dict[int, str] = {}

    def load(self, topics: Mapping[int, Topic]) -> None:
        """Take over the rows in the store, once the topics are there, which are given by number.

        Raises StoreOpenError, naming the row, for a damaged one.
        """
        routes = list(_rows(self.store, ROUTE_ROWS, decode_route))
        aliases = list(_rows(self.store, ALIAS_ROWS, decode_alias))
        wanted = {route.topic for route in routes} | {alias.topic for alias in aliases}
        self._by_number = {number: topics[number] for number in wanted if number in topics}
        for route in routes:
            if route.topic in self._by_number:
                self._add_route(route)
        for alias in aliases:
            if alias.topic in self._by_number:
                self._set_alias(alias.topic, alias.name)

    # -------------------------------------------------------------------- reads

    def routes(self, table: int) -> tuple[Route, ...]:
        """The routes of a table, in the order in which they were made; after a restart by topic."""
        return self._of_table.get(table, ())

    def routes_of_topic(self, topic: int) -> tuple[Route, ...]:
        """The routes into a topic."""
        return self._of_topic.get(topic, ())

    def all_routes(self) -> Iterator[Route]:
        """All routes."""
        for routes in self._of_table.values():
            yield from routes

    def stored_counts(self, route: Route) -> tuple[int, int]:
        """The counters of a route as they were committed last: evaluated and matched. Raises StoreOpenError."""
        key = count_key(route)
        value = self.store.get(Family.TABLES, key)
        return (0, 0) if value is None else _read(key, value, decode_counts)

    def alias(self, topic: int) -> str | None:
        """The alias of a topic."""
        return self._alias_of.get(topic)

    def by_number(self, number: int) -> Topic | None:
        """The topic of a route or an alias, if it is still there."""
        return self._by_number.get(number)

    def name_of(self, topic: int) -> str:
        """The name of a topic that has a route or an alias."""
        return self._by_number[topic].name

    def topic(self, name: str) -> TopicName | None:
        """See TopicNames and Schema."""
        topic = self.find(name)
        return None if topic is None else TopicName(topic.name, topic.number, topic.config.type == "queue")

    def find(self, name: str) -> Topic | None:
        """Find a topic by its name, else by its alias; only once its creation is durable."""
        topic = self._topics.find(name)
        if topic is None:
            topic = self._by_number.get(self._aliases.get(name, 0))
        return None if topic is None or self._topics.unsynced(topic) else topic

    def in_namespace(self, namespace: str, limit: int) -> list[str]:
        """The names of the first topics whose names begin with the namespace, in order."""
        return list(islice(self._topics.under([f"{namespace}."]), limit))

    def is_taken(self, name: str) -> bool:
        """Return whether a topic or an alias has this name."""
        return name in self._aliases or self._topics.find(name) is not None

    # ------------------------------------------------------------------ changes

    def stage_route(self, tx: Transaction, topic: Topic, route: Route) -> None:
        """Stage a new route into the topic."""
        tx.batch.put(Family.TABLES, route_key(route), encode(route))

        def apply() -> None:
            self._by_number[topic.number] = topic
            self._add_route(route)
            self._notify({route.table})

        tx.stage(Applied(apply))

    def stage_without(self, tx: Transaction, routes: Sequence[Route]) -> None:
        """Stage the removal of routes."""
        for route in routes:
            tx.batch.delete(Family.TABLES, route_key(route))
            tx.batch.delete(Family.TABLES, count_key(route))
        if routes:
            tx.stage(Applied(partial(self._remove_routes, routes)))

    def stage_alias(self, tx: Transaction, topic: Topic, alias: str | None) -> None:
        """Stage another alias of the topic, or none."""
        if alias is None:
            tx.batch.delete(Family.TABLES, alias_key(topic.number))
        else:
            row = encode(Alias(alias, topic.number))
            tx.batch.put(Family.TABLES, alias_key(topic.number), row)

        def apply() -> None:
            self._by_number[topic.number] = topic
            self._set_alias(topic.number, alias)
            self._notify(())

        tx.stage(Applied(apply))

    def stage_removal(self, tx: Transaction, topic: Topic) -> None:
        """Stage the removal of what belongs to a topic that is deleted in the same transaction."""
        if topic.number not in self._by_number:
            return
        self.stage_without(tx, self.routes_of_topic(topic.number))
        if topic.number in self._alias_of:
            self.stage_alias(tx, topic, None)

        def apply() -> None:
            del self._by_number[topic.number]

        tx.stage(Applied(apply))

    # ---------------------------------------------------------------- internals

    def _add_route(self, route: Route) -> None:
        self._of_table[route.table] = (*self.routes(route.table), route)
        self._of_topic[route.topic] = (*self.routes_of_topic(route.topic), route)

    def _remove_routes(self, routes: Sequence[Route]) -> None:
        for route in routes:
            for index, number in ((self._of_table, route.table), (self._of_topic, route.topic)):
                index[number] = tuple(each for each in index.get(number, ()) if each is not route)
                if not index[number]:
                    del index[number]
        self._notify({route.table for route in routes})

    def _set_alias(self, topic: int, alias: str | None) -> None:
        self._aliases.pop(self._alias_of.pop(topic, ""), None)
        if alias is not None:
            self._aliases[alias] = topic
            self._alias_of[topic] = alias

    def _notify(self, tables: Iterable[int]) -> None:
        for callback in self.on_changed:
            callback(tables)


def check_target(topic: Topic, resolved: TopicConfig) -> None:
    """Raise unless a topic with this config can have sources: `not_a_log` for a queue, `invalid_value` for one whose
    records are only in memory."""
    if resolved.type == "queue":
        message = f'topic "{topic.name}" is a queue; only a log can have sources'
        raise sql_error(Reason.NOT_A_LOG, message, topic=topic.name)
    if resolved.durability == "ephemeral":
        message = f'topic "{topic.name}" is ephemeral: it can\'t have sources, whose events are written with their rows'
        raise invalid_value(message, topic=topic.name)
    if topic.log_count < topic.partition_count:
        raise spread_target(topic)


def spread_target(topic: Topic) -> TopicsError:
    """The refusal of sources for a topic that has, or would have, partitions in other shards than tables."""
    message = f'topic "{topic.name}" can\'t have sources and partitions in other shards: make it with CREATE TOPIC'
    return sql_error(Reason.CROSS_SHARD, message, topic=topic.name)


def _rows(store: Store, kind: bytes, decode: Callable[[bytes], T]) -> Iterator[T]:
    for key, value in store.scan(Family.TABLES, *keys.prefix_range(kind)):
        yield _read(key, value, decode)


def _read(key: bytes, value: bytes, decode: Callable[[bytes], T]) -> T:
    try:
        return decode(value)
    except (ValueError, msgspec.MsgspecError) as error:
        raise StoreOpenError(f"the definition {key!r} is damaged: {error}") from error
