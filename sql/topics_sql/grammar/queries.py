"""Queries: SELECT, VALUES and WITH, what stands in FROM, and their combinations."""

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from topics_sql.grammar.cursor import RESERVED, Cursor
from topics_sql.grammar.expressions import begins_query, descend, expression, order_by
from topics_sql.grammar.grouping import grouping
from topics_sql.grammar.windows import named_windows
from topics_sql.syntax import (
    Compound,
    Derived,
    From,
    FromItem,
    Item,
    Join,
    Names,
    Query,
    Select,
    Series,
    Tree,
    Values,
    With,
)
from topics_sql.tokens import NAME, WORD

MAX_ROWS: Final = 10_000
"""Of VALUES as a query."""
BEYOND: Final = {
    "for": "FOR UPDATE is",
    "qualify": "QUALIFY is",
    "tablesample": "TABLESAMPLE is",
}
JOINS: Final = ("join", "inner", "left", "right", "full", "cross", "natural")
UNIONS: Final = ("union", "except")


def query(cursor: Cursor) -> Query:
    """Read a query with what stands before and behind it: WITH, ORDER BY, LIMIT."""
    descend(cursor)
    at = cursor.at
    ctes, recursive = with_clause(cursor)
    return query_behind(cursor, at, ctes, recursive=recursive)


def query_behind(cursor: Cursor, at: int, ctes: tuple[With, ...], *, recursive: bool) -> Query:
    """Read the query behind a WITH that was read."""
    body = _combined(cursor)
    order = order_by(cursor)
    limit, offset = _limits(cursor)
    if what := BEYOND.get(cursor.word):
        raise cursor.unsupported(what)
    cursor.depth -= 1
    if not ctes and not order and limit is None and offset is None:
        return body
    if body.ctes or body.order or body.limit is not None or body.offset is not None:  # they are those of the part
        body = Select(at=at, items=(Item(at, None, star=True),), source=Derived(at, body, "nested"))
    return replace(body, order=order, limit=limit, offset=offset, ctes=ctes, recursive=recursive)


def with_clause(cursor: Cursor) -> tuple[tuple[With, ...], bool]:
    """Read WITH, if it comes next."""
    if not cursor.take("with"):
        return (), False
    recursive = cursor.take("recursive")
    ctes = [_cte(cursor)]
    while cursor.take_operator(","):
        ctes.append(_cte(cursor))
    return tuple(ctes), recursive


def _cte(cursor: Cursor) -> With:
    at = cursor.at
    name = cursor.identifier("a name for the query")
    columns = _names(cursor)
    cursor.expect("as")
    if cursor.take("not"):
        cursor.expect("materialized")
    else:
        cursor.take("materialized")
    cursor.expect_operator("(")
    if cursor.word in ("insert", "update", "delete"):
        raise cursor.unsupported("changes in WITH are")
    inner = query(cursor)
    cursor.expect_operator(")")
    return With(at, name, columns, inner)


def _combined(cursor: Cursor) -> Query:
    left = _intersected(cursor)
    while cursor.word in UNIONS:
        left = _compound(cursor, left, _intersected)
    return left


def _intersected(cursor: Cursor) -> Query:
    left = _part(cursor)
    while cursor.word == "intersect":
        left = _compound(cursor, left, _part)
    return left


def _compound(cursor: Cursor, left: Query, part: Callable[[Cursor], Query]) -> Query:
    at, op = cursor.at, cursor.word
    descend(cursor)
    cursor.position += 1
    every = cursor.take("all")
    if not every:
        cursor.take("distinct")
    return Compound(at=at, op=op, all=every, left=left, right=part(cursor))


def _part(cursor: Cursor) -> Query:
    if cursor.take_operator("("):
        inner = query(cursor)
        cursor.expect_operator(")")
        return inner
    if cursor.word == "values":
        return _values(cursor)
    if cursor.word == "table":
        raise cursor.unsupported("TABLE as a query is")
    return _select(cursor)


def _values(cursor: Cursor) -> Values:
    at = cursor.at
    cursor.expect("values")
    rows: list[tuple[Tree, ...]] = []
    while True:
        if len(rows) == MAX_ROWS:
            raise cursor.unsupported(f"VALUES with more than {MAX_ROWS} rows as a query is")
        cursor.expect_operator("(")
        row = [expression(cursor)]
        while cursor.take_operator(","):
            row.append(expression(cursor))
        cursor.expect_operator(")")
        rows.append(tuple(row))
        if not cursor.take_operator(","):
            return Values(at=at, rows=tuple(rows))


def _select(cursor: Cursor) -> Select:
    at = cursor.at
    cursor.expect("select")
    distinct = cursor.take("distinct")
    distinct_on: tuple[Tree, ...] = ()
    if not distinct:
        cursor.take("all")
    elif cursor.take("on"):
        cursor.expect_operator("(")
        distinct_on = _list(cursor)
        cursor.expect_operator(")")
    items = select_list(cursor)
    if cursor.take("into"):
        raise cursor.unsupported("SELECT INTO is")
    source = from_list(cursor) if cursor.take("from") else None
    where = expression(cursor) if cursor.take("where") else None
    group: tuple[Tree, ...] | None = None
    sets: tuple[tuple[Tree, ...], ...] = ()
    if cursor.take("group"):
        cursor.expect("by")
        group, sets = grouping(cursor)
    having = expression(cursor) if cursor.take("having") else None
    windows = named_windows(cursor) if cursor.take("window") else ()
    if what := BEYOND.get(cursor.word):
        raise cursor.unsupported(what)
    return Select(
        at=at, items=items, source=source, where=where, group=group, sets=sets, having=having, windows=windows,
        distinct=distinct and not distinct_on, distinct_on=distinct_on,
    )  # fmt: skip


