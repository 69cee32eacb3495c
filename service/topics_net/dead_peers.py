"""Peers whose machine is gone: the kernel finds out by itself, if it is asked to."""

import socket
import sys
from typing import Final

_UNACKNOWLEDGED_MS: Final = 10_000
_KEEPALIVE: Final = (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3))


def watch_peer(sock: socket.socket, *, reads_at_once: bool = True) -> None:
    """Let the kernel find out within some ten seconds that the peer's machine is gone.

    A peer that may read nothing for as long, though it lives, does not read `at once`: then only a connection on which
    nothing is sent is watched.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        if reads_at_once:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MS)
        for name, value in _KEEPALIVE:
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
