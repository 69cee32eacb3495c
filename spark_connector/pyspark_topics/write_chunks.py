"""Rows of a task cut into chunks, each one append. The cuts depend only on the rows and their order, not on Spark's
batches: so a retry has the same keys as the first attempt.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_topics.write_columns import Layout, Rows, Target, fitting, joined
from topics_proto.v1 import record_pb2

_ROUTED_APPENDS: Final = 8  # appends' worth of rows that are looked at together where each row says where it goes


@dataclass(frozen=True, slots=True)
class Chunk:
    """Records that one append writes."""

    target: Target
    number: int  # among the chunks that this task writes to this target, from 0
    records: pa.RecordBatch
    nbytes: int  # roughly, on the wire

    def __str__(self) -> str:
        return f"{self.target}, chunk {self.number} ({self.records.num_rows} records)"

    def columns(self) -> record_pb2.ColumnBatch:
        """As an append takes them."""
        kinds = self.records.column("kind")
        first = kinds[0]
        batch = record_pb2.ColumnBatch(data=self.records.column("data").to_pylist(), kind=first.as_py())
        if not pc.all(pc.equal(kinds, first)).as_py():
            batch.kinds = bytes(kinds.to_pylist())
        _fill(batch.tag, self.records.column("tag"))
        _fill(batch.node, self.records.column("node"))
        _fill(batch.meta, self.records.column("meta"))
        return batch


def chunks(batches: Iterable[pa.RecordBatch], layout: Layout, *, max_records: int, max_bytes: int) -> Iterator[Chunk]:
    """The chunks of a task's rows. Each holds at most `max_records`, and `max_bytes` unless one record alone has
    more. The records of a target keep the order of their rows. Holds the rows of a few appends at most.
    """
    numbers: dict[Target, int] = defaultdict(int)
    together = _ROUTED_APPENDS if layout.routed else 1
    for window in _windows(batches, layout, max_records * together, max_bytes * together):
        for target, records in window.by_target(layout):
            start = 0
            while start < records.num_rows:
                rest = records.slice(start)
                count, nbytes = fitting(rest, max_records, max_bytes)
                count = max(count, 1)
                chunk = Chunk(target, numbers[target], rest.slice(0, count), nbytes or rest.slice(0, 1).nbytes)
                numbers[target] += 1
                start += count
                yield chunk


def _windows(batches: Iterable[pa.RecordBatch], layout: Layout, max_records: int, max_bytes: int) -> Iterator[Rows]:
    """The rows in runs, each as long as its limits allow."""
    parts: list[Rows] = []
    records = nbytes = 0
    for batch in batches:
        rows, start = layout.rows(batch), 0
        while start < len(rows):
            rest = rows.slice(start, len(rows) - start)
            count, size = fitting(rest.records, max_records - records, max_bytes - nbytes)
            if not count and not parts:
                count, size = 1, max_bytes  # a record that is larger than the limit, wherever its batch ends
            if count:
                parts.append(rest.slice(0, count))
                start, records, nbytes = start + count, records + count, nbytes + size
            if count < len(rest) or records == max_records:
                yield joined(parts)
                parts, records, nbytes = [], 0, 0
    if parts:
        yield joined(parts)


def _fill(column: record_pb2.Column, values: pa.Array) -> None:
    """Set a column, unless no record has a value."""
    if values.null_count == len(values):
        return
    if not values.null_count and pc.all(pc.equal(values, values[0])).as_py():
        column.shared = values[0].as_py()
        return
    if values.null_count:
        column.absent.extend(pc.indices_nonzero(pc.is_null(values)).to_pylist())
        values = pc.fill_null(values, b"")
    column.value.extend(values.to_pylist())
