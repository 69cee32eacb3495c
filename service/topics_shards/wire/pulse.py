"""Signs of life between nodes: a machine that vanishes answers nothing, and ends no connection.

While calls of a caller are under way the server sends PULSE once a second; a caller that has such calls, and hears
nothing, gives the connection up. A connection without calls costs neither side anything. The kernel alone would not do:
the time for which sent bytes may be unacknowledged (TCP_USER_TIMEOUT) also ends connections to a peer that lives, but
reads nothing for as long because it has as many calls as it may hold.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from topics_net import background
from topics_shards.wire.framing import PULSE, FrameProtocol

if TYPE_CHECKING:
    import asyncio

PULSE_SECONDS: Final = 1.0
SILENCE_SECONDS: Final = 3.5
"""Time after which a peer that says nothing is given up."""
_CHECKS: Final = 7  # in that time


class Pulse:
    """Sends the signs of life of a server, from `start` on as long as `is_busy` or anything arrives."""

    def __init__(self, connection: FrameProtocol, is_busy: Callable[[], bool]) -> None:
        self._connection = connection
        self._is_busy = is_busy
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Note that a call has arrived."""
        if self._timer is None:
            self._timer = background.call_later(PULSE_SECONDS, self._beat)

    def stop(self) -> None:
        """Send no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _beat(self) -> None:
        connection = self._connection
        self._timer = None
        if not (connection.heard or connection.is_amid_frame or self._is_busy()):
            return
        connection.heard = False
        if connection.is_writable:  # else what it has not taken yet would say the same
            connection.send(PULSE, 0)
        self.start()


class Silence:
    """Gives up a server that says nothing while `has_calls`, from `start` on."""

    def __init__(self, connection: FrameProtocol, has_calls: Callable[[], bool]) -> None:
        self._connection = connection
        self._has_calls = has_calls
        self._silent = 0  # checks
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Note that a call was sent."""
        if self._timer is None:
            self._connection.heard = False
            self._silent = 0
            self._next()

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _next(self) -> None:
        self._timer = background.call_later(SILENCE_SECONDS / _CHECKS, self._check)

    def _check(self) -> None:
        connection = self._connection
        self._timer = None
        if not self._has_calls():
            return
        self._silent = 0 if connection.heard else self._silent + 1
        connection.heard = False
        if self._silent >= _CHECKS:
            connection.cut_off(f"nothing was heard of it for {SILENCE_SECONDS:g} s")
            return
        self._next()
