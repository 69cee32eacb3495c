"""Queries of the catalog, answered for sessions: rows of the system tables, in DuckDB, in threads, within bounds."""

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from topics_postgres import oids
from topics_postgres.catalog.objects import SOURCES, Rows, of_caller
from topics_postgres.decoding import array_text
from topics_postgres.errors import PgError, Piece
from topics_service.api.sql.analysis.api import check_installed, until
from topics_service.api.sql.analysis.duck import StoppedError
from topics_service.api.sql.requests import ResultColumn, SqlResult
from topics_service.api.sql.session import Answer
from topics_service.api.sql.sessions import Session
from topics_service.engine.errors import TopicsError

if TYPE_CHECKING:
    from topics_postgres.catalog.database import Database, Run
    from topics_postgres.catalog.tree import Query

T = TypeVar("T")

THREADS: Final = 2
"""Queries that run at the same time."""
MAX_WAITING: Final = 64
"""Queries that wait for their turn; more are refused."""
MAX_KEPT: Final = 4
"""Catalogs that are kept: callers with other rights see another one."""
_USERS: Final = "SELECT name, role FROM system.users"
_SECONDS: Final = 30.0


class Asking(NamedTuple):
    """Inputs of an answer beside the text: variables of the session by name, its functions, and its rights."""

    variables: dict[str, Any]
    function: Callable[[str, list[str]], Any]
    rights: Hashable


class _Job:
    """The work on one query in a thread."""

    def __init__(
        self, catalogs: "Catalogs", sources: tuple[Rows, ...], piece: Piece, given: Sequence[int], asking: Asking
    ) -> None:
        self._catalogs = catalogs
        self._sources = sources
        self._piece = piece
        self._given = given
        self._asking = asking
        self._run: Run | None = None
        self._is_stopped = False

    def stop(self) -> None:
        """End the work, which raises StoppedError."""
        self._is_stopped = True
        if self._run is not None:
            self._run.stop()

    def describe(self) -> tuple[tuple[int, ...], tuple[ResultColumn, ...]]:
        """The OIDs of the parameters and the columns."""
        with self._catalogs.database(self._sources, self._asking.rights) as database:
            run, query = self._made(database, with_values=False)
            parameters = query.parameters
            last = max(len(self._given), *parameters, 0)
            return tuple(parameters.get(number, oids.TEXT) for number in range(1, last + 1)), run.columns()

    def rows(self, values: Sequence[Any]) -> tuple[tuple[ResultColumn, ...], list[Sequence[Any]]]:
        """The columns and the rows."""
        with self._catalogs.database(self._sources, self._asking.rights) as database:
            run, query = self._made(database, with_values=True)
            used = sorted(query.used)
            if used and used[-1] > len(values):
                raise PgError("08P01", f"the query has ${used[-1]}, and {len(values)} values are given")
            return run.rows({str(each): _value(values[each - 1], query.parameters[each]) for each in used})

    def _made(self, database: "Database", *, with_values: bool) -> "tuple[Run, Query]":
        from topics_postgres.catalog.database import Run
        from topics_postgres.catalog.tree import Query

        path = str(self._asking.variables["path"])
        query = Query(
            database.read(self._piece), self._piece, dict(enumerate(self._given, 1)), self._asking.function,
            lambda text: database.regclass(text, path), with_values=with_values,
        )  # fmt: skip
        self._run = run = Run(database, database.text_of(query), self._asking.variables)
        if self._is_stopped:
            raise StoppedError
        return run, query


class Catalogs:
    """Answers for all sessions of a server."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, tuple[Database, tuple[Rows, ...]]] = OrderedDict()
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(THREADS, "pg-catalog")
        self._turns = asyncio.Semaphore(THREADS)
        self._waiting = 0

    def close(self) -> None:
        """Take no more queries."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    @contextmanager
    def database(self, sources: tuple[Rows, ...], rights: Hashable) -> "Iterator[Database]":
        """The catalog made of these rows, for callers of these rights. For threads."""
        with self._lock:
            from topics_postgres.catalog.database import Database

            found, made_of = self._kept.pop(rights, (None, ()))
            if found is None or (made_of != sources and found.users):
                found, made_of = Database(), ()
            if made_of != sources:
                *known, users = sources
                found.fill(of_caller(dict(zip(SOURCES, known, strict=True)), users))
            self._kept[rights] = found, sources
            found.users += 1
            while len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        try:
            yield found
        finally:
            with self._lock:
                found.users -= 1

    async def describe(
        self, sql: Session, piece: Piece, given: Sequence[int], asking: Asking
    ) -> tuple[tuple[int, ...], tuple[ResultColumn, ...]]:
        """The OIDs of the parameters of a query and its columns. Raises PgError."""
        job = await self._job(sql, piece, given, asking)
        return await self._ended(job, job.describe, sql.timeout_seconds)

    async def answer(
        self, sql: Session, piece: Piece, values: Sequence[Any], given: Sequence[int], asking: Asking
    ) -> Answer:
        """Run a query. Raises PgError."""
        job = await self._job(sql, piece, given, asking)
        columns, rows = await self._ended(job, lambda: job.rows(values), sql.timeout_seconds)
        return Answer("Select", SqlResult(columns=columns, rows=rows, row_count=len(rows)))

    async def _job(self, sql: Session, piece: Piece, given: Sequence[int], asking: Asking) -> _Job:
        _check_installed(piece)
        sources = [await _rows(sql, each) for each in SOURCES.values()]
        sources.append(await _rows(sql, _USERS) if asking.variables["is_superuser"] else ())
        return _Job(self, tuple(sources), piece, given, asking)

    async def _ended(self, job: _Job, work: Callable[[], T], seconds: float) -> T:
        if self._waiting >= MAX_WAITING:
            raise PgError("53000", "too many queries of the catalog wait for their turn")
        deadline = time.monotonic() + min(seconds, _SECONDS)
        self._waiting += 1
        try:
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + seconds):
                await self._turns.acquire()
        except TimeoutError:
            raise _timed_out() from None
        finally:
            self._waiting -= 1
        try:
            return await until(asyncio.get_running_loop().run_in_executor(self._threads, work), job, deadline)
        except StoppedError:
            raise _timed_out() from None
        finally:
            self._turns.release()


def _check_installed(piece: Piece) -> None:
    """Raise without DuckDB. For drivers that look up a type when they connect, there is none of its name."""
    try:
        check_installed()
    except TopicsError as error:
        sqlstate = "42704" if "regtype" in piece.text.lower() else "0A000"
        raise PgError(sqlstate, error.message) from None


async def _rows(sql: Session, query: str) -> Rows:
    """All rows of a query of the engine."""
    answer = await sql.execute(query, paged=True)
    rows = list(map(tuple, answer.result.rows))
    if answer.pages is not None:
        try:
            while more := await answer.pages.next():
                rows.extend(map(tuple, more))
        finally:
            answer.pages.close()
    return tuple(rows)


def _value(value: Any, oid: int) -> Any:
    """A value of a parameter as DuckDB takes it: an array may have come as text."""
    if oid in oids.ELEMENTS and isinstance(value, str):
        return array_text(value)
    if isinstance(value, str | int | float | bool | list) or value is None:
        return value
    return str(value)


def _timed_out() -> PgError:
    return PgError("57014", "canceling statement due to statement timeout")
