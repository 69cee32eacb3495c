"""Texts of SQL: whatever they are, they become plans or errors that a statement may have, with a place."""

from typing import Any, Final

from fuzz.target import Target

from support.sql_schema import MemorySchema
from topics_service.engine.errors import Reason, TopicsError

_SCHEMA: Final = MemorySchema("""
    CREATE TABLE t (a INT, b BIGINT DEFAULT 5, c VARCHAR(5) UNIQUE, d DECIMAL(10, 2) NOT NULL, e TIMESTAMPTZ, f BYTEA,
        g JSON, h BOOLEAN, i UUID, j DOUBLE, PRIMARY KEY (a, b), CHECK (b > a));
    CREATE INDEX ON t (d, e);
    CREATE TOPIC app.t;
    ALTER TOPIC app.t ADD SOURCE t ON INSERT WHERE a > 3;
""")
_STATEMENTS: Final = (
    "SELECT a, b AS \"x y\", count FROM t AS q WHERE a = $1 AND (b > -2.5e3 OR NOT c ILIKE 'a%') LIMIT 3",
    "SELECT DISTINCT CASE a WHEN 1 THEN 'x' ELSE c END, g -> 'a' ->> 0, d::int, coalesce(c, 'y') FROM t OFFSET $1;",
    "SELECT * FROM system.topics t JOIN system.topic_offsets o USING (topic_id) WHERE t.name IN ('a', 'b''c')",
    "INSERT INTO t (a, b, c, d) VALUES (1, $1, 'x', 2.50), (-3, DEFAULT, NULL, 1) ON CONFLICT (a, b) DO NOTHING",
    "INSERT INTO t (a) VALUES (1) ON CONFLICT (c) DO UPDATE SET c = excluded.c, d = DEFAULT RETURNING *, a + 1;",
    "UPDATE t SET (c, e) = ('z', now()), j = 1e300 * j WHERE e BETWEEN '2020-01-01' AND current_timestamp",
    "DELETE FROM t WHERE i = '0190a5b6-7c8d-7e9f-8a0b-1c2d3e4f5061' RETURNING a; SELECT 1",
    "CREATE TABLE IF NOT EXISTS n.u (id BIGSERIAL PRIMARY KEY, x NUMERIC(5,1) CHECK (x > 0) DEFAULT 1)",
    "CREATE TABLE v (id INT PRIMARY KEY) WITH (durability = 'fsync')",
    "ALTER TABLE t ADD COLUMN k TEXT DEFAULT 'v'; ALTER TABLE t RENAME a TO z; DROP TABLE t CASCADE",
    "CREATE UNIQUE INDEX i ON t (c, d); DROP INDEX IF EXISTS i; TRUNCATE t; CREATE NAMESPACE n; USE default",
    "CREATE TOPIC app.u PARTITIONS 4 ALIAS app.v WITH (retention_seconds = 60); /* a /* b */ */ CLEAR TOPIC app.t -- x",
    "ALTER TOPIC app.t ADD SOURCE t ON UPDATE WHERE old.h AND NOT new.h PARTITION BY (a) WITH (payload = 'diff')",
    "CONSUME FROM app.t GROUP 'g' PARTITION 1 FROM OFFSET 5 LIMIT 10; ACK app.t GROUP 'g' UPTO OFFSET 9",
    "BEGIN; SAVEPOINT s; ROLLBACK TO s; COMMIT; EXPLAIN SELECT 1; SHOW TABLES; DESCRIBE t",
    "CREATE USER 'u' WITH PASSWORD 'p' ROLE dba",
    "WITH RECURSIVE x(n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM x WHERE n < 5) SELECT sum(n) FROM x, t",
    "SELECT c, count(DISTINCT a), avg(d) FILTER (WHERE h) FROM t GROUP BY c HAVING max(b) > 2 ORDER BY 2 DESC",
    "SELECT rank() OVER w, sum(a) OVER (w ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) FROM t WINDOW w AS (ORDER BY b)",
    "SELECT x.a FROM t x LEFT JOIN (SELECT a FROM t) y USING (a), LATERAL (SELECT x.b) z WHERE a IN (VALUES (1))",
    "SELECT a FROM t UNION (SELECT b FROM t EXCEPT SELECT 3) ORDER BY 1; SELECT 1 < ALL (SELECT a FROM t LIMIT 1)",
    "SUBSCRIBE TO t WHERE c = E'a\\x41\\u00e9\\101' OPTIONS (last_rows = 3); CREATE VIEW w AS SELECT a FROM t",
    "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY j), string_agg(c, ',') FROM t WHERE EXISTS (VALUES (1))",
)
_REASONS: Final = {
    Reason.SYNTAX_ERROR, Reason.UNSUPPORTED_SQL, Reason.INVALID_VALUE, Reason.INVALID_REQUEST, Reason.COLUMN_NOT_FOUND,
    Reason.TABLE_NOT_FOUND, Reason.TOPIC_NOT_FOUND, Reason.FUNCTION_NOT_FOUND, Reason.INDEX_NOT_FOUND,
    Reason.NAMESPACE_NOT_FOUND, Reason.ROUTE_NOT_FOUND, Reason.ALREADY_EXISTS, Reason.DEPENDENT_OBJECTS,
    Reason.FORBIDDEN,
}  # fmt: skip


def _plans(data: bytes) -> Any:
    """The plans of a text. Raises TopicsError of a statement, which has a place."""
    try:
        return _SCHEMA.plans(data.decode("utf-8", "surrogateescape"))
    except TopicsError as error:
        facts: Any = error.detail
        if error.reason not in _REASONS or len(facts["sqlstate"]) != 5 or not (facts["line"] and facts["column"]):
            raise AssertionError(f"{error.reason} {facts}") from error
        raise


TARGETS: Final[tuple[Target, ...]] = (
    Target(
        name="sql",
        decode=_plans,
        samples=[statement.encode() for statement in _STATEMENTS],
        covers=["topics_sql.reader:parse", "topics_sql.tokens:_unescaped"],
        errors=(TopicsError,),
        growth=2000,
    ),
)
