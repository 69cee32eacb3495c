"""A pinned snapshot of a table for DuckDB: with its own Parquet reader if that gives the same result as Iceberg."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
from pyiceberg.types import DecimalType, DoubleType, FloatType, IntegerType, LongType, NestedField

from topics_lakehouse.rewrite import LiveFile, live_files, read_file
from topics_lakehouse.schema import file_schema

_GLOB: Final = frozenset("*?[")
_WIDENED: Final = (IntegerType, LongType, FloatType, DoubleType, DecimalType)


class Scans:
    """Makes SELECTs of snapshots. Caches the immutable: manifests, and the layout of files.

    Whatever has to be handed to DuckDB as an object is registered with the connection until `release`.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._names = count()
        self._registered: list[str] = []
        self._manifests: dict[str, dict[str, list[LiveFile]]] = defaultdict(dict)  # by table
        self._layouts: dict[tuple[int, str], _Layout] = {}  # by schema and file

    def register(self, source: Any) -> str:
        """A SELECT of an Arrow table or dataset."""
        name = f"__lakehouse_{next(self._names)}"
        self._connection.register(name, source)
        self._registered.append(name)
        return f"SELECT * FROM {name}"

    def release(self) -> None:
        """Unregister the tables."""
        while self._registered:
            self._connection.unregister(self._registered.pop())

    def selects(self, table: Table) -> Iterator[str]:
        """SELECTs, for a union by name, that together are the table's current snapshot; the first has all columns."""
        schema = table.schema()
        yield self.register(file_schema(schema, _names(schema)).empty_table())
        known = self._manifests[str(table.metadata.table_uuid)]
        files = live_files(table, known=known)
        for old in known.keys() - {each.manifest_path for each in _manifests(table)}:
            del known[old]
        groups: dict[tuple[_Layout, bool], list[LiveFile]] = defaultdict(list)
        for file in files:
            groups[self._layout(table, schema, file), _local(file.path) is not None].append(file)
        for (layout, local), group in groups.items():
            if layout is _OTHER or not (local or layout.same):
                yield self.register(_read(table, group))
            elif not local:
                yield self.register(_dataset(table, group))
            else:
                paths = ", ".join(_text(_local(file.path) or "") for file in group)
                yield f"SELECT {layout.columns} FROM read_parquet([{paths}], hive_partitioning = false)"

    def _layout(self, table: Table, schema: Schema, file: LiveFile) -> "_Layout":
        if file.deletes:
            return _OTHER
        key = (schema.schema_id, file.path)
        found = self._layouts.get(key)
        if found is None:
            found = self._layouts[key] = _compare(table, schema, file)
        return found


@dataclass(frozen=True, slots=True)
class _Layout:
    """The layout of files; files of one layout are read by one SELECT."""

    columns: str  # the table's columns that they have, by field id, under the table's names
    types: str  # of the columns in the files
    same: bool  # whether they have all of the table's columns, in its types, and no others


_OTHER: Final = _Layout("", "", False)  # for PyIceberg alone


def _names(schema: Schema) -> list[str]:
    return [field.name for field in schema.fields]


def _manifests(table: Table) -> Sequence[Any]:
    snapshot = table.current_snapshot()
    return snapshot.manifests(table.io) if snapshot is not None else []


def _compare(table: Table, schema: Schema, file: LiveFile) -> _Layout:
    with table.io.new_input(file.path).open() as stream:
        arrow = pq.read_schema(stream)
    try:
        there = pyarrow_to_schema(arrow)
    except ValueError:  # no field ids
        return _OTHER
    fields = {field.field_id: field for field in there.fields}
    pairs = [(fields[field.field_id], field) for field in schema.fields if field.field_id in fields]
    if not pairs or any(has.field_type != wants.field_type and not _widened(has, wants) for has, wants in pairs):
        return _OTHER
    columns = ", ".join(f"{quoted(has.name)} AS {quoted(wants.name)}" for has, wants in pairs)
    types = ", ".join(str(has.field_type) for has, _ in pairs)
    has_all = file_schema(there, _names(there))
    return _Layout(columns, types, has_all.equals(file_schema(schema, _names(schema)), check_metadata=True))


def _widened(has: NestedField, wants: NestedField) -> bool:
    """Return True if a union converts both types to the wider one."""
    return isinstance(has.field_type, _WIDENED) and isinstance(wants.field_type, _WIDENED)


def _read(table: Table, files: Sequence[LiveFile]) -> pa.Table:
    """The rows, in memory."""
    schema = file_schema(table.schema(), _names(table.schema()))
    batches = [batch for file in files for batch in read_file(table, file)]
    return pa.Table.from_batches(batches).cast(schema) if batches else schema.empty_table()


def _dataset(table: Table, files: Sequence[LiveFile]) -> ds.Dataset:
    """Files in an object store, which DuckDB has PyArrow read: with its columns and filters alone."""
    io = table.io if isinstance(table.io, PyArrowFileIO) else PyArrowFileIO(table.io.properties)
    locations = [io.parse_location(file.path, io.properties) for file in files]
    scheme, netloc, _ = locations[0]
    schema = file_schema(table.schema(), _names(table.schema())).remove_metadata()
    paths = [path for _, _, path in locations]
    return ds.dataset(paths, schema=schema, format="parquet", filesystem=io.fs_by_scheme(scheme, netloc))


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
