"""The catalog, as clients ask for it: psql, SQLAlchemy, and plain queries with parameters and rights."""

import shutil
import subprocess
from collections.abc import Iterator
from typing import Any, cast

import psycopg
import pytest
from psycopg import errors
from sqlalchemy import BigInteger, Column, MetaData, Table, Text, create_engine, inspect
from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import create_async_engine

from support.missing import without
from support.server import ServerProcess
from topics_postgres.catalog.answering import Asking, Catalogs
from topics_postgres.errors import PgError, Piece
from topics_service.api.sql.sessions import Session

TABLE = """CREATE TABLE messages (
    id BIGINT PRIMARY KEY, author VARCHAR(20) NOT NULL, body TEXT DEFAULT 'x', price DECIMAL(10, 2), at TIMESTAMP,
    CONSTRAINT positive CHECK (price > 0), UNIQUE (author, body)
)"""


@pytest.fixture
def db(where: str) -> Iterator[psycopg.Connection[Any]]:
    """A namespace with one table, which has all that a table can have."""
    with psycopg.connect(where, autocommit=True) as connection:
        connection.execute(TABLE)
        connection.execute("CREATE INDEX by_at ON messages (at)")
        yield connection


def psql(where: str, *commands: str) -> str:
    """Output of psql for these commands."""
    if shutil.which("psql") is None:
        without("psql is not installed")
    arguments = [each for command in commands for each in ("-c", command)]
    done = subprocess.run(
        ["psql", "-X", "-q", "-A", where, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stderr, done.returncode) == ("", 0)
    return done.stdout


def test_psql_shows_a_table(db: psycopg.Connection[Any], where: str, namespace: str) -> None:
    shown = psql(where, r"\d messages")
    assert shown.splitlines() == [
        f'Table "{namespace}.messages"',
        "Column|Type|Collation|Nullable|Default",
        "id|bigint||not null|",
        "author|character varying(20)||not null|",
        "body|text|||'x'",
        "price|numeric(10,2)|||",
        "at|timestamp with time zone|||",
        "Indexes:",
        '    "messages_pkey" PRIMARY KEY, btree (id)',
        '    "by_at" btree (at)',
        '    "messages_author_body_key" UNIQUE CONSTRAINT, btree (author, body)',
        "Check constraints:",
        '    "positive" CHECK ((price > 0))',
    ]


def test_psql_lists_what_there_is(db: psycopg.Connection[Any], where: str, namespace: str) -> None:
    shown = psql(
        where, r"\d", r"\d+ messages", r"\dt", r"\dn", r"\l", r"\du", r"\di", r"\df", r"\dT", r"\d by_at",
        r"\dv system.*", r"\dp", r"\dx", r"\dy", r"\dD", r"\des", r"\dRp", r"\dA", r"\conninfo",
    )  # fmt: skip
    for line in (
        f"{namespace}|messages|table|system",
        f"{namespace}|system",
        "shop|system|UTF8|C|C||libc|",
        "ada|Superuser, Create role|{}",
        f"{namespace}|by_at|index|system|messages",
        "at|timestamp with time zone|yes|at",
        "system|topic_offsets|view|system",
        "heap|Table",
        "Access method: heap",
    ):
        assert line in shown.splitlines(), line


METADATA = MetaData()
MADE = Table("made", METADATA, Column("id", BigInteger, primary_key=True, autoincrement=False), Column("name", Text))


def look(connection: Connection, namespace: str) -> dict[str, Any]:
    """The table as SQLAlchemy finds it."""
    seen = inspect(connection)
    METADATA.create_all(connection, checkfirst=True)
    METADATA.create_all(connection, checkfirst=True)
    reflected = MetaData()
    reflected.reflect(connection, schema=namespace)
    columns = [(each["name"], str(each["type"]), each["nullable"], each["default"]) for each in
               seen.get_columns("messages", schema=namespace)]  # fmt: skip
    return {
        "schemas": namespace in seen.get_schema_names(),
        "tables": sorted(seen.get_table_names()),
        "views": seen.get_view_names(),
        "columns": columns,
        "key": seen.get_pk_constraint("messages")["constrained_columns"],
        "unique": [(each["name"], each["column_names"]) for each in seen.get_unique_constraints("messages")],
        "indexes": [(each["name"], each["unique"], each["column_names"]) for each in seen.get_indexes("messages")],
        "foreign": seen.get_foreign_keys("messages"),
        "checks": [(each["name"], each["sqltext"]) for each in seen.get_check_constraints("messages")],
        "has": (seen.has_table("messages"), seen.has_table("nothing"), seen.has_index("messages", "by_at")),
        "reflected": sorted(reflected.tables[f"{namespace}.messages"].columns.keys()),
        "sequences": (seen.get_sequence_names(), seen.get_temp_table_names(), seen.get_table_comment("messages")),
    }


LOOKED = {
    "schemas": True,
    "tables": ["made", "messages"],
    "views": [],
    "columns": [
        ("id", "BIGINT", False, None), ("author", "VARCHAR(20)", False, None), ("body", "TEXT", True, "'x'"),
        ("price", "NUMERIC(10, 2)", True, None), ("at", "TIMESTAMP", True, None),
    ],
    "key": ["id"],
    "unique": [("messages_author_body_key", ["author", "body"])],
    "indexes": [("by_at", False, ["at"]), ("messages_author_body_key", True, ["author", "body"])],
    "foreign": [],
    "checks": [("positive", "price > 0")],
    "has": (True, False, True),
    "reflected": ["at", "author", "body", "id", "price"],
    "sequences": ([], [], {"text": None}),
}  # fmt: skip


def test_sqlalchemy_inspects(db: psycopg.Connection[Any], server: ServerProcess, namespace: str) -> None:
    engine = create_engine(
        f"postgresql+psycopg://ada@127.0.0.1:{server.pg_port}/shop",
        connect_args={"options": f"-c search_path={namespace}"},
    )
    with engine.connect() as connection:
        assert look(connection, namespace) == LOOKED
    engine.dispose()


async def test_sqlalchemy_inspects_over_asyncpg(
    db: psycopg.Connection[Any], server: ServerProcess, namespace: str
) -> None:
    engine = create_async_engine(
        f"postgresql+asyncpg://ada@127.0.0.1:{server.pg_port}/shop",
        connect_args={"server_settings": {"search_path": namespace}},
    )
    async with engine.connect() as connection:
        assert await connection.run_sync(look, namespace) == LOOKED
    await engine.dispose()


def test_parameters_and_arrays(db: psycopg.Connection[Any]) -> None:
    for binary in (False, True):
        rows = db.execute(
            "SELECT oid, relname, relnatts, relhasindex, ARRAY[relname, 'a,b', NULL] FROM pg_class"
            " WHERE relname = ANY(%s) AND relkind = %s AND pg_table_is_visible(oid)",
            (["messages", "by_at"], "r"), binary=binary,
        ).fetchall()  # fmt: skip
        assert [row[1:] for row in rows] == [("messages", 5, True, ["messages", "a,b", None])]
        oid = rows[0][0]
        assert db.execute("SELECT %s::regclass, 'messages'::regclass::oid", (oid,), binary=binary).fetchall() == [
            ("messages", oid)
        ]
        key = db.execute("SELECT conkey, indkey[0], indkey FROM pg_constraint JOIN pg_index ON conindid = indexrelid"
                         " WHERE conrelid = %s AND contype = 'u'", (oid,), binary=binary).fetchone()  # fmt: skip
        assert key is not None
        assert key[:2] == ([2, 3], 2)


def test_names_of_columns_and_texts_with_escapes(db: psycopg.Connection[Any]) -> None:
    found = db.execute(
        r"SELECT relname::text, count(*), CASE WHEN true THEN 1 END, pg_get_userbyid(10), 1 + 1, E'a\tb\'c' AS Text,"
        " current_user, array_to_string(ARRAY[1, 2], '-') FROM pg_class WHERE oid = 'messages'::regclass GROUP BY 1"
    )
    assert [each.name for each in found.description or ()] == [
        "relname", "count", "case", "pg_get_userbyid", "?column?", "text", "current_user", "array_to_string",
    ]  # fmt: skip
    assert found.fetchone() == ("messages", 1, 1, "system", 2, "a\tb'c", "ada", "1-2")
    assert db.execute(r"SELECT body, E'\x41\101\u00e9' FROM messages WHERE body = E'\\'").fetchall() == []


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("SELECT * FROM pg_catalog.pg_nothing", "42P01"),
        ("SELECT nothing FROM pg_class", "42703"),
        ("SELECT pg_read_file('/etc/passwd') FROM pg_class", "42883"),
        ("SELECT * FROM pg_class, read_csv('/etc/passwd')", "42883"),
        ("SELECT * FROM pg_class, duckdb_settings()", "42883"),
        ("SELECT getvariable('user') FROM pg_class", "42883"),
        ("SELECT * FROM pg_class, x_names", "42P01"),
        ("SELECT * FROM pg_class, messages", "0A000"),
        ("SELECT * FROM pg_class, \"/etc/passwd\"", "42P01"),
        ("SELECT 'nothing'::regclass", "42P01"),
        ("SELECT relname FROM pg_class WHERE", "42601"),
        ("SELECT relname::box FROM pg_class", "42704"),
        ("WITH q AS (SELECT 1) SELECT * FROM pg_class, (WITH duckdb_tables AS (SELECT 1) SELECT 1) x, duckdb_tables",
         "42P01"),
    ],
)  # fmt: skip
def test_what_there_is_not(db: psycopg.Connection[Any], query: str, code: str) -> None:
    with pytest.raises(errors.Error) as failure:
        db.execute(query)
    assert failure.value.sqlstate == code
    assert db.execute("SELECT 1").fetchone() == (1,)


