"""Texts at the bounds and beyond: an error with a reason, soon."""

import random
import sys
import time
from decimal import Decimal

import pytest

from support.sql_schema import MemorySchema
from topics_service.engine.errors import TopicsError
from topics_service.engine.tables.expressions import Literal

SECONDS = 3.0
TABLES = "CREATE TABLE t (a BIGINT PRIMARY KEY, b TEXT, c DECIMAL(38, 2), d DOUBLE); CREATE TOPIC app.t"


@pytest.fixture(scope="module")
def schema() -> MemorySchema:
    return MemorySchema(TABLES)


def verdict(schema: MemorySchema, text: str) -> str:
    """`fine`, or the reason; within the time."""
    started = time.thread_time()
    try:
        schema.plans(text)
        found = "fine"
    except TopicsError as error:
        found = error.reason.value.code
    assert time.thread_time() - started < SECONDS, text[:80]
    return found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("SELECT " + "(" * 199 + "1" + ")" * 199, "fine"),
        ("SELECT " + "(" * 3000 + "1" + ")" * 3000, "syntax_error"),
        ("SELECT " + "(" * 3000, "syntax_error"),
        ("SELECT " + "lower(" * 99 + "b" + ")" * 99 + " FROM t", "fine"),
        ("SELECT " + "lower(" * 150 + "b" + ")" * 150 + " FROM t", "syntax_error"),
        ("SELECT " + "NOT " * 100_000 + "true", "syntax_error"),
        ("SELECT " + "- " * 100_000 + "1", "syntax_error"),
        ("SELECT " + "CASE WHEN " * 50_000, "syntax_error"),
        ("SELECT 1" + " + 1" * 100, "fine"),
        ("SELECT 1" + " + 1" * 50_000, "syntax_error"),
        ("SELECT 1" + "::int" * 50_000, "syntax_error"),
        ("SELECT b" + " -> 'x'" * 50_000 + " FROM t", "syntax_error"),
        ("SELECT a FROM t WHERE " + " AND ".join(["a = 1 OR b = 'x'"] * 5000), "fine"),
        (f"SELECT a FROM t WHERE a IN ({', '.join(map(str, range(20_000)))})", "fine"),
        ("SELECT a FROM t WHERE " + " OR ".join(f"a = {n}" for n in range(20_000)), "fine"),
        ("EXPLAIN " * 1000 + "SELECT 1", "syntax_error"),
        ("/*" * 100_000, "syntax_error"),
        ("SELECT /* " + "/* */" * 100_000 + " */ 1", "fine"),
        ("SELECT '" + "''" * 500_000 + "'", "fine"),
        ("SELECT '" + "''" * 500_000, "syntax_error"),
        ('SELECT "' + '""' * 500_000, "syntax_error"),
        ("SELECT 1;" * 10_000, "fine"),
        ("SELECT 1;" * 20_000, "invalid_request"),
        ("SELECT " + "*, " * 90_000 + "a FROM t", "invalid_request"),
        ("SELECT a FROM t ORDER BY " + "a, " * 90_000 + "b", "invalid_request"),
        ("SELECT " + "1, " * 1663 + "a FROM t ORDER BY " + "a, " * 1663 + "b", "fine"),
        (f"CREATE TABLE u ({', '.join(f'c{n} INT' for n in range(60_000))})", "invalid_value"),
        (f"CREATE TABLE u (a INT PRIMARY KEY, {', '.join(['CHECK (a > 1)'] * 20_000)})", "invalid_value"),
        (f"CREATE TABLE u (a INT PRIMARY KEY, {', '.join(['UNIQUE (a)'] * 150)})", "fine"),
        (f"INSERT INTO t ({', '.join(['a'] * 90_000)}) VALUES (1)", "syntax_error"),
        (f"UPDATE t SET {', '.join(['b = 1'] * 45_000)}", "syntax_error"),
        (f"CREATE TOPIC u WITH ({', '.join(f'o{n} = 1' for n in range(45_000))})", "invalid_value"),
        (";" * 150_000, "syntax_error"),
        ("," * 1_000_000, "invalid_request"),
        ("SELECT '" + "x" * (1 << 20) + "'", "invalid_request"),
        ("SELECT '" + "\N{SNOWMAN}" * 400_000 + "'", "invalid_request"),
        ("SELECT " + "9" * 100_000, "invalid_value"),
        ("SELECT " + "9" * 400, "fine"),
        ("SELECT 1e" + "9" * 100_000, "invalid_value"),
        ("SELECT -1e-400, .5, 5., 0e0", "fine"),
        ("SELECT a FROM t WHERE a = " + "9" * 300, "fine"),
        ("SELECT a FROM t WHERE d = 1e400", "fine"),
        ("SELECT a FROM t WHERE c = 1e300", "fine"),
        ("INSERT INTO t (a) VALUES (" + "9" * 300 + ")", "invalid_value"),
        ("INSERT INTO t (a, c) VALUES (1, 1e38)", "invalid_value"),
        ("INSERT INTO t (a, d) VALUES (1, 1e400)", "invalid_value"),
        ("SELECT $" + "9" * 100_000, "invalid_request"),
        ("SELECT " + "x" * 500_000, "column_not_found"),
        ("CREATE TOPIC " + "x" * 500_000, "invalid_value"),
        ("SELECT a FROM t LIMIT " + "9" * 300, "invalid_value"),
        ("CONSUME FROM app.t LIMIT " + "9" * 300, "invalid_value"),
    ],
    ids=lambda value: value[:40] if len(value) > 40 else value,
)
def test_bounds(schema: MemorySchema, text: str, found: str) -> None:
    assert verdict(schema, text) == found


