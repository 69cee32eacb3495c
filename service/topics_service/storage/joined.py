"""The datas of many records as one run of bytes, as a block stores them and another process sends them."""

from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import overload


class Joined(Sequence[bytes]):
    """Values one behind the other in `data`, which single ones are cut from when they are asked for."""

    __slots__ = ("_ends", "_sizes", "data")

    def __init__(self, data: bytes, sizes: Sequence[int]) -> None:
        """Raises ValueError if the sizes are not those of the data."""
        self.data = data
        self._sizes = sizes
        self._ends: array[int] | None = None
        if sum(sizes) != len(data):
            raise ValueError(f"{sum(sizes)} bytes of values, and {len(data)} of data")

    def __len__(self) -> int:
        return len(self._sizes)

    @overload
    def __getitem__(self, at: int) -> bytes: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[bytes]: ...

    def __getitem__(self, at: int | slice) -> bytes | Sequence[bytes]:
        if isinstance(at, slice):
            start, stop, step = at.indices(len(self))
            if step != 1:
                raise ValueError("a step")
            stop, ends = max(start, stop), self._places()
            return Joined(self.data[ends[start] : ends[stop]], self._sizes[start:stop])
        if not 0 <= at < len(self):
            raise IndexError(at)
        ends = self._places()
        return self.data[ends[at] : ends[at + 1]]

    def __iter__(self) -> Iterator[bytes]:
        data = self.data
        return (data[start:stop] for start, stop in pairwise(self._places()))

    def _places(self) -> "array[int]":
        """The start of each value, and the end."""
        if self._ends is None:
            self._ends = array("Q", accumulate(self._sizes, initial=0))
        return self._ends
