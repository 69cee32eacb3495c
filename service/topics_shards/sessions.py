"""Sessions of SQL at a node that may not have SQL's shard: their statements run where it is.

The owner has a session only while a transaction or a result is under way. When the shard moves, an open transaction
ends with SQLSTATE 40001, and everything else continues at the new owner.
"""

import asyncio
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from decimal import Decimal
from typing import Any, Final

from topics_net import background
from topics_service.api.access.auth import Principal
from topics_service.api.sql.cancels import SessionCancels
from topics_service.api.sql.held import HeldSessions
from topics_service.api.sql.pointread import PointRead
from topics_service.api.sql.relaying import Page, SessionReply, SessionState, SessionStatement
from topics_service.api.sql.requests import SqlResult
from topics_service.api.sql.session import Answer, Described, Status
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.placement import SQL_SHARD
from topics_service.engine.tables.errors import sql_error
from topics_service.engine.tables.model import DEFAULT_NAMESPACE
from topics_service.engine.tables.types import Type, Value
from topics_service.statistics import PostgresStatistics
from topics_shards.shards import LostCallError, Shards

CONFLICT: Final = "40001"
UNKNOWN: Final = "40003"
"""The SQLSTATE of a statement that may have had its effect."""
_TRIES: Final = 8
_RETRY_SECONDS: Final = 0.1
_ROWS_BYTES: Final = 4 << 20  # of one call
_VALUE_BYTES: Final = 8
_MAX_BITS: Final = 63
_CANCEL_SECONDS: Final = 5.0
_MAX_CANCELS: Final = 64
_CHANCE_BITS: Final = 19  # of the number of a session; the others name its process
_PROCESSES: Final = 1 << 12
_WORD: Final = re.compile(r"\s*([a-zA-Z]+)")
_REPEATABLE: Final = frozenset({"select", "with", "values", "show", "describe", "explain", "consume", "begin", "start"})
"""First words of statements that may run twice."""
_OF_TRANSACTIONS: Final = _REPEATABLE | {"insert", "update", "delete", "savepoint", "release", "use"}
"""Those of statements that have had no effect if the transaction they were in is not committed."""
_COMMITTING: Final = frozenset({"commit", "end"})


class RelayedSessions:
    """See Sessions. Belongs to the event loop; `close` comes last."""

    def __init__(self, shards: Shards, limit_seconds: float, lost: "Counter[str]") -> None:
        """`limit_seconds` is the longest time of a statement; what is lost with its owner is counted in `lost`."""
        self.shards = shards
        self.limit_seconds = limit_seconds
        self.lost = lost
        self._numbers = itertools.count(1)
        self._lease = ""
        self._following: asyncio.Task[None] | None = None
        self._attached: asyncio.Future[str] | None = None
        self._work: set[asyncio.Task[None]] = set()

    def open(self, principal: Principal) -> "RelayedSession":
        """See Sessions."""
        return RelayedSession(self, principal, next(self._numbers))

    def is_current(self, lease: str) -> bool:
        """Return whether the owner still has the sessions of a lease, as far as is known."""
        return bool(lease) and lease == self._lease

    async def lease(self) -> str:
        """The lease of this process at the owner. Raises `not_ready`."""
        for left in reversed(range(_TRIES)):
            if self._lease:
                return self._lease
            if self._attached is None:
                self._attached = asyncio.get_running_loop().create_future()
                self._following = background.start(self._follow(self._attached))
            try:
                return await asyncio.shield(self._attached)
            except LostCallError:
                if not left:
                    raise _unreachable() from None
            await asyncio.sleep(_RETRY_SECONDS)
        raise _unreachable()

    def drop(self, lease: str) -> None:
        """Note that a lease is none any more."""
        if lease == self._lease and self._following is not None:
            self._lease, self._attached = "", None
            self._following.cancel()

    async def _follow(self, attached: "asyncio.Future[str]") -> None:
        """Hold a lease, as long as the shard is where it is."""
        lease = ""
        try:
            async with aclosing(self.shards.stream(SQL_SHARD, HeldSessions.attach)) as leases:
                async for lease in leases:
                    self._lease = lease
                    if not attached.done():
                        attached.set_result(lease)
        except (TopicsError, LostCallError) as error:
            if not attached.done():
                attached.set_exception(error)
                attached.exception()  # also if no call waits for it
        finally:
            if self._attached is attached:
                self._lease, self._attached = "", None
            if not attached.done():
                attached.set_exception(_unreachable())
                attached.exception()

    def release(self, lease: str, number: int, pages: list[int], principal: Principal) -> None:
        """Let the owner let go of results of a session, or of all of it, without waiting for that."""
        if self.is_current(lease):
            task = background.start(self._release(lease, number, pages, principal))
            self._work.add(task)
            task.add_done_callback(self._work.discard)

    async def _release(self, lease: str, number: int, pages: list[int], principal: Principal) -> None:
        with suppress(TopicsError, LostCallError):  # they end with the lease
            await self.shards.call(SQL_SHARD, HeldSessions.release, lease, number, pages, principal=principal)

    async def close(self) -> None:
        """Give the lease back, and with it all sessions."""
        tasks = [*self._work, *([] if self._following is None else [self._following])]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


