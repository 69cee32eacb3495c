"""Queries that DuckDB answers: what they mean, what they refuse, within which bounds."""

import asyncio
import random
import time
from decimal import Decimal
from typing import Any

import pytest

from support.executor import Executor
from topics_service.api.access.auth import Principal, Role
from topics_service.api.sql.analysis import api
from topics_service.api.sql.analysis.api import Analyses
from topics_service.api.sql.analysis.duck import Duck
from topics_service.engine.errors import Reason

WORLD = (
    "CREATE TABLE o (id INT PRIMARY KEY, customer TEXT, total DECIMAL(10, 2), at TIMESTAMP, b BIGINT)",
    "CREATE TABLE l (o INT, n INT, sku TEXT, price DECIMAL(10, 2), PRIMARY KEY (o, n))",
    """INSERT INTO o VALUES (1, 'ada', 10.50, '2026-01-01 10:00', 1), (2, 'bob', 20.25, '2026-01-02 11:30', 2),
    (3, 'ada', NULL, NULL, 9223372036854775807)""",
    "INSERT INTO l VALUES (1, 1, 'a', 1.00), (1, 2, 'b', 2.50), (2, 1, 'a', 1.00)",
)


async def made(**members: Any) -> Executor:
    executor = await Executor(**members).__aenter__()
    for text in WORLD:
        await executor.run(text)
    return executor


