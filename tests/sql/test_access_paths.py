"""Access paths: which keys or which range a query reads, what is left to check, and what is sorted."""

import pytest

from support.sql_schema import MemorySchema

TABLES = """
    CREATE TABLE t (a INT, b BIGINT, c TEXT, d INT NOT NULL, e SMALLINT, f DOUBLE, g DECIMAL(8, 2), h BOOLEAN,
        i TIMESTAMP, PRIMARY KEY (a, b), UNIQUE (c));
    CREATE INDEX by_d ON t (d, e);
    CREATE INDEX by_e ON t (e);
    CREATE INDEX by_g ON t (g);
    CREATE INDEX by_f ON t (f);
    CREATE INDEX by_h ON t (h, c);
    CREATE INDEX by_i ON t (i);
"""
ALL = "all of primary key"


@pytest.fixture(scope="module")
def schema() -> MemorySchema:
    return MemorySchema(TABLES)


READS = [
    ("", [ALL]),
    ("WHERE a = 1 AND b = 2", ["primary key (a, b)"]),
    ("WHERE b = 2 AND 1 = a", ["primary key (a, b)"]),
    ("WHERE a = $1 AND b = $2 + 1 AND c = 'x'", ["primary key (a, b)", "filter: c = 'x'"]),
    ("WHERE a IN (1, 2) AND b IN (3, 4, NULL)", ["4 keys of the primary key (a, b)"]),
    ("WHERE a IN (1, 2) AND b = 3 ORDER BY a", ["2 keys of the primary key (a, b)"]),
    ("WHERE a IN (1, 2) AND b = 3 ORDER BY a DESC", ["2 keys of the primary key (a, b)", "sort in memory: a desc"]),
    ("WHERE a = 1", ["range of primary key: a = 1"]),
    ("WHERE a = -1 AND b > 2 AND b <= 9", ["range of primary key: a = -1, b > 2, b <= 9"]),
    ("WHERE a = 1 AND b BETWEEN 2 AND 9", ["range of primary key: a = 1, b >= 2, b <= 9"]),
    ("WHERE a > 1 AND b = 2", ["range of primary key: a > 1", "filter: b = 2"]),
    ("WHERE a < 1 AND a < 5", ["range of primary key: a < 1", "filter: a < 5"]),
    ("WHERE a = 1 OR b = 2", [ALL, "filter: (a = 1) or (b = 2)"]),
    ("WHERE b = 2", [ALL, "filter: b = 2"]),
    ("WHERE a + 1 = 2", [ALL, "filter: (a + 1) = 2"]),
    ("WHERE c = 'x'", ["range of index t_c_key: c = 'x'"]),
    ("WHERE a = 1 AND c = 'x'", ["range of primary key: a = 1", "filter: c = 'x'"]),
    ("WHERE a = 1 AND d = 2 AND e = 3", ["range of index by_d: d = 2, e = 3", "filter: a = 1"]),
    ("WHERE d = 2 AND e >= 3", ["range of index by_d: d = 2, e >= 3"]),
    ("WHERE d = 2 ORDER BY e NULLS FIRST", ["range of index by_d: d = 2"]),
    ("WHERE d = 2 ORDER BY e", ["range of index by_d: d = 2", "sort in memory: e"]),
    ("WHERE d = 2 AND e > 0 ORDER BY e, a, b", ["range of index by_d: d = 2, e > 0"]),
    ("WHERE d = 2 AND e > 0 ORDER BY e DESC, a DESC", ["range of index by_d: d = 2, e > 0, in reverse"]),
    ("WHERE d = 2 AND e > 0 ORDER BY e DESC, a", ["range of index by_d: d = 2, e > 0", "sort in memory: e desc, a"]),
    ("WHERE e < 3", ["range of index by_e: e < 3", "filter: e < 3"]),
    ("WHERE e > 1 AND e < 3", ["range of index by_e: e > 1, e < 3"]),
    ("WHERE h", ["range of index by_h: h = true"]),
    ("WHERE NOT h AND c > 'k'", ["range of index by_h: h = false, c > 'k'"]),
    ("WHERE a = NULL AND b = 1", ["primary key (a, b)"]),
    # numbers that the column can't hold leave no key to look for
    ("WHERE e = 100000", ["range of index by_e: e = 100000"]),
    ("WHERE e = $1::bigint", ["range of index by_e: e = $1"]),
    ("WHERE i >= current_date AND i < DATE '2027-01-01'",
     ["range of index by_i: i >= cast(current_date() as TIMESTAMP), i < cast('2027-01-01' as TIMESTAMP)"]),
    ("WHERE e = 99999999999999999999", [ALL, "filter: e = 99999999999999999999"]),
    ("WHERE f = $1::int", ["range of index by_f: f = cast($1 as DOUBLE)"]),
    ("WHERE f > 0.1", ["range of index by_f: f > 0.1"]),
    ("WHERE e = 1.5", [ALL, "filter: e = 1.5"]),
    ("WHERE e = 2.0", ["range of index by_e: e = 2"]),
    ("WHERE g = 1.005", [ALL, "filter: g = 1.005"]),
    ("WHERE g = 1.5", ["range of index by_g: g = 1.50"]),
    ("WHERE g = $1", ["range of index by_g: g = cast($1 as DECIMAL(8, 2))", "filter: g = $1"]),
    ("WHERE f = 1.5", ["range of index by_f: f = 1.5"]),
    ("WHERE f = e", [ALL, "filter: f = e"]),
    ("WHERE a = snowflake_id()", [ALL, "filter: a = snowflake_id()"]),
    # order
    ("ORDER BY a, b", [ALL]),
    ("ORDER BY a DESC, b DESC", ["all of primary key, in reverse"]),
    ("ORDER BY a, b DESC", [ALL, "sort in memory: a, b desc"]),
    ("WHERE a = 1 ORDER BY a DESC, b", ["range of primary key: a = 1"]),
    ("ORDER BY 1, b, c", [ALL]),
    ("ORDER BY d", [ALL, "sort in memory: d"]),
    ("ORDER BY d LIMIT 5", ["all of index by_d", "limit: 5"]),
    ("ORDER BY d DESC LIMIT 5", ["all of index by_d, in reverse", "limit: 5"]),
    ("ORDER BY c LIMIT 5", [ALL, "sort in memory: c", "limit: 5"]),
    ("ORDER BY c NULLS FIRST LIMIT 5", ["all of index t_c_key", "limit: 5"]),
    ("ORDER BY c DESC LIMIT 5", [ALL, "sort in memory: c desc", "limit: 5"]),
    ("ORDER BY c DESC NULLS LAST LIMIT 5", ["all of index t_c_key, in reverse", "limit: 5"]),
    ("ORDER BY lower(c) LIMIT 5 OFFSET 1", [ALL, "sort in memory: lower(c)", "limit: 5", "offset: 1"]),
]  # fmt: skip


