"""Relations of the catalog that are made of others, as queries of DuckDB."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from topics_postgres.catalog.relations import CATALOG, INFORMATION, Column

DUCK_TYPES: Final = {
    "bool": "BOOLEAN",
    "bytea": "BLOB",
    "char": "VARCHAR",
    "char[]": "VARCHAR[]",
    "float4": "FLOAT",
    "float4[]": "FLOAT[]",
    "float8": "DOUBLE",
    "int2": "SMALLINT",
    "int2[]": "SMALLINT[]",
    "int2vector": "USMALLINT[]",
    "int4": "INTEGER",
    "int8": "BIGINT",
    "oid": "UINTEGER",
    "oid[]": "UINTEGER[]",
    "oidvector": "UBIGINT[]",
    "text": "VARCHAR",
    "text[]": "VARCHAR[]",
    "timestamptz": "TIMESTAMP",
    "xid": "UBIGINT",
}
"""The type of DuckDB for each type of a column here. Each of them has one of its own, which results are known by."""


class View(NamedTuple):
    """The columns that differ from NULL, as expressions by name, and where the rows come from."""

    columns: dict[str, str]
    source: str


def table_of(namespace: str, name: str) -> str:
    """The name of a relation in DuckDB."""
    return f"{'r' if namespace == 'pg_catalog' else 'i'}_{name}"


def columns_of(namespace: str, name: str) -> Sequence[Column]:
    """The columns of a relation."""
    return (CATALOG if namespace == "pg_catalog" else INFORMATION)[name]


def definition(namespace: str, name: str, view: View) -> str:
    """The query of a view, with all columns of its relation."""
    shown = []
    for column, kind in columns_of(namespace, name):
        shown.append(f'CAST({view.columns.get(column, "NULL")} AS {DUCK_TYPES[kind]}) AS "{column}"')
    return f"SELECT {', '.join(shown)} FROM {view.source}"


_RELATIONS: Final = "r_pg_class c JOIN r_pg_namespace n ON n.oid = c.relnamespace"
_OWN: Final = "n.nspname NOT IN ('pg_catalog', 'information_schema')"
_DATABASE: Final = "getvariable('database')"
_USER: Final = "getvariable('user')"
_ROLES: Final = f"""(
    SELECT oid, name, is_super, can_login FROM x_roles
    UNION ALL SELECT 9, {_USER}, getvariable('is_superuser'), TRUE
    WHERE NOT EXISTS (SELECT 1 FROM x_roles WHERE name = {_USER})
) r"""
_KEYS: Final = (
    "r_pg_constraint k JOIN r_pg_class c ON c.oid = k.conrelid JOIN r_pg_namespace n ON n.oid = c.relnamespace"
)
_KEY_COLUMNS: Final = """(
    SELECT k.conname, k.contype, n.nspname, c.relname, a.attname, u.place
    FROM (SELECT *, unnest(conkey) AS number, unnest(generate_series(1, len(conkey))) AS place
          FROM r_pg_constraint WHERE contype IN ('p', 'u')) k
    JOIN r_pg_class c ON c.oid = k.conrelid JOIN r_pg_namespace n ON n.oid = c.relnamespace
    JOIN r_pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = k.number
    CROSS JOIN LATERAL (SELECT k.place AS place) u
) k"""
_PLACED: Final = {"table_catalog": _DATABASE, "table_schema": "n.nspname", "table_name": "c.relname"}
_CONSTRAINED: Final = {
    "constraint_catalog": _DATABASE, "constraint_schema": "n.nspname", "constraint_name": "k.conname",
}  # fmt: skip
_TYPE_NAME: Final = "(SELECT map(list(oid), list(typname)) FROM r_pg_type)[a.atttypid]"
_LENGTH: Final = "CASE WHEN a.atttypid = 1043 AND a.atttypmod > 4 THEN a.atttypmod - 4 END"
_PRIVILEGES: Final = f"""(
    SELECT n.nspname, c.relname, unnest(getvariable('rights')) AS privilege FROM {_RELATIONS}
    WHERE c.relkind IN ('r', 'v') AND {_OWN}
) p WHERE p.privilege IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE')"""
_GRANTED: Final = {
    "grantor": "'system'", "grantee": _USER, "table_catalog": _DATABASE, "table_schema": "p.nspname",
    "table_name": "p.relname", "privilege_type": "p.privilege", "is_grantable": "'NO'", "with_hierarchy": "'NO'",
}  # fmt: skip
_STATISTICS: Final = {"relid": "c.oid", "schemaname": "n.nspname", "relname": "c.relname"}

