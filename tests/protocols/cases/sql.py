"""Requests of SQL and what they must answer, over HTTP and gRPC alike.

`{n}` stands for a namespace that is new in each run. `rows` and `schema` are compared if they are given; an error is
the code, the SQLSTATE and the place (line, column, statement).
"""

from dataclasses import dataclass
from typing import Any

Place = tuple[int, int, int]


@dataclass(frozen=True)
class Sql:
    """One request of statements. `results` are the rows of each result; None: any."""

    text: str
    params: list[Any] | None = None
    param_rows: list[list[Any]] | None = None
    namespace: str = ""
    results: list[list[list[Any]]] | None = None
    counts: list[int] | None = None
    types: list[str] | None = None
    error: tuple[str, str] | None = None
    place: Place | None = None


TABLE = Sql("CREATE TABLE {n}.t (id BIGINT PRIMARY KEY, name TEXT, price DECIMAL(8,2), paid BOOLEAN)")
TYPES = """CREATE TABLE {n}.types (id INT PRIMARY KEY, a SMALLINT, b BIGINT, c REAL, d DOUBLE PRECISION,
e DECIMAL(20,4), f VARCHAR(5), g BYTEA, h JSONB, i TIMESTAMP, j DATE, k TIME, l UUID, m BOOLEAN)"""
VALUES = [
    1, -5, 1 << 62, 1.5, 0.1, "12345.6789", "abc", "AP8=", '{"a":[1,null]}', "2026-01-02T03:04:05.678Z",
    "2026-02-28", "23:59:59", "00112233-4455-6677-8899-AABBCCDDEEFF", True,
]  # fmt: skip
SHOWN = [
    1, -5, 1 << 62, 1.5, 0.1, "12345.6789", "abc", "AP8=", {"a": [1, None]}, "2026-01-02T03:04:05.678Z",
    "2026-02-28", "23:59:59", "00112233-4455-6677-8899-aabbccddeeff", True,
]  # fmt: skip

