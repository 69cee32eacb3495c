"""Replacing the database in a data directory by another, in steps that survive a kill: a new run continues.

All steps stay within the directory, which may be a mount point. From the first to the last it has a marker, and no
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
_ARCHIVE: Final = "archive"  # of the old write-ahead log: the numbers of its files start again


class Swap:
    """The steps of one repair of `path`. Each is idempotent, and durable when it returns. All raise OSError.

    `stepped` is called with each step, for tests that end the process there.
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
        """Return the quarantine of an unfinished swap; None if there is none.

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
        """Remove leftovers of an earlier attempt that did not begin the swap."""
        shutil.rmtree(self.work, ignore_errors=True)
        (self._path / f"{_MARKER}.tmp").unlink(missing_ok=True)

    def begin(self, quarantine: str) -> None:
        """Begin the swap once the new database is complete, closed and checked. There is no way back."""
        for file in self.new.iterdir():
            durable.sync(file)
        durable.sync(self.new)
        make_private(self._path / quarantine)
        durable.sync(self._path)
        self._mark(quarantine, "out")
        self._stepped("begun")

    def finish(self) -> None:
        """Move the old files to the quarantine and the new ones into place, from any intermediate state."""
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
    """Hold the lock of a server. Raises BlockingIOError if it is taken."""
    with (path / "LOCK").open("ab") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def copy(path: Path, target: Path) -> None:
    """A full copy of the files of the database to `target`, which is not there or empty; durable on return.

    Not by links: a copy that protects from mistakes must not share blocks. Raises OSError.
    """
    make_private(target)
    for file in sorted(path.iterdir()):
        if file.is_file() and file.name != "LOCK":
            shutil.copy2(file, target / file.name)
            durable.sync(target / file.name)
    durable.sync(target)
