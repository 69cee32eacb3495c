"""Plans of statements about topics."""

from collections.abc import Sequence
from typing import Final, get_args

from topics_service.engine.errors import Reason
from topics_service.engine.model import ConfigInput, Discard, Durability
from topics_service.engine.names import is_name_of_any
from topics_service.engine.tables import plans
from topics_service.engine.tables.expressions import Expression, Side
from topics_service.engine.tables.model import RESERVED_NAMESPACES, Op, PayloadMode, Route, Table
from topics_sql import syntax
from topics_sql.binding.expressions import Expressions
from topics_sql.binding.scope import Context, Relation, relation
from topics_sql.binding.tables import one_of, unknown_option
from topics_sql.binding.topic_names import find_topic, look_up
from topics_sql.grammar.cursor import MAX_INT
from topics_sql.syntax import ObjectName, Option

TOPIC_OPTIONS: Final = (
    "retention_seconds", "retention_max_bytes", "durability", "partitions", "discard", "cap_records", "alias",
)  # fmt: skip
SOURCE_OPTIONS: Final = ("payload", "tombstones")
OPS: Final = {"insert": Op.INSERT, "update": Op.UPDATE, "delete": Op.DELETE}
MODES: Final = {mode.value.lower(): mode for mode in PayloadMode}


def new_topic_name(context: Context, name: ObjectName) -> str:
    """The name that a topic or an alias gets: `namespace.name`; one with a dot in it is taken as it is written."""
    full = ".".join(name.parts)
    if len(name.parts) == 1 and "." not in full:
        full = f"{context.namespace}.{full}"
    if not is_name_of_any(full):
        message = f"{full[:300]!r} can't name a topic: 1 to 255 characters from A-Z a-z 0-9 . _ : -, no sign first"
        raise context.refuse(name.at, message, Reason.INVALID_VALUE, "42602")
    if full.split(".", 1)[0] in RESERVED_NAMESPACES:
        message = f"the namespace {full.split('.', 1)[0]} is the server's own"
        raise context.refuse(name.at, message, Reason.FORBIDDEN, "42939")
    return full


# ------------------------------------------------------------------- definitions


def create_topic(context: Context, tree: syntax.CreateTopic) -> plans.CreateTopic:
    """Plan CREATE TOPIC."""
    name = new_topic_name(context, tree.name)
    config, partitions, alias = _options(context, tree.options, tree.partitions, tree.alias)
    return plans.CreateTopic(name, config, partitions, alias, tree.if_not_exists)


def set_topic(context: Context, tree: syntax.SetTopic) -> plans.SetTopicOptions:
    """Plan ALTER TOPIC SET (...)."""
    topic = find_topic(context, tree.topic)
    config, partitions, alias = _options(context, tree.options, None, None)
    return plans.SetTopicOptions(topic.name, config, partitions, alias)


