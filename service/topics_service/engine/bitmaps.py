"""Searching sets of integers."""

from typing import TypeVar

from pyroaring import BitMap, BitMap64

AnyBitMap = TypeVar("AnyBitMap", BitMap, BitMap64)


def first_absent(numbers: AnyBitMap, start: int, stop: int) -> int:
    """The first number in [start, stop) that is not in the set; `stop` if all are. O(log of the run)."""
    low, step = start, 1  # everything in [start, low) is in the set
    while True:
        if low >= stop:
            return stop
        high = min(low + step, stop)
        if not numbers.contains_range(low, high):
            break
        low, step = high, 2 * step
    while high - low > 1:  # something in [low, high) is not
        middle = (low + high) // 2
        if numbers.contains_range(low, middle):
            low = middle
        else:
            high = middle
    return low
