"""Rows of the `_gaps` table: each lost seq is reported once, regardless of repeats."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime

import pyarrow as pa
from pyiceberg.table import Table

from pyspark_topics.fetch import Gap
from topics_lakehouse.catalog import Positions, reachable

_Range = tuple[int, int]


def new_gaps(table: Table, recorded: Positions, base: Positions, gaps: Sequence[Gap]) -> list[Gap]:
    """The gaps, or what is left of them, that the gaps table does not hold yet; neighbours become one.

    `recorded` are the positions of the gaps table, `base` those from which the gaps were found. Only if the former are
    ahead, which is after a crash between two commits, is the table read. Raises CatalogDownError.
    """
    repeated = {gap.partition for gap in gaps if recorded.get(gap.partition, 0) > base.get(gap.partition, 0)}
    known: dict[int, list[_Range]] = {partition: [] for partition in repeated}
    if repeated:
        lowest = min(base.get(partition, 0) for partition in repeated)
        with reachable():
            rows = table.scan(f"gap_to > {lowest}", selected_fields=("partition", "gap_from", "gap_to"))
            for row in rows.to_arrow().to_pylist():
                if row["partition"] in known:
                    known[row["partition"]].append((row["gap_from"], row["gap_to"]))
    left: list[Gap] = []
    for gap in gaps:
        left += within(gap, _without((gap.gap_from, gap.gap_to), known.get(gap.partition, ())))
    return _merged(left)


def within(gap: Gap, ranges: Iterable[_Range]) -> Iterator[Gap]:
    """The parts of a gap that lie in the ranges."""
    for begin, end in ranges:
        first, last = max(begin, gap.gap_from), min(end, gap.gap_to)
        if first <= last:
            lost = min(gap.missed_estimate, last - first + 1)
            yield Gap(gap.topic, gap.partition, first, last, gap.reason, lost)


def gap_rows(gaps: Sequence[Gap], schema: pa.Schema) -> pa.RecordBatch:
    """The gaps as rows of the table."""
    now = datetime.now(UTC)
    rows = [
        {
            "partition": gap.partition,
            "gap_from": gap.gap_from,
            "gap_to": gap.gap_to,
            "reason": gap.reason,
            "missed_estimate": gap.missed_estimate,
            "found_at": now,
        }
        for gap in gaps
    ]
    return pa.RecordBatch.from_pylist(rows, schema=schema)


def _without(whole: _Range, parts: Iterable[_Range]) -> list[_Range]:
    """The remainder of a range without the parts."""
    left = [whole]
    for first, last in parts:
        pieces = []
        for begin, end in left:
            if last < begin or first > end:
                pieces.append((begin, end))
                continue
            if begin < first:
                pieces.append((begin, first - 1))
            if last < end:
                pieces.append((last + 1, end))
        left = pieces
    return left


def _merged(gaps: Iterable[Gap]) -> list[Gap]:
    """In order, those of one reason that touch as one."""
    merged: list[Gap] = []
    for gap in sorted(gaps, key=lambda gap: (gap.partition, gap.gap_from)):
        last = merged[-1] if merged else None
        if last and (last.partition, last.reason, last.gap_to + 1) == (gap.partition, gap.reason, gap.gap_from):
            lost = last.missed_estimate + gap.missed_estimate
            merged[-1] = Gap(gap.topic, gap.partition, last.gap_from, gap.gap_to, gap.reason, lost)
        else:
            merged.append(gap)
    return merged
