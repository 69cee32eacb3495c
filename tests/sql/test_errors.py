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
    ("SELECT a\0 FROM pairs", 9), ("SELECT '\ud800'", 9), ("CREATE TABLE t (a INT b)", 23),
    ("START", 6), ("BEGIN BEGIN", 7),
    ("INSERT INTO pairs (a, b) VALUES (1)", 34), ("INSERT INTO pairs (a) VALUES ('x', 2)", 36),
    ("UPDATE pairs SET v = 'x', v = 'y'", 27),
    ("CREATE TOPIC t WITH (discard = 'old', discard = 'old')", 39), ("EXPLAIN CREATE TOPIC t", 1), ("SELECT *", 8),
    ("INSERT INTO pairs (a, b) VALUES ('x', 1) ON CONFLICT DO UPDATE SET v = 'y'", 42),
    ("SELECT 1 FROM pairs ORDER v", 27),
]  # fmt: skip


@pytest.mark.parametrize(("text", "column"), SYNTAX)
def test_syntax_errors_have_their_place(schema: MemorySchema, text: str, column: int) -> None:
    assert refused(schema, text) == ("syntax_error", "42601", 1, column)


def test_a_parameter_of_another_statement_may_be_left_out(schema: MemorySchema) -> None:
    first, second = schema.plans("SELECT a FROM pairs WHERE b = $1; SELECT a FROM pairs WHERE b = $3")
    assert [each and each.kind.value for each in first.parameters] == ["INTEGER"]
    assert [each and each.kind.value for each in second.parameters] == [None, None, "INTEGER"]
