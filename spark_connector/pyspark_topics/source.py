"""The data source `topics`.

Nothing but pyspark is imported until it is used: Spark loads the sources of all packages named pyspark_* when it looks
for any of them, and one that fails there, for want of a package, would take all others with it.
"""

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )


class DefaultSource(DataSource):
    """`spark.read.format("topics")` and its like for streams and writes; docs/spark.md lists the options.

    Spark looks for this class name in packages named pyspark_*.
    """

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "topics"

    def schema(self) -> StructType:
        """The columns of a frame that was given none. Raises OptionError, also for an unknown option."""
        with _extra():
            from pyspark_topics.columns import frame_schema
            from pyspark_topics.options import READ_OPTIONS, STREAM_OPTIONS, ColumnOptions, check_names
            from pyspark_topics.spark_types import struct_type_of

        check_names(self.options, (*READ_OPTIONS, *STREAM_OPTIONS))
        return struct_type_of(frame_schema(ColumnOptions.parse(self.options)))

    def reader(self, schema: StructType) -> "DataSourceReader":
        """A batch read."""
        with _extra():
            from pyspark_topics.batch import BatchReader

        return BatchReader(self.options, schema)

    def streamReader(self, schema: StructType) -> "DataSourceStreamReader":  # noqa: N802  # Spark's name
        """A streaming read."""
        with _extra():
            from pyspark_topics.options import settled
            from pyspark_topics.stream import StreamReader

        return StreamReader(settled(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> "DataSourceWriter":
        """A batch write."""
        with _extra():
            from pyspark_topics.write import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "DataSourceStreamWriter":  # noqa: N802  # Spark's name
        """A streaming write."""
        with _extra():
            from pyspark_topics.write import stream_writer

        return stream_writer(self.options, schema, overwrite)


def _extra() -> AbstractContextManager[None]:
    from topics_client.installation import needs

    return needs("spark", "the format topics needs {name}: {install}, with the Python of each worker")
