"""Blocks of records in a message: each is carried once, and of a large one only what the message is about.

A message says which positions of a block it is about. Positions near each other share a piece, which is a block too, of
its own first seq; a block of which most is wanted is a piece as a whole.
"""

from array import array
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from topics_service.storage import recordbatch, varbinary
from topics_service.storage.block import Block, StoredBlock
from topics_service.storage.kafkablock import KafkaBlock
from topics_service.storage.recordbatch import InvalidBatchError
from topics_service.storage.varbinary import Column, VarBinary

SMALL_BYTES: Final = 4096
"""A block up to this size is never cut: a piece costs as much as to copy some kilobytes."""
_NEAR_BYTES: Final = 4096  # between two wanted records that one piece is made of


class Text(Struct, array_like=True, gc=False):
    """A column of texts: where each ends in `data`, and the records without one."""

    ends: bytes
    data: bytes
    absent: Sequence[int] = ()


class Piece(Struct, array_like=True):
    """Records of a block, from position `shift` of it on. `texts` are the tags, nodes and metas of a block of columns;
    batches of Kafka clients have no `ends`."""

    shift: int
    log_id: int
    base_seq: int
    ts_runs: Sequence[tuple[int, int]]
    max_ts: int
    cum_bytes: int
    data: bytes
    ends: bytes | None = None
    texts: tuple[Text | None, Text | None, Text | None] | None = None
    kinds: bytes | None = None


class _Wanted:
    """The positions of one block that a message is about. Each place in the message is a list, whose first element
    becomes the number of the piece."""

    __slots__ = ("block", "places")

    def __init__(self, block: StoredBlock) -> None:
        self.block = block
        self.places: list[tuple[int, int, list[object]]] = []


class Packing:
    """Collects the blocks of a message that is encoded."""

    __slots__ = ("_wanted",)

    def __init__(self) -> None:
        self._wanted: dict[int, _Wanted] = {}

    def want(self, block: StoredBlock, start: int, stop: int, place: list[object]) -> None:
        """Note that the message is about the positions start..stop-1; `place[0]` gets the number of their piece."""
        wanted = self._wanted.get(id(block))
        if wanted is None:
            wanted = self._wanted[id(block)] = _Wanted(block)
        wanted.places.append((start, stop, place))

    def pieces(self) -> list[Piece]:
        """The pieces, once all is noted."""
        pieces: list[Piece] = []
        for wanted in self._wanted.values():
            block = wanted.block
            if block.nbytes <= SMALL_BYTES:
                for _, _, place in wanted.places:
                    place[0] = len(pieces)
                pieces.append(cut(block, 0, block.count))
            else:
                self._cut(block, wanted.places, pieces)
        return pieces

    def _cut(self, block: StoredBlock, places: list[tuple[int, int, list[object]]], pieces: list[Piece]) -> None:
        places.sort(key=_start)
        first, end = places[0][0], places[0][1]
        for start, stop, place in places:
            if start > end and block.sizes_upto(start) - block.sizes_upto(end) > _NEAR_BYTES:
                pieces.append(cut(block, first, end))
                first = start
            end = max(end, stop)
            place[0] = len(pieces)
        pieces.append(cut(block, first, end))


def _start(place: tuple[int, int, list[object]]) -> int:
    return place[0]


class Pieces:
    """The blocks of a message that is decoded."""

    __slots__ = ("_blocks", "_shifts")

    def __init__(self, pieces: Sequence[Piece]) -> None:
        """Raises ValueError for pieces that are no blocks."""
        self._blocks = [block_of(piece) for piece in pieces]
        self._shifts = [piece.shift for piece in pieces]

    def at(self, number: int, start: int, stop: int) -> tuple[StoredBlock, int]:
        """A block, and what its positions are less than those that were wanted. Raises ValueError if it has not the
        records start..stop-1."""
        if not 0 <= number < len(self._blocks):
            raise ValueError(f"there is no piece {number}")
        block, shift = self._blocks[number], self._shifts[number]
        if not shift <= start <= stop <= shift + block.count:
            raise ValueError(f"a piece of {block.count} records from {shift} on has no records {start} to {stop}")
        return block, shift