class RelayedSession:
    """See Session."""

    def __init__(self, sessions: RelayedSessions, principal: Principal, number: int) -> None:
        self.namespace = DEFAULT_NAMESPACE
        self.timeout_seconds = sessions.limit_seconds
        self.is_read_only = False
        self.is_failed = False
        self.is_implicit = False
        self.has_transaction = False
        self._sessions = sessions
        self._principal = principal
        self._number = number
        self._lease = ""
        self._is_kept = False  # by the owner, as far as is known
        self._pages: set[int] = set()

    @property
    def limit_seconds(self) -> float:
        """See Session."""
        return self._sessions.limit_seconds

    @property
    def status(self) -> Status:
        """See Session."""
        if not self.has_transaction or self.is_implicit:
            return Status.IDLE
        return Status.FAILED if self.is_failed else Status.OPEN

    async def describe(self, sql: str, given: tuple[Type | None, ...] = ()) -> Described:
        """See Session."""
        for _ in range(_TRIES):
            try:
                return await self._sessions.shards.call(
                    SQL_SHARD, HeldSessions.describe, sql, given, self.namespace, principal=self._principal
                )
            except LostCallError:
                raise _unreachable() from None
            except TopicsError as error:
                if not _is_leaving(error):
                    raise
            await asyncio.sleep(_RETRY_SECONDS)
        raise _unreachable()

    async def execute(
        self,
        sql: str,
        params: Sequence[Any] = (),
        given: tuple[Type | None, ...] = (),
        *,
        size: int = 0,
        in_batch: bool = False,
        paged: bool = False,
    ) -> Answer:
        """See Session."""
        statement = SessionStatement(
            sql=sql, params=_carried(params), given=given, size=size, in_batch=in_batch, paged=paged
        )  # fmt: skip
        reply = await self._run(statement)
        rest = None
        if reply.pages:
            self._pages.add(reply.pages)
            rest = RelayedPages(self, self._lease, reply.pages)
        return Answer(reply.kind, reply.result or SqlResult(), reply.notice, rest)

    def point(self, sql: str, given: tuple[Type | None, ...] = ()) -> PointRead | None:
        """See Session: rows are not here."""
        return None

    async def insert(self, sql: str, rows: Sequence[Sequence[Any]]) -> int:
        """See Session."""
        count = 0
        for part in _parts(rows):
            reply = await self._run(SessionStatement(sql=sql, rows=list(map(_carried, part)), in_batch=True))
            count += 0 if reply.result is None else reply.result.row_count
        return count

    async def finish_batch(self) -> None:
        """See Session."""
        if self.is_implicit and self.has_transaction:
            await self._run(None)

    def fail(self) -> None:
        """See Session."""
        if self.is_implicit:
            self.rollback()
        elif self.has_transaction:
            self.is_failed = True

    def rollback(self) -> None:
        """See Session."""
        self.has_transaction = self.is_implicit = self.is_failed = False
        self._pages.clear()
        if self._is_kept:
            self._is_kept = False
            self._sessions.release(self._lease, self._number, [], self._principal)

    # ------------------------------------------------------------------------------------------------- internals

    async def _run(self, statement: SessionStatement | None) -> SessionReply:
        """Run a statement, or the end of a batch without one. Raises its error, and those of an owner that is gone."""
        word = "commit" if statement is None else _first_word(statement.sql)
        sessions = self._sessions
        method: Any = HeldSessions.finish
        arguments: tuple[SessionStatement, ...] = ()
        if statement is not None:
            is_repeatable = word in _REPEATABLE and not self.has_transaction
            method = HeldSessions.query if is_repeatable else HeldSessions.execute
            arguments = (statement,)
        for _ in range(_TRIES):
            is_lost = self.has_transaction and not sessions.is_current(self._lease)
            if is_lost and word == "rollback":
                self.is_failed = True  # the new owner begins one to roll back
            if is_lost and not self.is_failed:
                raise self._end_transaction(word)
            lease = await self._reached(word)
            state = self._state(lease, is_lost=is_lost)
            self._is_kept = True
            try:
                reply: SessionReply = await sessions.shards.call(
                    SQL_SHARD, method, state, *arguments, principal=self._principal
                )
            except LostCallError:
                if self.has_transaction and word == "rollback":
                    self._lease = ""
                    continue
                raise self._lost_call(word) from None
            except TopicsError as error:
                raise self._unsent(error, word) from None
            if reply.is_attached and reply.is_known and not _is_leaving(reply.error):
                return self._taken(reply)
            if reply.error is not None:  # a query or a change of rows had no effect, a definition may have had one
                if self.has_transaction or word not in _OF_TRANSACTIONS:
                    raise self._lost_call(word)
                reply.is_attached = False
            self._is_kept = False
            if not reply.is_attached:
                sessions.drop(lease)
                await asyncio.sleep(_RETRY_SECONDS)
            elif self.has_transaction:
                self._lease = ""
        raise self._unsent(_unreachable(), word)

    async def _reached(self, word: str) -> str:
        """The lease to call with. Raises `not_ready`."""
        try:
            lease = await self._sessions.lease()
        except TopicsError as error:
            raise self._unsent(error, word) from None
        if lease != self._lease:
            self._lease = lease
            self._pages.clear()
        return lease

    def _state(self, lease: str, *, is_lost: bool) -> SessionState:
        return SessionState(
            lease=lease,
            number=self._number,
            namespace=self.namespace,
            timeout_seconds=self.timeout_seconds,
            is_read_only=self.is_read_only,
            is_open=self.has_transaction,
            is_lost=is_lost,
            is_failed=self.is_failed,
            pages=list(self._pages),
        )

    def _taken(self, reply: SessionReply) -> SessionReply:
        """Be what the owner says. Raises the error of the statement."""
        self.namespace = reply.namespace
        self.is_implicit = reply.is_implicit
        self.has_transaction = reply.is_implicit or reply.status is not Status.IDLE
        self.is_failed = reply.status is Status.FAILED
        self._is_kept = reply.is_kept
        if reply.error is not None:
            raise reply.error
        return reply

    def _lose(self, kind: str, error: TopicsError) -> TopicsError:
        """Note that the owner is gone with the session; return the error that says so."""
        self._sessions.lost[kind] += 1
        self._lease = ""
        self.fail()
        return error

    def _end_transaction(self, word: str) -> TopicsError:
        """The error of a transaction that is gone with its owner. One that was to be committed is over."""
        message = "the transaction has ended, and nothing of it was written: SQL's shard has moved to another node"
        error = self._lose("transaction", sql_error(Reason.TRANSACTION_ERROR, message, sqlstate=CONFLICT))
        if word in _COMMITTING:
            self.rollback()
        return error

    def _lost_call(self, word: str) -> TopicsError:
        """The error of a call whose outcome is unknown: in a transaction it had none, unless it ended that."""
        if self.has_transaction and word in _OF_TRANSACTIONS:
            return self._end_transaction(word)
        message = "the node that ran the statement is gone: the statement may have taken effect, or not"
        error = self._lose("statement", sql_error(Reason.TRANSACTION_ERROR, message, sqlstate=UNKNOWN))
        if word in _COMMITTING:
            self.rollback()
        return error

    def _unsent(self, error: TopicsError, word: str) -> TopicsError:
        """The error of a call that has not begun: a transaction can't wait for its owner."""
        if self.has_transaction and not self.is_failed and error.reason is Reason.NOT_READY:
            return self._end_transaction(word)
        return error

    # ------------------------------------------------------------------------------------------------------ rows

    async def page(self, lease: str, number: int) -> Page:
        """The next rows of a result; none at its end."""
        sessions = self._sessions
        try:
            if sessions.is_current(lease):
                page = await sessions.shards.call(
                    SQL_SHARD, HeldSessions.page, self._state(lease, is_lost=False), number, principal=self._principal
                )
                if page.is_known:
                    if not page.rows:
                        self._pages.discard(number)
                    return page
        except LostCallError:
            pass
        except TopicsError as error:
            if not _is_leaving(error) and error.reason is not Reason.NOT_READY:
                raise
        message = "the node that has the rest of the rows is gone: run the query again"
        raise self._lose("rows", sql_error(Reason.TRANSACTION_ERROR, message, sqlstate=CONFLICT))

    def close_page(self, lease: str, number: int) -> None:
        """Let go of a result."""
        if number in self._pages and lease == self._lease:
            self._pages.discard(number)
            self._sessions.release(lease, self._number, [number], self._principal)


