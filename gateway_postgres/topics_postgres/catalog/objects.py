"""Objects of the catalog: rows of its relations, made from the system tables that the caller may see."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final

import msgspec

from topics_postgres import oids
from topics_postgres.catalog.relations import CATALOG, INFORMATION
from topics_postgres.catalog.types import RELATIONS, TYPES, long_name
from topics_service.engine.tables.system_schema import SYSTEM_TABLES
from topics_service.engine.tables.types import Kind

Row = Sequence[Any]
Rows = tuple[Row, ...]

SOURCES: Final = {
    "namespaces": "SELECT name FROM system.namespaces",
    "tables": "SELECT namespace, name, primary_key FROM system.tables",
    "columns": "SELECT namespace, table_name, name, data_type, is_nullable, column_default FROM system.columns",
    "indexes": "SELECT namespace, table_name, name, columns, is_unique, is_constraint, state FROM system.indexes",
    "checks": "SELECT namespace, table_name, name, expression FROM system.checks",
}
"""The queries whose rows the objects are made from."""

PG_CATALOG: Final = 11
FIRST_OID: Final = 16_384
"""The first OID of what is no part of every server."""
OWNER: Final = 10
OWNER_NAME: Final = "system"
DATABASE: Final = 5
HEAP: Final = 2
BTREE: Final = 403
_DEFAULT_COLLATION: Final = 100
_LAST_OID: Final = (1 << 31) - 1
_OPERATOR_CLASS: Final = 1978
_TYPE: Final = re.compile(r"([A-Z]+)(?:\((\d+)(?:, (\d+))?\))?")
_DEFAULTS: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("bool",), False),
    **dict.fromkeys(("oid", "xid", "int2", "int4", "int8"), 0),
    **dict.fromkeys(("float4", "float8"), 0.0),
}


class Objects:
    """The rows of the relations that have some. OIDs come from names: they are the same on all nodes."""

    def __init__(self, known: "Objects | None" = None) -> None:
        """`known` are objects that are there already, whose rows are not repeated."""
        self.rows: dict[str, list[Row]] = {}
        self.namespaces: dict[str, int] = {} if known is None else dict(known.namespaces)
        self.relations: dict[tuple[str, str], int] = {} if known is None else dict(known.relations)
        self._taken: dict[int, str] = {} if known is None else dict(known._taken)
        self._types: dict[tuple[int, int], tuple[int, int]] = {}
        """Types and modifiers of columns, by table and number."""

    def _oid(self, kind: str, name: str) -> int:
        """The OID of an object: of its name, and the next free one if another has that."""
        digest = int.from_bytes(blake2b(f"{kind} {name}".encode(), digest_size=8).digest(), "big")
        found = FIRST_OID + digest % (_LAST_OID - FIRST_OID)
        while self._taken.setdefault(found, f"{kind} {name}") != f"{kind} {name}":
            found = FIRST_OID if found == _LAST_OID else found + 1
        return found

    def _add(self, relation: str, **values: Any) -> None:
        """Add a row; what it does not name is the default of the column's type."""
        columns = CATALOG[relation]
        assert values.keys() <= {each.name for each in columns}, "the relation has these columns"
        row = [values[each.name] if each.name in values else _DEFAULTS.get(each.type) for each in columns]
        self.rows.setdefault(relation, []).append(row)

    def _add_types(self) -> None:
        names: list[Row] = []
        for each in TYPES.values():
            names.append((each.oid, long_name(each)))
            self._add(
                "pg_type", oid=each.oid, typname=each.name, typnamespace=PG_CATALOG, typowner=OWNER, typlen=each.size,
                typbyval=each.by_value, typtype=each.kind, typcategory=each.category,
                typispreferred=each.is_preferred, typisdefined=True, typdelim=",", typelem=each.element,
                typarray=each.array, typinput=each.input, typoutput=f"{each.input.removesuffix('in')}out",
                typreceive=f"{each.input.removesuffix('in')}recv", typsend=f"{each.input.removesuffix('in')}send",
                typalign=each.align, typstorage=each.storage, typtypmod=-1, typcollation=each.collation,
            )  # fmt: skip
        self.rows["x_types"] = list(names)

    def _add_namespaces(self, names: Iterable[str]) -> None:
        for name in names:
            oid = PG_CATALOG if name == "pg_catalog" else self._oid("namespace", name)
            self.namespaces[name] = oid
            self._add("pg_namespace", oid=oid, nspname=name, nspowner=OWNER)

    # ------------------------------------------------------------------------------------------------- tables

    def _add_tables(self, sources: Mapping[str, Rows]) -> None:
        columns = _grouped(sources["columns"])
        indexes = _grouped(sources["indexes"])
        checks = _grouped(sources["checks"])
        for namespace, name, key in sources["tables"]:
            own = columns.get((namespace, name), ())
            made = indexes.get((namespace, name), ())
            tests = checks.get((namespace, name), ())
            primary_key = msgspec.json.decode(key)
            oid = self._relation(
                namespace, name, "r", len(own), relchecks=len(tests), relhasindex=bool(made or primary_key)
            )
            numbers = {each[0]: place for place, each in enumerate(own, 1)}
            self._add_columns(oid, own, set(primary_key))
            if primary_key and numbers.keys() >= set(primary_key):
                index = self._unused(namespace, f"{name}_pkey", made)
                self._add_index((namespace, name, oid), numbers, index, primary_key, "p", is_ready=True)
            for index, listed, is_unique, is_constraint, state in made:
                kind = ("u" if is_constraint else "x") if is_unique else ""
                key = msgspec.json.decode(listed)
                if numbers.keys() >= set(key):  # the columns were read at another moment
                    self._add_index((namespace, name, oid), numbers, index, key, kind, is_ready=state == "ready")
            for check, expression in tests:
                self._add_constraint(namespace, oid, check, "c", f"CHECK (({expression}))", conbin=expression)

    def _unused(self, namespace: str, name: str, made: Iterable[Row]) -> str:
        """The name of the index of a primary key, which has none here; one that no other relation has."""
        others = {each[0] for each in made}
        while name in others or (namespace, name) in self.relations:
            name += "_"
        return name

    def _relation(self, namespace: str, name: str, kind: str, columns: int, **values: Any) -> int:
        oid = RELATIONS.get(name, 0) if namespace == "pg_catalog" else 0
        oid = oid or self._oid("relation", f"{namespace}.{name}")
        self.relations[namespace, name] = oid
        names = (oid, namespace, quoted(name), f"{quoted(namespace)}.{quoted(name)}")
        self.rows.setdefault("x_names", []).append(names)
        self._add(
            "pg_class", oid=oid, relname=name, relnamespace=self.namespaces.get(namespace, 0), relowner=OWNER,
            relam={"r": HEAP, "i": BTREE}.get(kind, 0), relfilenode=oid if kind in "ri" else 0, reltuples=-1.0,
            relpersistence="p", relkind=kind, relnatts=columns, relispopulated=True, relreplident="d", **values,
        )  # fmt: skip
        return oid

    def _add_columns(self, table: int, columns: Iterable[Row], key: set[str]) -> None:
        for number, (name, kind, is_nullable, default) in enumerate(columns, 1):
            oid, modifier = pg_type_of(kind)
            self._attribute(
                table, name, number, oid, modifier, attnotnull=not is_nullable or name in key,
                atthasdef=default is not None,
            )  # fmt: skip
            if default is not None:
                self._add(
                    "pg_attrdef", oid=self._oid("default", f"{table}.{number}"), adrelid=table, adnum=number,
                    adbin=default,
                )  # fmt: skip

    def _attribute(self, table: int, name: str, number: int, oid: int, modifier: int, **values: Any) -> None:
        known = TYPES[oid]
        self._types[table, number] = oid, modifier
        self._add(
            "pg_attribute", attrelid=table, attname=name, atttypid=oid, attstattarget=-1, attlen=known.size,
            attnum=number, attndims=int(known.category == "A"), attcacheoff=-1, atttypmod=modifier,
            attbyval=known.by_value, attalign=known.align, attstorage=known.storage, attcompression="",
            attidentity="", attgenerated="", attislocal=True, attcollation=known.collation, **values,
        )  # fmt: skip

    def _add_index(
        self, table: tuple[str, str, int], numbers: Mapping[str, int], name: str, key: Sequence[str], kind: str,
        *, is_ready: bool,
    ) -> None:  # fmt: skip
        """Add an index. `kind`: `p` of the primary key, `u` of a UNIQUE constraint, `x` another unique one."""
        namespace, of, oid = table
        index = self._relation(namespace, name, "i", len(key))
        places = [numbers[each] for each in key]
        for number, each in enumerate(places, 1):
            column = self._types[oid, each]
            self._attribute(index, key[number - 1], number, column[0], column[1])
        self._add(
            "pg_index", indexrelid=index, indrelid=oid, indnatts=len(key), indnkeyatts=len(key),
            indisunique=bool(kind), indisprimary=kind == "p", indimmediate=True, indisvalid=is_ready, indisready=True,
            indislive=True, indkey=places,
            indcollation=[TYPES[self._types[oid, each][0]].collation for each in places],
            indclass=[_OPERATOR_CLASS] * len(key), indoption=[0] * len(key),
        )  # fmt: skip
        listed = ", ".join(map(quoted, key))
        unique = "UNIQUE " if kind else ""
        target = f"{quoted(namespace)}.{quoted(of)}"
        text = f"CREATE {unique}INDEX {quoted(name)} ON {target} USING btree ({listed})"
        self.rows.setdefault("x_indexes", []).append((index, text))
        if kind in ("p", "u"):
            text = f"{'PRIMARY KEY' if kind == 'p' else 'UNIQUE'} ({listed})"
            self._add_constraint(namespace, oid, name, kind, text, conindid=index, conkey=places)

    def _add_constraint(self, namespace: str, table: int, name: str, kind: str, text: str, **values: Any) -> None:
        oid = self._oid("constraint", f"{table}.{name}")
        self._add(
            "pg_constraint", oid=oid, conname=name, connamespace=self.namespaces.get(namespace, 0), contype=kind,
            convalidated=True, conrelid=table, confupdtype=" ", confdeltype=" ", confmatchtype=" ", conislocal=True,
            connoinherit=kind != "c", **values,
        )  # fmt: skip
        self.rows.setdefault("x_constraints", []).append((oid, text))

    # ---------------------------------------------------------------------------------------- the server's own

    def _add_system(self) -> None:
        """Add the system tables and the relations of the catalog, as relations that can be asked for."""
        for name, known in SYSTEM_TABLES.items():
            oid = self._relation("system", name, "v", len(known))
            self._add_columns(oid, [(column, kind.name, True, None) for column, kind in known], set())
        for namespace, relations in (("pg_catalog", CATALOG), ("information_schema", INFORMATION)):
            for name, columns in relations.items():
                oid = self._relation(namespace, name, "r" if name in RELATIONS else "v", len(columns))
                for number, (column, kind) in enumerate(columns, 1):
                    self._attribute(oid, column, number, _OID_OF_NAME[kind], -1)

    def _add_constants(self) -> None:
        self._add("pg_am", oid=HEAP, amname="heap", amhandler="heap_tableam_handler", amtype="t")
        self._add("pg_am", oid=BTREE, amname="btree", amhandler="bthandler", amtype="i")
        for oid, name in ((1663, "pg_default"), (1664, "pg_global")):
            self._add("pg_tablespace", oid=oid, spcname=name, spcowner=OWNER)
        for oid, name in ((_DEFAULT_COLLATION, "default"), (950, "C")):
            self._add(
                "pg_collation", oid=oid, collname=name, collnamespace=PG_CATALOG, collowner=OWNER,
                collprovider="d" if name == "default" else "c", collisdeterministic=True, collencoding=-1,
            )  # fmt: skip
        self._add("pg_opclass", oid=_OPERATOR_CLASS, opcmethod=BTREE, opcname="default_ops", opcnamespace=PG_CATALOG,
                  opcowner=OWNER, opcdefault=True)  # fmt: skip
        self._add("pg_language", oid=14, lanname="sql", lanowner=OWNER, lanpltrusted=True)
        self.rows["x_roles"] = [(OWNER, OWNER_NAME, True, False)]

    def _add_roles(self, users: Rows) -> None:
        for name, role in users:
            row = (self._oid("role", name), name, role in ("dba", "system"), True)
            self.rows.setdefault("x_roles", []).append(row)


