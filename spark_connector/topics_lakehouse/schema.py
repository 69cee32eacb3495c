"""Columns of the tables, and their evolution to the declared schema."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import _ConvertToIcebergWithoutIDs, schema_to_pyarrow, visit_pyarrow
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import Table
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    StructType,
)

_TS: Final = pa.timestamp("us", "UTC")

ENVELOPE: Final = pa.schema(
    [
        pa.field("partition", pa.int32()),
        pa.field("seq", pa.int64()),
        pa.field("ts", _TS),
        pa.field("node", pa.string()),
        pa.field("tag", pa.string()),
        pa.field("meta", pa.string()),
        pa.field("kind", pa.string()),  # json, binary
        pa.field("data", pa.binary()),
    ]
)
"""Columns of every topic's table, in front of the declared ones."""

ERRORS: Final = pa.schema(
    [
        pa.field("partition", pa.int32()),
        pa.field("seq", pa.int64()),
        pa.field("ts", _TS),
        pa.field("tag", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("data", pa.binary()),
    ]
)
"""Columns of `<table>_errors`: one row for each record that does not fit the declared columns."""

GAPS: Final = pa.schema(
    [
        pa.field("partition", pa.int32()),
        pa.field("gap_from", pa.int64()),
        pa.field("gap_to", pa.int64()),
        pa.field("reason", pa.string()),  # docs/contract.md, 5.3
        pa.field("missed_estimate", pa.int64()),
        pa.field("found_at", _TS),
    ]
)
"""Columns of `<table>_gaps`: one row for each range that retention took before it was read."""


class SchemaError(Exception):
    """A table that can't hold the records of its topic; the text names the table and the column."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """A declared column, or a field of one, whose type the table's can't take. The table's type stays in force."""

    column: str
    declared: str
    kept: str

    def __str__(self) -> str:
        return f"column {self.column} is declared as {self.declared} but stays {self.kept}, which can't become that"


def iceberg_schema(columns: pa.Schema) -> Schema:
    """An Iceberg schema with fresh field ids for a new table."""
    return assign_fresh_schema_ids(_to_iceberg(columns))


def check_declared(columns: pa.Schema) -> None:
    """Raises ValueError for a declared column that has the name of one that every table has."""
    taken = {name.lower() for name in ENVELOPE.names}
    for name in columns.names:
        if name.lower() in taken:
            raise ValueError(f"column {name}: every table has one of that name")


def evolve(table: Table, declared: pa.Schema) -> tuple[Table, list[Conflict]]:
    """Evolve the table to the declared columns: add new ones and widen old ones, also in structs, arrays and maps.
    Returns the conflicts that prevent this.

    Columns and fields that are no longer declared, or were added by others, stay. Raises SchemaError if the table can't
    take records, and the errors of a commit.
    """
    for last in (False, False, True):
        check_envelope(table)
        found = differences(table.schema(), declared)
        if not found.additions and not found.widenings:
            break
        try:
            with table.update_schema() as update:
                for path, kind in found.additions:
                    update.add_column(path, kind)
                for path, kind in found.widenings:
                    update.update_column(path, kind)
        except CommitFailedException:  # someone else's change came in between
            if last:
                raise
        table.refresh()
    return table, found.conflicts


def check_envelope(table: Table) -> None:
    """Raises SchemaError where the table can't take records at all."""
    names = {each.name: each for each in table.schema().fields}
    for each in ENVELOPE:
        there = names.get(each.name)
        if there is None or there.field_type != _type(each):
            found = "is missing" if there is None else f"is of type {there.field_type}, not {_type(each)}"
            raise SchemaError(f"table {_name(table)}: column {each.name} {found}: someone changed the table")
    for there in names.values():
        if there.required and there.name not in ENVELOPE.names:
            raise SchemaError(f"table {_name(table)}: column {there.name} is required, but no topic has it")
    if not table.spec().is_unpartitioned():
        raise SchemaError(f"table {_name(table)}: it has been given partitions, which the pipeline does not write")


Path = tuple[str, ...]
"""Path of a field: the names of columns and fields down to it, `element` and `value` for those of arrays and maps."""


@dataclass(slots=True)
class Differences:
    """Return the changes that give a table the declared columns."""

    additions: list[tuple[Path, IcebergType]] = field(default_factory=list)
    widenings: list[tuple[Path, IcebergType]] = field(default_factory=list)
    conflicts: list[Conflict] = field(default_factory=list)  # impossible changes


def differences(schema: Schema, declared: pa.Schema) -> Differences:
    """Declared columns, and fields of them, to add, those to widen, and those that can't be had."""
    found = Differences()
    _compare_fields(schema.as_struct(), _to_iceberg(declared).as_struct(), (), found)
    return found


def _compare_fields(old: StructType, new: StructType, path: Path, found: Differences) -> None:
    there = {each.name: each for each in old.fields}
    spelled = {each.name.lower(): each.name for each in old.fields}
    for each in new.fields:
        at = (*path, each.name)
        if each.name in there:
            _compare(there[each.name].field_type, each.field_type, at, found)
        elif each.name.lower() in spelled:
            other = spelled[each.name.lower()]
            kept = f"{'.'.join((*path, other))} {_type_text(there[other].field_type)}"
            found.conflicts.append(Conflict(".".join(at), _type_text(each.field_type), kept))
        else:
            found.additions.append((at, each.field_type))


def _compare(old: IcebergType, new: IcebergType, path: Path, found: Differences) -> None:
    if isinstance(old, StructType) and isinstance(new, StructType):
        _compare_fields(old, new, path, found)
    elif isinstance(old, ListType) and isinstance(new, ListType):
        _compare(old.element_type, new.element_type, (*path, "element"), found)
    elif isinstance(old, MapType) and isinstance(new, MapType) and old.key_type == new.key_type:
        _compare(old.value_type, new.value_type, (*path, "value"), found)
    elif _same(old, new) or _wider(new, old):
        return
    elif _wider(old, new):
        found.widenings.append((path, new))
    else:
        found.conflicts.append(Conflict(".".join(path), _type_text(new), _type_text(old)))


def _type_text(kind: IcebergType) -> str:
    """The type without field ids."""
    return re.sub(r"-?\d+: ", "", str(kind))


def _wider(narrow: IcebergType, wide: IcebergType) -> bool:
    """Return True if Iceberg can promote a column from the first type to the second."""
    if isinstance(narrow, DecimalType) and isinstance(wide, DecimalType):
        return narrow.scale == wide.scale and narrow.precision < wide.precision
    return (type(narrow), type(wide)) in ((IntegerType, LongType), (FloatType, DoubleType))


def _same(one: IcebergType, other: IcebergType) -> bool:
    """Return True if two types are equal except for their field ids."""
    return bool(_plain(one) == _plain(other))


def _plain(kind: IcebergType) -> pa.DataType:
    return _small(schema_to_pyarrow(kind, include_field_ids=False))


def typed_columns(table: Table, declared: pa.Schema) -> pa.Schema:
    """The declared columns with the table's types: the target of parsing."""
    there = {each.name: each for each in table.schema().fields}
    return pa.schema([pa.field(name, _plain(there[name].field_type)) for name in declared.names if name in there])


def file_schema(schema: Schema, names: Iterable[str]) -> pa.Schema:
    """The Arrow schema, with field ids, of a Parquet file that holds these of the table's columns."""
    full = schema_to_pyarrow(schema)
    wanted = set(names)
    return pa.schema([_small_field(each) for each in full if each.name in wanted])


def _small_field(given: pa.Field) -> pa.Field:
    """The field with offsets of 32 bits, as the server's batches have them; its ids stay."""
    return pa.field(given.name, _small(given.type), given.nullable, given.metadata)


def _small(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_large_list(kind) or pa.types.is_list(kind):
        return pa.list_(_small_field(kind.value_field))
    if pa.types.is_map(kind):
        return pa.map_(_small_field(kind.key_field), _small_field(kind.item_field))
    if pa.types.is_struct(kind):
        return pa.struct([_small_field(kind.field(i)) for i in range(kind.num_fields)])
    return kind


def _type(given: pa.Field) -> IcebergType:
    return _to_iceberg(pa.schema([given])).fields[0].field_type


def _to_iceberg(columns: pa.Schema) -> Schema:
    found = visit_pyarrow(columns, _ConvertToIcebergWithoutIDs())
    assert isinstance(found, Schema)
    return found


def _name(table: Table) -> str:
    return ".".join(table.name())
