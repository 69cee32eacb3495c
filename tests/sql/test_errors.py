"""Statements that are refused: the reason, its SQLSTATE, and the place in the text."""

import pytest

from support.sql_schema import MemorySchema
from topics_service.engine.errors import TopicsError

TABLES = """
    CREATE TABLE chat.messages (id BIGINT PRIMARY KEY, channel_id BIGINT, user_id TEXT, body TEXT, is_visible BOOLEAN);
    CREATE TABLE pairs (a TEXT, b INT, v VARCHAR(5) UNIQUE, doc JSON, price DECIMAL(10, 2), PRIMARY KEY (a, b));
    CREATE TOPIC app.events;
"""


@pytest.fixture(scope="module")
def schema() -> MemorySchema:
    return MemorySchema(TABLES)


def refused(schema: MemorySchema, text: str) -> tuple[str, str, int, int]:
    with pytest.raises(TopicsError) as caught:
        schema.plans(text)
    detail = caught.value.detail
    assert isinstance(detail, dict)
    return caught.value.reason.name.lower(), detail["sqlstate"], detail["line"], detail["column"]


SYNTAX = [
    ("SELEC 1", 1), ("SELECT * FORM x WHERE", 10), ("CREATE TOPIC", 13), ("CREATE TOPIC a.b.c.d", 17),
    ("ALTER TOPIC a.b", 16), ("CONSUME a.b", 9), ("CONSUME FROM", 13), ("ACK", 4), ("CONSUME FROM a.b GROUP", 23),
    ("CONSUME FROM a.b LIMIT -1", 24), ("INSERT INTO", 12), ("SELECT 'open", 8), ("DROP", 5), ("SUBSCRIBE", 10),
    ("))", 1), ("", 1), ("  -- nothing", 1), ("SELECT", 7), ("SELECT a,, b", 10), ("SELECT a, FROM pairs", 11),
    ("SELECT 1 2", 10), ("SELECT (1", 10), ("SELECT 1)", 9), ("SELECT 1 +", 11), ("SELECT a == 1 FROM pairs", 11),
    ("INSERT INTO pairs VALUES (1,)", 29), ("INSERT INTO pairs VALUES", 25), ("UPDATE pairs SET", 17),
    ("UPDATE pairs SET v = 'x',", 26), ("DELETE pairs", 8), ("SELECT a FROM pairs LIMIT", 26), ("SELECT 1x", 8),
    ("SELECT \"open", 8), ("SELECT \"\"", 8), ("SELECT /* open", 8), ("SELECT $1a", 8), ("SELECT $a", 8),
    ("SELECT * FROM a.b.c", 18), ("SELECT a IS 5 FROM pairs", 13), ("SELECT a IN 5 FROM pairs", 13),
    ("SELECT 1 < 2 < 3", 14), ("SELECT a NOT b FROM pairs", 10), ("SELECT CASE END", 13), ("SELECT `a`", 8),
    ("SELECT a\x00 FROM pairs", 9), ("SELECT '\ud800'", 9), ("CREATE TABLE t (a INT b)", 23), ("START", 6),
    ("BEGIN BEGIN", 7), ("INSERT INTO pairs (a, b) VALUES (1)", 34), ("INSERT INTO pairs (a) VALUES ('x', 2)", 36),
    ("UPDATE pairs SET v = 'x', v = 'y'", 27), ("CREATE TOPIC t WITH (discard = 'old', discard = 'old')", 39),
    ("EXPLAIN CREATE TOPIC t", 1), ("SELECT *", 8),
    ("INSERT INTO pairs (a, b) VALUES ('x', 1) ON CONFLICT DO UPDATE SET v = 'y'", 42),
    ("SELECT 1 FROM pairs ORDER v", 27),
]  # fmt: skip


@pytest.mark.parametrize(("text", "column"), SYNTAX)
def test_syntax_errors_have_their_place(schema: MemorySchema, text: str, column: int) -> None:
    assert refused(schema, text) == ("syntax_error", "42601", 1, column)


