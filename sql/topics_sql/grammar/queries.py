"""SELECT. What only an analytical engine can answer is refused by name."""

from typing import Final

from topics_sql.grammar.cursor import RESERVED, Cursor
from topics_sql.grammar.expressions import expression
from topics_sql.syntax import From, Item, Joined, Names, OrderItem, Select, Tree
from topics_sql.tokens import NAME, WORD

SET_OPERATIONS: Final = ("union", "intersect", "except")
BEYOND: Final = {
    "group": "GROUP BY is",
    "having": "HAVING is",
    "window": "window functions are",
    "union": "UNION is",
    "intersect": "INTERSECT is",
    "except": "EXCEPT is",
    "for": "FOR UPDATE is",
    "qualify": "QUALIFY is",
    "tablesample": "TABLESAMPLE is",
}
JOINS: Final = ("join", "inner", "left", "right", "full", "cross", "natural")


def select(cursor: Cursor) -> Select:
    """Read a query."""
    at = cursor.at
    cursor.expect("select")
    distinct = cursor.take("distinct")
    if distinct and cursor.word == "on":
        raise cursor.unsupported("DISTINCT ON is")
    if not distinct:
        cursor.take("all")
    items = select_list(cursor)
    source, joined = None, None
    if cursor.take("into"):
        raise cursor.unsupported("SELECT INTO is")
    if cursor.take("from"):
        source = table_reference(cursor)
        joined = _join(cursor)
        if cursor.word in JOINS or cursor.is_operator(","):
            raise cursor.unsupported("joins of more than two tables are")
    where = expression(cursor) if cursor.take("where") else None
    _beyond(cursor)
    order = _order(cursor)
    limit, offset = _limits(cursor)
    _beyond(cursor)
    return Select(
        at=at, items=items, source=source, joined=joined, where=where, order=order, limit=limit, offset=offset,
        distinct=distinct,
    )  # fmt: skip


def _beyond(cursor: Cursor) -> None:
    if what := BEYOND.get(cursor.word):
        raise cursor.unsupported(what)


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


def table_reference(cursor: Cursor) -> From:
    """Read a table and its alias."""
    if cursor.is_operator("(") or cursor.word == "lateral":
        raise cursor.unsupported("subqueries in FROM are")
    cursor.take("only")
    name = cursor.object_name("a table")
    if cursor.is_operator("("):
        raise cursor.unsupported("functions in FROM are", name.at)
    if cursor.take("as"):
        alias: str | None = cursor.identifier("an alias")
    else:
        alias = None if cursor.word == "set" else _alias(cursor)
    if alias is not None and cursor.is_operator("("):
        raise cursor.unsupported("names of columns in FROM are")
    return From(name, alias)


def _join(cursor: Cursor) -> Joined | None:
    at = cursor.at
    if cursor.take_operator(","):
        return Joined(at, table_reference(cursor))
    word = cursor.word
    if word not in JOINS:
        return None
    if word in ("right", "full", "natural"):
        raise cursor.unsupported(f"{word.upper()} JOIN is")
    cursor.position += word != "join"
    outer = word == "left"
    if outer:
        cursor.take("outer")
    cursor.expect("join")
    right = table_reference(cursor)
    if word == "cross":
        return Joined(at, right)
    on: Tree | None = None
    using: Names = ()
    if cursor.take("using"):
        using = tuple(column.name for column in cursor.columns())
    else:
        cursor.expect("on")
        on = expression(cursor)
    return Joined(at, right, on, outer, using)


def _order(cursor: Cursor) -> tuple[OrderItem, ...]:
    if not cursor.take("order"):
        return ()
    cursor.expect("by")
    items = [_order_item(cursor)]
    while cursor.take_operator(","):
        items.append(_order_item(cursor))
    return tuple(items)


def _order_item(cursor: Cursor) -> OrderItem:
    at = cursor.at
    tree = expression(cursor)
    if cursor.word == "using":
        raise cursor.unsupported("ORDER BY ... USING is")
    descending = cursor.take("desc")
    if not descending:
        cursor.take("asc")
    nulls_first = descending
    if cursor.take("nulls"):
        nulls_first = cursor.take("first")
        if not nulls_first:
            cursor.expect("last")
    return OrderItem(at, tree, descending, nulls_first)


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
