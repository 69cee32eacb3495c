"""The records inside a batch: checked, read, and cut out.

    length, attributes i8, timestamp delta, offset delta, key length and key, value length and value, header count,
    then for each header: name length and name, value length and value

Lengths, deltas and the count are varints; a length of -1 is null, except for a header's name.

Records are read by the C reader of aiokafka, five to ten times faster than Python can. It is an internal module of that
package, so it is wrapped here and nowhere else, its version is pinned, and it is not trusted: it gets bytes that we
inflated, in pieces of at most 1 MiB so that its result for hostile bytes stays small, with zeros after the piece
because it may read up to ten bytes too far. Records that it can't read go through `parsed`, which also takes header
names that are not UTF-8.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Final, NamedTuple, Protocol, cast

from aiokafka.record._crecords.default_records import DefaultRecordBatch

from topics_service.storage.recordbatch.header import (
    CODEC_MASK,
    CRC_FROM,
    HEADER,
    MAGIC,
    Buffer,
    Header,
    InvalidBatchError,
    assembled,
    checked_header,
    header_of,
)
from topics_service.storage.recordbatch.inflate import inflated
from topics_service.storage.recordbatch.varint import MalformedRecordError, read_varint

MAX_INFLATED: Final = 16 << 20
MAX_RECORDS: Final = 1 << 17

_SMALLEST: Final = 7  # bytes of a record: one for each number, no key, no value, no headers
_PIECE: Final = 1 << 20
_BEHIND: Final = bytes(32)
_STORED_LIMIT: Final = 1 << 30  # for batches that `check` let pass with whatever limit it had
_MAX_ODD: Final = 10_000  # records of a batch that are worth Python's time
_MAX_HEADERS: Final = 100_000  # of one of them
_MIN_I64, _MAX_I64 = -(1 << 63), (1 << 63) - 1


class _ReadRecord(Protocol):
    """A record as the C reader gives it. `timestamp` is None for -1."""

    offset: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class ParsedRecord(NamedTuple):
    """A record, read in Python."""

    ts_delta: int
    offset_delta: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[bytes, bytes | None]]


class ReadColumns(NamedTuple):
    """Records as the C reader gives them."""

    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[list[tuple[str, bytes | None]]]


class Piece(NamedTuple):
    """The records first .. first + records - 1 of a batch, as bytes."""

    first: int
    records: int
    data: Buffer

    def can_be_read(self) -> bool:
        """Return whether `read` and `timestamps` can read it, and each record is where its offset says."""
        try:
            return [record.offset for record in self._reader()] == list(range(self.first, self.first + self.records))
        except Exception:  # the reader's own error, or whatever Python's allocator and UTF-8 decoder raise
            return False

    def read(self) -> ReadColumns | None:
        """The keys, values and headers of the records; None unless `can_be_read`."""
        keys: list[bytes | None] = []
        values: list[bytes | None] = []
        headers: list[list[tuple[str, bytes | None]]] = []
        position = self.first
        try:
            for record in self._reader():
                if record.offset != position:
                    return None
                keys.append(record.key)
                values.append(record.value)
                headers.append(record.headers)
                position += 1
        except Exception:  # as above
            return None
        return ReadColumns(keys, values, headers)

    def timestamps(self, base_ts: int) -> list[int]:
        """The CreateTime of each record."""
        try:
            return [-1 if (ts := record.timestamp) is None else ts for record in self._reader(base_ts)]
        except Exception:  # as above
            return [_timestamp(frame, base_ts) for frame in self.frames()]

    def frames(self) -> Iterator[bytes]:
        """The bytes of each record, without the length before them."""
        data = bytes(self.data)
        begin = 0
        for stop in _stops(data, self.records):
            _, start = read_varint(data, begin)
            yield data[start:stop]
            begin = stop

    def _reader(self, base_ts: int = 0) -> Iterator[_ReadRecord]:
        if len(self.data) > _PIECE:
            raise MalformedRecordError("too large for the C reader")
        header = HEADER.pack(0, 0, 0, MAGIC, 0, 0, 0, base_ts, 0, -1, -1, -1, self.records)
        buffer = memoryview(b"".join((header, self.data, _BEHIND)))[: HEADER.size + len(self.data)]
        return cast(Iterator[_ReadRecord], DefaultRecordBatch(buffer))


def pieces(body: Buffer, count: int) -> Iterator[Piece]:
    """The `count` records of `body` in runs of at most 1 MiB; a larger record is a separate piece.

    Raises MalformedRecordError if the lengths before the records don't lead to its end. With a single piece this
    shows only when the piece is read.
    """
    if len(body) <= _PIECE:
        yield Piece(0, count, body)
        return
    body = bytes(body)
    stops = _stops(body, count)
    first = begin = 0
    while first < count:
        after = max(first + 1, bisect_right(stops, begin + _PIECE, lo=first))
        end = stops[after - 1]
        yield Piece(first, after - first, body[begin:end])
        first, begin = after, end


def check(records: Buffer, *, max_bytes: int, max_inflated: int = MAX_INFLATED) -> Header:
    """The header of `records`, if they are exactly one well-formed batch that a producer may send.

    That is: magic 2, right length and CRC-32C, at least one record, last offset delta count - 1, a known codec,
    neither transactional nor control, a sequence number if there is a producer id; the records inflate to at most
    `max_inflated` bytes, fill them exactly, can be read one and all, and their offset deltas are 0, 1, 2, ...

    Three limits are not Kafka's: a batch has at most 131,072 records; the pieces of 1 MiB with a header name that is
    not UTF-8 have at most 10,000 records together, and a record of more than 1 MiB at most 100,000 headers. Such
    records are read in Python.

    Raises only InvalidBatchError, whose code names the fault.
    """
    header, covered = checked_header(records, max_bytes)
    body = inflated(header.codec, memoryview(covered)[HEADER.size - CRC_FROM :], min(max_inflated, _STORED_LIMIT))
    if header.count * _SMALLEST > len(body):
        raise InvalidBatchError("invalid", f"{header.count} records in {len(body)} bytes")
    if header.count > MAX_RECORDS:
        raise InvalidBatchError("too_large", f"{header.count} records in a batch, at most {MAX_RECORDS} are taken")
    try:
        odd = 0
        for piece in pieces(body, header.count):
            if not piece.can_be_read():
                odd += piece.records
                _check_parsed(piece, odd)
    except MalformedRecordError as error:
        raise InvalidBatchError("invalid", str(error)) from None
    return header


def times(batch: Buffer) -> "array[int]":
    """The Kafka timestamp of each record, in milliseconds. -1 is Kafka's "no timestamp"."""
    header = header_of(batch)
    if header.is_log_append_time:
        return array("q", repeat(header.max_ts, header.count))
    found = array("q")
    for piece in pieces(body_of(batch, header), header.count):
        found.extend(piece.timestamps(header.base_ts))
    return found


