"""A chunk of the tag index: some of the tags of one run, sorted, each with the positions of its records.

A run is a stretch of the log whose records are indexed together. Its chunks hold about `CHUNK_BYTES` each, so that a
look-up reads one of them. A tag with many positions has several entries, which may continue in the next chunk.
Layout (little-endian):

    header      u8 version, u8 flags, u16 zero, u32 entries
    tag ends    u32 each, then the bytes of the tags
    positions   u32 ends of each entry's positions, unless all have one (flag 1); then u32 positions from the run's base
"""

import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

CHUNK_BYTES: Final = 4 << 10
MAX_POSITIONS: Final = 1 << 12
"""The most positions of one entry."""
_HEADER: Final = struct.Struct("<BBHI")
_VERSION: Final = 1
_ONES: Final = 1
_ENTRY_BYTES: Final = 8  # of an entry without its tag and its positions


class CorruptChunkError(ValueError):
    """The stored bytes are no chunk."""


class Entries(NamedTuple):
    """Tags in order, repeated if they have more than one entry, with `counts` of them in `positions`."""

    tags: list[bytes]
    counts: list[int]
    positions: "array[int]"


class Chunk:
    """A chunk as it was stored; its tags are looked at only as far as they are asked for."""

    __slots__ = ("_data", "_position_ends", "_positions", "_tag_ends", "count")

    def __init__(self, value: bytes) -> None:
        """Raises CorruptChunkError."""
        try:
            version, flags, zero, count = _HEADER.unpack_from(value)
        except struct.error as error:
            raise CorruptChunkError(f"{len(value)} bytes are no chunk of the tag index") from error
        at = _HEADER.size + 4 * count
        if version != _VERSION or flags & ~_ONES or zero or not count or at > len(value):
            raise CorruptChunkError("the header of a chunk of the tag index is none")
        self.count = count
        self._tag_ends = array("I", value[_HEADER.size : at])
        stop = at + self._tag_ends[-1]
        self._data = value[at:stop]
        if flags & _ONES:
            self._position_ends, total = None, count
        else:
            at, stop = stop, stop + 4 * count
            if stop > len(value):
                raise CorruptChunkError("a chunk of the tag index ends within its entries")
            self._position_ends = array("I", value[at:stop])
            total = self._position_ends[-1]
        if stop + 4 * total != len(value):
            raise CorruptChunkError(f"a chunk of the tag index has {len(value)} bytes, not {stop + 4 * total}")
        self._positions = array("I", value[stop:])

    def tag(self, i: int) -> bytes:
        """The tag of entry i."""
        ends = self._tag_ends
        return self._data[ends[i - 1] if i else 0 : ends[i]]

    @property
    def last(self) -> bytes:
        """The tag of the last entry."""
        return self.tag(self.count - 1)

    def first_at_or_after(self, tag: bytes) -> int:
        """The first entry whose tag is at least `tag`; `count` if there is none."""
        return bisect_left(range(self.count), tag, key=self.tag)

    def positions(self, i: int) -> "array[int]":
        """The positions of entry i, ascending."""
        ends = self._position_ends
        return self._positions[i : i + 1] if ends is None else self._positions[ends[i - 1] if i else 0 : ends[i]]

    def matching(self, tag: bytes, *, prefix: bool) -> range:
        """The entries of exactly this tag, or with `prefix` of all tags that start with it."""
        start = self.first_at_or_after(tag)
        stop = start
        if prefix:
            while stop < self.count and self.tag(stop).startswith(tag):
                stop += 1
        else:
            while stop < self.count and self.tag(stop) == tag:
                stop += 1
        return range(start, stop)

    def entries(self) -> Entries:
        """All entries."""
        data, ends = self._data, self._position_ends
        tags = [data[start:stop] for start, stop in pairwise((0, *self._tag_ends))]
        counts = [1] * self.count if ends is None else [stop - start for start, stop in pairwise((0, *ends))]
        return Entries(tags, counts, self._positions)

    def check(self) -> None:
        """Raises CorruptChunkError if the entries are not in order."""
        entries = self.entries()
        if any(start > stop for start, stop in pairwise((0, *self._tag_ends))) or min(entries.counts) < 1:
            raise CorruptChunkError("the entries of a chunk of the tag index overlap")
        at, before = 0, (b"", -1)
        for tag, count in zip(entries.tags, entries.counts, strict=True):
            for position in entries.positions[at : at + count]:
                if (tag, position) <= before:
                    raise CorruptChunkError("a chunk of the tag index is not in order")
                before = tag, position
            at += count


def encode(entries: Entries) -> bytes:
    """The stored form of the entries."""
    tags, counts, positions = entries
    count = len(tags)
    ones = len(positions) == count
    parts = [
        _HEADER.pack(_VERSION, _ONES if ones else 0, 0, count),
        array("I", accumulate(map(len, tags))).tobytes(),
        b"".join(tags),
        b"" if ones else array("I", accumulate(counts)).tobytes(),
        positions.tobytes(),
    ]
    return b"".join(parts)


def split(entries: Entries, *, whole: bool = True) -> Iterator[Entries]:
    """The entries, which have at most `MAX_POSITIONS` each, in parts of about `CHUNK_BYTES`. Unless `whole`, the last
    part is one that has room for more entries, perhaps none."""
    tags, counts, positions = entries
    tag_ends, position_ends = list(accumulate(map(len, tags))), list(accumulate(counts))

    def weight(upto: int) -> int:
        return tag_ends[upto] + 4 * position_ends[upto] + _ENTRY_BYTES * upto

    start = first = weighed = 0
    while start < len(tags):
        stop = bisect_left(range(len(tags)), weighed + CHUNK_BYTES, lo=start, key=weight) + 1
        if stop > len(tags) and not whole:
            break
        stop = min(stop, len(tags))
        last = position_ends[stop - 1]
        yield Entries(tags[start:stop], counts[start:stop], positions[first:last])
        start, first, weighed = stop, last, weight(stop - 1)
    if not whole:
        yield Entries(tags[start:], counts[start:], positions[first:])


def limited(tag: bytes, positions: Sequence[int]) -> Iterator[tuple[bytes, Sequence[int]]]:
    """A tag and its positions as entries."""
    for at in range(0, len(positions), MAX_POSITIONS):
        yield tag, positions[at : at + MAX_POSITIONS]
