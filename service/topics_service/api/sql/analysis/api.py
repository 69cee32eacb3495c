"""Analytical queries of all requests: their tables as Arrow, and DuckDB in threads, within bounds."""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from itertools import islice
from typing import Any, Final, Protocol, TypeVar

from topics_service.api.sql.analysis import columns
from topics_service.api.sql.analysis.cache import ROWS_A_SLICE, ArrowCache, Kept, Steps
from topics_service.api.sql.analysis.duck import Duck, Rows, Run, StoppedError
from topics_service.api.sql.analysis.topic_rows import Held, TopicRows
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.tables import plans
from topics_service.engine.tables.errors import sql_error
from topics_service.engine.tables.outcomes import Outcome
from topics_service.engine.tables.runtime import DAMAGE, unreadable
from topics_service.engine.tables.system_schema import SYSTEM_TABLES
from topics_service.engine.tables.tables import Tables
from topics_service.engine.tables.transaction import TableTransaction
from topics_service.engine.tables.types import Value
from topics_service.statistics import CacheStatistics

EXTRA: Final = "analytics"
THREADS: Final = 2
"""Queries that run at the same time, beside the one of who has the order of writes."""
MAX_WAITING: Final = 64
"""Queries that wait for their turn; more are refused."""
_STOPPING: Final = 0.05

T = TypeVar("T")
SystemRows = Callable[[str], Iterable[Sequence[Value]]]


class Analyses:
    """Runs `plans.Analysis`."""

    def __init__(self, *, cache_bytes: int = 256 << 20, memory_bytes: int = 512 << 20) -> None:
        self.statistics = CacheStatistics()
        self._cache_bytes = cache_bytes
        self._memory_bytes = memory_bytes
        self._cache: ArrowCache | None = None
        self._duck: Duck | None = None
        self._threads = ThreadPoolExecutor(THREADS + 1, "sql-analysis")
        self._held = Held(cache_bytes)
        self._turns = asyncio.Semaphore(THREADS)
        self._waiting = 0

    @property
    def size(self) -> int:
        """The bytes of tables that are kept as Arrow."""
        return 0 if self._cache is None else self._cache.nbytes

    def kept(self) -> Iterator[Kept]:
        """The tables that are kept."""
        return iter(()) if self._cache is None else self._cache.kept()

    def large(self) -> list[str]:
        """The tables that are known to be too large to be kept, and are read in parts."""
        return [] if self._cache is None else self._cache.large()

    def told(self, action: plans.Explain) -> plans.Explain:
        """EXPLAIN with the tables that are too large now to be kept."""
        large = {f"read {name}" for name in self.large() if name in action.analyzed}
        how = " in parts: it takes more than TOPICS_SQL_CACHE_BYTES"
        return plans.Explain(tuple(f"{line}{how}" if line.strip() in large else line for line in action.lines))

    def close(self) -> None:
        """Take no more queries."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def run(
        self,
        action: plans.Analysis,
        parameters: Sequence[Value],
        tables: Tables,
        system: SystemRows,
        deadline: float,
        finish: Callable[[Steps], Any],
        transaction: TableTransaction | None = None,
        result: Rows | None = None,
    ) -> Outcome:
        """Run a query. `finish` runs steps to the end, with turns for others between, until the deadline.

        In a transaction, it sees what that sees, and leaves it pinned to the moment of the query. `result` collects
        the rows, else a `Result` does.

        Raises `unsupported_sql` without DuckDB, `query_too_large`, `result_too_large`, `throttled`, and StoppedError
        at the deadline.
        """
        check_installed()
        if transaction is not None and transaction.has_order:  # all others who write wait for it
            return await self._run(action, parameters, tables, system, deadline, finish, transaction, result)
        if self._waiting >= MAX_WAITING:
            message = "too many analytical queries wait for their turn"
            raise TopicsError(Reason.THROTTLED, message, {"retry_after_ms": 500}, retry_after_ms=500)
        self._waiting += 1
        try:
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + max(0.0, deadline - time.monotonic())):
                await self._turns.acquire()
        except TimeoutError:
            raise StoppedError from None
        finally:
            self._waiting -= 1
        try:
            return await self._run(action, parameters, tables, system, deadline, finish, transaction, result)
        finally:
            self._turns.release()

    async def _run(
        self,
        action: plans.Analysis,
        parameters: Sequence[Value],
        tables: Tables,
        system: SystemRows,
        deadline: float,
        finish: Callable[[Steps], Any],
        transaction: TableTransaction | None,
        result: Rows | None,
    ) -> Outcome:
        loop = asyncio.get_running_loop()
        if self._duck is None or self._duck.calls.is_full:
            self._duck = await loop.run_in_executor(self._threads, Duck, self._memory_bytes)
        if self._cache is None or self._cache.tables is not tables:
            if self._cache is not None:
                self._cache.close()
            self._cache = ArrowCache(tables, self._cache_bytes, self.statistics)
        rows: dict[str, Any] = {}
        now_us = tables.clock.now_ms() * 1000 if transaction is None else transaction.now_us

        topics = TopicRows(tables, action.topics, self._held)

        def others() -> Steps:
            topics.take()  # first, at the moment of the tables
            for name in action.system:
                rows[f"s_{name}"] = yield from _system_rows(name, system)
            yield from tables.at(now_us, topics.read(parameters, rows))

        try:
            await finish(topics.prepare())
            taken = await self._cache.take(action.tables, finish, others, transaction)
            rows.update({f"t{number}": table for number, table in taken.items()})
            run = Run(self._duck, action, parameters, now_us, rows, result)
            with self._cache.holding(taken):
                outcome = await until(loop.run_in_executor(self._threads, run.run), run, deadline)
            return outcome._replace(gaps=topics.gaps)
        except DAMAGE as error:
            raise unreadable(error) from error
        except TopicsError as error:
            if error.reason is Reason.INTERNAL:
                self._duck = None
            raise
        finally:
            topics.close()


class Stoppable(Protocol):
    """Work in a thread."""

    def stop(self) -> None:
        """End the work, which raises StoppedError. Called again until it has ended."""


async def until(work: "asyncio.Future[T]", run: Stoppable, deadline: float) -> T:
    """Wait for a query in a thread; stop it at its deadline, and when the caller is gone."""
    try:
        done, _ = await asyncio.wait([work], timeout=max(0.0, deadline - time.monotonic()))
        if done:
            return work.result()
    except asyncio.CancelledError:
        await asyncio.shield(_stop(work, run))
        raise
    await _stop(work, run)
    return work.result()


async def _stop(work: "asyncio.Future[Any]", run: Stoppable) -> None:
    while not work.done():
        run.stop()
        await asyncio.wait([work], timeout=_STOPPING)
    if not work.cancelled():
        work.exception()


def _system_rows(name: str, system: SystemRows) -> Steps:
    """The rows of a system table as Arrow."""
    kinds = [(place, kind) for place, (_, kind) in enumerate(SYSTEM_TABLES[name])]
    parts = []
    found = iter(system(name))
    while some := list(islice(found, ROWS_A_SLICE)):
        parts.append(columns.chunk(kinds, some))
        yield
    return columns.joined(kinds, parts or [columns.chunk(kinds, ())])


def check_installed() -> None:
    if find_spec("duckdb") is None or find_spec("pyarrow") is None:
        message = f"this query needs DuckDB, which the server has not: it comes with the extra [{EXTRA}]"
        raise sql_error(Reason.UNSUPPORTED_SQL, message, extra=EXTRA)
