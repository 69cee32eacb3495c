"""The end mark: the ends of the written and the synced log, in a separate file. It distinguishes a truncated log from
one that a killed process left behind.

The numbers are written to memory that the file is mapped to, so they outlive the process, and cost a write less than
1 us. A power cut can undo updates, but never put the marks ahead of the synced log. All numbers of rows are RocksDB's
sequence numbers; an end is the one behind the last row.
"""

import mmap
import struct
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from topics_service.storage import durable
from topics_service.storage.wal.archive import numbered
from topics_service.storage.wal.batches import batches

NAME: Final = "topics-wal-end"
_SLOTS: Final = 64  # of remembered logs; only a few are needed at a time
_NUMBERS: Final = struct.Struct(f"={2 + 2 * _SLOTS}Q")  # written, synced; then of each log its number and its first row
_LOOK: Final = 32  # writes between two checks for a new log
_BEGINNING: Final = 64 << 10


class Mark(Struct):
    """Content of the file. `boot`: in which the log was written. `first`: the log file that was begun when the database
    was opened last, with the row `first_seq`. `starting`: the newest log file before an open that did not come to its
    end, 0 if none. `begins`: the first rows of the logs since. `manifest`: the file that CURRENT named then.
    """

    boot: str
    first: int
    first_seq: int
    starting: int = 0
    written: int = 0
    synced: int = 0
    begins: dict[int, int] = {}
    manifest: str = ""


class _Facts(Struct):
    boot: str
    first: int
    first_seq: int
    starting: int
    manifest: str


def read(directory: Path) -> Mark | None:
    """Return the mark of a directory; None if it has no readable one, or if a version without marks has opened the
    database since. Raises OSError."""
    try:
        data = (directory / NAME).read_bytes()
        written, synced, *slots = _NUMBERS.unpack_from(data)
        facts = msgspec.json.decode(data[_NUMBERS.size :], type=_Facts)
        current = (directory / "CURRENT").read_text()
    except (FileNotFoundError, struct.error, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if not facts.starting and facts.manifest != current:
        return None
    begins = {number: seq for number, seq in zip(slots[::2], slots[1::2], strict=True) if number}
    return Mark(facts.boot, facts.first, facts.first_seq, facts.starting, written, synced, begins, facts.manifest)


def write(directory: Path, mark: Mark) -> None:
    """Replace the mark, durably. Raises OSError."""
    slots = [number for begin in list(mark.begins.items())[-_SLOTS:] for number in begin]
    slots += [0] * (2 * _SLOTS - len(slots))
    facts = msgspec.json.encode(_Facts(mark.boot, mark.first, mark.first_seq, mark.starting, mark.manifest))
    durable.replace(directory / NAME, _NUMBERS.pack(mark.written, mark.synced, *slots) + facts)


class Ends:
    """The numbers of a mark while the database is open."""

    def __init__(self, directory: Path, newest: int) -> None:
        """Map the file. `newest` is the current log. Raises OSError."""
        self._directory = directory
        with (directory / NAME).open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _NUMBERS.size)
        self._numbers = memoryview(self._map).cast("Q")
        self._newest = newest
        self._slot = 0
        self._writes = _LOOK
        self._size = -1

    def wrote(self, next_seq: int) -> None:
        """Record that every row before this one is written."""
        self._numbers[0] = next_seq  # one store: a kill leaves the old number or the new one
        self._writes -= 1
        if not self._writes:
            self._writes = _LOOK
            with suppress(OSError):  # a missing directory is detected elsewhere
                self._look()

    @property
    def written(self) -> int:
        """The last argument of `wrote`."""
        return self._numbers[0]

    def synced(self, next_seq: int) -> None:
        """Record that every row before this one is durable."""
        self._numbers[1] = max(next_seq, self._numbers[1])

    def close(self) -> None:
        """Unmap the file."""
        self._numbers.release()
        self._map.close()

    def _look(self) -> None:
        """Detect a new log: the current one grows unless there is a newer one.

        The file is examined by name: an open file that RocksDB removes would keep its disk space.
        """
        with suppress(FileNotFoundError):
            size = (self._directory / f"{self._newest:06}.log").stat().st_size
            if size != self._size:
                self._size = size
                return
        for number, path in sorted(numbered(self._directory)):
            if number > self._newest:
                with path.open("rb") as file:
                    first = next(batches(file.read(_BEGINNING)), None) or next(batches(path.read_bytes()), None)
                if first is not None:
                    self._remember(number, first.seq)

    def _remember(self, number: int, seq: int) -> None:
        at = 2 + 2 * self._slot
        self._numbers[at] = 0
        self._numbers[at + 1] = seq
        self._numbers[at] = number  # last, so that a reader after a kill sees both or none
        self._slot = (self._slot + 1) % _SLOTS
        self._newest, self._size = number, -1
