"""The part that one process has in a server with shards, and what ties it to the parent."""

import asyncio
import contextlib
import json
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from topics_server.processes.board import Board
from topics_server.processes.ledger import Ledger

_FINISH: Final = b"F"
_MAX_MESSAGE: Final = 1 << 16
_MAX_TEXT: Final = 8192  # characters, of up to 6 bytes each


@dataclass(frozen=True, kw_only=True)
class Share:
    """Process number `process` of `processes`, of a directory with `count` shards.

    `sockets` is the directory of the sockets at which they call one another, `control` leads to the parent, and `board`
    has what all know of all shards, `ledger` of clients.
    """

    process: int
    processes: int
    count: int
    sockets: Path
    control: socket.socket
    board: Board
    ledger: Ledger

    @property
    def shards(self) -> range:
        """The shards of this process."""
        return range(self.process, self.count, self.processes)

    def owner(self, shard: int) -> int:
        """The process of a shard."""
        return shard % self.processes

    def socket_of(self, process: int) -> Path:
        """The socket at which a process takes the calls of the others."""
        return self.sockets / f"{process}.sock"

    def tell(self, **message: Any) -> None:
        """Send the parent a message, long texts shortened. Nothing happens if it is gone."""
        short = {name: value[:_MAX_TEXT] if isinstance(value, str) else value for name, value in message.items()}
        with contextlib.suppress(OSError):
            self.control.send(json.dumps(short).encode())

    def listen(self, on_gone: Callable[[], None]) -> asyncio.Event:
        """Wait on the running loop for the parent; return what is set when the process may finish, which is also when
        the parent is gone: `on_gone` is called then."""
        loop, finish = asyncio.get_running_loop(), asyncio.Event()
        self.control.setblocking(False)

        def readable() -> None:
            try:
                message = self.control.recv(_MAX_MESSAGE)
            except BlockingIOError:
                return
            except OSError:
                message = b""
            if not message:
                loop.remove_reader(self.control)
                on_gone()
            finish.set()

        loop.add_reader(self.control, readable)
        return finish


def let_finish(control: socket.socket) -> None:
    """Let the process at the other end finish: no other process needs it any more."""
    with contextlib.suppress(OSError):
        control.send(_FINISH)


def read(control: socket.socket) -> dict[str, Any] | None:
    """The next message of a process; None if it is gone, or sends something else."""
    try:
        found = json.loads(control.recv(_MAX_MESSAGE))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