ANSWERS: dict[str, list[list[Any]]] = {
    "SELECT customer, count(*), sum(total), avg(total) FROM o GROUP BY customer ORDER BY customer": [
        ["ada", 2, Decimal("10.50"), Decimal("10.5")], ["bob", 1, Decimal("20.25"), Decimal("20.25")],
    ],
    "SELECT avg(id), sum(id), min(b), max(at) FROM o": [[2, 6, 1, 1767353400000000]],
    "SELECT o.id, l.sku, l.price * 2 FROM o JOIN l ON l.o = o.id ORDER BY 1, 2": [
        [1, "a", Decimal("2.00")], [1, "b", Decimal("5.00")], [2, "a", Decimal("2.00")],
    ],
    "SELECT o.id, n FROM o LEFT JOIN l ON l.o = o.id AND n > 1 ORDER BY 1": [[1, 2], [2, None], [3, None]],
    "SELECT id FROM o FULL JOIN (VALUES (2), (9)) x(id) USING (id) ORDER BY 1": [[1], [2], [3], [9]],
    "SELECT id FROM o NATURAL JOIN (SELECT 2 AS id, 'bob' AS customer) b": [[2]],
    "SELECT id, row_number() OVER w, sum(id) OVER (w ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) FROM o "
    "WINDOW w AS (ORDER BY id DESC) ORDER BY id": [[1, 3, 3], [2, 2, 5], [3, 1, 3]],
    "SELECT lag(id, 1, 0) OVER (ORDER BY id), ntile(2) OVER (ORDER BY id) FROM o ORDER BY 1": [[0, 1], [1, 1], [2, 2]],
    "WITH c AS (SELECT customer, count(*) AS n FROM o GROUP BY 1) SELECT a.n, b.n FROM c a JOIN c b USING (customer) "
    "ORDER BY customer": [[2, 2], [1, 1]],
    "WITH RECURSIVE q(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM q WHERE n < 5) SELECT sum(n) FROM q": [[15]],
    "SELECT id FROM o WHERE EXISTS (SELECT 1 FROM l WHERE l.o = o.id AND sku = 'b')": [[1]],
    "SELECT id, (SELECT sum(price) FROM l WHERE l.o = o.id) FROM o ORDER BY id": [
        [1, Decimal("3.50")], [2, Decimal("1.00")], [3, None],
    ],
    "SELECT id FROM o WHERE id NOT IN (SELECT o FROM l)": [[3]],
    "SELECT id FROM o WHERE total > ALL (SELECT price FROM l) ORDER BY id": [[1], [2]],
    "SELECT a.id FROM o a, LATERAL (SELECT count(*) AS n FROM l WHERE l.o = a.id) c WHERE c.n > 1": [[1]],
    "SELECT 1 UNION SELECT 2 UNION ALL SELECT 2 ORDER BY 1": [[1], [2], [2]],
    "SELECT customer FROM o EXCEPT SELECT 'bob' INTERSECT SELECT 'bob'": [["ada"]],
    "(SELECT id FROM o ORDER BY id DESC LIMIT 1) UNION ALL (SELECT 0)": [[3], [0]],
    "VALUES (1, 'a'), (2, NULL)": [[1, "a"], [2, None]],
    "SELECT DISTINCT ON (customer) customer, id FROM o ORDER BY customer, id DESC": [["ada", 3], ["bob", 2]],
    "SELECT o.*, count(*) FROM o JOIN l ON l.o = o.id GROUP BY o.id ORDER BY b DESC LIMIT 1": [
        [2, "bob", Decimal("20.25"), 1767353400000000, 2, 1]
    ],
    "SELECT upper(customer) u FROM o GROUP BY u HAVING count(*) > 1": [["ADA"]],
    "SELECT id + 1, count(*) FROM o GROUP BY id + 1 ORDER BY id + 1 DESC LIMIT 1": [[4, 1]],
    "SELECT string_agg(customer, ',' ORDER BY id DESC) FILTER (WHERE id < 3), count(DISTINCT customer) FROM o": [
        ["bob,ada", 2]
    ],
    "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY id), mode() WITHIN GROUP (ORDER BY customer) FROM o": [
        [2.0, "ada"]
    ],
    "SELECT 7 / 2, -7 / 2, sum(id) / 4 FROM o": [[3, -3, 1]],
    "SELECT max(total) FROM o ORDER BY 1": [[Decimal("20.25")]],
    "SELECT customer, total FROM o GROUP BY 1, 2 ORDER BY total DESC, 1": [
        ["ada", None], ["bob", Decimal("20.25")], ["ada", Decimal("10.50")],
    ],
    "SELECT count(*) FROM o WHERE false HAVING count(*) > 0": [],
    "SELECT o, sku, sum(n), sum(o), grouping(o, sku) FROM l GROUP BY ROLLUP (o, sku) ORDER BY 5, 1, 2": [
        [1, "a", 1, 1, 0], [1, "b", 2, 1, 0], [2, "a", 1, 2, 0], [1, None, 3, 2, 1], [2, None, 1, 2, 1],
        [None, None, 4, 4, 3],
    ],
    "SELECT sku, n + 1, count(*), grouping(sku) FROM l GROUP BY CUBE (sku, (n + 1)) ORDER BY 4, 1, 2": [
        ["a", 2, 2, 0], ["a", None, 2, 0], ["b", 3, 1, 0], ["b", None, 1, 0], [None, 2, 2, 1], [None, 3, 1, 1],
        [None, None, 3, 1],
    ],
    "SELECT grouping(n + 1, o % 2), count(*) FROM l GROUP BY CUBE (n + 1), CUBE (o % 2) ORDER BY 1, 2": [
        [0, 1], [0, 1], [0, 1], [1, 1], [1, 2], [2, 1], [2, 2], [3, 3],
    ],
    "SELECT json_agg(id + 1 ORDER BY id) FROM o": [["[2,3,4]"]],
    "SELECT sku, o, count(*) FROM l GROUP BY o, GROUPING SETS ((sku), ()) HAVING count(*) > 1": [[None, 1, 2]],
    "SELECT count(*), grouping(sku) FROM l GROUP BY sku ORDER BY 1": [[1, 0], [2, 0]],
    "SELECT upper(sku) AS u, rank() OVER (ORDER BY count(*)) FROM l GROUP BY GROUPING SETS ((u), (), ()) "
    "ORDER BY 2, 1": [["B", 1], ["A", 2], [None, 3], [None, 3]],
    "SELECT count(*) FROM l GROUP BY ()": [[3]],
    "SELECT count(*) FROM o WHERE at > TIMESTAMP '2026-01-03' - INTERVAL '1 day' OR at IS NULL HAVING true": [[2]],
    "SELECT CAST(g AS TEXT), count(id) FROM generate_series(DATE '2026-01-31', '2026-03-31', INTERVAL '1 month') AS g "
    "LEFT JOIN o ON date_trunc('month', at) = date_trunc('month', g) GROUP BY g ORDER BY g": [
        ["2026-01-31 00:00:00", 2], ["2026-02-28 00:00:00", 0], ["2026-03-28 00:00:00", 0],
    ],
    "SELECT CAST(date_bin('90 minutes', at, TIMESTAMP '2026-01-01 00:30') AS TEXT), count(*) FROM o GROUP BY 1 "
    "ORDER BY 1": [["2026-01-01 09:30:00", 1], ["2026-01-02 11:00:00", 1], [None, 1]],
    "SELECT x FROM generate_series(5, 1, -2) AS s(x) ORDER BY x": [[1], [3], [5]],
    "SELECT sum(generate_series) FROM generate_series(1, 1000000)": [[500000500000]],
    "SELECT count(*) FROM generate_series(3, 1), generate_series(1, NULL) n": [[0]],
    "SELECT id, count(*) OVER (ORDER BY at RANGE BETWEEN INTERVAL '25 hours' PRECEDING AND CURRENT ROW) FROM o "
    "WHERE at IS NOT NULL ORDER BY id": [[1, 1], [2, 1]],
    "SELECT id, count(*) OVER (ORDER BY at RANGE BETWEEN INTERVAL '26' HOUR PRECEDING AND CURRENT ROW) FROM o "
    "WHERE at IS NOT NULL ORDER BY id": [[1, 1], [2, 2]],
    "SELECT id, sum(id) OVER (ORDER BY id DESC RANGE 1 PRECEDING) FROM o ORDER BY id": [[1, 3], [2, 5], [3, 3]],
    "SELECT json_agg(total ORDER BY id), json_agg(customer) FILTER (WHERE id > 9) FROM o": [
        ["[10.50,20.25,null]", None]
    ],
    "SELECT t.name, count(*) FROM system.tables t JOIN system.columns c ON c.table_name = t.name AND c.position < 3 "
    "JOIN o ON o.id = 1 GROUP BY 1 ORDER BY 1": [["l", 2], ["o", 2], ["t", 2]],
}  # fmt: skip

