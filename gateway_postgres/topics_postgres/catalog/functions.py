"""Functions of the catalog's queries: those that DuckDB has as PostgreSQL, and those that are made of macros."""

from typing import Final

from topics_sql.tokens import words

ALIKE: Final = words(
    """abs any_value array_agg array_append array_cat array_position array_prepend avg bit_and bit_or bool_and bool_or
    btrim cardinality ceil ceiling chr coalesce concat concat_ws count count_star date_part date_trunc dense_rank
    ends_with exp first_value floor greatest initcap last_value lag lead least left length like_escape ilike_escape
    not_ilike_escape not_like_escape list_value lower lpad ltrim max md5 min mod now ntile nullif nth_value octet_length
    overlay percent_rank position pow power random rank regexp_full_match regexp_matches regexp_replace repeat replace
    reverse right round row row_number rpad rtrim sign split_part starts_with string_agg strpos struct_extract
    substr substring sum timezone to_json translate trim trunc unnest upper
    ~~ !~~ ~~* !~~* || + - * / % & | # << >> @> <@ && ^@ ! ~"""
)
"""Functions and operators that have the same name and the same meaning."""

RENAMED: Final = {
    "bpcharlike": "~~",
    "char_length": "length",
    "character_length": "length",
    "json_agg": "json_group_array",
    "json_build_object": "json_object",
    "json_object_agg": "json_group_object",
    "jsonb_agg": "json_group_array",
    "jsonb_build_object": "json_object",
    "jsonb_object_agg": "json_group_object",
    "row_to_json": "to_json",
    "array_to_json": "to_json",
    "to_jsonb": "to_json",
    "string_to_array": "string_split",
}
"""Functions that have another name."""

SETS: Final = frozenset({"generate_series", "generate_subscripts", "unnest"})
"""Functions that make rows."""

_NULLS: Final = words(
    """obj_description/1 obj_description/2 col_description/2 shobj_description/2 pg_get_viewdef/1 pg_get_viewdef/2
    pg_get_ruledef/1 pg_get_ruledef/2 pg_get_triggerdef/1 pg_get_triggerdef/2 pg_get_functiondef/1
    pg_get_function_arguments/1 pg_get_function_identity_arguments/1 pg_get_function_result/1 pg_get_function_sqlbody/1
    pg_get_function_arg_default/2 pg_get_partkeydef/1 pg_get_partition_constraintdef/1 pg_get_statisticsobjdef/1
    pg_get_statisticsobjdef_columns/1 pg_get_statisticsobjdef_expressions/1 pg_get_serial_sequence/2
    pg_tablespace_location/1 pg_describe_object/3 inet_server_addr/0 inet_client_addr/0"""
)
"""Functions of objects that do not exist here, with the number of their arguments."""
_NO_NUMBERS: Final = words(
    """pg_relation_size/1 pg_relation_size/2 pg_total_relation_size/1 pg_table_size/1 pg_indexes_size/1
    pg_database_size/1 pg_tablespace_size/1 pg_stat_get_numscans/1 pg_stat_get_live_tuples/1 pg_stat_get_dead_tuples/1
    pg_sequence_last_value/1 inet_server_port/0 inet_client_port/0"""
)
"""Sizes and counts, which no one knows here: NULL."""
_VISIBLE: Final = words(
    """pg_type_is_visible pg_function_is_visible pg_operator_is_visible pg_opclass_is_visible pg_opfamily_is_visible
    pg_collation_is_visible pg_conversion_is_visible pg_statistics_obj_is_visible pg_ts_config_is_visible
    pg_ts_dict_is_visible pg_ts_parser_is_visible pg_ts_template_is_visible"""
)
_PRIVILEGES: Final = words("table schema database column any_column sequence function language tablespace type server")
_RIGHTS: Final = (
    "list_has_any(getvariable('rights'),"
    " list_transform(string_split(upper(p), ','), lambda x: trim(replace(x, 'WITH GRANT OPTION', ''))))"
)


def _names(columns: str, relation: str) -> str:
    """A map from the first of two columns to the other."""
    first, _, second = columns.partition(", ")
    return f"(SELECT map(list({first}), list({second})) FROM {relation})"


def _arguments(count: int) -> str:
    return f"({', '.join('abcdef'[:count])})"