VIEWS: Final[dict[tuple[str, str], View]] = {
    ("pg_catalog", "pg_tables"): View(
        {
            "schemaname": "n.nspname", "tablename": "c.relname", "tableowner": "'system'",
            "hasindexes": "c.relhasindex", "hasrules": "FALSE", "hastriggers": "FALSE", "rowsecurity": "FALSE",
        },
        f"{_RELATIONS} WHERE c.relkind = 'r'",
    ),
    ("pg_catalog", "pg_views"): View(
        {"schemaname": "n.nspname", "viewname": "c.relname", "viewowner": "'system'"},
        f"{_RELATIONS} WHERE c.relkind = 'v'",
    ),
    ("pg_catalog", "pg_indexes"): View(
        {
            "schemaname": "n.nspname", "tablename": "t.relname", "indexname": "c.relname",
            "indexdef": "f_pg_get_indexdef(c.oid)",
        },
        f"r_pg_index i JOIN ({_RELATIONS}) ON c.oid = i.indexrelid JOIN r_pg_class t ON t.oid = i.indrelid",
    ),
    ("pg_catalog", "pg_roles"): View(
        {
            "rolname": "r.name", "rolsuper": "r.is_super", "rolinherit": "TRUE", "rolcreaterole": "r.is_super",
            "rolcreatedb": "FALSE", "rolcanlogin": "r.can_login", "rolreplication": "FALSE", "rolconnlimit": "-1",
            "rolpassword": "'********'", "rolbypassrls": "FALSE", "oid": "r.oid",
        },
        _ROLES,
    ),
    ("pg_catalog", "pg_authid"): View(
        {
            "oid": "r.oid", "rolname": "r.name", "rolsuper": "r.is_super", "rolinherit": "TRUE",
            "rolcreaterole": "r.is_super", "rolcreatedb": "FALSE", "rolcanlogin": "r.can_login",
            "rolreplication": "FALSE", "rolbypassrls": "FALSE", "rolconnlimit": "-1",
        },
        _ROLES,
    ),
    ("pg_catalog", "pg_user"): View(
        {
            "usename": "r.name", "usesysid": "r.oid", "usecreatedb": "FALSE", "usesuper": "r.is_super",
            "userepl": "FALSE", "usebypassrls": "FALSE", "passwd": "'********'",
        },
        f"{_ROLES} WHERE r.can_login",
    ),
    ("pg_catalog", "pg_database"): View(
        {
            "oid": "5", "datname": _DATABASE, "datdba": "10", "encoding": "6", "datlocprovider": "'c'",
            "datistemplate": "FALSE", "datallowconn": "TRUE", "datconnlimit": "-1", "datfrozenxid": "0",
            "datminmxid": "0", "dattablespace": "1663", "datcollate": "'C'", "datctype": "'C'",
        },
        "(SELECT 1) d",
    ),
    ("pg_catalog", "pg_stat_database"): View({"datid": "5", "datname": _DATABASE}, "(SELECT 1) d"),
    ("pg_catalog", "pg_settings"): View(
        {
            "name": "s.name", "setting": "s.setting", "category": "'topics'", "context": "'user'",
            "vartype": "'string'",
            "source": "'default'", "boot_val": "s.setting", "reset_val": "s.setting", "pending_restart": "FALSE",
        },
        "(SELECT unnest(map_keys(v)) AS name, unnest(map_values(v)) AS setting"
        " FROM (SELECT getvariable('settings') AS v)) s",
    ),
    ("pg_catalog", "pg_stat_activity"): View(
        {
            "datid": "5", "datname": _DATABASE, "pid": "getvariable('pid')", "usename": _USER, "state": "'active'",
            "application_name": "getvariable('settings')['application_name']", "backend_type": "'client backend'",
        },
        "(SELECT 1) d",
    ),
    ("pg_catalog", "pg_stat_all_tables"): View(_STATISTICS, f"{_RELATIONS} WHERE c.relkind = 'r'"),
    ("pg_catalog", "pg_stat_user_tables"): View(_STATISTICS, f"{_RELATIONS} WHERE c.relkind = 'r' AND {_OWN}"),
    ("pg_catalog", "pg_timezone_names"): View(
        {"name": "'UTC'", "abbrev": "'UTC'", "utc_offset": "'00:00:00'", "is_dst": "FALSE"}, "(SELECT 1) d"
    ),
    ("information_schema", "information_schema_catalog_name"): View({"catalog_name": _DATABASE}, "(SELECT 1) d"),
    ("information_schema", "schemata"): View(
        {"catalog_name": _DATABASE, "schema_name": "n.nspname", "schema_owner": "'system'"}, "r_pg_namespace n"
    ),
    ("information_schema", "tables"): View(
        {
            **_PLACED,
            "table_type": "CASE c.relkind WHEN 'r' THEN 'BASE TABLE' ELSE 'VIEW' END",
            "is_insertable_into": f"CASE WHEN c.relkind = 'r' AND {_OWN} THEN 'YES' ELSE 'NO' END",
            "is_typed": "'NO'",
        },
        f"{_RELATIONS} WHERE c.relkind IN ('r', 'v')",
    ),
    ("information_schema", "views"): View(
        {
            **_PLACED, "check_option": "'NONE'", "is_updatable": "'NO'", "is_insertable_into": "'NO'",
            "is_trigger_updatable": "'NO'", "is_trigger_deletable": "'NO'", "is_trigger_insertable_into": "'NO'",
        },
        f"{_RELATIONS} WHERE c.relkind = 'v'",
    ),
    ("information_schema", "columns"): View(
        {
            **_PLACED,
            "column_name": "a.attname",
            "ordinal_position": "a.attnum",
            "column_default": "d.adbin",
            "is_nullable": "CASE WHEN a.attnotnull THEN 'NO' ELSE 'YES' END",
            "data_type": "CASE WHEN y.typcategory = 'A' THEN 'ARRAY' ELSE f_format_type(a.atttypid, NULL) END",
            "character_maximum_length": _LENGTH,
            "character_octet_length": f"{_LENGTH} * 4",
            "numeric_precision": "CASE WHEN a.atttypid = 1700 AND a.atttypmod > 4 THEN (a.atttypmod - 4) >> 16 "
            "ELSE map {21: 16, 23: 32, 20: 64, 700: 24, 701: 53}[a.atttypid] END",
            "numeric_precision_radix": "CASE WHEN a.atttypid IN (20, 21, 23, 700, 701) THEN 2 "
            "WHEN a.atttypid = 1700 THEN 10 END",
            "numeric_scale": "CASE WHEN a.atttypid = 1700 AND a.atttypmod > 4 THEN (a.atttypmod - 4) & 65535 "
            "WHEN a.atttypid IN (20, 21, 23) THEN 0 END",
            "datetime_precision": "CASE WHEN a.atttypid IN (1083, 1114, 1184) THEN 6 WHEN a.atttypid = 1082 THEN 0 END",
            "udt_catalog": _DATABASE,
            "udt_schema": "'pg_catalog'",
            "udt_name": "y.typname",
            "dtd_identifier": "a.attnum",
            "is_self_referencing": "'NO'",
            "is_identity": "'NO'",
            "identity_cycle": "'NO'",
            "is_generated": "'NEVER'",
            "is_updatable": f"CASE WHEN c.relkind = 'r' AND {_OWN} THEN 'YES' ELSE 'NO' END",
        },
        f"r_pg_attribute a JOIN ({_RELATIONS}) ON c.oid = a.attrelid JOIN r_pg_type y ON y.oid = a.atttypid "
        "LEFT JOIN r_pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum WHERE c.relkind IN ('r', 'v')",
    ),
    ("information_schema", "table_constraints"): View(
        {
            **_CONSTRAINED,
            **_PLACED,
            "constraint_type": "map {'p': 'PRIMARY KEY', 'u': 'UNIQUE', 'c': 'CHECK'}[k.contype]",
            "is_deferrable": "'NO'",
            "initially_deferred": "'NO'",
            "enforced": "'YES'",
            "nulls_distinct": "CASE k.contype WHEN 'u' THEN 'YES' END",
        },
        _KEYS,
    ),
    ("information_schema", "key_column_usage"): View(
        {
            "constraint_catalog": _DATABASE, "constraint_schema": "k.nspname", "constraint_name": "k.conname",
            "table_catalog": _DATABASE, "table_schema": "k.nspname", "table_name": "k.relname",
            "column_name": "k.attname", "ordinal_position": "k.place",
        },
        _KEY_COLUMNS,
    ),
    ("information_schema", "constraint_column_usage"): View(
        {
            "constraint_catalog": _DATABASE, "constraint_schema": "k.nspname", "constraint_name": "k.conname",
            "table_catalog": _DATABASE, "table_schema": "k.nspname", "table_name": "k.relname",
            "column_name": "k.attname",
        },
        _KEY_COLUMNS,
    ),
    ("information_schema", "constraint_table_usage"): View(
        {**_CONSTRAINED, **_PLACED}, f"{_KEYS} WHERE k.contype IN ('p', 'u')"
    ),
    ("information_schema", "check_constraints"): View(
        {**_CONSTRAINED, "check_clause": "k.conbin"}, f"{_KEYS} WHERE k.contype = 'c'"
    ),
    ("information_schema", "enabled_roles"): View({"role_name": _USER}, "(SELECT 1) d"),
    ("information_schema", "table_privileges"): View(_GRANTED, _PRIVILEGES),
    ("information_schema", "role_table_grants"): View(_GRANTED, _PRIVILEGES),
    ("information_schema", "character_sets"): View(
        {"character_set_name": "'UTF8'", "character_repertoire": "'UCS'", "form_of_use": "'UTF8'",
         "default_collate_catalog": _DATABASE}, "(SELECT 1) d",
    ),
}  # fmt: skip
"""By namespace and name. What is neither here nor has rows is empty."""