class RelayedPages:
    """See Rest."""

    def __init__(self, session: RelayedSession, lease: str, number: int) -> None:
        self._session = session
        self._lease = lease
        self._number = number
        self._is_over = False
        self._notice = ""

    async def next(self) -> Sequence[Sequence[Value]]:
        """See Rest."""
        if self._is_over:
            return ()
        page = await self._session.page(self._lease, self._number)
        self._is_over, self._notice = not page.rows, page.notice
        return page.rows

    def notice(self) -> str:
        """See Rest."""
        told, self._notice = self._notice, ""
        return told

    def close(self) -> None:
        """See Rest."""
        if not self._is_over:
            self._is_over = True
            self._session.close_page(self._lease, self._number)


class RelayedCancels:
    """See PassesOn."""

    def __init__(self, shards: Shards, others: Callable[[], Iterable[int]], statistics: PostgresStatistics) -> None:
        """`others` gives the numbers of the other processes that calls name."""
        self._shards = shards
        self._others = others
        self._statistics = statistics
        self._under_way = 0

    def number(self, chance: int) -> int:
        """See PassesOn."""
        return (self._shards.process % _PROCESSES) << _CHANCE_BITS | chance % (1 << _CHANCE_BITS)

    async def pass_on(self, pid: int, secret: bytes) -> None:
        """See PassesOn. Some processes of a large cluster share a name: all of these are asked."""
        name = pid >> _CHANCE_BITS
        base = self._shards.number_of(0)
        for number in [each for each in self._others() if (each - base) % _PROCESSES == name]:
            if self._under_way >= _MAX_CANCELS:
                return
            self._under_way += 1
            try:
                self._statistics.passed_on += 1
                with suppress(TopicsError, LostCallError, TimeoutError):
                    async with asyncio.timeout(_CANCEL_SECONDS):
                        await self._shards.call(number, SessionCancels.cancel, pid, secret)
            finally:
                self._under_way -= 1