def cut(block: StoredBlock, start: int, stop: int) -> Piece:
    """The records start..stop-1 of a block; of batches, all that have one of them."""
    if isinstance(block, KafkaBlock):
        return _cut_batches(block, start, stop)
    assert isinstance(block, Block), "there are two kinds"
    block.inflate()
    tags, nodes, metas = _text(block.packed("tag")), _text(block.packed("node")), _text(block.packed("meta"))
    if start == 0 and stop == block.count:
        ends, data, kinds, cum_bytes = block.ends.tobytes(), block.data, block.kinds, block.cum_bytes
    else:
        begin = block.ends[start - 1] if start else 0
        data = block.data[begin : block.ends[stop - 1]]
        ends = _rebased(block.ends, start, stop, begin)
        tags, nodes, metas = (text and _cut_text(text, start, stop) for text in (tags, nodes, metas))
        kinds = None if block.kinds is None else block.kinds[start:stop]
        cum_bytes = block.cum_bytes + block.sizes_upto(start)
    return Piece(
        shift=start,
        log_id=block.log_id,
        base_seq=block.base_seq + start,
        ts_runs=_runs(block.ts_runs, start, stop),
        max_ts=block.max_ts,
        cum_bytes=cum_bytes,
        data=data,
        ends=ends,
        texts=(_stored(tags), _stored(nodes), _stored(metas)) if tags or nodes or metas else None,
        kinds=kinds,
    )


def _cut_batches(block: KafkaBlock, start: int, stop: int) -> Piece:
    first, last = block.part_at(start), block.part_at(max(start, stop - 1))
    body = block.body
    if first.offset or last.stop < block.count:
        body = body[first.offset : last.offset + last.header.size]
    return Piece(
        shift=first.first,
        log_id=block.log_id,
        base_seq=block.base_seq + first.first,
        ts_runs=_runs(block.ts_runs, first.first, last.stop),
        max_ts=block.max_ts,
        cum_bytes=block.cum_bytes + first.offset,
        data=body,
    )


def block_of(piece: Piece) -> StoredBlock:
    """The block of a piece. Raises ValueError for one whose columns contradict each other."""
    block: StoredBlock
    if not piece.ts_runs:
        raise ValueError("a piece without times")
    if piece.ends is None:
        try:
            headers = recordbatch.headers(piece.data)
        except InvalidBatchError as error:
            raise ValueError(str(error)) from None
        if not headers:
            raise ValueError("a piece without batches")
        block = KafkaBlock(piece.log_id, piece.base_seq, piece.ts_runs, piece.data, headers, piece.cum_bytes)
    else:
        ends = _array(piece.ends)
        if not ends or ends[-1] != len(piece.data):
            raise ValueError(f"the records of a piece don't end with its {len(piece.data)} bytes")
        tags, nodes, metas = piece.texts or (None, None, None)
        if piece.kinds is not None and len(piece.kinds) != len(ends):
            raise ValueError(f"{len(piece.kinds)} kinds of {len(ends)} records")
        block = Block(
            piece.log_id,
            piece.base_seq,
            piece.ts_runs,
            ends,
            piece.data,
            _column(tags, len(ends)),
            _column(nodes, len(ends)),
            _column(metas, len(ends)),
            piece.kinds,
            piece.cum_bytes,
        )
    if sum(count for count, _ in piece.ts_runs) != block.count:
        raise ValueError(f"the times of a piece are not those of {block.count} records")
    block.max_ts = piece.max_ts
    return block


def _text(column: VarBinary | Column | None) -> VarBinary | None:
    if column is None or isinstance(column, VarBinary):
        return column
    return varbinary.pack(column, len(column))


def _stored(text: VarBinary | None) -> Text | None:
    return None if text is None else Text(text.ends.tobytes(), text.data, text.absent)


def _cut_text(text: VarBinary, start: int, stop: int) -> VarBinary:
    begin = text.ends[start - 1] if start else 0
    ends = array("I", _rebased(text.ends, start, stop, begin))
    absent = [i - start for i in text.absent_between(start, stop)]
    return VarBinary(ends, text.data[begin : text.ends[stop - 1]], absent)


def _rebased(ends: "array[int]", start: int, stop: int, begin: int) -> bytes:
    some = ends[start:stop]
    return (array("I", [end - begin for end in some]) if begin else some).tobytes()


def _column(text: Text | None, count: int) -> VarBinary | None:
    if text is None:
        return None
    ends = _array(text.ends)
    if len(ends) != count or ends[-1] != len(text.data) or (text.absent and text.absent[-1] >= count):
        raise ValueError(f"a column of {len(ends)} texts does not fit {count} records")
    return VarBinary(ends, text.data, text.absent)


def _array(stored: bytes) -> "array[int]":
    """Ends as they are carried. Raises ValueError for a number of bytes that can't be."""
    return array("I", stored)


def _runs(runs: Sequence[tuple[int, int]], start: int, stop: int) -> Sequence[tuple[int, int]]:
    """The times of the positions start..stop-1."""
    if len(runs) == 1:
        return ((stop - start, runs[0][1]),)
    found: list[tuple[int, int]] = []
    at = 0
    for count, ts in runs:
        some = min(at + count, stop) - max(at, start)
        if some > 0:
            found.append((some, ts))
        at += count
    return found
