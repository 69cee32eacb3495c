"""Errors of statements: a reason with its SQLSTATE and, where it is known, its place in the text."""

from typing import Any, NamedTuple

from topics_service.engine.errors import Reason, TopicsError


class Place(NamedTuple):
    """A place in the text of a request; both count from 1."""

    line: int
    column: int


SQLSTATES = {
    Reason.SYNTAX_ERROR: "42601",
    Reason.UNSUPPORTED_SQL: "0A000",
    Reason.INVALID_REQUEST: "08P01",
    Reason.INVALID_VALUE: "22P02",
    Reason.COLUMN_NOT_FOUND: "42703",
    Reason.FUNCTION_NOT_FOUND: "42883",
    Reason.DIVISION_BY_ZERO: "22012",
    Reason.TRANSACTION_ERROR: "25P02",
    Reason.TABLE_NOT_FOUND: "42P01",
    Reason.NAMESPACE_NOT_FOUND: "3F000",
    Reason.TOPIC_NOT_FOUND: "42704",
    Reason.ROUTE_NOT_FOUND: "42704",
    Reason.INDEX_NOT_FOUND: "42704",
    Reason.USER_NOT_FOUND: "42704",
    Reason.PARTITION_NOT_FOUND: "42704",
    Reason.NOT_NULL_VIOLATION: "23502",
    Reason.CHECK_VIOLATION: "23514",
    Reason.UNIQUE_VIOLATION: "23505",
    Reason.ALREADY_EXISTS: "42P07",
    Reason.DEPENDENT_OBJECTS: "2BP01",
    Reason.TOPIC_FULL: "53400",
    Reason.RESULT_TOO_LARGE: "54000",
    Reason.RECORD_TOO_LARGE: "54000",
    Reason.QUERY_TIMEOUT: "57014",
    Reason.QUERY_TOO_LARGE: "53200",
    Reason.SCHEMA_CHANGED: "40001",
    Reason.CROSS_SHARD: "0A000",
    Reason.NOT_A_LOG: "42809",
    Reason.FORBIDDEN: "42501",
    Reason.UNAUTHORIZED: "28P01",
    Reason.THROTTLED: "53000",
    Reason.NOT_READY: "57P03",
    Reason.SHUTTING_DOWN: "57P01",
}
"""The SQLSTATE of a reason; an error may carry a more exact one in its detail."""


def sql_error(
    reason: Reason, message: str, *, sqlstate: str = "", place: Place | None = None, **facts: Any
) -> TopicsError:
    """Make an error whose detail holds `sqlstate`, the place and the facts."""
    detail: dict[str, Any] = {"sqlstate": sqlstate or SQLSTATES.get(reason, "XX000"), **facts}
    if place is not None:
        detail["line"], detail["column"] = place
    return TopicsError(reason, message, detail)


def invalid_value(
    message: str, *, out_of_range: bool = False, sqlstate: str = "", place: Place | None = None, **facts: Any
) -> TopicsError:
    """A value that does not fit its type (22P02) or its range (22003); `sqlstate` if there is a more exact one."""
    state = sqlstate or ("22003" if out_of_range else "22P02")
    return sql_error(Reason.INVALID_VALUE, message, sqlstate=state, place=place, **facts)
