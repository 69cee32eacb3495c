"""Statements of one connection: transactions over several calls, which hold no lock between these.

A transaction reads what is committed and its own changes. Its commit fails with SQLSTATE 40001 if somebody has changed
the same rows, or the definition of one of its tables, in the meantime.
"""

import asyncio
import time
from collections.abc import Generator, Sequence
from enum import Enum
from typing import Any, Final, Protocol, TypeVar, cast

from msgspec import Struct

from topics_service.api.access.auth import Principal
from topics_service.api.sql import pointread
from topics_service.api.sql.executor import Run, SqlApi
from topics_service.api.sql.outcomes import (
    ACKNOWLEDGED,
    MESSAGE,
    PLAN,
    lost,
    message_of,
    outputs_of,
    placed,
    topics_of,
)
from topics_service.api.sql.plancache import MAX_TEXT
from topics_service.api.sql.pointread import PointRead
from topics_service.api.sql.requests import ResultColumn, SqlRequest, SqlResult
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.tables import plans
from topics_service.engine.tables.errors import sql_error
from topics_service.engine.tables.model import DEFAULT_NAMESPACE
from topics_service.engine.tables.optimistic import OptimisticTransaction
from topics_service.engine.tables.outcomes import TopicGap
from topics_service.engine.tables.types import Type, Value

T = TypeVar("T")

PAGE_ROWS: Final = 1000
"""Rows of a page."""
PAGE_BYTES: Final = 1 << 20
"""The bytes of texts after which a page ends."""
MAX_SESSION_BYTES: Final = 256 << 20
"""The bytes of all transactions over several calls together."""
_READ_ONLY: Final = "25006"
_FAILED: Final = "25P02"
_OUT_OF_MEMORY: Final = "53200"


class Status(Enum):
    """The state of a session between calls."""

    IDLE = "idle"
    OPEN = "open"
    FAILED = "failed"


class Described(Struct, frozen=True):
    """A statement that may run: the kind of its plan, the types of its parameters and its columns, None for no rows."""

    kind: str
    parameters: tuple[Type | None, ...]
    columns: tuple[ResultColumn, ...] | None
    given: tuple[Type | None, ...]
    """Those of the caller's types that the statement needs, for `execute`."""


class Rest(Protocol):
    """Rows of a result that are still to come."""

    async def next(self) -> Sequence[Sequence[Value]]:
        """The next page; an empty one is the end."""
        ...

    def notice(self) -> str:
        """A notice for the caller from the pages since the last call; empty for none."""
        ...

    def close(self) -> None:
        """Let go of the rows. Idempotent."""
        ...


class Pages:
    """The rows of a query behind the first page. They are of one moment, which the store keeps until `close`."""

    def __init__(self, statement: "_Statement", rows: Generator[Any, None, None], gaps: list[TopicGap]) -> None:
        self._statement = statement
        self._rows = rows
        self._gaps = gaps
        self._told = len(gaps)

    def notice(self) -> str:
        """See Rest."""
        told, self._told = self._told, len(self._gaps)
        return lost(self._gaps[told:])

    async def next(self) -> list[Sequence[Value]]:
        """The next page; an empty one is the end. Raises `query_timeout` and the errors of expressions."""
        try:
            return await self._statement.page(self._rows)
        except TopicsError as error:
            raise placed(error) from None

    def close(self) -> None:
        """Let go of the rows. Idempotent."""
        self._rows.close()


class Answer(Struct, frozen=True):
    """The result of a statement. `notice` is a warning for the caller; `pages` has the rest of the rows."""

    kind: str
    result: SqlResult
    notice: str = ""
    pages: Rest | None = None


class Transactions:
    """The transactions of all sessions, within one bound of memory."""

    def __init__(self, max_bytes: int = MAX_SESSION_BYTES) -> None:
        self.nbytes = 0
        self._max_bytes = max_bytes

    def grown(self, by: int) -> None:
        """Count more bytes, or fewer. Raises `result_too_large`."""
        self.nbytes += by
        if by > 0 and self.nbytes > self._max_bytes:
            message = f"the open transactions of all sessions hold more than {self._max_bytes} bytes"
            raise sql_error(Reason.RESULT_TOO_LARGE, message, sqlstate=_OUT_OF_MEMORY)


