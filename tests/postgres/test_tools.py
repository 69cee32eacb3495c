"""The queries of DBeaver and of Grafana's PostgreSQL data source, which they send at connect and to show a table.

Their texts are those of the public sources, cut to what a query needs here: they are facts of an interface, as clients
know PostgreSQL. The tools themselves are not run.
"""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

DESCRIPTION = (
    "LEFT OUTER JOIN pg_catalog.pg_description d ON d.objoid={0}.oid AND d.objsubid=0 AND d.classoid='{1}'::regclass"
)
DBEAVER_AT_CONNECT = [
    "SELECT current_schema(),session_user",
    "SELECT version()",
    "SHOW search_path",
    "SELECT * FROM pg_catalog.pg_enum WHERE 1<>1 LIMIT 1",
    "SELECT reltype FROM pg_catalog.pg_class WHERE 1<>1 LIMIT 1",
    "SELECT typcategory FROM pg_catalog.pg_type WHERE 1<>1 LIMIT 1",
    (
        "SELECT a.oid,a.*,pd.description FROM pg_catalog.pg_roles a"
        " left join pg_catalog.pg_shdescription pd on a.oid = pd.objoid ORDER BY a.rolname"
    ),
    "SELECT am.oid,am.* FROM pg_catalog.pg_am am ORDER BY am.oid",
    (
        "SELECT c.contoencoding as encid,pg_catalog.pg_encoding_to_char(c.contoencoding) as encname"
        " FROM pg_catalog.pg_conversion c GROUP BY c.contoencoding ORDER BY 2"
    ),
    "SELECT c.oid,c.* FROM pg_catalog.pg_collation c ORDER BY c.oid",
    "SELECT l.oid,l.* FROM pg_catalog.pg_language l ORDER BY l.oid",
    (
        "SELECT l.oid,l.*,p.pronamespace as handler_schema_id FROM pg_catalog.pg_foreign_data_wrapper l"
        " LEFT OUTER JOIN pg_catalog.pg_proc p ON p.oid=l.fdwhandler ORDER BY l.fdwname"
    ),
    "SELECT t.oid,t.*,pg_tablespace_location(t.oid) loc FROM pg_catalog.pg_tablespace t ORDER BY t.oid",
    "SELECT name,default_version,installed_version,comment FROM pg_catalog.pg_available_extensions ORDER BY name",
    (
        "SELECT pet.*, d.description FROM pg_catalog.pg_event_trigger pet"
        ' LEFT OUTER JOIN pg_catalog.pg_description d ON pet."oid" = d.objoid'
    ),
    (
        "SELECT e.oid, cfg.tbls, n.nspname as schema_name, e.* FROM pg_catalog.pg_extension e"
        " join pg_namespace n on n.oid =e.extnamespace left join (select ARRAY_AGG(ns.nspname || '.' ||  cls.relname)"
        " tbls, oid_ext from (select unnest(e1.extconfig) oid , e1.oid oid_ext from pg_catalog.pg_extension e1 ) c"
        " join pg_class cls on cls.oid = c.oid join pg_namespace ns on ns.oid = cls.relnamespace group by oid_ext) cfg"
        " on cfg.oid_ext = e.oid ORDER BY e.oid"
    ),
    "select * from pg_catalog.pg_settings",
    "SELECT db.datname FROM pg_catalog.pg_database db WHERE datistemplate",
]


@pytest.fixture
def db(where: str) -> Iterator[psycopg.Connection[dict[str, Any]]]:
    with psycopg.connect(where, autocommit=True, row_factory=dict_row) as connection:
        connection.execute(
            "CREATE TABLE seen (id BIGINT PRIMARY KEY, at TIMESTAMP NOT NULL, v DOUBLE DEFAULT 1.5, CHECK (v > 0))"
        )
        connection.execute("CREATE INDEX by_at ON seen (at)")
        connection.execute("INSERT INTO seen VALUES (1, '2024-02-29T01:02:03Z', 2), (2, '2024-02-29T01:04:00Z', 4)")
        yield connection


def test_dbeaver_connects(db: psycopg.Connection[dict[str, Any]]) -> None:
    for query in DBEAVER_AT_CONNECT:
        db.execute(query).fetchall()
    rows = db.execute("SELECT db.oid,db.* FROM pg_catalog.pg_database db WHERE datname=%s", ("shop",)).fetchall()
    assert [(row["datname"], row["datallowconn"]) for row in rows] == [("shop", True)]


