"""INSERT, UPDATE and DELETE with queries in them, and analytical queries in transactions."""

import asyncio
import random
import sqlite3
from typing import Any

import pytest

from support.executor import Executor
from topics_service.api.access.auth import UNRESTRICTED, Principal, Role
from topics_service.api.sql.analysis import staged
from topics_service.api.sql.analysis.api import Analyses
from topics_service.api.sql.requests import ConsumeRequest
from topics_service.api.sql.session import SqlSession, Transactions
from topics_service.engine.errors import Reason, TopicsError

WORLD = (
    "CREATE TABLE u (id INT PRIMARY KEY, k TEXT, n DECIMAL, d DATE, m DECIMAL(10, 2) DEFAULT 7)",
    "INSERT INTO t VALUES (1, 10), (2, 20), (3, 30)",
)
ANSWERS: tuple[tuple[str, tuple[Any, ...], list[list[Any]]], ...] = (
    (
        """INSERT INTO u (id, k, n, d) SELECT id + 10, 'x', sum(n), '2026-01-01' FROM t GROUP BY id ORDER BY id
        RETURNING id, k, n, CAST(d AS TEXT), m""", (),
        [[11, "x", 10, "2026-01-01", 7], [12, "x", 20, "2026-01-01", 7], [13, "x", 30, "2026-01-01", 7]],
    ),
    (
        """INSERT INTO u (id, k, m) VALUES ((SELECT max(id) FROM u) + 1, $1, DEFAULT), (99, (SELECT 'zz'), $2)
        RETURNING id, k, m""", ("pp", 1), [[14, "pp", 7], [99, "zz", 1]],
    ),
    (
        "UPDATE u SET k = 'in' WHERE id IN (SELECT id + 10 FROM t WHERE n > $1) RETURNING id, k, $2 + 1", (10, 4),
        [[12, "in", 5], [13, "in", 5]],
    ),
    (
        "UPDATE u SET n = (SELECT sum(n) FROM t WHERE t.id + 10 = u.id) RETURNING id, n", (),
        [[11, 10], [12, 20], [13, 30], [14, None], [99, None]],
    ),
    (
        "UPDATE u SET k = k || $1, m = t.n FROM t WHERE t.id + 10 = u.id RETURNING u.id, k, m, t.n, t.*", ("!",),
        [[11, "x!", 10, 10, 1, 10], [12, "in!", 20, 20, 2, 20], [13, "in!", 30, 30, 3, 30]],
    ),
    (
        "UPDATE u SET m = $1, d = DEFAULT FROM t WHERE u.id = 11 RETURNING u.id, m, d", (5,), [[11, 5, None]],
    ),
    ("DELETE FROM u USING t WHERE t.id + 10 = u.id AND t.n = 10 RETURNING u.id, t.id", (), [[11, 1]]),
    ("DELETE FROM u a WHERE NOT EXISTS (SELECT 1 FROM t WHERE t.id + 10 = a.id) RETURNING id", (), [[14], [99]]),
    ("WITH c AS (SELECT max(id) AS m FROM t) INSERT INTO t SELECT m + 1, 5 FROM c RETURNING *", (), [[4, 5]]),
    ("WITH c AS (SELECT max(id) AS m FROM t) INSERT INTO t VALUES ((SELECT m FROM c) + 1, 5) RETURNING id", (), [[5]]),
    ("WITH c AS (SELECT max(id) AS m FROM t) DELETE FROM t USING c WHERE id = m RETURNING *", (), [[5, 5, 5]]),
    (
        "WITH c AS (SELECT max(id) AS m FROM t) UPDATE t SET n = 1 WHERE id = (SELECT m FROM c) RETURNING *", (),
        [[4, 1]],
    ),
    (
        """INSERT INTO t SELECT id, count(*) FROM u GROUP BY id UNION ALL SELECT 4, 9 ORDER BY 1
        ON CONFLICT (id) DO UPDATE SET n = t.n + excluded.n + $1 RETURNING *""", (100,),
        [[4, 110], [12, 1], [13, 1]],
    ),
    ("INSERT INTO t (SELECT id + 50, n FROM t WHERE id < 3) RETURNING id", (), [[51], [52]]),
    ("UPDATE t SET n = (SELECT NULL) WHERE id = 1 RETURNING n", (), [[None]]),
    ("UPDATE t SET n = (SELECT CAST($2 AS INT)) WHERE id = (SELECT $1) RETURNING *", (1, 8), [[1, 8]]),
    ("SELECT count(*), sum(n) FROM t", (), [[8, 8 + 20 + 30 + 110 + 2 + 30]]),
)  # fmt: skip
REFUSALS = {
    "UPDATE t SET n = sum(n)": ("42803", 18),
    "UPDATE t SET n = 1 WHERE max(n) = 1": ("42803", 26),
    "UPDATE t SET id = (SELECT 1)": ("0A000", 14),
    "UPDATE t SET n = (SELECT 1), n = 2": ("42601", 30),
    "UPDATE t SET n = (SELECT nope FROM u)": ("42703", 26),
    "UPDATE t SET n = (SELECT k FROM u)": ("42804", 18),
    "UPDATE t SET n = k FROM nope": ("42P01", 25),
    "UPDATE t SET n = id FROM u": ("42702", 18),
    "DELETE FROM t USING t WHERE true": ("42712", 21),
    "DELETE FROM t USING u RETURNING id": ("42702", 33),
    "UPDATE t SET n = (SELECT id FROM t)": ("21000", 1),
    "INSERT INTO t SELECT id, count(*), 1 FROM u GROUP BY id": ("42601", 15),
    "INSERT INTO t SELECT count(*), 'x' FROM t": ("22P02", 32),
    "INSERT INTO t VALUES ((SELECT 1, 2), 3)": ("42601", 24),
    "INSERT INTO t VALUES ((SELECT id FROM t), 3)": ("21000", 1),
    "INSERT INTO t SELECT 1, count(*) FROM u": ("23505", 1),
    "INSERT INTO t SELECT NULL, count(*) FROM u": ("23502", 1),
}


