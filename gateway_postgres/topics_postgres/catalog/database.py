"""DuckDB with the relations of the catalog, as they are at one moment for one kind of caller."""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from topics_postgres.catalog.functions import macros
from topics_postgres.catalog.objects import Objects, of_server
from topics_postgres.catalog.tree import Node, Query
from topics_postgres.catalog.views import DUCK_TYPES, VIEWS, columns_of, definition, table_of
from topics_postgres.errors import PgError, Piece
from topics_postgres.oids import CatalogKind, catalog_type
from topics_service.api.sql.analysis.duck import StoppedError, configuration
from topics_service.api.sql.requests import ResultColumn
from topics_service.engine.tables.types import Kind, Type

T = TypeVar("T")

MEMORY_BYTES: Final = 64 << 20
MAX_ROWS: Final = 100_000
_BATCH: Final = 1000
_HELPERS: Final = {
    "x_types": (("oid", "oid"), ("name", "text")),
    "x_constraints": (("oid", "oid"), ("definition", "text")),
    "x_indexes": (("oid", "oid"), ("definition", "text")),
    "x_roles": (("oid", "oid"), ("name", "text"), ("is_super", "bool"), ("can_login", "bool")),
    "x_names": (("oid", "oid"), ("namespace", "text"), ("bare", "text"), ("full_name", "text")),
}
_OF_FUNCTIONS: Final = ("pg_namespace", "pg_class", "pg_attribute", "pg_type", "pg_roles")
"""Relations that functions read."""
_OF_VIEWS: Final = ("pg_constraint", "pg_index", "pg_attrdef")
_RESULTS: Final[Mapping[str, Type]] = {
    "BOOLEAN": Type(Kind.BOOLEAN),
    "TINYINT": Type(Kind.SMALLINT),
    "SMALLINT": Type(Kind.SMALLINT),
    "USMALLINT": Type(Kind.SMALLINT),
    "INTEGER": Type(Kind.INTEGER),
    "BIGINT": Type(Kind.BIGINT),
    "HUGEINT": Type(Kind.BIGINT),
    "FLOAT": Type(Kind.REAL),
    "DOUBLE": Type(Kind.DOUBLE),
    "BLOB": Type(Kind.BYTES),
    "UINTEGER": catalog_type(CatalogKind.OID),
    "UBIGINT": catalog_type(CatalogKind.XID),
    "USMALLINT[]": catalog_type(CatalogKind.INT2_VECTOR),
    "UBIGINT[]": catalog_type(CatalogKind.OID_VECTOR),
    "BOOLEAN[]": catalog_type(CatalogKind.BOOL_ARRAY),
    "SMALLINT[]": catalog_type(CatalogKind.INT2_ARRAY),
    "INTEGER[]": catalog_type(CatalogKind.INT4_ARRAY),
    "BIGINT[]": catalog_type(CatalogKind.INT8_ARRAY),
    "FLOAT[]": catalog_type(CatalogKind.FLOAT4_ARRAY),
    "DOUBLE[]": catalog_type(CatalogKind.FLOAT8_ARRAY),
    "UINTEGER[]": catalog_type(CatalogKind.OID_ARRAY),
    "VARCHAR[]": catalog_type(CatalogKind.TEXT_ARRAY),
    "JSON": Type(Kind.JSON),
}
"""Types of results by those of DuckDB; all others are shown as text."""
_TEXT: Final = Type(Kind.TEXT)


