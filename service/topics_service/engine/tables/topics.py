"""Definitions of topics: what CREATE, ALTER, DROP and CLEAR TOPIC do. Each is one atomic batch."""

from collections.abc import Callable
from typing import Final, Protocol

from msgspec import UNSET, structs

from topics_service.engine import config, names, retention
from topics_service.engine.catalog import Catalog
from topics_service.engine.clock import Clock
from topics_service.engine.errors import Reason, TopicsError, topic_not_found
from topics_service.engine.log import Log
from topics_service.engine.model import ConfigInput, DeleteTopicReply, PutTopicReply, TopicConfig
from topics_service.engine.placement import SQL_PLACEMENT
from topics_service.engine.tables import plans
from topics_service.engine.tables.errors import SQLSTATES, invalid_value, sql_error
from topics_service.engine.tables.model import (
    DEFAULT_NAMESPACE,
    DEFAULT_PLACEMENT,
    RESERVED_NAMESPACES,
    Namespace,
    PayloadMode,
    Route,
    Table,
)
from topics_service.engine.tables.routing import Routing
from topics_service.engine.tables.topic_catalog import TopicCatalog, check_target
from topics_service.engine.topic import Topic
from topics_service.engine.transaction import Transaction
from topics_service.engine.writer import Writer

TopicDefinition = (
    plans.CreateTopic
    | plans.DropTopic
    | plans.ClearTopic
    | plans.AddSource
    | plans.DropSource
    | plans.SetAlias
    | plans.SetTopicOptions
)
MAX_ROUTES: Final = 1000
"""The most routes of a table: each change of a row is held against all of its operation."""
_OBJECT_EXISTS: Final = "42710"
_TOO_MANY: Final = "54011"


class Tables(Protocol):
    """The part of the catalog of tables that definitions of topics need."""

    def namespace(self, name: str) -> Namespace | None:
        """Find a namespace."""
        ...

    def table_by_number(self, number: int) -> Table | None:
        """Find a table as it is now."""
        ...

    def stage_namespace(self, tx: Transaction, namespace: Namespace) -> None:
        """Stage a new namespace, which is there once the transaction is committed."""
        ...


class TopicCalls(Protocol):
    """The calls of the engine that definitions of topics need."""

    def put_topic(
        self,
        name: str,
        given: ConfigInput,
        partition_count: int | None = None,
        kafka_configs: dict[str, str] | None = None,
        stage: Callable[[Transaction], None] | None = None,
    ) -> tuple[PutTopicReply, int]:
        """See Engine.put_topic."""
        ...

    def delete_topic(self, name: str, *, if_empty: bool = False) -> tuple[DeleteTopicReply, int]:
        """See Engine.delete_topic."""
        ...