REFUSALS = {
    "SELECT customer, total FROM o GROUP BY customer": ("42803", 18),
    "SELECT count(*) FROM o WHERE sum(id) > 1": ("42803", 30),
    "SELECT sum(row_number() OVER ()) FROM o": ("42P20", 12),
    "SELECT sum(sum(id)) FROM o": ("42803", 12),
    "SELECT rank() FROM o": ("42P20", 8),
    "SELECT count(*) FROM o a JOIN nope b ON true": ("42P01", 31),
    "SELECT a.nope, count(*) FROM o a GROUP BY 1": ("42703", 8),
    "SELECT id, count(*) FROM o a JOIN o b ON true GROUP BY 1": ("42702", 8),
    "SELECT count(*) FROM o JOIN o ON true": ("42712", 29),
    "SELECT sum(customer) FROM o": ("42883", 8),
    "SELECT read_text('/etc/passwd'), count(*) FROM o": ("42883", 8),
    "SELECT count(*) FROM read_csv('/etc/passwd')": ("0A000", 22),
    'SELECT count(*) FROM "/etc/passwd" a JOIN o ON true': ("42P01", 22),
    "SELECT 1 UNION SELECT 1, 2": ("42601", 10),
    "SELECT 1 UNION SELECT 'x'": ("42804", 10),
    "SELECT max(id) FROM o LIMIT -1": ("2201W", 29),
    "SELECT (SELECT 1, 2)": ("42601", 9),
    "SELECT ulid(), count(*) FROM o": ("0A000", 8),
    "SELECT sum(id) / 0 FROM o": ("22012", 1),
    "SELECT sum(total) / 0 FROM o": ("22012", 1),
    "SELECT max(b) + 1 FROM o": ("22003", 1),
    "SELECT sum(b) FROM o": ("22003", 1),
    "SELECT (SELECT id FROM o)": ("21000", 1),
    "SELECT id, b, count(*) FROM o GROUP BY ROLLUP (id)": ("42803", 12),
    "SELECT grouping(b) FROM o GROUP BY CUBE (id)": ("42803", 8),
    "SELECT count(*) FROM o WHERE grouping(id) = 0": ("42803", 30),
    "SELECT max(at) - INTERVAL 'nope' FROM o": ("22007", 27),
    "SELECT max(id) - INTERVAL '1 day' FROM o": ("42883", 16),
    "SELECT max(at) FROM o WHERE INTERVAL '1 day' IS NULL": ("0A000", 29),
    "SELECT date_bin('1 month', max(at), max(at)) FROM o": ("0A000", 1),
    "SELECT count(*) FROM generate_series(1, 5, 0)": ("22023", 1),
    "SELECT count(*) FROM generate_series(1, 'x', 1)": ("22P02", 41),
    "SELECT count(*) FROM generate_series(now(), now(), 1)": ("42883", 22),
    "SELECT count(*) FROM o, generate_series(1, o.id)": ("42703", 44),
    "SELECT count(*) FROM generate_series(now(), '9999-01-01', INTERVAL '1 month')": ("53200", 1),
    "SELECT sum(id) OVER (ORDER BY total RANGE 1 PRECEDING) FROM o": ("0A000", 37),
    "SELECT sum(id) OVER (RANGE 1 PRECEDING) FROM o": ("42P20", 22),
    "SELECT sum(id) OVER (ORDER BY at RANGE INTERVAL '1 month' PRECEDING) FROM o": ("0A000", 40),
    "SELECT json_agg(DISTINCT id ORDER BY id) FROM o": ("0A000", 8),
    "SELECT count(*) FROM o GROUP BY GROUPING SETS (id": ("42601", 50),
    "SELECT count(*) FROM o GROUP BY CUBE (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13)": ("54011", 33),
    "SELECT CAST(max(customer) AS INT) FROM o": ("22P02", 1),
}