class Database:
    """The catalog of one kind of caller, for threads. `users` counts the queries that are under way."""

    def __init__(self) -> None:
        import duckdb
        import pyarrow as pa

        self._errors = duckdb
        self._arrow = pa
        self.users = 0
        self._objects = of_server()
        self._lock = threading.Lock()
        self._made: set[tuple[str, str]] = set()
        self._tables: dict[str, tuple[str, Sequence[tuple[str, str]]]] = {}
        """The tables with the names of their rows and their columns."""
        self._connection = duckdb.connect(
            ":memory:",
            config=configuration(MEMORY_BYTES)
            | {
                "default_null_order": "NULLS_LAST_ON_ASC_FIRST_ON_DESC",
                "integer_division": "true",
                "lock_configuration": "true",
                "python_enable_replacements": "false",
            },
        )
        for name, columns in _HELPERS.items():
            self._table(name, name, columns)
        for name in _OF_FUNCTIONS[:-1]:
            self._relation("pg_catalog", name)
        self._connection.execute("SET VARIABLE user = ''")
        self._relation("pg_catalog", "pg_roles")
        for macro in macros():
            self._connection.execute(macro)

    def regclass(self, text: str, path: str) -> int | None:
        """The OID of a relation by its name in SQL, `ns.name` or `name`; None if there is none."""
        parts, quotes = [""], False
        for each in text:
            if each == '"':
                quotes = not quotes
            elif each == "." and not quotes:
                parts.append("")
            else:
                parts[-1] += each if quotes else each.lower()
        if len(parts) > 2:
            parts = parts[-2:]
        namespaces = (parts[0],) if len(parts) == 2 else ("pg_catalog", path)
        for namespace in namespaces:
            found = self._objects.relations.get((namespace, parts[-1]))
            if found is not None:
                return found
        return None

    def _relation(self, namespace: str, name: str) -> None:
        """Make a relation, if it is not there yet."""
        if (namespace, name) in self._made:
            return
        view = VIEWS.get((namespace, name))
        target = table_of(namespace, name)
        if view is None:
            self._table(target, name, columns_of(namespace, name))
            self._made.add((namespace, name))
            return
        for needed in (*_OF_FUNCTIONS, *_OF_VIEWS):
            if f"r_{needed} " in f"{view.source} ":
                self._relation("pg_catalog", needed)
        self._connection.execute(f"CREATE VIEW {target} AS {definition(namespace, name, view)}")
        self._made.add((namespace, name))

    def _table(self, table: str, name: str, columns: Sequence[tuple[str, str]]) -> None:
        listed = ", ".join(f'"{column}" {DUCK_TYPES[kind]}' for column, kind in columns)
        self._connection.execute(f"CREATE TABLE {table} ({listed})")
        self._tables[table] = name, columns
        self._insert(self._connection, table, of_server())
        if self._objects is not of_server():
            self._insert(self._connection, table, self._objects)

    def _insert(self, connection: Any, table: str, objects: Objects) -> None:
        name, columns = self._tables[table]
        rows = objects.rows.get(name, ())
        if not rows:
            return
        arrow = self._arrow
        fields = [arrow.field(column, self._arrow_type(kind)) for column, kind in columns]
        given = zip(zip(*rows, strict=True), fields, strict=True)
        arrays = [arrow.array(list(values), field.type) for values, field in given]
        connection.register("given", arrow.Table.from_arrays(arrays, schema=arrow.schema(fields)))
        connection.execute(f"INSERT INTO {table} SELECT * FROM given")
        connection.unregister("given")

    def fill(self, objects: Objects) -> None:
        """Put other objects in the place of those of the caller. Only while no query is under way."""
        cursor = self._connection.cursor()
        try:
            cursor.execute("BEGIN")
            for table, (name, _) in self._tables.items():
                if self._objects is not of_server() and name in self._objects.rows:
                    cursor.execute(f"DELETE FROM {table} WHERE rowid >= {len(of_server().rows.get(name, ()))}")
                self._insert(cursor, table, objects)
            cursor.execute("COMMIT")
            self._objects = objects
        finally:
            cursor.close()

    def _arrow_type(self, kind: str) -> Any:
        arrow = self._arrow
        if kind == "int2vector":
            return arrow.list_(arrow.uint16())
        if kind == "oidvector":
            return arrow.list_(arrow.uint64())
        if kind.endswith("[]"):
            return arrow.list_(self._arrow_type(kind[:-2]))
        return {
            "bool": arrow.bool_(), "bytea": arrow.binary(), "float4": arrow.float32(), "float8": arrow.float64(),
            "int2": arrow.int16(), "int4": arrow.int32(), "int8": arrow.int64(), "oid": arrow.uint32(),
            "timestamptz": arrow.timestamp("us"), "xid": arrow.uint64(),
        }.get(kind, arrow.string())  # fmt: skip

    # --------------------------------------------------------------------------------------------- queries

    def read(self, piece: Piece) -> Node:
        """Parse a query. Raises PgError."""
        asked = "SELECT json_serialize_sql($1::VARCHAR, skip_null := true, skip_default := true, skip_empty := true)"
        cursor = self._connection.cursor()
        try:
            tree: Node = json.loads(_only(cursor.execute(asked, [piece.text])))
        finally:
            cursor.close()
        if tree.get("error"):
            at = str(tree.get("position", ""))
            position = piece.start + int(at) + 1 if at.isdecimal() else 0
            code = "42601" if tree.get("error_type") == "parser" else "0A000"
            raise PgError(code, str(tree.get("error_message", "syntax error"))[:300], position=position)
        return tree

    def text_of(self, query: Query) -> str:
        """The text of a query that was checked; its relations are there then."""
        with self._lock:
            for namespace, name in sorted(query.relations):
                self._relation(namespace, name)
        cursor = self._connection.cursor()
        try:
            return _only(cursor.execute("SELECT json_deserialize_sql($1::JSON)", [json.dumps(query.tree)]))
        finally:
            cursor.close()


