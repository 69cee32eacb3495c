"""Live queries: a snapshot of the rows of a query, then its changes, once for all protocols.

Nothing waits for a slow reader: each frame is made of the log of changes when it is asked for, and one that is read too
late becomes a gap and a fresh snapshot.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final

from msgspec import Struct

from topics_service.api.access.auth import Principal
from topics_service.api.sql import rights
from topics_service.api.sql.outcomes import outputs_of, placed
from topics_service.api.sql.parameters import one_row
from topics_service.api.sql.plancache import MAX_TEXT, PlanCache
from topics_service.api.sql.reader import SqlReader
from topics_service.api.sql.requests import ResultColumn
from topics_service.api.sql.seenschema import SeenSchema
from topics_service.engine.engine import Engine
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.tables import plans
from topics_service.engine.tables.changelog import ChangeLog, Position, read_position
from topics_service.engine.tables.errors import sql_error
from topics_service.engine.tables.live import LiveQueries, LiveQuery, RowChanges
from topics_service.engine.tables.model import DEFAULT_NAMESPACE
from topics_service.engine.tables.types import Value
from topics_service.engine.watch.frames import HeartbeatFrame
from topics_service.statistics import LiveStatistics

HEARTBEAT_SECONDS: Final = 15.0
_FRAME_ROWS: Final = 500
_FRAME_BYTES: Final = 256 << 10
_VALUE_BYTES: Final = 8
_TURN_CHANGES: Final = 256
_END: Final[Sequence[Value]] = ()
"""Stands for no further row: a row has columns."""


class LiveRequest(Struct, kw_only=True):
    """A live query, with the position to continue behind; None: begin with a snapshot."""

    sql: str
    params: Sequence[Any] | None = None
    namespace: str = DEFAULT_NAMESPACE
    after: str | None = None


class LiveOpened(Struct, frozen=True):
    """The first frame: the query is open, and its rows have these columns."""

    columns: tuple[ResultColumn, ...]


class LiveRows(Struct, frozen=True):
    """Rows of one moment. With its position they are the last of them."""

    rows: Sequence[Sequence[Value]]
    position: str | None


class LiveCaughtUp(Struct, frozen=True):
    """There is nothing more at this moment."""

    position: str


class LiveGap(Struct, frozen=True):
    """Changes are missing, and a snapshot follows."""

    from_position: str
    to_position: str
    reason: str


LiveFrame = LiveOpened | LiveRows | LiveCaughtUp | RowChanges | LiveGap | HeartbeatFrame


class LiveApi:
    """Follows queries for all protocols."""

    def __init__(
        self,
        admit: Callable[[], Engine],
        settle: Callable[[int], Awaitable[None]],
        reader: SqlReader,
        connection: Callable[[Principal], AbstractContextManager[None]],
        notify_on_drain: Callable[[asyncio.Event], AbstractContextManager[None]],
        statistics: LiveStatistics,
    ) -> None:
        """`connection` holds a slot of long-lived connections."""
        self.max_queries = 10_000
        """Of all callers; set by the composition root."""
        self.heartbeat_seconds = HEARTBEAT_SECONDS
        self.statistics = statistics
        self.queries = LiveQueries()
        self._plans = PlanCache(_LiveReader(reader), max_texts=1000, max_chars=1 << 20)
        self._admit = admit
        self._settle = settle
        self._connection = connection
        self._notify_on_drain = notify_on_drain

    async def follow(
        self, request: LiveRequest, *, principal: Principal, slot: bool = True
    ) -> AsyncGenerator[LiveFrame, None]:
        """The frames of a live query, the first of which says that it is open; closing it ends it.

        Raises the errors of a SELECT, `throttled`, and later `schema_changed`, `table_not_found`, `shutting_down`. With
        `slot` it takes a connection slot.
        """
        after = None if request.after is None else read_position(request.after)
        await self._settle(self._admit().tables.catalog.ticket)  # the newest definitions are those that readers see
        is_long = len(request.sql) > MAX_TEXT
        try:
            plan, parameters = (
                await asyncio.to_thread(self._planned, request, principal)
                if is_long
                else self._planned(request, principal)
            )
        except TopicsError as error:
            raise placed(error) from None
        with self._connection(principal) if slot else nullcontext(), self._used(plan, parameters) as query:
            woken = asyncio.Event()
            try:
                with self._notify_on_drain(woken):
                    log = await self._log(query.table.number, woken.set)
                    try:
                        yield LiveOpened(outputs_of(plan.select.outputs))
                        async for frame in _Stream(self, query, log, woken).frames(after):
                            yield frame
                    finally:
                        log.unfollow(woken.set)
            except TopicsError as error:
                raise placed(error) from None

    def _planned(self, request: LiveRequest, principal: Principal) -> tuple[plans.Subscribe, Sequence[Value]]:
        script = self._plans.read(request.sql)
        if len(script.statements) != 1:
            raise sql_error(Reason.SYNTAX_ERROR, "a live query is one statement")
        schema, namespace = self._admit().tables.schema, request.namespace or DEFAULT_NAMESPACE
        seen = None if principal.prefixes is None else SeenSchema(schema, principal)
        try:
            plan = self._plans.plan(script, 0, seen or schema, namespace)
        except TopicsError as error:
            error = error if seen is None else seen.refused(error)
            raise placed(error, 0, script.statements[0].place) from None
        if not isinstance(plan.action, plans.Subscribe):
            raise placed(
                sql_error(Reason.UNSUPPORTED_SQL, "a live query is SELECT or SUBSCRIBE TO"),
                0,
                script.statements[0].place,
            )
        rights.check(plan.action, principal, self._admit().tables.newest.tables.get)
        return plan.action, one_row(request.params or (), plan.parameters, exactly=True)

    @contextmanager
    def _used(self, plan: plans.Subscribe, parameters: Sequence[Value]) -> Iterator[LiveQuery]:
        if self.max_queries and self.statistics.queries >= self.max_queries:
            detail = {"limit": "max_live_queries", "max": self.max_queries}
            raise TopicsError(Reason.THROTTLED, "the server has reached its limit of live queries", detail)
        query = self.queries.use(self._admit().tables, plan, parameters)
        self.statistics.queries += 1
        try:
            yield query
        finally:
            self.statistics.queries -= 1
            self.queries.leave(query)

    def engine(self) -> Engine:
        """The engine, if the server takes calls. Raises `shutting_down` while it drains, and others."""
        engine = self._admit()
        if engine.draining:
            raise TopicsError(Reason.SHUTTING_DOWN, "the server is shutting down")
        return engine

    def now_ms(self) -> int:
        """The time for heartbeats."""
        return self.engine().tables.clock.now_ms()

    async def _log(self, table: int, call: Callable[[], None]) -> ChangeLog:
        """The log of a table, made if there is none, whose changes follow any snapshot from now on; `call` is called
        for each that is new, until it is unfollowed."""
        changes = self.engine().tables.changes
        log = changes.begin(table)
        log.followers.add(call)
        try:
            await self._settle(log.since)
        except BaseException:
            log.unfollow(call)
            raise
        return log


class _Stream:
    """The frames of one follower, made as they are asked for."""

    def __init__(self, api: LiveApi, query: LiveQuery, log: ChangeLog, woken: asyncio.Event) -> None:
        self._api = api
        self._query = query
        self._log = log
        self._woken = woken
        self._at = 0
        """The number of the last change that was looked at."""
        self._told = -1
        """The number of the last change whose position the reader knows; -1 until it knows one."""

    async def frames(self, after: Position | None) -> AsyncGenerator[LiveFrame, None]:
        """All frames, until an error ends them."""
        api, log, woken = self._api, self._log, self._woken
        gap = None if after is None else self._gap(after)
        if after is not None and gap is None:
            self._at = after.change
        elif after is None and not self._query.plan.snapshot:
            self._at = log.shown
        else:
            async for frame in self._snapshot(gap):
                yield frame
        is_caught_up = False
        while True:
            woken.clear()
            api.engine()
            self._query.check()
            try:
                found = self._next()
            except LookupError:
                is_caught_up = False
                async for frame in self._snapshot((log.position(self._at).text, "too_old")):
                    yield frame
                continue
            if found is not None:
                self._told = self._at
                api.statistics.changes += len(found.changes)
                yield found
            elif self._at < log.shown:
                await asyncio.sleep(0)
            elif not is_caught_up:
                is_caught_up = True
                yield self._caught_up()
            else:
                try:
                    async with asyncio.timeout(api.heartbeat_seconds):
                        await woken.wait()
                except TimeoutError:
                    yield HeartbeatFrame(ts=api.now_ms()) if self._told == self._at else self._caught_up()

    def _gap(self, after: Position) -> tuple[str, str] | None:
        """The position that reading can't continue behind, and why not; None if it can."""
        why = self._log.why_not(after)
        return None if why is None else (after.text, why)

    def _caught_up(self) -> LiveCaughtUp:
        self._told = self._at
        return LiveCaughtUp(self._log.position(self._at).text)

    def _next(self) -> RowChanges | None:
        """The changes of the next entries, as many as one turn of the loop has time for. Raises LookupError if they are
        not there any more."""
        found: list[RowChanges] = []
        examined = nbytes = 0
        while examined < _TURN_CHANGES and nbytes < _FRAME_BYTES:
            entry = self._log.read(self._at)
            if entry is None:
                break
            examined += len(entry.changes)
            nbytes += entry.nbytes
            changes = self._query.changes(self._log, entry)
            self._at = entry.last
            if changes is not None:
                found.append(changes)
        if len(found) <= 1:
            return found[0] if found else None
        return RowChanges([change for changes in found for change in changes.changes])

    async def _snapshot(self, gap: tuple[str, str] | None) -> AsyncGenerator[LiveFrame, None]:
        """The rows of this moment, behind the gap that they fill."""
        api, rows = self._api, self._query.rows()
        try:
            row = next(rows, _END)  # now, for all of them to be of one moment
            self._at = self._told = self._log.shown
            position = self._log.position(self._at).text
            if gap is not None:
                api.statistics.gaps += 1
                yield LiveGap(gap[0], position, gap[1])
            found: list[Sequence[Value]] = []
            nbytes = 0
            is_reversed = self._query.plan.last_rows is not None
            while row is not _END:
                if row is None:
                    await asyncio.sleep(0)
                    api.engine()
                else:
                    found.append(row)
                    nbytes += _weight(row)
                    if not is_reversed and (len(found) == _FRAME_ROWS or nbytes >= _FRAME_BYTES):
                        api.statistics.rows += len(found)
                        yield LiveRows(found, None)
                        found, nbytes = [], 0
                row = next(rows, _END)
        finally:
            rows.close()
        api.statistics.rows += len(found)
        if is_reversed:
            found.reverse()
            for start in range(0, len(found) - _FRAME_ROWS, _FRAME_ROWS):
                yield LiveRows(found[start : start + _FRAME_ROWS], None)
            found = found[len(found) - (len(found) % _FRAME_ROWS or min(len(found), _FRAME_ROWS)) :]
        yield LiveRows(found, position)


class _LiveReader:
    """Implements SqlReader for texts of live queries."""

    def __init__(self, reader: SqlReader) -> None:
        self.parse = self.parse_live = reader.parse_live
        self.bind = reader.bind


def _weight(row: Sequence[Value]) -> int:
    """The bytes of a row, about."""
    nbytes = _VALUE_BYTES * len(row)
    for value in row:
        if value.__class__ is str or value.__class__ is bytes:
            nbytes += len(value)
    return nbytes