def _list(cursor: Cursor) -> tuple[Tree, ...]:
    found = [expression(cursor)]
    while cursor.take_operator(","):
        found.append(expression(cursor))
    return tuple(found)


def select_list(cursor: Cursor) -> tuple[Item, ...]:
    """Read the columns of a result: of SELECT and of RETURNING."""
    items = [_item(cursor)]
    while cursor.take_operator(","):
        items.append(_item(cursor))
    return tuple(items)


def _item(cursor: Cursor) -> Item:
    at = cursor.at
    if cursor.take_operator("*"):
        return Item(at, None, star=True)
    position = cursor.position
    if cursor.kinds[position] in (WORD, NAME) and cursor.are_operators(1, ".", "*"):
        table = cursor.identifier("a table")
        cursor.position += 2
        return Item(at, None, star=True, table=table)
    tree = expression(cursor)
    if cursor.take("as"):
        return Item(at, tree, cursor.label("a name for the column"))
    return Item(at, tree, _alias(cursor))


def _alias(cursor: Cursor) -> str | None:
    kind, value = cursor.kinds[cursor.position], cursor.values[cursor.position]
    if kind == NAME or (kind == WORD and value not in RESERVED):
        cursor.position += 1
        return value
    return None


# --------------------------------------------------------------------------- FROM


def from_list(cursor: Cursor) -> FromItem:
    """Read what stands in FROM; commas are cross joins."""
    left = _joined(cursor)
    while cursor.is_operator(","):
        at = cursor.at
        descend(cursor)
        cursor.position += 1
        left = Join(at, "cross", left, _joined(cursor))
    return left


def _joined(cursor: Cursor) -> FromItem:
    left = _primary(cursor)
    while cursor.word in JOINS:
        descend(cursor)
        left = _join(cursor, left)
    return left


def _join(cursor: Cursor, left: FromItem) -> Join:
    at = cursor.at
    natural = cursor.take("natural")
    kind = cursor.word if cursor.word in ("inner", "left", "right", "full", "cross") else "inner"
    cursor.take(kind)
    if kind in ("left", "right", "full"):
        cursor.take("outer")
    cursor.expect("join")
    right = _primary(cursor)
    if kind == "cross" or natural:
        return Join(at, kind, left, right, natural=natural)
    if cursor.word in JOINS:  # a JOIN b JOIN c ON .. ON ..
        right = _join(cursor, right)
    if cursor.take("using"):
        return Join(at, kind, left, right, using=tuple(column.name for column in cursor.columns()))
    cursor.expect("on")
    return Join(at, kind, left, right, expression(cursor))


def _primary(cursor: Cursor) -> FromItem:
    at = cursor.at
    lateral = cursor.take("lateral")
    if cursor.is_operator("("):
        descend(cursor)
        cursor.position += 1
        if begins_query(cursor) or lateral:
            inner = query(cursor)
            cursor.expect_operator(")")
            cursor.depth -= 1
            alias, columns = _table_alias(cursor)
            return Derived(at, inner, alias, columns, lateral)
        item = from_list(cursor)
        cursor.expect_operator(")")
        cursor.depth -= 1
        return item
    if cursor.word == "generate_series" and cursor.are_operators(1, "("):
        cursor.position += 2
        arguments = _list(cursor)
        cursor.expect_operator(")")
        if cursor.word == "with":
            raise cursor.unsupported("WITH ORDINALITY is")
        return Series(at, arguments, *_table_alias(cursor))
    if lateral:
        raise cursor.unsupported("other functions in FROM than generate_series are")
    return table_reference(cursor)


def table_reference(cursor: Cursor) -> From:
    """Read a table and its alias."""
    if cursor.is_operator("(") or cursor.word == "lateral":
        raise cursor.unsupported("subqueries here are")
    cursor.take("only")
    name = cursor.object_name("a table")
    if cursor.is_operator("("):
        raise cursor.unsupported("other functions in FROM than generate_series are", name.at)
    alias, columns = (None, ()) if cursor.word == "set" else _table_alias(cursor)
    return From(name, alias, columns)


def _table_alias(cursor: Cursor) -> tuple[str | None, Names]:
    alias = cursor.identifier("an alias") if cursor.take("as") else _alias(cursor)
    return alias, () if alias is None else _names(cursor)


def _names(cursor: Cursor) -> Names:
    """Read names of columns in parentheses, if there are any."""
    if not cursor.is_operator("("):
        return ()
    return tuple(column.name for column in cursor.columns())


# -------------------------------------------------------------------------- LIMIT


def _limits(cursor: Cursor) -> tuple[Tree | None, Tree | None]:
    limit, offset = None, None
    while True:
        if limit is None and cursor.take("limit"):
            if cursor.take("all"):
                continue
            limit = expression(cursor)
        elif offset is None and cursor.take("offset"):
            offset = expression(cursor)
            if not cursor.take("rows"):
                cursor.take("row")
        elif limit is None and cursor.take("fetch"):
            if not cursor.take("first"):
                cursor.expect("next")
            limit = expression(cursor)
            if not cursor.take("rows"):
                cursor.expect("row")
            cursor.expect("only")
        else:
            return limit, offset
