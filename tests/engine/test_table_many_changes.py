"""Changes of many rows: right, and without an object for each that the collector of garbage would look at."""

import gc
from collections.abc import AsyncIterator
from typing import cast

import pytest

from support.executor import Executor
from topics_service.engine.tables import plans
from topics_service.engine.tables.scanning import Found
from topics_sql.reader import Reader

ROWS = 5000


@pytest.fixture
async def sql() -> AsyncIterator[Executor]:
    async with Executor() as executor:
        for first in range(0, ROWS, 1000):
            rows = [[at, at % 7] for at in range(first, first + 1000)]
            await executor.reply("INSERT INTO t VALUES ($1, $2)", param_rows=rows)
        yield executor


async def test_each_of_many_rows_is_changed_once(sql: Executor) -> None:
    changed = await sql.reply("UPDATE t SET n = n + id WHERE n > 2")
    assert changed.results[0].row_count == sum(at % 7 > 2 for at in range(ROWS))
    expected = [[at, at % 7 + (at if at % 7 > 2 else 0)] for at in range(ROWS)]
    assert await sql.run("SELECT * FROM t ORDER BY id") == expected
    gone = await sql.run("DELETE FROM t WHERE id >= 1000 RETURNING id, n")
    assert gone == expected[1000:]
    assert await sql.run("SELECT count(*) FROM t") == [[1000]]


@pytest.mark.parametrize("text", ["UPDATE t SET n = 0 WHERE n > 0", "DELETE FROM t"])
async def test_rows_that_wait_to_be_changed_are_bytes(sql: Executor, text: str) -> None:
    reader, tables = Reader(), sql.sql.tables
    plan = reader.bind(reader.parse(text)[0], tables.newest, "default")
    transaction = tables.begin()
    gc.collect()
    before = len(gc.get_objects())
    most = most_found = 0
    for number, _ in enumerate(transaction.run(cast("plans.Change", plan.action))):
        if number % 8:
            continue
        gc.collect()  # it stops to look at tuples of bytes
        objects = gc.get_objects()
        most = max(most, len(objects) - before)
        most_found = max(most_found, sum(type(each) is Found for each in objects))
    transaction.rollback()
    assert 500 < most_found < ROWS / 2
    assert most < ROWS