def test_oids_stay_and_definitions_show_at_once(db: psycopg.Connection[Any], where: str) -> None:
    query = "SELECT attname, attrelid FROM pg_attribute WHERE attrelid = 'messages'::regclass ORDER BY attnum"
    before = db.execute(query).fetchall()
    with psycopg.connect(where) as other:
        db.execute("ALTER TABLE messages ADD COLUMN more TEXT")
        assert other.execute(query).fetchall() == [*before, ("more", before[0][1])]


def test_a_runaway_query_ends(db: psycopg.Connection[Any]) -> None:
    db.execute("SET statement_timeout = '300ms'")
    with pytest.raises(errors.QueryCanceled):
        db.execute("SELECT count(*) FROM pg_attribute a, pg_attribute b, pg_attribute c, pg_attribute d")
    db.execute("SET statement_timeout = 0")
    assert db.execute("SELECT count(*) FROM pg_am").fetchone() == (2,)


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("SELECT 1 FROM pg_class", "0A000"),
        ("SELECT oid FROM pg_type WHERE oid = to_regtype($1)", "42704"),
    ],
)
async def test_without_duckdb(monkeypatch: pytest.MonkeyPatch, query: str, code: str) -> None:
    monkeypatch.setattr("topics_service.api.sql.analysis.api.find_spec", lambda name: None)
    catalogs = Catalogs()
    asked = Asking({"is_superuser": False}, lambda name, arguments: None, None)
    with pytest.raises(PgError, match=r"\[analytics\]") as failure:
        await catalogs.describe(cast("Session", None), Piece(query, 0), (), asked)
    assert failure.value.sqlstate == code
    catalogs.close()
