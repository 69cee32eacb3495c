"""Frames of BulkDiff in Arrow IPC, from the stored blocks without a look at single records."""

import struct
from collections.abc import Sequence
from typing import Final, Literal

from topics_proto.v1 import record_pb2
from topics_proto.v1 import topics_service_pb2 as pb
from topics_service.api.grpc import arrow
from topics_service.api.grpc.arrow import Column, Field, Piece
from topics_service.api.grpc.slices import Joined, by_block, joined_data, numbers, seq_runs, time_runs
from topics_service.engine.model import Slice
from topics_service.storage.block import Block
from topics_service.storage.varbinary import VarBinary, pack

_KIND_BYTES: Final = bytes.maketrans(b"\0\1", bytes((record_pb2.RECORD_KIND_JSON, record_pb2.RECORD_KIND_BINARY)))

_FIELD: Final = pb.BulkDiffResponse.DESCRIPTOR.fields_by_name["arrow"].number << 3 | 2  # its tag on the wire
_TIME: Final = struct.Struct("<q")
_JSON: Final = bytes((record_pb2.RECORD_KIND_JSON,))


class ArrowFrames:
    """Makes the frames of one stream, the first of which has the schema."""

    def __init__(self, *, tags: bool, meta: bool, data: bool) -> None:
        self._tags = tags
        self._meta = meta
        self._data = data
        self._begun = False

    def message(self, head: pb.BulkDiffResponse, slices: Sequence[Slice]) -> bytes:
        """The next frame as a serialized message: `head`, and the records in place of its `arrow`.

        Put together on the wire: a frame's data is copied once, from the blocks.
        """
        pieces: list[Piece] = [] if self._begun else [self._schema()]
        self._begun = True
        if slices:
            pieces += self._batch(slices)
        message = head.SerializeToString()
        return b"".join((message, _prefix(sum(map(len, pieces))), *pieces)) if pieces else message

    def _schema(self) -> bytes:
        fields = [Field("seq", arrow.INT64), Field("ts", arrow.MICROSECONDS_UTC), Field("kind", arrow.INT8)]
        fields.append(Field("node", arrow.UTF8, nullable=True))
        if self._tags:
            fields.append(Field("tag", arrow.UTF8, nullable=True))
        if self._meta:
            fields.append(Field("meta", arrow.UTF8, nullable=True))
        if self._data:
            fields.append(Field("data", arrow.BINARY))
        return arrow.schema(fields)

    def _batch(self, slices: Sequence[Slice]) -> list[Piece]:
        count = sum(piece.stop - piece.start for piece in slices)
        groups = by_block(slices)
        seqs = numbers(seq_runs(slices), count)
        times = [_TIME.pack(ts * 1000) * n for ts, n in time_runs(slices)]
        columns = [Column(0, ((), seqs)), Column(0, ((), times)), Column(0, ((), (kinds(slices, count),)))]
        columns.append(_texts(groups, count, "node"))
        if self._tags:
            columns.append(_texts(groups, count, "tag"))
        if self._meta:
            columns.append(_texts(groups, count, "meta"))
        if self._data:
            found = joined_data(slices)
            columns.append(Column(0, ((), found.offsets, found.data)))
        return arrow.batch(count, columns)


def kinds(slices: Sequence[Slice], count: int) -> bytes:
    """The number of each record's RecordKind, in a byte."""
    if all(piece.block.kinds is None for piece in slices):
        return _JSON * count
    known = [bytes(p.stop - p.start) if p.block.kinds is None else p.block.kinds[p.start : p.stop] for p in slices]
    return b"".join(known).translate(_KIND_BYTES)


def _texts(groups: Sequence[tuple[Block, Sequence[Slice]]], count: int, name: Literal["node", "tag", "meta"]) -> Column:
    values, nulls, at = Joined(), 0, 0
    valid: bytearray | None = None  # a byte for each record
    for block, slices in groups:
        packed = block.packed(name)
        size = sum([piece.stop - piece.start for piece in slices])
        if isinstance(packed, list):  # as it was appended: to pack all of it for each frame would take much longer
            packed = pack([value for piece in slices for value in packed[piece.start : piece.stop]], size)
            slices = (Slice(block, 0, size),)
        if packed is None:
            values.skip(size)
        else:
            values.add(packed, slices)
        if packed is None or packed.absent:
            valid = valid or bytearray(b"1" * count)
            if packed is None:
                valid[at : at + size] = b"0" * size
                nulls += size
            else:
                absent = _absent(packed, slices, at)
                nulls += len(absent)
                for i in absent:
                    valid[i] = 48
        at += size
    bits = () if not nulls or valid is None else (_bitmap(valid),)
    return Column(nulls, (bits, values.offsets, values.data))


def _absent(packed: VarBinary, slices: Sequence[Slice], at: int) -> list[int]:
    """Return the indexes of records without a value; the first record has index `at`."""
    absent: list[int] = []
    for piece in slices:
        absent += [at + i - piece.start for i in packed.absent_between(piece.start, piece.stop)]
        at += piece.stop - piece.start
    return absent


def _bitmap(valid: bytearray) -> bytes:
    """A bit for each byte, which is "0" or "1"; the first is the lowest."""
    if b"1" not in valid:
        return bytes((len(valid) + 7) // 8)
    valid.reverse()
    return int(valid, 2).to_bytes((len(valid) + 7) // 8, "little")


def _prefix(size: int) -> bytes:
    """Return the tag and length that precede the field's bytes on the wire."""
    prefix = bytearray((_FIELD,))
    while size > 127:
        prefix.append(size & 127 | 128)
        size >>= 7
    prefix.append(size)
    return bytes(prefix)
