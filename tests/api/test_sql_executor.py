"""Execution of SQL on an engine in memory: order of writes, timeouts, cancelled requests, the cache of plans."""

import asyncio
import threading
from collections.abc import Generator
from typing import Any

import pytest

from support.executor import Executor
from topics_service.api.access.auth import Principal, Role
from topics_service.api.scheduling.pressure import Pressure
from topics_service.api.sql.plancache import PlanCache
from topics_service.engine.clock import SystemClock
from topics_service.engine.engine import Engine
from topics_service.engine.errors import Reason
from topics_service.engine.tables.outcomes import Outcome
from topics_service.engine.tables.transaction import TableTransaction
from topics_service.storage.memory import MemoryStore
from topics_sql.reader import Reader


def slow(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Every statement that changes rows goes on until the event is set, in slices, before it does its work."""
    go = asyncio.Event()
    real = TableTransaction.run_many

    def run_many(self: TableTransaction, action: Any, rows: Any) -> Generator[None, None, Outcome]:
        while not go.is_set():
            yield
        return (yield from real(self, action, rows))

    monkeypatch.setattr(TableTransaction, "run_many", run_many)
    return go


async def test_writes_wait_for_their_turn_and_reads_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Executor() as executor:
        await executor.run("INSERT INTO t VALUES (1, 0)")
        go = slow(monkeypatch)
        first = asyncio.create_task(executor.run("UPDATE t SET n = n + 1"))
        await asyncio.sleep(0)
        others = [
            asyncio.create_task(executor.run(text))
            for text in ("UPDATE t SET n = n * 10", "BEGIN; UPDATE t SET n = n + 5; COMMIT", "DROP TABLE IF EXISTS u")
        ]
        definition = asyncio.create_task(executor.run("CREATE TABLE u (id INT PRIMARY KEY)"))
        await asyncio.sleep(0.02)
        assert not any(task.done() for task in (first, *others[:2], definition))
        assert await executor.run("SELECT n FROM t") == [[0]]
        go.set()
        await asyncio.gather(first, *others, definition)
        assert await executor.run("SELECT n FROM t") == [[15]]
        assert await executor.run("SELECT name FROM system.tables ORDER BY name") == [["t"], ["u"]]


async def test_a_statement_that_takes_too_long_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Executor(timeout_seconds=0.05) as executor:
        with monkeypatch.context() as patched:
            slow(patched)
            running = asyncio.create_task(executor.reply("UPDATE t SET n = 1"))
            await asyncio.sleep(0)
            waiting = await executor.refused(Reason.QUERY_TIMEOUT, "DELETE FROM t")
            assert (waiting.detail or {})["sqlstate"] == "57014"
            error = (await running).error
            assert error is not None
            assert error.reason is Reason.QUERY_TIMEOUT
            await executor.refused(Reason.QUERY_TIMEOUT, "BEGIN; INSERT INTO t VALUES (1, 1); COMMIT")
        assert not executor.sql.writing.locked()
        assert await executor.run("SELECT count(*) FROM t") == [[0]]
        assert executor.sql.statistics.timeouts == 3
        await executor.run("INSERT INTO t VALUES (1, 1)")


async def test_a_cancelled_request_is_rolled_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Executor() as executor:
        go = slow(monkeypatch)
        go.set()
        text = "BEGIN; INSERT INTO t VALUES (1, 1); INSERT INTO t SELECT id + 1, n FROM t; COMMIT"
        for statements in ("INSERT INTO t VALUES (7, 7), (8, 8)", text, "UPDATE t SET n = 1"):
            go.clear()
            task = asyncio.create_task(executor.run(statements))
            await asyncio.sleep(0.01)
            assert executor.sql.writing.locked()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not executor.sql.writing.locked()
        go.set()
        assert await executor.run("SELECT count(*) FROM t") == [[0]]
        await executor.run(text)
        assert await executor.run("SELECT id FROM t") == [[1], [2]]


async def test_a_transaction_is_rolled_back_with_its_first_error() -> None:
    async with Executor() as executor:
        reply = await executor.reply("BEGIN; INSERT INTO t VALUES (1, 1); INSERT INTO t VALUES (1, 2); COMMIT")
        assert reply.error is not None
        assert reply.error.reason is Reason.UNIQUE_VIOLATION
        assert [result.message or result.row_count for result in reply.results] == ["BEGIN", 1]
        assert not executor.sql.writing.locked()
        assert await executor.run("SELECT count(*) FROM t") == [[0]]
        for text in ("CONSUME FROM e", "ACK e GROUP 'g' UPTO OFFSET 0", "DROP USER 'x'", "CREATE NAMESPACE x"):
            await executor.run("CREATE TOPIC IF NOT EXISTS e")
            await executor.refused(Reason.UNSUPPORTED_SQL, f"BEGIN; {text}; COMMIT")


async def test_a_query_waits_for_a_definition_that_is_not_durable_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Executor() as executor:
        await executor.run("INSERT INTO t VALUES (1, 2)")
        store, go = executor.engine.writer.store, threading.Event()
        sync = store.sync

        def held() -> None:
            assert go.wait(20)
            sync()

        monkeypatch.setattr(store, "sync", held)
        definition = asyncio.create_task(executor.run("ALTER TABLE t DROP COLUMN n"))
        while len(executor.engine.tables.newest.tables[1].columns) == 2:
            await asyncio.sleep(0)
        query = asyncio.create_task(executor.run("SELECT * FROM t"))
        await executor.run("BEGIN; SELECT * FROM t; ROLLBACK")  # writers go by what is written
        assert not query.done()
        go.set()
        assert await query == [[1]]
        await definition


async def test_no_call_is_taken_while_the_server_stops_or_has_no_room() -> None:
    shortage = Pressure(free_bytes=lambda: 0, min_free_bytes=1)
    async with Executor(pressure=shortage) as executor:
        await executor.refused(Reason.THROTTLED, "INSERT INTO t VALUES (1, 1)")
        await executor.refused(Reason.THROTTLED, "BEGIN; INSERT INTO t VALUES (1, 1); COMMIT")
        assert not executor.sql.writing.locked()
        assert await executor.run("SELECT count(*) FROM t") == [[0]]
        executor.engine.draining = True
        await executor.refused(Reason.SHUTTING_DOWN, "SELECT 1")


async def test_parameters_of_several_statements() -> None:
    async with Executor() as executor:
        rows = await executor.run("INSERT INTO t VALUES ($1, $2); SELECT n FROM t WHERE id = $1", 1, 5)
        assert rows == [[5]]
        await executor.refused(Reason.INVALID_REQUEST, "SELECT $1; SELECT $2", 1)
        await executor.refused(Reason.INVALID_REQUEST, "SELECT 1", 1)
        await executor.refused(Reason.INVALID_REQUEST, "SELECT 1", param_rows=[[]])
        await executor.refused(Reason.INVALID_REQUEST, "DELETE FROM t WHERE id = $1", param_rows=[[1]] * 10_001)
        await executor.run("DELETE FROM t WHERE id = $1", param_rows=[[1]] * 10_000)
        assert await executor.run("SELECT count(*) FROM t") == [[0]]


async def test_rights_come_from_the_statement() -> None:
    async with Executor() as executor:
        user = Principal("user:a", frozenset(), None, Role.USER)
        await executor.run("INSERT INTO t VALUES (1, 1)", principal=user)
        await executor.refused(Reason.FORBIDDEN, "INSERT INTO t VALUES (2, 2); DROP TABLE t", principal=user)
        assert await executor.run("SELECT count(*) FROM t") == [[2]], "the statement before it stays"
        nobody = Principal("key1", frozenset(), None)
        for text in ("SELECT 1", "SELECT * FROM t", "DELETE FROM t", "EXPLAIN SELECT * FROM t"):
            await executor.refused(Reason.FORBIDDEN, text, principal=nobody)


async def test_plans_follow_the_catalog() -> None:
    async with Executor() as executor:
        query = "SELECT * FROM t"
        await executor.run("INSERT INTO t VALUES (1, 1)")
        assert await executor.run(query) == [[1, 1]]
        await executor.run("ALTER TABLE t ADD COLUMN s TEXT DEFAULT 'x'")
        assert await executor.run(query) == [[1, 1, "x"]]
        await executor.run("DROP TABLE t")
        await executor.refused(Reason.TABLE_NOT_FOUND, query)
        await executor.run("CREATE TABLE t (a TEXT PRIMARY KEY)")
        assert await executor.run(query) == []
        statistics = executor.sql.plans.statistics
        before = statistics.hits
        for _ in range(5):
            await executor.run(query)
        assert statistics.hits == before + 5


def test_the_cache_is_bounded() -> None:
    cache = PlanCache(Reader(), max_texts=3, max_chars=100)
    for number in range(10):
        cache.read(f"SELECT {number}")
    assert cache.size == 3 * len("SELECT 9")
    cache.read("SELECT 9")
    assert cache.statistics.hits == 1
    cache.read(f"SELECT '{'x' * 95}'")
    assert cache.size <= 100
    cache.read(f"SELECT '{'x' * (32 << 10)}'")
    assert cache.size <= 100, "a long text is not kept"
    schema = Engine(MemoryStore(), SystemClock()).tables.schema
    script = cache.read("SELECT 1")
    for number in range(200):
        cache.plan(script, 0, schema, f"n{number}")
    assert len(script.plans) <= 64