async def made(**members: Any) -> Executor:
    executor = await Executor(**members).__aenter__()
    for text in WORLD:
        await executor.run(text)
    return executor


async def test_answers() -> None:
    executor = await made()
    for text, parameters, rows in ANSWERS:
        assert await executor.run(text, *parameters) == rows, text
    await executor.__aexit__()


async def test_refusals_have_a_place_and_change_nothing() -> None:
    executor = await made()
    before = await executor.run("SELECT * FROM t")
    for text, (sqlstate, column) in REFUSALS.items():
        reply = await executor.reply(text)
        assert reply.error is not None, text
        detail = reply.error.detail
        assert isinstance(detail, dict)
        assert (detail["sqlstate"], detail["line"], detail["column"]) == (sqlstate, 1, column), (text, reply.error)
    await executor.refused(Reason.UNSUPPORTED_SQL, "DELETE FROM t WHERE id IN (SELECT $1)", param_rows=[[1]])
    assert await executor.run("SELECT * FROM t") == before
    await executor.__aexit__()


async def test_prefixes_hold_for_what_a_change_reads() -> None:
    executor = await made()
    for text in ("CREATE TABLE a.mine (id INT PRIMARY KEY, n INT)", "CREATE TABLE b.other (id INT PRIMARY KEY)"):
        await executor.run(text)
    caller = Principal("user:u", frozenset(), ("a.",), Role.USER)
    for text in (
        "INSERT INTO a.mine SELECT max(id), 1 FROM b.other",
        "INSERT INTO a.mine VALUES ((SELECT max(id) FROM b.other), 1)",
        "UPDATE a.mine SET n = 1 FROM b.other",
        "DELETE FROM a.mine WHERE id IN (SELECT id FROM b.other)",
        "DELETE FROM b.other WHERE id IN (SELECT id FROM a.mine)",
        "UPDATE a.mine SET n = (SELECT count(*) FROM system.settings)",
    ):
        await executor.refused(Reason.FORBIDDEN, text, principal=caller)
    assert await executor.run("INSERT INTO a.mine SELECT count(*), 1 FROM a.mine RETURNING *", principal=caller) == [
        [0, 1]
    ]
    await executor.__aexit__()


async def test_routes_emit_events_in_the_order_of_keys() -> None:
    executor = await made()
    await executor.run("CREATE TOPIC app.changed")
    await executor.run("ALTER TOPIC app.changed ADD SOURCE t ON UPDATE WITH (payload = 'key')")
    await executor.run("UPDATE t SET n = n + 1 WHERE id <> (SELECT min(id) + 1 FROM t)")
    await executor.run("UPDATE t SET n = (SELECT n) WHERE EXISTS (SELECT 1)")  # leaves all rows as they are
    request = ConsumeRequest(topic="app.changed", group="g", start="earliest", timeout_seconds=0)
    page = await executor.sql.consumers.consume(request, principal=UNRESTRICTED)
    assert [message.key for message in page.messages] == ["1", "3"]
    await executor.__aexit__()


