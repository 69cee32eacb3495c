"""Views: queries under a name, over tables, topics and each other."""

from typing import Any

from support.executor import Executor
from topics_service.api.access.auth import Principal, Role
from topics_service.engine.clock import SystemClock
from topics_service.engine.engine import Engine
from topics_service.engine.errors import Reason
from topics_service.engine.model import AppendRequest, Batch
from topics_service.engine.tables.model import TableName
from topics_service.storage.memory import MemoryStore

TYPED = """CREATE VIEW app.clicks (user_id, n, at, seq) AS
SELECT data ->> 'user', CAST(data ->> 'n' AS BIGINT), ts, seq FROM topics."app.events" WHERE tag = 'click'"""


async def made(executor: Executor) -> None:
    """A topic with some records, a typed view over it, and a table."""
    await executor.run("CREATE TOPIC app.events")
    datas = [b'{"user":"u%d","n":%d}' % (n % 2, n) for n in range(6)]
    batch = Batch(datas=datas, tags=[b"click", b"view"] * 3, nodes=None, metas=None)
    executor.engine.append(AppendRequest(topic="app.events", batch=batch))
    executor.engine.sync()
    await executor.run(TYPED)
    await executor.run("CREATE TABLE app.users (id TEXT PRIMARY KEY, name TEXT)")
    await executor.run("INSERT INTO app.users VALUES ('u0', 'ada'), ('u1', 'bob')")


async def test_a_typed_view_of_a_topic() -> None:
    async with Executor() as executor:
        await made(executor)
        reply = await executor.reply("SELECT * FROM app.clicks WHERE n > 0 ORDER BY seq")
        assert reply.error is None
        assert [(each.name, each.type and each.type.name) for each in reply.results[0].columns] == [
            ("user_id", "TEXT"), ("n", "BIGINT"), ("at", "TIMESTAMP"), ("seq", "BIGINT"),
        ]  # fmt: skip
        assert [(row[0], row[1], row[3]) for row in reply.results[0].rows] == [("u0", 2, 3), ("u0", 4, 5)]
        joined = "SELECT u.name, sum(c.n) FROM app.clicks c JOIN app.users u ON u.id = c.user_id GROUP BY 1"
        assert await executor.run(joined) == [["ada", 6]]
        lines = [line for (line,) in await executor.run("EXPLAIN SELECT n FROM app.clicks c WHERE c.seq > 2")]
        assert lines == [
            'read topics."app.events"', "  range: tag = 'click', seq > 2", "  columns: data",
        ]  # fmt: skip
        grouped = "EXPLAIN SELECT max(n) FROM app.clicks c WHERE c.seq > 2"
        assert [line for (line,) in await executor.run(grouped)] == [
            "analyze in DuckDB, for aggregates", '  read topics."app.events"', "    range: tag = 'click', seq > 2",
            "    columns: seq, tag, data",
        ]  # fmt: skip
        latest = await executor.run("EXPLAIN SELECT n, seq AS s FROM app.clicks ORDER BY s DESC LIMIT 1")
        assert ["  range: tag = 'click', merged by seq, in reverse"] in latest
        assert await executor.run("SELECT n + 1, s.seq FROM app.clicks s ORDER BY 2 DESC LIMIT 1") == [[5, 5]]
        assert len(await executor.run("DESCRIBE app.clicks")) == 0


async def test_views_over_views_and_their_names() -> None:
    """Names in a view are those of the namespace in which it was made, and `*` is what it was then."""
    async with Executor() as executor:
        await made(executor)
        await executor.run("CREATE VIEW people AS SELECT * FROM users", namespace="app")
        await executor.run("CREATE VIEW other.top AS SELECT name, count(*) AS n FROM app.people GROUP BY name")
        await executor.run("ALTER TABLE app.users ADD COLUMN age INT")
        assert await executor.run("SELECT * FROM app.people WHERE id = 'u1'") == [["u1", "bob"]]
        assert await executor.run("SELECT * FROM other.top t(person, many) ORDER BY person") == [["ada", 1], ["bob", 1]]
        await executor.run("CREATE OR REPLACE VIEW app.people AS SELECT id, upper(name) AS name, age FROM app.users")
        assert await executor.run("SELECT name FROM other.top ORDER BY 1") == [["ADA"], ["BOB"]]
        shown = await executor.run("SELECT namespace, name, columns FROM system.views ORDER BY 1, 2")
        assert shown == [
            ["app", "clicks", '["user_id","n","at","seq"]'], ["app", "people", '["id","name","age"]'],
            ["other", "top", '["name","n"]'],
        ]  # fmt: skip


