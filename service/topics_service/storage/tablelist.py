"""The tables that a database consists of, by its manifest, and how to make that speak of another file for one.

A manifest has records as a log file has, each an edit: a row of fields, each a tag and what the tag says.
"""

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import google_crc32c
from msgspec import Struct

from topics_service.storage.walbatches import text, varint
from topics_service.storage.walrecords import BLOCK, RECORD, _masked, intact, records

_NUMBERS: Final = frozenset({2, 3, 4, 9, 10, 203, 300})  # of files and sequence numbers
_TEXTS: Final = frozenset({1, 201})
_CURSOR, _GONE, _NEW, _FAMILY, _DROPPED = 5, 6, 103, 200, 202
_MAY_BE_SKIPPED: Final = 1 << 13  # a bit of tags, and a text behind them
_END_OF_FACTS: Final = 1
_OF_FILE: Final = frozenset({12, 15})  # its identity, the size of its end
_KINDS: Final = range(1, 5)
_FULL, _FIRST, _MIDDLE, _LAST = _KINDS


class TableFacts(Struct, frozen=True, kw_only=True):
    """A table of the database: its family by number, its level, its greatest key; `facts` is the rest as written."""

    number: int
    family: int
    level: int
    size: int
    last_key: bytes
    facts: bytes


def manifest_of(directory: Path) -> Path:
    """The manifest by CURRENT. Raises OSError, and ValueError if that is no text."""
    return directory / (directory / "CURRENT").read_text().strip()


def live_tables(directory: Path) -> dict[int, TableFacts]:
    """The tables that the database consists of, by the number of the file. Raises OSError, and ValueError for a
    manifest that is damaged."""
    damage = find_damage(directory, closed=False)
    if damage is not None:
        raise ValueError(damage)
    found: dict[int, TableFacts] = {}
    for _, record in records(manifest_of(directory).read_bytes()):
        try:
            _apply(record, found)
        except (IndexError, ValueError):
            raise ValueError(f"the file {manifest_of(directory)} can't be read") from None
    return found


def find_damage(directory: Path, *, closed: bool) -> str | None:
    """Why the manifest can't be relied on: RocksDB takes some damage for its end, and never comes back from other.

    The end of the manifest of a server that was killed can be torn: then nothing follows. Raises OSError.
    """
    manifest = manifest_of(directory)
    data = manifest.read_bytes()
    end = max((stop for stop, _ in records(data)), default=0)
    if not data[end:].strip(b"\x00") or not (closed or _is_damage(data, end)):
        return None
    return f"the file {manifest} is damaged at byte {end}"


def _is_damage(data: bytes, start: int) -> bool:
    """Whether what can't be read from there on is no record that was not written to its end."""
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


def resize(manifest: Path, tables: Iterable[tuple[TableFacts, int]]) -> None:
    """Add edits by which tables have other files of these sizes under the same numbers. Raises OSError."""
    data = bytearray(manifest.read_bytes())
    for facts, size in tables:
        edit = _varint(_GONE) + _varint(facts.level) + _varint(facts.number)
        edit += _varint(_NEW) + _varint(facts.level) + _varint(facts.number) + _varint(size) + facts.facts
        _add_record(data, edit + _varint(_FAMILY) + _varint(facts.family))
    manifest.write_bytes(data)


def _apply(record: bytes, tables: dict[int, TableFacts]) -> None:
    """Raises IndexError, and ValueError for what this server's RocksDB does not write."""
    at, family = 0, 0
    gone: list[int] = []
    new: list[TableFacts] = []
    while at < len(record):
        tag, at = varint(record, at)
        if tag in _NUMBERS:
            _, at = varint(record, at)
        elif tag in _TEXTS or tag & _MAY_BE_SKIPPED:
            _, at = text(record, at)
        elif tag == _CURSOR:
            _, at = varint(record, at)
            _, at = text(record, at)
        elif tag == _GONE:
            _, at = varint(record, at)
            number, at = varint(record, at)
            gone.append(number)
        elif tag == _NEW:
            facts, at = _table(record, at)
            new.append(facts)
        elif tag == _FAMILY:
            family, at = varint(record, at)
        elif tag != _DROPPED:
            raise ValueError(f"a field {tag}")
    for number in gone:
        tables.pop(number, None)
    for facts in new:  # the family may stand behind
        tables[facts.number] = TableFacts(
            number=facts.number, family=family, level=facts.level, size=facts.size, last_key=facts.last_key,
            facts=facts.facts,
        )  # fmt: skip


def _table(record: bytes, at: int) -> tuple[TableFacts, int]:
    level, at = varint(record, at)
    number, at = varint(record, at)
    size, at = varint(record, at)
    start = at
    _, at = text(record, at)
    last_key, at = text(record, at)
    for _ in range(2):  # sequence numbers
        _, at = varint(record, at)
    kept = record[start:at]
    while True:
        start = at
        tag, at = varint(record, at)
        if tag == _END_OF_FACTS:
            break
        _, at = text(record, at)
        if tag not in _OF_FILE:
            kept += record[start:at]
    facts = kept + _varint(_END_OF_FACTS)
    return TableFacts(number=number, family=0, level=level, size=size, last_key=last_key, facts=facts), at


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
        data += RECORD.pack(_masked(google_crc32c.value(typed)), len(piece), kind) + piece
        first = False


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)
