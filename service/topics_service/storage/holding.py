"""Locks on a data directory: RocksDB's tells other processes, and ours is taken before anything is looked at."""

import fcntl
import os
import struct
import weakref
from pathlib import Path
from typing import Final

_FLOCK: Final = struct.Struct("hhqqi0q")  # struct flock of Linux, 64 bits


def is_held(path: Path) -> bool:
    """Return whether another process has the database in `path` open for writing. Takes no lock.

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
    """A lock on a directory that one object has, in this process or another, for as long as it lives."""

    def __init__(self, path: Path) -> None:
        """Raises OSError; BlockingIOError when somebody has it."""
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        self._close = weakref.finalize(self, os.close, handle)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._close()
            raise

    def release(self) -> None:
        """Let it go; once more does nothing."""
        self._close()
