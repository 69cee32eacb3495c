"""Refilling a topic's tables after a rollback, with records read again from the topic.

The missing ranges are found first; then it is read, and each table gets it, and a new mark, in one commit that lands
only on the very snapshot that was looked at. The positions stay. A crash in between leaves tables that are still
refused, and the next attempt finds the missing ranges again.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow.compute as pc
from pyiceberg.table import Table

from pyspark_topics.fetch import Gap, SeqRange
from topics_lakehouse.catalog import ERRORS, GAPS, RECORDS, Positions, reachable
from topics_lakehouse.config import Config
from topics_lakehouse.files import FileTask, Passed, TaskResult
from topics_lakehouse.gaps import within
from topics_lakehouse.history import reached
from topics_lakehouse.rewrite import LiveFile, live_files, read_file
from topics_lakehouse.seqs import SeqSet, runs, seq_set
from topics_lakehouse.tables import TopicTables

_NEAR: Final = 20_000  # seqs between two holes that are read along with them, and passed over


@dataclass(frozen=True, slots=True)
class Missing:
    """Seqs that the tables of a topic lack up to their positions, by partition."""

    tables: TopicTables
    held: Mapping[int, SeqSet]  # seqs that the table has, or that it lacks for another reason than the rollback
    errors_held: Mapping[int, SeqSet]
    recorded: Mapping[int, SeqSet]  # seqs recorded in the table of gaps, or not lost

    def tasks(self, config: Config) -> Iterator[FileTask]:
        """Ranges to read, and the seqs in them to pass over."""
        target, ends = self.tables.target(config), self.tables.positions
        for partition, end in ends[RECORDS].items():
            errors_end = ends.get(ERRORS, {}).get(partition, 0)
            held, errors_held = self.held[partition], self.errors_held.get(partition, SeqSet())
            holes = [
                *held.missing(1, end),
                *errors_held.missing(1, errors_end),
                *self.recorded[partition].missing(1, end),
            ]
            for first, last in _near(holes):
                for begin in range(first, last + 1, config.task_records):
                    stop = min(last, begin + config.task_records - 1)
                    seqs = SeqRange(self.tables.topic, self.tables.topic_id, partition, begin, stop)
                    passed = Passed(held.between(begin, stop), errors_held.between(begin, stop))
                    yield FileTask(seqs, 0, target, passed)

    def gaps(self, results: Sequence[TaskResult]) -> list[Gap]:
        """The gaps among the results within the missing ranges."""
        return [
            part
            for result in results
            for gap in result.gaps
            for part in within(gap, self.recorded[gap.partition].missing(result.wanted.first, result.wanted.last))
        ]


def missing(tables: TopicTables) -> Missing:
    """Find the seqs that rolled-back tables lack. Raises CatalogDownError."""
    ends = tables.positions
    known = {role: reached(table) if role in tables.lacking else ends[role] for role, table in tables.tables.items()}
    held = _held(tables.tables[RECORDS], known[RECORDS], ends[RECORDS])
    errors_held = _held(tables.tables[ERRORS], known[ERRORS], ends[ERRORS]) if ERRORS in known else {}
    recorded = held
    if GAPS in tables.lacking:  # a gap: missing from the table of records without a rollback
        minimum = {p: min(known[RECORDS].get(p, 0), known[GAPS].get(p, 0)) for p in ends[RECORDS]}
        recorded = _held(tables.tables[RECORDS], minimum, ends[RECORDS])
    return Missing(tables, held, errors_held, recorded)


def _held(table: Table, known: Positions, ends: Positions) -> dict[int, SeqSet]:
    """All seqs up to the known positions, and behind them those that the table has."""
    found: dict[int, list[tuple[int, int]]] = {p: [(1, min(known.get(p, 0), end))] for p, end in ends.items()}
    if any(known.get(p, 0) < end for p, end in ends.items()):
        with reachable():
            for file in live_files(table):
                if file.partition is None or file.last is None or file.last > known.get(file.partition, 0):
                    _add_rows(table, file, found)
    return {p: seq_set(ranges) for p, ranges in found.items()}


def _add_rows(table: Table, file: LiveFile, found: dict[int, list[tuple[int, int]]]) -> None:
    for batch in read_file(table, file, ("partition", "seq")):
        partitions = batch.column("partition")
        for partition in pc.unique(partitions).to_pylist():
            if partition in found:
                found[partition] += runs(batch.column("seq").filter(pc.equal(partitions, partition)))


def _near(holes: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The holes, those that are near each other as one."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(holes):
        if merged and first <= merged[-1][1] + _NEAR:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    yield from merged
