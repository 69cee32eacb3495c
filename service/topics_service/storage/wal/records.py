"""The records of RocksDB's log files: of its write-ahead log, and of its manifest.

A file is a row of 32 KiB blocks, and no piece of a record crosses one: masked crc32c (of type and payload), length,
type and payload. A record is one piece, or a first one, middle ones and a last one. Fewer than seven bytes at the end
of a block are padding.
"""

import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import google_crc32c

BLOCK: Final = 32 << 10
RECORD: Final = struct.Struct("<IHB")
FULL, FIRST, MIDDLE, LAST = range(1, 5)

Data = bytes | mmap.mmap


class Stop(NamedTuple):
    """The end of the complete records in a file, if bytes follow: the first damaged byte.

    `torn`: the file merely ends there, as after an incomplete write.
    """

    at: int
    torn: bool


@contextmanager
def mapped(path: Path | int) -> Iterator[Data]:
    """Map the bytes of a file, which are read on access. A descriptor is closed at the end. Raises OSError."""
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            yield b""
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield data


def records(data: Data, start: int = 0) -> Iterator[tuple[int, bytes]]:
    """Yield the complete records in a piece of a log file that begins at its byte `start`, where a record ends; each
    with the byte of the file behind it.

    Stops before the first that is incomplete or has a wrong checksum.
    """
    at, size = 0, len(data)
    parts: list[bytes] = []
    while at < size:
        left = BLOCK - (start + at) % BLOCK
        if left < RECORD.size:
            at += left  # too little for a record: padding
            continue
        length = intact(data, at, min(size, at + left))
        if length is None:
            return
        kind, payload = data[at + RECORD.size - 1], data[at + RECORD.size : at + RECORD.size + length]
        at += RECORD.size + length
        if kind == FULL and not parts:
            yield start + at, payload
        elif kind == FIRST and not parts:
            parts = [payload]
        elif kind in (MIDDLE, LAST) and parts:
            parts.append(payload)
            if kind == LAST:
                yield start + at, b"".join(parts)
                parts = []
        else:
            return


def past_damage(path: Path) -> Iterator[bytes]:
    """Yield the complete records of a log file. After a damaged piece the rest of its block is skipped, as in RocksDB.

    Raises OSError.
    """
    parts: list[bytes] = []
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            at = 0
            while len(block) - at >= RECORD.size:
                length = intact(block, at, len(block))
                if length is None:
                    parts = []
                    break
                kind, payload = block[at + RECORD.size - 1], block[at + RECORD.size : at + RECORD.size + length]
                at += RECORD.size + length
                if kind in (FULL, FIRST):
                    parts = [payload]
                elif parts:
                    parts.append(payload)
                if kind in (FULL, LAST) and parts:
                    yield b"".join(parts)
                if kind in (FULL, LAST):
                    parts = []


def stop_behind(data: Data, at: int) -> Stop | None:
    """Describe the bytes behind `at` of a log file, where its last whole record ends; None at its end."""
    size, begun = len(data), False
    while at < size:
        left = BLOCK - at % BLOCK
        if left < RECORD.size:
            at += left
            continue
        length = intact(data, at, min(size, at + left))
        if length is None:
            return Stop(at, _is_cut(data, at, size, left))
        if (data[at + RECORD.size - 1] in (MIDDLE, LAST)) != begun:
            return Stop(at, torn=False)
        begun = True
        at += RECORD.size + length
    return Stop(size, torn=True) if begun else None


def _is_cut(data: Data, at: int, size: int, left: int) -> bool:
    """Return whether a record could begin at `at` that the end of the file cuts."""
    if at + RECORD.size > size:
        return True
    length, kind = RECORD.unpack_from(data, at)[1:]
    return bool(FULL <= kind <= LAST and RECORD.size + length <= left and at + RECORD.size + length > size)


def has_record(data: Data, at: int) -> bool:
    """Return whether an intact piece of a record begins behind byte `at`. Slow if many bytes look like one."""
    size = len(data)
    while at + RECORD.size <= size:
        left = BLOCK - at % BLOCK
        if left < RECORD.size:
            at += left
            continue
        if FULL <= data[at + RECORD.size - 1] <= LAST and intact(data, at, min(size, at + left)) is not None:
            return True
        at += 1
    return False


def intact(data: Data, at: int, stop: int) -> int | None:
    """Return the payload length of the record at `at` if it ends before `stop` and its checksum is right."""
    if at + RECORD.size > stop:
        return None
    stored, length, _ = RECORD.unpack_from(data, at)
    if at + RECORD.size + length > stop:
        return None
    return length if checksum(data[at + 6 : at + RECORD.size + length]) == stored else None


def checksum(typed: bytes) -> int:
    """The checksum over type and payload of a record, masked by RocksDB since checksums of checksums are degenerate."""
    crc = int(google_crc32c.value(typed))
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
