"""The audit log's file, written by a background thread, so that a slow disk delays no call."""

import logging
import os
import stat
import sys
import threading
import time
from collections import deque
from typing import Final

from topics_client.units import counted

log = logging.getLogger("topics.audit")

_MAX_LINES: Final = 10_000
_CLOSE_SECONDS: Final = 5.0
_RETRY_SECONDS: Final = 1.0
_MODE: Final = 0o600


class AuditFile:
    """Appends lines to a file, or to stderr for `-`, in the order of `write`.

    At most 10,000 lines wait; while the file can't be written, further ones are dropped and counted, and a line reports
    the count afterwards. Opens the file, which it makes readable for its owner only. Raises OSError.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._waiting: deque[bytes] = deque()
        self._lost = 0
        self._reopen = False
        self._closing = False
        self._failing = False
        self._news = threading.Condition()
        self._fd = self._open()
        self._torn = _is_torn(self._path, self._fd)
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
        self._thread.start()

    def write(self, line: bytes) -> None:
        """Take a line, with its end. Does not block, and does not report write errors."""
        with self._news:
            if len(self._waiting) < _MAX_LINES:
                self._waiting.append(line)
            else:
                if not self._lost:
                    log.error("the audit log %s: queue full, dropping lines", self._path)
                self._lost += 1
            self._news.notify()

    def reopen(self) -> None:
        """Reopen the file, after pending lines are written to the old one: logrotate has moved it."""
        with self._news:
            self._reopen = True
            self._news.notify()

    def close(self) -> None:
        """Write pending lines, for up to five seconds, and close."""
        with self._news:
            self._closing = True
            self._news.notify()
        self._thread.join(_CLOSE_SECONDS)
        if lost := len(self._waiting) + self._lost:
            log.error("the audit log %s can't be written, lost %s", self._path, counted(lost, "line"))

    def _open(self) -> int:
        if self._path == "-":
            return sys.stderr.fileno()
        # A pipe without a reader is refused, and a full one counts as a full disk: else a start, or a stop, would hang.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        return os.open(self._path, flags, _MODE)

    def _run(self) -> None:
        while True:
            with self._news:
                while not (self._waiting or self._lost or self._reopen or self._closing):
                    self._news.wait()
                lines, reopen = list(self._waiting), self._reopen
                lost, closing, taken = self._lost, self._closing, len(lines)
                self._reopen = False
            if lost:
                lines.append(b'{"action":"audit.lost","lines":%d,"time_ms":%d}\n' % (lost, time.time_ns() // 1_000_000))
            written = self._put(lines)
            with self._news:
                for _ in range(min(written, taken)):
                    self._waiting.popleft()
                if lost and written == len(lines):
                    self._lost -= lost
            if reopen:
                self._renew()
            if written < len(lines):
                if closing:
                    return
                with self._news:
                    self._news.wait_for(lambda: self._reopen or self._closing, _RETRY_SECONDS)
            elif closing:
                break
        if self._path != "-":
            os.close(self._fd)

    def _put(self, lines: list[bytes]) -> int:
        """Write lines; returns how many went. A line of which only a part did is ended, and written again."""
        for done, line in enumerate(lines):
            try:
                if self._torn:
                    self._torn = not os.write(self._fd, b"\n")
                if (size := os.write(self._fd, line)) < len(line):
                    self._torn = True  # its end has no room now either
                    raise OSError(f"{size} of {len(line)} bytes were written")
            except OSError as error:
                if not self._failing:
                    log.error("the audit log %s can't be written: %s", self._path, error.strerror or error)
                self._failing = True
                return done
        if lines and self._failing:
            log.warning("the audit log %s is written again", self._path)
            self._failing = False
        return len(lines)

    def _renew(self) -> None:
        if self._path == "-":
            return
        try:
            opened = self._open()
        except OSError as error:
            log.error("the audit log %s can't be reopened, keeping the old file: %s", self._path, error.strerror)
            return
        self._torn = _is_torn(self._path, opened)
        os.dup2(opened, self._fd, inheritable=False)  # at once: the number is that of an open file at all times
        os.close(opened)


def _is_torn(path: str, fd: int) -> bool:
    """True if the last line of the file has no end, as after a death of the process on a full disk."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or not status.st_size:
        return False
    try:
        with open(path, "rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    except OSError:  # it may be written and not read
        return False
