"""psycopg 3 against a server: types both ways, transactions, pipeline, COPY, errors, cancel."""

import threading
import uuid
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from psycopg import errors
from psycopg.types.json import Jsonb

from support.waiting import poll

ALL = """CREATE TABLE every (id BIGINT PRIMARY KEY, ok BOOLEAN, small SMALLINT, int INTEGER, real REAL,
    double DOUBLE, dec DECIMAL(12, 3), text TEXT, short VARCHAR(9), raw BYTEA, doc JSON, at TIMESTAMP, day DATE,
    tod TIME, uid UUID)"""
ROWS: list[tuple[Any, ...]] = [
    (1, True, -7, 1 << 30, 1.5, 1e-300, Decimal("-12345.678"), "ü'\\\n", "short", b"\x00\xff\\",
     Jsonb({"a": [1, None]}), datetime(2024, 2, 29, 23, 59, 59, 123456, tzinfo=UTC), date(1, 1, 1),
     time(23, 59, 59, 999999), uuid.UUID(int=9)),
    (2, False, 32767, -(1 << 31), -0.0, 1.7976931348623157e308, Decimal("0.001"), "", "", b"", Jsonb([]),
     datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC), date(9999, 12, 31), time(0), uuid.UUID(int=(1 << 128) - 1)),
    (-(1 << 63), *[None] * 14),
]  # fmt: skip


