"""Lets routers forward as soon as something is due, without standing in the way of requests."""

import asyncio
import logging
import time
from typing import Final

from topics_service.engine.routers import Routers

log = logging.getLogger("topics.forwarder")

_OTHERS_SHARE: Final = 4  # loop time that requests get for each of forwarding's, while they have work
_IDLE_SECONDS: Final = 50e-6  # a turn of the loop that is over sooner had nothing to do


class Forwarder:
    """Runs slices of forwarding on the event loop: about a fifth of its time while requests wait, else all of it.

    After each slice the loop gets turns until others have used four times as long as the slice took, or a turn was
    over at once, so that nobody waits.
    """

    def __init__(self, routers: Routers) -> None:
        self._routers = routers
        self._due = asyncio.Event()
        routers.on_due = self._due.set

    async def run(self) -> None:
        """Forward until cancelled. A slice that fails for a bug is logged, and its router waits before the next."""
        while True:
            await self._due.wait()
            self._due.clear()
            more = True
            while more:
                began = time.perf_counter()
                try:
                    more = self._routers.forward()
                except Exception:
                    log.exception("forwarding failed")
                await self._give_way(_OTHERS_SHARE * (time.perf_counter() - began))

    async def _give_way(self, seconds: float) -> None:
        while seconds > 0:
            began = time.perf_counter()
            await asyncio.sleep(0)
            turn = time.perf_counter() - began
            if turn < _IDLE_SECONDS:
                return
            seconds -= turn