async def test_rows_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = await made()
    monkeypatch.setattr(staged, "MAX_BYTES", 500_000)
    await executor.reply("INSERT INTO t VALUES ($1, $1)", param_rows=[[at] for at in range(100, 2700)])
    await executor.refused(Reason.RESULT_TOO_LARGE, "DELETE FROM t WHERE id <> ALL (SELECT 1)")
    assert await executor.run("SELECT count(*) FROM t") == [[2603]]
    assert (await executor.reply("DELETE FROM t WHERE id >= ALL (SELECT 1000)")).results[0].row_count == 1700
    await executor.__aexit__()


async def test_no_update_is_lost() -> None:
    """Increments of one statement each, computed from what was read, under writers of single rows."""
    executor = await made()
    await executor.run("UPDATE t SET n = 0")
    texts = (
        "UPDATE t SET n = (SELECT x.n + 1 FROM t x WHERE x.id = t.id)",
        "UPDATE t SET n = t.n + c.one FROM (SELECT count(*) AS one FROM t WHERE id = 1) c",
        "UPDATE t SET n = n + 1",
    )
    await asyncio.gather(*(executor.run(texts[at % 3]) for at in range(60)))
    assert await executor.run("SELECT n FROM t") == [[60]] * 3
    assert not executor.sql.writing.locked()
    await executor.__aexit__()


async def test_keys_made_from_the_greatest_are_unique() -> None:
    executor = await made()
    await asyncio.gather(*(executor.run("INSERT INTO t SELECT max(id) + 1, 0 FROM t") for _ in range(20)))
    assert await executor.run("SELECT count(*), max(id), sum(id) FROM t") == [[23, 23, 276]]
    await executor.__aexit__()


def session_of(executor: Executor) -> SqlSession:
    return SqlSession(executor.sql, UNRESTRICTED, Transactions())


@pytest.mark.parametrize(
    ("mine", "theirs", "conflicts"),
    [
        ("UPDATE t SET n = n + 1 WHERE id IN (SELECT 1)", "UPDATE t SET n = 5 WHERE id = 1", True),
        ("UPDATE t SET n = n + 1 WHERE id IN (SELECT 1)", "UPDATE t SET n = 5 WHERE id = 2", False),
        ("UPDATE t SET n = (SELECT count(*) FROM u)", "INSERT INTO u (id) VALUES (1)", True),
        ("UPDATE t SET n = (SELECT max(x.n) FROM t x) WHERE id = 1", "UPDATE t SET n = 5 WHERE id = 2", True),
        ("INSERT INTO u (id) SELECT max(id) FROM t", "INSERT INTO t VALUES (9, 9)", True),
        ("INSERT INTO u (id) SELECT max(id) FROM t", "INSERT INTO u (id) VALUES (9)", False),
        ("DELETE FROM t USING u WHERE u.id = t.id", "UPDATE u SET k = 'x'", False),
    ],
)
async def test_a_transaction_whose_reads_others_changed_is_refused(mine: str, theirs: str, conflicts: bool) -> None:
    executor = await made()
    session = session_of(executor)
    await session.execute("BEGIN")
    await session.execute("INSERT INTO t VALUES (100, 0)")
    await session.execute(mine)
    await executor.run(theirs)
    if conflicts:
        with pytest.raises(TopicsError) as refused:
            await session.execute("COMMIT")
        assert (refused.value.detail or {})["sqlstate"] == "40001"
        assert await executor.run("SELECT count(*) FROM t WHERE id = 100") == [[0]]
    else:
        await session.execute("COMMIT")
        assert await executor.run("SELECT count(*) FROM t WHERE id = 100") == [[1]]
    await executor.__aexit__()


