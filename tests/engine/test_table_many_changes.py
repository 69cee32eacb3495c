"""Changes of many rows: right, without an object for each that the collector of garbage would look at, and without a
dictionary that takes long to grow."""

import gc
from collections.abc import AsyncIterator, Sequence
from random import Random
from typing import Any, cast

import pytest

from support.executor import Executor
from topics_service.engine.errors import TopicsError
from topics_service.engine.tables import plans
from topics_service.engine.tables.scanning import Found
from topics_service.engine.tables.spread import Spread
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


def test_spread_changes_are_those_of_one_dictionary() -> None:
    random, expected = Random(7), dict[bytes, bytes | None]()
    spread = Spread({})
    assert not spread
    for _ in range(5000):
        key, value = random.randbytes(1), random.choice((None, random.randbytes(3)))
        if random.random() < 0.3 and key in expected:
            del spread[key], expected[key]
        else:
            spread[key] = expected[key] = value
        other = random.randbytes(1)
        assert (other in spread) == (other in expected)
        assert spread.get(other, b"none") == expected.get(other, b"none")
    assert dict(spread.items()) == dict(spread) == expected
    assert len(spread) == len(expected)
    assert spread
    copy = spread.copy()
    copy[b"more"] = None
    assert b"more" not in spread
    with pytest.raises(KeyError):
        spread[b"more"]


async def test_the_changes_of_a_large_transaction_are_spread(sql: Executor) -> None:
    """With a unique index, savepoints and the transaction's own reads before and after the change is made."""
    await sql.run("CREATE TABLE u (id INT PRIMARY KEY, n INT UNIQUE)")
    reader, tables = Reader(), sql.sql.tables
    transaction = tables.begin()

    def run(text: str, rows: Sequence[Sequence[int]] = ((),)) -> Sequence[Sequence[Any]]:
        plan = reader.bind(reader.parse(text)[0], tables.newest, "default")
        steps = transaction.run_many(cast("plans.Change", plan.action), rows)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                return cast("Sequence[Sequence[Any]]", done.value.rows)

    insert = "INSERT INTO u VALUES ($1, $2)"
    run(insert, [(at, -at) for at in range(1000)])
    assert isinstance(transaction.staged.rows, dict)
    assert run("SELECT count(*) FROM u") == [(1000,)]
    transaction.savepoint("small")
    run(insert, [(at, -at) for at in range(1000, 8000)])
    rows = transaction.staged.rows
    assert isinstance(rows, Spread)
    assert rows.largest < 8000 / 16
    run("DELETE FROM u WHERE id >= 7000")
    transaction.savepoint("large")
    run("UPDATE u SET n = n - 100000 WHERE id < 10")
    assert run("SELECT id, n FROM u WHERE n < -90000 ORDER BY id") == [[at, -at - 100000] for at in range(10)]
    transaction.rollback_to("large")
    assert run("SELECT count(*) FROM u") == [(7000,)]
    with pytest.raises(TopicsError, match="unique key"):
        run(insert, [(9000, -5000)])
    transaction.rollback_to("small")
    assert isinstance(transaction.staged.rows, dict)
    assert run("SELECT count(*) FROM u") == [(1000,)]
    run(insert, [(at, -at) for at in range(1000, 8000)])
    transaction.commit()
    assert await sql.run("SELECT count(*) FROM u") == [[8000]]
    assert await sql.run("SELECT id FROM u WHERE n = -7999") == [[7999]]
