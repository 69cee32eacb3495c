"""Tables that are too large to be kept as Arrow are read in parts, by queries of one moment."""

import asyncio
from decimal import Decimal
from typing import Any

import pytest

from support.executor import Executor
from topics_service.api.sql.analysis import cache, stream
from topics_service.api.sql.analysis.api import Analyses
from topics_service.engine.errors import Reason
from topics_service.storage.rocks import RocksStore

ROWS = 6000
"""More than a part has, and than the cache below keeps."""


async def made(cache_bytes: int = 100_000, **members: Any) -> Executor:
    executor = await Executor(analyses=Analyses(cache_bytes=cache_bytes), **members).__aenter__()
    await executor.run("CREATE TABLE few (id INT PRIMARY KEY, n DECIMAL)")
    await executor.run("INSERT INTO few VALUES (1, 1.25), (2, NULL)")
    await executor.reply("INSERT INTO t VALUES ($1, $1)", param_rows=[[at] for at in range(ROWS)])
    return executor


async def test_answers_are_those_of_tables_that_are_kept() -> None:
    large, kept = await made(), await made(64 << 20)
    texts = (
        "SELECT count(*), sum(n), min(id), max(id) FROM t WHERE true HAVING true",
        "SELECT n % 7, count(*) FROM t GROUP BY 1 ORDER BY 1",
        "SELECT count(*), sum(a.n) FROM t a JOIN t b ON a.id + 1 = b.id JOIN few ON few.id = a.id",
        "WITH q AS (SELECT id, n FROM t WHERE n > 10) SELECT sum(a.n) FROM q a JOIN q b USING (id)",
        "SELECT id FROM few WHERE id IN (SELECT n FROM t) AND EXISTS (SELECT 1 FROM t WHERE t.id = few.id + 1)",
        "SELECT id, sum(n) OVER (ORDER BY id) FROM t ORDER BY id DESC LIMIT 3",
        "SELECT id FROM t UNION SELECT -1 ORDER BY 1 LIMIT 2",
    )
    for text in texts:
        for _ in range(2):
            assert await large.run(text) == await kept.run(text), text
    assert kept.sql.analyses.size > large.sql.analyses.size
    assert large.sql.analyses.large() == ["default.t"]
    assert kept.sql.analyses.large() == []
    shown = await large.run("EXPLAIN SELECT sum(t.n) FROM t, few")
    assert [line for (line,) in shown if "in parts" in line] == [
        "  read default.t in parts: it takes more than TOPICS_SQL_CACHE_BYTES"
    ]
    assert not any("in parts" in line for (line,) in await large.run("EXPLAIN SELECT n FROM t"))
    for executor in (large, kept):
        await executor.__aexit__()


async def test_changes_and_transactions_read_them_as_well() -> None:
    executor = await made()
    assert (await executor.reply("DELETE FROM t WHERE id % 2 = (SELECT 1)")).results[0].row_count == ROWS // 2
    reply = await executor.reply(
        "BEGIN; INSERT INTO t VALUES (1, 7), (100000, 5); UPDATE t SET n = 0 WHERE id = 2; "
        "SELECT count(*), sum(n), max(id) FROM t; ROLLBACK"
    )
    evens = sum(range(0, ROWS, 2))
    assert [list(row) for row in reply.results[3].rows] == [[ROWS // 2 + 2, evens - 2 + 12, 100000]]
    assert await executor.run("SELECT sum(n), max(id) FROM t") == [[evens, ROWS - 2]]
    await executor.__aexit__()


async def test_a_query_is_of_one_moment_under_writers(tmp_path: Any) -> None:
    store = RocksStore(tmp_path)
    executor = await made(store=store)
    going = True

    async def move() -> None:
        at = 0
        while going:
            at = (at + 1) % ROWS
            await executor.run(f"UPDATE t SET n = CASE id WHEN {at} THEN n - 3 ELSE n + 3 END WHERE id IN ({at}, 0)")
            await asyncio.sleep(0)

    mover = asyncio.create_task(move())
    try:
        for _ in range(4):
            found = await executor.run("SELECT (SELECT sum(n) FROM t), (SELECT sum(a.n) FROM t a JOIN t b USING (id))")
            assert found[0][0] == found[0][1]
    finally:
        going = False
        await mover
    await executor.__aexit__()
    store.close()


async def test_bounds_and_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = await made()
    nine = " UNION ALL ".join(["SELECT max(n) FROM t"] * (stream.SCANS + 1))
    error = await executor.refused(Reason.QUERY_TOO_LARGE, nine)
    assert "default.t" in str(error)
    assert await executor.run(nine.removeprefix("SELECT max(n) FROM t UNION ALL ")) == [[ROWS - 1]] * stream.SCANS
    await executor.run("CREATE TABLE d (id INT PRIMARY KEY, n DECIMAL)")
    await executor.reply("INSERT INTO d VALUES ($1, 0.5)", param_rows=[[at] for at in range(ROWS)])
    assert await executor.run("SELECT sum(n), max(n) FROM d") == [[Decimal(ROWS) / 2, Decimal("0.5")]]
    await executor.run("UPDATE d SET n = 1e30 WHERE id = 5")
    reply = await executor.reply("SELECT sum(n) FROM d")
    assert reply.error is not None
    assert (reply.error.detail or {})["sqlstate"] == "22003"
    await executor.run("TRUNCATE TABLE t")
    assert await executor.run("SELECT max(n) FROM t") == [[None]]
    assert executor.sql.analyses.large() == ["default.d"]
    monkeypatch.setattr(cache, "LARGE_SECONDS", 0.0)
    await executor.__aexit__()


async def test_the_timeout_ends_a_query_that_streams() -> None:
    executor = await made(timeout_seconds=1.0)
    await executor.refused(Reason.QUERY_TIMEOUT, "SELECT sum(a.n * b.n % 7 + c.n % 3) FROM t a, t b, t c")
    assert await executor.run("SELECT max(n) FROM t") == [[ROWS - 1]]
    await executor.__aexit__()


async def test_arrow_that_a_query_holds_is_counted_after_it_was_dropped() -> None:
    executor = await made(64 << 20)
    await executor.run("SELECT max(n) FROM t")
    kept = executor.sql.analyses._cache
    assert kept is not None
    before = kept.nbytes
    (number,) = [each.runtime.table.number for each in kept.kept()]
    taken = {number: next(kept.kept()).current}
    with kept.holding(taken), kept.holding(taken):
        assert kept.nbytes == before
        await executor.run("ALTER TABLE t ADD COLUMN more INT")
        assert list(kept.kept()) == []
        assert kept.nbytes >= ROWS * 8
    assert kept.nbytes == 0
    await executor.__aexit__()
