"""Ports for servers that are told their port before they start, or that keep it over a restart.

The kernel may give a port that it gave to a socket to any other connection of the machine once that socket is closed.
These ports lie outside the range that it gives from, and a lock keeps each from other test processes.
"""

import fcntl
import os
import random
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST: Final = 10_000
_held: Final[list[int]] = []  # open files: a lock ends with its process


def free_port() -> int:
    """Return a port that nobody listens on, and that nobody is given while this process lives."""
    return next(_claimed())


def free_ports(count: int) -> list[int]:
    """Return `count` ports as `free_port` does, all different."""
    claimed = _claimed()
    return [next(claimed) for _ in range(count)]


def _claimed() -> Iterator[int]:
    given_from = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else 32_768
    candidates = list(range(_LOWEST, given_from))
    random.shuffle(candidates)
    for port in candidates:
        if _lock(port) and _unused(port):
            yield port
    raise AssertionError(f"no port between {_LOWEST} and {given_from} is free")


def _lock(port: int) -> bool:
    folder = Path(tempfile.gettempdir()) / f"topics-test-ports-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    file = os.open(folder / str(port), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return False
    _held.append(file)
    return True


def _unused(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
