"""Plans of queries and changes as lines of text."""

from collections.abc import Iterator, Mapping

from topics_service.engine.tables import plans
from topics_service.engine.tables.expressions import (
    Binary,
    Call,
    Case,
    Cast,
    Column,
    Expression,
    InList,
    IsNull,
    IsTruth,
    JsonGet,
    Like,
    Literal,
    Parameter,
    Side,
    Unary,
)
from topics_service.engine.tables.model import Table
from topics_service.engine.tables.schema import Schema
from topics_service.engine.tables.topic_columns import TOPIC_COLUMNS
from topics_service.engine.tables.types import Kind, Type
from topics_service.engine.tables.values import to_text

MAX_SHOWN = 20


def explain(action: plans.Select | plans.Analysis | plans.Change, schema: Schema) -> plans.Explain:
    """The plan that tells how a statement would run."""
    query = action if isinstance(action, plans.Analysis | plans.Select) else action.query
    analyzed = query.tables if isinstance(query, plans.Analysis) else ()
    return plans.Explain(tuple(_lines(action, schema)), tuple(table.table_id for table in analyzed))


def _lines(action: plans.Select | plans.Analysis | plans.Change, schema: Schema) -> Iterator[str]:
    if isinstance(action, plans.Select):
        yield from _select(action, schema)
    elif isinstance(action, plans.Analysis):
        yield from _analysis(action)
    elif isinstance(action, plans.Insert):
        yield f"insert into {action.table.table_id}"
        if action.query is not None:
            yield from (f"  {line}" for line in _analysis(action.query))
        elif action.select is None:
            yield f"  rows: {len(action.rows)}"
        else:
            yield from (f"  {line}" for line in _select(action.select, schema))
        if action.conflict is not None:
            yield f"  on conflict: {'do nothing' if action.conflict.assignments is None else 'update the row'}"
    else:
        yield f"{'update' if isinstance(action, plans.Update) else 'delete from'} {action.table.table_id}"
        if action.query is not None:
            yield from (f"  {line}" for line in _analysis(action.query))
            return
        names = names_of(action.table)
        yield f"  {_access(action.table, action.access, names)}"
        if action.filter is not None:
            yield f"  filter: {condition(action.filter, names)}"


def _analysis(action: plans.Analysis) -> Iterator[str]:
    yield f"analyze in DuckDB, for {action.why}"
    yield from (f"  read {table.table_id}" for table in action.tables)
    yield from (f"  read system.{name}" for name in action.system)
    for read in action.topics:
        yield f'  read topics."{read.topic}"'
        yield f"    {topic_access(read.scan)}"
        yield f"    columns: {', '.join(TOPIC_NAMES[each] for each in read.scan.columns) or 'none'}"


def columns_of(schema: Schema, join: plans.Join) -> tuple[tuple[str, Type], ...]:
    """The columns of a pair of rows."""
    return schema.system[join.left.name] + schema.system[join.right.name]


def _select(action: plans.Select, schema: Schema) -> Iterator[str]:
    source = action.source
    names: Mapping[int, str] = {}
    if source is None:
        yield "one row of constants"
    elif isinstance(source, plans.TableSource):
        names = names_of(source.table)
        yield f"read {source.table.table_id}"
        yield f"  {_access(source.table, source.access, names)}"
    elif isinstance(source, plans.TopicSource):
        names = TOPIC_NAMES
        yield f'read topics."{source.topic}"'
        yield f"  {topic_access(source.scan)}"
        yield f"  columns: {', '.join(names[each] for each in source.scan.columns) or 'none'}"
    elif isinstance(source, plans.SystemSource):
        names = {place: name for place, (name, _) in enumerate(schema.system[source.name])}
        yield f"read system.{source.name}"
    else:
        names = {place: name for place, (name, _) in enumerate(columns_of(schema, source))}
        pairs = ", ".join(f"{names[left]} = {names[right]}" for left, right in source.equal)
        word = "left join" if source.outer else "join"
        yield f"{word} system.{source.left.name} and system.{source.right.name} by {pairs}"
    if action.filter is not None:
        yield f"  filter: {condition(action.filter, names)}"
    if action.count:
        yield "  count the rows"
    if action.distinct:
        yield "  remove rows that are equal"
    if action.order:
        keys = [f"{shown(item.expression, names)}{' desc' if item.descending else ''}" for item in action.order]
        yield f"  sort in memory: {', '.join(keys)}"
    if action.limit is not None:
        yield f"  limit: {shown(action.limit, names)}"
    if action.offset is not None:
        yield f"  offset: {shown(action.offset, names)}"


def condition(expression: Expression, names: Mapping[int, str]) -> str:
    """An expression as text that stands alone."""
    text = shown(expression, names)
    return text[1:-1] if isinstance(expression, Binary) else text


def names_of(table: Table) -> dict[int, str]:
    """The names of columns by their ids."""
    return {column.id: column.name for column in table.columns}


