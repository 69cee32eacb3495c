"""Repair of write-ahead logs with breaks: the remaining rows, and the evidence in the last writes. RocksDB itself does
not report the breaks that it skips."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from msgspec import Struct

from topics_service.storage.wal import end_mark
from topics_service.storage.wal.archive import numbered
from topics_service.storage.wal.batches import Batch, Row, batch_of, rows
from topics_service.storage.wal.records import past_damage
from topics_service.storage.wal.validation import needed_by


class Left(Struct, frozen=True):
    """`lost_rows` are known to be missing, at least. `last`: the rows that are set in the batches behind the last that
    is missing, in order; none where the end itself is missing. `families`: their numbers by name, as far as known."""

    lost_rows: int
    last: list[Row]
    families: dict[str, int]


def what_is_left(directory: Path) -> Left:
    """Read all needed logs past their damage. Raises OSError."""
    needed = needed_by(directory)
    runs = _runs(directory, needed.first_log)
    mark = end_mark.read(directory)
    end = runs[-1][1] if runs else 0
    written = end if mark is None else mark.written
    lost = sum(after[0] - before[1] for before, after in pairwise(runs)) + max(0, written - end)
    if mark is not None and runs:
        lost += max(0, runs[0][0] - max(mark.first_seq, needed.flushed_seq + 1))
    last: list[Row] = []
    if runs and written <= end:
        for batch in sorted(_batches(directory, needed.first_log, runs[-1][0]), key=lambda batch: batch.seq):
            last += _rows(batch)
    return Left(lost, last, needed.families)


def _runs(directory: Path, first_log: int) -> list[tuple[int, int]]:
    """Return the runs of existing sequence numbers, each as its first number and the one behind its last."""
    found: list[tuple[int, int]] = []
    for batch in _batches(directory, first_log, 0):
        if found and found[-1][1] == batch.seq:
            found[-1] = found[-1][0], batch.next_seq
        else:
            found.append((batch.seq, batch.next_seq))
    joined: list[tuple[int, int]] = []
    for first, stop in sorted(found):  # files can be in each other's place, or there twice
        if joined and first <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(stop, joined[-1][1])
        else:
            joined.append((first, stop))
    return joined


def _batches(directory: Path, first_log: int, from_seq: int) -> Iterator[Batch]:
    for number, path in sorted(numbered(directory)):
        if number >= first_log:
            for record in past_damage(path):
                batch = batch_of(0, record)
                if batch is not None and batch.seq >= from_seq:
                    yield batch


def _rows(batch: Batch) -> list[Row]:
    try:
        return [row for row in rows(batch) if row.value is not None]
    except ValueError:
        return []