class SqlSession:
    """Runs statements of one caller, one call at a time. Cancelling a call undoes what the statement has changed."""

    def __init__(self, api: SqlApi, principal: Principal, transactions: Transactions) -> None:
        self.api = api
        self.principal = principal
        self.namespace = DEFAULT_NAMESPACE
        self.timeout_seconds = api.timeout_seconds
        self.is_read_only = False
        """Refuse changes, in a transaction or as long as it is set."""
        self.transaction: OptimisticTransaction | None = None
        self.is_failed = False
        self._is_implicit = False
        self._transactions = transactions
        self._counted = 0

    @property
    def limit_seconds(self) -> float:
        """The longest time that a statement may take."""
        return self.api.timeout_seconds

    @property
    def has_transaction(self) -> bool:
        """Return whether there is a transaction, of either kind."""
        return self.transaction is not None

    @property
    def status(self) -> Status:
        """The state of the transaction that the caller has begun."""
        if self.transaction is None or self._is_implicit:
            return Status.IDLE
        return Status.FAILED if self.is_failed else Status.OPEN

    async def describe(self, sql: str, given: tuple[Type | None, ...] = ()) -> Described:
        """Read one statement. `given` are the types of parameters for which the text has none."""
        run = self._run(SqlRequest(sql=sql))
        plan = await run.planned(sql)
        if any(kind is not None for kind in given) and None in plan.parameters:
            open_ones = zip(given, plan.parameters, strict=False)
            run.given = tuple(kind if found is None else None for kind, found in open_ones)
            plan = await run.planned(sql)
        return Described(type(plan.action).__name__, plan.parameters, columns_of(plan.action), run.given)

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
        """Run one statement. `paged`: of many rows the first come with the answer.

        `in_batch`: others follow that `finish_batch` commits together with it, unless a transaction is open. An error
        of one undoes all of them.
        """
        run = self._run(SqlRequest(sql=sql, params=params, namespace=self.namespace, size=size))
        run.given = given
        return await run.only(in_batch=in_batch, paged=paged)

    def point(self, sql: str, given: tuple[Type | None, ...] = ()) -> PointRead | None:
        """The quick form of a statement that `execute` has run, if it reads one row by its key; None for any other.

        Raises as `execute`.
        """
        run = self._run(SqlRequest(sql=sql))
        run.given = given
        plan = run.planned_at_once(sql)
        return None if plan is None else pointread.made(self, plan)

    async def insert(self, sql: str, rows: Sequence[Sequence[Any]]) -> int:
        """Run an INSERT for many rows of parameters, in the open transaction; return the number of rows."""
        run = self._run(SqlRequest(sql=sql, param_rows=rows, namespace=self.namespace))
        answer = await run.only(in_batch=True)
        return answer.result.row_count

    async def finish_batch(self) -> None:
        """Commit the statements of a batch. Raises the error of the commit: none of them took effect then."""
        if self._is_implicit and self.transaction is not None:
            await self._run(SqlRequest(sql="")).commit_now()

    def fail(self) -> None:
        """Note that a call failed: the transaction can only be rolled back. A batch is rolled back at once."""
        if self._is_implicit:
            self.rollback()
        elif self.transaction is not None:
            self.is_failed = True

    def rollback(self) -> None:
        """Forget the transaction, if there is one. A session that ends must call it."""
        if self.transaction is not None:
            self.transaction.rollback()
        self.over()

    def begin(self, *, implicit: bool) -> None:
        """Begin a transaction. Raises `not_ready` and others when the server takes no writes."""
        self.transaction = self.api.tables.begin_optimistic()
        self._is_implicit = implicit

    def over(self) -> None:
        """Note that the transaction is over."""
        self.transaction, self.is_failed, self._is_implicit = None, False, False
        counted, self._counted = self._counted, 0
        self._transactions.grown(-counted)

    def count(self) -> None:
        """Count the memory of the transaction. Raises `result_too_large`."""
        nbytes = 0 if self.transaction is None else self.transaction.nbytes
        by, self._counted = nbytes - self._counted, nbytes
        self._transactions.grown(by)

    @property
    def is_implicit(self) -> bool:
        """Return whether the transaction is one that `finish_batch` commits."""
        return self._is_implicit

    def _run(self, request: SqlRequest) -> "_Statement":
        return _Statement(self, request)


