"""RocksDB's write-ahead log files, read just far enough to tell damage from a torn tail.

RocksDB takes a bad record length in the last 32 KiB block of a file for a write that the crash cut short and drops
what follows in silence, synced or not; and where it does find damage it doesn't name the file. A tail is torn only if
no intact record follows the bad one.

A file is a row of 32 KiB blocks, and no record crosses one: masked crc32c (of type and payload), length, type and
payload.
"""

import struct
from pathlib import Path
from typing import Final

import google_crc32c

BLOCK: Final = 32 << 10
RECORD: Final = struct.Struct("<IHB")
_PLAIN_TYPES = range(1, 5)  # full, first, middle, last


def find_damage(directory: Path, *, whole: bool) -> str | None:
    """The first damaged log file and the byte where the damage is, or None.

    Looks at the last block of each file, where RocksDB is silent. With `whole` (seconds for a full log) it looks at
    everything, and names the first bad record whatever follows: for when RocksDB has refused.
    """
    for path in sorted(directory.glob("*.log")):
        size = path.stat().st_size
        last = max(0, size - 1) // BLOCK * BLOCK
        with path.open("rb") as file:
            for start in range(0 if whole else last, size, BLOCK):
                file.seek(start)
                at = _damage(file.read(BLOCK), tail=not whole)
                if at is not None:
                    return f"the write-ahead log {path} is damaged at byte {start + at}"
    return None


def _damage(block: bytes, *, tail: bool) -> int | None:
    at = 0
    while len(block) - at >= RECORD.size:
        if block.count(0, at, at + RECORD.size) == RECORD.size:  # padding, or space that was never written
            at += 1
        elif (length := intact(block, at, len(block))) is not None:
            at += RECORD.size + length
        elif not tail or any(_plausible(block, later) for later in range(at + 1, len(block) - RECORD.size)):
            return at
        else:
            break
    return None


def intact(data: bytes, at: int, stop: int) -> int | None:
    """The payload length of the record at `at` if it ends before `stop`, and its checksum holds."""
    if at + RECORD.size > stop:
        return None
    stored, length, _ = RECORD.unpack_from(data, at)
    if at + RECORD.size + length > stop:
        return None
    return length if _masked(google_crc32c.value(data[at + 6 : at + RECORD.size + length])) == stored else None


def _plausible(block: bytes, at: int) -> bool:
    return block[at + 6] in _PLAIN_TYPES and intact(block, at, len(block)) is not None


def _masked(crc: int) -> int:
    """RocksDB's mask, so that a checksum of stored checksums is not degenerate."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