def _options(
    context: Context, options: Sequence[Option], partitions: int | None, alias: ObjectName | None
) -> tuple[ConfigInput, int | None, str | None]:
    facts: dict[str, int | str] = {}
    named = None if alias is None else new_topic_name(context, alias)
    for option in options:
        if option.name == "partitions":
            if partitions is not None:
                raise context.refuse(option.at, "partitions are given twice")
            partitions = _natural(context, option)
        elif option.name == "alias":
            if named is not None:
                raise context.refuse(option.at, "the alias is given twice")
            named = _alias(context, option)
        elif option.name == "retention_seconds":
            facts["ttl_ms"] = _natural(context, option, MAX_INT // 1000) * 1000
        elif option.name == "retention_max_bytes":
            facts["cap_bytes"] = _natural(context, option)
        elif option.name == "cap_records":
            facts["cap_records"] = _natural(context, option)
        elif option.name == "durability":
            facts["durability"] = one_of(context, option, get_args(Durability))
        elif option.name == "discard":
            facts["discard"] = one_of(context, option, get_args(Discard))
        else:
            unknown_option(context, option, TOPIC_OPTIONS)
    return ConfigInput(**facts), partitions, named  # type: ignore[arg-type]


def _natural(context: Context, option: Option, greatest: int = MAX_INT) -> int:
    value = option.value
    if (
        not option.number
        or not isinstance(value, str)
        or not value.isdecimal()
        or len(value) > 19
        or int(value) > greatest
    ):
        message = f"{option.name} takes a whole number from 0 to {greatest}"
        raise context.refuse(option.value_at, message, Reason.INVALID_VALUE, "22023")
    return int(value)


def _alias(context: Context, option: Option) -> str:
    if not isinstance(option.value, str) or option.number:
        raise context.refuse(option.value_at, "alias takes a name in quotes", Reason.INVALID_VALUE, "22023")
    return new_topic_name(context, ObjectName(option.value_at, (option.value,)))


def drop_topic(context: Context, tree: syntax.DropTopic) -> plans.Action:
    """Plan DROP TOPIC."""
    if tree.if_exists and look_up(context, tree.name) is None:
        return plans.Nothing(f"topic {'.'.join(tree.name.parts)} does not exist")
    return plans.DropTopic(find_topic(context, tree.name).name)


def clear_topic(context: Context, tree: syntax.ClearTopic) -> plans.ClearTopic:
    """Plan CLEAR TOPIC."""
    return plans.ClearTopic(find_topic(context, tree.name).name)


def set_alias(context: Context, tree: syntax.SetAlias) -> plans.SetAlias:
    """Plan SET ALIAS and DROP ALIAS."""
    topic = find_topic(context, tree.topic)
    return plans.SetAlias(topic.name, None if tree.alias is None else new_topic_name(context, tree.alias))


# ------------------------------------------------------------------------- routes


def add_source(context: Context, tree: syntax.AddSource) -> plans.AddSource:
    """Plan ADD SOURCE."""
    topic = find_topic(context, tree.topic)
    if topic.is_queue:
        raise context.refuse(tree.topic.at, f"{topic.name} is a queue, which has no sources", Reason.NOT_A_LOG)
    table = context.find_table(tree.table)
    op = OPS[tree.op]
    if any(route.topic == topic.number and route.op is op for route in context.schema.routes(table.number)):
        message = f"topic {topic.name} has this source already"
        raise context.refuse(tree.table.at, message, Reason.ALREADY_EXISTS, "42710")
    binder = Expressions(context, _sides(table), volatile=False, parameters=False)
    condition = None if tree.where is None else binder.condition(tree.where.tree)
    partition_by: tuple[Expression, ...] = tuple(binder.value(span.tree) for span in tree.partition_by)
    mode, tombstones = _source_options(context, tree.options)
    route = Route(
        topic.number, table.number, op, mode, condition, "" if tree.where is None else tree.where.text,
        partition_by, ", ".join(span.text for span in tree.partition_by), tombstones,
    )  # fmt: skip
    return plans.AddSource(topic.name, route)


def _sides(table: Table) -> list[Relation]:
    """The rows of a change: a column alone is of the row as it is now (of a Delete, as it was last)."""
    now, before = relation(table), relation(table, "old", Side.OLD)
    sides = [Relation("new", now.columns), before]
    if table.name not in ("new", "old"):
        sides.append(Relation(table.name, now.columns, table.namespace, bare=False))
    return sides


def _source_options(context: Context, options: Sequence[Option]) -> tuple[PayloadMode, bool]:
    mode, tombstones = PayloadMode.KEY, False
    for option in options:
        if option.name == "payload":
            mode = MODES[one_of(context, option, tuple(MODES))]
        elif option.name == "tombstones":
            words = {True: "on", False: "off"}
            value = words.get(option.value, option.value) if isinstance(option.value, bool) else option.value
            plain = Option(option.at, option.name, value, option.value_at)
            tombstones = one_of(context, plain, ("on", "off")) == "on"
        else:
            unknown_option(context, option, SOURCE_OPTIONS)
    return mode, tombstones


def drop_source(context: Context, tree: syntax.DropSource) -> plans.DropSource:
    """Plan DROP SOURCE. Raises `route_not_found`."""
    topic = find_topic(context, tree.topic)
    table = context.find_table(tree.table)
    op = None if tree.op is None else OPS[tree.op]
    routes = [route for route in context.schema.routes(table.number) if route.topic == topic.number]
    if not any(op is None or route.op is op for route in routes):
        message = f"topic {topic.name} has no such source"
        raise context.refuse(tree.table.at, message, Reason.ROUTE_NOT_FOUND)
    return plans.DropSource(topic.name, table, op)


# ------------------------------------------------------------------------ reading


def consume(context: Context, tree: syntax.Consume) -> plans.Consume:
    """Plan CONSUME."""
    topic = find_topic(context, tree.topic)
    start = tree.start
    if isinstance(start, str):
        return plans.Consume(
            topic.name, tree.group, tree.partition, "earliest" if start == "earliest" else "latest", tree.limit
        )
    return plans.Consume(topic.name, tree.group, tree.partition, start, tree.limit)


def ack(context: Context, tree: syntax.Ack) -> plans.Ack:
    """Plan ACK."""
    return plans.Ack(find_topic(context, tree.topic).name, tree.group, tree.partition, tree.upto)


def subscribe(context: Context, tree: syntax.Subscribe) -> plans.Action:
    """Refuse SUBSCRIBE."""
    raise context.refuse(tree.at, "live queries are not supported", Reason.UNSUPPORTED_SQL)
