"""Execution of SQL requests: parsing, rights, order of writes, transactions, timeouts, durability.

Writes of all requests run one after the other, under one lock: a statement sees the rows as the last commit left them,
also when it takes several slices of the event loop. Waiting for durability comes after the lock.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from topics_service.api.access.auth import Principal
from topics_service.api.observers import NO_OBSERVERS, Facts, Observers
from topics_service.api.parts import PartsApi
from topics_service.api.placements import Placements
from topics_service.api.scheduling.pressure import Pressure
from topics_service.api.sql import rights
from topics_service.api.sql.analysis.api import Analyses
from topics_service.api.sql.analysis.duck import Rows, StoppedError
from topics_service.api.sql.analysis.staged import StagedRows
from topics_service.api.sql.consume import ConsumeApi
from topics_service.api.sql.joining import JoinedInserts
from topics_service.api.sql.live import LiveApi
from topics_service.api.sql.outcomes import (
    acknowledged,
    change_of,
    consumed,
    explained,
    message_of,
    outputs_of,
    placed,
    topics_of,
    users_facts,
)
from topics_service.api.sql.parameters import many_rows, one_row
from topics_service.api.sql.placing import explained_place, placing
from topics_service.api.sql.plancache import MAX_TEXT, PlanCache, Script
from topics_service.api.sql.reader import SqlReader
from topics_service.api.sql.requests import AckRequest, ConsumeRequest, ResultColumn, SqlReply, SqlRequest, SqlResult
from topics_service.api.sql.seenschema import SeenSchema
from topics_service.api.sql.system import SystemRows, SystemTables
from topics_service.api.sql.systempages import SPREAD
from topics_service.api.sql.users import UserStatements
from topics_service.engine.engine import Engine
from topics_service.engine.errors import Reason, TopicsError, invalid
from topics_service.engine.tables import plans
from topics_service.engine.tables.errors import sql_error
from topics_service.engine.tables.model import DEFAULT_NAMESPACE
from topics_service.engine.tables.optimistic import OptimisticTransaction
from topics_service.engine.tables.outcomes import Outcome
from topics_service.engine.tables.tables import STALE, Tables
from topics_service.engine.tables.transaction import TableTransaction
from topics_service.engine.tables.types import Type, Value
from topics_service.statistics import SqlStatistics

if TYPE_CHECKING:  # it imports this
    from topics_service.api.interfaces import Consumers

T = TypeVar("T")
Steps = Generator[None, None, T]

_NO_TRANSACTION: Final = "25P01"
_IN_TRANSACTION: Final = "25001"
_CHANGES: Final = (plans.Insert, plans.Update, plans.Delete)


async def _nothing_expires(topic: str) -> None:
    pass


class SqlApi:
    """Runs SQL for all protocols, and replies when the changes are as durable as promised.

    Cancelling a call rolls back what it has not committed.
    """

    def __init__(
        self,
        admit: Callable[[], Engine],
        settle: Callable[[int], Awaitable[None]],
        reader: SqlReader,
        *,
        pressure: Pressure,
        consumers: ConsumeApi,
        users: UserStatements,
        system: SystemTables,
        statistics: SqlStatistics,
        observers: Observers = NO_OBSERVERS,
        timeout_seconds: float = 30.0,
        analyses: Analyses | None = None,
        live: LiveApi,
    ) -> None:
        """`admit` gives the engine or refuses every call, `settle` waits until a ticket is durable."""
        self.admit = admit
        self.settle = settle
        self.pressure = pressure
        self.consumers: Consumers = consumers  # replaced where there are several shards
        self.users = users
        self.system = system
        self.observers = observers
        self.timeout_seconds = timeout_seconds
        self.analyses = analyses or Analyses()
        self.live = live
        self.parts: PartsApi | None = None
        """The parts of topics in other shards, which learn of definitions before these are acknowledged."""
        self.placements: Placements | None = None
        """The homes of topics, where there are other shards than that of SQL."""
        self.plans = PlanCache(reader)
        self.statistics = statistics
        self.settle_expiry: Callable[[str], Awaitable[None]] = _nothing_expires
        """Waits until what has expired in a topic, which a query may have found, is as durable as its class."""
        self.writing = asyncio.Lock()
        self.computing = asyncio.Lock()
        """Held by a change with a query while others write, so that one at a time holds rows."""
        self.joined = JoinedInserts(lambda: self.tables, pressure.check, self.writing)

    async def execute(self, request: SqlRequest, *, principal: Principal) -> SqlReply:
        """Run the statements of a request. The error of one is in the reply, with the results before it."""
        started = time.perf_counter()
        run = Run(self, request, principal)
        reply = SqlReply(results=run.results)
        try:
            await run.all()
        except TopicsError as error:
            self.statistics.failed += 1
            reply.error = placed(error)
        reply.took_ms = round((time.perf_counter() - started) * 1e3, 3)
        return reply

    @property
    def tables(self) -> Tables:
        """The tables, if the server takes calls."""
        return self.admit().tables


class Run:
    """One request under way."""

    given: tuple[Type | None, ...] = ()
    """The types that the caller gives to parameters to which the text gives none."""

    def __init__(self, api: SqlApi, request: SqlRequest, principal: Principal) -> None:
        self.results: list[SqlResult] = []
        self._api = api
        self._request = request
        self._principal = principal
        self._namespace = request.namespace or DEFAULT_NAMESPACE
        self._transaction: TableTransaction | None = None
        self._script: Script = Script(())
        self._is_long = len(request.sql) > MAX_TEXT  # takes too long for the event loop
        self._coerced: tuple[plans.Plan, list[Value]] | None = None  # the parameters of the plan read last
        self._number = 0
        self._deadline = 0.0

    async def all(self) -> None:
        """Run everything. Raises the error of the statement that failed, with its place."""
        self._api.admit()
        read = self._api.plans.read
        if self._is_long:
            self._script = script = await asyncio.to_thread(read, self._request.sql)
        else:
            self._script = script = read(self._request.sql)
        if not script.statements:
            raise sql_error(Reason.SYNTAX_ERROR, "there is no statement in the text")
        if self._request.param_rows is not None:
            self._check_rows(len(self._request.param_rows))
        try:
            for number, statement in enumerate(script.statements):
                self._number = number
                self._deadline = time.monotonic() + self._api.timeout_seconds
                try:
                    self.results.append(await self._statement())
                except TopicsError as error:
                    error = await explained_place(self._api.placements, error)
                    raise placed(error, number, statement.place) from None
            if self._transaction is not None:
                message = "the transaction was rolled back: the request ends without COMMIT"
                raise placed(sql_error(Reason.TRANSACTION_ERROR, message, sqlstate=_NO_TRANSACTION), self._number)
        finally:
            if self._transaction is not None:
                self._end_transaction().rollback()

    def _check_rows(self, count: int) -> None:
        limit = self._api.admit().limits.max_batch_records
        if self._request.params:
            raise invalid("params and param_rows are mutually exclusive")
        if len(self._script.statements) != 1:
            raise invalid("param_rows needs exactly one statement")
        if count > limit:
            raise invalid(f"param_rows has more than {limit} rows")

    async def _statement(self) -> SqlResult:
        plan = await asyncio.to_thread(self._plan) if self._is_long else self._plan()
        action = plan.action
        self._api.statistics.statements[type(action).__name__] += 1
        self._authorize(action)
        if isinstance(action, plans.QUERIES):
            return await self._read(plan)
        if isinstance(action, _CHANGES):
            return await self._change(plan)
        if self._request.param_rows is not None:
            raise invalid("param_rows needs an INSERT, UPDATE or DELETE")
        self._parameters(plan)
        return await self._other(action)

    def _authorize(self, action: plans.Action) -> None:
        """Raise `forbidden` unless the caller may run it; refused definitions are reported to the observers."""
        try:
            rights.check(action, self._principal, self._api.tables.newest.tables.get)
        except TopicsError as error:
            if (name := change_of(action)) is not None:
                self._api.observers.note(name, self._facts(action), self._principal, error)
            raise

    def _facts(self, action: plans.Action) -> Facts:
        """Facts of a definition or a change of a user for observers. The text may hold passwords."""
        if isinstance(action, plans.CreateUser | plans.AlterUser | plans.DropUser):
            return users_facts(action)
        names = rights.names(action, self._api.tables.newest.tables.get)
        return {"statement": message_of(action), "names": names}

    def _plan(self, *, newest: bool = False) -> plans.Plan:
        """Bind the statement: to the catalog as readers see it, or to the newest, which writers go by."""
        tables = self._api.tables
        schema = tables.newest if newest else tables.schema
        if self._principal.prefixes is None:
            return self._api.plans.plan(self._script, self._number, schema, self._namespace, self.given)
        seen = SeenSchema(schema, self._principal)
        try:
            return self._api.plans.plan(self._script, self._number, seen, self._namespace, self.given)
        except TopicsError as error:
            raise seen.refused(error) from None

    def _parameters(self, plan: plans.Plan) -> Sequence[Value]:
        if self._request.param_rows is not None:
            raise invalid("param_rows needs an INSERT, UPDATE or DELETE")
        if self._coerced is None or self._coerced[0] is not plan:
            exactly = len(self._script.statements) == 1
            self._coerced = plan, one_row(self._request.params or (), plan.parameters, exactly=exactly)
        return self._coerced[1]

    # ------------------------------------------------------------------------------------------------ reading

    async def _read(self, plan: plans.Plan) -> SqlResult:
        """Run a query, once more if a definition of its table is written and not durable yet: after it then."""
        if self._transaction is not None:
            plan = self._plan(newest=True)
            return await self._select(cast("plans.Query", plan.action), self._parameters(plan))
        try:
            return await self._select(cast("plans.Query", plan.action), self._parameters(plan))
        except TopicsError as error:
            if (error.detail or {}).get("sqlstate") != STALE:
                raise
        await self._api.settle(self._api.tables.catalog.ticket)
        plan = self._plan()
        return await self._select(cast("plans.Query", plan.action), self._parameters(plan))

    async def _select(self, action: plans.Query, parameters: Sequence[Value]) -> SqlResult:
        system = self._api.system.seen_by(self._principal)
        if self._api.system.merged is not None:
            system = await self._merged(action, system)
        if isinstance(action, plans.Analysis):
            transaction = self._transaction
            try:
                outcome = await self._analyze(action, parameters, system, transaction)
            finally:
                if transaction is not None:
                    transaction.unpin()
        elif self._transaction is not None and isinstance(action.source, plans.TableSource):
            outcome = await self._finish(self._transaction.run(action, parameters))
        else:
            outcome = await self._finish(self._api.tables.select(action, parameters, system))
        self._api.statistics.rows_read += outcome.row_count
        for topic in topics_of(action):
            await self._api.settle_expiry(topic)
        return SqlResult(
            columns=outputs_of(action.outputs), rows=outcome.rows, row_count=outcome.row_count, gaps=outcome.gaps
        )

    async def _merged(self, action: plans.Query, system: SystemRows) -> SystemRows:
        """The system tables of a query with the rows of all shards; reading them counts as the statement's time."""
        tables = plans.system_tables(action)
        if SPREAD.isdisjoint(tables):
            return system
        try:
            async with asyncio.timeout(max(0.0, self._deadline - time.monotonic())):
                return await self._api.system.read(tables, self._principal)
        except TimeoutError:
            raise self._timed_out() from None

    async def _analyze(
        self,
        action: plans.Analysis,
        parameters: Sequence[Value],
        system: SystemRows,
        transaction: TableTransaction | None,
        result: Rows | None = None,
    ) -> Outcome:
        """Run an analytical query. A transaction is left pinned to its moment."""
        api = self._api
        started = time.perf_counter()
        try:
            return await api.analyses.run(
                action, parameters, api.tables, system, self._deadline, self._finish, transaction, result
            )
        except StoppedError:
            raise self._timed_out() from None
        finally:
            api.statistics.analysis_seconds += time.perf_counter() - started

    # ------------------------------------------------------------------------------------------------ writing

    async def _change(self, plan: plans.Plan) -> SqlResult:
        api = self._api
        if self._transaction is not None:
            plan = self._plan(newest=True)
            return self._changed(plan.action, await self._changes(self._transaction, plan))
        if isinstance(plan.action, _CHANGES) and plan.action.query is not None:
            changed = await self._beside(plan)
            if changed is not None:
                return changed
        elif isinstance(plan.action, plans.Insert) and self._request.param_rows is None:
            joined = await self._joined(plan)
            if joined is not None:
                return joined
        await api.pressure.flushed(self._request.size)
        await self._lock(api.writing)
        try:
            api.pressure.check()
            plan = self._plan(newest=True)  # the catalog may be another one after a wait
            transaction = api.tables.begin()
            try:
                outcome = await self._changes(transaction, plan)
                ticket = transaction.commit()
            except BaseException:
                transaction.rollback()
                raise
        finally:
            api.writing.release()
        if isinstance(plan.action, plans.Insert):
            api.joined.committed(plan.action, ticket)
        await api.settle(ticket)
        return self._changed(plan.action, outcome)

    async def _beside(self, plan: plans.Plan) -> SqlResult | None:
        """Run a change with a query while others write, as long as that takes; None if these have changed what it read.

        With the order of writes it succeeds then.
        """
        api = self._api
        await self._lock(api.computing)
        try:
            await api.pressure.flushed(self._request.size)
            api.pressure.check()
            plan = self._plan(newest=True)
            transaction = api.tables.begin_optimistic()
            try:
                outcome = await self._changes(transaction, plan)
                ticket = await self._committed(transaction)
            except TopicsError as error:
                if (error.detail or {}).get("sqlstate") != STALE:
                    raise
                return None
            finally:
                transaction.rollback()
        finally:
            api.computing.release()
        await api.settle(ticket)
        return self._changed(plan.action, outcome)

    async def _committed(self, transaction: OptimisticTransaction) -> int:
        """Write a transaction that had no order of writes so far; return its ticket. Raises 40001."""
        if not transaction.has_changes:
            return transaction.commit()
        await self._lock(self._api.writing)
        try:
            self._api.pressure.check()
            await self._finish(transaction.validate())
            return transaction.commit()
        finally:
            self._api.writing.release()

    async def _joined(self, plan: plans.Plan) -> SqlResult | None:
        """Write a row together with those of other requests; None if it must be written alone."""
        answer = self._api.joined.join(cast("plans.Insert", plan.action), self._parameters(plan))
        written = None if answer is None else await answer
        if written is None:
            return None
        await self._api.settle(written.ticket)
        return self._changed(plan.action, Outcome(written.returned, 1))

    async def _changes(self, transaction: TableTransaction, plan: plans.Plan) -> Outcome:
        """Run a change, for each of its rows of parameters, or of its query."""
        rows, action = self._request.param_rows, cast("plans.Change", plan.action)
        if action.query is not None:
            return await self._computed(transaction, action, action.query, plan)
        if rows is None:
            return await self._finish(transaction.run(action, self._parameters(plan)))
        return await self._finish(transaction.run_many(action, many_rows(rows, plan.parameters)))

    async def _computed(
        self, transaction: TableTransaction, action: plans.Change, query: plans.Analysis, plan: plans.Plan
    ) -> Outcome:
        """Run the query of a change, and the change for each row of it, on the tables of one moment."""
        if self._request.param_rows is not None:
            message = f"param_rows can't be used with a statement that is run in DuckDB, for {query.why}"
            raise sql_error(Reason.UNSUPPORTED_SQL, message)
        parameters = self._parameters(plan)
        staged = StagedRows(parameters)
        try:
            system = await self._merged(query, self._api.system.seen_by(self._principal))
            await self._analyze(query, parameters, system, transaction, staged)
            transaction.depend(query.read)
            return await self._finish(transaction.run_many(action, staged.rows))
        finally:
            transaction.unpin()

    def _changed(self, action: Any, outcome: "Outcome") -> SqlResult:
        self._api.statistics.rows_changed += outcome.row_count
        columns: tuple[ResultColumn, ...] = outputs_of(action.returning) if action.returning else ()
        return SqlResult(columns=columns, rows=outcome.rows, row_count=outcome.row_count)

    async def _lock(self, lock: asyncio.Lock) -> None:
        """Wait for the turn to write, at most until the statement's deadline."""
        if not lock.locked():
            await lock.acquire()  # at once
            return
        try:
            async with asyncio.timeout(max(0.0, self._deadline - time.monotonic())):
                await lock.acquire()
        except TimeoutError:
            raise self._timed_out() from None

    async def _finish(self, steps: "Steps[T]") -> T:
        """Run to the end, with a turn for others at each step. Raises `query_timeout`."""
        try:
            while True:
                try:
                    next(steps)
                except StopIteration as done:
                    result: T = done.value
                    return result
                await asyncio.sleep(0)
                if time.monotonic() > self._deadline:
                    raise self._timed_out()
        finally:
            steps.close()

    def _timed_out(self) -> TopicsError:
        self._api.statistics.timeouts += 1
        seconds = self._api.timeout_seconds
        return sql_error(Reason.QUERY_TIMEOUT, f"the statement took longer than {seconds:g} s and changed nothing")

    # ------------------------------------------------------------------------------------------- transactions

    async def _begin(self, action: plans.Begin) -> SqlResult:
        if self._transaction is not None:
            raise sql_error(Reason.TRANSACTION_ERROR, "a transaction is open already", sqlstate=_IN_TRANSACTION)
        await self._api.pressure.flushed(self._request.size)
        await self._lock(self._api.writing)
        try:
            self._api.pressure.check()
            self._transaction = self._api.tables.begin()
        except BaseException:
            self._api.writing.release()
            raise
        return SqlResult(message="BEGIN")

    async def _commit(self, action: plans.Commit) -> SqlResult:
        self._open_transaction()
        transaction = self._end_transaction()
        try:
            ticket = transaction.commit()
        except BaseException:
            transaction.rollback()
            raise
        await self._api.settle(ticket)
        return SqlResult(message="COMMIT")

    async def _rollback(self, action: plans.Rollback) -> SqlResult:
        self._open_transaction()
        self._end_transaction().rollback()
        return SqlResult(message="ROLLBACK")

    async def _savepoint(self, action: plans.Savepoint) -> SqlResult:
        self._open_transaction().savepoint(action.name)
        return SqlResult(message="SAVEPOINT")

    async def _rollback_to(self, action: plans.RollbackTo) -> SqlResult:
        self._open_transaction().rollback_to(action.name)
        return SqlResult(message="ROLLBACK")

    async def _release(self, action: plans.Release) -> SqlResult:
        self._open_transaction().release(action.name)
        return SqlResult(message="RELEASE")

    def _open_transaction(self) -> TableTransaction:
        if self._transaction is None:
            raise sql_error(Reason.TRANSACTION_ERROR, "there is no transaction", sqlstate=_NO_TRANSACTION)
        return self._transaction

    def _end_transaction(self) -> TableTransaction:
        """Let others write, in the same turn in which the caller ends the transaction."""
        transaction, self._transaction = self._transaction, None
        assert transaction is not None, "callers have looked"
        self._api.writing.release()
        return transaction

    # ------------------------------------------------------------------------------------------------- others

    async def _other(self, action: Any) -> SqlResult:
        handler = _HANDLERS.get(type(action))
        if handler is not None:
            return await handler(self, action)
        if self._transaction is not None:
            raise sql_error(Reason.UNSUPPORTED_SQL, "only INSERT, UPDATE, DELETE and SELECT can be in a transaction")
        if isinstance(action, plans.Consume):
            return await self._consume(action)
        if isinstance(action, plans.Ack):
            return await self._ack(action)
        if isinstance(action, plans.CreateUser | plans.AlterUser | plans.DropUser):
            with self._api.observers("sql.user", self._facts(action), self._principal):
                await self._api.users.apply(action, principal=self._principal)
            return SqlResult(message=message_of(action))
        return await self._define(action)

    async def _consume(self, action: plans.Consume) -> SqlResult:
        """Read a page, which never waits."""
        request = ConsumeRequest(
            topic=action.topic,
            group=action.group,
            start=action.start,
            partition=action.partition,
            limit=100 if action.limit is None else action.limit,
            timeout_seconds=0,
        )
        reply = await self._api.consumers.consume(request, principal=self._principal)
        return consumed(reply.messages)

    async def _ack(self, action: plans.Ack) -> SqlResult:
        request = AckRequest(
            topic=action.topic, group=action.group, partition=action.partition, upto_offset=action.upto_offset
        )
        return acknowledged(await self._api.consumers.ack(request, principal=self._principal))

    async def _define(self, action: Any) -> SqlResult:
        """Change the catalog. The statement is bound again once it may write."""
        api = self._api
        with api.observers("sql.define", self._facts(action), self._principal):
            async with placing(api.placements, action):
                await self._lock(api.writing)
                known = {} if api.parts is None else api.parts.pending()
                try:
                    action = cast("plans.Definition", self._plan(newest=True).action)
                    ticket = await self._finish(api.tables.define(action))
                finally:
                    api.writing.release()
                if api.parts is not None:
                    await api.parts.finish_since(known)
                await api.settle(ticket)
            if isinstance(action, plans.CreateIndex):
                return await self._built(action)
        return SqlResult(message=message_of(action))

    async def _built(self, action: plans.CreateIndex) -> SqlResult:
        """Wait for an index, but no longer than a statement may take: it is built all the same."""
        try:
            await self._api.settle(await self._finish(self._api.tables.built(action)))
        except TopicsError as error:
            if error.reason is not Reason.QUERY_TIMEOUT:
                raise
            return SqlResult(message="CREATE INDEX: it is being built, system.indexes has its state")
        return SqlResult(message=message_of(action))

    async def _use(self, action: plans.Use) -> SqlResult:
        self._namespace = action.namespace
        return SqlResult(message="USE")

    async def _nothing(self, action: plans.Nothing) -> SqlResult:
        return SqlResult(message=action.message)

    async def _explain(self, action: plans.Explain) -> SqlResult:
        return explained(self._api.analyses.told(action))

    async def _subscribe(self, action: plans.Subscribe) -> SqlResult:
        message = "SUBSCRIBE has no end: send it to POST /api/sql/subscribe or SqlService.Subscribe"
        raise sql_error(Reason.UNSUPPORTED_SQL, message)


_HANDLERS: Final[dict[type, Callable[[Run, Any], Awaitable[SqlResult]]]] = {
    plans.Begin: lambda run, action: run._begin(action),
    plans.Commit: lambda run, action: run._commit(action),
    plans.Rollback: lambda run, action: run._rollback(action),
    plans.Savepoint: lambda run, action: run._savepoint(action),
    plans.RollbackTo: lambda run, action: run._rollback_to(action),
    plans.Release: lambda run, action: run._release(action),
    plans.Use: lambda run, action: run._use(action),
    plans.Nothing: lambda run, action: run._nothing(action),
    plans.Explain: lambda run, action: run._explain(action),
    plans.Subscribe: lambda run, action: run._subscribe(action),
}
