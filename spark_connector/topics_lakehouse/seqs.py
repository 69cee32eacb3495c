"""Sets of seqs of one partition, as ranges."""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc


class SeqSet:
    """Ranges of seqs in ascending order, 16 bytes each."""

    def __init__(self) -> None:
        self._firsts = array("q")
        self._lasts = array("q")
        self.count = 0
        """The number of seqs."""

    def add(self, first: int, last: int) -> None:
        """One more range, behind the others; none if `last` is below `first`."""
        if last < first:
            return
        self.count += last - first + 1
        if self._lasts and self._lasts[-1] + 1 == first:
            self._lasts[-1] = last
        else:
            self._firsts.append(first)
            self._lasts.append(last)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._firsts, self._lasts, strict=True)

    def within(self, first: int, last: int) -> bool:
        """Return whether any of the seqs `first` to `last` is in the set."""
        i = bisect_right(self._firsts, last) - 1
        return i >= 0 and self._lasts[i] >= first

    def mask(self, seqs: pa.Array) -> pa.BooleanArray:
        """For each seq whether it is in the set."""
        if not self._firsts:
            return pa.repeat(pa.scalar(False), len(seqs))
        firsts, lasts = (
            pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])
            for numbers in (self._firsts, self._lasts)
        )
        indexes = pc.cast(pc.search_sorted(firsts, seqs, side="right"), pa.int64())  # one behind the range it may be in
        range_lasts = pc.take(lasts, pc.max_element_wise(pc.subtract(indexes, 1), 0))
        return pc.and_(pc.greater(indexes, 0), pc.less_equal(seqs, range_lasts))

    def missing(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """The ranges of `first` to `last` that are not in the set."""
        for i in range(bisect_left(self._lasts, first), len(self._firsts)):
            if self._firsts[i] > last:
                break
            if first < self._firsts[i]:
                yield first, self._firsts[i] - 1
            first = self._lasts[i] + 1
        if first <= last:
            yield first, last

    def between(self, first: int, last: int) -> "SeqSet":
        """Return the part of the set from `first` to `last`."""
        found = SeqSet()
        for i in range(bisect_left(self._lasts, first), bisect_right(self._firsts, last)):
            found.add(max(first, self._firsts[i]), min(last, self._lasts[i]))
        return found


def seq_set(ranges: Iterable[tuple[int, int]]) -> SeqSet:
    """The set of ranges in any order, which may overlap."""
    found, top = SeqSet(), 0
    for first, last in sorted(ranges):
        found.add(max(first, top + 1), last)
        top = max(top, last)
    return found


def runs(seqs: pa.Array) -> list[tuple[int, int]]:
    """The ranges of seqs in any order, each of them once, from 1 on."""
    if not len(seqs):
        return []
    ordered = pc.take(seqs, pc.sort_indices(seqs))
    breaks = pc.indices_nonzero(pc.greater(pc.subtract(ordered[1:], ordered[:-1]), 1))
    firsts = pa.concat_arrays([ordered[:1], pc.take(ordered[1:], breaks)])
    lasts = pa.concat_arrays([pc.take(ordered[:-1], breaks), ordered[-1:]])
    return list(zip(firsts.to_pylist(), lasts.to_pylist(), strict=True))
