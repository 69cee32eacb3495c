"""Requests and replies of the SQL calls."""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from topics_service.engine.tables.types import Type, Value


class SqlRequest(Struct, kw_only=True):
    """Statements to run in order (D13). With `param_rows` there is one statement, run for each row in one commit.

    Parameters are values of JSON or protobuf; their types come from the statement.
    """

    sql: str
    params: Sequence[Any] | None = None
    param_rows: Sequence[Sequence[Any]] | None = None
    namespace: str = "default"


class ResultColumn(Struct, frozen=True):
    """A column of a result."""

    name: str
    type: Type | None


class SqlResult(Struct, kw_only=True):
    """The result of one statement. Values are those of `engine.tables.types`; a protocol renders them."""

    columns: tuple[ResultColumn, ...] = ()
    rows: Sequence[Sequence[Value]] = ()
    row_count: int = 0
    message: str | None = None


class SqlReply(Struct, kw_only=True):
    """The results of all statements; with `error`, of those before the one that failed."""

    results: list[SqlResult]
    error: Exception | None = None
    took_ms: float = 0.0
