"""The objects of a shard's log as bytes: a header with a checksum, and batches of rows.

The header has 76 bytes, big-endian, the same in every version: magic, version, kind, two zero bytes, shard, epoch,
number, resume, ticket, the writer's nonce, the length of the body, and the CRC-32C of all else. The body of a data
object is batches: ticket, number of rows, rows. A row is op, family, the lengths of key and value, key, value. A fence
has no body, and version 1, which every node reads.

The version also covers what is in the rows. A new one is written only once it is final, see `formats`.
"""

import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

import google_crc32c

from topics_service.storage.store import Family

READABLE: Final = range(1, 2)
"""The versions that are read; the owner writes the newest that is final for the whole cluster."""
NONCE_BYTES: Final = 16
HEADER_BYTES: Final = 76
ROW: Final = struct.Struct(">BBII")
"""Begin of a row: op, family, length of the key, length of the value. Key and value follow."""

_MAGIC: Final = b"TOPICLOG"
_HEADER: Final = struct.Struct(">8sBBHIQQQQ16sQ")
_CHECKSUM: Final = struct.Struct(">I")
_BATCH: Final = struct.Struct(">QI")
_FAMILIES: Final = len(Family)
_JOINED_BYTES: Final = 4096

Row = tuple[int, int, bytes, bytes]
"""Op, family, key and value; of a DELETE_RANGE its start and stop, of a DELETE the value is empty."""


class DamagedObjectError(Exception):
    """An object is not what its writer made; `name` is its name."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"the object {name} is damaged: {why}")
        self.name = name


class LaterFormatError(Exception):
    """A later version wrote the object `name`, in a format that this one does not know."""

    def __init__(self, name: str, version: int) -> None:
        super().__init__(f"a later version wrote the object {name}: it has format {version}, this one reads {newest()}")
        self.name = name


class Kind(IntEnum):
    """The kinds of objects."""

    DATA = 1
    FENCE = 2


class Op(IntEnum):
    """The kinds of rows."""

    PUT = 1
    DELETE = 2
    DELETE_RANGE = 3


class Header(NamedTuple):
    """All that is known of an object without its rows."""

    kind: Kind
    shard: int
    epoch: int
    number: int
    resume: int
    """Of a fence: the first number of its epoch. Of data: the first number that its writer does not begin before this
    object is acknowledged."""
    ticket: int
    """That of its last batch. Of a fence that of the last batch that its writer had read."""
    nonce: bytes
    """16 random bytes of the writer's life."""


class Batch(NamedTuple):
    """Rows that take effect together."""

    ticket: int
    rows: Sequence[Row]


class LogObject(NamedTuple):
    """A decoded object; a fence has no batches."""

    header: Header
    batches: Sequence[Batch]


def newest() -> int:
    """The newest version that is read."""
    return READABLE[-1]


def prefix(shard: int) -> str:
    """The prefix of the names of all objects of a shard's log."""
    return f"s{shard}/log/"


def name(shard: int, number: int) -> str:
    """The name of an object."""
    return f"s{shard}/log/{number:020}"


def number_of(name: str) -> int:
    """The number in a name of `name`. Raises ValueError."""
    digits = name.rpartition("/")[2]
    if len(digits) != 20 or not (digits.isascii() and digits.isdigit()):
        raise ValueError(f"{name!r} is no name of a log's object")
    return int(digits)


def row(op: Op, family: Family, key: bytes, value: bytes = b"") -> bytes:
    """The bytes of a row."""
    return ROW.pack(op, family, len(key), len(value)) + key + value


def batch_start(ticket: int, rows: int) -> bytes:
    """The bytes before the rows of a batch."""
    return _BATCH.pack(ticket, rows)


def batch_parts(ticket: int, rows: Sequence[Row]) -> list[bytes]:
    """The bytes of a batch, in parts. Large values are parts of their own, without a copy."""
    parts: list[bytes] = []
    small = [batch_start(ticket, len(rows))]
    for op, family, key, value in rows:
        small.append(ROW.pack(op, family, len(key), len(value)))
        small.append(key)
        if len(value) < _JOINED_BYTES:
            small.append(value)
        else:
            parts.append(b"".join(small))
            parts.append(value)
            small.clear()
    if small:
        parts.append(b"".join(small))
    return parts


