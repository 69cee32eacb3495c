"""The 61 bytes before the records of a batch, and a broker's changes of a stored batch that do not read its records.

    base offset i64, length i32 (of what follows), leader epoch i32, magic i8, crc u32 (CRC-32C of what follows),
    attributes i16, last offset delta i32, base timestamp i64, max timestamp i64, producer id i64, producer epoch i16,
    base sequence i32, record count i32, records

The checksum leaves out the offset, the length and the leader epoch, so these three can be patched.
"""

import struct
from typing import Final, Literal, NamedTuple

import google_crc32c

Buffer = bytes | bytearray | memoryview

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
CRC_FROM: Final = 21  # the checksum covers the bytes from here on
MAGIC: Final = 2
CODEC_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20

_LENGTH_FROM: Final = 12  # the length counts the bytes from here on
_MAGIC_AT: Final = 16
_BASE_AND_LENGTH: Final = struct.Struct(">qi")
_PREFIX: Final = struct.Struct(">qii")
_CHECKED_FIELDS: Final = struct.Struct(">hiqqqhii")  # those that the checksum covers

ErrorCode = Literal["corrupt", "magic", "invalid", "too_large", "codec"]


class InvalidBatchError(Exception):
    """The bytes are not a record batch that a producer may send.

    `code` says which answer the producer gets: "corrupt" (bytes damaged on the way), "magic" (a message format before
    version 2), "codec" (unknown compression), "too_large" (as sent, or inflated), "invalid" (everything else).
    """

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code: ErrorCode = code


class Header(NamedTuple):
    """The fields before the records, in their order. Times are milliseconds; `length` counts the bytes after it."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_ts: int
    max_ts: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int  # type: ignore[assignment]  # `tuple.count` is never used on a header

    @property
    def size(self) -> int:
        """The bytes of the whole batch."""
        return self.length + _LENGTH_FROM

    @property
    def codec(self) -> int:
        """The compression of the records: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & CODEC_MASK

    @property
    def is_log_append_time(self) -> bool:
        """Return whether all records have the time `max_ts`, set by the broker."""
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        """Return whether the batch is part of a transaction."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Return whether the records are markers for clients, not for applications."""
        return bool(self.attributes & CONTROL)


def crc32c(data: Buffer) -> int:
    """The CRC-32C of `data`. google-crc32c takes only bytes; with the copy it does 8 to 14 GB/s."""
    checksum: int = google_crc32c.value(data if isinstance(data, bytes) else bytes(data))
    return checksum


def header_of(batch: Buffer, position: int = 0) -> Header:
    """The header at `position`. Raises InvalidBatchError (corrupt) if there are too few bytes for one."""
    try:
        return Header._make(HEADER.unpack_from(batch, position))
    except struct.error:
        raise InvalidBatchError("corrupt", f"{len(batch) - position} bytes are no batch header") from None


def headers(body: Buffer) -> list[tuple[int, Header]]:
    """The byte position and the header of each batch in a row of one or more whole batches.

    Raises InvalidBatchError (corrupt) if the lengths don't lead to the end of `body`.
    """
    found: list[tuple[int, Header]] = []
    position = 0
    while position < len(body):
        header = header_of(body, position)
        if header.size < HEADER.size or position + header.size > len(body):
            raise InvalidBatchError("corrupt", f"a batch of {header.size} bytes at {position} of {len(body)}")
        found.append((position, header))
        position += header.size
    return found


def checked_header(records: Buffer, max_bytes: int) -> tuple[Header, bytes]:
    """The header of the one batch that `records` has to be, and a copy of the bytes under the checksum.

    Raises InvalidBatchError for faults of the header, and for a wrong checksum.
    """
    size = len(records)
    if size > _MAGIC_AT and records[_MAGIC_AT] != MAGIC:
        raise InvalidBatchError("magic", f"message format {records[_MAGIC_AT]}, only {MAGIC} is supported")
    header = header_of(records)
    if size > max_bytes:
        raise InvalidBatchError("too_large", f"the batch has {size} bytes, the limit is {max_bytes}")
    if not HEADER.size <= header.size <= size:
        raise InvalidBatchError("corrupt", f"the batch claims {header.size} bytes and has {size}")
    if header.size < size:
        raise InvalidBatchError("invalid", "more than one batch for a partition")
    covered = bytes(records[CRC_FROM:])
    if crc32c(covered) != header.crc:
        raise InvalidBatchError("corrupt", "the checksum of the batch does not match")
    if header.attributes & (TRANSACTIONAL | CONTROL):
        raise InvalidBatchError("invalid", "transactional and control batches are not supported")
    if header.count < 1 or header.last_offset_delta != header.count - 1:
        raise InvalidBatchError("invalid", f"{header.count} records, last offset delta {header.last_offset_delta}")
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise InvalidBatchError("invalid", f"sequence number {header.base_sequence} of producer {header.producer_id}")
    return header, covered


def assembled(header: Header, records: bytes) -> bytes:
    """The batch of these uncompressed records; length, leader epoch, magic and crc of `header` are recomputed."""
    fields = _CHECKED_FIELDS.pack(*header[5:])
    checksum = google_crc32c.extend(google_crc32c.value(fields), records)
    length = HEADER.size - _LENGTH_FROM + len(records)
    return HEADER.pack(header.base_offset, length, 0, MAGIC, checksum, *header[5:]) + records


def stamped(batch: Buffer, ts: int) -> bytes:
    """The batch with all its records at the broker's time `ts`: LogAppendTime."""
    header = header_of(batch)
    attributes = header.attributes | LOG_APPEND_TIME
    fields = _CHECKED_FIELDS.pack(attributes, *header[6:8], ts, *header[9:])
    records = bytes(batch[HEADER.size : header.size])
    checksum = google_crc32c.extend(google_crc32c.value(fields), records)
    return HEADER.pack(*header[:4], checksum, attributes, *header[6:8], ts, *header[9:]) + records


def patched(batch: memoryview, base_offset: int, leader_epoch: int = 0) -> list[bytes | memoryview]:
    """The batch at another offset, as pieces to be sent one after the other. The records are not copied."""
    _, length = _BASE_AND_LENGTH.unpack_from(batch)
    return [_PREFIX.pack(base_offset, length, leader_epoch), batch[_PREFIX.size :]]


def control(offset: int, ts: int) -> bytes:
    """A batch of one COMMIT marker at `offset`.

    Applications never see it, and every client steps over it: it stands where a log ends in deleted records.
    """
    # length, attributes, timestamp delta, offset delta; key: version 0, type 1 = commit;
    # value: version 0, coordinator epoch 0; no headers
    record = bytes.fromhex("2000000008000000010c00000000000000")
    return assembled(Header(offset, 0, 0, MAGIC, 0, TRANSACTIONAL | CONTROL, 0, ts, ts, 0, 0, -1, 1), record)