class _Statement(Run):
    """One statement of a session."""

    def __init__(self, session: SqlSession, request: SqlRequest) -> None:
        super().__init__(session.api, request, session.principal)
        self._session = session
        self._namespace = session.namespace
        self._in_batch = False
        self._is_paged = False
        self._pages: Pages | None = None
        self._has_more = False
        self._notice = ""

    async def planned(self, sql: str) -> plans.Plan:
        """Parse the statement and bind it. Raises the errors of both, with their places, and `forbidden`."""
        self._is_long = len(sql) > MAX_TEXT
        try:
            await self._read_text(sql)
            plan = await asyncio.to_thread(self._plan) if self._is_long else self._plan()
            self._authorize(plan.action)
            return plan
        except TopicsError as error:
            raise placed(error) from None

    def planned_at_once(self, sql: str) -> plans.Plan | None:
        """The plan of a statement as `planned` makes it; None for a text that is too long to be kept."""
        if self._is_long:
            return None
        self._script = self._api.plans.read(sql)
        plan = self._plan()
        self._authorize(plan.action)
        return plan

    async def _read_text(self, sql: str) -> None:
        self._api.admit()
        read = self._api.plans.read
        self._script = await asyncio.to_thread(read, sql) if self._is_long else read(sql)
        if len(self._script.statements) != 1:
            raise sql_error(Reason.SYNTAX_ERROR, "there must be one statement in the text")

    async def only(self, *, in_batch: bool, paged: bool = False) -> Answer:
        """Run the statement."""
        session = self._session
        self._in_batch, self._is_paged = in_batch, paged
        self._deadline = time.monotonic() + session.timeout_seconds
        try:
            await self._read_text(self._request.sql)
            action = self._plan().action if not self._is_long else (await asyncio.to_thread(self._plan)).action
            self._check(action)
            self._transaction = session.transaction
            result = await self._statement()
        except TopicsError as error:
            session.fail()
            self._api.statistics.failed += 1
            raise placed(error) from None
        except BaseException:
            session.fail()
            raise
        session.namespace = self._namespace
        return Answer(type(action).__name__, result, self._notice, self._pages)

    def _check(self, action: plans.Action) -> None:
        session = self._session
        if session.is_failed and not isinstance(action, plans.Commit | plans.Rollback | plans.RollbackTo):
            message = "a statement of the transaction failed: roll it back, as a whole or to a savepoint"
            raise sql_error(Reason.TRANSACTION_ERROR, message, sqlstate=_FAILED)
        if session.is_read_only and not isinstance(action, _READING):
            message = f"{message_of(action)} can't run in a read-only transaction"
            raise sql_error(Reason.TRANSACTION_ERROR, message, sqlstate=_READ_ONLY)

    # ------------------------------------------------------------------------------------------------ reading

    async def _read(self, plan: plans.Plan) -> SqlResult:
        """Run a query: in the transaction if that has changes, which only it sees; else among the other readers."""
        transaction = self._session.transaction
        if transaction is None or not transaction.has_changes:
            self._transaction = None
            return await super()._read(plan)
        result = await super()._read(plan)
        await self._api.settle(transaction.ticket)
        return result

    async def _select(self, action: plans.Query, parameters: Sequence[Value]) -> SqlResult:
        if not self._is_paged or self._transaction is not None or isinstance(action, plans.Analysis):
            result = await super()._select(action, parameters)
            self._notice = lost(result.gaps)
            return result
        system, gaps = self._api.system.seen_by(self._principal), list[TopicGap]()
        if self._api.system.merged is not None:
            system = await self._merged(action, system)
        steps = cast("Generator[Any, None, None]", self._api.tables.rows(action, parameters, system, gaps))
        rows = await self.page(steps)
        for topic in topics_of(action):
            await self._api.settle_expiry(topic)
        self._notice = lost(gaps)
        if self._has_more:
            self._pages = Pages(self, steps, gaps)
        return SqlResult(columns=outputs_of(action.outputs), rows=rows, row_count=len(rows))

    async def page(self, steps: Generator[Any, None, None]) -> list[Sequence[Value]]:
        """The next rows of a query, as many as a page has. The time between pages does not count."""
        self._deadline = time.monotonic() + self._session.timeout_seconds
        rows: list[Sequence[Value]] = []
        nbytes = 0
        self._has_more = False
        try:
            for row in steps:
                if row is not None:
                    rows.append(row)
                    for value in row:
                        if value.__class__ is str or value.__class__ is bytes:
                            nbytes += len(value)
                    if len(rows) == PAGE_ROWS or nbytes > PAGE_BYTES:
                        self._has_more = True
                        break
                    continue
                await asyncio.sleep(0)
                if time.monotonic() > self._deadline:
                    raise self._timed_out()
        except BaseException:
            steps.close()
            raise
        self._api.statistics.rows_read += len(rows)
        return rows

    # ------------------------------------------------------------------------------------------------ writing

    async def _change(self, plan: plans.Plan) -> SqlResult:
        session = self._session
        if session.transaction is None and not self._in_batch:
            return await super()._change(plan)
        if session.transaction is None:
            await self._api.pressure.flushed(self._request.size)
            self._api.pressure.check()
            session.begin(implicit=True)
        self._transaction = session.transaction
        assert self._transaction is not None
        result = await super()._change(plan)
        session.count()
        await self._api.settle(session.transaction.ticket if session.transaction else 0)
        return result

    async def _finish(self, steps: Generator[None, None, T]) -> T:
        if self._session.transaction is None:
            return await super()._finish(steps)
        return await super()._finish(self._counted(steps))

    def _counted(self, steps: Generator[None, None, T]) -> Generator[None, None, T]:
        """Count the memory of the transaction after each slice."""
        try:
            while True:
                try:
                    next(steps)
                except StopIteration as done:
                    result: T = done.value
                    return result
                self._session.count()
                yield
        finally:
            steps.close()

    def _timed_out(self) -> TopicsError:
        self._api.statistics.timeouts += 1
        seconds = self._session.timeout_seconds
        return sql_error(Reason.QUERY_TIMEOUT, f"the statement took longer than {seconds:g} s and changed nothing")

    # ------------------------------------------------------------------------------------------- transactions

    async def _begin(self, action: plans.Begin) -> SqlResult:
        session = self._session
        if session.transaction is not None and not session.is_implicit:
            self._notice = "there is already a transaction in progress"
            return SqlResult(message="BEGIN")
        await session.finish_batch()
        session.begin(implicit=False)
        return SqlResult(message="BEGIN")

    async def _commit(self, action: plans.Commit) -> SqlResult:
        session = self._session
        if session.transaction is None or session.is_implicit:
            await session.finish_batch()
            self._notice = "there is no transaction in progress"
            return SqlResult(message="COMMIT")
        if session.is_failed:
            session.rollback()
            return SqlResult(message="ROLLBACK")
        await self.commit_now()
        return SqlResult(message="COMMIT")

    async def commit_now(self) -> None:
        """Commit the transaction of the session; it is over then in any case."""
        session = self._session
        transaction = session.transaction
        assert transaction is not None, "callers have looked"
        self._deadline = time.monotonic() + session.timeout_seconds
        try:
            ticket = await self._committed(transaction)
        finally:
            transaction.rollback()
            session.over()
        await self._api.settle(ticket)

    async def _rollback(self, action: plans.Rollback) -> SqlResult:
        session = self._session
        if session.transaction is None:
            self._notice = "there is no transaction in progress"
        session.rollback()
        return SqlResult(message="ROLLBACK")

    async def _rollback_to(self, action: plans.RollbackTo) -> SqlResult:
        result = await super()._rollback_to(action)
        self._session.is_failed = False
        self._session.count()
        return result

    def _open_transaction(self) -> OptimisticTransaction:
        session = self._session
        if session.transaction is None or session.is_implicit:
            raise sql_error(Reason.TRANSACTION_ERROR, "there is no transaction", sqlstate="25P01")
        return session.transaction

    # ------------------------------------------------------------------------------------------------- others

    async def _other(self, action: Any) -> SqlResult:
        """Run a definition, CONSUME, ACK: at once, also in a transaction, as long as that has changed nothing."""
        if isinstance(action, _OF_TRANSACTIONS | plans.Use | plans.Nothing | plans.Explain):
            return await super()._other(action)
        session = self._session
        if session.is_implicit:
            await session.finish_batch()
        elif session.transaction is not None and not isinstance(action, plans.Consume):
            name = message_of(action)
            if session.transaction.has_changes:
                message = f"{name} takes effect at once: commit or roll back the changes of the transaction first"
                raise sql_error(Reason.UNSUPPORTED_SQL, message)
            self._notice = f"{name} takes effect at once, whatever becomes of the transaction"
        self._transaction = None
        return await super()._other(action)


_OF_TRANSACTIONS: Final = (
    plans.Begin | plans.Commit | plans.Rollback | plans.Savepoint | plans.RollbackTo | plans.Release
)
_READING: Final = (
    plans.Select | plans.Analysis | plans.Consume | plans.Explain | plans.Use | plans.Nothing | plans.Begin
    | plans.Commit | plans.Rollback | plans.Savepoint | plans.RollbackTo | plans.Release
)  # fmt: skip


def columns_of(action: plans.Action) -> tuple[ResultColumn, ...] | None:
    """The columns of the rows that a statement answers; None for none."""
    match action:
        case plans.Select(outputs=outputs) | plans.Analysis(outputs=outputs):
            return outputs_of(outputs)
        case plans.Insert(returning=returning) | plans.Update(returning=returning) | plans.Delete(returning=returning):
            return outputs_of(returning) if returning else None
        case plans.Consume():
            return MESSAGE
        case plans.Ack():
            return ACKNOWLEDGED
        case plans.Explain():
            return PLAN
        case _:
            return None
