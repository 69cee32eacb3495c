"""Cursors and prepared statements as statements: DECLARE, FETCH, MOVE, PREPARE and EXECUTE, read from tokens."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from topics_postgres.catalog.types import TYPES, long_name
from topics_postgres.errors import Piece
from topics_sql.tokens import NUMBER, OPERATOR, STRING, WORD

if TYPE_CHECKING:
    from topics_postgres.statements import _Words

    Inner = Callable[[_Words], Any]

MAX_ARGUMENTS: Final = 1000


class Declare(Struct, frozen=True):
    """DECLARE of a cursor for a query."""

    piece: Piece
    name: str
    query: Any


class Fetch(Struct, frozen=True):
    """FETCH or MOVE: the next rows of a cursor, all that are left if `count` is None."""

    piece: Piece
    name: str
    count: int | None
    is_move: bool


class Prepare(Struct, frozen=True):
    """PREPARE of a statement, with the OIDs that are given for its parameters."""

    piece: Piece
    name: str
    oids: tuple[int, ...]
    statement: Any
    sql: str


class Execute(Struct, frozen=True):
    """EXECUTE of a prepared statement with values as texts, None for NULL."""

    piece: Piece
    name: str
    values: tuple[str | None, ...]


_QUERY: Final = frozenset({"select", "with", "values", "table", "consume"})
_TYPE_NAMES: Final = {
    **{each.name: each.oid for each in TYPES.values()},
    **{long_name(each): each.oid for each in TYPES.values()},
    "int": 23, "decimal": 1700, "float": 701, "double": 701, "bytes": 17, "string": 25,
}  # fmt: skip


def _declare(words: "_Words", inner: "Inner") -> Declare:
    words.at += 1
    name = words.name()
    if words.take("binary"):
        raise words.refused("BINARY cursors are not supported: FETCH takes the format of its message")
    if not words.take("insensitive"):
        words.take("asensitive")
    if words.take("scroll"):
        raise words.refused("cursors move forward only: SCROLL is not supported")
    words.take("no", "scroll")
    if not words.take("cursor"):
        raise words.unexpected("CURSOR")
    if words.take("with", "hold"):
        raise words.refused("a cursor ends with its transaction: WITH HOLD is not supported")
    words.take("without", "hold")
    if not words.take("for"):
        raise words.unexpected("FOR")
    if words.at_end or (words.word not in _QUERY and words.value != "("):
        raise words.unexpected("a query")
    return Declare(words.piece, name, inner(type(words)(words.tokens, words.at, words.last)))


def _fetch(words: "_Words", inner: "Inner") -> Fetch:
    is_move = words.word == "move"
    words.at += 1
    count: int | None = 1
    if words.word in ("prior", "first", "last", "absolute", "backward") and not _is_name(words):
        raise words.refused("cursors move forward only", "55000")
    if words.take("all"):
        count = None
    elif words.kind == NUMBER:
        count = _count(words)
    elif not _is_name(words):
        if words.take("forward"):
            count = None if words.take("all") else _count(words) if words.kind == NUMBER else 1
        elif words.take("relative"):
            count = _count(words)
        else:
            words.take("next")
    if not words.take("from"):
        words.take("in")
    name = words.name()
    words.expect_end()
    return Fetch(words.piece, name, count, is_move)


def _is_name(words: "_Words") -> bool:
    """Return whether the next word is the name of the cursor, for it is the last."""
    return words.at + 1 >= words.last


def _count(words: "_Words") -> int:
    if words.kind != NUMBER or not words.value.isdecimal() or len(words.value) > 18 or not int(words.value):
        raise words.unexpected("a number of rows above 0")
    found = int(words.value)
    words.at += 1
    return found


def _prepare(words: "_Words", inner: "Inner") -> Prepare:
    words.at += 1
    if words.take("transaction"):
        raise words.refused("PREPARE TRANSACTION is not supported")
    name = words.name()
    oids: list[int] = []
    if words.operator("("):
        while True:
            oids.append(_type(words))
            if not words.operator(","):
                break
        if not words.operator(")"):
            raise words.unexpected(")")
    if not words.take("as"):
        raise words.unexpected("AS")
    if words.at_end:
        raise words.unexpected("a statement")
    rest = type(words)(words.tokens, words.at, words.last)
    return Prepare(words.piece, name, tuple(oids), inner(rest), rest.piece.text)


def _type(words: "_Words") -> int:
    """The OID of a type, which may have several words, or a length."""
    parts = [words.name()]
    while words.kind == WORD:
        parts.append(words.name())
    if words.operator("("):
        while not words.operator(")"):
            if words.at_end:
                raise words.unexpected(")")
            words.at += 1
    suffix = ""
    if words.operator("["):
        if not words.operator("]"):
            raise words.unexpected("]")
        suffix = "[]"
    name = " ".join(parts).lower().removeprefix("pg_catalog.")
    known = _TYPE_NAMES.get(name)
    if known is not None and suffix:
        known = TYPES[known].array or None
    if known is None:
        raise words.refused(f'type "{(name + suffix)[:80]}" does not exist', "42704")
    return known


def _execute(words: "_Words", inner: "Inner") -> Execute:
    words.at += 1
    name = words.name()
    values: list[str | None] = []
    if words.operator("("):
        while not words.operator(")"):
            if values and not words.operator(","):
                raise words.unexpected(")")
            if len(values) == MAX_ARGUMENTS:
                raise words.refused(f"EXECUTE has more than {MAX_ARGUMENTS} values", "54000")
            values.append(_literal(words))
    words.expect_end()
    return Execute(words.piece, name, tuple(values))


def _literal(words: "_Words") -> str | None:
    """A value in the text."""
    if words.take("null"):
        return None
    sign = "-" if words.operator("-") else ""
    is_value = words.kind == NUMBER if sign else words.kind in (NUMBER, STRING) or words.word in ("true", "false")
    if not is_value:
        raise words.refused("EXECUTE takes values in the text: numbers, strings, TRUE, FALSE and NULL")
    found = words.value
    words.at += 1
    if words.kind == OPERATOR and words.value == "::":
        words.at += 1
        _type(words)
    return sign + found


RULES: Final[dict[str, "Callable[[_Words, Inner], Any]"]] = {
    "declare": _declare,
    "fetch": _fetch,
    "move": _fetch,
    "prepare": _prepare,
    "execute": _execute,
}
"""By the first word of a statement."""