UNSUPPORTED = [
    ("GRANT SELECT ON pairs TO x", 1), ("COPY pairs TO '/tmp/out'", 1), ("ATTACH 'x.db'", 1), ("PRAGMA a", 1),
    ("VACUUM", 1), ("MERGE INTO pairs", 1), ("CALL f()", 1), ("LISTEN x", 1), ("SET a = 1", 1),
    ("PREPARE p AS SELECT 1", 1), ("WITH x AS (DELETE FROM pairs) SELECT 1", 12), ("TABLE pairs UNION TABLE pairs", 1),
    ("DO 'x'", 1), ("CREATE MATERIALIZED VIEW v AS SELECT 1", 8), ("CREATE OR REPLACE TABLE t (a INT)", 8),
    ("CREATE TEMP TABLE t (a INT)", 8), ("CREATE USER TABLE t (a INT)", 8), ("CREATE STREAM TABLE t (a INT)", 8),
    ("CREATE SEQUENCE s", 8), ("DROP SEQUENCE v", 6), ("CREATE TABLE t (a INT PRIMARY KEY REFERENCES pairs)", 35),
    ("CREATE TABLE t (a INT PRIMARY KEY, FOREIGN KEY (a) REFERENCES pairs (a))", 36),
    ("ALTER TABLE pairs ADD CONSTRAINT f FOREIGN KEY (a) REFERENCES x (a)", 23), ("CREATE TABLE t AS SELECT 1", 16),
    ("CREATE TABLE t (a INT PRIMARY KEY) WITH (type = 'stream')", 49),
    ("CREATE TABLE t (a INT ARRAY PRIMARY KEY)", 23),
    ("CREATE TABLE t (a INT PRIMARY KEY, b INT GENERATED ALWAYS AS (a + 1) STORED)", 62),
    ("CREATE TABLE t (a INT GENERATED ALWAYS AS IDENTITY PRIMARY KEY)", 19),
    ("ALTER TABLE pairs ALTER v SET NOT NULL", 27), ("CREATE INDEX i ON pairs (lower(v))", 26),
    ("CREATE INDEX i ON pairs (v DESC)", 28), ("CREATE INDEX i ON pairs (doc)", 26),
    ("CREATE INDEX i ON pairs (v) WHERE a = 'x'", 29), ("CREATE INDEX i ON pairs USING hash (v)", 31),
    ("SELECT a FROM pairs GROUP BY ALL", 30), ("SELECT array_agg(b) FROM pairs", 8),
    ("SELECT count(*) OVER (ORDER BY v RANGE 1 PRECEDING) FROM pairs", 34), ("SELECT a FROM pairs FOR UPDATE", 21),
    ("SELECT a FROM pairs WHERE b = ANY (1)", 36), ("SELECT a ~ 'x' FROM pairs", 10),
    ("SELECT * FROM pairs p RIGHT JOIN LATERAL (SELECT p.a) q ON true", 23),
    ("UPDATE pairs SET (v, doc) = (SELECT 'x', NULL)", 30),
    ("INSERT INTO pairs (a, b) VALUES ('x', 1) ON CONFLICT (a, b) DO UPDATE SET v = (SELECT 'x')", 80),
    ("DELETE FROM pairs RETURNING (SELECT 1)", 30),
    ("SELECT * FROM read_csv('/etc/passwd')", 15),
    ("SELECT * FROM information_schema.tables", 15), ("SELECT X'41'", 8), ("SELECT INTERVAL '1 day'", 8),
    ("SELECT ARRAY[1]", 8), ("SELECT ROW(1, 2)", 8), ("SELECT (1, 2) = (1, 2)", 10),
    ("SELECT v COLLATE \"C\" FROM pairs", 10), ("SELECT TRY_CAST(a AS INT) FROM pairs", 8),
    ("SELECT pg_catalog.version()", 8), ("SELECT DISTINCT a FROM pairs ORDER BY b", 39),
    ("SELECT a::xml FROM pairs", 11), ("UPDATE pairs SET b = 5", 18),
    ("INSERT INTO pairs (a, b) VALUES ('x', 1) ON CONFLICT (a, b) DO UPDATE SET a = 'y'", 75),
    ("INSERT OR REPLACE INTO pairs VALUES ('x', 1)", 8), ("INSERT INTO pairs TABLE x", 19),
    ("EXPLAIN ANALYZE SELECT 1", 9), ("ALTER TABLE pairs ADD COLUMN c INT UNIQUE", 30),
    ("ALTER TABLE pairs ADD COLUMN c TIMESTAMP DEFAULT now()", 30),
    ("ALTER TOPIC app.events ADD SOURCE pairs ON INSERT WHERE count(*) > 1", 57),
    ("ALTER TOPIC app.events ADD SOURCE pairs ON INSERT WHERE b IN (SELECT 1)", 63),
    ("ALTER TOPIC app.events ADD SOURCE pairs ON INSERT WHERE now() > '2020-01-01'", 57),
    ("CREATE TABLE t (a INT PRIMARY KEY, CHECK (a > snowflake_id()))", 47), ("SUBSCRIBE TO pairs", 1),
    ("SUBSCRIBE TO (SELECT a FROM pairs) OPTIONS (last_rows = 5)", 1), ("START TRANSACTION READ ONLY", 19),
    ("DROP TABLE a, b", 13),
]  # fmt: skip


