"""Statements about topics, and reading them."""

from typing import Any, Final

from topics_sql.grammar.cursor import Cursor
from topics_sql.grammar.expressions import expression
from topics_sql.grammar.queries import query
from topics_sql.syntax import (
    Ack,
    AddSource,
    ClearTopic,
    Consume,
    CreateTopic,
    DropSource,
    DropTopic,
    From,
    Item,
    ObjectName,
    Option,
    Query,
    Select,
    SetAlias,
    SetTopic,
    Span,
    Subscribe,
)
from topics_sql.tokens import NUMBER, refuse

OPS: Final = ("insert", "update", "delete")


def create_topic(cursor: Cursor, at: int) -> CreateTopic:
    """Read what follows CREATE TOPIC: PARTITIONS, ALIAS and WITH in any order, each once."""
    if_not_exists = cursor.if_not_exists()
    name = cursor.object_name("a topic")
    partitions: int | None = None
    alias: ObjectName | None = None
    options: tuple[Option, ...] | None = None
    while True:
        here = cursor.at
        if cursor.take("partitions"):
            again, partitions = partitions is not None, cursor.integer("a number of partitions")
        elif cursor.take("alias"):
            again, alias = alias is not None, cursor.object_name("an alias")
        elif cursor.take("with"):
            again, options = options is not None, cursor.options()
        else:
            return CreateTopic(at, name, partitions, alias, options or (), if_not_exists)
        if again:
            raise refuse(cursor.text, here, "PARTITIONS, ALIAS and WITH may come once each")


def drop_topic(cursor: Cursor, at: int) -> DropTopic:
    """Read what follows DROP TOPIC."""
    if_exists = cursor.if_exists()
    return DropTopic(at, cursor.object_name("a topic"), if_exists)


def clear_topic(cursor: Cursor, at: int) -> ClearTopic:
    """Read CLEAR TOPIC."""
    cursor.expect("clear", "topic")
    return ClearTopic(at, cursor.object_name("a topic"))


def alter_topic(cursor: Cursor, at: int) -> AddSource | DropSource | SetAlias | SetTopic:
    """Read what follows ALTER TOPIC."""
    topic = cursor.object_name("a topic")
    if cursor.take("add"):
        cursor.expect("source")
        return _add_source(cursor, at, topic)
    if cursor.take("drop"):
        if cursor.take("alias"):
            return SetAlias(at, topic, None)
        if not cursor.take("source"):
            raise cursor.unexpected("SOURCE or ALIAS")
        table = cursor.object_name("a table")
        return DropSource(at, topic, table, _op(cursor) if cursor.take("on") else None)
    if not cursor.take("set"):
        raise cursor.unexpected("ADD SOURCE, DROP SOURCE, DROP ALIAS or SET")
    if cursor.take("alias"):
        return SetAlias(at, topic, cursor.object_name("an alias"))
    return SetTopic(at, topic, cursor.options())


def _add_source(cursor: Cursor, at: int, topic: ObjectName) -> AddSource:
    table = cursor.object_name("a table")
    cursor.expect("on")
    op = _op(cursor)
    where: Span | None = None
    if cursor.take("where"):
        where = _span(cursor)
    partition_by: list[Span] = []
    if cursor.take("partition"):
        cursor.expect("by")
        cursor.expect_operator("(")
        partition_by.append(_span(cursor))
        while cursor.take_operator(","):
            partition_by.append(_span(cursor))
        cursor.expect_operator(")")
    options = cursor.options() if cursor.take("with") else ()
    return AddSource(at, topic, table, op, where, tuple(partition_by), options)


def _span(cursor: Cursor) -> Span:
    begin = cursor.position
    return cursor.span(begin, expression(cursor))


def _op(cursor: Cursor) -> str:
    for op in OPS:
        if cursor.take(op):
            return op
    raise cursor.unexpected("INSERT, UPDATE or DELETE")


def consume(cursor: Cursor) -> Consume:
    """Read CONSUME. The clauses come in any order, each once; START says the same as the second FROM."""
    at = cursor.at
    cursor.expect("consume", "from")
    topic = cursor.object_name("a topic")
    clauses: dict[str, Any] = {}
    while not cursor.at_end:
        here, word = cursor.at, "from" if cursor.word == "start" else cursor.word
        if word in clauses:
            raise refuse(cursor.text, here, f"{word.upper()} is given twice")
        if word not in ("group", "partition", "from", "limit"):
            raise cursor.unexpected("GROUP, PARTITION, FROM or LIMIT")
        cursor.position += 1
        if word == "group":
            clauses[word] = cursor.string("a group in quotes")
        elif word == "from":
            clauses[word] = _start(cursor)
        else:
            clauses[word] = cursor.integer("a whole number")
    return Consume(
        at,
        topic,
        clauses.get("group"),
        clauses.get("partition", 0),
        clauses.get("from", "latest"),
        clauses.get("limit"),
    )


def _start(cursor: Cursor) -> str | int:
    for word in ("latest", "earliest"):
        if cursor.take(word):
            return word
    if cursor.take("offset") or cursor.kinds[cursor.position] == NUMBER:
        return cursor.integer("an offset")
    raise cursor.unexpected("LATEST, EARLIEST or OFFSET")


def ack(cursor: Cursor) -> Ack:
    """Read ACK."""
    at = cursor.at
    cursor.expect("ack")
    topic = cursor.object_name("a topic")
    cursor.expect("group")
    group = cursor.string("a group in quotes")
    partition = cursor.integer("a partition") if cursor.take("partition") else 0
    cursor.expect("upto", "offset")
    return Ack(at, topic, group, partition, cursor.integer("an offset"))


def subscribe(cursor: Cursor) -> Subscribe:
    """Read SUBSCRIBE."""
    at = cursor.at
    cursor.expect("subscribe", "to")
    wanted: Query
    if cursor.take_operator("("):
        wanted = query(cursor)
        cursor.expect_operator(")")
    else:
        table_at = cursor.at
        table = cursor.object_name("a table")
        where = expression(cursor) if cursor.take("where") else None
        item, source = Item(table_at, None, star=True), From(table)
        wanted = Select(at=table_at, items=(item,), source=source, where=where)
    return Subscribe(at, wanted, cursor.options() if cursor.take("options") else ())
