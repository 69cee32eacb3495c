"""The hot tail: records that are not in the table yet, as rows of the table."""

import pyarrow as pa
from pyiceberg.schema import Schema

from pyspark_topics.fetch import Fetcher, Gap, SeqRange
from pyspark_topics.inventory import TopicInfo
from topics_lakehouse.catalog import Positions
from topics_lakehouse.files import Rows, Target
from topics_lakehouse.parquet import Layout
from topics_lakehouse.schema import ENVELOPE
from topics_lakehouse.shares import lags


class HotTailError(Exception):
    """The hot tail is larger than a query may hold in memory."""


def hot_tail(
    fetcher: Fetcher,
    info: TopicInfo,
    positions: Positions,
    columns: pa.Schema,
    *,
    max_records: int,
    max_bytes: int,
) -> pa.Table:
    """The records after the positions, up to the heads of `info`, with `columns` parsed as by the pipeline.

    Raises HotTailError before it reads more than `max_records`, or after `max_bytes`, and the errors of a read.
    """
    behind = lags(info, positions)
    records = sum(lag.records for lag in behind)
    if records > max_records:
        raise HotTailError(
            f"topic {info.topic}: {records} records are not in the table yet, and a query reads at most "
            f"{max_records}: let the pipeline catch up, raise the limit, or ask the table alone"
        )
    schema = pa.schema([*ENVELOPE, *columns])
    target = Target(Layout("", schema, Schema(), {}, 0, 0, 0), columns, None, {})
    batches: list[pa.RecordBatch] = []
    size = 0
    for lag in behind:
        if not lag.records:
            continue
        rows = Rows(lag.partition, target)
        for got in fetcher.read(SeqRange(info.topic, info.topic_id, lag.partition, lag.skipped + 1, lag.head)):
            if isinstance(got, Gap) or not got.num_rows:
                continue
            batches.append(rows.of(got)[0])
            size += batches[-1].nbytes
            if size > max_bytes:
                raise HotTailError(
                    f"topic {info.topic}: the records not yet in the table exceed {max_bytes >> 20} MiB: let the "
                    "pipeline catch up, raise the limit, or ask the table alone"
                )
    return pa.Table.from_batches(batches, schema)
