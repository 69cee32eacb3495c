"""The batch reader as Spark drives it, without a JVM."""

import pickle
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import Filter
from pyspark.sql.types import StructType

from pyspark_topics import DefaultSource
from pyspark_topics.ddl import arrow_schema
from pyspark_topics.spark_types import arrow_schema_of, struct_type_of
from pyspark_topics.tasks import Task


class Read:
    """A planned read. `tasks` are what Spark would run; what they need is pickled, as Spark does."""

    def __init__(
        self, options: Mapping[str, str], *, schema: str | None = None, filters: Sequence[Filter] = ()
    ) -> None:
        source = DefaultSource(dict(options))
        struct: StructType = source.schema() if schema is None else struct_type_of(arrow_schema(schema))
        self.schema = arrow_schema_of(struct)
        reader = source.reader(struct)
        if filters:  # they narrow the read only with option pushFilters
            assert list(reader.pushFilters(list(filters))) == list(filters)  # Spark applies them again
        self.pickled = pickle.dumps(reader)  # Spark does so before it asks for the partitions
        planned = reader.partitions()
        self.tasks: list[Task] = [task for task in planned if isinstance(task, Task)]
        assert len(self.tasks) == len(planned) > 0

    def batches(self, task: Task) -> Iterator[pa.RecordBatch]:
        """The batches of one task, as a reader of its own reads them."""
        reader = pickle.loads(self.pickled)
        for batch in reader.read(pickle.loads(pickle.dumps(task))):
            assert batch.schema.equals(self.schema)
            yield batch

    def run(self, task: Task) -> list[dict[str, Any]]:
        """The rows of one task."""
        return [row for batch in self.batches(task) for row in batch.to_pylist()]

    def rows(self) -> list[dict[str, Any]]:
        """The rows of all tasks, in order."""
        return [row for task in self.tasks for row in self.run(task)]

    def column(self, name: str = "seq") -> list[Any]:
        """One column of all rows."""
        return [row[name] for row in self.rows()]
