"""File manifest of a clean shutdown: the files of the database when it was closed, which reveals on open that one is
lost or cut short, and that there is damage.

RocksDB does not detect that: it takes a manifest or a write-ahead log that is cut at the end of a record for complete,
starts with the rest, and then removes the table files that it does not know.
"""

import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, Final

from topics_service.storage import checksummed

_NAME: Final = "topics-files.json"
_DAMAGE: Final = "topics-damage.txt"
_REPAIR: Final = "topics-repair.json"
_PATTERNS: Final = ("MANIFEST-*", "*.sst", "*.log")
_MANIFEST: Final = re.compile(rb"(MANIFEST-\d+)\n")
_OF_DATABASE: Final = re.compile(
    r"\d+\.(?:sst|log|blob)|MANIFEST-\d+|OPTIONS-\d+(?:\.dbtmp)?|CURRENT|IDENTITY|LOG(?:\.old\.\d+)?|rocksdict-config\.json"
    rf"|{re.escape(_NAME)}|{re.escape(_DAMAGE)}|topics-log\.json|topics-wal-end|topics-directory"
)


def remember(path: Path, tables: Iterable[str]) -> None:
    """Record the files of the database in `path`, which was just closed and consists of these tables.

    Other tables, and logs but for the newest, may still be removed while an iterator holds them. Durable on return.
    Raises OSError.
    """
    current = (path / "CURRENT").read_text()
    names = [*tables, current.strip(), *(log.name for log in sorted(path.glob("*.log"))[-1:])]
    sizes = {name: (path / name).stat().st_size for name in names}
    checksummed.write(path / _NAME, {"current": current, "files": sizes})


def find_damage(path: Path, *, but: Collection[str] = ()) -> str | None:
    """Describe the first file that is missing or has another size than when the database was closed. Those named in
    `but` may have another size.

    None if all are intact, or if nothing is known: it was not closed, its list of files is damaged (`damaged_list`), or
    something has opened it since (then it has another manifest, by the name in CURRENT). Or a repair was interrupted:
    then some files are missing, or of another database. Raises OSError.
    """
    if (path / _REPAIR).exists():
        return f"a repair of {path} was interrupted ({_REPAIR}): run `topics repair` again"
    damage = current_damage(path)
    if damage is not None:
        return damage
    known = _known(path)
    if known is None or not is_closed(path):
        return None
    listed = path / _NAME
    doubt = "" if checksummed.has_checksum(listed) else f", or {listed} is damaged, which has no checksum yet"
    for name, size in sorted(known[1].items()):
        file = path / name
        if not file.exists():
            return f"the file {file} is missing{doubt}"
        if file.stat().st_size != size and name not in but:
            return f"the file {file} has {file.stat().st_size} bytes, and had {size} when it was closed{doubt}"
    return None


def current_damage(path: Path) -> str | None:
    """Explain why CURRENT leads to no manifest; None if it does, or if there is no CURRENT. Raises OSError."""
    file = path / "CURRENT"
    if not file.exists():
        return None
    found = _MANIFEST.fullmatch(file.read_bytes())
    if found is None:
        return f"the file {file} is damaged: it names no manifest"
    name = found[1].decode()
    if (path / name).exists():
        return None
    others = sorted(other.name for other in path.glob("MANIFEST-*"))
    if not others:
        return f"the file {path / name} is missing"
    return f"the file {file} is damaged: it names {name}, which is not there, and there is {', '.join(others)}"


def damaged_list(path: Path) -> str | None:
    """Describe damage of the file manifest itself, which is then ignored; None if it is intact. Raises OSError."""
    try:
        checksummed.read(path / _NAME)
    except FileNotFoundError:
        return None
    except checksummed.DamagedFileError as error:
        return str(error)
    return None if _known(path) is not None else f"the file {path / _NAME} is damaged: it is not a file list"


def is_closed(path: Path) -> bool:
    """Return whether the database is unchanged since it was closed, with all data in tables. Raises OSError."""
    known = _known(path)
    try:
        return known is not None and (path / "CURRENT").read_bytes() == known[0]
    except FileNotFoundError:
        return False


def known_files(path: Path) -> frozenset[str] | None:
    """Return the names of the files when the database was closed; None if unknown."""
    known = _known(path)
    return None if known is None else frozenset(known[1])


def _known(path: Path) -> tuple[bytes, dict[str, int]] | None:
    """CURRENT, and the sizes of the files by name."""
    try:
        known: Any = checksummed.read(path / _NAME)
        current, files = known["current"].encode(), dict(known["files"])
    except (FileNotFoundError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return (current, files) if all(isinstance(name, str) for name in files) else None


def is_of_database(name: str) -> bool:
    """Return whether a file of this name belongs to the database or to our records of it. The lock does not."""
    return _OF_DATABASE.fullmatch(name) is not None


def forget(path: Path) -> None:
    """Remove the manifest: the database is open, and its files change. Raises OSError."""
    (path / _NAME).unlink(missing_ok=True)


def note_damage(path: Path, text: str) -> None:
    """Record for later opens that a table file can't be compacted. Raises OSError."""
    checksummed.write(path / _DAMAGE, text)


def known_damage(path: Path) -> str | None:
    """Return the text of `note_damage`, if any. Raises OSError."""
    try:
        return str(checksummed.read(path / _DAMAGE))
    except FileNotFoundError:
        return None
    except ValueError:  # older versions wrote the text alone: a changed byte in it could accuse another file
        return f"its cause is unknown: {_DAMAGE} is damaged, or of an older version"


def is_headless(path: Path) -> bool:
    """Return whether there are files of a database but no CURRENT: RocksDB would create a new database among them."""
    return not (path / "CURRENT").exists() and any(True for pattern in _PATTERNS for _ in path.glob(pattern))
