"""Counters as plain integers: cheap where things happen, read as they stand when somebody asks.

Nothing here knows how metrics are shown; `api.metrics` does.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass


class Histogram:
    """How many values fell into each bucket, and their sum. A bucket holds what is at most its bound.

    One thread observes; others may read meanwhile and see the sum a moment before the count.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` ascend; one more bucket takes what is above the last."""
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.sum: float = 0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.sum += value
        self.counts[bisect_left(self.bounds, value)] += 1

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self.counts)


@dataclass(slots=True)
class CacheStatistics:
    """How often a cache had what it was asked for, and had not."""

    hits: int = 0
    misses: int = 0
