"""Send timeout and kernel buffer limits for clients that stop reading."""

import asyncio
import fcntl
import socket
import sys
import termios
from typing import Any, Final, Protocol

from topics_net.deadlines import Deadlines

_CHECKS: Final = 30  # per timeout
_DRAINING_SECONDS: Final = 2.0
# Unsent bytes in the kernel. The default is several megabytes for each client that does not read.
_UNSENT_BYTES: Final = 128 << 10
# Time for which sent bytes may stay unacknowledged: the client's host has disappeared.
_UNACKNOWLEDGED_MS: Final = 60_000


class Sender(Protocol):
    """A response waiting for its client to read."""

    def undrained(self) -> object:
        """Unsent data: a value that changes whenever bytes leave."""

    def give_up(self) -> None:
        """End the response: its client does not read."""


class SendTimeouts:
    """Ends responses whose clients read nothing for `seconds`.

    While the server drains, the timeout is at most two seconds.
    """

    def __init__(self, seconds: float) -> None:
        self.draining = False
        self._seconds = seconds
        self._waits: dict[Sender, tuple[object, float]] = {}  # unsent bytes, and since when
        self._checks = Deadlines(seconds / _CHECKS, self._check)

    def enter(self, sender: Sender) -> None:
        """Start watching `sender`, which must call `leave` in every case."""
        self._waits[sender] = (sender.undrained(), asyncio.get_running_loop().time())
        self._checks.start(sender)

    def leave(self, sender: Sender) -> None:
        """Stop watching `sender`."""
        if self._waits.pop(sender, None) is not None:
            self._checks.cancel(sender)

    def _check(self, sender: Sender) -> None:
        now = asyncio.get_running_loop().time()
        limit = min(self._seconds, _DRAINING_SECONDS) if self.draining else self._seconds
        undrained, since = self._waits[sender]
        left = sender.undrained()
        if left == undrained and now - since >= limit:
            del self._waits[sender]
            sender.give_up()
            return
        if left != undrained:
            self._waits[sender] = (left, now)
        self._checks.start(sender)


def prepare(transport: asyncio.Transport) -> None:
    """Limit how much response data the kernel buffers for this connection, and for how long."""
    sock: socket.socket = transport.get_extra_info("socket")
    if sys.platform == "linux":
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MS)


def undrained(transport: Any) -> tuple[int, int]:
    """Bytes in the transport's buffer, and bytes in the kernel that the peer has not acknowledged."""
    try:
        queued = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, b"\0" * 4)
    except (OSError, ValueError):  # not supported by this system, or already closed (descriptor -1)
        queued = b""
    return transport.get_write_buffer_size(), int.from_bytes(queued, sys.byteorder)
