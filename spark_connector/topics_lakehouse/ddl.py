"""The declared columns of a topic, as a configuration writes them."""

from collections.abc import Iterable, Mapping

import pyarrow as pa

from pyspark_topics.ddl import arrow_schema
from pyspark_topics.parsing import Parser

_SHORT = (pa.int8(), pa.int16())


def columns_of(declared: object) -> pa.Schema:
    """The columns that `id bigint, name string`, or a mapping of names to types, declares, in types that Iceberg has.

    Raises ValueError, also for types that JSON can't be parsed into.
    """
    if isinstance(declared, Mapping):
        parts = ("`{}` {}".format(str(name).replace("`", "``"), kind) for name, kind in declared.items())
        declared = ", ".join(parts)
    if not isinstance(declared, str):
        raise ValueError(
            f"columns are declared as `NAME TYPE, …` or as a table of names and types, not as {declared!r}"
        )
    if not declared.strip():
        return pa.schema([])
    columns = pa.schema([pa.field(each.name, _known(each.type)) for each in arrow_schema(declared)])
    Parser(columns)
    _check_names(columns, "column")
    return columns


def _check_names(fields: Iterable[pa.Field], what: str) -> None:
    """Raises ValueError for two names, at any depth, that differ in capitals alone: one name to Spark and DuckDB."""
    seen: dict[str, str] = {}
    for each in fields:
        if each.name.lower() in seen:
            raise ValueError(f"{what} {seen[each.name.lower()]} is there twice, but for capitals")
        seen[each.name.lower()] = each.name
        _check_nested(each.type, f"{what} {each.name}: field")


def _check_nested(kind: pa.DataType, what: str) -> None:
    if pa.types.is_struct(kind):
        _check_names(kind, what)
    elif pa.types.is_list(kind):
        _check_nested(kind.value_type, what)
    elif pa.types.is_map(kind):
        _check_nested(kind.item_type, what)


def _known(kind: pa.DataType) -> pa.DataType:
    """The type with integers of the length that Iceberg has."""
    if kind in _SHORT:
        return pa.int32()
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_known(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field, kind.item_field.with_type(_known(kind.item_type)))
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(_known(each.type)) for each in kind])
    return kind