class Run:
    """One query in a thread, which `stop` ends from another one."""

    def __init__(self, database: Database, text: str, variables: Mapping[str, Any]) -> None:
        self._database = database
        self._text = text
        self._variables = variables
        self._lock = threading.Lock()
        self._cursor: Any = None
        self._is_stopped = False

    def stop(self) -> None:
        """End the query, whose call raises StoppedError. To be repeated until it has."""
        with self._lock:
            self._is_stopped = True
            if self._cursor is not None:
                self._cursor.interrupt()

    def columns(self) -> tuple[ResultColumn, ...]:
        """The columns of the query, which has no parameters left."""
        return self._guarded(self._described)

    def rows(self, values: Mapping[str, Any]) -> tuple[tuple[ResultColumn, ...], list[Sequence[Any]]]:
        """The columns and the rows of the query."""
        return self._guarded(lambda cursor: self._fetched(cursor, values))

    def _described(self, cursor: Any) -> tuple[ResultColumn, ...]:
        found = cursor.sql(self._text)
        return tuple(
            ResultColumn(name, type_of(str(kind))) for name, kind in zip(found.columns, found.types, strict=True)
        )

    def _fetched(self, cursor: Any, values: Mapping[str, Any]) -> tuple[tuple[ResultColumn, ...], list[Sequence[Any]]]:
        cursor.execute(self._text, dict(values) or None)
        columns = tuple(ResultColumn(each[0], type_of(str(each[1]))) for each in cursor.description)
        texts = [place for place, each in enumerate(columns) if each.type == _TEXT]
        rows: list[Sequence[Any]] = []
        while some := cursor.fetchmany(_BATCH):
            if self._is_stopped:
                raise StoppedError
            rows.extend(_row(row, texts) for row in some)
            if len(rows) > MAX_ROWS:
                raise PgError("54000", f"a query of the catalog has more than {MAX_ROWS} rows")
        return columns, rows

    def _guarded(self, work: Callable[[Any], T]) -> T:
        errors = self._database._errors
        with self._lock:
            if self._is_stopped:
                raise StoppedError
            self._cursor = cursor = self._database._connection.cursor()
        try:
            for name, value in self._variables.items():
                cursor.execute(f"SET VARIABLE {name} = $1", [value])
            return work(cursor)
        except errors.Error as error:
            if isinstance(error, errors.InterruptException) or self._is_stopped:
                raise StoppedError from None
            raise _refused(error, errors) from None
        finally:
            with self._lock:
                self._cursor = None
            cursor.close()


def _only(cursor: Any) -> str:
    """The value of a result that has one."""
    return str(cursor.fetchone()[0])


def type_of(duck: str) -> Type:
    """The type of a column of a result, by that of DuckDB."""
    if duck.startswith("DECIMAL("):
        return Type(Kind.DECIMAL)
    return _RESULTS.get(duck, _TEXT)


def _row(row: Sequence[Any], texts: Sequence[int]) -> Sequence[Any]:
    """A row with texts where the type is shown as text."""
    if all(row[place] is None or row[place].__class__ is str for place in texts):
        return row
    made = list(row)
    for place in texts:
        value = made[place]
        if value is not None and value.__class__ is not str:
            made[place] = json.dumps(value, default=str) if isinstance(value, dict | list) else str(value)
    return made


def _refused(error: Exception, errors: Any) -> PgError:
    text = str(error).partition("\n")[0][:300]
    if isinstance(error, errors.OutOfMemoryException):
        return PgError("53200", "the query of the catalog needs more memory than it may have")
    if isinstance(error, errors.ConversionException):
        return PgError("22P02", text)
    if isinstance(error, errors.CatalogException) and text.startswith("Catalog Error: Table"):
        return PgError("42P01", "a relation in the query does not exist")
    if isinstance(error, errors.BinderException | errors.CatalogException):
        return PgError("42703" if "column" in text.lower() else "42804", text)
    return PgError("0A000", text)
