"""INSERT, UPDATE and DELETE."""

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from topics_sql.grammar.cursor import Cursor
from topics_sql.grammar.expressions import begins_query, descend, expression, parameter_number
from topics_sql.grammar.queries import from_list, query, query_behind, select_list, table_reference, with_clause
from topics_sql.syntax import (
    Assignment,
    ColumnName,
    Conflict,
    Constant,
    Default,
    Delete,
    Insert,
    Item,
    Parameter,
    Query,
    Tree,
    Update,
)
from topics_sql.tokens import NUMBER, OPERATOR, PARAMETER, STRING, WORD, refuse

Value = Tree | Default


def with_statement(cursor: Cursor) -> Insert | Update | Delete | Query:
    """Read a statement that begins with WITH."""
    descend(cursor)
    at = cursor.at
    ctes, recursive = with_clause(cursor)
    rule = _CHANGES.get(cursor.word)
    if rule is None:
        return query_behind(cursor, at, ctes, recursive=recursive)
    cursor.depth -= 1
    return replace(rule(cursor), ctes=ctes, recursive=recursive)


def insert(cursor: Cursor) -> Insert:
    """Read INSERT."""
    at = cursor.at
    cursor.expect("insert")
    if cursor.word == "or":
        raise cursor.unsupported("INSERT OR is", hint="ON CONFLICT says the same")
    cursor.expect("into")
    table = cursor.object_name("a table")
    alias = cursor.identifier("an alias") if cursor.take("as") else None
    columns = cursor.columns() if cursor.is_operator("(") and not _begins_query_within(cursor) else None
    if cursor.word == "overriding":
        raise cursor.unsupported("OVERRIDING is")
    rows: tuple[tuple[Value, ...], ...] | None = None
    source = None
    if cursor.take("default", "values"):
        rows = ()
    elif cursor.take("values"):
        rows = _rows(cursor)
    elif cursor.word in ("select", "with") or _begins_query_within(cursor):
        source = query(cursor)
    elif cursor.word == "table" or cursor.is_operator("("):
        raise cursor.unsupported("INSERT from other than SELECT and VALUES is")
    else:
        raise cursor.unexpected("VALUES, DEFAULT VALUES or SELECT")
    conflict = _conflict(cursor)
    return Insert(at, table, alias, columns, rows, source, conflict, returning(cursor))


def _begins_query_within(cursor: Cursor) -> bool:
    """Return whether parentheses come next with a query in them."""
    if not cursor.is_operator("("):
        return False
    position = cursor.position
    while cursor.take_operator("("):
        pass
    found = begins_query(cursor)
    cursor.position = position
    return found


def _rows(cursor: Cursor) -> tuple[tuple[Value, ...], ...]:
    """Read rows. A cell of one token takes no descent: most texts with thousands of rows have only those."""
    kinds, values, starts = cursor.kinds, cursor.values, cursor.starts
    rows: list[tuple[Value, ...]] = []
    position = cursor.position
    while True:
        if kinds[position] != OPERATOR or values[position] != "(":
            cursor.position = position
            raise cursor.unexpected("'('")
        position += 1
        row: list[Value] = []
        while True:
            kind, value, at = kinds[position], values[position], starts[position]
            follows = values[position + 1] if kinds[position + 1] == OPERATOR else ""
            if follows != "," and follows != ")":
                cursor.position = position
                row.append(_negative(cursor, at) or expression(cursor))
                position = cursor.position
            elif kind in (NUMBER, STRING):
                row.append(Constant(at, kind, value))
                position += 1
            elif kind == PARAMETER:
                row.append(Parameter(at, parameter_number(cursor, value, at)))
                position += 1
            elif kind == WORD and value == "default":
                row.append(Default(at))
                position += 1
            else:
                cursor.position = position
                row.append(expression(cursor))
                position = cursor.position
            follows = values[position] if kinds[position] == OPERATOR else ""
            position += 1
            if follows == ")":
                break
            if follows != ",":
                cursor.position = position - 1
                raise cursor.unexpected("',' or ')'")
        rows.append(tuple(row))
        if kinds[position] != OPERATOR or values[position] != ",":
            cursor.position = position
            return tuple(rows)
        position += 1


