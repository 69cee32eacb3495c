"""Values that go into columns fit their types, wherever they come from: also a parameter that meets several columns."""

from decimal import Decimal
from typing import Any

import pytest

from support.sql_world import SqlWorld
from topics_service.engine.errors import TopicsError

TABLE = """
    CREATE TABLE t (a INT PRIMARY KEY, b SMALLINT, c TEXT, d VARCHAR(3), e DECIMAL(5, 2), f DECIMAL(10, 4),
        d2 VARCHAR(3) DEFAULT 'new', g DOUBLE, h REAL);
    INSERT INTO t (a, c, f, g) VALUES (1, 'abcdef', 123456.7891, 0.1);
"""


@pytest.fixture
def world() -> SqlWorld:
    world = SqlWorld()
    world.run(TABLE)
    return world


@pytest.mark.parametrize(
    ("text", "parameters", "sqlstate"),
    [
        ("INSERT INTO t (a, b) VALUES ($1, $1)", [100_000], "22003"),
        ("INSERT INTO t (a, b) SELECT $1, $1", [100_000], "22003"),
        ("INSERT INTO t (a, c, d) VALUES (2, $1, $1)", ["abcdef"], "22001"),
        ("INSERT INTO t (a, d, c) VALUES (2, $1, $1)", ["abcdef"], "22001"),
        ("INSERT INTO t (a, b, e) VALUES (2, $1, $1)", ["1.5"], "22P02"),
        ("INSERT INTO t (a, d) SELECT 5, c FROM t", [], "22001"),
        ("INSERT INTO t (a) VALUES (1) ON CONFLICT (a) DO UPDATE SET d = t.c", [], "22001"),
        ("UPDATE t SET d = c", [], "22001"),
        ("UPDATE t SET d = CASE WHEN a = 1 THEN c END", [], "22001"),
        ("UPDATE t SET e = f", [], "22003"),
        ("UPDATE t SET b = a + 100000", [], "22003"),
        ("UPDATE t SET b = $1 WHERE a < $1", [100_000], "22003"),
        ("UPDATE t SET c = $1, d = $1", ["abcd"], "22001"),
    ],
)
def test_what_does_not_fit_is_refused(world: SqlWorld, text: str, parameters: list[Any], sqlstate: str) -> None:
    before = world.rows("SELECT * FROM t")
    with pytest.raises(TopicsError) as caught:
        world.run(text, *parameters)
    assert isinstance(caught.value.detail, dict)
    assert (caught.value.reason.value.code, caught.value.detail["sqlstate"]) == ("invalid_value", sqlstate)
    assert world.rows("SELECT * FROM t") == before


def test_what_fits_is_rounded_and_stored(world: SqlWorld) -> None:
    world.run("INSERT INTO t (a, e, f, g, h) VALUES (2, $1, $1, $2, $2)", "1.23456", 0.1)
    world.run("UPDATE t SET d = 'abc', e = 0.005 + f - f, b = 1.5, c = b WHERE a = 1")
    assert world.rows("SELECT b, c, d, e FROM t WHERE a = 1") == [(2, None, "abc", Decimal("0.01"))]
    assert world.rows("SELECT e, f, d2 FROM t WHERE a = 2") == [(Decimal("1.23"), Decimal("1.2300"), "new")]
    assert world.rows("SELECT h = g, h = g::real FROM t WHERE a = 2") == [(False, True)]
