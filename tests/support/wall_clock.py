"""The wall clock of chosen processes, which a test moves while they run."""

import shutil
import struct
import subprocess
from pathlib import Path

from support.missing import without

CC = shutil.which("cc") or shutil.which("gcc")


class WallClock:
    """The wall clock of the processes that are started with `env`. Clocks that only count on are left alone."""

    def __init__(self, directory: Path) -> None:
        """Skip the test without a C compiler."""
        if CC is None:
            without("there is no C compiler")
        directory.mkdir(exist_ok=True)
        library, self._file = directory / "wall_clock.so", directory / "offset"
        source = Path(__file__).with_suffix(".c")
        subprocess.run([CC, "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library, source], check=True)
        self._file.write_bytes(bytes(8))
        self.env = {"LD_PRELOAD": str(library), "TEST_CLOCK": str(self._file)}

    def jump(self, offset_ms: int) -> None:
        """Be so far from the true time from now on."""
        with self._file.open("r+b", buffering=0) as file:
            file.write(struct.pack("=q", offset_ms))