class TopicDefinitions:
    """Runs definitions of topics. Every method that writes returns the ticket to wait for."""

    def __init__(
        self,
        calls: TopicCalls,
        catalog: Catalog,
        writer: Writer,
        clock: Clock,
        topics: TopicCatalog,
        routing: Routing,
        tables: Tables,
        touch: Callable[[Log], None],
    ) -> None:
        self._calls = calls
        self._catalog = catalog
        self._writer = writer
        self._clock = clock
        self._topics = topics
        self._routing = routing
        self._tables = tables
        self._touch = touch

    def define(self, definition: TopicDefinition) -> int:
        """Run a definition. Raises `topic_not_found`, `already_exists`, `invalid_value` and others; see docs/sql.md."""
        match definition:
            case plans.CreateTopic():
                return self._create(definition)
            case plans.DropTopic():
                return self._calls.delete_topic(self._find(definition.name).name)[1]
            case plans.ClearTopic():
                return self._clear(self._find(definition.name))
            case plans.AddSource():
                return self._add_source(self._find(definition.topic), definition.route)
            case plans.DropSource():
                return self._drop_source(definition)
            case plans.SetAlias():
                return self._set_alias(self._find(definition.topic), definition.alias)
            case plans.SetTopicOptions():
                return self._set_options(self._find(definition.topic), definition)

    def placement(self, topic: str) -> str:
        """The placement group of a topic: that of the namespace which its name begins with."""
        namespace = self._tables.namespace(namespace_of(topic))
        return DEFAULT_PLACEMENT if namespace is None else namespace.placement

    # ----------------------------------------------------------------- creating

    def _create(self, definition: plans.CreateTopic) -> int:
        name, alias = definition.name, definition.alias
        existing = self._catalog.find(name)
        if existing is not None and definition.if_not_exists:
            return self._catalog.unsynced(existing)
        if self._topics.is_taken(name):
            what = f'topic "{name}" exists' if existing is not None else f'"{name}" is the alias of a topic'
            raise sql_error(Reason.ALREADY_EXISTS, what, sqlstate=_OBJECT_EXISTS, topic=name)
        _check_name(name, "topic")
        namespace = namespace_of(name)
        if namespace in RESERVED_NAMESPACES:
            raise invalid_value(f'the namespace "{namespace}" is reserved', topic=name)
        resolved = _resolve(name, definition.config)
        if alias is not None:
            self._check_alias(alias, name)
        try:
            self._catalog.check_partitions(resolved, definition.partitions or 1)
        except TopicsError as error:
            raise _as_value(error) from error
        with Transaction(self._writer) as tx:
            placement = SQL_PLACEMENT if self._catalog.place.count > 1 else ""
            topic = self._catalog.stage(tx, name, resolved, definition.partitions or 1, placement=placement)
            if self._tables.namespace(namespace) is None:
                self._tables.stage_namespace(tx, Namespace(namespace, created_ms=self._clock.now_ms()))
            if alias is not None:
                self._topics.stage_alias(tx, topic, alias)
            return tx.commit()

    def _clear(self, topic: Topic) -> int:
        now = self._clock.now_ms()
        with Transaction(self._writer) as tx:
            cleared = []
            for log in topic.logs:
                state = log.begin(topic.config, now)
                if retention.advance(state, log.blocks, state.head + 1):
                    log.stage(tx, state, topic.config)
                    cleared.append(log)
            ticket = tx.commit()
        for log in cleared:
            self._touch(log)
        return max(ticket, tx.ticket if cleared else 0)

    # ------------------------------------------------------------------- routes

    def _add_source(self, topic: Topic, route: Route) -> int:
        table = self._tables.table_by_number(route.table)
        if table is None:
            raise sql_error(Reason.TABLE_NOT_FOUND, "the table does not exist")
        check_target(topic, topic.config)
        if any(
            each.table == route.table and each.op is route.op for each in self._topics.routes_of_topic(topic.number)
        ):
            message = f'topic "{topic.name}" has the source {table.table_id} on {route.op.value} already'
            raise sql_error(
                Reason.ALREADY_EXISTS, message, sqlstate=_OBJECT_EXISTS, topic=topic.name, table=table.table_id
            )
        if len(self._topics.routes(route.table)) >= MAX_ROUTES:
            raise sql_error(
                Reason.INVALID_VALUE, f"{table.table_id} has {MAX_ROUTES} routes, the most that a table may have",
                sqlstate=_TOO_MANY, table=table.table_id,
            )  # fmt: skip
        if route.tombstones and route.mode is not PayloadMode.FULL:
            raise invalid_value("tombstones need payload = 'full'", topic=topic.name)
        if self.placement(topic.name) != table.placement:
            raise sql_error(
                Reason.CROSS_SHARD,
                f'topic "{topic.name}" and table {table.table_id} are in different placement groups',
                topic=topic.name, table=table.table_id, placements=[self.placement(topic.name), table.placement],
            )  # fmt: skip
        route = structs.replace(route, topic=topic.number)
        self._routing.check(table, route)
        with Transaction(self._writer) as tx:
            self._topics.stage_route(tx, topic, route)
            return tx.commit()

    def _drop_source(self, definition: plans.DropSource) -> int:
        topic, table = self._find(definition.topic), definition.table
        routes = [
            route
            for route in self._topics.routes_of_topic(topic.number)
            if route.table == table.number and definition.op in (None, route.op)
        ]
        if not routes:
            on = "" if definition.op is None else f" on {definition.op.value}"
            raise sql_error(
                Reason.ROUTE_NOT_FOUND, f'topic "{topic.name}" has no source {table.table_id}{on}',
                topic=topic.name, table=table.table_id,
            )  # fmt: skip
        with Transaction(self._writer) as tx:
            self._topics.stage_without(tx, routes)
            return tx.commit()

    # ------------------------------------------------------------------ options

    def _set_alias(self, topic: Topic, alias: str | None) -> int:
        if alias == self._topics.alias(topic.number):
            return 0
        if alias is not None:
            self._check_alias(alias, topic.name)
        with Transaction(self._writer) as tx:
            self._topics.stage_alias(tx, topic, alias)
            return tx.commit()

    def _set_options(self, topic: Topic, definition: plans.SetTopicOptions) -> int:
        alias, stage = definition.alias, None
        if alias is not None and alias != self._topics.alias(topic.number):
            self._check_alias(alias, topic.name)

            def stage(tx: Transaction) -> None:
                self._topics.stage_alias(tx, topic, alias)

        given = structs.asdict(definition.config)
        changed = {name: value for name, value in given.items() if value is not None and value is not UNSET}
        whole = ConfigInput(**structs.asdict(topic.config) | changed)
        try:
            return self._calls.put_topic(topic.name, whole, definition.partitions, stage=stage)[1]
        except TopicsError as error:
            raise _as_value(error) from error

    # ---------------------------------------------------------------- internals

    def _find(self, name: str) -> Topic:
        """The topic of this name or alias. Raises `topic_not_found`."""
        topic = self._topics.find(name)
        if topic is None or topic.is_part:
            error = topic_not_found(name)
            raise sql_error(error.reason, error.message, topic=name)
        return topic

    def _check_alias(self, alias: str, topic: str) -> None:
        _check_name(alias, "alias")
        if alias == topic or self._topics.is_taken(alias):
            message = f'"{alias}" is the name or the alias of a topic'
            raise sql_error(Reason.ALREADY_EXISTS, message, sqlstate=_OBJECT_EXISTS, topic=topic, alias=alias)


def namespace_of(topic: str) -> str:
    """The namespace that a topic's name begins with; the default one for a name without a dot."""
    head, dot, _ = topic.partition(".")
    return head if dot else DEFAULT_NAMESPACE


def _check_name(name: str, what: str) -> None:
    if not names.is_topic_name(name):
        raise invalid_value(
            f"{what}: a name is 1 to 255 characters from A-Z a-z 0-9 . _ : - and starts with a letter or digit"
        )


def _resolve(name: str, given: ConfigInput) -> TopicConfig:
    try:
        return config.resolve(name, given)
    except TopicsError as error:
        raise _as_value(error) from error


def _as_value(error: TopicsError) -> TopicsError:
    """The error of a value in SQL, where other calls have `invalid_request`."""
    if error.reason is not Reason.INVALID_REQUEST:
        return error
    detail = {"sqlstate": SQLSTATES[Reason.INVALID_VALUE], **(error.detail or {})}
    return TopicsError(Reason.INVALID_VALUE, error.message, detail)
