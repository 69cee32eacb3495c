"""Analytical queries of SQL: beside DuckDB on the same Arrow, after changes, and how long the event loop waits."""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.table import Row
from support.executor import Executor
from topics_server import collector
from topics_service.api.sql.analysis.api import Analyses
from topics_service.storage.rocks import RocksStore

_ROWS: Final = 1_000_000
_MIDDLE: Final = 100_000
_BATCH: Final = 10_000
_TIMES: Final = 15
_QUERY: Final = "SELECT g, count(*), sum(n), avg(x) FROM {} GROUP BY g ORDER BY g"
_PLAIN: Final = "SELECT f1, count(*), sum(f2), avg(f3) FROM t GROUP BY f1 ORDER BY f1"


def run(directory: Path) -> list[Row]:
    """Every row of analytical queries."""
    store = RocksStore(directory / "analytics")
    try:
        return asyncio.run(_rows(store))
    finally:
        store.close()


async def _rows(store: RocksStore) -> list[Row]:
    analyses = Analyses(cache_bytes=1 << 30)
    collector.resume()  # as in a server
    async with Executor(timeout_seconds=300, analyses=analyses, store=store) as executor:
        for table, count in (("large", _ROWS), ("middle", _MIDDLE)):
            await executor.run(f"CREATE TABLE {table} (id BIGINT PRIMARY KEY, g INT, n BIGINT, x DOUBLE, t TEXT)")
            for first in range(0, count, _BATCH):
                rows = [[at, at % 100, at * 7, at / 3, f"text {at % 1000}"] for at in range(first, first + _BATCH)]
                reply = await executor.reply(f"INSERT INTO {table} VALUES ($1, $2, $3, $4, $5)", param_rows=rows)
                assert reply.error is None
        loaded = await held(lambda: executor.run("SELECT max(id) FROM (VALUES (1)) v(id)"))
        made = await held(lambda: executor.run(_QUERY.format("large")))
        large = await _median(lambda: executor.run(_QUERY.format("large")))
        later = await held(lambda: executor.run(_QUERY.format("large")))
        peer = await asyncio.to_thread(_peer, analyses)
        await executor.run(_QUERY.format("middle"))
        same = await _median(lambda: executor.run(_QUERY.format("middle")))
        after: list[float] = []
        for at in range(_TIMES):
            await executor.run("UPDATE middle SET n = n + 1 WHERE id = $1", at * 6007)
            started = time.perf_counter()
            await executor.run(_QUERY.format("middle"))
            after.append(time.perf_counter() - started)
    changed = statistics.median(after)
    return [
        Row("GROUP BY over 1 M rows", large * 1e3, "ms", "2x", peer * 1e3, "DuckDB on the same Arrow"),
        Row("GROUP BY over 100 k rows, one changed before", changed * 1e3, "ms", "1.3x", same * 1e3, "none changed"),
        Row("GROUP BY over 1 M rows, for the first time", made.took, "s"),
        Row("longest pause of the event loop meanwhile", made.longest * 1e3, "ms", "25", note=of_loop(made)),
        Row("longest pause of the event loop in a later one", later.longest * 1e3, "ms", "25", note=of_loop(later)),
        Row(
            "longest pause of the event loop when DuckDB is loaded",
            loaded.longest * 1e3,
            "ms",
            note="once in a process",
        ),
    ]


async def _median(call: Callable[[], Awaitable[Any]]) -> float:
    times = []
    for _ in range(_TIMES):
        started = time.perf_counter()
        await call()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


class Held(NamedTuple):
    """The seconds that a call took, the longest pause of the event loop meanwhile, and the longest time that the loop's
    own thread computed without a pause: on a machine with other work the first has that of others in it."""

    took: float
    longest: float
    computed: float


async def held(call: Callable[[], Awaitable[Any]]) -> Held:
    """Call, and watch the event loop."""
    longest = computed = 0.0

    async def watch() -> None:
        nonlocal longest, computed
        while True:
            before, cpu = time.perf_counter(), time.thread_time()
            await asyncio.sleep(0.001)
            longest = max(longest, time.perf_counter() - before - 0.001)
            computed = max(computed, time.thread_time() - cpu)

    watcher = asyncio.create_task(watch())
    await asyncio.sleep(0.01)
    started = time.perf_counter()
    await call()
    took = time.perf_counter() - started
    await asyncio.sleep(0.01)  # the end of the call may be what held it
    watcher.cancel()
    return Held(took, longest, computed)


def of_loop(found: Held) -> str:
    """A note on a pause."""
    return f"{found.computed * 1e3:.1f} ms of it CPU of the loop"


def _peer(analyses: Analyses) -> float:
    """DuckDB alone, with one thread as the server has, on the Arrow that the server keeps."""
    import duckdb

    arrow = max((kept.current for kept in analyses.kept()), key=lambda table: int(table.num_rows))
    cursor = duckdb.connect(":memory:", config={"threads": "1"}).cursor()
    cursor.register("t", arrow)
    times = []
    for _ in range(_TIMES):
        started = time.perf_counter()
        cursor.sql(_PLAIN).fetchall()
        times.append(time.perf_counter() - started)
    return statistics.median(times)
