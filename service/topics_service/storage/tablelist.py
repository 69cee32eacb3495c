"""Tables in the manifest of a database: damage that RocksDB ignores, listing, and edits that replace files."""

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from topics_service.storage import manifest
from topics_service.storage.manifest import TableFacts
from topics_service.storage.wal.batches import to_varint
from topics_service.storage.wal.records import BLOCK, RECORD, checksum, intact, records

_KINDS: Final = range(1, 5)
_FULL, _FIRST, _MIDDLE, _LAST = _KINDS


def live_tables(directory: Path) -> dict[int, TableFacts]:
    """The tables that the database consists of, by the number of the file. Raises OSError, and ValueError for a
    manifest that is damaged."""
    damage = find_damage(directory, closed=False)
    if damage is not None:
        raise ValueError(damage)
    return manifest.read(directory).tables


def find_damage(directory: Path, *, closed: bool) -> str | None:
    """Describe damage of the manifest: RocksDB takes some of it for its end, and never comes back from other.

    The end of the manifest of a server that was killed can be torn: then nothing follows. Raises OSError.
    """
    path = manifest.path_in(directory)
    data = path.read_bytes()
    end = max((stop for stop, _ in records(data)), default=0)
    if not data[end:].strip(b"\x00") or not (closed or _is_damage(data, end)):
        return None
    return f"the file {path} is damaged at byte {end}"


def _is_damage(data: bytes, start: int) -> bool:
    """Return whether the rest is more than a record that was not written to its end."""
    at = start
    while at + RECORD.size <= len(data):
        block_end = min(len(data), (at // BLOCK + 1) * BLOCK)
        length = RECORD.unpack_from(data, at)[1] if at + RECORD.size <= block_end else 0
        if intact(data, at, block_end) is not None:
            at += RECORD.size + length  # a piece of a longer record
            continue
        whole = bool(length) and at + RECORD.size + length <= block_end
        return whole or any(
            data[later + RECORD.size - 1] in _KINDS and intact(data, later, block_end) is not None
            for later in range(at + 1, block_end - RECORD.size)
        )
    return False


def resize(path: Path, tables: Iterable[tuple[TableFacts, int]]) -> None:
    """Add edits by which tables have other files of these sizes under the same numbers. Raises OSError."""
    data = bytearray(path.read_bytes())
    for facts, size in tables:
        edit = to_varint(manifest.GONE) + to_varint(facts.level) + to_varint(facts.number)
        edit += (
            to_varint(manifest.TABLE) + to_varint(facts.level) + to_varint(facts.number) + to_varint(size) + facts.facts
        )
        _add_record(data, edit + to_varint(manifest.FAMILY) + to_varint(facts.family))
    path.write_bytes(data)


def _add_record(data: bytearray, payload: bytes) -> None:
    """Add a record behind the others, in pieces that cross no block."""
    first = True
    while payload or first:
        left = BLOCK - len(data) % BLOCK
        if left <= RECORD.size:
            data += bytes(left)
            continue
        piece, payload = payload[: left - RECORD.size], payload[left - RECORD.size :]
        kind = (_FULL if first else _LAST) if not payload else (_FIRST if first else _MIDDLE)
        typed = struct.pack("B", kind) + piece
        data += RECORD.pack(checksum(typed), len(piece), kind) + piece
        first = False
