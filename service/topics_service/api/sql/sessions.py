"""Sessions of SQL as the protocol of a connection uses them, wherever their statements run."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from topics_service.api.access.auth import Principal
from topics_service.api.sql.cancels import PassesOn, SessionCancels
from topics_service.api.sql.executor import SqlApi
from topics_service.api.sql.session import SqlSession, Transactions

if TYPE_CHECKING:
    from topics_service.api.sql.pointread import PointRead
    from topics_service.api.sql.session import Answer, Described, Status
    from topics_service.engine.tables.types import Type


class Session(Protocol):
    """Runs statements of one caller, one call at a time; see SqlSession."""

    namespace: str
    timeout_seconds: float
    is_read_only: bool

    @property
    def limit_seconds(self) -> float:
        """The longest time that a statement may take."""
        ...

    @property
    def status(self) -> "Status":
        """The state of the transaction that the caller has begun."""
        ...

    @property
    def is_failed(self) -> bool:
        """Return whether the transaction can only be rolled back."""
        ...

    @property
    def is_implicit(self) -> bool:
        """Return whether the transaction is one that `finish_batch` commits."""
        ...

    @property
    def has_transaction(self) -> bool:
        """Return whether there is a transaction, of either kind."""
        ...

    async def describe(self, sql: str, given: "tuple[Type | None, ...]" = ()) -> "Described":
        """Read one statement; see SqlSession."""
        ...

    async def execute(
        self,
        sql: str,
        params: Sequence[Any] = (),
        given: "tuple[Type | None, ...]" = (),
        *,
        size: int = 0,
        in_batch: bool = False,
        paged: bool = False,
    ) -> "Answer":
        """Run one statement; see SqlSession."""
        ...

    def point(self, sql: str, given: "tuple[Type | None, ...]" = ()) -> "PointRead | None":
        """The quick form of a statement, if it has one here; see SqlSession."""
        ...

    async def insert(self, sql: str, rows: Sequence[Sequence[Any]]) -> int:
        """Run an INSERT for many rows; see SqlSession."""
        ...

    async def finish_batch(self) -> None:
        """Commit the statements of a batch; see SqlSession."""
        ...

    def fail(self) -> None:
        """Note that a call failed; see SqlSession."""
        ...

    def rollback(self) -> None:
        """Forget the transaction. A session that ends must call it."""
        ...


class Sessions(Protocol):
    """Opens sessions."""

    def open(self, principal: Principal) -> Session:
        """Open the session of a caller."""
        ...


class OwnSessions:
    """Sessions whose statements run in this process."""

    def __init__(self, api: SqlApi) -> None:
        self.api = api
        self.transactions = Transactions()

    def open(self, principal: Principal) -> SqlSession:
        """See Sessions."""
        return SqlSession(self.api, principal, self.transactions)


class SessionParts(NamedTuple):
    """The sessions of SQL for a listener. `own_cancels` takes the requests to cancel statements of its connections from
    other processes, `cancels` passes on those for connections of others, where there are any."""

    sessions: Sessions
    own_cancels: SessionCancels
    cancels: PassesOn | None = None
