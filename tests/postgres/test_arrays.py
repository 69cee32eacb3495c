"""Arrays as parameters and in the text: `= ANY` and `<> ALL`, in every type, in text and in binary."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import asyncpg
import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg import errors

from support.server import ServerProcess
from topics_postgres import decoding, oids
from topics_postgres.encoding import array_of, array_text
from topics_postgres.errors import PgError


@pytest.fixture
def filled(db: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    db.cursor().executemany("INSERT INTO t VALUES (%s, %s, %s)", [(each, f"n{each}", each) for each in range(20)])
    return db


def ids(db: psycopg.Connection[Any], condition: str, *values: Any, binary: bool = False) -> list[int]:
    query = f"SELECT id FROM t WHERE {condition} ORDER BY id"
    return [row[0] for row in db.execute(query, values, binary=binary).fetchall()]


@pytest.mark.parametrize("binary", [False, True])
def test_conditions(filled: psycopg.Connection[Any], binary: bool) -> None:
    assert ids(filled, "id = ANY(%s)", [3, 5, 7, 1 << 40], binary=binary) == [3, 5, 7]
    assert ids(filled, "name = ANY(%s) AND v <> ALL(%s)", ["n1", "n2", 'a"{b,'], [2], binary=binary) == [1]
    assert ids(filled, "id = ANY(%s::bigint[])", ["4", "5"], binary=binary) == [4, 5]
    assert ids(filled, "id = SOME(%s) AND id < %s", [1, None, 2], 2, binary=binary) == [1]
    everything = list(range(20))
    assert ids(filled, "id = ANY(%s)", []) == ids(filled, "id = ANY(%s)", None) == []
    assert ids(filled, "NOT id = ANY(%s)", []) == ids(filled, "id <> ALL(%s)", []) == everything
    assert ids(filled, "id <> ALL(%s)", [1, None]) == []
    assert ids(filled, "id = ANY(ARRAY[1, 2]) AND name <> ALL(ARRAY['n2', 'x'])") == [1]


def test_changes_and_groups(filled: psycopg.Connection[Any]) -> None:
    assert filled.execute("UPDATE t SET name = 'x' WHERE id = ANY(%s)", ([1, 2, 3],)).rowcount == 3
    assert filled.execute("SELECT name, count(*) FROM t WHERE id = ANY(%s) GROUP BY name ORDER BY 1", ([1, 2, 4],)
                          ).fetchall() == [("n4", 1), ("x", 2)]  # fmt: skip
    assert filled.execute("DELETE FROM t WHERE id = ANY(%s)", ([1, 2, 1000],)).rowcount == 2


@pytest.mark.parametrize(
    ("condition", "value", "code"),
    [
        ("id = ANY(%s)", "{1,2", "22P02"),
        ("id = ANY(%s)", list(range(10_001)), "54000"),
        ("id > ANY(%s)", [5], "0A000"),
        ("id = ANY(%s)", ["a"], "22P02"),
    ],
)
def test_bad_arrays(filled: psycopg.Connection[Any], condition: str, value: Any, code: str) -> None:
    with pytest.raises(errors.Error) as failure:
        ids(filled, condition, value)
    assert failure.value.sqlstate == code


async def test_asyncpg_sends_arrays_of_every_type(server: ServerProcess, namespace: str) -> None:
    at = datetime(2024, 2, 29, 1, 2, 3, tzinfo=UTC)
    row = (1, "ä", 7, UUID(int=5), date(2024, 2, 29), Decimal("1.50"), 1.5, True, at, b"\0\xff")
    db = await asyncpg.connect(
        f"postgresql://ada@127.0.0.1:{server.pg_port}/shop", server_settings={"search_path": namespace}
    )
    await db.execute("CREATE TABLE a (id BIGINT PRIMARY KEY, name TEXT, v INTEGER, u UUID, d DATE, p DECIMAL(10, 2),"
                     " f DOUBLE, b BOOLEAN, at TIMESTAMP, raw BYTES)")  # fmt: skip
    await db.execute("INSERT INTO a VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)", *row)
    for column, value in zip(("id", "name", "v", "u", "d", "p", "f", "b", "at", "raw"), row, strict=True):
        assert await db.fetch(f"SELECT id FROM a WHERE {column} = ANY($1)", [value]) == [(1,)], column
        assert await db.fetch(f"SELECT id FROM a WHERE {column} <> ALL($1)", [value, value]) == [], column
    await db.close()


@given(st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))))
def test_arrays_of_texts_come_back(values: list[str | None]) -> None:
    assert decoding.decoder(oids.ARRAYS[oids.TEXT], 0)(array_text(values)) == values
    binary = array_of(oids.TEXT, str.encode)(values)
    assert decoding.decoder(oids.ARRAYS[oids.TEXT], 1)(binary) == values
    for end in range(len(binary)):
        if end != 12:  # an array without elements has no more
            with pytest.raises(PgError):
                decoding.decoder(oids.ARRAYS[oids.TEXT], 1)(binary[:end])
