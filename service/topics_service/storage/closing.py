"""What is known of the files of a database when it is opened: which there were when it was closed, to tell when one is
lost or cut short, and that there is damage.

RocksDB does not tell by itself: it takes a manifest or a write-ahead log that is cut at the end of a record for all
there is, starts with what is left, and then removes the table files that it knows nothing of.
"""

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_NAME: Final = "topics-files.json"
_DAMAGE: Final = "topics-damage.txt"
_REPAIR: Final = "topics-repair.json"
_PATTERNS: Final = ("MANIFEST-*", "*.sst", "*.log")
_OF_DATABASE: Final = re.compile(
    r"\d+\.(?:sst|log|blob)|MANIFEST-\d+|OPTIONS-\d+(?:\.dbtmp)?|CURRENT|IDENTITY|LOG(?:\.old\.\d+)?|rocksdict-config\.json"
    rf"|{re.escape(_NAME)}|{re.escape(_DAMAGE)}|topics-log\.json|topics-wal-end"
)


def remember(path: Path, tables: Iterable[str]) -> None:
    """Write down the files of the database in `path`, which was just closed and consists of these tables.

    Other tables, and logs but for the newest, may still be removed, by who holds on to an iterator. Durable on return.
    Raises OSError.
    """
    current = (path / "CURRENT").read_text()
    names = [*tables, current.strip(), *(log.name for log in sorted(path.glob("*.log"))[-1:])]
    sizes = {name: (path / name).stat().st_size for name in names}
    text = json.dumps({"current": current, "files": sizes})
    new = path / f"{_NAME}.tmp"
    with new.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path / _NAME)
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def find_damage(path: Path) -> str | None:
    """The first file that is not there or of another size than when the database was closed, with what is wrong.

    None where all are, and where nothing is known: it was not closed, or something has opened it since (then it has
    another manifest, by the name in CURRENT). Also that a repair was interrupted: then some files are gone, or of
    another database. Raises OSError.
    """
    if (path / _REPAIR).exists():
        return f"a repair of {path} was interrupted ({_REPAIR}): run `topics repair` again"
    try:
        known = json.loads((path / _NAME).read_bytes())
        current, files = known["current"], dict(known["files"])
        if (path / "CURRENT").read_text() != current or not all(isinstance(name, str) for name in files):
            return None
    except (FileNotFoundError, ValueError, TypeError, KeyError, RecursionError):
        return None
    for name, size in sorted(files.items()):
        file = path / name
        if not file.exists():
            return f"the file {file} is missing"
        if file.stat().st_size != size:
            return f"the file {file} has {file.stat().st_size} bytes, and had {size} when it was closed"
    return None


def is_closed(path: Path) -> bool:
    """Whether the database is as it was closed, so that all it has is in tables. Raises OSError."""
    try:
        known = json.loads((path / _NAME).read_bytes())
        return bool((path / "CURRENT").read_text() == known["current"])
    except (FileNotFoundError, ValueError, TypeError, KeyError, RecursionError):
        return False


def known_files(path: Path) -> frozenset[str] | None:
    """The names of the files that there were when the database was closed; None where that is not known."""
    try:
        known = json.loads((path / _NAME).read_bytes())
        return frozenset(known["files"])
    except (FileNotFoundError, ValueError, TypeError, KeyError, RecursionError):
        return None


def is_of_database(name: str) -> bool:
    """Whether a file by this name is one of the database, or of what is known of it. The lock is not."""
    return _OF_DATABASE.fullmatch(name) is not None


def forget(path: Path) -> None:
    """The database is open, and its files change. Raises OSError."""
    (path / _NAME).unlink(missing_ok=True)


def note_damage(path: Path, text: str) -> None:
    """Let every later open know that there is a table file which can't be compacted. Raises OSError."""
    (path / _DAMAGE).write_text(text)


def known_damage(path: Path) -> str | None:
    """What `note_damage` was told. Raises OSError."""
    file = path / _DAMAGE
    return file.read_text(errors="replace") if file.exists() else None


def is_headless(path: Path) -> bool:
    """Whether there are files of a database but no CURRENT: RocksDB would begin a new one among them."""
    return not (path / "CURRENT").exists() and any(True for pattern in _PATTERNS for _ in path.glob(pattern))