MANY = range(3000)
CASES: dict[str, tuple[Sql, ...]] = {
    "analytical queries": (
        TABLE,
        Sql("CREATE TABLE {n}.other (id BIGINT PRIMARY KEY, t BIGINT)"),
        Sql(
            "INSERT INTO {n}.t VALUES ($1, $2, $3, $4)",
            param_rows=[[1, "a", "1.50", True], [2, "a", None, None], [3, "b", "2.25", False]],
        ),
        Sql("INSERT INTO {n}.other VALUES (10, 1), (11, 3), (12, 3)"),
        Sql(
            "SELECT name, count(*) AS n, sum(price) AS s, avg(id) FROM {n}.t WHERE id < $1 GROUP BY name ORDER BY name",
            params=[9],
            results=[[["a", 2, "1.50", "1.5"], ["b", 1, "2.25", "3"]]],
            types=["TEXT", "BIGINT", "DECIMAL", "DECIMAL"],
            counts=[2],
        ),
        Sql(
            "SELECT t.id, o.id FROM {n}.t LEFT JOIN {n}.other o ON o.t = t.id ORDER BY 1, 2",
            results=[[[1, 10], [2, None], [3, 11], [3, 12]]],
        ),
        Sql("SELECT id FROM {n}.t WHERE id IN (SELECT t FROM {n}.other) ORDER BY rank() OVER (ORDER BY id DESC)",
            results=[[[3], [1]]]),
        Sql("SELECT name,\n price FROM {n}.t GROUP BY name", error=("syntax_error", "42803"), place=(2, 2, 0)),
        Sql("SELECT sum(id) / 0 FROM {n}.t", error=("division_by_zero", "22012")),
        Sql("SELECT count(*) FROM read_csv('/etc/passwd')", error=("unsupported_sql", "0A000")),
        Sql("SELECT read_text('/etc/passwd'), max(id) FROM {n}.t", error=("function_not_found", "42883")),
    ),
    "constants": (
        Sql("SELECT 1 AS a, 'x' AS b, NULL AS c, true AS d", results=[[[1, "x", None, True]]], counts=[1]),
        Sql("SELECT 1; SELECT 2", results=[[[1]], [[2]]]),
    ),
    "rows as parameters": (
        TABLE,
        Sql(
            "INSERT INTO {n}.t VALUES ($1, $2, $3, $4)",
            param_rows=[[1, "a", "1.5", True], [2, None, 2, None]],
            counts=[2],
        ),
        Sql(
            "SELECT * FROM {n}.t ORDER BY id",
            results=[[[1, "a", "1.50", True], [2, None, "2.00", None]]],
            types=["BIGINT", "TEXT", "DECIMAL(8, 2)", "BOOLEAN"],
        ),
        Sql(
            "INSERT INTO {n}.t (id, name) VALUES ($1, $2) RETURNING id",
            param_rows=[[3, "c"], [4, "d"]],
            results=[[[3], [4]]],
        ),
        Sql(
            "INSERT INTO {n}.t (id) VALUES ($1)",
            param_rows=[[9], [1]],
            error=("unique_violation", "23505"),
        ),
        Sql("SELECT count(*) FROM {n}.t", results=[[[4]]]),
        Sql("INSERT INTO {n}.t (id) VALUES ($1)", param_rows=[[9], ["x"]], error=("invalid_value", "22P02")),
        Sql("INSERT INTO {n}.t (id) VALUES ($1)", param_rows=[[9], [10, 11]], error=("invalid_request", "08P01")),
        Sql("SELECT $1", param_rows=[[1]], error=("invalid_request", "08P01")),
        Sql("SELECT 1; SELECT 2", param_rows=[[1]], error=("invalid_request", "08P01")),
        Sql("DELETE FROM {n}.t WHERE id = $1", param_rows=[[1], [2], [77]], counts=[2]),
    ),
    "types": (
        Sql(TYPES),
        Sql("INSERT INTO {n}.types VALUES ($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14)", params=VALUES, counts=[1]),
        Sql("SELECT * FROM {n}.types", results=[[SHOWN]]),
        Sql("INSERT INTO {n}.types (id, f) VALUES (2, $1)", params=["toolong"], error=("invalid_value", "22001")),
        Sql("INSERT INTO {n}.types (id, a) VALUES (2, $1)", params=[40000], error=("invalid_value", "22003")),
    ),
    "many rows": (
        TABLE,
        Sql("INSERT INTO {n}.t (id, name, price) VALUES ($1, $2, $3)", param_rows=[[i, f"n{i}", i] for i in MANY]),
        Sql("SELECT id, name, price FROM {n}.t ORDER BY id", results=[[[i, f"n{i}", f"{i}.00"] for i in MANY]]),
    ),
    "parameters": (
        TABLE,
        Sql("INSERT INTO {n}.t (id, name) VALUES ($1, $2)", params=[1, "'); DROP TABLE {n}.t; --"], counts=[1]),
        Sql("SELECT name FROM t WHERE id = $1", params=[1], namespace="{n}", results=[[["'); DROP TABLE {n}.t; --"]]]),
        Sql("SELECT name FROM {n}.t WHERE id = $1", error=("invalid_request", "08P01"), place=(1, 1, 0)),
        Sql("SELECT name FROM {n}.t WHERE id = $1", params=[1, 2], error=("invalid_request", "08P01")),
    ),
    "transactions": (
        TABLE,
        Sql(
            "BEGIN; INSERT INTO {n}.t (id) VALUES (1); SAVEPOINT s; INSERT INTO {n}.t (id) VALUES (2); ROLLBACK TO s; "
            "SELECT count(*) FROM {n}.t; COMMIT",
            results=[[], [], [], [], [], [[1]], []],
        ),
        Sql("SELECT id FROM {n}.t", results=[[[1]]]),
        Sql("BEGIN; INSERT INTO {n}.t (id) VALUES (3)", error=("transaction_error", "25P01")),
        Sql("BEGIN; INSERT INTO {n}.t (id) VALUES (3); INSERT INTO {n}.t (id) VALUES (1); COMMIT",
            error=("unique_violation", "23505"), place=(1, 43 + 2 * 0, 2)),
        Sql("BEGIN; INSERT INTO {n}.t (id) VALUES (3); ROLLBACK", results=[[], [], []]),
        Sql("BEGIN; BEGIN", error=("transaction_error", "25001")),
        Sql("COMMIT", error=("transaction_error", "25P01")),
        Sql("ROLLBACK", error=("transaction_error", "25P01")),
        Sql("BEGIN; CREATE TABLE {n}.u (id INT PRIMARY KEY); COMMIT", error=("unsupported_sql", "0A000")),
        Sql("SELECT id FROM {n}.t", results=[[[1]]]),
    ),
    "errors": (
        TABLE,
        Sql("SELECT 1;\n  SELECT nope FROM {n}.t", error=("column_not_found", "42703"), place=(2, 10, 1)),
        Sql("SELECT 1;\nSELEC 2", error=("syntax_error", "42601"), place=(2, 1, 1)),
        Sql("INSERT INTO {n}.t (id) VALUES (1); SELECT 1 / 0", error=("division_by_zero", "22012")),
        Sql("SELECT id FROM {n}.t", results=[[[1]]]),
        Sql("", error=("syntax_error", "42601")),
        Sql(" ; -- nothing\n", error=("syntax_error", "42601")),
        Sql("USE {n}; SELECT id FROM t", results=[[], [[1]]]),
        Sql("DROP TABLE IF EXISTS {n}.nothing", counts=[0]),
    ),
    "system tables": (
        TABLE,
        Sql("SELECT name, is_primary_key FROM system.columns WHERE namespace = '{n}' ORDER BY position LIMIT 2",
            results=[[["id", True], ["name", False]]]),
        Sql("SELECT table_id FROM system.tables WHERE namespace = $1", params=["{n}"], results=[[["{n}.t"]]]),
        Sql("SELECT c.name FROM system.tables t JOIN system.columns c ON c.table_name = t.name "
            "WHERE t.namespace = '{n}' AND c.namespace = '{n}' AND c.position = 1", results=[[["id"]]]),
        Sql("SELECT nope FROM system.tables", error=("column_not_found", "42703")),
    ),
}  # fmt: skip
"""By name, the requests of each in order."""