def _negative(cursor: Cursor, at: int) -> Constant | None:
    position = cursor.position
    if not cursor.is_operator("-") or cursor.kinds[position + 1] != NUMBER:
        return None
    if cursor.kinds[position + 2] != OPERATOR or cursor.values[position + 2] not in (",", ")"):
        return None
    cursor.position += 2
    return Constant(at, NUMBER, "-" + cursor.values[position + 1])


def _conflict(cursor: Cursor) -> Conflict | None:
    at = cursor.at
    if not cursor.take("on"):
        return None
    cursor.expect("conflict")
    columns, constraint = None, None
    if cursor.is_operator("("):
        columns = cursor.columns()
        if cursor.word == "where":
            raise cursor.unsupported("partial indexes are")
    elif cursor.take("on"):
        cursor.expect("constraint")
        constraint = cursor.identifier("a constraint")
    cursor.expect("do")
    if cursor.take("nothing"):
        return Conflict(at, columns, constraint)
    cursor.expect("update")
    if columns is None and constraint is None:
        raise refuse(cursor.text, at, "ON CONFLICT DO UPDATE needs the columns of a key: ON CONFLICT (id)")
    cursor.expect("set")
    changes = _assignments(cursor)
    where = expression(cursor) if cursor.take("where") else None
    return Conflict(at, columns, constraint, changes, where)


def returning(cursor: Cursor) -> tuple[Item, ...]:
    """Read RETURNING, if it comes next."""
    return select_list(cursor) if cursor.take("returning") else ()


def update(cursor: Cursor) -> Update:
    """Read UPDATE."""
    at = cursor.at
    cursor.expect("update")
    table = table_reference(cursor)
    cursor.expect("set")
    changes = _assignments(cursor)
    source = from_list(cursor) if cursor.take("from") else None
    where = expression(cursor) if cursor.take("where") else None
    return Update(at, table, changes, where, returning(cursor), source)


def _assignments(cursor: Cursor) -> tuple[Assignment, ...]:
    changes = _assignment(cursor)
    while cursor.take_operator(","):
        changes += _assignment(cursor)
    return tuple(changes)


def _assignment(cursor: Cursor) -> list[Assignment]:
    if cursor.is_operator("("):
        return _several(cursor)
    column = _assigned(cursor)
    cursor.expect_operator("=")
    return [Assignment(column, _value(cursor))]


def _assigned(cursor: Cursor) -> ColumnName:
    column = cursor.column()
    if cursor.is_operator("."):
        raise cursor.unexpected("'=' (the column stands without its table)")
    return column


def _several(cursor: Cursor) -> list[Assignment]:
    """Read `(a, b) = (1, 2)`."""
    columns = cursor.columns()
    cursor.expect_operator("=")
    cursor.take("row")
    at = cursor.at
    cursor.expect_operator("(")
    if cursor.word == "select":
        raise cursor.unsupported("subqueries are")
    values = [_value(cursor)]
    while cursor.take_operator(","):
        values.append(_value(cursor))
    cursor.expect_operator(")")
    if len(values) != len(columns):
        raise refuse(cursor.text, at, f"{len(columns)} columns, but {len(values)} values")
    return [Assignment(column, value) for column, value in zip(columns, values, strict=True)]


def _value(cursor: Cursor) -> Value:
    at = cursor.at
    return Default(at) if not cursor.is_namespace and cursor.take("default") else expression(cursor)


def delete(cursor: Cursor) -> Delete:
    """Read DELETE."""
    at = cursor.at
    cursor.expect("delete", "from")
    table = table_reference(cursor)
    source = from_list(cursor) if cursor.take("using") else None
    where = expression(cursor) if cursor.take("where") else None
    return Delete(at, table, where, returning(cursor), source)


_CHANGES: Final[dict[str, Callable[[Cursor], Insert | Update | Delete]]] = {
    "insert": insert, "update": update, "delete": delete,
}  # fmt: skip
