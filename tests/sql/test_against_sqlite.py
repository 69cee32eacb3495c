"""Random statements on random tables: the rows are those of SQLite, whichever way they are found."""

import sqlite3
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.sql_world import SqlWorld
from topics_service.engine.errors import TopicsError

TABLE = "CREATE TABLE t (a INT, b INT, c TEXT, d INT, e SMALLINT NOT NULL, PRIMARY KEY (a, b))"
INDEXES = ("CREATE INDEX by_c ON t (c)", "CREATE INDEX by_d ON t (d, c)", "CREATE UNIQUE INDEX by_e ON t (e, a)")

small = st.integers(-3, 6)
texts = st.sampled_from(["", "x", "xy", "y", "o'z", "Z"])


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


numbers = st.one_of(small.map(str), st.just("NULL"), st.sampled_from(["2.5", "100000", "-9000000000"]))
strings = st.one_of(texts.map(quoted), st.just("NULL"))
integer_columns = st.sampled_from(["a", "b", "d", "e", "t.a", "d + 1", "a * b - e"])
comparisons = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])
pieces = st.sampled_from(["%", "x", "y", "_", "Z"])

terms = st.one_of(
    st.tuples(integer_columns, comparisons, numbers).map(" ".join),
    st.tuples(numbers, comparisons, integer_columns).map(" ".join),
    st.tuples(st.just("c"), comparisons, strings).map(" ".join),
    st.tuples(integer_columns, st.sampled_from(["", "NOT "]), numbers, numbers).map(
        lambda each: f"{each[0]} {each[1]}BETWEEN {each[2]} AND {each[3]}"
    ),
    st.tuples(integer_columns, st.sampled_from(["", "NOT "]), st.lists(numbers, min_size=1, max_size=4)).map(
        lambda each: f"{each[0]} {each[1]}IN ({', '.join(each[2])})"
    ),
    st.tuples(st.sampled_from(["a", "b"]), st.lists(small.map(str), min_size=1, max_size=3)).map(
        lambda each: f"{each[0]} IN ({', '.join(each[1])})"
    ),
    st.tuples(st.sampled_from(["c", "d", "a"]), st.sampled_from(["IS NULL", "IS NOT NULL"])).map(" ".join),
    st.lists(pieces, max_size=3).map(lambda each: f"c LIKE '{''.join(each)}'"),
    st.tuples(st.sampled_from(["c", "d"]), st.sampled_from(["IS", "IS NOT"]), st.just("DISTINCT FROM NULL")).map(
        " ".join
    ),
    st.sampled_from(
        ["CASE WHEN d > 2 THEN c = 'x' ELSE e < 3 END", "coalesce(d, b) = 2", "length(c) > 1", "abs(d) = 2"]
    ),
)
conditions = st.recursive(
    terms,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["AND", "AND", "OR"]), inner).map(lambda each: f"({' '.join(each)})"),
        inner.map(lambda each: f"NOT ({each})"),
    ),
    max_leaves=5,
)
key_conditions = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["a", "b", "c", "d", "e"]), comparisons).flatmap(
            lambda each: (strings if each[0] == "c" else numbers).map(lambda value: f"{each[0]} {each[1]} {value}")
        ),
        terms,
    ),
    min_size=1,
    max_size=4,
).map(" AND ".join)
wheres = st.one_of(st.just(""), conditions.map(" WHERE {}".format), key_conditions.map(" WHERE {}".format))
orders = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c", "d", "e", "length(c)"]),
        st.sampled_from([" ASC", " DESC"]),
        st.sampled_from([" NULLS FIRST", " NULLS LAST"]),
    ).map("".join),
    min_size=0,
    max_size=3,
).map(lambda each: " ORDER BY " + ", ".join([*each, "a", "b"]))
one_way = st.tuples(
    st.sampled_from(["c", "d, c", "a", "e, a", "c, d"]),
    st.sampled_from([" ASC", " DESC"]),
    st.sampled_from(["FIRST", "LAST"]),
).map(
    lambda each: (
        f" ORDER BY {', '.join(f'{name}{each[1]} NULLS {each[2]}' for name in [*each[0].split(', '), 'a', 'b'])}"
    )
)
limits = st.sampled_from(["", "", " LIMIT 3", " LIMIT 4 OFFSET 2", " LIMIT 0"])
selects = st.one_of(
    st.tuples(
        st.sampled_from(["*", "a, b, c AS z", "d, a + e, c || 'q'", "b, d IS NULL, c IN ('x', 'y')"]),
        wheres,
        st.one_of(orders, one_way),
        limits,
    ).map(lambda each: f"SELECT {each[0]} FROM t{each[1]}{each[2]}{each[3]}"),
    wheres.map("SELECT count(*) FROM t{}".format),
    wheres.map("SELECT DISTINCT d FROM t{} ORDER BY d NULLS FIRST".format),
)
rows = st.tuples(small, small, strings, st.one_of(small.map(str), st.just("NULL")), small).map(
    lambda each: f"({each[0]}, {each[1]}, {each[2]}, {each[3]}, {each[4]})"
)
conflicts = st.sampled_from(
    [
        "",
        " ON CONFLICT DO NOTHING",
        " ON CONFLICT (a, b) DO NOTHING",
        " ON CONFLICT (b, a) DO UPDATE SET c = excluded.c, d = t.d + excluded.d",
        " ON CONFLICT (a, b) DO UPDATE SET d = excluded.d WHERE t.d < excluded.d",
    ]
)
changes = st.one_of(
    st.tuples(st.lists(rows, min_size=1, max_size=3).map(", ".join), conflicts).map(
        lambda each: f"INSERT INTO t VALUES {each[0]}{each[1]}"
    ),
    st.tuples(
        st.sampled_from(
            ["c = 'new'", "d = d + 1", "c = NULL, d = e", "e = 3", "d = CASE WHEN d = 1 THEN NULL ELSE a END"]
        ),
        wheres,
    ).map(lambda each: f"UPDATE t SET {each[0]}{each[1]}"),
    key_conditions.map("DELETE FROM t WHERE {}".format),
    key_conditions.map("INSERT INTO t SELECT a + 7, b, c, d, e + 20 FROM t WHERE {}".format),
)


