"""The batch read."""

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from pyspark_topics.fetch import Parts
from pyspark_topics.filters import Limits, limits
from pyspark_topics.options import ReadOptions
from pyspark_topics.plan import split
from pyspark_topics.ranges import wanted_extents
from pyspark_topics.tasks import Task, columns_of, read_ranges
from topics_client.connection import Connection


class BatchReader(DataSourceReader):
    """Plans ranges on the driver, reads them in the tasks."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        """Raises OptionError. Does not yet call the server."""
        self._options = ReadOptions.parse(options)
        self._columns = columns_of(self._options, schema)
        self._limits = Limits()

    @property
    def pushFilters(self) -> "_Push":  # noqa: N802  # Spark's name
        """Takes the filters of the query, if option pushFilters is on: see _Push."""
        return _Push(self)

    def partitions(self) -> list[InputPartition]:  # Spark takes nothing but a list
        """The tasks, for the current content of the server. Raises TopicsError, OffsetError."""
        if self._limits.void or self._asked is None:
            return [Task(())]
        with Connection(self._options.address) as connection:
            found = wanted_extents(connection, self._options, self._limits)
        tasks = split(
            found, min_tasks=self._options.min_partitions, max_records=self._options.max_records_per_partition
        )
        return [Task(ranges) for ranges in tasks] or [Task(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        assert isinstance(partition, Task)
        return read_ranges(partition.ranges, self._options, self._columns, self._asked) if self._asked else iter(())

    @property
    def _asked(self) -> Parts | None:
        """The request options; None if there is nothing to read. Spark pickles the reader for the tasks before it asks
        for the partitions, so results found there are not kept.
        """
        return self._limits.narrow(self._columns.parts(self._options))


class _Push:
    """`reader.pushFilters`, for a Spark that may push filters or not (spark.sql.python.filterPushdown.enabled).

    A reader that overrides pushFilters makes every read fail if pushing is switched off, which is the default:
    Spark compares the function behind the method with that of DataSourceReader. So this says it were that one.

    If it is on, Spark (seen with 4.1, 4.2 and 4.3) keeps the plan with the filters of one query for the whole data
    frame, and uses it for later queries without filters and for the other side of a union: of 10 rows a count() after
    where("i > 5") returned 4. Hence the option, which is off by default.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, reader: BatchReader) -> None:
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        """All filters have to be applied again: the read may return more rows than they select."""
        if self._reader._options.push_filters:
            self._reader._limits = limits(filters)
        return filters
