"""The range read by one task of a stream."""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from pyspark_topics.columns import Columns, DataLossError
from pyspark_topics.fetch import Fetcher, Gap, Parts, SeqRange, TopicResetError
from pyspark_topics.options import ReadOptions
from pyspark_topics.stream_plan import RECREATED
from topics_client.errors import NotFoundError


@dataclass(frozen=True)
class StreamTask(InputPartition):
    """Ranges, read one after the other, behind gaps that were known when the batch was planned."""

    ranges: tuple[SeqRange, ...]
    gaps: tuple[Gap, ...] = ()


def read_task(task: StreamTask, options: ReadOptions, columns: Columns) -> Iterator[pa.RecordBatch]:
    """The rows of a task. Holds a few batches at a time, however long the ranges are.

    Raises DataLossError, which names topic, range and reason, and TopicsError. If the topic was deleted, recreated or
    reset since the batch was planned, the rest of the range is lost.
    """
    for gap in task.gaps:
        yield columns.gap(gap)
    if not task.ranges:
        return
    parts = columns.parts(options)
    with Fetcher(options.address) as fetcher:
        for wanted in task.ranges:
            yield from _read(fetcher, wanted, parts, options, columns)


def _read(
    fetcher: Fetcher, wanted: SeqRange, parts: Parts, options: ReadOptions, columns: Columns
) -> Iterator[pa.RecordBatch]:
    behind = wanted.first - 1

    def fetched() -> Iterator[pa.RecordBatch | Gap]:
        nonlocal behind
        for each in fetcher.read(wanted, parts):
            yield each
            if isinstance(each, Gap):
                behind = each.gap_to
            elif each.num_rows:
                behind = each.column("seq")[-1].as_py()

    gaps = options.columns.gaps
    try:
        yield from columns.batches(wanted, fetched(), fail_on_data_loss=options.fail_on_data_loss, gaps=gaps)
    except (NotFoundError, TopicResetError) as error:
        if options.fail_on_data_loss:
            what = "restored to an older state" if isinstance(error, TopicResetError) else "deleted or recreated"
            text = (
                f"{wanted}: lost from seq {behind + 1} on, as the topic ({wanted.topic_id}) was {what}"
                " since the batch was planned; with option failOnDataLoss=false the stream continues without it"
            )
            raise DataLossError(text) from error
        if gaps:
            lost = wanted.last - behind
            yield columns.gap(Gap(wanted.topic, wanted.partition, behind + 1, wanted.last, RECREATED, lost))
