"""Statements about views."""

from topics_sql.grammar.cursor import Cursor
from topics_sql.grammar.queries import query
from topics_sql.syntax import CreateView, DropView
from topics_sql.tokens import PARAMETER, refuse


def create_view(cursor: Cursor, at: int, *, replace: bool) -> CreateView:
    """Read what follows CREATE VIEW."""
    name = cursor.object_name("a view")
    columns: list[str] = []
    if cursor.take_operator("("):
        columns.append(cursor.label("a column"))
        while cursor.take_operator(","):
            columns.append(cursor.label("a column"))
        cursor.expect_operator(")")
    cursor.expect("as")
    start, first = cursor.at, cursor.position
    found = query(cursor)
    for place in range(first, cursor.position):
        if cursor.kinds[place] == PARAMETER:
            raise refuse(cursor.text, cursor.starts[place], "a view takes no parameters", sqlstate="42P02")
    return CreateView(at, name, tuple(columns), found, cursor.text[start : cursor.at].strip(), replace)


def drop_view(cursor: Cursor, at: int) -> DropView:
    """Read what follows DROP VIEW."""
    if_exists = cursor.if_exists()
    name = cursor.object_name("a view")
    if cursor.is_operator(","):
        raise cursor.unsupported("several names in one statement are")
    return DropView(at, name, if_exists, cursor.cascade())
