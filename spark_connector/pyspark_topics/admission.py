"""Admission control: the share of each backlog in one batch of a stream."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a batch; 0: no limit."""

    records: int = 0
    bytes: int = 0  # data and meta, by the mean of the partition's live records

    def __bool__(self) -> bool:
        return bool(self.records or self.bytes)


@dataclass(frozen=True, slots=True)
class Backlog:
    """The backlog of one partition."""

    topic: str
    records: int  # upper bound: seqs of deleted records count
    record_bytes: int  # mean size of a record; 0: unknown


def admit(backlogs: Sequence[Backlog], limits: Limits, turn: int = 0) -> list[int]:
    """The number of records admitted from each backlog; backlogs of one topic are adjacent.

    The limit is shared evenly over the waiting topics, and the share of a topic over its partitions; unused shares go
    to the others, so that a large backlog delays no other topic. `turn` counts the calls: the remainder goes to another
    topic each time. While anything waits, at least one record is admitted, however large.
    """
    counts = [each.records for each in backlogs]
    if limits.records:
        counts = _shared(backlogs, counts, limits.records, turn)
    if limits.bytes:
        counts = _fitting(backlogs, counts, limits.bytes, turn)
    return counts


def fill(demands: Sequence[int], budget: int, turn: int = 0) -> list[int]:
    """Split a budget into equal shares, none larger than requested; the remainder is distributed in turn."""
    shares = [0] * len(demands)
    open_ = sorted((i for i, each in enumerate(demands) if each > 0), key=lambda i: demands[i])
    while open_ and demands[open_[0]] <= budget // len(open_):
        i = open_.pop(0)
        shares[i] = demands[i]
        budget -= demands[i]
    if open_:
        share, rest = divmod(budget, len(open_))
        for place, i in enumerate(_rotated(sorted(open_), turn)):
            shares[i] = share + (place < rest)
    return shares


def _shared(backlogs: Sequence[Backlog], demands: Sequence[int], budget: int, turn: int) -> list[int]:
    """Shares of a budget, first by topic, then by partition."""
    members = [list(group) for _, group in groupby(range(len(backlogs)), key=lambda i: backlogs[i].topic)]
    parts = fill([sum(demands[i] for i in group) for group in members], budget, turn)
    shares = [0] * len(backlogs)
    for group, part in zip(members, parts, strict=True):
        for i, share in zip(group, fill([demands[i] for i in group], part, turn), strict=True):
            shares[i] = share
    return shares


def _fitting(backlogs: Sequence[Backlog], counts: Sequence[int], budget: int, turn: int) -> list[int]:
    """Records of each, limited to a budget of bytes."""
    sizes = [max(each.record_bytes, 1) for each in backlogs]
    wanted = [count * size for count, size in zip(counts, sizes, strict=True)]
    shares = _shared(backlogs, wanted, budget, turn)
    found = [share // size for share, size in zip(shares, sizes, strict=True)]
    left = budget - sum(count * size for count, size in zip(found, sizes, strict=True))
    for i in _rotated([i for i, count in enumerate(counts) if found[i] < count], turn):
        if left >= sizes[i] or not any(found):
            found[i] += 1
            left -= sizes[i]
    return found


def _rotated(items: Sequence[int], turn: int) -> list[int]:
    at = turn % len(items) if items else 0
    return [*items[at:], *items[:at]]