def _is_leaving(error: TopicsError | None) -> bool:
    """Return whether the owner refused a call since the shard leaves it."""
    return error is not None and error.reason is Reason.SHUTTING_DOWN


def _first_word(sql: str) -> str:
    """The first word of a statement, which begins with it; none for a ROLLBACK to a savepoint."""
    match = _WORD.match(sql)
    word = "" if match is None else match[1].lower()
    return "" if word == "rollback" and "to" in sql.lower().split()[1:3] else word


def _carried(values: Sequence[Any]) -> Sequence[Any]:
    """Values as they can be sent: whole numbers of more than 64 bits as decimals."""
    return [Decimal(each) if each.__class__ is int and each.bit_length() > _MAX_BITS else each for each in values]


def _parts(rows: Sequence[Sequence[Any]]) -> Iterable[Sequence[Sequence[Any]]]:
    """Rows in the pieces of a call each."""
    start = nbytes = 0
    for at, row in enumerate(rows):
        size = sum(_VALUE_BYTES + (len(value) if isinstance(value, str | bytes) else 0) for value in row)
        if at > start and nbytes + size > _ROWS_BYTES:
            yield rows[start:at]
            start = at
            nbytes = 0
        nbytes += size
    if start < len(rows):
        yield rows[start:]


def _unreachable() -> TopicsError:
    return TopicsError(Reason.NOT_READY, "the node that runs SQL can't be reached: it starts, or is gone")
