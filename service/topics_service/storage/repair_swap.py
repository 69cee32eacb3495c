"""One database in a data directory in place of another, in steps that a kill can't harm: run again, it goes on.

All within the directory, which may be a mount point. From the first step to the last there is a marker in it, and no
server starts.
"""

import fcntl
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from topics_service.storage import checksummed, clean_shutdown, durable
from topics_service.storage.private import make_private

_MARKER: Final = clean_shutdown._REPAIR
_WORK: Final = "repair"
_NEW: Final = "new"
_ARCHIVE: Final = "archive"  # of the old write-ahead log: the numbers of its files begin anew


class Swap:
    """The steps of one repair of `path`. Each is idempotent, and durable when it returns. All raise OSError.

    `stepped` is told of each step, for tests that end the process there.
    """

    def __init__(self, path: Path, stepped: Callable[[str], None] = lambda _: None) -> None:
        self._path = path
        self._stepped = stepped

    @property
    def work(self) -> Path:
        """The directory for work in progress."""
        return self._path / _WORK

    @property
    def new(self) -> Path:
        """The directory in which the new database is built."""
        return self.work / _NEW

    def pending(self) -> str | None:
        """The quarantine of a swap that was begun and is to be ended; None if there is none.

        Raises DamagedFileError: then it is not known which of the files are the old ones.
        """
        try:
            return str(checksummed.read(self._path / _MARKER)["quarantine"])
        except FileNotFoundError:
            return None
        except (TypeError, KeyError):
            text = f"the file {self._path / _MARKER} is damaged: not a repair marker"
            raise checksummed.DamagedFileError(text) from None

    def clear(self) -> None:
        """Remove what an earlier try has left that came not so far as to begin the swap."""
        shutil.rmtree(self.work, ignore_errors=True)
        (self._path / f"{_MARKER}.tmp").unlink(missing_ok=True)

    def begin(self, quarantine: str) -> None:
        """The new database is complete, closed and checked: from now on there is no way back."""
        for file in self.new.iterdir():
            durable.sync(file)
        durable.sync(self.new)
        make_private(self._path / quarantine)
        durable.sync(self._path)
        self._mark(quarantine, "out")
        self._stepped("begun")

    def finish(self) -> None:
        """Move the old files to the quarantine and the new ones to their place, from wherever that stands."""
        marker = checksummed.read(self._path / _MARKER)
        quarantine = self._path / marker["quarantine"]
        if marker["phase"] == "out":
            for file in sorted(self._path.iterdir()):
                if (file.is_file() and clean_shutdown.is_of_database(file.name)) or file.name == _ARCHIVE:
                    file.rename(quarantine / file.name)
                    self._stepped(f"out {file.name}")
            durable.sync(quarantine)
            durable.sync(self._path)
            self._mark(marker["quarantine"], "in")
            self._stepped("moved out")
        for file in sorted(self.new.iterdir()) if self.new.exists() else ():
            if clean_shutdown.is_of_database(file.name):
                file.rename(self._path / file.name)
                self._stepped(f"in {file.name}")
        durable.sync(self._path)
        shutil.rmtree(self.work, ignore_errors=True)
        self._stepped("moved in")
        (self._path / _MARKER).unlink()
        durable.sync(self._path)

    def _mark(self, quarantine: str, phase: str) -> None:
        checksummed.write(self._path / _MARKER, {"quarantine": quarantine, "phase": phase})


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock that a server takes. Raises BlockingIOError when one has it."""
    with (path / "LOCK").open("ab") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def copy(path: Path, target: Path) -> None:
    """A full copy of the files of the database to `target`, which is not there or empty; durable on return.

    Not by links: what is to be safe from a mistake must not share its blocks. Raises OSError.
    """
    make_private(target)
    for file in sorted(path.iterdir()):
        if file.is_file() and file.name != "LOCK":
            shutil.copy2(file, target / file.name)
            durable.sync(target / file.name)
    durable.sync(target)
