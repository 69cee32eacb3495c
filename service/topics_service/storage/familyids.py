"""The numbers that RocksDB gave to the column families, which stand in its write-ahead log. Its manifest has them.

A manifest has records as a log file has, each a row of fields: a tag, and what the tag says. A family is
made known by a record of its own, which holds none but the fields named here.
"""

from pathlib import Path
from typing import Final

from topics_service.storage.rocks import _name
from topics_service.storage.store import Family
from topics_service.storage.walbatches import records, text, varint

_NUMBERS: Final = frozenset({2, 3, 4, 9, 10, 203})  # of files and sequence numbers
_TEXTS: Final = frozenset({1})  # the comparator
_ID: Final = 200
_ADD: Final = 201
_MAY_BE_SKIPPED: Final = 1 << 13  # a bit of tags, and a text behind them


def family_ids(directory: Path) -> dict[Family, int]:
    """The number of each family of a database. Raises OSError, and ValueError for a damaged manifest."""
    manifest = directory / (directory / "CURRENT").read_text().strip()
    found = {"default": 0}
    for _, record in records(manifest.read_bytes()):
        try:
            added = _added(record)
        except (IndexError, UnicodeDecodeError):
            raise ValueError(f"{manifest} can't be read") from None
        found |= added
    missing = [family.name for family in Family if _name(family) not in found]
    if missing:
        raise ValueError(f"{manifest} knows no family {missing[0].lower()}")
    return {family: found[_name(family)] for family in Family}


def _added(record: bytes) -> dict[str, int]:
    at, number, name = 0, 0, None
    while at < len(record):
        tag, at = varint(record, at)
        if tag in _NUMBERS:
            _, at = varint(record, at)
        elif tag in _TEXTS or tag & _MAY_BE_SKIPPED:
            _, at = text(record, at)
        elif tag == _ID:
            number, at = varint(record, at)
        elif tag == _ADD:
            name, at = text(record, at)
        else:
            break  # tables and the like: it makes no family known
    return {} if name is None else {name.decode(): number}