@lru_cache(maxsize=1)
def of_server() -> Objects:
    """The objects that every server has: types, the relations of the catalog, the system tables."""
    made = Objects()
    made._add_types()
    made._add_namespaces(("pg_catalog", "information_schema", "system"))
    made._add_system()
    made._add_constants()
    return made


def of_caller(sources: Mapping[str, Rows], users: Rows) -> Objects:
    """The objects that a caller may see beside those of the server."""
    made = Objects(of_server())
    made._add_namespaces([name for (name,) in sources["namespaces"]])
    made._add_tables(sources)
    made._add_roles(users)
    return made


def _grouped(rows: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    """Members of a row behind the namespace and the name of a table, by these two."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row[0], row[1]), []).append(row[2:])
    return found


def pg_type_of(name: str) -> tuple[int, int]:
    """The OID and the modifier of a type by its name in SQL, as `VARCHAR(20)`."""
    match = _TYPE.fullmatch(name)
    if match is None or match[1] not in _KINDS:
        return (oids.VARCHAR, int(match[2]) + 4) if match is not None and match[2] else (oids.TEXT, -1)
    oid = oids.OF_KIND[_KINDS[match[1]]].oid
    if match[2] is None:
        return oid, -1
    return oid, (int(match[2]) << 16 | int(match[3] or 0)) + 4


def quoted(name: str) -> str:
    """A name as SQL needs it."""
    if re.fullmatch("[a-z_][a-z0-9_$]*", name):
        return name
    return '"{}"'.format(name.replace('"', '""'))


_KINDS: Final = {kind.value: kind for kind in Kind}
_OID_OF_NAME: Final = {each.name: each.oid for each in TYPES.values()} | {
    f"{TYPES[each.element].name}[]": each.oid for each in TYPES.values() if each.name.startswith("_")
}
