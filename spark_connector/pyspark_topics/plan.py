"""Splitting a read into tasks."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Final

from pyspark_topics.fetch import SeqRange

_MIN_TASK_RECORDS: Final = 10_000  # records that are worth a task, unless minPartitions asks for more tasks
_MAX_TASKS: Final = 5_000
_TASK_BYTES: Final = 256 << 20
_PER_CORE: Final = 2
_MIN_SHARE: Final = 0.01  # of a task: a call to the server takes its time, too


@dataclass(frozen=True, slots=True)
class Extent:
    """A range to read, with estimates of its records."""

    wanted: SeqRange
    earliest: int = 0  # first seq that may have a record; seqs below it are read, as one gap, with the first piece
    record_bytes: int = 0  # data and meta of one record on average; 0: unknown

    @property
    def size(self) -> int:
        """Seqs that may have a record."""
        return self.wanted.last - max(self.wanted.first, min(self.earliest, self.wanted.last)) + 1


def split(
    found: Sequence[Extent], *, min_tasks: int = 0, max_records: int, cores: int | None = None
) -> list[tuple[SeqRange, ...]]:
    """The ranges of each task, in order of the extents and then of seq.

    A task has at most `max_records` seqs and about 256 MiB, unless there would be more than 5000 tasks; without
    `min_tasks` there are about two for each core, but none below 10,000 records. Each range has its own task, unless
    there are more ranges than that: then small ones share a task.
    """
    total = sum(each.size for each in found)
    if not total:
        return []
    want = min_tasks or _PER_CORE * (cores or os.cpu_count() or 1)
    size = min(max(total / want, 1 if min_tasks else _MIN_TASK_RECORDS), max_records)
    minimum = total / _MAX_TASKS
    pieces = [piece for each in found for piece in _pieces(each, max(min(size, _fitting(each)), minimum))]
    return _packed(pieces) if len(pieces) > want else [(piece,) for piece, _ in pieces]


def _fitting(extent: Extent) -> int:
    """The maximum number of records of this size per task."""
    return _TASK_BYTES // max(extent.record_bytes, 1)


def _pieces(extent: Extent, size: float) -> list[tuple[SeqRange, float]]:
    """Pieces of even size, about `size` at most, each with the share of a task that it is."""
    wanted, total = extent.wanted, extent.size
    count = max(1, ceil(total / size - 1e-9))
    begin = wanted.last - total + 1
    ends = [begin + total * i // count for i in range(count + 1)]
    pieces = []
    for i in range(count):
        first = wanted.first if i == 0 else ends[i]
        part = SeqRange(wanted.topic, wanted.topic_id, wanted.partition, first, ends[i + 1] - 1)
        pieces.append((part, max((ends[i + 1] - ends[i]) / size, _MIN_SHARE)))
    return pieces


def _packed(pieces: Sequence[tuple[SeqRange, float]]) -> list[tuple[SeqRange, ...]]:
    """Neighbours that fit into one task together are put there: a thousand small topics are not a thousand tasks."""
    tasks: list[list[SeqRange]] = []
    room = 0.0
    for piece, share in pieces:
        if share > room:
            tasks.append([])
            room = 1 + 1e-6  # shares that add up to one may do so a bit above
        tasks[-1].append(piece)
        room -= share
    return [tuple(task) for task in tasks]
