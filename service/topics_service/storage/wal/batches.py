"""The batches in RocksDB's write-ahead log, and the rows in a batch. Pure.

Each record of the log is one atomic batch over all column families (or several that were written together): sequence
number of its first row, number of rows, rows. The next batch begins with the sequence number behind its last row, also
in the next file. So a log that is cut behind a batch is the state of the whole database at one moment.

For the layout of records in a file see `records`. A piece of a file that ends after a batch can be read alone.
"""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from topics_service.storage.wal.records import Data, records

MOMENT_KEY: Final = b"written_ms"
"""The META row with the time of writing, in the first batch of every millisecond."""

_BODY: Final = struct.Struct("<QI")
_U64: Final = struct.Struct(">Q")
_META: Final = 0  # RocksDB's default column family
DELETE, PUT, DELETE_RANGE = 0, 1, 15
_OF_FAMILIES: Final = {4: DELETE, 5: PUT, 14: DELETE_RANGE}
_MARK: Final = bytes([PUT, len(MOMENT_KEY)]) + MOMENT_KEY + bytes([_U64.size])


class Batch(NamedTuple):
    """`stop` is the byte of the file after it, `seq` the sequence number of its first row, `next_seq` the one after its
    last, `rows` the input of `rows`.
    """

    stop: int
    seq: int
    next_seq: int
    rows: bytes


class Row(NamedTuple):
    """A row of the family with this number in the database; `value` is None for one that is removed, by key."""

    family: int
    key: bytes
    value: bytes | None


class Change(NamedTuple):
    """A change of the family with this number in the database. `kind`: PUT, DELETE, or DELETE_RANGE, of the keys from
    `key` up to `value`. A DELETE has an empty value."""

    kind: int
    family: int
    key: bytes
    value: bytes


def batches(data: Data, start: int = 0) -> Iterator[Batch]:
    """Yield the batches in a piece of a log file, as read by `records`."""
    for stop, record in records(data, start):
        batch = batch_of(stop, record)
        if batch is None:
            return
        yield batch


def batch_of(stop: int, record: bytes) -> Batch | None:
    """Return the batch in a record; None if it is too short."""
    if len(record) < _BODY.size:
        return None
    seq, count = _BODY.unpack_from(record)
    return Batch(stop, seq, seq + count, record[_BODY.size :])


def rows(batch: Batch) -> Iterator[Row]:
    """Yield the rows that a batch sets and removes, in order; removed ranges are skipped.

    Raises ValueError for content that this server never writes.
    """
    for kind, family, key, value in changes(batch):
        if kind != DELETE_RANGE:
            yield Row(family, key, value if kind == PUT else None)


def changes(batch: Batch) -> Iterator[Change]:
    """Yield all that a batch changes, in order. Raises ValueError for content that this server never writes."""
    data, at = batch.rows, 0
    try:
        while at < len(data):
            kind, family, at = data[at], _META, at + 1
            if kind in _OF_FAMILIES:
                kind = _OF_FAMILIES[kind]
                family, at = varint(data, at)
            key, at = text(data, at)
            value = b""
            if kind in (PUT, DELETE_RANGE):
                value, at = text(data, at)
            elif kind != DELETE:
                raise ValueError(f"a row of the kind {kind}")
            yield Change(kind, family, key, value)
    except IndexError:
        raise ValueError("a batch ends in the middle of a row") from None


def written_ms(batch: Batch) -> int | None:
    """Return the time at which the batch was written; None means the same millisecond as the one before."""
    if _MARK not in batch.rows:  # it can be within a value, too
        return None
    found = [row.value for row in rows(batch) if row.family == _META and row.key == MOMENT_KEY]
    if not found or found[-1] is None:
        return None
    if len(found[-1]) != _U64.size:
        raise ValueError(f"a time of {len(found[-1])} bytes")
    ms: int = _U64.unpack(found[-1])[0]
    return ms


def text(data: bytes, at: int) -> tuple[bytes, int]:
    """Return a length-prefixed text, and its end. Raises IndexError."""
    length, at = varint(data, at)
    if at + length > len(data):
        raise IndexError
    return data[at : at + length], at + length


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of seven bits per byte, and its end. Raises IndexError."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:  # it would take time by the square of its length
            raise IndexError


def to_varint(value: int) -> bytes:
    """Encode a number for `varint`."""
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)
