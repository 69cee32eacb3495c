"""Sessions of connections at other nodes, where SQL's shard is: their open transactions and results under way.

A node has a lease as long as it follows `attach`: its sessions end with it. So a connection that does nothing, or has
no transaction open, has nothing here, and does not notice when the shard moves.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

from topics_service.api.access.auth import Principal
from topics_service.api.sql.relaying import Page, SessionReply, SessionState, SessionStatement
from topics_service.api.sql.requests import SqlResult
from topics_service.api.sql.session import PAGE_BYTES, PAGE_ROWS, Described, Rest, SqlSession, Transactions
from topics_service.api.sql.sessions import OwnSessions
from topics_service.api.topics import TopicsApi
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.tables.errors import sql_error
from topics_service.engine.tables.types import Type, Value

MAX_LEASES: Final = 1024
MAX_SESSIONS: Final = 8192
"""Sessions of all nodes that have a transaction or results under way."""
MAX_PAGES: Final = 32
"""Results of a session of which rows are still to come."""
IDLE_SECONDS: Final = 600.0
"""Time after which a session that is not used ends here: its node ends idle transactions long before."""
_LOOK_SECONDS: Final = 15.0
_TOO_MANY: Final = "53300"
_VALUE_BYTES: Final = 64


class _Kept:
    """Rows that are in memory already, in pages."""

    def __init__(self, rows: Sequence[Sequence[Value]], transactions: Transactions) -> None:
        """Raises `result_too_large` if there is no memory to keep them."""
        self._rows = rows
        self._at = 0
        self._transactions = transactions
        self._nbytes = sum(_VALUE_BYTES * len(row) + _size(row) for row in rows)
        transactions.grown(self._nbytes)

    async def next(self) -> Sequence[Sequence[Value]]:
        """See Rest."""
        rows, start, nbytes = self._rows, self._at, 0
        while self._at < len(rows) and self._at - start < PAGE_ROWS and nbytes < PAGE_BYTES:
            nbytes += _size(rows[self._at])
            self._at += 1
        return rows[start : self._at]

    def notice(self) -> str:
        """See Rest. The first rows had the notice."""
        return ""

    def close(self) -> None:
        """See Rest."""
        self._rows = ()
        self._transactions.grown(-self._nbytes)
        self._nbytes = 0


def _size(row: Sequence[Value]) -> int:
    return sum(len(value) for value in row if value.__class__ is str or value.__class__ is bytes)


class _Held:
    """One session. Its calls run one after the other."""

    def __init__(self, session: SqlSession) -> None:
        self.session = session
        self.lock = asyncio.Lock()
        self.pages: dict[int, Rest] = {}
        self.last_page = 0
        self.used = time.monotonic()
        self.calls = 0
        """Calls under way, or waiting for their turn."""
        self.is_over = False

    @property
    def is_needed(self) -> bool:
        """Return whether there is something that a later call needs."""
        return self.session.has_transaction or bool(self.pages)

    def close(self) -> None:
        """Give back everything, at once or after the call under way."""
        self.is_over = True
        if not self.calls:
            self.session.rollback()
            for pages in self.pages.values():
                pages.close()
            self.pages.clear()

    def keep(self, rest: Rest) -> int:
        """Keep the rest of a result; return its number. Raises `result_too_large`."""
        if len(self.pages) >= MAX_PAGES:
            rest.close()
            raise sql_error(Reason.RESULT_TOO_LARGE, f"a session has at most {MAX_PAGES} open results")
        self.last_page += 1
        self.pages[self.last_page] = rest
        return self.last_page

    def close_pages(self, *numbers: int) -> None:
        """Let go of results."""
        for number in numbers:
            rest = self.pages.pop(number, None)
            if rest is not None:
                rest.close()


class HeldSessions:
    """The calls of other nodes, or of this one while it may lose the shard. Only its node knows a lease, and a session
    belongs to one principal."""

    def __init__(self, api: TopicsApi) -> None:
        assert api.sql is not None, "callers have looked"
        self.own = OwnSessions(api.sql)
        """Sessions of connections of this process, if the shard stays in it."""
        self._api = api
        self._statistics = api.sql.statistics
        self._leases: dict[str, dict[int, _Held]] = {}

    async def attach(self) -> AsyncGenerator[str, None]:
        """A lease, which lasts as long as the caller follows this, and the shard is here."""
        if len(self._leases) >= MAX_LEASES:
            raise sql_error(Reason.THROTTLED, f"at most {MAX_LEASES} nodes can be attached", sqlstate=_TOO_MANY)
        lease, over = secrets.token_hex(16), asyncio.Event()
        sessions = self._leases[lease] = dict[int, _Held]()
        try:
            with self._api.notify_on_drain(over):
                yield lease
                while not over.is_set() and not self._api.draining:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_LOOK_SECONDS):
                            await over.wait()
                    self._end_idle(sessions)
        finally:
            del self._leases[lease]
            for held in sessions.values():
                held.close()
            self._count(-len(sessions))

    def _end_idle(self, sessions: dict[int, _Held]) -> None:
        ends = time.monotonic() - IDLE_SECONDS
        for number, held in list(sessions.items()):
            if held.used < ends and not held.calls:
                held.close()
                del sessions[number]
                self._count(-1)

    async def describe(
        self, sql: str, given: tuple[Type | None, ...], namespace: str, *, principal: Principal
    ) -> Described:
        """See SqlSession."""
        session = self.own.open(principal)
        session.namespace = namespace
        return await session.describe(sql, given)

    async def execute(self, state: SessionState, statement: SessionStatement, *, principal: Principal) -> SessionReply:
        """Run a statement in a session."""
        return await self._run(state, principal, statement)

    async def query(self, state: SessionState, statement: SessionStatement, *, principal: Principal) -> SessionReply:
        """Run a statement that changes nothing, or refuse it: it may run twice."""
        state.is_read_only = True
        return await self._run(state, principal, statement)

    async def finish(self, state: SessionState, *, principal: Principal) -> SessionReply:
        """Commit a batch; see SqlSession."""
        return await self._run(state, principal, None)

    async def page(self, state: SessionState, number: int, *, principal: Principal) -> Page:
        """The next rows of a result."""
        sessions = self._leases.get(state.lease, {})
        held = sessions.get(state.number)
        if held is None or held.session.principal != principal:
            return Page(is_known=False)
        async with self._turn(sessions, state.number, held):
            rest = held.pages.get(number)
            if rest is None or held.is_over:
                return Page(is_known=False)
            try:
                held.session.timeout_seconds = state.timeout_seconds
                rows = await rest.next()
            except BaseException:
                held.close_pages(number)
                raise
            if not rows:
                held.close_pages(number)
            return Page(rows=rows, notice=rest.notice())

    async def release(self, lease: str, number: int, pages: list[int], *, principal: Principal) -> None:
        """Let go of results of a session; of all of it without any."""
        sessions = self._leases.get(lease, {})
        held = sessions.get(number)
        if held is None or held.session.principal != principal:
            return
        async with self._turn(sessions, number, held):
            held.close_pages(*(pages or list(held.pages)))
            if not pages:
                held.session.rollback()

    # ------------------------------------------------------------------------------------------------- internals

    async def _run(self, state: SessionState, principal: Principal, statement: SessionStatement | None) -> SessionReply:
        sessions = self._leases.get(state.lease)
        if sessions is None:
            return SessionReply(is_attached=False)
        held = sessions.get(state.number)
        if held is None:
            if state.is_open and not state.is_lost:
                return SessionReply(is_known=False)
            held = self._hold(sessions, state.number, principal)
        elif held.session.principal != principal:
            return SessionReply(is_known=False)
        async with self._turn(sessions, state.number, held):
            if held.is_over or not _enter(held, state):
                return SessionReply(is_known=False)
            return await self._perform(held, statement)

    @asynccontextmanager
    async def _turn(self, sessions: dict[int, _Held], number: int, held: _Held) -> AsyncIterator[None]:
        """Wait for the calls before this one; forget the session if nothing is left of it afterwards."""
        held.calls += 1
        try:
            async with held.lock:
                yield
        finally:
            held.calls -= 1
            held.used = time.monotonic()
            if not held.calls:
                if held.is_over:
                    held.close()
                elif not held.is_needed:
                    del sessions[number]
                    self._count(-1)

    async def _perform(self, held: _Held, statement: SessionStatement | None) -> SessionReply:
        session, reply = held.session, SessionReply()
        try:
            if statement is None:
                await session.finish_batch()
            elif statement.rows is not None:
                reply.result = SqlResult(row_count=await session.insert(statement.sql, statement.rows))
            else:
                answer = await session.execute(
                    statement.sql,
                    statement.params,
                    statement.given,
                    size=statement.size,
                    in_batch=statement.in_batch,
                    paged=statement.paged,
                )
                reply.kind, reply.notice, reply.result = answer.kind, answer.notice, answer.result
                reply.pages = self._keep_rest(held, answer.pages, reply)
        except TopicsError as error:
            reply.error, reply.result = error, None
        reply.status, reply.is_implicit = session.status, session.is_implicit
        reply.namespace, reply.is_kept = session.namespace, held.is_needed
        return reply

    def _keep_rest(self, held: _Held, rest: Rest | None, reply: SessionReply) -> int:
        """Keep what is left of the rows, if there is anything; return its number."""
        result = reply.result
        if rest is None and result is not None and len(result.rows) > PAGE_ROWS:
            rest = _Kept(result.rows[PAGE_ROWS:], self.own.transactions)
            result.rows = result.rows[:PAGE_ROWS]
        return 0 if rest is None else held.keep(rest)

    def _hold(self, sessions: dict[int, _Held], number: int, principal: Principal) -> _Held:
        if self._statistics.sessions >= MAX_SESSIONS:
            message = f"at most {MAX_SESSIONS} sessions of other nodes can have transactions or results under way"
            raise sql_error(Reason.THROTTLED, message, sqlstate=_TOO_MANY)
        held = sessions[number] = _Held(self.own.open(principal))
        self._count(1)
        return held

    def _count(self, by: int) -> None:
        self._statistics.sessions += by


def _enter(held: _Held, state: SessionState) -> bool:
    """Make the session what its node knows it to be; False if the owner does not have its transaction."""
    session = held.session
    held.close_pages(*(held.pages.keys() - state.pages))
    if not state.is_open and session.has_transaction:
        session.rollback()  # of a call whose answer the node did not wait for
    if state.is_lost and not session.has_transaction:
        session.begin(implicit=False)
    elif state.is_open and not session.has_transaction:
        return False
    if state.is_failed:
        session.fail()
    session.namespace, session.timeout_seconds = state.namespace, state.timeout_seconds
    session.is_read_only = state.is_read_only
    return True