def _made(given: frozenset[str], body: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for each in sorted(given):
        name, _, count = each.partition("/")
        found.setdefault(name, []).append(f"{_arguments(int(count or 1))} AS {body}")
    return found


_QUOTED: Final = (
    """CASE WHEN regexp_full_match(a, '[a-z_][a-z0-9_$]*') THEN a ELSE '"' || replace(a, '"', '""') || '"' END"""
)
_MODIFIER: Final = (
    "CASE WHEN b IS NULL OR b < 4 THEN '' WHEN a IN (1042, 1043) THEN '(' || (b - 4) || ')' "
    "WHEN a = 1700 THEN '(' || ((b - 4) >> 16) || ',' || ((b - 4) & 65535) || ')' ELSE '' END"
)
_VISIBLE_NAMES: Final = "x_names WHERE namespace IN ('pg_catalog', getvariable('path'))"
_SHOWN: Final = (
    "(SELECT map(list(oid), list(CASE WHEN namespace IN ('pg_catalog', getvariable('path')) "
    "THEN bare ELSE full_name END)) FROM x_names)"
)
_INDEX_COLUMNS: Final = (
    "(SELECT map(list(attrelid || '.' || attnum), list(f_quote_ident(attname))) FROM r_pg_attribute)"
)


def _by_oid(names: str) -> str:
    """The OID of what is given: a number, or the name of something."""
    return f"coalesce(TRY_CAST(a AS UINTEGER), {names}[CAST(a AS VARCHAR)])"


MACROS: Final[dict[str, list[str]]] = {
    **_made(_NULLS, "CAST(NULL AS VARCHAR)"),
    **_made(_NO_NUMBERS, "CAST(NULL AS BIGINT)"),
    **_made(_VISIBLE, "a IS NOT NULL"),
    **{
        f"has_{kind}_privilege": [f"(o, p) AS {_RIGHTS}", f"(u, o, p) AS {_RIGHTS}"]
        + ([f"(u, o, c, p) AS {_RIGHTS}"] if kind == "column" else [])
        for kind in sorted(_PRIVILEGES)
    },
    "quote_ident": [f"(a) AS {_QUOTED}"],
    "quote_literal": ["(a) AS '''' || replace(a, '''', '''''') || ''''"],
    "pg_has_role": ["(a, b) AS getvariable('is_superuser')", "(a, b, c) AS getvariable('is_superuser')"],
    "format_type": [f"(a, b) AS coalesce({_names('oid, name', 'x_types')}[a] || {_MODIFIER}, '???')"],
    "pg_get_expr": ["(a, b) AS a", "(a, b, c) AS a"],
    "pg_get_userbyid": [
        f"(a) AS coalesce({_names('oid, rolname', 'r_pg_roles')}[a], 'unknown (OID=' || a || ')')"
    ],
    "pg_table_is_visible": [f"(a) AS list_contains((SELECT list(oid) FROM {_VISIBLE_NAMES}), a)"],
    "pg_encoding_to_char": ["(a) AS CASE WHEN a = 6 THEN 'UTF8' ELSE '' END"],
    "pg_char_to_encoding": ["(a) AS CASE WHEN upper(a) IN ('UTF8', 'UTF-8') THEN 6 ELSE -1 END"],
    "current_schemas": ["(a) AS CASE WHEN a THEN ['pg_catalog', getvariable('path')] ELSE [getvariable('path')] END"],
    "pg_get_constraintdef": [f"(a) AS {_names('oid, definition', 'x_constraints')}[a]",
                             f"(a, b) AS {_names('oid, definition', 'x_constraints')}[a]"],
    "pg_get_indexdef": [
        f"(a) AS {_names('oid, definition', 'x_indexes')}[a]",
        (f"(a, b, c) AS CASE WHEN b = 0 THEN {_names('oid, definition', 'x_indexes')}[a] "
        f"ELSE coalesce({_INDEX_COLUMNS}[a || '.' || b], '') END"),
    ],
    "getdatabaseencoding": ["() AS 'UTF8'"],
    "current_setting": ["(a) AS getvariable('settings')[a]", "(a, b) AS getvariable('settings')[a]"],
    "pg_relation_is_publishable": ["(a) AS FALSE"],
    "pg_is_other_temp_schema": ["(a) AS FALSE"],
    "pg_is_in_recovery": ["() AS FALSE"],
    "pg_my_temp_schema": ["() AS CAST(0 AS UINTEGER)"],
    "pg_index_column_has_property": ["(a, b, c) AS c IN ('asc', 'orderable', 'nulls_last', 'returnable')"],
    "pg_indexam_has_property": ["(a, b) AS b IN ('can_order', 'can_unique', 'can_multi_col')"],
    "pg_index_has_property": ["(a, b) AS FALSE"],
    "pg_size_pretty": [
        ("(a) AS CASE WHEN abs(a) < 10240 THEN a || ' bytes' WHEN abs(a) < 10485760 THEN (a // 1024) || ' kB' "
        "ELSE (a // 1048576) || ' MB' END")
    ],
    "age": ["(a) AS CAST(0 AS INTEGER)"],
    "mxid_age": ["(a) AS CAST(0 AS INTEGER)"],
    "parse_ident": [
        ("""(a) AS list_transform(regexp_extract_all(a, '"(?:[^"]|"")*"|[^."]+'),"""
        """ lambda x: CASE WHEN x[1] = '"' THEN replace(x[2:-2], '""', '"') ELSE lower(x) END)""")
    ],
    "array_lower": ["(a, b) AS CASE WHEN len(a) > 0 AND b = 1 THEN 1 END"],
    "array_upper": ["(a, b) AS CASE WHEN len(a) > 0 AND b = 1 THEN CAST(len(a) AS INTEGER) END"],
    "array_length": ["(a, b) AS CASE WHEN len(a) > 0 AND b = 1 THEN CAST(len(a) AS INTEGER) END"],
    "array_ndims": ["(a) AS CASE WHEN len(a) > 0 THEN 1 END"],
    "array_remove": ["(a, b) AS list_filter(a, lambda x: x IS DISTINCT FROM b)"],
    "array_to_string": [
        "(a, b) AS array_to_string(CAST(a AS VARCHAR[]), b)",
        "(a, b, c) AS array_to_string(list_transform(CAST(a AS VARCHAR[]), lambda x: coalesce(x, c)), b)",
    ],
    "_pg_expandarray": [
        "(a) AS unnest(list_transform(generate_series(1, len(a)), lambda i: {'x': a[i], 'n': CAST(i AS INTEGER)}))"
    ],
    "aclexplode": [
        ("(a) AS unnest(CAST([] AS STRUCT(grantor UINTEGER, grantee UINTEGER, privilege_type VARCHAR,"
        " is_grantable BOOLEAN)[]))")
    ],
    "pg_options_to_table": ["(a) AS unnest(CAST([] AS STRUCT(option_name VARCHAR, option_value VARCHAR)[]))"],
    "pg_get_keywords": [
        ("() AS unnest(list_transform(string_split(getvariable('keywords'), ' '),"
        " lambda x: {'word': x, 'catcode': 'R', 'barelabel': FALSE, 'catdesc': 'reserved', 'baredesc': ''}))")
    ],
    "acldefault": ["(a, b) AS CAST(NULL AS VARCHAR[])"],
    "regclass": [(f"(a) AS coalesce({_by_oid(_names('full_name, oid', 'x_names'))}, "
                 f"{_names('bare, oid', _VISIBLE_NAMES)}[CAST(a AS VARCHAR)])")],
    "regclass_name": [f"(a) AS CASE WHEN a = 0 THEN '-' ELSE coalesce({_SHOWN}[a], CAST(a AS VARCHAR)) END"],
    "regtype": [(f"(a) AS coalesce({_by_oid(_names('name, oid', 'x_types'))}, "
                f"{_names('typname, oid', 'r_pg_type')}[lower(CAST(a AS VARCHAR))])")],
    "regtype_name": [(f"(a) AS CASE WHEN a = 0 THEN '-' ELSE coalesce({_names('oid, name', 'x_types')}[a],"
                     " CAST(a AS VARCHAR)) END")],
    "regnamespace": [f"(a) AS {_by_oid(_names('nspname, oid', 'r_pg_namespace'))}"],
    "regnamespace_name": [f"(a) AS f_quote_ident({_names('oid, nspname', 'r_pg_namespace')}[a])"],
    "regrole": [f"(a) AS {_by_oid(_names('rolname, oid', 'r_pg_roles'))}"],
    "regrole_name": [f"(a) AS f_quote_ident({_names('oid, rolname', 'r_pg_roles')}[a])"],
}  # fmt: skip
"""Functions with their forms, as macros of DuckDB. Their names there begin with `f_`."""

TYPES_BY_NAME: Final = words("regclass regtype regnamespace regrole")
"""Types whose values are OIDs with the name of what they are of."""
LOOKUPS: Final = {f"to_{name}": name for name in TYPES_BY_NAME}
"""Functions that look up a name, NULL if there is none."""


def macros() -> list[str]:
    """The statements that make all macros, those first that others use."""
    return [f"CREATE MACRO f_{name}{', '.join(forms)}" for name, forms in sorted(MACROS.items(), key=_order)]


def _order(item: tuple[str, list[str]]) -> tuple[bool, str]:
    return item[0] != "quote_ident", item[0]