def test_depth_is_bounded_below_the_stack(schema: MemorySchema) -> None:
    """The deepest text leaves half of Python's stack to its caller."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len_of_stack() + 700)
    try:
        for text in ("SELECT " + "(" * 199 + "1" + ")" * 199, "SELECT " + "lower(" * 99 + "b" + ")" * 99 + " FROM t"):
            assert verdict(schema, text) == "fine"
            assert verdict(schema, "EXPLAIN " + text) == "fine"
    finally:
        sys.setrecursionlimit(limit)


def len_of_stack() -> int:
    frame, count = sys._getframe(), 0
    while frame is not None:
        frame, count = frame.f_back, count + 1  # type: ignore[assignment]
    return count


WORDS = """
    select insert update delete create alter drop table topic index from where group order by limit values
    into set on conflict do nothing returning and or not in is null like between case when then else end cast
    as t a b c d app . , ( ) ; = <> < + - * / % || -> ->> :: $1 $2 1 2.5 -3 'x' 'y''z' "Q" * default primary
    key consume group ack upto offset explain begin commit distinct count lower ( ( ) ) source add with
    partition true now
""".split()  # noqa: SIM905


def test_soups_of_tokens(schema: MemorySchema) -> None:
    rng = random.Random(7)
    found = set()
    for _ in range(5000):
        text = " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 25)))
        found.add(verdict(schema, text))
    assert found >= {"syntax_error", "unsupported_sql"}


def test_numbers_are_exact(schema: MemorySchema) -> None:
    for text, value in {
        "0": 0, "007": 7, "2147483647": 2147483647, "9223372036854775808": Decimal(9223372036854775808),
        "1.10": Decimal("1.10"),
        ".5": Decimal("0.5"), "5.": Decimal(5), "-0": 0, "1E3": Decimal(1000),
        "123456789012345678901234567890.5": Decimal("123456789012345678901234567890.5"),
    }.items():  # fmt: skip
        (output,) = schema.action(f"SELECT {text}").outputs
        assert isinstance(output.expression, Literal)
        assert output.expression.value == value
        assert output.expression.value.__class__ is value.__class__
