"""Search for the damaged file of a data directory when RocksDB does not name or check it."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from topics_service.storage import clean_shutdown, tablelist, tables
from topics_service.storage.wal import validation

_FILE: Final = re.compile(
    r"\d+\.(?:sst|log)|MANIFEST-\d+|OPTIONS-\d+|CURRENT|IDENTITY|topics-[a-z]+\.(?:json|txt)|rocksdict-config\.json"
)

_BLAME: Final = re.compile(r"\s*The file \S+ may be corrupted\.?")


def named_file(text: str) -> str | None:
    """Return the file of a database that an error names."""
    found = _FILE.search(text)
    return found and found[0]


def named(path: Path, why: str) -> str:
    """An error of RocksDB on the database in `path`, with the file that is damaged where its words name none.

    It blames the manifest for any damage that it meets when it opens a database: that is left out where it is a table.
    """
    if "Corruption" not in why:
        return why
    own = _BLAME.sub("", why)
    if named_file(own) is not None:
        return own
    try:
        found = next(damaged_tables(path), None)
        if found is None and own == why:
            found = validation.named_damage(path)
    except OSError:
        return why
    return why if found is None else f"{own}: {found}"


def damaged_files(path: Path) -> Iterator[str]:
    """Describe damaged files that don't keep a database from being opened, each by its name. Raises OSError."""
    damage = clean_shutdown.damaged_list(path)
    if damage is not None:
        yield damage
    yield from damaged_tables(path)


def damaged_tables(path: Path) -> Iterator[str]:
    """The tables of the database that are damaged around their rows, with the part that is. Raises OSError."""
    for name in _tables(path):
        try:
            part = tables.damaged_part(path / name)
        except FileNotFoundError:  # compacted away since
            continue
        if part is not None:
            yield f"the table {path / name} is damaged: its {part} can't be read"


def _tables(path: Path) -> list[str]:
    try:
        return [f"{number:06}.sst" for number in sorted(tablelist.live_tables(path))]
    except FileNotFoundError:  # another manifest is put in its place just now
        return []
    except ValueError:
        return sorted(file.name for file in path.glob("*.sst"))
