"""The real `topics` command in a terminal."""

import errno
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager

from support.server import TOPICS

from .runner import environment

_SECONDS = 60.0


class Terminal:
    """A command in a terminal of a size of its own."""

    def __init__(
        self, url: str, program: object, *arguments: str, width: int, height: int, env: dict[str, str] | None = None
    ) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        self.running = subprocess.Popen(
            [str(program), *arguments],
            env=environment(url, {"TERM": "xterm"} | (env or {})),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        self.before = termios.tcgetattr(theirs)
        self._theirs = theirs
        self.shown = ""
        self._seen = 0

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._ours, keys.encode())

    def until(self, pattern: str, seconds: float = _SECONDS) -> None:
        """Read on until the pattern is shown behind what the calls before have waited for."""
        assert self.shows(pattern, seconds), (pattern, self.shown[self._seen :][-3000:])

    def shows(self, pattern: str, seconds: float) -> bool:
        """Do as `until`, but return False if it is not shown within a time."""
        deadline = time.monotonic() + seconds
        while not (found := re.compile(pattern, re.DOTALL).search(self.shown, self._seen)):
            if time.monotonic() >= deadline:
                return False
            self.read(0.1)
        self._seen = found.end()
        return True

    def read(self, seconds: float) -> bool:
        """Take what is there within a time; False if there is nothing."""
        if not select.select([self._ours], [], [], seconds)[0]:
            return False
        self.shown += os.read(self._ours, 1 << 16).decode(errors="replace")
        return True

    @property
    def frames(self) -> list[list[str]]:
        """The lines of each picture, without colours."""
        plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", lambda found: "\f" if found[0].endswith("H") else "", self.shown)
        return [[line.rstrip() for line in frame.splitlines()] for frame in plain.split("\f")[1:]]

    def end(self) -> int:
        """The exit code, once it has ended and all that it wrote is in `shown`."""
        code = self.running.wait(_SECONDS)
        while self.read(0):
            pass
        return code

    def close(self) -> None:
        self.running.kill()
        self.running.wait(10)
        os.close(self._theirs)
        os.close(self._ours)

    def settings(self) -> list[object]:
        """The current settings of the terminal."""
        return termios.tcgetattr(self._theirs)


def remainder(ours: int) -> bytes:
    """All that is left to read of a terminal that no program has open any more."""
    pieces = []
    while True:
        try:
            pieces.append(os.read(ours, 1 << 16))
        except OSError as error:
            if error.errno != errno.EIO:  # how Linux tells the end of it
                raise
            return b"".join(pieces)


@contextmanager
def terminal(
    url: str | None,
    *arguments: str,
    width: int = 120,
    height: int = 20,
    program: object = TOPICS,
    env: dict[str, str] | None = None,
) -> Iterator[Terminal]:
    assert url is not None
    found = Terminal(url, program, *arguments, width=width, height=height, env=env)
    try:
        yield found
    finally:
        found.close()
