"""How far the write-ahead log was written and synced, in a file beside it: so a log that ends too soon is told from one
that a killed process left behind.

The two numbers are written to memory that the file is mapped to, so they outlive the process, and cost a write 0.2 us.
A power cut can take them back, never put them ahead of what was synced. All numbers of rows are RocksDB's sequence
numbers, each the one behind the last row.
"""

import mmap
import os
import struct
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

NAME: Final = "topics-wal-end"
_ENDS: Final = struct.Struct("=QQ")


class Mark(Struct):
    """What it says. `boot`: in which the log was written. `first`: the log file that was begun when the database was
    opened last, with the row `first_seq`. `starting`: the newest log file before an open that did not come to its end,
    0 if none.
    """

    boot: str
    first: int
    first_seq: int
    starting: int = 0
    written: int = 0
    synced: int = 0


class _Facts(Struct):
    boot: str
    first: int
    first_seq: int
    starting: int


def read(directory: Path) -> Mark | None:
    """The mark of a directory; None if it has none that can be read. Raises OSError."""
    try:
        data = (directory / NAME).read_bytes()
        written, synced = _ENDS.unpack_from(data)
        facts = msgspec.json.decode(data[_ENDS.size :], type=_Facts)
    except (FileNotFoundError, struct.error, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return Mark(
        boot=facts.boot, first=facts.first, first_seq=facts.first_seq, starting=facts.starting,
        written=written, synced=synced,
    )  # fmt: skip


def write(directory: Path, mark: Mark) -> None:
    """Put it in the place of the one that is there, durably. Raises OSError."""
    part = directory / f"{NAME}.tmp"
    with part.open("wb") as file:
        file.write(_ENDS.pack(mark.written, mark.synced))
        file.write(msgspec.json.encode(_Facts(mark.boot, mark.first, mark.first_seq, mark.starting)))
        file.flush()
        os.fsync(file.fileno())
    part.replace(directory / NAME)
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Ends:
    """The two numbers of a mark while the database is open."""

    def __init__(self, directory: Path) -> None:
        """Raises OSError."""
        with (directory / NAME).open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _ENDS.size)
        self._numbers = memoryview(self._map).cast("Q")

    def wrote(self, next_seq: int) -> None:
        """Every row before this one is written."""
        self._numbers[0] = next_seq  # one store: a kill leaves the old number or the new one

    @property
    def written(self) -> int:
        """What `wrote` was told last."""
        return int(self._numbers[0])

    def synced(self, next_seq: int) -> None:
        """Every row before this one is durable."""
        self._numbers[1] = next_seq

    def close(self) -> None:
        """Let go of the file."""
        self._numbers.release()
        self._map.close()