def plain(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """A row as it is read."""
    return tuple(value.obj if isinstance(value, Jsonb) else value for value in row)


@pytest.mark.parametrize("results", [False, True], ids=["text", "binary"])
@pytest.mark.parametrize("parameters", ["%s", "%b", "%t"])
def test_every_type_comes_back_as_it_went(db: psycopg.Connection[Any], parameters: str, results: bool) -> None:
    db.execute(ALL)
    statement = f"INSERT INTO every VALUES ({', '.join([parameters] * 15)})"
    cursor = db.cursor(binary=results)
    for row in ROWS:
        cursor.execute(statement, row)
    found = cursor.execute("SELECT * FROM every ORDER BY id DESC").fetchall()
    assert found == [plain(ROWS[1]), plain(ROWS[0]), plain(ROWS[2])]
    assert cursor.description is not None
    assert [column.type_code for column in cursor.description] == [
        20, 16, 21, 23, 700, 701, 1700, 25, 1043, 17, 3802, 1184, 1082, 1083, 2950
    ]  # fmt: skip
    for at, name in enumerate(column.name for column in cursor.description):
        if name not in ("doc", "real"):
            statement = f"SELECT id FROM every WHERE {name} = {parameters} AND id = 1"
            assert cursor.execute(statement, (ROWS[0][at],)).fetchall() == [(1,)], name


def test_a_parameter_without_context_has_the_type_of_the_client(db: psycopg.Connection[Any]) -> None:
    assert db.execute("SELECT %s, %s, %s", (5, "x", None)).fetchone() == (5, "x", None)
    assert db.execute("SELECT %s + 1", (41,)).fetchone() == (42,)
    plan = db.execute("EXPLAIN SELECT * FROM t WHERE id = %s", (5,)).fetchall()  # the client says SMALLINT
    assert "  primary key (id)" in [line for (line,) in plan]


def test_an_analytical_query_sees_the_changes_of_its_transaction(db: psycopg.Connection[Any]) -> None:
    db.execute("CREATE TABLE summed (id BIGINT PRIMARY KEY, n BIGINT)")
    with db.transaction(force_rollback=True):
        db.execute("INSERT INTO summed VALUES (1, 5), (2, 7)")
        assert db.execute("SELECT sum(a.n), count(*) FROM summed a JOIN summed b USING (id)").fetchone() == (12, 2)
    assert db.execute("SELECT count(*) FROM summed a JOIN summed b USING (id)").fetchone() == (0,)


@pytest.mark.parametrize("binary", [False, True], ids=["text", "binary"])
def test_a_join_with_groups_and_a_parameter(db: psycopg.Connection[Any], binary: bool) -> None:
    db.execute("CREATE TABLE buyers (id BIGINT PRIMARY KEY, name TEXT)")
    db.execute("CREATE TABLE bought (id BIGINT PRIMARY KEY, buyer BIGINT, price DECIMAL(12, 2))")
    db.execute("INSERT INTO buyers VALUES (1, 'ann'), (2, 'bo')")
    db.execute("INSERT INTO bought VALUES (1, 1, 2.50), (2, 1, 3.25), (3, 2, 1.00)")
    joined = (
        "SELECT b.name, count(*), sum(o.price) FROM buyers b JOIN bought o ON o.buyer = b.id WHERE o.price > %s "
        "GROUP BY b.name ORDER BY b.name"
    )
    with db.cursor(binary=binary) as cursor:
        cursor.execute(joined, (Decimal("1.50"),))
        assert cursor.statusmessage == "SELECT 1"
        assert cursor.fetchall() == [("ann", 2, Decimal("5.75"))]
        db.execute("UPDATE bought SET price = 9 WHERE id = 3")
        assert cursor.execute(joined, (Decimal("1.50"),)).fetchall()[1] == ("bo", 1, Decimal(9))
    with db.transaction():
        db.execute("SET TRANSACTION READ ONLY")
        assert db.execute(joined, (Decimal(0),)).rowcount == 2


def test_what_a_statement_did_is_told(db: psycopg.Connection[Any]) -> None:
    cursor = db.execute("INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 2) RETURNING id")
    assert (cursor.statusmessage, cursor.rowcount, cursor.fetchall()) == ("INSERT 0 2", 2, [(1,), (2,)])
    assert db.execute("UPDATE t SET name = 'c' WHERE id > 0").statusmessage == "UPDATE 2"
    assert db.execute("SELECT id FROM t").statusmessage == "SELECT 2"
    assert db.execute("DELETE FROM t WHERE id = 2").statusmessage == "DELETE 1"
    assert db.execute("CREATE TABLE u (id INT PRIMARY KEY)").statusmessage == "CREATE TABLE"
    assert db.execute("DROP TABLE IF EXISTS nothing").statusmessage == "DROP TABLE"


def test_many_rows_come_in_pages_of_one_moment(db: psycopg.Connection[Any]) -> None:
    with db.cursor().copy("COPY t (id, name) FROM STDIN") as copy:
        for number in range(12_345):
            copy.write_row((number, f"name {number}"))
    assert len(db.execute("SELECT * FROM t").fetchall()) == 12_345
    with psycopg.ClientCursor(db) as cursor:
        assert len(cursor.execute("SELECT id FROM t WHERE id < 11000").fetchall()) == 11_000
    assert [row[0] for row in db.cursor().stream("SELECT id FROM t WHERE id < 3000")] == list(range(3000))


# ------------------------------------------------------------------------------------------------- transactions


def test_a_transaction_over_messages_is_seen_by_others_when_it_is_committed(
    db: psycopg.Connection[Any], where: str
) -> None:
    with psycopg.connect(where) as other:
        other.execute("INSERT INTO t VALUES (1, 'a', 1)")
        assert other.execute("SELECT name FROM t").fetchall() == [("a",)]
        assert other.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
        assert db.execute("SELECT count(*) FROM t").fetchone() == (0,)
        db.execute("INSERT INTO t VALUES (2, 'not held up', 2)")  # by the open transaction
        other.commit()
        assert db.execute("SELECT count(*) FROM t").fetchone() == (2,)
        other.execute("DELETE FROM t WHERE id > 0")
        other.rollback()
        assert db.execute("SELECT count(*) FROM t").fetchone() == (2,)


@pytest.mark.parametrize(
    ("mine", "others"),
    [
        ("UPDATE t SET name = 'mine' WHERE id = 1", "UPDATE t SET name = 'other' WHERE id = 1"),
        ("UPDATE t SET name = 'mine' WHERE id = 1", "DELETE FROM t WHERE id = 1"),
        ("DELETE FROM t WHERE id = 1", "UPDATE t SET v = 77 WHERE id = 1"),
        ("INSERT INTO t VALUES (5, 'mine', 5)", "INSERT INTO t VALUES (5, 'other', 6)"),
        ("INSERT INTO t VALUES (5, 'mine', 5)", "INSERT INTO t VALUES (6, 'other', 5)"),
        ("UPDATE t SET v = 9 WHERE id = 1", "INSERT INTO t VALUES (9, 'other', 9)"),
        ("INSERT INTO t VALUES (5, 'mine', 5)", "ALTER TABLE t ADD COLUMN more TEXT"),
        ("INSERT INTO t VALUES (5, 'mine', 5)", "DROP TABLE t"),
        ("INSERT INTO t VALUES (5, 'mine', 5)", "CREATE INDEX another ON t (name)"),
    ],
)
def test_the_second_of_two_changes_is_a_conflict(
    db: psycopg.Connection[Any], where: str, mine: str, others: str
) -> None:
    db.execute("INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 2)")
    with psycopg.connect(where) as connection:
        connection.execute(mine)
        db.execute(others)
        with pytest.raises(errors.SerializationFailure):
            connection.commit()
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    if not others.startswith("DROP"):
        assert db.execute("SELECT count(*) FROM t WHERE name = 'mine'").fetchone() == (0,)


def test_changes_of_other_rows_are_no_conflict(db: psycopg.Connection[Any], where: str) -> None:
    db.execute("INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 2)")
    with psycopg.connect(where) as connection:
        connection.execute("UPDATE t SET v = 11 WHERE id = 1")
        connection.execute("INSERT INTO t VALUES (3, 'c', 3)")
        db.execute("UPDATE t SET v = 22 WHERE id = 2")
        db.execute("INSERT INTO t VALUES (4, 'd', 4)")
        connection.commit()
    assert db.execute("SELECT id, v FROM t ORDER BY id").fetchall() == [(1, 11), (2, 22), (3, 3), (4, 4)]


def test_a_transaction_that_failed_can_only_be_rolled_back(db: psycopg.Connection[Any]) -> None:
    with db.transaction():
        db.execute("INSERT INTO t VALUES (1, 'a', 1)")
        with pytest.raises(errors.UniqueViolation), db.transaction():  # a savepoint
            db.execute("INSERT INTO t VALUES (1, 'again', 2)")
        db.execute("INSERT INTO t VALUES (2, 'b', 2)")
    assert db.execute("SELECT id FROM t ORDER BY id").fetchall() == [(1,), (2,)]
    db.execute("BEGIN")
    with pytest.raises(errors.SyntaxError):
        db.execute("SELEC 1")
    assert db.info.transaction_status == psycopg.pq.TransactionStatus.INERROR
    with pytest.raises(errors.InFailedSqlTransaction):
        db.execute("SELECT 1")
    assert db.execute("COMMIT").statusmessage == "ROLLBACK"


def test_a_read_only_transaction_changes_nothing(db: psycopg.Connection[Any]) -> None:
    db.execute("BEGIN READ ONLY")
    with pytest.raises(errors.ReadOnlySqlTransaction):
        db.execute("INSERT INTO t VALUES (1, 'a', 1)")
    db.execute("ROLLBACK")
    db.execute("INSERT INTO t VALUES (1, 'a', 1)")
    with pytest.raises(errors.FeatureNotSupported, match="isolation"):
        db.execute("BEGIN ISOLATION LEVEL SERIALIZABLE")


def test_a_definition_in_a_transaction_takes_effect_at_once_or_is_refused(where: str) -> None:
    notices: list[str] = []
    with psycopg.connect(where) as connection:
        connection.add_notice_handler(lambda notice: notices.append(notice.message_primary or ""))
        connection.execute("CREATE TABLE made (id INT PRIMARY KEY)")
        connection.rollback()
        assert notices == ["CREATE TABLE takes effect at once, whatever becomes of the transaction"]
        connection.execute("INSERT INTO made VALUES (1)")
        with pytest.raises(errors.FeatureNotSupported, match="commit or roll back"):
            connection.execute("CREATE TABLE other (id INT PRIMARY KEY)")


def test_statements_of_one_message_are_one_transaction(db: psycopg.Connection[Any]) -> None:
    with pytest.raises(errors.UniqueViolation):
        db.execute(
            "INSERT INTO t VALUES (1, 'a', 1); INSERT INTO t VALUES (2, 'b', 2); INSERT INTO t VALUES (1, 'c', 3)"
        )
    assert db.execute("SELECT count(*) FROM t").fetchone() == (0,)
    db.execute("INSERT INTO t VALUES (1, 'a', 1); INSERT INTO t VALUES (2, 'b', 2)")
    assert db.execute("SELECT count(*) FROM t").fetchone() == (2,)


def test_a_pipeline_answers_in_order_and_undoes_all_up_to_the_error(db: psycopg.Connection[Any]) -> None:
    with db.pipeline():
        cursors = [db.execute("INSERT INTO t VALUES (%s, 'p', %s) RETURNING id", (n, n)) for n in range(100)]
    assert [cursor.fetchone() for cursor in cursors] == [(number,) for number in range(100)]

    def two() -> None:
        with db.pipeline():
            db.execute("INSERT INTO t VALUES (200, 'p', 200)")
            db.execute("INSERT INTO t VALUES (1, 'p', 201)")

    with pytest.raises(errors.UniqueViolation):
        two()
    assert db.execute("SELECT count(*) FROM t").fetchone() == (100,)


def test_executemany_is_one_transaction(db: psycopg.Connection[Any]) -> None:
    db.cursor().executemany("INSERT INTO t VALUES (%s, %s, %s)", [(n, "m", n) for n in range(500)])
    assert db.execute("SELECT count(*) FROM t").fetchone() == (500,)


# --------------------------------------------------------------------------------------------------------- COPY


@pytest.mark.parametrize("form", ["text", "csv", "binary"])
def test_copy_gives_what_it_took(db: psycopg.Connection[Any], form: str) -> None:
    rows = [(1, 'tab\t, "quotes" and \\ and\nline', 1), (2, "", None), (3, None, -3), (4, "\\N", 4), (5, "\\.", 5)]
    rows += [(number, f"ü{number}", number) for number in range(10, 3000)]
    options = f"(FORMAT {form})"
    db.execute("INSERT INTO t VALUES (%s, %s, %s)", rows[0])
    statement = "INSERT INTO t VALUES (%s, %s, %s)"
    db.cursor().executemany(statement, rows[1:])
    with db.cursor().copy(f"COPY (SELECT id, name, v FROM t ORDER BY id) TO STDOUT WITH {options}") as copy:
        data = b"".join(map(bytes, copy))
    db.execute("CREATE TABLE back (id BIGINT PRIMARY KEY, name TEXT, v INTEGER)")
    cursor = db.cursor()
    with cursor.copy(f"COPY back (id, name, v) FROM STDIN WITH {options}") as copy:
        for start in range(0, len(data), 1009):  # rows are cut anywhere
            copy.write(data[start : start + 1009])
    assert cursor.rowcount == len(rows)
    assert db.execute("SELECT id, name, v FROM back ORDER BY id").fetchall() == rows
    if form == "binary":
        with db.cursor().copy("COPY back TO STDOUT (FORMAT binary)") as copy:
            copy.set_types(["int8", "text", "int4"])
            assert list(copy.rows()) == rows
    else:
        with db.cursor().copy(f"COPY back TO STDOUT WITH {options}") as copy:
            assert len(list(copy)) == len(rows)


def test_a_copy_that_breaks_off_writes_nothing(db: psycopg.Connection[Any], where: str) -> None:

    def broken_off() -> None:
        with db.cursor().copy("COPY t (id, name) FROM STDIN") as copy:
            for number in range(2000):
                copy.write_row((number, "x"))
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        broken_off()
    with pytest.raises(errors.InvalidTextRepresentation), db.cursor().copy("COPY t (id, name) FROM STDIN") as copy:
        copy.write(b"1\tfine\nnumber\tbad\n" + b"3\tmore\n" * 5000)
    with pytest.raises(errors.BadCopyFileFormat, match="missing data"), db.cursor().copy("COPY t FROM STDIN") as copy:
        copy.write(b"1\tfine\n")
    with psycopg.connect(where, autocommit=True) as other:
        leaving = other.cursor().copy("COPY t (id, name) FROM STDIN")
        leaving.__enter__().write(b"1\tleft behind\n" * 20)
        other.pgconn.finish()
    assert db.execute("SELECT count(*) FROM t").fetchone() == (0,)
    with pytest.raises(errors.UniqueViolation), db.cursor().copy("COPY t (id, name) FROM STDIN") as copy:
        copy.write(b"1\ta\n2\tb\n1\tc\n")
    assert db.execute("SELECT count(*) FROM t").fetchone() == (0,)


# -------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("statement", "sqlstate", "position"),
    [
        ("SELECT  nope FROM t", "42703", 9),
        ("SELECT 1;\nSELECT * FROM nothing", "42P01", 25),
        ("SELECT 'open", "42601", 8),
        ("COPY t FROM '/etc/passwd'", "0A000", 13),
        ("SET nothing_known = 1", "42704", None),
        ("SET client_encoding = 'LATIN1'", "22023", None),
        ("SELECT 1 / 0", "22012", None),
        ("DEALLOCATE nothing", "26000", None),
        ("LISTEN x", "0A000", 1),
    ],
)
def test_errors_have_a_code_and_a_place(
    db: psycopg.Connection[Any], statement: str, sqlstate: str, position: int | None
) -> None:
    with psycopg.ClientCursor(db) as cursor, pytest.raises(psycopg.Error) as raised:
        cursor.execute(statement)
    assert raised.value.sqlstate == sqlstate
    if position is not None:
        assert raised.value.diag.statement_position == str(position)
    assert db.execute("SELECT 1").fetchone() == (1,)


