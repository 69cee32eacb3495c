"""How much space the data directory's disk has left."""

import os
from pathlib import Path


class FreeSpace:
    """The free bytes as measured last; `measure` costs a system call, so it is called once a second."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.free_bytes = 0
        self.measure()

    def measure(self) -> None:
        """Ask the file system for what an unprivileged process may still write."""
        status = os.statvfs(self._path)
        self.free_bytes = status.f_bavail * status.f_frsize
