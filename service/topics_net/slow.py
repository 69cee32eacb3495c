"""Clients that stop reading: what the kernel may hold for them, and for how long a response waits for them."""

import asyncio
import fcntl
import socket
import sys
import termios
from typing import Any, Final, Protocol

from topics_net import background

_CHECKS: Final = 30  # per limit
_DRAINING_SECONDS: Final = 2.0
# Unsent bytes in the kernel. By default it takes some megabytes for each client that does not read.
_UNSENT_BYTES: Final = 128 << 10
# Sent bytes that nobody acknowledges: the host of the client is gone, without a word.
_UNACKNOWLEDGED_MS: Final = 60_000


class Sender(Protocol):
    """A response that waits for its client to read."""

    def undrained(self) -> object:
        """What is still to leave: a value that changes whenever bytes leave."""

    def give_up(self) -> None:
        """End the response: its client takes nothing."""


class SlowClients:
    """Ends responses whose clients take not one byte for `seconds`: one timer for all, none while none waits.

    While the server drains two seconds are enough.
    """

    def __init__(self, seconds: float) -> None:
        self.draining = False
        self._seconds = seconds
        self._waits: dict[Sender, tuple[object, float]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def enter(self, sender: Sender) -> None:
        """`sender` begins to wait; it must `leave` whatever comes."""
        loop = asyncio.get_running_loop()
        self._waits[sender] = (sender.undrained(), loop.time())
        if self._timer is None:
            self._timer = background.call_later(self._seconds / _CHECKS, self._check, loop)

    def leave(self, sender: Sender) -> None:
        """The wait is over."""
        self._waits.pop(sender, None)

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        limit = min(self._seconds, _DRAINING_SECONDS) if self.draining else self._seconds
        for sender, (undrained, since) in list(self._waits.items()):
            left = sender.undrained()
            if left != undrained:
                self._waits[sender] = (left, now)
            elif now - since >= limit:
                del self._waits[sender]
                sender.give_up()
        self._timer = background.call_later(self._seconds / _CHECKS, self._check, loop) if self._waits else None


def prepare(transport: asyncio.Transport) -> None:
    """Bound what the kernel keeps, and for how long, of responses that go on on this connection."""
    sock: socket.socket = transport.get_extra_info("socket")
    if sys.platform == "linux":
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MS)


def undrained(transport: Any) -> tuple[int, int]:
    """Bytes in the transport's buffer, and those that the kernel has sent or will send but the peer has not taken."""
    try:
        queued = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, b"\0" * 4)
    except (OSError, ValueError):  # no such thing on this system, or closed meanwhile: -1 is no descriptor
        queued = b""
    return transport.get_write_buffer_size(), int.from_bytes(queued, sys.byteorder)