def encode(header: Header, body: Iterable[bytes] = (), *, version: int = 1) -> list[bytes]:
    """The parts of an object, without a copy of the body's."""
    parts = [b"", *body]
    start = _HEADER.pack(
        _MAGIC,
        version,
        header.kind,
        0,
        header.shard,
        header.epoch,
        header.number,
        header.resume,
        header.ticket,
        header.nonce,
        sum(map(len, parts)),
    )
    checksum = google_crc32c.value(start)
    for part in parts:
        checksum = google_crc32c.extend(checksum, part)
    parts[0] = start + _CHECKSUM.pack(checksum)
    return parts


def decode(shard: int, number: int, data: bytes) -> LogObject:
    """Decode the object that was found under a name.

    Raises DamagedObjectError, also if it belongs under another name, and LaterFormatError.
    """
    where = name(shard, number)
    try:
        return _decode(shard, number, data)
    except _LaterVersionError as error:
        raise LaterFormatError(where, error.version) from None
    except (ValueError, struct.error) as error:
        raise DamagedObjectError(where, str(error)) from None


class _LaterVersionError(Exception):
    def __init__(self, version: int) -> None:
        self.version = version


def _decode(shard: int, number: int, data: bytes) -> LogObject:
    if len(data) < HEADER_BYTES:
        raise ValueError(f"it has {len(data)} bytes, fewer than a header")
    magic, version, kind, zero, its_shard, epoch, its_number, resume, ticket, nonce, length = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise ValueError("it does not begin as an object of a log")
    if length != len(data) - HEADER_BYTES:
        raise ValueError(f"its body has {len(data) - HEADER_BYTES} of {length} bytes")
    checksum = google_crc32c.extend(google_crc32c.value(data[: _HEADER.size]), data[HEADER_BYTES:])
    if checksum != _CHECKSUM.unpack_from(data, _HEADER.size)[0]:
        raise ValueError("its checksum does not match")
    if version > newest():
        raise _LaterVersionError(version)
    if version not in READABLE or zero:
        raise ValueError(f"it has version {version}")
    header = Header(Kind(kind), its_shard, epoch, its_number, resume, ticket, nonce)
    if (header.shard, header.number) != (shard, number):
        raise ValueError(f"it is number {header.number} of shard {header.shard}")
    if header.resume <= number or not header.epoch:
        raise ValueError(f"it has epoch {header.epoch} and resumes at {header.resume}")
    batches = _batches(data)
    if (header.kind is Kind.DATA) != bool(batches) or (batches and batches[-1].ticket != header.ticket):
        raise ValueError(f"its batches do not end with ticket {header.ticket}")
    return LogObject(header, batches)


def _batches(data: bytes) -> list[Batch]:
    """The batches of a body whose checksum matches."""
    batches: list[Batch] = []
    at, end = HEADER_BYTES, len(data)
    unpack, size = ROW.unpack_from, ROW.size
    while at < end:
        ticket, count = _BATCH.unpack_from(data, at)
        at += _BATCH.size
        if count * size > end - at:
            raise ValueError(f"batch {ticket} has {count} rows in {end - at} bytes")
        if batches and ticket != batches[-1].ticket + 1:
            raise ValueError(f"batch {ticket} follows batch {batches[-1].ticket}")
        rows: list[Row] = []
        for _ in range(count):
            op, family, key_bytes, value_bytes = unpack(data, at)
            middle = at + size + key_bytes
            stop = middle + value_bytes
            if stop > end or not 1 <= op <= 3 or family >= _FAMILIES:
                raise ValueError(f"batch {ticket} has a row of op {op}, family {family} and {stop - at} bytes")
            rows.append((op, family, data[at + size : middle], data[middle:stop]))
            at = stop
        batches.append(Batch(ticket, rows))
    return batches
