"""The declared columns of a topic, as a configuration writes them."""

from collections.abc import Mapping

import pyarrow as pa

from pyspark_topics.ddl import arrow_schema
from pyspark_topics.parsing import Parser

_SHORT = (pa.int8(), pa.int16())


def columns_of(declared: object) -> pa.Schema:
    """The columns that `id bigint, name string`, or a mapping of names to types, declares, in types that Iceberg has.

    Raises ValueError, also for what JSON can't be parsed into.
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
    folded = [name.lower() for name in columns.names]
    for name in columns.names:
        if folded.count(name.lower()) > 1:
            raise ValueError(f"column {name} is there twice, but for capitals")
    return columns


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