@pytest.mark.parametrize(("clauses", "lines"), READS, ids=[clauses or "all" for clauses, _ in READS])
def test_reads(schema: MemorySchema, clauses: str, lines: list[str]) -> None:
    first, *others = schema.action(f"EXPLAIN SELECT a FROM t {clauses}").lines
    assert first == "read default.t"
    assert [line.strip() for line in others] == lines


def test_an_index_that_is_being_built_is_not_read(schema: MemorySchema) -> None:
    from msgspec.structs import replace

    from topics_service.engine.tables.model import IndexState, TableName

    name = TableName("default", "t")
    table = schema.tables[name]
    other = MemorySchema()
    other.tables[name] = replace(
        table, indexes=tuple(replace(index, state=IndexState.BUILDING) for index in table.indexes)
    )
    assert other.action("EXPLAIN SELECT a FROM t WHERE d = 2").lines[1].strip() == ALL


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("EXPLAIN SELECT 1 + 1", ["one row of constants"]),
        ("EXPLAIN SELECT count(*) FROM t WHERE a = 1",
         ["read default.t", "range of primary key: a = 1", "count the rows"]),
        ("EXPLAIN SELECT DISTINCT c FROM t", ["read default.t", ALL, "remove rows that are equal"]),
        ("EXPLAIN SELECT name FROM system.topics WHERE name LIKE 'a%'",
         ["read system.topics", "filter: name like 'a%'"]),
        (
            "EXPLAIN SELECT name FROM system.topics a, system.topic_offsets b WHERE a.topic_id=b.topic_id AND lag>0",
            ["join system.topics and system.topic_offsets by topic_id = topic_id", "filter: lag > 0"],
        ),
        (
            "EXPLAIN SELECT t.name FROM system.topics t LEFT JOIN system.topic_offsets o USING (topic_id)",
            ["left join system.topics and system.topic_offsets by topic_id = topic_id"],
        ),
        ("EXPLAIN INSERT INTO t (a, b, d) VALUES (1, 2, 3), (4, 5, 6) ON CONFLICT DO NOTHING",
         ["insert into default.t", "rows: 2", "on conflict: do nothing"]),
        ("EXPLAIN INSERT INTO t SELECT * FROM t WHERE a = 1 ON CONFLICT (c) DO UPDATE SET d = 1",
         ["insert into default.t", "read default.t", "range of primary key: a = 1", "on conflict: update the row"]),
        ("EXPLAIN UPDATE t SET d = 1 WHERE a = 1 AND c LIKE 'x'",
         ["update default.t", "range of primary key: a = 1", "filter: c like 'x'"]),
        ("EXPLAIN DELETE FROM t AS x WHERE x.a = 1 AND x.b = 2", ["delete from default.t", "primary key (a, b)"]),
    ],
)  # fmt: skip
def test_lines(schema: MemorySchema, text: str, lines: list[str]) -> None:
    assert [line.strip() for line in schema.action(text).lines] == lines
