"""Types that columns of tables and of the catalog have, and the OIDs that they and its relations have everywhere."""

from typing import Final, NamedTuple


class PgType(NamedTuple):
    """A row of `pg_type`, as far as types differ in it."""

    oid: int
    name: str
    size: int
    by_value: bool
    kind: str
    category: str
    is_preferred: bool
    element: int
    array: int
    input: str
    align: str
    storage: str
    collation: int


_TYPES: Final = """
    16 bool 1 t b B t 0 1000 boolin c p 0
    17 bytea -1 f b U f 0 1001 byteain i x 0
    18 char 1 t b Z f 0 1002 charin c p 0
    19 name 64 f b S f 18 1003 namein c p 950
    20 int8 8 t b N f 0 1016 int8in d p 0
    21 int2 2 t b N f 0 1005 int2in s p 0
    22 int2vector -1 f b A f 21 1006 int2vectorin i p 0
    23 int4 4 t b N f 0 1007 int4in i p 0
    24 regproc 4 t b N f 0 1008 regprocin i p 0
    25 text -1 f b S t 0 1009 textin i x 100
    26 oid 4 t b N t 0 1028 oidin i p 0
    28 xid 4 t b U f 0 1011 xidin i p 0
    30 oidvector -1 f b A f 26 1013 oidvectorin i p 0
    114 json -1 f b U f 0 199 json_in i x 0
    194 pg_node_tree -1 f b Z f 0 0 pg_node_tree_in i x 100
    199 _json -1 f b A f 114 0 array_in i x 0
    700 float4 4 t b N f 0 1021 float4in i p 0
    701 float8 8 t b N t 0 1022 float8in d p 0
    705 unknown -2 f p X f 0 0 unknownin c p 0
    1000 _bool -1 f b A f 16 0 array_in i x 0
    1001 _bytea -1 f b A f 17 0 array_in i x 0
    1002 _char -1 f b A f 18 0 array_in i x 0
    1003 _name -1 f b A f 19 0 array_in i x 950
    1005 _int2 -1 f b A f 21 0 array_in i x 0
    1006 _int2vector -1 f b A f 22 0 array_in i x 0
    1007 _int4 -1 f b A f 23 0 array_in i x 0
    1008 _regproc -1 f b A f 24 0 array_in i x 0
    1009 _text -1 f b A f 25 0 array_in i x 100
    1011 _xid -1 f b A f 28 0 array_in i x 0
    1013 _oidvector -1 f b A f 30 0 array_in i x 0
    1014 _bpchar -1 f b A f 1042 0 array_in i x 100
    1015 _varchar -1 f b A f 1043 0 array_in i x 100
    1016 _int8 -1 f b A f 20 0 array_in d x 0
    1021 _float4 -1 f b A f 700 0 array_in i x 0
    1022 _float8 -1 f b A f 701 0 array_in d x 0
    1028 _oid -1 f b A f 26 0 array_in i x 0
    1033 aclitem 12 f b U f 0 1034 aclitemin i p 0
    1034 _aclitem -1 f b A f 1033 0 array_in i x 0
    1042 bpchar -1 f b S f 0 1014 bpcharin i x 100
    1043 varchar -1 f b S f 0 1015 varcharin i x 100
    1082 date 4 t b D f 0 1182 date_in i p 0
    1083 time 8 t b D f 0 1183 time_in d p 0
    1114 timestamp 8 t b D f 0 1115 timestamp_in d p 0
    1115 _timestamp -1 f b A f 1114 0 array_in d x 0
    1182 _date -1 f b A f 1082 0 array_in i x 0
    1183 _time -1 f b A f 1083 0 array_in d x 0
    1184 timestamptz 8 t b D t 0 1185 timestamptz_in d p 0
    1185 _timestamptz -1 f b A f 1184 0 array_in d x 0
    1231 _numeric -1 f b A f 1700 0 array_in i x 0
    1700 numeric -1 f b N f 0 1231 numeric_in i m 0
    2205 regclass 4 t b N f 0 2210 regclassin i p 0
    2206 regtype 4 t b N f 0 2211 regtypein i p 0
    2210 _regclass -1 f b A f 2205 0 array_in i x 0
    2211 _regtype -1 f b A f 2206 0 array_in i x 0
    2249 record -1 f p P f 0 2287 record_in d x 0
    2277 anyarray -1 f p P f 0 0 anyarray_in d x 0
    2278 void 4 t p P f 0 0 void_in i p 0
    2287 _record -1 f p P f 2249 0 array_in d x 0
    2950 uuid 16 f b U f 0 2951 uuid_in c p 0
    2951 _uuid -1 f b A f 2950 0 array_in i x 0
    3802 jsonb -1 f b U f 0 3807 jsonb_in i x 0
    3807 _jsonb -1 f b A f 3802 0 array_in i x 0
"""
_RELATIONS: Final = """
    pg_namespace:2615 pg_class:1259 pg_attribute:1249 pg_type:1247 pg_attrdef:2604 pg_constraint:2606 pg_index:2610
    pg_proc:1255 pg_database:1262 pg_authid:1260 pg_auth_members:1261 pg_sequence:2224 pg_am:2601
    pg_description:2609 pg_shdescription:2396 pg_enum:3501 pg_range:3541 pg_extension:3079 pg_inherits:2611
    pg_policy:3256 pg_statistic_ext:3381 pg_publication:6104 pg_publication_rel:6106 pg_publication_namespace:6237
    pg_subscription:6100 pg_trigger:2620 pg_event_trigger:3466 pg_foreign_table:3118 pg_foreign_server:1417
    pg_foreign_data_wrapper:2328 pg_user_mapping:1418 pg_collation:3456 pg_language:2612 pg_operator:2617
    pg_opclass:2616 pg_opfamily:2753 pg_amop:2602 pg_amproc:2603 pg_aggregate:2600 pg_cast:2605 pg_conversion:2607
    pg_depend:2608 pg_shdepend:1214 pg_rewrite:2618 pg_partitioned_table:3350 pg_tablespace:1213 pg_default_acl:826
    pg_init_privs:3394 pg_seclabel:3596 pg_ts_config:3602 pg_ts_dict:3600 pg_ts_parser:3601 pg_ts_template:3764
    pg_db_role_setting:2964
"""
_NAMES: Final = {
    "bool": "boolean",
    "bpchar": "character",
    "char": '"char"',
    "float4": "real",
    "float8": "double precision",
    "int2": "smallint",
    "int4": "integer",
    "int8": "bigint",
    "time": "time without time zone",
    "timestamp": "timestamp without time zone",
    "timestamptz": "timestamp with time zone",
    "varchar": "character varying",
}


def _type(line: str) -> PgType:
    oid, name, size, by_value, kind, category, preferred, element, array, put, align, storage, collation = line.split()
    return PgType(
        int(oid), name, int(size), by_value == "t", kind, category, preferred == "t", int(element), int(array), put,
        align, storage, int(collation),
    )  # fmt: skip


TYPES: Final = {each.oid: each for each in map(_type, _TYPES.strip().splitlines())}
"""All types, by OID."""
RELATIONS: Final = {name: int(oid) for name, _, oid in (word.partition(":") for word in _RELATIONS.split())}
"""The OIDs of relations that have the same on every server."""


def long_name(each: PgType) -> str:
    """The name of a type as `format_type` gives it."""
    if each.category == "A" and each.name.startswith("_"):
        return f"{long_name(TYPES[each.element])}[]"
    return _NAMES.get(each.name, each.name)