async def test_a_transaction_sees_its_changes() -> None:
    """The fold of random changes in open transactions of both kinds, as DuckDB sees it after each."""
    executor = await made(analyses=Analyses(cache_bytes=1 << 20))
    await executor.run("ALTER TABLE t SET (durability = 'fsync')")  # commits of others are not visible at once
    await executor.reply("INSERT INTO t VALUES ($1, $1)", param_rows=[[at] for at in range(100, 1600)])
    session = session_of(executor)
    chance = random.Random(3)
    for number in range(12):
        rows = dict(await executor.run("SELECT * FROM t"))
        await session.execute("BEGIN")
        if number % 3 == 2:
            await session.execute("UPDATE t SET n = n + 1 WHERE id > 0")
            rows = {key: n + 1 for key, n in rows.items()}
        for step in range(8):
            key = chance.randrange(200)
            if step % 3 == 0:
                text = f"INSERT INTO t VALUES ({key}, {step}) ON CONFLICT (id) DO UPDATE SET n = excluded.n"
                rows[key] = step
            elif step % 3 == 1:
                text = f"DELETE FROM t WHERE id IN (SELECT id FROM t WHERE id BETWEEN {key} AND {key + 4})"
                rows = {at: n for at, n in rows.items() if not key <= at <= key + 4}
            else:
                text = f"UPDATE t SET n = (SELECT count(*) FROM t) WHERE id = {key}"
                if key in rows:
                    rows[key] = len(rows)
            await session.execute(text)
            answer = await session.execute("SELECT count(*), sum(n), sum(id) FROM t")
            assert [list(row) for row in answer.result.rows] == [[len(rows), sum(rows.values()), sum(rows)]]
        outside = await executor.run("SELECT count(*), sum(n) FROM t")
        await session.execute("COMMIT" if number % 2 else "ROLLBACK")
        inside = await executor.run("SELECT count(*), sum(n) FROM t")
        assert inside == ([[len(rows), sum(rows.values())]] if number % 2 else outside)
    text = "BEGIN; DELETE FROM t WHERE id <> (SELECT max(id) FROM t); SELECT count(*), max(id) FROM t; ROLLBACK"
    reply = await executor.reply(text)
    assert [list(row) for row in reply.results[2].rows] == [[1, 1599]]
    assert await executor.run("SELECT count(*), sum(n) FROM t") == inside
    await executor.__aexit__()


SOURCES = ("(SELECT max(b) FROM s)", "(SELECT sum(b) FROM s WHERE s.a = r.a)", "r.b + 1", "7", "NULL", "(SELECT r.a)")
TESTS = (
    "r.a IN (SELECT a FROM s WHERE b > 2)", "EXISTS (SELECT 1 FROM s WHERE s.a = r.b)", "r.b NOT IN (SELECT b FROM s)",
    "r.b < (SELECT avg(b) FROM s)", "r.a = (SELECT min(a) FROM r)", "r.b IS NULL OR r.a IN (SELECT b FROM s)", "true",
)  # fmt: skip
ROWS = (
    "SELECT a + {0}, count(*) FROM r GROUP BY 1", "SELECT r.a + {0}, s.b FROM r JOIN s ON s.a = r.a",
    "SELECT a, b FROM s UNION SELECT b, a FROM r WHERE b IS NOT NULL", "VALUES ({0}, (SELECT min(b) FROM s))",
    "SELECT max(a) + {0}, 5 FROM r",
)  # fmt: skip


async def test_random_changes_do_what_they_do_in_sqlite() -> None:
    executor, other, chance = await made(), sqlite3.connect(":memory:"), random.Random(11)
    for text in (
        "CREATE TABLE r (a INT PRIMARY KEY, b INT)",
        "CREATE TABLE s (a INT PRIMARY KEY, b INT)",
        "INSERT INTO r VALUES (1, 2), (2, NULL), (3, 5), (4, 4)",
        "INSERT INTO s VALUES (1, 1), (3, 3), (5, 9)",
    ):
        await executor.run(text)
        other.execute(text)
    for step in range(150):
        kind, condition = chance.choice(["insert", "insert", "update", "from", "delete", "swap"]), chance.choice(TESTS)
        if kind == "insert":
            text = f"INSERT INTO r {chance.choice(ROWS).format(chance.randrange(30))} "
            text = text.rstrip() if text.startswith("INSERT INTO r VALUES") else f"{text}ORDER BY 1, 2"
        elif kind == "update":
            text = f"UPDATE r SET b = {chance.choice(SOURCES)} WHERE {condition}"
        elif kind == "from":
            text = f"UPDATE r SET b = s.b - 1 FROM s WHERE s.a = r.a AND ({condition})"
        elif kind == "delete":
            text = f"DELETE FROM r WHERE ({condition}) AND r.a % 3 = {step % 3}"
        else:
            text = f"INSERT INTO s SELECT a + {step}, b FROM r WHERE {condition} AND a < 20"
        reply = await executor.reply(text)
        try:
            other.execute(text)
        except sqlite3.IntegrityError:
            assert reply.error is not None, text
            assert reply.error.reason is Reason.UNIQUE_VIOLATION, text
        else:
            assert reply.error is None, (text, reply.error)
        for table in ("r", "s"):
            found = await executor.run(f"SELECT a, b FROM {table} ORDER BY a")
            assert found == [list(row) for row in other.execute(f"SELECT a, b FROM {table} ORDER BY a")], text
    other.close()
    await executor.__aexit__()
