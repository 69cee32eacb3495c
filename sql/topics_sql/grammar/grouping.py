"""The list behind GROUP BY: expressions, GROUPING SETS, ROLLUP and CUBE."""

from itertools import combinations
from typing import Final

from topics_service.engine.errors import Reason
from topics_sql.grammar.cursor import Cursor
from topics_sql.grammar.expressions import descend, expression
from topics_sql.syntax import Tree
from topics_sql.tokens import refuse

MAX_SETS: Final = 4096
MAX_CUBE: Final = 12
"""Elements of CUBE, as in PostgreSQL."""

Set = tuple[Tree, ...]


def grouping(cursor: Cursor) -> tuple[tuple[Tree, ...], tuple[Set, ...]]:
    """Read the keys, and the sets of them if there is more than one."""
    if cursor.word in ("all", "distinct"):
        raise cursor.unsupported(f"GROUP BY {cursor.word.upper()} is")
    at = cursor.at
    sets: list[Set] = [()]
    plain = True
    while True:
        found = _sets(cursor)
        if found is None:
            found = [(expression(cursor),)]
        else:
            plain = False
        if len(sets) * len(found) > MAX_SETS:
            raise _too_many(cursor, at)
        sets = [(*left, *right) for left in sets for right in found]
        if not cursor.take_operator(","):
            break
    keys = {id(tree): tree for each in sets for tree in each}
    return tuple(keys.values()), () if plain else tuple(sets)


def _sets(cursor: Cursor) -> list[Set] | None:
    """Read ROLLUP, CUBE, GROUPING SETS or `()`; None for an expression."""
    at = cursor.at
    if cursor.are_operators(0, "(", ")"):
        cursor.position += 2
        return [()]
    if cursor.word in ("rollup", "cube") and cursor.are_operators(1, "("):
        word = cursor.word
        cursor.position += 1
        parts = _elements(cursor)
        if word == "rollup":
            return [_joined(parts[:count]) for count in range(len(parts), -1, -1)]
        if len(parts) > MAX_CUBE:
            raise refuse(cursor.text, at, f"CUBE has at most {MAX_CUBE} elements", Reason.INVALID_REQUEST, "54011")
        return [_joined(chosen) for count in range(len(parts), -1, -1) for chosen in combinations(parts, count)]
    if cursor.word != "grouping" or cursor.word_after() != "sets":
        return None
    cursor.position += 2
    descend(cursor)
    found: list[Set] = []
    cursor.expect_operator("(")
    while True:
        found += _sets(cursor) or [_element(cursor)]
        if len(found) > MAX_SETS:
            raise _too_many(cursor, at)
        if not cursor.take_operator(","):
            break
    cursor.expect_operator(")")
    cursor.depth -= 1
    return found


def _elements(cursor: Cursor) -> list[Set]:
    cursor.expect_operator("(")
    found = [_element(cursor)]
    while cursor.take_operator(","):
        found.append(_element(cursor))
    cursor.expect_operator(")")
    return found


def _element(cursor: Cursor) -> Set:
    """Read an expression, or several in parentheses."""
    position, depth = cursor.position, cursor.depth
    if cursor.take_operator("("):
        found = [expression(cursor)]
        while cursor.take_operator(","):
            found.append(expression(cursor))
        cursor.expect_operator(")")
        if cursor.is_operator(",") or cursor.is_operator(")"):
            return tuple(found)
        cursor.position, cursor.depth = position, depth
    return (expression(cursor),)


def _joined(parts: "list[Set] | tuple[Set, ...]") -> Set:
    return tuple(tree for part in parts for tree in part)


def _too_many(cursor: Cursor, at: int) -> Exception:
    return refuse(cursor.text, at, f"GROUP BY has more than {MAX_SETS} sets", Reason.INVALID_REQUEST, "54001")
