"""Errors as clients of PostgreSQL get them: SQLSTATE, message, place."""

from typing import Final, NamedTuple

from topics_service.engine.errors import TopicsError
from topics_service.engine.tables.errors import SQLSTATES

PROTOCOL_VIOLATION: Final = "08P01"
CANCELED: Final = "57014"
_HINTS: Final = {"0A000": "docs/postgres.md has the list."}
_NAMES: Final = (("t", "table"), ("c", "column_name"), ("n", "constraint"))


class MalformedError(Exception):
    """A message that is not of the protocol. The connection ends with it."""


class PgError(Exception):
    """An error of a statement. `position` is the character in the text of the client, from 1; 0 if it is not known."""

    def __init__(self, sqlstate: str, message: str, *, position: int = 0, detail: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.sqlstate = sqlstate
        self.message = message
        self.position = position
        self.detail = detail
        self.hint = hint
        self.names: list[tuple[str, str]] = []


class FatalError(PgError):
    """An error that ends the connection."""


class Piece(NamedTuple):
    """One statement of a text, and where it begins there."""

    text: str
    start: int


def from_topics(error: TopicsError, piece: Piece | None = None) -> PgError:
    """An error of the API. Its line and column are those in the piece."""
    detail = error.detail if isinstance(error.detail, dict) else {}
    sqlstate = str(detail.get("sqlstate") or SQLSTATES.get(error.reason, "XX000"))
    position = 0
    if piece is not None and "line" in detail:
        position = piece.start + offset_of(piece.text, int(detail["line"]), int(detail["column"])) + 1
    made = PgError(sqlstate, error.message, position=position, hint=_HINTS.get(sqlstate, ""))
    made.names = [(field, str(detail[name])) for field, name in _NAMES if detail.get(name)]
    return made


def offset_of(text: str, line: int, column: int) -> int:
    """The offset of a line and column, both from 1."""
    start = 0
    for _ in range(line - 1):
        start = text.find("\n", start) + 1
    return min(start + column - 1, len(text))
