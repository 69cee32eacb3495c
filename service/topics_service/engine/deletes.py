"""Seqs at or above a log's first live record that were deleted one by one, as an immutable set of bitmaps.

Bitmaps are kept and stored in chunks of 64 Ki seqs, so that marking one record rewrites one small row. An update
makes a new `Deletes` that shares the untouched chunks: a reader's snapshot never changes under it.
"""

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from pyroaring import BitMap

from topics_service.engine.bitmaps import first_absent

CHUNK_BITS = 16
_CHUNK = 1 << CHUNK_BITS
_BYTES = struct.Struct("<Q")


_NO_MARKS = BitMap()


class Chunk(NamedTuple):
    """The marks within one chunk (low 16 bits of the seqs) and the record bytes that they cover."""

    marks: BitMap
    dead_bytes: int


class Deletes:
    """An immutable set of marked seqs."""

    __slots__ = ("_chunks", "_lowest")

    def __init__(self, chunks: dict[int, Chunk] | None = None) -> None:
        self._chunks = chunks or {}
        self._lowest = min(self._chunks, default=0)

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def __contains__(self, seq: int) -> bool:
        chunk = self._chunks.get(seq >> CHUNK_BITS)
        return chunk is not None and (seq & (_CHUNK - 1)) in chunk.marks

    def unmarked(self, seqs: Iterable[int]) -> list[int]:
        """Return the seqs that are not in this set, in order."""
        chunks, number, marks = self._chunks, -1, _NO_MARKS
        found = []
        for seq in seqs:
            if seq >> CHUNK_BITS != number:
                number = seq >> CHUNK_BITS
                marks = chunks[number].marks if number in chunks else _NO_MARKS
            if seq & (_CHUNK - 1) not in marks:
                found.append(seq)
        return found

    def first_marked(self, start: int, stop: int) -> int:
        """The first seq in [start, stop) that is marked; `stop` if none is."""
        for base, chunk, low, high in self._within(start, stop):
            mark = chunk.marks.next_set_bit(low) if chunk.marks.max() >= low else high
            if mark < high:
                return base + int(mark)
        return stop

    def count(self, start: int, stop: int) -> int:
        """Return the number of marked seqs in [start, stop)."""
        return sum(chunk.marks.range_cardinality(low, high) for _, chunk, low, high in self._within(start, stop))

    def between(self, start: int, stop: int) -> Iterator[int]:
        """The marked seqs in [start, stop), ascending."""
        for base, chunk, low, high in self._within(start, stop):
            marks = chunk.marks if (low, high) == (0, _CHUNK) else chunk.marks & BitMap(range(low, high))
            for mark in marks:
                yield base + mark

    def dead_bytes(self, start: int, stop: int, size_of: Callable[[int], int]) -> int:
        """The record bytes of the marked seqs in [start, stop); only chunks cut by the range ask `size_of` a seq."""
        total = 0
        for base, chunk, low, high in self._within(start, stop):
            if (low, high) == (0, _CHUNK):
                total += chunk.dead_bytes
            else:
                total += sum(size_of(base + mark) for mark in chunk.marks & BitMap(range(low, high)))
        return total

    def first_unmarked(self, start: int, stop: int) -> int:
        """The first seq in [start, stop) that is not marked; `stop` if all are."""
        while start < stop:
            chunk, position = self._chunks.get(start >> CHUNK_BITS), start & (_CHUNK - 1)
            if chunk is None or position not in chunk.marks:
                return start
            base = start - position
            end = min(stop - base, _CHUNK)
            start = base + first_absent(chunk.marks, position, end)
            if start < base + end:
                return start
        return stop

    def marked(self, seqs: Iterable[tuple[int, int]]) -> tuple["Deletes", list[int]]:
        """Return this set plus the given (seq, record bytes), none marked yet, and the numbers of changed chunks."""
        grouped: dict[int, tuple[list[int], int]] = {}
        for seq, size in seqs:
            positions, dead = grouped.get(seq >> CHUNK_BITS, ([], 0))
            positions.append(seq & (_CHUNK - 1))
            grouped[seq >> CHUNK_BITS] = positions, dead + size
        chunks = dict(self._chunks)
        for number, (positions, dead) in grouped.items():
            old = chunks.get(number)
            marks = BitMap(positions) if old is None else old.marks | BitMap(positions)
            marks.run_optimize()  # acks come nearly in order: a few runs instead of 8 KiB to copy and store each time
            chunks[number] = Chunk(marks, dead + (0 if old is None else old.dead_bytes))
        return Deletes(chunks), sorted(grouped)

    def forget_below(self, seq: int) -> tuple["Deletes", list[int]]:
        """Return this set without the chunks wholly below `seq`, and the numbers of those."""
        if not self._chunks or (self._lowest + 1) << CHUNK_BITS > seq:
            return self, []
        gone = [number for number in self._chunks if (number + 1) << CHUNK_BITS <= seq]
        return Deletes({number: chunk for number, chunk in self._chunks.items() if number not in gone}), gone

    def forget_from(self, seq: int, size_of: Callable[[int], int]) -> "Deletes":
        """Return this set without the marks at or above `seq`; `size_of` returns record bytes of the others."""
        kept = dict(self._chunks)
        for number in [number for number in kept if (number + 1) << CHUNK_BITS > seq]:
            base = number << CHUNK_BITS
            marks = kept.pop(number).marks & BitMap(range(max(0, seq - base)))
            if marks:
                kept[number] = Chunk(marks, sum(size_of(base + mark) for mark in marks))
        return Deletes(kept)

    def since(self, older: "Deletes") -> Iterator[tuple[int, BitMap]]:
        """Yield the marks that `older` lacks, as base seqs of chunks and positions within. Cheap for few changes."""
        for number, chunk in self._chunks.items():
            before = older._chunks.get(number)
            if before is not chunk:
                yield number << CHUNK_BITS, chunk.marks if before is None else chunk.marks - before.marks

    def numbers(self) -> list[int]:
        """The numbers of all chunks."""
        return sorted(self._chunks)

    def encode(self, number: int) -> bytes:
        """The stored form of one chunk."""
        chunk = self._chunks[number]
        return _BYTES.pack(chunk.dead_bytes) + chunk.marks.serialize()

    def _within(self, start: int, stop: int) -> Iterator[tuple[int, Chunk, int, int]]:
        """The chunks that overlap [start, stop): base seq, chunk, first and end position within it."""
        if not self._chunks or start >= stop:
            return
        first, last = start >> CHUNK_BITS, (stop - 1) >> CHUNK_BITS
        numbers: Iterable[int]
        if last - first < len(self._chunks):
            numbers = (number for number in range(first, last + 1) if number in self._chunks)
        else:
            numbers = sorted(number for number in self._chunks if first <= number <= last)
        for number in numbers:
            base = number << CHUNK_BITS
            yield base, self._chunks[number], max(start - base, 0), min(stop - base, _CHUNK)


def decode_chunk(value: bytes) -> Chunk:
    """Decode a chunk from its stored form. Raises ValueError or struct.error if it is invalid."""
    (dead,) = _BYTES.unpack_from(value)
    if len(value) == _BYTES.size:  # for which pyroaring has an IndexError
        raise ValueError("a delete bitmap without its bitmap")
    return Chunk(BitMap.deserialize(value[_BYTES.size :]), dead)
