"""The retained write-ahead log: `archive/` below the data directory, next to the files still in use.

RocksDB moves a log file there instead of removing it. A *line* is the uninterrupted log of a directory, from the first
start with an archive on. It has an id, in a file that no backup copies: a restored directory continues in a new line. A
start without an archive ends the line.
"""

import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from topics_service.storage import durable

_LINE: Final = "topics-log.json"
_ARCHIVE: Final = "archive"


class Line(Struct, frozen=True):
    """`first` is the number of the first log file that belongs to it."""

    id: str
    first: int


class LogFile(NamedTuple):
    """A log file by its number; `open_log` finds it even after a move to the archive."""

    number: int
    size: int


class Kept(NamedTuple):
    """The archive: number of files, their bytes, and the last write of the oldest (seconds since 1970; 0 if none)."""

    files: int
    bytes: int
    oldest: float


def line_of(directory: Path) -> Line | None:
    """Return the line of a data directory; None if no log is retained. Raises OSError, and ValueError if damaged."""
    try:
        return msgspec.json.decode((directory / _LINE).read_bytes(), type=Line)
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(
            f"{directory / _LINE} can't be read ({error}): remove it, and start the server again"
        ) from error


def begin(directory: Path) -> Line:
    """Continue the directory's line, or begin one with the newest log file, durably. Raises OSError and ValueError."""
    found = line_of(directory)
    if found is not None:
        return found
    name = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(3)}"
    line = Line(name, max((number for number, _ in numbered(directory)), default=0))
    durable.replace(directory / _LINE, msgspec.json.encode(line))
    return line


def forget_line(directory: Path) -> None:
    """Let the next `begin` begin a new line, durably; archived logs stay until their time is over. Raises OSError."""
    if (directory / _LINE).exists():
        (directory / _LINE).unlink()
        durable.sync(directory)


def end(directory: Path) -> None:
    """Remove the line and its archive, which RocksDB does not. Raises OSError."""
    (directory / _LINE).unlink(missing_ok=True)
    for _, path in numbered(directory / _ARCHIVE):
        path.unlink(missing_ok=True)


def trim(directory: Path, seconds: float, max_bytes: int) -> Kept:
    """Remove the oldest files of the archive: those last written more than `seconds` ago, and while the total exceeds
    `max_bytes`; return the rest. Raises OSError."""
    files = []
    for number, path in numbered(directory / _ARCHIVE):
        status = path.stat()
        files.append((number, path, status.st_size, status.st_mtime))
    files.sort()
    left, size, since = files, sum(file[2] for file in files), time.time() - seconds
    while left and (left[0][3] < since or size > max_bytes):
        left[0][1].unlink(missing_ok=True)
        size -= left[0][2]
        left = left[1:]
    return Kept(len(left), size, left[0][3] if left else 0.0)


def log_files(directory: Path) -> list[LogFile]:
    """Return all log files, archived and in use, oldest first. Only the last is still written to."""
    sizes: dict[int, int] = {}
    for folder in (directory, directory / _ARCHIVE):  # in this order: a file that moves in between is seen
        for number, path in numbered(folder):
            try:
                sizes[number] = path.stat().st_size
            except FileNotFoundError:
                continue
    return [LogFile(number, size) for number, size in sorted(sizes.items())]


def open_log(directory: Path, number: int) -> int:
    """Return a file descriptor for reading a log file. Raises FileNotFoundError if it was removed."""
    name = f"{number:06}.log"
    try:
        return os.open(directory / name, os.O_RDONLY)
    except FileNotFoundError:
        return os.open(directory / _ARCHIVE / name, os.O_RDONLY)


def archived(directory: Path) -> list[int]:
    """Return the numbers of the log files in the archive, in no order."""
    return [number for number, _ in numbered(directory / _ARCHIVE)]


def remove(directory: Path, number: int) -> None:
    """Remove a file of the archive; one that is not there is ignored. Raises OSError."""
    (directory / _ARCHIVE / f"{number:06}.log").unlink(missing_ok=True)


def numbered(directory: Path) -> Iterator[tuple[int, Path]]:
    """Yield the log files in a directory with their numbers, in no order."""
    for path in directory.glob("*.log"):
        if path.stem.isdigit():
            yield int(path.stem), path
