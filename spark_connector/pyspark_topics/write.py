"""The writers, which Spark creates on the driver and runs in each task."""

import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from pyspark_topics.append import Appender, Counts
from pyspark_topics.fetch import Fetcher
from pyspark_topics.options import OptionError
from pyspark_topics.write_check import check
from pyspark_topics.write_chunks import Chunk, chunks
from pyspark_topics.write_columns import Layout, Target
from pyspark_topics.write_options import WriteOptions
from pyspark_topics.write_topics import Topics
from topics_client.connection import Connection
from topics_client.retry import Retry
from topics_proto.v1 import topics_service_pb2 as pb

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_QUERY: Final = "sql.streaming.queryId"  # local properties of the tasks of a streaming query, restored
_BATCH: Final = "streaming.sql.batchId"  # when the query resumes from its checkpoint


def batch_writer(options: Mapping[str, str], schema: "StructType", overwrite: bool) -> "BatchWriter":
    """The writer of `df.write.format("topics")`. Checks only options and columns.

    Raises OptionError and RowError.
    """
    if overwrite:
        raise OptionError('a topic can be appended to, not overwritten: mode("append")')
    parsed = WriteOptions.parse(options)
    return BatchWriter(parsed, Layout.parse(schema, parsed))


def stream_writer(options: Mapping[str, str], schema: "StructType", overwrite: bool) -> "StreamWriter":
    """The writer of `df.writeStream.format("topics")`; otherwise as batch_writer."""
    if overwrite:
        raise OptionError('a topic can be appended to, not overwritten: outputMode("append") or ("update")')
    parsed = WriteOptions.parse(options)
    return StreamWriter(parsed, Layout.parse(schema, parsed))


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """The result of one task."""

    records: int
    chunks: int
    deduped: int  # chunks that an earlier attempt had written


class BatchWriter(DataSourceArrowWriter):
    """One batch job. It is pickled into the tasks, so each attempt of each task has the same id of the write."""

    def __init__(self, options: WriteOptions, layout: Layout) -> None:
        self.task = TaskWrite(options, layout, f"b/{options.write_id or uuid.uuid4()}", options.write_id is not None)
        self._begun = time.time()

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
        """Append the rows of a task. Raises RowError and TopicsError."""
        context = _context()
        again = context.attemptNumber() > 0 and not self.task.any_time
        return self.task.run(iterator, "", context.partitionId(), self._begun if again else None)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make the topic of a frame without rows, which no task did: a reader may count on it. Raises TopicsError."""
        if not any(isinstance(each, Written) and each.records for each in messages):
            self.task.make_topic()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Keep the records that tasks have appended."""


class StreamWriter(DataSourceStreamArrowWriter):
    """One streaming query. A batch that Spark runs again, at once or after a restart, has the same id of the write."""

    def __init__(self, options: WriteOptions, layout: Layout) -> None:
        self.task = TaskWrite(options, layout, f"s/{options.write_id}" if options.write_id else "", True)

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> WriterCommitMessage:
        """Append the rows of a task. Raises RowError and TopicsError."""
        context = _context()
        query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
        if query is None or batch is None:
            raise RuntimeError("this task belongs to no streaming query")
        run = f"/{batch}" if self.task.write_id else f"s/{query}/{batch}"
        return self.task.run(iterator, run, context.partitionId(), None)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing is left to do: the records are stored and visible."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Keep the records appended by tasks: they are recognized when the batch runs again."""


@dataclass(frozen=True, slots=True)
class TaskWrite:
    """The parameters of the tasks of a write."""

    options: WriteOptions
    layout: Layout
    write_id: str  # of all tasks; empty: each run has its own
    any_time: bool  # whether the same write may come again after an outage

    def make_topic(self) -> None:
        """Have the one topic of all rows, if the options name one and allow it."""
        options = self.options
        if options.topic is not None and options.create:
            with Connection(options.address, retry=Retry(seconds=options.retry_seconds)) as connection:
                Topics(connection, options, any_time=self.any_time, begun=None).ready(Target(options.topic, 0))

    def run(self, batches: "Iterator[pa.RecordBatch]", run: str, task: int, begun: float | None) -> Written:
        """Write the rows of task number `task`, in the run `run` of several with the same write id. `begun` is as in
        Topics. Raises RowError and TopicsError."""
        options = self.options
        retry = Retry(seconds=options.retry_seconds)
        prefix = f"spark/{self.write_id}{run}/{task}"
        with Connection(options.address, retry=retry) as connection, Fetcher(options.address, retry=retry) as fetcher:
            topics = Topics(connection, options, any_time=self.any_time, begun=begun)

            def key(chunk: Chunk) -> str:
                return f"{prefix}/{chunk.number}"

            def ready(chunk: Chunk, seconds: float) -> None:
                topics.ready(chunk.target, seconds)

            def stored(chunk: Chunk, answer: pb.AppendResponse) -> None:
                check(fetcher, chunk, topics.ready(chunk.target).topic_id, answer)

            with Appender(connection, key=key, ready=ready, check=stored, in_flight=options.in_flight) as appender:
                for chunk in chunks(
                    batches,
                    self.layout,
                    max_records=options.records_per_append,
                    max_bytes=options.bytes_per_append,
                ):
                    appender.add(chunk)
                counts: Counts = appender.finish()
        return Written(counts.records, counts.chunks, counts.deduped)


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise RuntimeError("rows are written in the tasks of Spark alone")
    return context
