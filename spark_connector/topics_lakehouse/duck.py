"""A pinned snapshot of a table for DuckDB: its own Parquet reader wherever that reads what Iceberg would."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, Final
from urllib.parse import urlparse

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import PyArrowFileIO, pyarrow_to_schema
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from topics_lakehouse.rewrite import LiveFile, live_files, read_file
from topics_lakehouse.schema import file_schema

_SAME: Final = "same"  # has the table's columns, all of them
_OLDER: Final = "older"  # has field ids, and flat columns that the table's can be made of
_OTHER: Final = "other"  # for PyIceberg alone
_GLOB: Final = frozenset("*?[")
_PLAIN: Final[dict[type[IcebergType], str]] = {
    BooleanType: "BOOLEAN",
    IntegerType: "INTEGER",
    LongType: "BIGINT",
    FloatType: "FLOAT",
    DoubleType: "DOUBLE",
    DateType: "DATE",
    TimestampType: "TIMESTAMP",
    TimestamptzType: "TIMESTAMPTZ",
    StringType: "VARCHAR",
    BinaryType: "BLOB",
}


class Scans:
    """Makes SELECTs of snapshots. Remembers what never changes: manifests, and how files are laid out.

    Whatever has to be handed to DuckDB as an object is registered with the connection until `release`.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._names = count()
        self._registered: list[str] = []
        self._manifests: dict[str, dict[str, list[LiveFile]]] = defaultdict(dict)  # by table
        self._layouts: dict[tuple[int, str], str] = {}  # by schema and file

    def register(self, source: Any) -> str:
        """A SELECT of an Arrow table or dataset."""
        name = f"__lakehouse_{next(self._names)}"
        self._connection.register(name, source)
        self._registered.append(name)
        return f"SELECT * FROM {name}"

    def release(self) -> None:
        """Let go of what was registered."""
        while self._registered:
            self._connection.unregister(self._registered.pop())

    def selects(self, table: Table) -> Iterator[str]:
        """SELECTs that together are the table's current snapshot, of all its columns; at least one."""
        schema = table.schema()
        yield self.register(file_schema(schema, schema.column_names).empty_table())
        known = self._manifests[str(table.metadata.table_uuid)]
        files = live_files(table, known=known)
        for old in known.keys() - {each.manifest_path for each in _manifests(table)}:
            del known[old]
        groups: dict[tuple[str, bool], list[LiveFile]] = defaultdict(list)
        for file in files:
            groups[self._layout(table, schema, file), _local(file.path) is not None].append(file)
        columns = ", ".join(quoted(name) for name in schema.column_names)
        for (layout, local), group in groups.items():
            if layout == _OTHER or (layout == _OLDER and not local):
                yield self.register(_read(table, group))
            elif not local:
                yield self.register(_dataset(table, group))
            else:
                paths = ", ".join(_text(_local(file.path) or "") for file in group)
                mapping = "" if layout == _SAME else f", schema = {_mapping(schema)}"
                yield f"SELECT {columns} FROM read_parquet([{paths}], hive_partitioning = false{mapping})"

    def _layout(self, table: Table, schema: Schema, file: LiveFile) -> str:
        if file.deletes:
            return _OTHER
        key = (schema.schema_id, file.path)
        found = self._layouts.get(key)
        if found is None:
            found = self._layouts[key] = _compare(table, schema, file)
        return found


def _manifests(table: Table) -> Sequence[Any]:
    snapshot = table.current_snapshot()
    return snapshot.manifests(table.io) if snapshot is not None else []


def _compare(table: Table, schema: Schema, file: LiveFile) -> str:
    with table.io.new_input(file.path).open() as stream:
        arrow = pq.read_schema(stream)
    try:
        there = pyarrow_to_schema(arrow)
    except ValueError:  # no field ids
        return _OTHER
    has = file_schema(there, there.column_names)
    wants = file_schema(schema, schema.column_names)
    if has.equals(wants, check_metadata=True):
        return _SAME
    flat = all(type(field.field_type) in _PLAIN or isinstance(field.field_type, DecimalType) for field in schema.fields)
    return _OLDER if flat and all(not pa.types.is_nested(field.type) for field in has) else _OTHER


def _mapping(schema: Schema) -> str:
    """How `read_parquet` finds columns by their field ids, under whatever name a file has them."""
    entries = (
        f"{field.field_id}: {{name: {_text(field.name)}, type: {_text(_type(field.field_type))}, default_value: NULL}}"
        for field in schema.fields
    )
    return f"MAP {{{', '.join(entries)}}}"


def _type(kind: IcebergType) -> str:
    if isinstance(kind, DecimalType):
        return f"DECIMAL({kind.precision},{kind.scale})"
    return _PLAIN[type(kind)]


def _read(table: Table, files: Sequence[LiveFile]) -> pa.Table:
    """The rows, in memory."""
    schema = file_schema(table.schema(), table.schema().column_names)
    batches = [batch for file in files for batch in read_file(table, file)]
    return pa.Table.from_batches(batches).cast(schema) if batches else schema.empty_table()


def _dataset(table: Table, files: Sequence[LiveFile]) -> ds.Dataset:
    """Files in an object store, which DuckDB has PyArrow read: with its columns and filters alone."""
    io = table.io if isinstance(table.io, PyArrowFileIO) else PyArrowFileIO(table.io.properties)
    places = [io.parse_location(file.path, io.properties) for file in files]
    scheme, place, _ = places[0]
    schema = file_schema(table.schema(), table.schema().column_names).remove_metadata()
    paths = [path for _, _, path in places]
    return ds.dataset(paths, schema=schema, format="parquet", filesystem=io.fs_by_scheme(scheme, place))


def _local(location: str) -> str | None:
    """The path of a file on this machine whose name DuckDB takes as it is; else None."""
    parts = urlparse(location)
    path = parts.path if parts.scheme == "file" else location if not parts.scheme else None
    if path is None or _GLOB & set(path):
        return None
    return path


def quoted(name: str) -> str:
    """A name as SQL has it."""
    return '"' + name.replace('"', '""') + '"'


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