async def test_answers() -> None:
    executor = await made()
    for text, rows in ANSWERS.items():
        assert await executor.run(text) == rows, text
    await executor.__aexit__()


async def test_refusals_have_a_sqlstate_and_a_place() -> None:
    executor = await made()
    for text, (sqlstate, column) in REFUSALS.items():
        reply = await executor.reply(text)
        assert reply.error is not None, text
        detail = reply.error.detail
        assert isinstance(detail, dict)
        assert detail["sqlstate"] == sqlstate, (text, reply.error)
        if column:
            assert (detail["line"], detail["column"]) == (1, column), text
    await executor.__aexit__()


async def test_types_are_known_and_parameters_taken() -> None:
    executor = await made()
    text = "SELECT customer, sum(total) AS s, count(*) AS n FROM o WHERE id > $1 GROUP BY 1 HAVING count(*) >= $2"
    reply = await executor.reply(text, 1, 1)
    assert reply.error is None
    shown = [(column.name, column.type and column.type.name) for column in reply.results[0].columns]
    assert shown == [("customer", "TEXT"), ("s", "DECIMAL"), ("n", "BIGINT")]
    assert sorted(reply.results[0].rows) == [("ada", None, 1), ("bob", Decimal("20.25"), 1)]
    await executor.__aexit__()


