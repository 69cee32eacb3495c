"""Topics as a stream: the part common to all versions of Spark."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.types import StructType

from pyspark_topics import stream_plan
from pyspark_topics.admission import Limits
from pyspark_topics.columns import DataLossError
from pyspark_topics.fetch import SeqRange
from pyspark_topics.heads import Heads, Lives
from pyspark_topics.inventory import find_topics
from pyspark_topics.offsets import resolve
from pyspark_topics.options import ReadOptions, number
from pyspark_topics.plan import Extent, split
from pyspark_topics.stream_offsets import Json, Position, Positions, from_json, to_json
from pyspark_topics.stream_task import StreamTask, read_task
from pyspark_topics.tasks import columns_of
from topics_client.connection import Connection
from topics_client.errors import NotFoundError, UnavailableError
from topics_client.retry import Retry

HOLD: Final = 0.1
"""Seconds that a question for new records may wait for some, so that Spark does not ask all the time."""

PATIENCE: Final = Retry(seconds=60.0)
"""Time that a stream waits for an unavailable server before it fails."""

_LOSS_ADVICE: Final = "with option failOnDataLoss=false the stream continues with the existing records"


class StreamBase(DataSourceStreamReader):
    """Plans the batches of a stream, in a separate process of the driver, and reads them in the workers, which get a
    copy. It connects with the first question. One thread.
    """

    def __init__(
        self, options: Mapping[str, str], schema: StructType, *, retry: Retry = PATIENCE, hold: float = HOLD
    ) -> None:
        """From the options and the columns of the data frame; `hold` is in seconds. Raises OptionError. Does not yet
        call the server."""
        self._given = (dict(options), schema)
        self.options = ReadOptions.parse(options, streaming=True)
        self.limits = Limits(number(options, "maxRecordsPerTrigger", 0), number(options, "maxBytesPerTrigger", 0))
        self.columns = columns_of(self.options, schema)
        self._retry = retry
        self._hold = hold
        self._connection: Connection | None = None
        self._looking: Heads | None = None
        self._initial: Json | None = None
        self._target: Lives | None = None
        self._turn = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._given

    # Calls from Spark.

    def initialOffset(self) -> Json:  # noqa: N802  # the name is Spark's
        """The start defined by the options, the same on each call. Raises NotFoundError for a missing named topic, and
        OffsetError."""
        if self._initial is None:
            self._initial = to_json(self._beginning())
        return self._initial

    def partitions(self, start: Json, end: Json) -> Sequence[StreamTask]:
        """The tasks that read the records between two offsets. Their rows depend on the offsets alone, the number of
        tasks also on the topics.
        """
        if start == end:
            return []
        at, to = from_json(start), from_json(end)
        if start == self._initial:
            # Spark does not write down the start of the first batch: when that is planned again after a restart, the
            # initial offset may have moved. Its end has its start.
            at = {}
        ranges, gaps = stream_plan.between(at, to)
        lives = self._heads.last if self._heads.last is not None else self._heads.look()
        tasks = split(
            [_extent(each, lives) for each in ranges],
            min_tasks=self.options.min_partitions,
            max_records=self.options.max_records_per_partition,
        )
        found = [StreamTask(each) for each in tasks]
        if gaps and self.options.columns.gaps:
            found.insert(0, StreamTask((), tuple(gaps)))
        return found

    def read(self, partition: StreamTask) -> Iterator[pa.RecordBatch]:  # type: ignore[override]  # ours alone
        """The rows of a task."""
        return read_task(partition, self.options, self.columns)

    def commit(self, end: Json) -> None:
        """Nothing to do: the checkpoint holds the position, and retention does not wait for it."""

    def stop(self) -> None:
        """End the connection."""
        if self._connection is not None:
            self._connection.close()
        self._connection = self._looking = None

    # Differences between versions of Spark.

    def latest(self, start: Json, limits: Limits) -> Json:
        """The next offset, `start` itself if there is nothing new; waits a moment for something new.

        Raises DataLossError where a topic was lost and that matters, and TopicsError.
        """
        at = from_json(start)
        deadline = time.monotonic() + self._hold
        while True:
            to = self._next(at, limits)
            if to != at:
                self._turn += 1
                return to_json(to)
            if self._target is not None or time.monotonic() >= deadline:
                return start
            self._heads.wait()

    def aim(self) -> None:
        """Go no further from now on than the heads of this moment."""
        self._target = self._look(anew=True)

    def heads(self) -> Json | None:
        """The heads as they were last heard of, without asking; None if they never were."""
        lives = self._heads.last
        if lives is None:
            return None
        return to_json(
            {
                topic: Position(life.topic_id, {partition: at.head_seq for partition, at in life.partitions.items()})
                for topic, life in lives.items()
            }
        )

    # How.

    def _beginning(self) -> Positions:
        connection = self._connected()
        found = find_topics(connection, self.options.topics, self.options.pattern)
        starts = resolve(connection, found, self.options.starting)
        return {each.topic: Position(each.topic_id, starts[each.topic], starts[each.topic]) for each in found}

    def _next(self, at: Positions, limits: Limits) -> Positions:
        lives = self._look()
        base, lost = stream_plan.carry(at, lives, self._target, self._heads.subscribed)
        if lost:  # by an answer that is perhaps older than the position
            lives = self._look(anew=True)
            base, lost = stream_plan.carry(at, lives, self._target, self._heads.subscribed)
        if self.options.fail_on_data_loss:
            self._refuse(lost)
            for name in self.options.topics:
                if name not in lives:
                    raise NotFoundError("topic_not_found", f"topic {name} does not exist", {"topic": name})
        return stream_plan.advance(base, lives, self._target, limits, self._turn)

    def _refuse(self, lost: Sequence[stream_plan.Loss]) -> None:
        if lost:
            raise DataLossError(f"{'; '.join(map(str, lost))}; {_LOSS_ADVICE}")

    def _look(self, *, anew: bool = False) -> Lives:
        try:
            return self._heads.look(anew=anew)
        except UnavailableError as error:
            text = f"no answer for {self._retry.seconds:g} s about new records: {error.message}"
            raise UnavailableError(error.reason, text, error.detail, error.retry_after_ms) from error

    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = Connection(self.options.address, retry=self._retry)
        return self._connection

    @property
    def _heads(self) -> Heads:
        if self._looking is None:
            self._looking = Heads(self._connected(), self.options.topics, self.options.pattern)
        return self._looking


def _extent(wanted: SeqRange, lives: Lives) -> Extent:
    """The range with estimates of its records, which decide the size of tasks."""
    life = lives.get(wanted.topic)
    info = life.partitions.get(wanted.partition) if life is not None and life.topic_id == wanted.topic_id else None
    return Extent(wanted) if info is None else Extent(wanted, info.earliest_seq, stream_plan.mean_bytes(info))
