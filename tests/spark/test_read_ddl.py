"""Schemas as text, without Spark's JVM."""

import pyarrow as pa
import pytest
from pyspark.sql import types as st

from pyspark_topics.ddl import arrow_schema
from pyspark_topics.spark_types import arrow_schema_of, struct_type_of

TEXT = """
    a string, b: BIGINT, `c d` decimal(12, 3) COMMENT 'it, is', e dec, f array<struct<x: int, y: array<string>>>,
    g map<string, double>, h timestamp, i timestamp_ntz, j date, k binary, l float, m boolean, n tinyint, o smallint,
    p struct<>
"""


def test_ddl_is_what_spark_makes_of_it() -> None:
    expected = (
        st.StructType()
        .add("a", st.StringType())
        .add("b", st.LongType())
        .add("c d", st.DecimalType(12, 3))
        .add("e", st.DecimalType(10, 0))
        .add("f", st.ArrayType(st.StructType().add("x", st.IntegerType()).add("y", st.ArrayType(st.StringType()))))
        .add("g", st.MapType(st.StringType(), st.DoubleType()))
        .add("h", st.TimestampType())
        .add("i", st.TimestampNTZType())
        .add("j", st.DateType())
        .add("k", st.BinaryType())
        .add("l", st.FloatType())
        .add("m", st.BooleanType())
        .add("n", st.ByteType())
        .add("o", st.ShortType())
        .add("p", st.StructType())
    )
    found = arrow_schema(TEXT)
    assert found.equals(arrow_schema_of(expected))
    assert struct_type_of(found) == expected
    assert arrow_schema(expected.json()).equals(found)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no columns"),
        ("a", "type"),
        ("a int,", "name of a column"),
        ("a int b int", "behind column a"),
        ("a varchar(10)", "varchar"),
        ("a interval", "interval"),
        ("a int NOT NULL", "NOT NULL"),
        ("a int, a string", "twice"),
        ("a array<int", "where > is due"),
        ("a map<int, int>", "keys"),
        ("a decimal(39, 1)", "decimal"),
        ("a decimal(x)", "number"),
        ("a int; drop table", "can't be read"),
        ('{"type": "struct"}', "StructType"),
        ("{", "StructType"),
    ],
)
def test_what_is_wrong_is_named(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        arrow_schema(text)


def test_a_type_that_arrow_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match="can't be read"):
        arrow_schema_of(st.StructType().add("a", st.CalendarIntervalType()))
    assert arrow_schema_of(st.StructType().add("a", st.LongType())) == pa.schema([("a", pa.int64())])
