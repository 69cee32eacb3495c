"""Calls between the node of a connection and the owner of SQL's shard, about the session of that connection."""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from topics_service.api.sql.requests import SqlResult
from topics_service.api.sql.session import Status
from topics_service.engine.errors import TopicsError
from topics_service.engine.tables.model import DEFAULT_NAMESPACE
from topics_service.engine.tables.types import Type, Value


class SessionState(Struct, kw_only=True, omit_defaults=True):
    """The session as the node of its connection knows it: `number` is its own there, `lease` that of the node.

    `is_open`: a transaction is open, which the owner has unless `is_lost`; `is_failed`: it can only be rolled back.
    `pages` are the results of which the connection wants more rows.
    """

    lease: str
    number: int
    namespace: str = DEFAULT_NAMESPACE
    timeout_seconds: float
    is_read_only: bool = False
    is_open: bool = False
    is_lost: bool = False
    is_failed: bool = False
    pages: list[int] = []


class SessionStatement(Struct, kw_only=True, omit_defaults=True):
    """A statement; see `SqlSession.execute`. With `rows` it is an INSERT for each of them."""

    sql: str
    params: Sequence[Any] = ()
    rows: Sequence[Sequence[Any]] | None = None
    given: tuple[Type | None, ...] = ()
    size: int = 0
    in_batch: bool = False
    paged: bool = False


class SessionReply(Struct, kw_only=True, omit_defaults=True):
    """The outcome of a call, and the session after it. `is_attached` False: the lease is none here; `is_known` False:
    it has no such transaction. Nothing has happened then.

    `is_kept`: the owner keeps the session until it is released; `pages` is the number of the rest of the rows, 0 for
    none.
    """

    is_attached: bool = True
    is_known: bool = True
    is_kept: bool = False
    status: Status = Status.IDLE
    is_implicit: bool = False
    namespace: str = DEFAULT_NAMESPACE
    kind: str = ""
    notice: str = ""
    result: SqlResult | None = None
    pages: int = 0
    error: TopicsError | None = None


class Page(Struct, kw_only=True, omit_defaults=True):
    """Rows of a result, none at its end. `is_known` False: the owner does not have it."""

    rows: Sequence[Sequence[Value]] = ()
    is_known: bool = True
    notice: str = ""
