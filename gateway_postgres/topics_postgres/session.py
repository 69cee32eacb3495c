"""One session: the messages of a client in order, simple and extended protocol."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from topics_postgres import answers, decoding, oids, wire
from topics_postgres.authentication import Opened
from topics_postgres.connection import Connection, Message
from topics_postgres.encoding import Encoder, encoders
from topics_postgres.errors import CANCELED, FatalError, MalformedError, PgError, Piece, from_topics
from topics_postgres.portals import Portal, Portals, Prepared, Statements, expanded, next_page
from topics_postgres.quick import QuickPath, QuickStatement
from topics_postgres.statements import Begin, Copy, Forget, Set, Show, Sql, Statement, substituted
from topics_postgres.transfer import CopyTransfer
from topics_postgres.values import session_value
from topics_postgres.variables import Variables
from topics_service.api.request_context import RequestContext, current_request
from topics_service.api.sql.requests import ResultColumn, SqlResult
from topics_service.api.sql.session import Answer, Status
from topics_service.api.sql.sessions import Session as SqlSession
from topics_service.engine.errors import TopicsError
from topics_service.engine.tables.types import TEXT, Type, Value
from topics_sql.tokens import words

if TYPE_CHECKING:
    from topics_postgres.listener import PostgresServer

log: Final = logging.getLogger("topics.postgres")

RPC: Final = "topics.v1.SqlService.Execute"
"""The call whose access rule and limits statements have."""
_SLICE_SECONDS: Final = 0.002
_ROWS_A_LOOK: Final = 32
_VALUES_A_TURN: Final = 4096
_STATUS: Final = {Status.IDLE: b"I", Status.OPEN: b"T", Status.FAILED: b"E"}
_SYNC: Final = ord("S")
_RUNS: Final = 2
"""The runs of a prepared query before it gets its quick form: most run once."""
_COUNTED: Final = {"Select": "SELECT", "Consume": "CONSUME", "Update": "UPDATE", "Delete": "DELETE", "Ack": "ACK"}
_COUNTED.update({"Insert": "INSERT 0", "Fetch": "FETCH"})


class Session:
    """Serves one client that is authenticated. `run` ends with it."""

    def __init__(
        self, connection: Connection, server: "PostgresServer", given: Opened, sql: SqlSession, pid: int
    ) -> None:
        self.connection = connection
        self.server = server
        self.principal = given.principal
        self.user = given.user
        self.database = given.database
        self.sql = sql
        self.pid = pid
        self.variables = Variables(given.user, is_superuser=server.is_superuser(given.principal))
        self.statements = Statements()
        self.portals = Portals()
        self._skips = False
        """Messages are passed over until the next Sync."""
        self._running: asyncio.Task[None] | None = None
        self._is_canceled = False
        self._was_open = False
        self.is_ending = False
        self.statistics = server.statistics
        self._quick = QuickPath(self)
        self.request = RequestContext("postgres", connection.peer)
        self.request.principal = given.principal

    # -------------------------------------------------------------------------------------------------- the loop

    async def run(self) -> None:
        """Serve until the client ends. Raises FatalError, MalformedError, MemoryError."""
        current_request.set(self.request)
        connection = self.connection
        try:
            while not connection.is_lost:
                message = connection.take()
                if message is None:
                    if self.is_ending:
                        raise FatalError("57P01", "the server shuts down")
                    message = await self._next()
                if message is None or message.kind == ord("X"):
                    return
                await self._handle(message)
        finally:
            self.portals.clear()
            self.sql.rollback()

    async def _next(self) -> Message | None:
        """Wait for a message, for as long as the state of the session allows."""
        connection, settings = self.connection, self.server.settings
        connection.flush()
        is_idle = not self.sql.has_transaction
        seconds = settings.idle_seconds if is_idle else settings.transaction_idle_seconds
        connection.deadline = self.server.now() + seconds
        connection.quick = self._quick.answer
        try:
            return await connection.receive()
        finally:
            connection.deadline, connection.quick = 0.0, None

    def is_ready(self) -> bool:
        """Return whether a statement may run at once; if so, the client has its time again for the next one."""
        principal = self.principal
        if self._skips or self.is_ending:
            return False
        if principal.key_id and not self.server.authorizer.admits(RPC, principal):
            return False
        connection, settings = self.connection, self.server.settings
        is_idle = not self.sql.has_transaction
        connection.deadline = connection.now() + (
            settings.idle_seconds if is_idle else settings.transaction_idle_seconds
        )
        return True

    def expired(self) -> FatalError:
        """The error of a client that sent nothing for too long."""
        if not self.sql.has_transaction:
            return FatalError("57P05", "terminating connection due to idle-session timeout")
        return FatalError("25P03", "terminating connection due to idle-in-transaction timeout")

    async def _handle(self, message: Message) -> None:
        kind = message.kind
        if kind == _SYNC:
            await self._sync()
            return
        if self._skips or kind in b"dcf":  # what is left of a COPY that failed
            return
        handler = _HANDLERS.get(kind)
        if handler is None:
            raise MalformedError("a message that is not expected here")
        try:
            await handler(self, message.body)
        except PgError as error:
            if isinstance(error, FatalError):
                raise
            self._failed(error)
            if kind == ord("Q"):
                self._ready()
            else:
                self._skips = True
        if self.connection.must_wait:
            await self.connection.drain()

    def _failed(self, error: PgError) -> None:
        self.sql.fail()
        self.portals.clear()
        self._ended()
        self.statistics.errors[error.sqlstate] += 1
        self.connection.send(wire.error(error))

    async def _sync(self) -> None:
        self._skips = False
        try:
            await self._finish_batch()
        except PgError as error:
            self._failed(error)
        if self.sql.status is Status.IDLE:
            self.portals.clear()
        self._ready()
        if self.connection.must_wait:
            await self.connection.drain()

    def _ready(self) -> None:
        self.connection.send(wire.ready(_STATUS[self.sql.status]))
        if not self.connection.next_kind():
            self.connection.flush()

    async def _finish_batch(self) -> None:
        if self.sql.is_implicit:
            await self.guarded(self.sql.finish_batch())

    # ------------------------------------------------------------------------------------------- running statements

    async def guarded(self, work: Awaitable[Any], piece: Piece | None = None) -> Any:
        """Run what a cancel request may end, within the limits of the caller. Raises PgError."""
        self._running = asyncio.current_task()
        try:
            with self.server.authorizer.slot(RPC, self.principal):
                return await work
        except TopicsError as error:
            found = from_topics(error, piece)
            if found.sqlstate == "28P01":  # revoked meanwhile
                raise FatalError("28000", found.message) from None
            raise found from None
        except asyncio.CancelledError:
            if not self._is_canceled:
                raise
            self._is_canceled = False
            if self._running is not None:
                self._running.uncancel()
            raise PgError(CANCELED, "canceling statement due to user request") from None
        except (PgError, MalformedError, MemoryError):
            raise
        except Exception:
            log.exception("a statement failed", extra={"request": self.request.text})
            raise PgError("XX000", "internal error: the log of the server tells more") from None
        finally:
            self._running = None
            if asyncio.iscoroutine(work):
                work.close()

    def cancel(self) -> None:
        """Cancel the statement under way, if there is one."""
        if self._running is not None and not self._is_canceled:
            self._is_canceled = True
            self._running.cancel()

    async def perform(
        self,
        statement: Statement,
        values: Sequence[Any] = (),
        given: tuple[Type | None, ...] = (),
        *,
        size: int = 0,
        in_batch: bool,
    ) -> Answer:
        """Run a statement that is no COPY. Raises PgError."""
        started = time.perf_counter()
        try:
            if isinstance(statement, Sql):
                text = statement.piece.text
                if statement.calls:
                    text = substituted(statement, lambda call: session_value(self, call))
                work = self.sql.execute(text, values, given, size=size, in_batch=in_batch, paged=True)
                answer: Answer = await self.guarded(work, statement.piece)
            elif isinstance(statement, answers.STATEMENTS):
                answer = await answers.perform(self, statement, values, given, in_batch=in_batch)
            else:
                answer = await self._of_session(statement)
        except PgError:
            self._observe(statement, "error", started)
            raise
        self._observe(statement, "ok", started)
        if answer.notice:
            self.connection.send(wire.notice(answer.notice))
        if answer.kind == "Nothing" and isinstance(statement, Sql):
            text = answer.result.message or ""
            self.connection.send(wire.notice(text, sqlstate="00000", severity="NOTICE"))
            answer = _done(" ".join(statement.piece.text.split()[:2]).upper())
        self._ended()
        return answer

    def _observe(self, statement: Statement, outcome: str, started: float) -> None:
        kind = statement.first if isinstance(statement, Sql) else type(statement).__name__.lower()
        kind = kind if kind in _KINDS else "other"
        self.statistics.requests.observe(kind, outcome, time.perf_counter() - started)

    def _ended(self) -> None:
        """Look whether a transaction has ended, and note what the statement changed in the session."""
        if self.sql.namespace != self.variables.namespace:
            self.variables.namespace = self.sql.namespace
        is_open = self.sql.status is not Status.IDLE
        if self._was_open and not is_open:
            self._tell(self.variables.end_transaction())
            self.apply()
        self._was_open = is_open

    def set_variable(self, name: str, value: str | None, *, is_local: bool) -> None:
        """Set a variable, and tell the client. Raises PgError."""
        if is_local and self.sql.status is Status.IDLE:
            self.connection.send(wire.notice("SET LOCAL can only be used in transaction blocks"))
            return
        changed = self.variables.set(name, value, is_local=is_local)
        self._tell([changed] if changed else [])
        self.apply()

    def apply(self) -> None:
        """Let the engine's session have what the variables say."""
        sql, variables = self.sql, self.variables
        sql.namespace = variables.namespace
        limit = sql.limit_seconds
        sql.timeout_seconds = min(variables.statement_timeout or limit, limit)
        sql.is_read_only = variables.is_read_only

    def _tell(self, names: Sequence[str]) -> None:
        for name in names:
            self.connection.send(wire.parameter_status(*self.variables.shown(name)))

    async def _of_session(self, statement: Statement) -> Answer:
        """Run a statement that is of the session and not of the engine."""
        if self.sql.is_failed and not isinstance(statement, Begin):
            raise PgError("25P02", "current transaction is aborted, commands ignored until end of transaction block")
        variables = self.variables
        match statement:
            case Begin(isolation, read_only):
                answer: Answer = await self.guarded(self.sql.execute("BEGIN"))
                if isolation:
                    variables.set("transaction_isolation", isolation, is_local=True)
                if read_only is not None:
                    variables.set("transaction_read_only", "on" if read_only else "off", is_local=True)
                self.apply()
                self._ended()
                return answer
            case Set("all", None):
                self._tell(variables.reset_all())
                self.apply()
                return _done("RESET")
            case Set(name, value, is_local):
                self.set_variable(name, value, is_local=is_local)
                return _done("RESET" if value is None else "SET")
            case Show(name):
                shown, columns = variables.get(name), (ResultColumn(name, TEXT),)
                return Answer("Show", _result(columns, [(shown,)], "SHOW"))
            case Forget(tag, what, name):
                self._forget(what, name)
                return _done(tag)
            case _:
                raise PgError("0A000", "COPY has to be the only statement of its message")

    def _forget(self, what: str, name: str | None) -> None:
        if what == "all":
            self.statements.clear()
            self._tell(self.variables.reset_all())
            self.apply()
        elif what == "statements" and name is None:
            self.statements.clear()
        elif what == "statements" and name is not None and not self.statements.remove(name):
            raise PgError("26000", f'prepared statement "{name[:80]}" does not exist')
        elif what == "portals" and name is not None and not self.portals.remove(name):
            raise PgError("34000", f'cursor "{name[:80]}" does not exist')

    # ---------------------------------------------------------------------------------------------- simple protocol

    async def _query(self, body: bytes) -> None:
        text = wire.query(body)
        self.portals.remove("")
        self.statements.remove("")
        statements = self.server.splitter.split(text)
        if not statements:
            self.connection.send(wire.EMPTY_QUERY)
        is_batch = len(statements) > 1
        for statement in statements:
            if isinstance(statement, Copy):
                await self._copy(statement)
                continue
            answer = await self.perform(statement, size=len(body), in_batch=is_batch)
            await self._send_answer(answer)
        await self._finish_batch()
        self._ready()

    async def _send_answer(self, answer: Answer) -> None:
        """Send the columns, all rows and the end of a statement."""
        result = answer.result
        count = result.row_count
        if result.columns:
            formats = (0,) * len(result.columns)
            self.connection.send(wire.row_description(list(map(oids.column_of, result.columns)), formats))
            makers = encoders([column.type for column in result.columns], formats)
            await self.send_rows(result.rows, makers)
            count = len(result.rows)
            if answer.pages is not None:
                count += await self._send_pages(answer, makers)
        self.connection.send(wire.command_complete(tag_of(answer, count)))

    async def _send_pages(self, answer: Answer, makers: Sequence[Encoder]) -> int:
        pages, count = answer.pages, 0
        assert pages is not None, "callers have looked"
        try:
            while rows := await next_page(self, pages):
                await self.send_rows(rows, makers)
                count += len(rows)
        finally:
            pages.close()
        return count

    async def send_rows(self, rows: Sequence[Sequence[Value]], makers: Sequence[Encoder]) -> None:
        """Send rows, in slices of the event loop, as fast as the client reads."""
        connection, row_of = self.connection, wire.data_row
        ends = time.perf_counter() + _SLICE_SECONDS
        for number, row in enumerate(rows, 1):
            connection.send(row_of(row, makers))
            if number % _ROWS_A_LOOK:
                continue
            if connection.must_wait:
                await connection.drain()
            elif time.perf_counter() > ends:
                await asyncio.sleep(0)
            else:
                continue
            if connection.is_lost:
                raise MalformedError("the client is gone")
            ends = time.perf_counter() + _SLICE_SECONDS

    async def _copy(self, statement: Copy) -> None:
        started = time.perf_counter()
        if self.sql.is_failed:
            raise PgError("25P02", "current transaction is aborted, commands ignored until end of transaction block")
        try:
            count = await CopyTransfer(self, statement).run()
        except PgError:
            self._observe(statement, "error", started)
            raise
        self._observe(statement, "ok", started)
        self._ended()
        self.connection.send(wire.command_complete(f"COPY {count}"))

    # -------------------------------------------------------------------------------------------- extended protocol

    async def _parse(self, body: bytes) -> None:
        given = wire.parse(body)
        self.statements.check(given.name)
        statements = self.server.splitter.split(given.sql)
        if len(statements) > 1:
            raise PgError("42601", "cannot insert multiple commands into a prepared statement")
        prepared = Prepared(given.sql, statements[0] if statements else None)
        await self.describe_statement(prepared, given.oids)
        self.statements.add(given.name, prepared)
        self.connection.send(wire.PARSE_COMPLETE)

    async def describe_statement(self, prepared: Prepared, given: Sequence[int]) -> None:
        """Note the parameters and the columns of a statement. Raises PgError."""
        statement = prepared.statement
        prepared.oids = tuple(given)
        if isinstance(statement, Show):
            prepared.columns = (ResultColumn(statement.name, TEXT),)
        if isinstance(statement, answers.STATEMENTS):
            await answers.describe(self, prepared, given)
        if not isinstance(statement, Sql):
            return
        if self.sql.is_failed and statement.first not in ("commit", "rollback"):
            raise PgError("25P02", "current transaction is aborted, commands ignored until end of transaction block")
        text = statement.piece.text
        if statement.calls:
            text = substituted(statement, lambda call: session_value(self, call))
        found = await self.guarded(self.sql.describe(text, tuple(map(oids.type_of, given))), statement.piece)
        declared = (*given, *(0,) * (len(found.parameters) - len(given)))
        prepared.kind, prepared.columns, prepared.given = found.kind, found.columns, found.given
        prepared.oids = tuple(
            oid or oids.oid_of(kind) for oid, kind in zip(declared, (*found.parameters, *(None,) * len(declared)),
                                                          strict=False)
        )  # fmt: skip

    async def _bind(self, body: bytes) -> None:
        given = wire.bind(body)
        prepared = self.statements.find(given.statement)
        if len(given.values) != len(prepared.oids):
            message = f"bind message supplies {len(given.values)} parameters, but the statement needs "
            raise PgError("08P01", f"{message}{len(prepared.oids)}")
        values = await self._decoded(prepared, given)
        formats = expanded(given.results, len(prepared.columns or ()))
        self.portals.add(given.portal, Portal(prepared, values, formats, len(body)))
        self.connection.send(wire.BIND_COMPLETE)

    async def _decoded(self, prepared: Prepared, given: wire.Bind) -> list[Any]:
        formats, values = expanded(given.formats, len(given.values)), list[Any]()
        for number, (value, oid, form) in enumerate(zip(given.values, prepared.oids, formats, strict=True), 1):
            if not number % _VALUES_A_TURN:
                await asyncio.sleep(0)
            try:
                values.append(None if value is None else decoding.decoder(oid, form)(value))
            except PgError as error:
                raise PgError(error.sqlstate, f"${number}: {error.message}") from None
        return values

    async def _describe(self, body: bytes) -> None:
        kind, name = wire.target(body)
        if kind == "S":
            prepared = self.statements.find(name)
            self.connection.send(wire.parameter_description(prepared.oids))
            formats: Sequence[int] = (0,) * len(prepared.columns or ())
        else:
            portal = self.portals.find(name)
            prepared, formats = portal.prepared, portal.formats
        if prepared.columns:
            self.connection.send(wire.row_description(list(map(oids.column_of, prepared.columns)), formats))
        else:
            self.connection.send(wire.NO_DATA)

    async def _execute(self, body: bytes) -> None:
        name, limit = wire.execute(body)
        portal = self.portals.find(name)
        statement = portal.prepared.statement
        if statement is None:
            self.connection.send(wire.EMPTY_QUERY)
            return
        if isinstance(statement, Copy):
            await self._copy(statement)
            return
        if not portal.is_begun:
            await self._begin_portal(portal, statement)
        await self._send_portal(portal, limit)

    async def _begin_portal(self, portal: Portal, statement: Statement) -> None:
        prepared = portal.prepared
        in_batch = self.connection.next_kind() != _SYNC
        answer = await self.perform(
            statement, portal.values, prepared.given, size=portal.size, in_batch=in_batch
        )  # fmt: skip
        result = answer.result
        if (result.columns or None) != (prepared.columns or None):
            if answer.pages is not None:
                answer.pages.close()
            changed = PgError("0A000", "cached plan must not change result type")
            changed.names = [("R", "RevalidateCachedQuery")]  # by which drivers know that they have to prepare again
            raise changed
        if answer.kind == "Select":
            self._look_for_quick_form(prepared)
        portal.is_begun = True
        portal.rows, portal.pages = result.rows if result.columns else (), answer.pages
        portal.encoders = encoders([column.type for column in result.columns], portal.formats)
        portal.tag = tag_of(answer, result.row_count)
        portal.values = ()

    def _look_for_quick_form(self, prepared: Prepared) -> None:
        """Make the quick form of a query that runs for the second time, or whose form is of another definition."""
        prepared.runs += 1
        statement = prepared.statement
        if prepared.runs != _RUNS and (prepared.quick is None or prepared.quick.read.is_current):
            return
        prepared.quick = None
        if isinstance(statement, Sql) and not statement.calls:
            with contextlib.suppress(TopicsError):  # as of a definition that is not durable yet
                read = self.sql.point(statement.piece.text, prepared.given)
                prepared.quick = None if read is None else QuickStatement(read)

    async def _send_portal(self, portal: Portal, limit: int) -> None:
        """Send rows of a portal up to the limit, and tell whether there are more."""
        sent = 0
        while True:
            left = len(portal.rows) - portal.position
            if limit and sent + left > limit:
                end = portal.position + limit - sent
                await self.send_rows(portal.rows[portal.position : end], portal.encoders)
                portal.position = end
                self.connection.send(wire.SUSPENDED)
                return
            await self.send_rows(portal.rows[portal.position :] if portal.position else portal.rows, portal.encoders)
            sent += left
            portal.position = len(portal.rows)
            if portal.pages is None:
                break
            portal.rows, portal.position = await next_page(self, portal.pages), 0
            if not portal.rows:
                break
        if portal.prepared.columns and portal.tag.startswith("SELECT "):
            portal.tag = f"SELECT {sent}"
        self.connection.send(wire.command_complete(portal.tag))
        portal.close()
        portal.position = 0

    async def _close(self, body: bytes) -> None:
        kind, name = wire.target(body)
        (self.statements if kind == "S" else self.portals).remove(name)
        self.connection.send(wire.CLOSE_COMPLETE)

    async def _flush(self, body: bytes) -> None:
        self.connection.flush()

    async def _function(self, body: bytes) -> None:
        raise PgError("0A000", "function calls by message are not supported: use SELECT")


_KINDS: Final = words(
    """ack alter begin commit consume copy create delete drop explain forget insert release rollback savepoint
    select set show truncate update use"""
)
_HANDLERS: Final[dict[int, Callable[[Session, bytes], Awaitable[None]]]] = {
    ord("Q"): Session._query,
    ord("P"): Session._parse,
    ord("B"): Session._bind,
    ord("D"): Session._describe,
    ord("E"): Session._execute,
    ord("C"): Session._close,
    ord("H"): Session._flush,
    ord("F"): Session._function,
}


def tag_of(answer: Answer, count: int) -> str:
    """The tag of a statement that has ended."""
    counted = _COUNTED.get(answer.kind)
    if counted is not None:
        return f"{counted} {count}"
    if answer.kind == "Explain":
        return "EXPLAIN"
    if answer.kind == "Analysis":
        return f"SELECT {count}"
    return (answer.result.message or answer.kind.upper()).partition(":")[0]


def _result(columns: tuple[ResultColumn, ...], rows: Sequence[Sequence[Value]], message: str) -> SqlResult:
    return SqlResult(columns=columns, rows=rows, row_count=len(rows), message=message)


def _done(tag: str) -> Answer:
    return Answer("Done", _result((), (), tag))
