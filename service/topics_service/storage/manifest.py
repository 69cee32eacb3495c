"""Reader of RocksDB's manifest: the families, the tables and the needed write-ahead logs.

A manifest has records like a log file, each a list of fields: a tag and its value. Records can form a group
that counts as a whole or not at all.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from topics_service.storage.wal.batches import text, to_varint, varint
from topics_service.storage.wal.records import mapped, records

_COMPARATOR, _LOG, _NEXT_FILE, _SEQUENCE, _CURSOR, GONE, _PREVIOUS_LOG, _MIN_LOG = 1, 2, 3, 4, 5, 6, 9, 10
TABLE: Final = 103
FAMILY, _ADDED, _DROPPED, _LAST_FAMILY = 200, 201, 202, 203
_GROUP: Final = 300
_MAY_BE_SKIPPED: Final = 1 << 13  # a bit of tags, and a text behind them
_FACTS_END: Final = 1
_OF_FILE: Final = frozenset({12, 15})  # of the facts of a table: its identity, the size of its end
_NUMBERS: Final = frozenset({_NEXT_FILE, _SEQUENCE, _PREVIOUS_LOG, _LAST_FAMILY})


class TableFacts(Struct, frozen=True, kw_only=True):
    """A table of the database: its family by number, its level, its greatest key and sequence number; `facts` is the
    rest as written."""

    number: int
    family: int
    level: int
    size: int
    last_key: bytes
    last_seq: int
    facts: bytes


class Manifest(Struct, kw_only=True):
    """The state that its records come to. `families`: numbers by name. `logs`: by the number of a family the first log
    with rows that are in no table of it. `tables`: those of the database, by the number of the file. `flushed_seq`: the
    highest sequence number that any table was made with."""

    families: dict[str, int]
    logs: dict[int, int]
    tables: dict[int, TableFacts] = {}
    min_log: int = 0
    flushed_seq: int = 0

    @property
    def first_log(self) -> int:
        """The first log that is needed."""
        return max(self.min_log, min(self.logs.values()))


class _Edit(Struct):
    family: int = 0
    added: str | None = None
    dropped: bool = False
    log: int | None = None
    min_log: int | None = None
    gone: list[int] = []
    new: list[TableFacts] = []
    left_in_group: int | None = None


def path_in(directory: Path) -> Path:
    """The manifest by CURRENT. Raises OSError, and ValueError if that is no text."""
    return directory / (directory / "CURRENT").read_text().strip()


def read(directory: Path) -> Manifest:
    """Read the manifest of a database. Raises OSError, and ValueError if it is damaged."""
    path = path_in(directory)
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
        if edit.min_log is not None:
            found.min_log = max(found.min_log, edit.min_log)
        for number in edit.gone:
            found.tables.pop(number, None)
        for facts in edit.new:
            found.tables[facts.number] = replace(facts, family=edit.family)  # which may stand behind it
            found.flushed_seq = max(found.flushed_seq, facts.last_seq)


def _edit(record: bytes) -> _Edit:
    edit, at = _Edit(), 0
    while at < len(record):
        tag, at = varint(record, at)
        if tag == _LOG:
            edit.log, at = varint(record, at)
        elif tag == _MIN_LOG:
            edit.min_log, at = varint(record, at)
        elif tag == FAMILY:
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
        elif tag == GONE:
            _, at = varint(record, at)
            number, at = varint(record, at)
            edit.gone.append(number)
        elif tag == TABLE:
            facts, at = _table(record, at)
            edit.new.append(facts)
        else:
            raise ValueError(f"a field of the kind {tag}")
    return edit


def _table(record: bytes, at: int) -> tuple[TableFacts, int]:
    """A table that is made known, of no family yet, and where that ends."""
    level, at = varint(record, at)
    number, at = varint(record, at)
    size, at = varint(record, at)
    start = at
    _, at = text(record, at)
    last_key, at = text(record, at)
    _, at = varint(record, at)
    last_seq, at = varint(record, at)
    kept = record[start:at]
    while True:
        start = at
        tag, at = varint(record, at)
        if tag == _FACTS_END:
            break
        _, at = text(record, at)
        if tag not in _OF_FILE:
            kept += record[start:at]
    facts = kept + to_varint(_FACTS_END)
    return TableFacts(
        number=number, family=0, level=level, size=size, last_key=last_key, last_seq=last_seq, facts=facts
    ), at
