"""asyncpg: all in binary, types from Describe, cursors, COPY, and the queries with which its pool resets."""

import uuid
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, time
from decimal import Decimal

import asyncpg
import pytest

from support.server import ServerProcess


@pytest.fixture
async def connection(server: ServerProcess, namespace: str) -> AsyncIterator[asyncpg.Connection]:
    found = await asyncpg.connect(
        host="127.0.0.1", port=server.pg_port, user="ada", server_settings={"search_path": namespace}
    )
    await found.execute("CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT)")
    yield found
    await found.close()


async def test_types_come_back_as_they_went(connection: asyncpg.Connection) -> None:
    await connection.execute("""CREATE TABLE e (id INTEGER PRIMARY KEY, ok BOOLEAN, s SMALLINT, f DOUBLE, r REAL,
        dec DECIMAL(10, 2), v VARCHAR(5), raw BYTEA, doc JSON, at TIMESTAMP, day DATE, tod TIME, u UUID)""")
    row = (
        7, True, 5, 2.5, 0.25, Decimal("-12.50"), "ü", b"\x00\xff", '{"a":1}', datetime(2024, 2, 29, 1, 2, 3, 4, UTC),
        date(2024, 2, 29), time(1, 2, 3), uuid.UUID(int=3),
    )  # fmt: skip
    places = ", ".join(f"${number}" for number in range(1, 14))
    assert await connection.execute(f"INSERT INTO e VALUES ({places})", *row) == "INSERT 0 1"
    await connection.execute(f"INSERT INTO e VALUES ({places})", 8, *[None] * 12)
    assert tuple(await connection.fetchrow("SELECT * FROM e WHERE id = $1", 7)) == row
    assert tuple(await connection.fetchrow("SELECT * FROM e WHERE id = $1", 8)) == (8, *[None] * 12)
    for number in range(1, 13):  # numerics of all sizes
        value = Decimal(10) ** (number - 6) * 7
        assert await connection.fetchval("SELECT CAST($1 AS DECIMAL)", value) == value


async def test_prepared_statements_survive_definitions_or_say_so(connection: asyncpg.Connection) -> None:
    statement = await connection.prepare("SELECT * FROM t WHERE id = $1")
    assert [(each.name, each.type.name) for each in statement.get_attributes()] == [("id", "int8"), ("name", "text")]
    assert [each.name for each in statement.get_parameters()] == ["int8"]
    await connection.execute("INSERT INTO t VALUES (1, 'a')")
    assert await statement.fetchval(1, column=1) == "a"
    await connection.execute("ALTER TABLE t ADD COLUMN more INTEGER DEFAULT 5")
    with pytest.raises(asyncpg.InvalidCachedStatementError):
        await statement.fetch(1)
    assert tuple(await connection.fetchrow("SELECT * FROM t WHERE id = $1", 1)) == (1, "a", 5)


async def test_cursors_fetch_in_parts(connection: asyncpg.Connection) -> None:
    await connection.executemany("INSERT INTO t VALUES ($1, $2)", [(number, f"n{number}") for number in range(5000)])
    async with connection.transaction():
        found = [row["id"] async for row in connection.cursor("SELECT id FROM t", prefetch=700)]
        assert found == list(range(5000))
        cursor = await connection.cursor("SELECT id FROM t WHERE id >= $1", 4990)
        assert len(await cursor.fetch(5)) == len(await cursor.fetch(50)) == 5


async def test_executemany_and_copy_are_whole_or_nothing(connection: asyncpg.Connection) -> None:
    with pytest.raises(asyncpg.UniqueViolationError):
        await connection.executemany("INSERT INTO t VALUES ($1, 'x')", [(1,), (2,), (1,)])
    assert await connection.fetchval("SELECT count(*) FROM t") == 0
    rows = [(number, None if number % 3 else f"row {number}") for number in range(10_000)]
    assert await connection.copy_records_to_table("t", records=rows, columns=["id", "name"]) == "COPY 10000"
    with pytest.raises(asyncpg.UniqueViolationError):
        await connection.copy_records_to_table("t", records=[(20_000, "a"), (1, "b")])
    assert await connection.fetchval("SELECT count(*) FROM t") == 10_000
    assert [tuple(row) for row in await connection.fetch("SELECT * FROM t ORDER BY id")] == rows


async def test_a_pool_resets_its_connections(server: ServerProcess, connection: asyncpg.Connection) -> None:
    async with asyncpg.create_pool(host="127.0.0.1", port=server.pg_port, user="ada", min_size=1, max_size=1) as pool:
        async with pool.acquire() as first:
            await first.execute("SET application_name = 'first'")
        async with pool.acquire() as second:
            assert await second.fetchval("SHOW application_name") == ""


async def test_a_timeout_cancels_and_errors_have_their_classes(connection: asyncpg.Connection) -> None:
    with pytest.raises(asyncpg.UndefinedTableError):
        await connection.fetch("SELECT * FROM nothing")
    with pytest.raises(asyncpg.InterfaceError, match="expects 1 argument"):
        await connection.fetch("SELECT $1", 1, 2)
    await connection.execute("INSERT INTO t VALUES (1, 'a')")
    await connection.execute("BEGIN")
    await connection.execute("UPDATE t SET name = 'b' WHERE id = 1")
    other = await asyncpg.connect(dsn=None, **_like(connection))
    await other.execute("UPDATE t SET name = 'c' WHERE id = 1")
    await other.close()
    with pytest.raises(asyncpg.SerializationError):
        await connection.execute("COMMIT")


def _like(connection: asyncpg.Connection) -> dict[str, object]:
    """The arguments of a connection to the same place."""
    host, port = connection._addr
    path = connection._params.server_settings["search_path"]
    return {"host": host, "port": port, "user": "ada", "server_settings": {"search_path": path}}