def rebuilt(batch: Buffer, base_offset: int, keep: Sequence[int]) -> bytes:
    """The batch with only the records at these ascending positions, at least one, uncompressed.

    They keep their offsets, times, keys, values and headers, and the batch its last offset delta, its times and the
    fields of its producer.
    """
    header = header_of(batch)
    body = bytes(body_of(batch, header))
    stops = _stops(body, header.count)
    kept = b"".join([body[stops[i - 1] if i else 0 : stops[i]] for i in keep])
    attributes = header.attributes & ~CODEC_MASK
    return assembled(header._replace(base_offset=base_offset, attributes=attributes, count=len(keep)), kept)


def inflated_size(batch: Buffer, max_bytes: int) -> int | None:
    """Return the inflated size of the batch; None if it exceeds `max_bytes`. Decompresses only these."""
    header = header_of(batch)
    if not header.codec:
        return header.size if header.size <= max_bytes else None
    try:
        return HEADER.size + len(inflated(header.codec, memoryview(batch)[HEADER.size : header.size], max_bytes))
    except InvalidBatchError:
        return None


def body_of(batch: Buffer, header: Header) -> Buffer:
    """The records of a stored batch, inflated."""
    return inflated(header.codec, memoryview(batch)[HEADER.size : header.size], _STORED_LIMIT)


def parsed(frame: bytes) -> ParsedRecord:
    """The record in `frame`, the bytes after its length. Raises MalformedRecordError unless it is one exactly."""
    ts_delta, at = read_varint(frame, 1)
    offset_delta, at = read_varint(frame, at)
    key, at = _nullable(frame, at)
    value, at = _nullable(frame, at)
    count, at = read_varint(frame, at)
    # Each header has two bytes at least.
    if not 0 <= count <= min(_MAX_HEADERS, (len(frame) - at) // 2):
        raise MalformedRecordError(f"{count} headers in {len(frame) - at} bytes")
    headers: list[tuple[bytes, bytes | None]] = []
    for _ in range(count):
        name, at = _nullable(frame, at)
        if name is None:
            raise MalformedRecordError("a header without a name")
        content, at = _nullable(frame, at)
        headers.append((name, content))
    if at != len(frame):
        raise MalformedRecordError(f"{len(frame) - at} bytes after the record")
    return ParsedRecord(ts_delta, offset_delta, key, value, headers)


def _check_parsed(piece: Piece, odd: int) -> None:
    if odd > _MAX_ODD:
        raise MalformedRecordError("the records can't be read")
    for position, frame in enumerate(piece.frames(), start=piece.first):
        record = parsed(frame)
        if record.offset_delta != position:
            raise MalformedRecordError(f"offset delta {record.offset_delta} at position {position}")


def _timestamp(frame: bytes, base_ts: int) -> int:
    try:
        delta, _ = read_varint(frame, 1)
    except MalformedRecordError:
        delta = 0
    return max(_MIN_I64, min(_MAX_I64, base_ts + delta))


def _stops(body: bytes, count: int) -> "array[int]":
    """Return the end of each record. Raises MalformedRecordError if the lengths before them don't lead to the end."""
    stops = array("Q")
    add = stops.append
    size = len(body)
    at = 0
    for _ in range(count):
        # Lengths of one and two bytes, the usual ones, without a call.
        if at + 1 < size and not (low := body[at]) & 1 and (low < 0x80 or body[at + 1] < 0x80):
            at += 1 + (low >> 1) if low < 0x80 else 2 + ((low & 0x7F | body[at + 1] << 7) >> 1)
        else:
            length, at = read_varint(body, at)
            if length < 0:
                raise MalformedRecordError(f"a record of {length} bytes")
            at += length
        add(at)
    if at != size:
        raise MalformedRecordError(f"{count} records have {at} bytes, not {size}")
    return stops


def _nullable(frame: bytes, at: int) -> tuple[bytes | None, int]:
    length, at = read_varint(frame, at)
    if length < 0:
        return None, at
    stop = at + length
    if stop > len(frame):
        raise MalformedRecordError(f"{length} bytes at {at} of {len(frame)}")
    return frame[at:stop], stop
