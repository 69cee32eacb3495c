"""Who holds a data directory: RocksDB's lock tells other processes, and ours is taken before anything is looked at."""

import fcntl
import os
import struct
from pathlib import Path
from typing import Final

_FLOCK: Final = struct.Struct("hhqqi0q")  # struct flock of Linux, 64 bits


def is_held(path: Path) -> bool:
    """Whether another process has the database in `path` open for writing. Takes no lock.

    Not to be called by a process that has it open itself: the system would take its lock away.
    """
    try:
        handle = os.open(path / "LOCK", os.O_RDONLY)
    except OSError:
        return False
    try:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        return bool(_FLOCK.unpack(fcntl.fcntl(handle, fcntl.F_GETLK, asked))[0] != fcntl.F_UNLCK)
    finally:
        os.close(handle)


class Hold:
    """A lock on a directory, of one object: also another one in this process does not get it."""

    def __init__(self, path: Path) -> None:
        """Raises OSError; BlockingIOError when somebody has it."""
        self._handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._handle)
            raise

    def release(self) -> None:
        """Let it go; once more does nothing."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