@pytest.mark.parametrize(("text", "column"), UNSUPPORTED)
def test_what_is_missing_is_said_at_its_place(schema: MemorySchema, text: str, column: int) -> None:
    reason, _, line, at = refused(schema, text)
    assert (reason, line, at) == ("unsupported_sql", 1, column)


OTHERS = [
    ("SELECT * FROM nope", "table_not_found", "42P01", 15), ("SELECT * FROM no.pe", "table_not_found", "42P01", 15),
    ("SELECT * FROM system.nope", "table_not_found", "42P01", 15), ("DESCRIBE nope", "table_not_found", "42P01", 10),
    ("TRUNCATE nope", "table_not_found", "42P01", 10), ("SELECT nope FROM pairs", "column_not_found", "42703", 8),
    ("SELECT x.a FROM pairs", "column_not_found", "42703", 8),
    ("SELECT pairs.a FROM pairs p", "column_not_found", "42703", 8),
    ("SELECT p.* FROM pairs", "column_not_found", "42703", 8),
    ("INSERT INTO pairs (nope) VALUES (1)", "column_not_found", "42703", 20),
    ("UPDATE pairs SET nope = 1", "column_not_found", "42703", 18), ("SELECT a", "column_not_found", "42703", 8),
    ("SELECT topic_id FROM system.topics t, system.topic_offsets o WHERE t.topic_id = o.topic_id",
     "column_not_found", "42702", 8),
    ("INSERT INTO pairs (a, b) VALUES (excluded.a, 1)", "column_not_found", "42703", 34),
    ("ALTER TOPIC app.events ADD SOURCE pairs ON INSERT WHERE nope = 1", "column_not_found", "42703", 57),
    ("ALTER TOPIC app.events ADD SOURCE pairs ON INSERT PARTITION BY (nope)", "column_not_found", "42703", 65),
    ("ALTER TOPIC app.events ADD SOURCE nope ON INSERT", "table_not_found", "42P01", 35),
    ("ALTER TOPIC app.nope ADD SOURCE pairs ON INSERT", "topic_not_found", "42704", 13),
    ("ALTER TOPIC app.events DROP SOURCE pairs", "route_not_found", "42704", 36),
    ("ALTER TOPIC app.events ADD SOURCE pairs ON INSERT WHERE b = $1", "invalid_request", "42P02", 61),
    ("ALTER TOPIC app.events ADD SOURCE pairs ON INSERT WITH (payload = 'some')", "invalid_value", "22023", 67),
    ("ALTER TOPIC app.events ADD SOURCE pairs ON INSERT WITH (mode = 'key')", "invalid_value", "22023", 57),
    ("ALTER TOPIC app.events ADD SOURCE pairs ON INSERT WHERE b", "invalid_value", "42804", 57),
    ("DROP TOPIC nope", "topic_not_found", "42704", 12), ("CONSUME FROM nope", "topic_not_found", "42704", 14),
    ("ACK nope GROUP 'g' UPTO OFFSET 1", "topic_not_found", "42704", 5),
    ("DROP INDEX nope", "index_not_found", "42704", 12), ("DROP INDEX pairs_v_key", "dependent_objects", "2BP01", 12),
    ("DROP NAMESPACE nope", "namespace_not_found", "3F000", 1), ("USE nope", "namespace_not_found", "3F000", 1),
    ("SELECT nosuchfunction(1)", "function_not_found", "42883", 8),
    ("SELECT lower(1)", "function_not_found", "42883", 8),
    ("SELECT a + 1 FROM pairs", "function_not_found", "42883", 10),
    ("SELECT a FROM pairs WHERE a = 1", "function_not_found", "42883", 29),
    ("SELECT b LIKE 'x' FROM pairs", "function_not_found", "42883", 8),
    ("SELECT b -> 'x' FROM pairs", "function_not_found", "42883", 10),
    ("SELECT TRUE::date", "unsupported_sql", "42846", 12),
    ("SELECT a FROM pairs WHERE b", "invalid_value", "42804", 27),
    ("SELECT NOT b FROM pairs", "invalid_value", "42804", 12),
    ("SELECT a FROM pairs WHERE b = 'x'", "invalid_value", "22P02", 31),
    ("SELECT CAST('x' AS INT)", "invalid_value", "22P02", 13),
    ("SELECT DATE '2020-13-01'", "invalid_value", "22003", 13),
    ("SELECT doc || doc FROM pairs", "function_not_found", "42883", 12),
    ("SELECT 1e999999999", "invalid_value", "22003", 8),
    ("SELECT a FROM pairs LIMIT 'x'", "invalid_value", "22P02", 27),
    ("SELECT a FROM pairs LIMIT -1", "invalid_value", "2201W", 27),
    ("SELECT a FROM pairs LIMIT 1.5", "invalid_value", "42804", 27),
    ("SELECT a LIKE 'x' ESCAPE 'ab' FROM pairs", "invalid_value", "22025", 26),
    ("SELECT CASE WHEN true THEN 1 ELSE a END FROM pairs", "invalid_value", "42804", 8),
    ("INSERT INTO pairs (a, b) VALUES ('x', 'y')", "invalid_value", "22P02", 39),
    ("INSERT INTO pairs (a, b) VALUES ('x', 3000000000)", "invalid_value", "22003", 39),
    ("INSERT INTO pairs (a, b) VALUES ('x', true)", "invalid_value", "42804", 39),
    ("INSERT INTO pairs (a, b, v) VALUES ('x', 1, 'long text')", "invalid_value", "22001", 45),
    ("INSERT INTO pairs (a, b, doc) VALUES ('x', 1, '{')", "invalid_value", "22P02", 47),
    ("INSERT INTO pairs (a, b) VALUES ('x', 1) ON CONFLICT (v, a) DO NOTHING", "invalid_value", "42P10", 55),
    ("INSERT INTO pairs (a, b) VALUES ('x', 1) ON CONFLICT ON CONSTRAINT nope DO NOTHING",
     "index_not_found", "42704", 42),
    ("SELECT $1 + $3", "invalid_request", "08P01", 13), ("SELECT $0", "invalid_request", "08P01", 8),
    ("SELECT $99999999", "invalid_request", "08P01", 8),
    ("SELECT a FROM pairs WHERE a = $1 AND b = $1", "invalid_value", "42P08", 42),
    ("CREATE TABLE t (a INT)", "invalid_value", "42P16", 14), ("CREATE TABLE t ()", "invalid_value", "42P16", 14),
    ("CREATE TABLE t (a INT PRIMARY KEY, b INT PRIMARY KEY)", "invalid_value", "42P16", 36),
    ("CREATE TABLE t (a INT PRIMARY KEY, a TEXT)", "invalid_value", "42701", 36),
    ("CREATE TABLE t (a NOSUCHTYPE PRIMARY KEY)", "unsupported_sql", "42704", 19),
    ("CREATE TABLE t (a DECIMAL(50, 2) PRIMARY KEY)", "invalid_value", "22023", 19),
    ("CREATE TABLE t (a INT DEFAULT 'x' PRIMARY KEY)", "invalid_value", "22P02", 31),
    ("CREATE TABLE t (a INT DEFAULT b PRIMARY KEY)", "column_not_found", "42703", 31),
    ("CREATE TABLE t (a INT PRIMARY KEY, PRIMARY KEY (b))", "invalid_value", "42P16", 36),
    ("CREATE TABLE t (a INT, PRIMARY KEY (b))", "column_not_found", "42703", 37),
    ("CREATE TABLE t (a INT PRIMARY KEY CHECK (b > 0))", "column_not_found", "42703", 42),
    ("CREATE TABLE t (a INT PRIMARY KEY) WITH (nope = 1)", "invalid_value", "22023", 42),
    ("CREATE TABLE t (a INT PRIMARY KEY) WITH (durability = 'memory')", "invalid_value", "22023", 55),
    ("CREATE TABLE system.mine (id INT PRIMARY KEY)", "forbidden", "42939", 14),
    ("DROP TABLE system.tables", "forbidden", "42501", 12), ("DELETE FROM system.topics", "forbidden", "42501", 13),
    ("INSERT INTO system.topics (name) VALUES ('x')", "forbidden", "42501", 13),
    ("CREATE TOPIC system.x", "forbidden", "42939", 14), ("CREATE NAMESPACE topics", "forbidden", "42939", 1),
    ("CREATE TOPIC \"a b\"", "invalid_value", "42602", 14),
    ("CREATE TOPIC t WITH (nope = 1)", "invalid_value", "22023", 22),
    ("CREATE TOPIC t WITH (retention_seconds = 'x')", "invalid_value", "22023", 42),
    ("CREATE TOPIC t PARTITIONS 99999999999999999999", "invalid_value", "22003", 27),
    ("ALTER TABLE pairs ADD COLUMN v INT", "already_exists", "42701", 30),
    ("ALTER TABLE pairs RENAME v TO a", "already_exists", "42701", 31),
    ("ALTER TABLE pairs DROP COLUMN a", "dependent_objects", "2BP01", 31),
    ("CREATE USER 'u' WITH PASSWORD 'p' ROLE king", "invalid_value", "22023", 40),
    ("CONSUME FROM app.events FROM OFFSET 99999999999999999999", "invalid_value", "22003", 37),
]  # fmt: skip


