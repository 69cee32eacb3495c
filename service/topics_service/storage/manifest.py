"""RocksDB's manifest, read far enough to tell which families there are and which write-ahead logs are needed.

A manifest has records as a log file has, each a row of fields: a tag, and what the tag says. Records can form a group
that counts as a whole or not at all.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from msgspec import Struct

from topics_service.storage.walbatches import text, varint
from topics_service.storage.walrecords import mapped, records

_COMPARATOR, _LOG, _NEXT_FILE, _SEQUENCE, _CURSOR, _GONE, _PREVIOUS_LOG, _LEAST_LOG = 1, 2, 3, 4, 5, 6, 9, 10
_TABLE: Final = 103
_FAMILY, _ADDED, _DROPPED, _LAST_FAMILY = 200, 201, 202, 203
_GROUP: Final = 300
_MAY_BE_SKIPPED: Final = 1 << 13  # a bit of tags, and a text behind them
_TABLE_ENDS: Final = 1
_NUMBERS: Final = frozenset({_NEXT_FILE, _SEQUENCE, _PREVIOUS_LOG, _LAST_FAMILY})


class Manifest(Struct, kw_only=True):
    """What it says in the end. `families` by name, and for each, by its number, the first log with rows that are in no
    table of it; `flushed_seq`: the highest sequence number that a table was made with."""

    families: dict[str, int]
    logs: dict[int, int]
    least_log: int = 0
    flushed_seq: int = 0

    @property
    def first_log(self) -> int:
        """The first log that is needed."""
        return max(self.least_log, min(self.logs.values()))


class _Edit(Struct):
    family: int = 0
    added: str | None = None
    dropped: bool = False
    log: int | None = None
    least_log: int | None = None
    flushed_seq: int = 0
    left_in_group: int | None = None


def read(directory: Path) -> Manifest:
    """The manifest of a database. Raises OSError, and ValueError for one that is damaged."""
    path = directory / (directory / "CURRENT").read_text().strip()
    found = Manifest(families={"default": 0}, logs={0: 0})
    group: list[_Edit] = []
    with mapped(path) as data:
        for _, record in records(data):
            try:
                edit = _edit(record)
            except (IndexError, UnicodeDecodeError, ValueError) as error:
                raise ValueError(f"{path} can't be read: {error}") from None
            group.append(edit)
            if not edit.left_in_group:
                _apply(found, group)
                group = []
    return found


def _apply(found: Manifest, edits: Iterable[_Edit]) -> None:
    for edit in edits:
        if edit.added is not None:
            found.families[edit.added] = edit.family
            found.logs.setdefault(edit.family, 0)
        if edit.dropped:
            found.logs.pop(edit.family, None)
        if edit.log is not None:
            found.logs[edit.family] = edit.log
        if edit.least_log is not None:
            found.least_log = max(found.least_log, edit.least_log)
        found.flushed_seq = max(found.flushed_seq, edit.flushed_seq)


def _edit(record: bytes) -> _Edit:
    edit, at = _Edit(), 0
    while at < len(record):
        tag, at = varint(record, at)
        if tag == _LOG:
            edit.log, at = varint(record, at)
        elif tag == _LEAST_LOG:
            edit.least_log, at = varint(record, at)
        elif tag == _FAMILY:
            edit.family, at = varint(record, at)
        elif tag == _ADDED:
            name, at = text(record, at)
            edit.added = name.decode()
        elif tag == _DROPPED:
            edit.dropped = True
        elif tag == _GROUP:
            edit.left_in_group, at = varint(record, at)
        elif tag in _NUMBERS:
            _, at = varint(record, at)
        elif tag == _COMPARATOR or tag & _MAY_BE_SKIPPED:
            _, at = text(record, at)
        elif tag == _CURSOR:
            _, at = varint(record, at)
            _, at = text(record, at)
        elif tag == _GONE:
            _, at = varint(record, at)
            _, at = varint(record, at)
        elif tag == _TABLE:
            seq, at = _table(record, at)
            edit.flushed_seq = max(edit.flushed_seq, seq)
        else:
            raise ValueError(f"a field of the kind {tag}")
    return edit


def _table(record: bytes, at: int) -> tuple[int, int]:
    """The highest sequence number in a table that is made known, and where that ends."""
    for read in (varint, varint, varint, text, text, varint):  # level, number, size, first and last key, lowest
        _, at = read(record, at)
    seq, at = varint(record, at)
    while True:
        tag, at = varint(record, at)
        if tag == _TABLE_ENDS:
            return seq, at
        _, at = text(record, at)
