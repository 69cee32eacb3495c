"""A deadline that is cheap to move: one timer a connection, not one timer a request."""

import asyncio
from collections.abc import Callable

from topics_net import background


class IdleTimer:
    """Calls `on_timeout` once a connection has waited `limit` seconds for a request.

    `start` and `pause` only note the time; the loop's timer, when it fires, looks at the note and either
    sleeps for the rest or calls. A busy keep-alive connection thus costs one loop timer every `limit` seconds.
    """

    __slots__ = ("_handle", "_limit", "_loop", "_since", "on_timeout")

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: float, on_timeout: Callable[[], None]) -> None:
        self._loop = loop
        self._limit = limit
        self._since: float | None = None
        self._handle: asyncio.TimerHandle | None = None
        self.on_timeout = on_timeout

    def start(self) -> None:
        """The connection waits for a request from now on."""
        self._since = self._loop.time()
        if self._handle is None:
            self._handle = background.call_later(self._limit, self._fire)

    def pause(self) -> None:
        """A request is being served: no deadline until the next `start`."""
        self._since = None

    def cancel(self) -> None:
        """The connection is gone: release the loop's timer. May be called twice."""
        self._since = None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        self._handle = None
        if self._since is None:
            return
        rest = self._since + self._limit - self._loop.time()
        if rest > 0:
            self._handle = background.call_later(rest, self._fire)
        else:
            self._since = None
            self.on_timeout()