@pytest.mark.parametrize(("text", "reason", "sqlstate", "column"), OTHERS)
def test_other_refusals(schema: MemorySchema, text: str, reason: str, sqlstate: str, column: int) -> None:
    assert refused(schema, text) == (reason, sqlstate, 1, column)


def test_the_default_namespace_has_a_name_of_its_own(schema: MemorySchema) -> None:
    for text in (
        "SELECT default.pairs.a, b FROM default.pairs WHERE default.pairs.b = 1",
        "UPDATE default.pairs SET v = default.pairs.a, price = DEFAULT",
        "INSERT INTO default.pairs (a, b, v) VALUES ('x', 1, DEFAULT)",
        "USE default",
        "DESCRIBE default.pairs",
    ):
        schema.plans(text)


def test_the_number_of_the_statement(schema: MemorySchema) -> None:
    for text, number in (
        ("SELECT 1; SELEC 2", 1),
        ("SELECT 1;; ;SELECT nope; SELECT 3", 1),
        ("SELEC 1; SELECT 2", 0),
        ("SELECT 1; SELECT ';'; SELECT 'open", 2),
        ("SELECT 1; SELECT 2 ?; SELECT 3", 1),
        ("SELEC ';'", None),
        ("SELECT nope", None),
    ):
        with pytest.raises(TopicsError) as caught:
            schema.plans(text)
        assert isinstance(caught.value.detail, dict)
        assert caught.value.detail.get("statement") == number, text


def test_a_parameter_of_another_statement_may_be_left_out(schema: MemorySchema) -> None:
    first, second = schema.plans("SELECT a FROM pairs WHERE b = $1; SELECT a FROM pairs WHERE b = $2")
    assert [each and each.kind.value for each in first.parameters] == ["INTEGER"]
    assert [each and each.kind.value for each in second.parameters] == [None, "INTEGER"]
    assert refused(schema, "SELECT $1;\nSELECT $3") == ("invalid_request", "08P01", 2, 8)