def test_dbeaver_opens_a_table(db: psycopg.Connection[dict[str, Any]], namespace: str) -> None:
    schemas = db.execute(
        f"SELECT n.oid,n.*,d.description FROM pg_catalog.pg_namespace n {DESCRIPTION.format('n', 'pg_namespace')}"
        " WHERE (nspname LIKE %s) ORDER BY nspname", (namespace,)
    ).fetchall()  # fmt: skip
    (schema,) = [row["oid"] for row in schemas if row["nspname"] == namespace]
    types = db.execute(
        "SELECT t.oid,t.*,c.relkind,format_type(nullif(t.typbasetype, 0), t.typtypmod) as base_type_name, d.description"
        " FROM pg_catalog.pg_type t LEFT OUTER JOIN pg_catalog.pg_type et ON et.oid=t.typelem"
        " LEFT OUTER JOIN pg_catalog.pg_class c ON c.oid=t.typrelid"
        " LEFT OUTER JOIN pg_catalog.pg_description d ON t.oid=d.objoid WHERE t.typname IS NOT NULL"
        " AND (c.relkind IS NULL OR c.relkind = 'c') AND (et.typcategory IS NULL OR et.typcategory <> 'C')"
        " AND t.typnamespace=%s", (11,)
    ).fetchall()  # fmt: skip
    assert {"int8", "timestamptz", "float8"} <= {row["typname"] for row in types}
    tables = db.execute(
        "SELECT c.oid,c.*,d.description,pg_catalog.pg_get_expr(c.relpartbound, c.oid) as partition_expr,"
        " pg_catalog.pg_get_partkeydef(c.oid) as partition_key FROM pg_catalog.pg_class c"
        f" {DESCRIPTION.format('c', 'pg_class')} WHERE c.relnamespace=%s AND c.relkind not in ('i','I','c')", (schema,)
    ).fetchall()  # fmt: skip
    assert [(row["relname"], row["relkind"], row["relispartition"]) for row in tables] == [("seen", "r", False)]
    table = tables[0]["oid"]
    columns = db.execute(
        "SELECT c.relname,a.*,pg_catalog.pg_get_expr(ad.adbin, ad.adrelid, true) as def_value,dsc.description,dep.objid"
        " FROM pg_catalog.pg_attribute a INNER JOIN pg_catalog.pg_class c ON (a.attrelid=c.oid)"
        " LEFT OUTER JOIN pg_catalog.pg_attrdef ad ON (a.attrelid=ad.adrelid AND a.attnum = ad.adnum)"
        " LEFT OUTER JOIN pg_catalog.pg_description dsc ON (c.oid=dsc.objoid AND a.attnum = dsc.objsubid)"
        " LEFT OUTER JOIN pg_depend dep on dep.refobjid = a.attrelid AND dep.deptype = 'i'"
        " and dep.refobjsubid = a.attnum and dep.classid = dep.refclassid"
        " WHERE NOT a.attisdropped AND c.relkind not in ('i','I','c') AND c.oid=%s ORDER BY a.attnum", (table,)
    ).fetchall()  # fmt: skip
    assert [(row["attname"], row["atttypid"], row["attnotnull"], row["def_value"]) for row in columns] == [
        ("id", 20, True, None), ("at", 1184, True, None), ("v", 701, False, "1.5"),
    ]  # fmt: skip
    constraints = db.execute(
        "SELECT c.oid,c.*,t.relname as tabrelname,rt.relnamespace as refnamespace,d.description,"
        " case when c.contype='c'"
        ' then "substring"(pg_get_constraintdef(c.oid), 7) else null end consrc_copy FROM pg_catalog.pg_constraint c'
        " INNER JOIN pg_catalog.pg_class t ON t.oid=c.conrelid LEFT OUTER JOIN pg_catalog.pg_class rt"
        f" ON rt.oid=c.confrelid {DESCRIPTION.format('c', 'pg_constraint')} WHERE c.conrelid=%s ORDER BY c.oid",
        (table,)
    ).fetchall()  # fmt: skip
    assert sorted((row["contype"], row["conkey"], row["consrc_copy"]) for row in constraints) == [
        ("c", None, "((v > 0))"), ("p", [1], None),
    ]  # fmt: skip
    indexes = db.execute(
        "SELECT i.*,i.indkey as keys,c.relname,c.relnamespace,c.relam,c.reltablespace,tc.relname as tabrelname,"
        "dsc.description,pg_catalog.pg_get_expr(i.indpred, i.indrelid) as pred_expr,pg_catalog.pg_get_expr(i.indexprs,"
        " i.indrelid, true) as expr,pg_catalog.pg_relation_size(i.indexrelid) as index_rel_size,"
        "pg_catalog.pg_stat_get_numscans(i.indexrelid) as index_num_scans FROM pg_catalog.pg_index i"
        " INNER JOIN pg_catalog.pg_class c ON c.oid=i.indexrelid INNER JOIN pg_catalog.pg_class tc ON tc.oid=i.indrelid"
        " LEFT OUTER JOIN pg_catalog.pg_description dsc ON i.indexrelid=dsc.objoid"
        " WHERE i.indrelid=%s ORDER BY c.relname",
        (table,),
    ).fetchall()  # fmt: skip
    assert [(row["relname"], row["indisunique"], row["keys"]) for row in indexes] == [
        ("by_at", False, "2"), ("seen_pkey", True, "1"),
    ]  # fmt: skip
    for query in (
        "SELECT DISTINCT connamespace FROM pg_catalog.pg_constraint WHERE confrelid=%s",
        (
            "SELECT i.*,c.relnamespace FROM pg_catalog.pg_inherits i,pg_catalog.pg_class c"
            " WHERE i.inhrelid=%s AND c.oid=i.inhparent ORDER BY i.inhseqno"
        ),
        "SELECT * FROM pg_catalog.pg_auth_members WHERE roleid=%s",
    ):
        assert db.execute(query, (table,)).fetchall() == []