async def test_prefixes_hold_in_every_part_of_a_query() -> None:
    executor = await made()
    for text in ("CREATE TABLE a.mine (id INT PRIMARY KEY)", "CREATE TABLE b.other (id INT PRIMARY KEY)"):
        await executor.run(text)
    caller = Principal("user:u", frozenset(), ("a.",), Role.USER)
    assert await executor.run("SELECT count(*), max(id) FROM a.mine", principal=caller) == [[0, None]]
    for text in (
        "SELECT count(*) FROM a.mine, b.other",
        "SELECT id FROM a.mine WHERE id IN (SELECT id FROM b.other)",
        "WITH x AS (SELECT id FROM b.other) SELECT count(*) FROM a.mine",
        "SELECT (SELECT max(id) FROM b.other)",
        "SELECT max(id) FROM a.mine UNION SELECT id FROM b.other",
        "SELECT count(*), max(name) FROM system.settings",
    ):
        await executor.refused(Reason.FORBIDDEN, text, principal=caller)
    await executor.__aexit__()


async def test_runaway_queries_end_and_others_go_on() -> None:
    executor = await made(timeout_seconds=0.5)
    rows = [[number, number] for number in range(3000)]
    await executor.reply("INSERT INTO t VALUES ($1, $2)", param_rows=rows)
    assert await executor.run("SELECT sum(n) FROM t") == [[3000 * 2999 // 2]]
    started = time.monotonic()
    await executor.refused(
        Reason.QUERY_TIMEOUT, "SELECT sum(a.n * b.n % 7 + c.n % 3) FROM t a, t b, t c WHERE a.id + b.id <> c.id"
    )
    assert time.monotonic() - started < 10
    assert await executor.run("SELECT max(n) FROM t") == [[2999]]
    call = asyncio.create_task(executor.run("SELECT sum(a.n * b.n % 7 + c.n % 3) FROM t a, t b, t c"))
    await asyncio.sleep(0.1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await executor.run("SELECT min(n) FROM t") == [[0]]
    await executor.__aexit__()


async def test_bounds() -> None:
    executor = await made(analyses=Analyses(cache_bytes=100_000, memory_bytes=64 << 20))
    for first in range(0, 12_000, 6000):
        rows = [[number, number] for number in range(first, first + 6000)]
        await executor.reply("INSERT INTO t VALUES ($1, $2)", param_rows=rows)
    assert await executor.run("SELECT sum(n) FROM t") == [[12_000 * 11_999 // 2]]
    assert executor.sql.analyses.size < 100_000
    await executor.__aexit__()
    executor = await made(analyses=Analyses(memory_bytes=64 << 20))
    for first in range(0, 12_000, 6000):
        rows = [[number, number] for number in range(first, first + 6000)]
        await executor.reply("INSERT INTO t VALUES ($1, $2)", param_rows=rows)
    await executor.refused(Reason.RESULT_TOO_LARGE, "SELECT a.id FROM t a JOIN t b ON a.id = b.id")
    assert len(await executor.run("SELECT a.id FROM t a JOIN t b ON a.id = b.id LIMIT 10000")) == 10_000
    heavy = "SELECT count(*) FROM (SELECT DISTINCT a.id, b.id FROM t a, t b) x"
    await executor.refused(Reason.QUERY_TOO_LARGE, heavy)
    assert await executor.run("SELECT max(id) FROM t") == [[11_999]]
    await executor.__aexit__()


async def test_cached_rows_follow_every_change() -> None:
    """The fold of random changes, as DuckDB sees it after each, over many merges and dropped tables."""
    executor = await made(analyses=Analyses(cache_bytes=1 << 20))
    chance = random.Random(7)
    model: dict[int, int | None] = {}
    for step in range(300):
        kind = chance.choice(["insert", "insert", "update", "delete", "many", "definition"])
        key = chance.randrange(400)
        if kind == "insert":
            await executor.run("INSERT INTO t VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET n = excluded.n", key, step)
            model[key] = step
        elif kind == "update":
            await executor.run("UPDATE t SET n = n + 1 WHERE id BETWEEN $1 AND $2", key, key + 20)
            model.update({at: n + 1 for at, n in model.items() if key <= at <= key + 20 and n is not None})
        elif kind == "delete":
            await executor.run("DELETE FROM t WHERE id BETWEEN $1 AND $2", key, key + 5)
            model = {at: n for at, n in model.items() if not key <= at <= key + 5}
        elif kind == "many" and step % 7 == 0:
            rows = [[at, at] for at in range(1000, 2500)]
            await executor.reply("INSERT INTO t VALUES ($1, $2) ON CONFLICT (id) DO NOTHING", param_rows=rows)
            for at in range(1000, 2500):
                model.setdefault(at, at)
        elif kind == "definition" and step % 11 == 0:
            await executor.run(f"ALTER TABLE t ADD COLUMN c{step} INT DEFAULT 1")
        found = await executor.run("SELECT count(*), count(DISTINCT id), sum(n), min(id), max(n) FROM t")
        numbers = [n for n in model.values() if n is not None]
        total = sum(numbers) if numbers else None
        assert found == [[len(model), len(model), total, min(model, default=None), max(numbers, default=None)]], step
    assert executor.sql.analyses.statistics.hits > 200
    await executor.__aexit__()


async def test_tables_of_a_query_are_of_one_moment() -> None:
    executor = await made()
    await executor.run("CREATE TABLE other (id INT PRIMARY KEY, n INT)")
    for table in ("t", "other"):
        await executor.reply(f"INSERT INTO {table} VALUES ($1, $2)", param_rows=[[at, 100] for at in range(2000)])
    going = True

    async def move() -> None:
        at = 0
        while going:
            at = (at + 1) % 2000
            await executor.run(
                f"BEGIN; UPDATE t SET n = n - 7 WHERE id = {at}; UPDATE other SET n = n + 7 WHERE id = {at}; COMMIT"
            )
            await asyncio.sleep(0)

    mover = asyncio.create_task(move())
    try:
        for attempt in range(20):
            if attempt % 5 == 0:
                await executor.run(f"CREATE INDEX i{attempt} ON t (n)")  # the table is read as a whole again
            found = await executor.run("SELECT (SELECT sum(n) FROM t) + (SELECT sum(n) FROM other)")
            assert found == [[400_000]]
    finally:
        going = False
        await mover
    await executor.__aexit__()


def test_duckdb_reaches_nothing_outside(tmp_path: Any) -> None:
    file = tmp_path / "a.csv"
    file.write_text("a\n1\n")
    cursor = Duck(64 << 20).cursor()
    for text in (
        f"SELECT * FROM read_csv('{file}')",
        f"SELECT * FROM '{file}'",
        f"SELECT * FROM glob('{tmp_path}/*')",
        f"SELECT * FROM read_text('{file}')",
        f"COPY (SELECT 1) TO '{tmp_path}/b.csv'",
        f"ATTACH '{tmp_path}/c.db'",
        f"EXPORT DATABASE '{tmp_path}/d'",
        "SELECT * FROM read_parquet('https://127.0.0.1:1/a.parquet')",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET enable_external_access = true",
        "SET memory_limit = '10GB'",
        "SET threads = 8",
        "RESET lock_configuration",
    ):
        with pytest.raises(Exception, match=r"(?i)disabled|locked|cannot|not be|permission|no extension"):
            cursor.execute(text).fetchall()
    assert [each.name for each in tmp_path.iterdir()] == ["a.csv"]


async def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = await made()
    monkeypatch.setattr(api, "find_spec", lambda name: None)
    error = await executor.refused(Reason.UNSUPPORTED_SQL, "SELECT sum(id) FROM o")
    assert "[analytics]" in str(error)
    assert await executor.run("SELECT count(*) FROM o") == [[3]]
    await executor.__aexit__()