REFUSED = (
    (Reason.ALREADY_EXISTS, "CREATE VIEW app.clicks AS SELECT 1 AS one"),
    (Reason.ALREADY_EXISTS, "CREATE VIEW app.users AS SELECT 1 AS one"),
    (Reason.ALREADY_EXISTS, "CREATE OR REPLACE VIEW app.users AS SELECT 1 AS one"),
    (Reason.ALREADY_EXISTS, "CREATE TABLE app.clicks (id INT PRIMARY KEY)"),
    (Reason.SYNTAX_ERROR, "CREATE VIEW app.x AS SELECT 1"),
    (Reason.SYNTAX_ERROR, "CREATE VIEW app.x AS SELECT 1 AS a, 2 AS a"),
    (Reason.SYNTAX_ERROR, "CREATE VIEW app.x (a, b) AS SELECT 1 AS a"),
    (Reason.SYNTAX_ERROR, "CREATE VIEW app.x (a, b) AS SELECT u.id, v.id FROM app.users u JOIN app.users v ON true"),
    (Reason.TABLE_NOT_FOUND, "CREATE VIEW app.x AS SELECT a FROM app.nope"),
    (Reason.TOPIC_NOT_FOUND, "CREATE VIEW app.x AS SELECT seq FROM topics.nope"),
    (Reason.FORBIDDEN, "CREATE VIEW topics.x AS SELECT 1 AS a"),
    (Reason.UNSUPPORTED_SQL, "INSERT INTO app.clicks VALUES ('a', 1, now(), 1)"),
    (Reason.UNSUPPORTED_SQL, "DROP TABLE app.clicks"),
    (Reason.TABLE_NOT_FOUND, "DROP VIEW app.nope"),
    (Reason.TABLE_NOT_FOUND, "DROP VIEW app.users"),
    (Reason.COLUMN_NOT_FOUND, "SELECT nope FROM app.clicks"),
)


async def test_what_is_refused() -> None:
    async with Executor() as executor:
        await made(executor)
        for reason, text in REFUSED:
            await executor.refused(reason, text)
        assert (await executor.reply("CREATE VIEW app.x AS SELECT $1 AS a", 1)).error is not None
        assert (await executor.reply("DROP VIEW IF EXISTS app.nope")).error is None


async def test_what_a_view_reads_stays() -> None:
    """DROP and RENAME of what a view reads are refused, or take the view with them by CASCADE."""
    async with Executor() as executor:
        await made(executor)
        await executor.run("ALTER TABLE app.users ADD COLUMN age INT")
        await executor.run("CREATE VIEW app.people AS SELECT id, name FROM app.users")
        await executor.run("CREATE VIEW app.names AS SELECT name FROM app.people")
        for text in (
            "DROP TABLE app.users", "ALTER TABLE app.users DROP COLUMN name", "ALTER TABLE app.users RENAME name TO n",
            "ALTER TABLE app.users RENAME TO folk", "DROP VIEW app.people", "DROP NAMESPACE app",
            "CREATE OR REPLACE VIEW app.people AS SELECT id FROM app.users",
        ):  # fmt: skip
            error = await executor.refused(Reason.DEPENDENT_OBJECTS, text)
            assert "app." in str((error.detail or {})["dependents"]), text
        await executor.run("ALTER TABLE app.users DROP COLUMN age")
        await executor.refused(
            Reason.INVALID_VALUE, "CREATE OR REPLACE VIEW app.people AS SELECT name AS id, name FROM app.names"
        )
        await executor.run("ALTER TABLE app.users DROP COLUMN name CASCADE")
        assert await executor.run("SELECT name FROM system.views") == [["clicks"]]
        await executor.run("DROP VIEW app.clicks")
        assert await executor.run("SELECT count(*) FROM system.views") == [[0]]


async def test_a_view_gives_no_rights() -> None:
    """A caller needs the right to read what a view reads, and to name the view."""
    async with Executor() as executor:
        await made(executor)
        await executor.run("CREATE VIEW open.people AS SELECT id FROM app.users")
        narrow = Principal("narrow", scopes=frozenset(), prefixes=("open.",), role=Role.SERVICE)
        user = Principal("user", scopes=frozenset(), prefixes=None, role=Role.USER)
        await refused(executor, "SELECT * FROM open.people", narrow)
        await refused(executor, "SELECT * FROM app.clicks", narrow)
        await refused(executor, "SELECT * FROM app.clicks", user)
        await refused(executor, "CREATE VIEW app.x AS SELECT 1 AS a", user)
        reply = await executor.reply("SELECT name FROM system.views", principal=narrow)
        assert [list(row) for row in reply.results[0].rows] == [["people"]]


async def refused(executor: Executor, text: str, principal: Principal) -> None:
    reply = await executor.reply(text, principal=principal)
    assert reply.error is not None
    assert reply.error.reason is Reason.FORBIDDEN, reply.error


async def test_views_are_there_after_a_restart() -> None:
    store: Any = MemoryStore()
    async with Executor(store=store) as executor:
        await made(executor)
        again = Engine(store, SystemClock())
        views = again.tables.schema.views
        assert list(views) == [TableName("app", "clicks")]
        assert views == executor.engine.tables.schema.views