def outcome(run: Callable[[], Any]) -> Any:
    try:
        return run()
    except sqlite3.IntegrityError:
        return "violation"
    except TopicsError as error:
        return "violation" if error.reason.value.code.endswith("_violation") else error


def all_rows(world: SqlWorld, other: sqlite3.Connection, text: str) -> None:
    mine = [tuple(int(value) if isinstance(value, bool) else value for value in row) for row in world.rows(text)]
    assert mine == other.execute(text).fetchall(), text


@given(
    st.lists(rows, min_size=1, max_size=12),
    st.lists(st.sampled_from(INDEXES), max_size=3, unique=True),
    st.lists(st.one_of(changes, selects, selects), min_size=1, max_size=12),
)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_statements_agree_with_sqlite(first: list[str], indexes: list[str], statements: list[str]) -> None:
    world = SqlWorld()
    other = sqlite3.connect(":memory:", isolation_level=None)
    other.execute("PRAGMA case_sensitive_like = ON")
    for text in (TABLE, *indexes):
        world.run(text)
        other.execute(text)
    for text in [*(f"INSERT INTO t VALUES {row}" for row in first), *statements]:
        if text.startswith("SELECT"):
            all_rows(world, other, text)
            continue
        counts = (
            outcome(lambda text=text: world.run(text).row_count),
            outcome(lambda text=text: other.execute(text).rowcount),
        )
        assert counts[0] == counts[1], text
        all_rows(world, other, "SELECT * FROM t ORDER BY a, b")
    other.close()
