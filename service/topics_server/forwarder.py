"""Lets routers forward as soon as something is due, without standing in the way of requests."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable
from typing import Final

from topics_service.engine.router.routers import Routers

log = logging.getLogger("topics.forwarder")

_OTHERS_SHARE: Final = 6  # loop time that requests get for each of forwarding's, while they have work
_IDLE_SECONDS: Final = 50e-6  # a turn or pause in which others used less time than this had no request
_BUSY_SECONDS: Final = 10e-3  # for so long after one that had the loop counts as busy
_PAUSE_SECONDS: Final = 1e-3  # what the loop's timers can measure
_CREDIT_SECONDS: Final = 2e-3  # requests' use beyond their share is remembered up to this


class Forwarder:
    """Runs slices of forwarding on the event loop: about a seventh of its time while requests come, else all of it.
    Several engines on one loop share that.

    `debt` is the time that requests are still to get for the slices so far. It shrinks with every turn of the loop and
    every wait. Once it is a millisecond, forwarding pauses for as long, unless there was no request of late. A client
    that waits for its answer before it asks again is between two requests most of the time, and would seem idle to
    anything shorter; and in the pause records gather into larger slices.
    """

    def __init__(self, *routers: Routers) -> None:
        """The routers of each engine that this loop runs."""
        self._routers = routers
        self._due = asyncio.Event()
        self._debt = 0.0
        self._busy_until = 0.0
        for each in routers:
            each.on_due = self._due.set

    async def run(self) -> None:
        """Forward until cancelled. A slice that fails for a bug is logged, and its router waits before the next."""
        while True:
            await self._give(asyncio.sleep(0) if self._due.is_set() else self._due.wait())
            self._due.clear()
            await self._forward()

    async def _forward(self) -> None:
        turns = deque(self._routers)
        while turns:
            if self._debt >= _PAUSE_SECONDS:
                if time.perf_counter() < self._busy_until:
                    await self._give(asyncio.sleep(self._debt))
                else:
                    self._debt = 0.0
            began = time.perf_counter()
            routers = turns[0]
            more = True
            try:
                more = routers.forward()
            except Exception:
                log.exception("forwarding failed")
            turns.rotate(-1)
            if not more:
                turns.pop()
            self._debt += _OTHERS_SHARE * (time.perf_counter() - began)
            if turns and self._debt >= 0:
                await self._give(asyncio.sleep(0))

    async def _give(self, wait: Awaitable[object]) -> None:
        """Let others have the loop, and see whether they had a use for it."""
        began, used = time.perf_counter(), time.thread_time()
        await wait
        now, used = time.perf_counter(), time.thread_time() - used
        self._debt = max(self._debt - (now - began), -_CREDIT_SECONDS)
        if used > _IDLE_SECONDS:
            self._busy_until = now + _BUSY_SECONDS
