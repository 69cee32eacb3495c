"""Spark's types as Arrow's, in the way of the Spark that runs."""

from typing import Any, cast

import pyarrow as pa
from pyspark.sql.pandas import types as spark
from pyspark.sql.types import StructType


def arrow_schema_of(struct: StructType) -> pa.Schema:
    """The schema that Spark expects of the batches of a frame. ValueError for a type that Arrow lacks."""
    convert = cast("Any", spark.to_arrow_schema)
    try:
        try:
            return convert(struct, timezone="UTC")
        except TypeError:  # Spark 4.1: no such parameter, and UTC always
            return convert(struct)
    except Exception as error:
        raise ValueError(f"a column of a type that can't be read: {error}") from None


def struct_type_of(schema: pa.Schema) -> StructType:
    """The columns of a frame with batches of this schema."""
    return cast("StructType", cast("Any", spark.from_arrow_schema)(schema))
