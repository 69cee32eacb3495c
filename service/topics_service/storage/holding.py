"""Locks on a data directory: RocksDB's, and our own, which is taken before anything is read."""

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


def in_use(path: Path) -> str:
    """Return a message that the directory is in use, naming the process if the system reveals it."""
    pid = _holder(path)
    if pid == os.getpid():
        return "this process has it open already"
    return f"it is in use by another server{'' if pid is None else f' (process {pid})'}, and takes one at a time"


def _holder(path: Path) -> int | None:
    """The process that has a lock on the directory or the file LOCK in it, by /proc/locks. Takes no lock."""
    try:
        files = {_identity(each) for each in (path, path / "LOCK") if each.exists()}
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:  # no Linux
        return None
    for line in lines:
        # 1: POSIX  ADVISORY  WRITE 28984 fe:00:10372839 0 EOF
        fields = line.split()
        if len(fields) == 8 and fields[5] in files and fields[4].isdigit() and int(fields[4]):  # 0: in a container
            return int(fields[4])
    return None


def _identity(path: Path) -> str:
    status = path.stat()
    return f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"


class Hold:
    """A lock on a directory that one object has, in this process or another, for as long as it lives."""

    def __init__(self, path: Path) -> None:
        """Take the lock. Raises OSError; BlockingIOError if it is held."""
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        self._close = weakref.finalize(self, os.close, handle)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._close()
            raise

    def release(self) -> None:
        """Release the lock; repeated calls do nothing."""
        self._close()
