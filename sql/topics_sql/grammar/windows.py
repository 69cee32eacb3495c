"""Windows: what stands behind OVER, and in the WINDOW clause."""

from typing import Final

from topics_sql.grammar.cursor import Cursor
from topics_sql.grammar.expressions import expression, order_by
from topics_sql.syntax import Frame, Tree, Window
from topics_sql.tokens import refuse

UNITS: Final = ("rows", "range", "groups")
EXCLUDED: Final = {"current": "current row", "group": "group", "ties": "ties", "no": "no others"}


def named_windows(cursor: Cursor) -> tuple[tuple[str, Window], ...]:
    """Read the windows of WINDOW."""
    found: dict[str, Window] = {}
    while True:
        at = cursor.at
        name = cursor.identifier("a name for the window")
        if name in found:
            raise refuse(cursor.text, at, f"the window {name} is given twice", sqlstate="42P20")
        cursor.expect("as")
        found[name] = window(cursor)
        if not cursor.take_operator(","):
            return tuple(found.items())


def over(cursor: Cursor) -> Window:
    """Read what stands behind OVER: a name or a window."""
    at = cursor.at
    if not cursor.is_operator("("):
        return Window(at, cursor.identifier("a window"))
    return window(cursor)


def window(cursor: Cursor) -> Window:
    """Read a window in parentheses."""
    at = cursor.at
    cursor.expect_operator("(")
    base = None
    if cursor.word not in ("partition", "order", *UNITS) and not cursor.is_operator(")"):
        base = cursor.identifier("a window")
    partition: list[Tree] = []
    if cursor.take("partition"):
        cursor.expect("by")
        partition.append(expression(cursor))
        while cursor.take_operator(","):
            partition.append(expression(cursor))
    order = order_by(cursor)
    frame = _frame(cursor) if cursor.word in UNITS else None
    cursor.expect_operator(")")
    return Window(at, base, tuple(partition), order, frame)


def _frame(cursor: Cursor) -> Frame:
    at, unit = cursor.at, cursor.word
    cursor.position += 1
    if cursor.take("between"):
        start, start_rows = _end(cursor)
        cursor.expect("and")
        end, end_rows = _end(cursor)
    else:
        start, start_rows = _end(cursor)
        end, end_rows = "current row", None
    exclude = ""
    if cursor.take("exclude"):
        exclude = EXCLUDED.get(cursor.word, "")
        if not exclude:
            raise cursor.unexpected("CURRENT ROW, GROUP, TIES or NO OTHERS")
        cursor.expect(*exclude.split())
    return Frame(at, unit, start, end, start_rows, end_rows, exclude)


def _end(cursor: Cursor) -> tuple[str, Tree | None]:
    if cursor.take("current"):
        cursor.expect("row")
        return "current row", None
    rows = None if cursor.take("unbounded") else expression(cursor)
    if not cursor.take("preceding"):
        cursor.expect("following")
        return ("unbounded following", None) if rows is None else ("following", rows)
    return ("unbounded preceding", None) if rows is None else ("preceding", rows)
