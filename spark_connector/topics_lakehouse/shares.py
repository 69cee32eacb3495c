"""Scheduling: the share of each topic in one round, and its pieces."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark_topics.fetch import SeqRange
from pyspark_topics.inventory import TopicInfo
from topics_lakehouse.catalog import Positions

_UNIT: Final = 1024  # bytes of a record that counts as one
_WORTH_A_TASK: Final = 20_000  # records; less is not split for the sake of another core


@dataclass(frozen=True, slots=True)
class Lag:
    """The lag of a table behind one partition."""

    topic: str
    topic_id: str
    partition: int
    position: int  # last seq that the table has dealt with
    head: int
    earliest: int  # first live seq
    weight: float = 1.0  # of one record; 1 up to 1 KiB

    @property
    def skipped(self) -> int:
        """Last seq before the first live record, or the position: the read starts after it."""
        return min(max(self.position, self.earliest - 1), self.head)

    @property
    def records(self) -> int:
        """Upper estimate of the records to be read."""
        return self.head - self.skipped


def lags(info: TopicInfo, positions: Positions, ends: Mapping[int, int] | None = None) -> list[Lag]:
    """The partitions in which the table is behind. `ends` are heads to stop at."""
    found = []
    for each in info.partitions:
        head = each.head_seq if ends is None else min(each.head_seq, ends.get(each.partition, 0))
        position = positions.get(each.partition, 0)
        if position < head:
            weight = max(1.0, each.bytes / each.count / _UNIT) if each.count else 1.0
            found.append(Lag(info.topic, info.topic_id, each.partition, position, head, each.earliest_seq, weight))
    return found


def share(lags: Sequence[Lag], budget: int) -> list[tuple[Lag, int]]:
    """The last seq to read of each: the head if the budget (records of weight 1) suffices, else an equal share of the
    budget; unused shares go to the others. Everyone gets on by a record at least.
    """
    chosen, left = [], float(budget)
    smallest_first = sorted(lags, key=lambda lag: lag.records * lag.weight)
    for i, lag in enumerate(smallest_first):
        maximum = int(left / (len(smallest_first) - i) / lag.weight)
        records = min(lag.records, max(maximum, 1))
        left = max(0.0, left - records * lag.weight)
        chosen.append((lag, lag.skipped + records))
    return chosen


def split(chosen: Sequence[tuple[Lag, int]], *, task_records: int, parallelism: int) -> Iterator[SeqRange]:
    """The ranges of tasks: none above `task_records` of weight 1, and work for every core where there is enough."""
    total = sum((last - lag.skipped) * lag.weight for lag, last in chosen)
    for lag, last in chosen:
        records = last - lag.skipped
        size = records * lag.weight
        pieces = max(1, -(-int(size) // task_records))
        if records >= 2 * _WORTH_A_TASK:
            pieces = max(pieces, min(round(parallelism * size / total), records // _WORTH_A_TASK))
        first = lag.position + 1  # losses at the start are reported by the first piece
        for i in range(1, pieces + 1):
            end = lag.skipped + records * i // pieces
            if end >= first:
                yield SeqRange(lag.topic, lag.topic_id, lag.partition, first, end)
                first = end + 1
