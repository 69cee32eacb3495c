"""A file system of a few MiB in a mount namespace of its own: it fills up, and nobody else sees it."""

import contextlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Self

import pytest

from support.server import DIE_WITH_US
from support.waiting import poll

_FILLER = "filler"


class SmallDisk:
    """A tmpfs that is there while the block runs. A server gets it by `prefix`, the test sees it below `outside`."""

    def __init__(self, directory: Path, megabytes: int) -> None:
        directory.mkdir()
        self.inside = directory
        mount = f'mount -t tmpfs -o size={megabytes}m none "$0" && touch "$0/mounted" && exec sleep infinity'
        self._holder = subprocess.Popen(
            [*DIE_WITH_US, "unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, str(directory)],
            stderr=subprocess.PIPE,
        )
        self.outside = Path(f"/proc/{self._holder.pid}/root{directory}")
        enter = [shutil.which("nsenter") or "nsenter", "-t", str(self._holder.pid), "-U", "-m"]
        self.prefix = [*enter, "--preserve-credentials", f"--wd={directory.parent}"]

    def __enter__(self) -> Self:
        try:
            poll(lambda: self._holder.poll() is not None or (self.outside / "mounted").exists(), 20, "the mount")
            if self._holder.poll() is not None:
                assert self._holder.stderr is not None
                pytest.skip(f"no file system of one's own here: {self._holder.stderr.read().decode().strip()}")
            (self.outside / "mounted").unlink()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._holder.kill()
        self._holder.communicate()

    @property
    def free(self) -> int:
        """Bytes that are left."""
        found = os.statvfs(self.outside)
        return found.f_bavail * found.f_frsize

    def fill(self, leave: int = 0) -> None:
        """Take all space but `leave` bytes."""
        with (self.outside / _FILLER).open("ab", buffering=0) as out, contextlib.suppress(OSError):
            while (size := min(1 << 16, self.free - leave)) > 0:
                out.write(bytes(size))

    def empty(self) -> None:
        """Give that back."""
        (self.outside / _FILLER).unlink()
