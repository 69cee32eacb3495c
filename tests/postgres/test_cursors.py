"""Cursors and prepared statements as statements: through psycopg's named cursors, and as text."""

from typing import Any

import psycopg
import pytest
from psycopg import errors

ROWS = [(number, f"name {number}", number) for number in range(2500)]


@pytest.fixture
def filled(db: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    with db.transaction():
        db.cursor().executemany("INSERT INTO t VALUES (%s, %s, %s)", ROWS)
    return db


@pytest.mark.parametrize("binary", [False, True])
def test_a_named_cursor_reads_in_parts(filled: psycopg.Connection[Any], where: str, binary: bool) -> None:
    with psycopg.connect(where) as db, db.cursor(name="c", binary=binary) as cursor:
        cursor.itersize = 1000
        cursor.execute("SELECT id, name, v FROM t WHERE id >= %s", (5,))
        filled.execute("DELETE FROM t WHERE id > 100")  # the cursor is of the moment of its query
        assert [each.name for each in cursor.description or ()] == ["id", "name", "v"]
        assert [cursor.fetchone(), *cursor.fetchmany(10), *cursor] == ROWS[5:]


def test_the_catalog_has_cursors_too(filled: psycopg.Connection[Any]) -> None:
    with filled.transaction(), filled.cursor(name="c") as cursor:
        cursor.execute("SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass ORDER BY attnum", ("t",))
        assert cursor.fetchmany(2) == [("id",), ("name",)]
        assert cursor.fetchall() == [("v",)]


def test_fetch_and_move_as_text(filled: psycopg.Connection[Any]) -> None:
    with filled.transaction():
        filled.execute("DECLARE x NO SCROLL CURSOR WITHOUT HOLD FOR SELECT id FROM t ORDER BY id")
        assert filled.execute("MOVE 10 IN x").statusmessage == "MOVE 10"
        for text, ids in (
            ("FETCH x", [10]), ("FETCH NEXT FROM x", [11]), ("FETCH 2 x", [12, 13]), ("FETCH FORWARD IN x", [14]),
            ("FETCH FORWARD 2 FROM x", [15, 16]), ("FETCH RELATIVE 1 FROM x", [17]), ("FETCH ALL x", range(18, 2500)),
            ("FETCH x", []),
        ):  # fmt: skip
            found = filled.execute(text)
            assert [row[0] for row in found.fetchall()] == list(ids)
            assert found.statusmessage == f"FETCH {len(ids)}"
        assert filled.execute("MOVE FORWARD ALL IN x").statusmessage == "MOVE 0"
        filled.execute("CLOSE x")
    with pytest.raises(errors.InvalidCursorName):
        filled.execute("FETCH x")


def test_a_cursor_ends_with_its_transaction(filled: psycopg.Connection[Any]) -> None:
    filled.execute("BEGIN")
    filled.execute("DECLARE x CURSOR FOR SELECT id FROM t")
    with pytest.raises(errors.DuplicateCursor):
        filled.execute("DECLARE x CURSOR FOR SELECT 1")
    with pytest.raises(errors.InFailedSqlTransaction):
        filled.execute("FETCH x")
    filled.execute("ROLLBACK")
    filled.execute("BEGIN")
    with pytest.raises(errors.InvalidCursorName):
        filled.execute("FETCH x")
    filled.execute("ROLLBACK")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("DECLARE x CURSOR FOR SELECT 1", "25P01"),
        ("DECLARE x SCROLL CURSOR FOR SELECT 1", "0A000"),
        ("DECLARE x CURSOR WITH HOLD FOR SELECT 1", "0A000"),
        ("DECLARE x CURSOR FOR DELETE FROM t", "42601"),
        ("FETCH PRIOR FROM x", "55000"),
        ("FETCH 0 FROM x", "42601"),
        ("EXECUTE nothing", "26000"),
        ("PREPARE p (box) AS SELECT 1", "42704"),
        ("PREPARE p AS SELECT nothing FROM t", "42703"),
        ("PREPARE TRANSACTION 'x'", "0A000"),
    ],
)
def test_what_is_refused(db: psycopg.Connection[Any], text: str, code: str) -> None:
    with pytest.raises(errors.Error) as failure:
        db.execute(text)
    assert failure.value.sqlstate == code


def test_statements_are_prepared_as_text(db: psycopg.Connection[Any]) -> None:
    db.execute("PREPARE new (bigint, character varying(20), int) AS INSERT INTO t VALUES ($1, $2, $3)")
    assert db.execute("EXECUTE new (1, 'it''s', -5)").statusmessage == "INSERT 0 1"
    assert db.execute("EXECUTE new (2, NULL, '7'::int)").statusmessage == "INSERT 0 1"
    db.execute("PREPARE find AS SELECT id, name, v FROM t WHERE v = $1")
    assert db.execute("EXECUTE find (-5)").fetchall() == [(1, "it's", -5)]
    db.execute("PREPARE relation (text) AS SELECT relname FROM pg_class WHERE oid = $1::regclass")
    assert db.execute("EXECUTE relation ('t')").fetchall() == [("t",)]
    with pytest.raises(errors.DuplicatePreparedStatement):
        db.execute("PREPARE find AS SELECT 1")
    with pytest.raises(errors.SyntaxError):
        db.execute("EXECUTE find")
    db.execute("DEALLOCATE find")
    with pytest.raises(errors.InvalidSqlStatementName):
        db.execute("EXECUTE find (1)")
    assert db.execute("SELECT count(*) FROM t").fetchone() == (2,)
