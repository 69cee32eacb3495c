"""Ranges of keys and indexes of every type give the rows that their condition gives, in order, both ways."""

from decimal import Decimal
from functools import cmp_to_key
from typing import Any

import pytest

from support.sql_world import SqlWorld

TYPES: dict[str, list[Any]] = {
    "SMALLINT": [*range(-3, 4), -(1 << 15), (1 << 15) - 1],
    "INTEGER": [*range(-3, 4), -(1 << 31), (1 << 31) - 1],
    "BIGINT": [*range(-3, 4), -(1 << 63), (1 << 63) - 1],
    "REAL": [-1.5, -0.25, 0.0, 0.25, 1.5, 3e38, -3e38, float("inf"), float("nan")],
    "DOUBLE": [-1.5, -0.1, 0.0, 0.1, 1e300, -1e300, float("inf"), float("-inf"), float("nan")],
    "DECIMAL(10, 2)": [Decimal(n) / 100 for n in (-99, -1, 0, 1, 99, 10**9, -(10**9))],
    "DECIMAL": [Decimal(t) for t in ("-12.5", "-1.25e-20", "0", "1e-30", "0.1", "9.99", "10", "1e37", "-1e37")],
    "TEXT": ["", " ", "a", "aa", "ab", "b", "ä", "\U0001f600", "\uffff", "a\x01", "Z"],
    "BYTES": [b"", b"\0", b"\0\0", b"\0\xff", b"\1", b"a", b"a\0", b"a\0b", b"\xff", b"\xff\0"],
    "BOOLEAN": [True, False],
    "UUID": [f"{n:08x}-0000-4000-8000-000000000000" for n in (0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)],
    "TIMESTAMP": [
        "0001-01-01T00:00:00Z",
        "1969-12-31T23:59:59.999999Z",
        "1970-01-01T00:00:00Z",
        "9999-12-31T23:59:59Z",
    ],
    "DATE": ["0001-01-01", "1969-12-31", "1970-01-01", "2026-01-31", "9999-12-31"],
    "TIME": ["00:00", "00:00:00.000001", "12:00", "23:59:59.999999"],
}
OPERATORS = {
    "=": lambda c: c == 0, "<": lambda c: c < 0, "<=": lambda c: c <= 0, ">": lambda c: c > 0, ">=": lambda c: c >= 0,
}  # fmt: skip


def compare(a: Any, b: Any) -> int:
    if a != a or b != b:
        return (a != a) - (b != b)
    return (a > b) - (a < b)


@pytest.mark.parametrize("sql_type", TYPES)
def test_ranges(sql_type: str) -> None:
    world = SqlWorld()
    world.run(f"CREATE TABLE t (k {sql_type} PRIMARY KEY, n BIGINT, x {sql_type})")
    world.run("CREATE INDEX by_x ON t (x, n)")
    for number, value in enumerate(TYPES[sql_type]):
        world.run("INSERT INTO t (k, n, x) VALUES ($1, $2, $3)", value, number, value if number else None)
    stored = [row[0] for row in world.run("SELECT k FROM t").rows]
    ordered = sorted(stored, key=cmp_to_key(compare))
    assert [str(value) for value in stored] == [str(value) for value in ordered]
    assert len(stored) == len(TYPES[sql_type])
    first = str(world.run("SELECT k FROM t WHERE n = 0").rows[0][0])
    assert [str(row[0]) for row in world.run("SELECT k FROM t WHERE x IS NULL").rows] == [first]
    for name in ("k", "x"):
        for op, accepts in OPERATORS.items():
            for given in TYPES[sql_type]:
                (probe,) = world.run(f"SELECT CAST($1 AS {sql_type})", given).rows[0]
                wanted = [str(value) for value in ordered if accepts(compare(value, probe))]
                wanted = [text for text in wanted if name == "k" or text != first]
                for direction in ("", " DESC"):
                    rows = world.run(
                        f"SELECT {name} FROM t WHERE {name} {op} $1 ORDER BY {name}{direction}", given
                    ).rows
                    assert [str(row[0]) for row in rows] == (wanted[::-1] if direction else wanted), (name, op, given)