def test_the_cancel_key_of_a_session_ends_its_statement_and_that_of_another_does_nothing(
    db: psycopg.Connection[Any], where: str
) -> None:
    with db.cursor().copy("COPY t (id, name) FROM STDIN") as copy:
        for number in range(50_000):
            copy.write_row((number, "abcdefgh"))
    slow = "SELECT count(*) FROM t WHERE " + " OR ".join(f"name LIKE '%{n}z%'" for n in range(60))
    with psycopg.connect(where, autocommit=True) as other:
        found: list[object] = []

        def run() -> None:
            try:
                found.append(other.execute(slow.encode()).fetchone())
            except errors.QueryCanceled as error:
                found.append(error)

        thread = threading.Thread(target=run)
        thread.start()

        def cancelled() -> bool:
            other.cancel_safe()
            return bool(found)

        poll(cancelled, 30, "the end of the statement")
        thread.join()
        assert isinstance(found[0], errors.QueryCanceled), found
        db.cancel_safe()  # of a session that does nothing
        assert db.execute("SELECT 1").fetchone() == other.execute("SELECT 1").fetchone() == (1,)


def test_a_topic_is_consumed_and_acknowledged_by_statements(db: psycopg.Connection[Any], namespace: str) -> None:
    db.execute(f"CREATE TOPIC {namespace}.events")
    db.execute(f"ALTER TOPIC {namespace}.events ADD SOURCE t ON INSERT WITH (payload = 'full')")
    with db.transaction():
        db.execute("INSERT INTO t VALUES (1, 'a', 1)")
        db.execute("INSERT INTO t VALUES (2, 'b', 2)")
    cursor = db.execute(f"CONSUME FROM {namespace}.events GROUP 'g' FROM EARLIEST LIMIT 10")
    assert cursor.statusmessage == "CONSUME 2"
    assert cursor.description is not None
    names = [column.name for column in cursor.description]
    rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    assert [(row["op"], row["offset"], row["key"]) for row in rows] == [("Insert", 0, "1"), ("Insert", 1, "2")]
    assert db.execute(f"ACK {namespace}.events GROUP 'g' UPTO OFFSET 1").fetchone() == (1,)
    assert db.execute(f"CONSUME FROM {namespace}.events GROUP 'g' LIMIT 10").fetchall() == []


def test_variables_and_functions_of_the_session(db: psycopg.Connection[Any], namespace: str) -> None:
    found = db.execute("SELECT current_schema(), current_database(), current_user, pg_catalog.version()").fetchone()
    assert found == (namespace, "shop", "ada", "PostgreSQL 16.0 (topics)")
    db.execute("SET statement_timeout = '5s'")
    assert db.execute("SHOW statement_timeout").fetchone() == ("5s",)
    assert db.execute("SELECT current_setting('statement_timeout')").fetchone() == ("5s",)
    db.execute("SET search_path TO other, public")
    assert db.execute("SELECT current_schema()").fetchone() == ("other",)
    db.execute("CREATE NAMESPACE third; USE third")
    assert db.execute("SHOW search_path").fetchone() == ("third",)
    db.execute("RESET ALL")
    assert db.execute("SELECT current_schema() AS here").fetchone() == (namespace,)
    with db.transaction():
        db.execute("SET LOCAL statement_timeout = 1000")
        assert db.execute("SHOW statement_timeout").fetchone() == ("1000",)
    assert db.execute("SHOW statement_timeout").fetchone() == ("0",)
    db.execute("SET application_name = 'mine'")
    assert db.info.parameter_status("application_name") == "mine"
