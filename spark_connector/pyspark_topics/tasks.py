"""The work of one Spark task: a range, and the schema to read it as."""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from pyspark_topics.columns import Columns, frame_schema
from pyspark_topics.fetch import Fetcher, Parts, SeqRange
from pyspark_topics.options import OptionError, ReadOptions
from pyspark_topics.spark_types import arrow_schema_of


@dataclass(frozen=True)
class Task(InputPartition):
    """One or more ranges, read one after the other."""

    ranges: tuple[SeqRange, ...]


def columns_of(options: ReadOptions, schema: StructType) -> Columns:
    """The columns of a frame that has this schema, its own or one that it was given. Raises OptionError."""
    try:
        wanted = arrow_schema_of(schema)
    except ValueError as error:
        raise OptionError(f"schema: {error}") from None
    if options.columns.data_schema is not None and not wanted.equals(frame_schema(options.columns)):
        raise OptionError("option dataSchema and a schema given by .schema() exclude each other")
    return Columns(wanted)


def read_ranges(
    ranges: tuple[SeqRange, ...], options: ReadOptions, columns: Columns, parts: Parts
) -> Iterator[pa.RecordBatch]:
    """The rows of the ranges. Holds a few batches at a time, however long the ranges are.

    Raises DataLossError, and TopicsError, which names topic and range: NotFoundError if the topic was deleted or
    recreated since the ranges were planned.
    """
    with Fetcher(options.address) as fetcher:
        for each in ranges:
            yield from columns.batches(
                each,
                fetcher.read(each, parts),
                fail_on_data_loss=options.fail_on_data_loss,
                gaps=options.columns.gaps,
            )
