"""Rows of the system tables, made when they are read, without those that the caller may not know of."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from topics_service.api.access.auth import Principal
from topics_service.api.sql.systempages import SPREAD, SystemPages
from topics_service.engine import names
from topics_service.engine.engine import Engine
from topics_service.engine.offsets.group_index import in_order
from topics_service.engine.offsets.positions import lag_of
from topics_service.engine.tables.model import Route, Table
from topics_service.engine.tables.system_schema import SYSTEM_TABLES
from topics_service.engine.tables.types import Value
from topics_service.engine.topic import Topic

Row = Sequence[Value]
SystemRows = Callable[[str], Iterable[Row]]
"""Gives the rows of a system table by its name, in the order and the columns of `SYSTEM_TABLES`."""


class MergedTables(Protocol):
    """Reads the system tables that have rows in every shard."""

    async def read(self, table: str, principal: Principal) -> Callable[[], Iterable[Row]]:
        """A reader of the rows of a table of `SPREAD` in its order, once all are here.

        Raises for a shard that does not answer.
        """
        ...


class UserLine(NamedTuple):
    """A user as its system table shows it."""

    name: str
    role: str
    prefixes: tuple[str, ...] | None
    is_read_only: bool


class SettingLine(NamedTuple):
    """A setting that is no secret."""

    name: str
    value: str
    description: str


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


class SystemTables:
    """Makes the rows. Each table is as it was at one moment, but for rows that were removed while it is read."""

    def __init__(
        self,
        engine: Engine,
        *,
        users: Callable[[], Iterable[UserLine]] = lambda: (),
        settings: Sequence[SettingLine] = (),
        admit: Callable[[], Engine] | None = None,
    ) -> None:
        """`admit` gives the engine to other shards, or refuses them."""
        self.merged: MergedTables | None = None  # of a server with several shards
        self.pages = SystemPages(admit or (lambda: engine), self._topic)
        self._engine = engine
        self._users = users
        self._settings = settings

    def seen_by(self, principal: Principal) -> SystemRows:
        """The tables as the caller may see them."""
        return lambda name: _MAKERS[name](self, principal)

    async def read(self, tables: Iterable[str], principal: Principal) -> SystemRows:
        """As `seen_by`, with the rows of all shards in these tables, once they are here."""
        here = self.seen_by(principal)
        if self.merged is None:
            return here
        merged = {name: await self.merged.read(name, principal) for name in tables if name in SPREAD}
        return lambda name: merged[name]() if name in merged else here(name)

    def _namespaces(self, principal: Principal) -> Iterator[Row]:
        for namespace in sorted(self._engine.tables.schema.namespaces.values(), key=lambda each: each.name):
            if principal.allows_name(f"{namespace.name}."):
                yield namespace.name, namespace.placement, namespace.created_ms * 1000

    def _tables(self, principal: Principal) -> Iterator[Row]:
        for table in self._allowed(principal):
            columns = {column.id: column.name for column in table.columns}
            primary_key = _json([columns[each] for each in table.primary_key])
            yield (
                table.namespace, table.name, table.table_id, len(table.columns), primary_key, table.durability,
                table.placement, len(table.versions) - 1, table.created_ms * 1000,
            )  # fmt: skip

    def _columns(self, principal: Principal) -> Iterator[Row]:
        for table in self._allowed(principal):
            for position, column in enumerate(table.columns, 1):
                is_key = column.id in table.primary_key
                yield (
                    table.namespace, table.name, column.name, position, column.type.name,
                    not (column.not_null or is_key), is_key, column.default_text or None,
                )  # fmt: skip

    def _indexes(self, principal: Principal) -> Iterator[Row]:
        for table in self._allowed(principal):
            columns = {column.id: column.name for column in table.columns}
            for index in table.indexes:
                yield (
                    table.namespace, table.name, index.name, _json([columns[each] for each in index.columns]),
                    index.unique, index.constraint, index.state.value,
                )  # fmt: skip

    def _views(self, principal: Principal) -> Iterator[Row]:
        for view in sorted(self._engine.tables.schema.views.values(), key=lambda each: (each.namespace, each.name)):
            if principal.allows_name(view.view_id):
                columns = _json([name for name, _ in view.columns])
                yield view.namespace, view.name, columns, view.text, view.created_ms * 1000

    def _checks(self, principal: Principal) -> Iterator[Row]:
        for table in self._allowed(principal):
            for check in table.checks:
                yield table.namespace, table.name, check.name, check.text

    def _topics(self, principal: Principal) -> Iterator[Row]:
        for topic in self._visible(principal):
            yield self._topic(topic, principal)

    def _topic(self, topic: Topic, principal: Principal) -> Row:
        config = topic.config
        return (
            topic.topic_id, topic.name, self._engine.topic_catalog.alias(topic.number), topic.partition_count,
            config.ttl_ms // 1000 if config.ttl_ms else None, config.cap_bytes or None, config.durability,
            topic.created_ts * 1000, config.type, _json(list(self._routes(topic, principal))),
        )  # fmt: skip

    def _routes(self, topic: Topic, principal: Principal) -> Iterator[dict[str, Any]]:
        for table, route in self._routes_into(topic, principal):
            yield {
                "table_id": table.table_id,
                "op": route.op.value,
                "payload_mode": route.mode.value,
                "filter_expr": route.filter_text or None,
                "partition_key_expr": route.partition_text or None,
            }

    def _topic_routes(self, principal: Principal) -> Iterator[Row]:
        for topic in self._visible(principal):
            for table, route in self._routes_into(topic, principal):
                counts = self._engine.routing.counts(route)
                yield (
                    topic.name, table.table_id, route.op.value, route.mode.value, route.filter_text or None,
                    route.partition_text or None, route.tombstones, counts.matched, counts.evaluated,
                )  # fmt: skip

    def _topic_offsets(self, principal: Principal) -> Iterator[Row]:
        index = self._engine.groups.index
        for name in list(index.under("", principal.prefixes)):
            group = index.find(name)
            for topic, partition, position in [] if group is None else list(in_order(group)):
                log = topic.find_log(partition)
                if log is None or not principal.allows_name(topic.name):
                    continue
                head = log.view.head
                upto = min(position.from_seq, head)
                yield (
                    topic.topic_id, topic.name, name, partition, upto - 1 if upto else None, lag_of(upto, head),
                    position.ts * 1000,
                )  # fmt: skip

    def _topic_partitions(self, principal: Principal) -> Iterator[Row]:
        for topic in self._visible(principal):
            for partition, log in topic.numbered():
                view = log.view
                yield topic.name, partition, view.earliest - 1, view.head, view.count, view.bytes

    def _users_(self, principal: Principal) -> Iterator[Row]:
        for line in self._users():
            allowed = principal.prefixes is None or (line.prefixes and all(map(principal.allows_name, line.prefixes)))
            if allowed:
                prefixes = None if line.prefixes is None else _json(line.prefixes)
                yield line.name, line.role, prefixes, line.is_read_only

    def _settings_(self, principal: Principal) -> Iterator[Row]:
        yield from self._settings

    # ----------------------------------------------------------------------------------------------- internals

    def _allowed(self, principal: Principal) -> Iterator[Table]:
        tables = sorted(self._engine.tables.schema.tables.values(), key=lambda each: (each.namespace, each.name))
        return (table for table in tables if principal.allows_name(table.table_id))

    def _visible(self, principal: Principal) -> Iterator[Topic]:
        catalog = self._engine.catalog
        for name in list(catalog.under(names.narrow("", principal.prefixes))):
            topic = catalog.find(name)
            if topic is not None and not catalog.unsynced(topic):
                yield topic

    def _routes_into(self, topic: Topic, principal: Principal) -> Iterator[tuple[Table, Route]]:
        """The routes into a topic whose table the caller may know of, by table and op."""
        found = []
        for route in self._engine.topic_catalog.routes_of_topic(topic.number):
            table = self._engine.tables.schema.tables.get(route.table)
            if table is not None and principal.allows_name(table.table_id):
                found.append((table, route))
        return iter(sorted(found, key=lambda each: (each[0].table_id, each[1].op.value)))


_MAKERS: Final[dict[str, Callable[[SystemTables, Principal], Iterator[Row]]]] = {
    "namespaces": SystemTables._namespaces,
    "tables": SystemTables._tables,
    "columns": SystemTables._columns,
    "indexes": SystemTables._indexes,
    "views": SystemTables._views,
    "checks": SystemTables._checks,
    "topics": SystemTables._topics,
    "topic_routes": SystemTables._topic_routes,
    "topic_offsets": SystemTables._topic_offsets,
    "topic_partitions": SystemTables._topic_partitions,
    "users": SystemTables._users_,
    "settings": SystemTables._settings_,
}
assert _MAKERS.keys() == SYSTEM_TABLES.keys(), "each table has its rows"