def _access(table: Table, access: plans.Scan | plans.Lookup, names: Mapping[int, str]) -> str:
    if isinstance(access, plans.Lookup):
        key = ", ".join(names[column] for column in table.primary_key)
        return f"{len(access.keys)} keys of the primary key ({key})" if len(access.keys) > 1 else f"primary key ({key})"
    columns = table.primary_key
    where = "primary key"
    for index in table.indexes:
        if index.number == access.index:
            columns, where = index.columns, f"index {index.name}"
    parts = [f"{names[column]} = {shown(value, names)}" for column, value in zip(columns, access.prefix, strict=False)]
    following = columns[len(access.prefix)] if len(access.prefix) < len(columns) else None
    for bound, sign in ((access.lower, ">"), (access.upper, "<")):
        if bound is not None and following is not None:
            parts.append(f"{names[following]} {sign}{'=' if bound.inclusive else ''} {shown(bound.value, names)}")
    what = f"range of {where}: {', '.join(parts)}" if parts else f"all of {where}"
    return f"{what}, in reverse" if access.reverse else what


TOPIC_NAMES = {place: name for place, (name, _) in enumerate(TOPIC_COLUMNS)}


def topic_access(scan: plans.TopicScan) -> str:
    """The part of a topic that is read."""
    parts = []
    for fact in scan.facts:
        values = [shown(value, TOPIC_NAMES) for value in fact.values[:MAX_SHOWN]]
        more = ", ..." if len(fact.values) > MAX_SHOWN else ""
        text = values[0] if fact.op != "in" else f"({', '.join(values)}{more})"
        parts.append(f"{TOPIC_NAMES[fact.column]} {fact.op} {text}")
    if scan.like is not None:
        parts.append(f"tag like {shown(scan.like.pattern, TOPIC_NAMES)}")
    what = f"range: {', '.join(parts)}" if parts else "all records"
    if scan.order:
        what += f", merged by {', '.join(TOPIC_NAMES[each] for each in scan.order)}"
    return f"{what}, in reverse" if scan.reverse else what


def shown(expression: Expression, names: Mapping[int, str]) -> str:
    """An expression as text, for people."""
    if isinstance(expression, Literal):
        return _literal(expression)
    if isinstance(expression, Column):
        side = "" if expression.side is Side.NEW else f"{expression.side.value}."
        return f"{side}{names.get(expression.column, f'column {expression.column}')}"
    if isinstance(expression, Parameter):
        return f"${expression.number}"
    if isinstance(expression, Unary):
        return f"{expression.op} {shown(expression.operand, names)}"
    if isinstance(expression, Binary):
        return f"({shown(expression.left, names)} {expression.op} {shown(expression.right, names)})"
    if isinstance(expression, IsNull):
        return f"{shown(expression.operand, names)} is {'not ' if expression.negated else ''}null"
    if isinstance(expression, IsTruth):
        word = "true" if expression.truth else "false"
        return f"{shown(expression.operand, names)} is {'not ' if expression.negated else ''}{word}"
    return _shown_call(expression, names)


def _shown_call(expression: Expression, names: Mapping[int, str]) -> str:
    if isinstance(expression, InList):
        items = ", ".join(shown(item, names) for item in expression.items[:MAX_SHOWN])
        more = ", ..." if len(expression.items) > MAX_SHOWN else ""
        return f"{shown(expression.operand, names)} {'not ' if expression.negated else ''}in ({items}{more})"
    if isinstance(expression, Like):
        word = ("not " if expression.negated else "") + ("ilike" if expression.ignore_case else "like")
        return f"{shown(expression.operand, names)} {word} {shown(expression.pattern, names)}"
    if isinstance(expression, Case):
        branches = " ".join(
            f"when {shown(when, names)} then {shown(then, names)}" for when, then in expression.branches
        )
        otherwise = "" if expression.otherwise is None else f" else {shown(expression.otherwise, names)}"
        return f"case {branches}{otherwise} end"
    if isinstance(expression, Cast):
        return f"cast({shown(expression.operand, names)} as {expression.type.name})"
    if isinstance(expression, JsonGet):
        arrow = "->" if expression.type.kind is Kind.JSON else "->>"
        return f"{shown(expression.operand, names)} {arrow} {shown(expression.key, names)}"
    assert isinstance(expression, Call)
    return f"{expression.function}({', '.join(shown(each, names) for each in expression.arguments)})"


def _literal(literal: Literal) -> str:
    if literal.value is None:
        return "null"
    text = str(to_text(literal.value, literal.type))
    if len(text) > 60:
        text = text[:57] + "..."
    quoted = isinstance(literal.value, str | bytes) or (
        literal.type is not None and literal.type.kind in (Kind.TIMESTAMP, Kind.DATE, Kind.TIME)
    )
    return "'" + text.replace("'", "''") + "'" if quoted else text