SEARCH_PATH = """quote_ident(table_schema) IN (
    SELECT CASE WHEN trim(s[i]) = '"$user"' THEN user ELSE trim(s[i]) END
    FROM generate_series(array_lower(string_to_array(current_setting('search_path'),','),1),
        array_upper(string_to_array(current_setting('search_path'),','),1)) as i,
        string_to_array(current_setting('search_path'),',') s)"""


def test_grafana_finds_tables_and_columns(db: psycopg.Connection[dict[str, Any]], namespace: str) -> None:
    assert db.execute("SELECT current_setting('server_version_num')::int/100 as version").fetchall() == [
        {"version": 1600}
    ]
    assert db.execute("SELECT extversion FROM pg_extension WHERE extname = 'timescaledb'").fetchall() == []
    schemas = db.execute(
        'SELECT schema_name AS "name" FROM information_schema.schemata'
        " WHERE schema_name NOT IN ('information_schema', 'pg_catalog', 'pg_toast') ORDER BY schema_name"
    ).fetchall()
    assert {"name": namespace} in schemas
    tables = db.execute(
        f"""SELECT CASE WHEN {SEARCH_PATH} THEN quote_ident(table_name)
            ELSE quote_ident(table_schema) || '.' || quote_ident(table_name) END AS "table"
        FROM information_schema.tables WHERE quote_ident(table_schema) NOT IN ('information_schema', 'pg_catalog')
        ORDER BY CASE WHEN {SEARCH_PATH} THEN 0 ELSE 1 END, 1"""
    ).fetchall()
    assert tables[0] == {"table": "seen"}
    assert {"table": "system.topics"} in tables
    for name in ("seen", f"{namespace}.seen"):
        columns = db.execute(
            f"""SELECT quote_ident(column_name) AS "column", data_type AS "type" FROM information_schema.columns
            WHERE CASE WHEN array_length(parse_ident('{name}'),1) = 2
                THEN quote_ident(table_schema) = (parse_ident('{name}'))[1]
                    AND quote_ident(table_name) = (parse_ident('{name}'))[2]
                ELSE quote_ident(table_name) = '{name}' AND {SEARCH_PATH} END"""
        ).fetchall()
        assert sorted((each["column"], each["type"]) for each in columns) == [
            ("at", "timestamp with time zone"), ("id", "bigint"), ("v", "double precision"),
        ]  # fmt: skip


def test_grafana_expands_its_macros(db: psycopg.Connection[dict[str, Any]]) -> None:
    between = "at BETWEEN '2024-02-29T01:00:00Z' AND '2024-02-29T02:00:00Z'"
    assert db.execute("SELECT 1").fetchall() == [{"?column?": 1}]
    assert len(db.execute(f'SELECT at AS "time", v AS "value" FROM seen WHERE {between} ORDER BY 1').fetchall()) == 2
    grouped = db.execute(
        f'SELECT floor(extract(epoch from at)/300)*300 AS "time", avg(v) AS "v" FROM seen WHERE {between} GROUP BY 1'
        " ORDER BY 1 LIMIT 50"
    ).fetchall()
    assert [(float(each["time"]), each["v"]) for each in grouped] == [(1709168400.0, 3.0)]
