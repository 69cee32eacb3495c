"""The limit on how long a request may pause while it sends its body, kept with one timer for all requests.

A timer per request (as with asyncio.timeout) costs more than the rest of reading a small body.
"""

import asyncio
from typing import Any

from topics_net import background

_CHECKS = 4  # per limit: a stall is noticed after the limit and at most a quarter more


class BodyWait:
    """One wait for a piece of a body: the waiting task, since when, and whether it was ended for taking too long."""

    __slots__ = ("since", "stalled", "task")

    def __init__(self, task: asyncio.Task[Any], since: float) -> None:
        self.task = task
        self.since = since
        self.stalled = False


class BodyTimeouts:
    """Cancels the tasks that wait for longer than `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._waits: dict[BodyWait, None] = {}  # in the order in which they began
        self._timer: asyncio.TimerHandle | None = None

    def enter(self) -> BodyWait:
        """Begin a wait of the current task, which must `leave` in any case."""
        task = asyncio.current_task()
        assert task is not None, "handlers run in tasks"
        loop = asyncio.get_running_loop()
        wait = BodyWait(task, loop.time())
        self._waits[wait] = None
        if self._timer is None:
            self._timer = background.call_later(self.seconds / _CHECKS, self._check, loop)
        return wait

    def leave(self, wait: BodyWait) -> None:
        """End the wait."""
        self._waits.pop(wait, None)

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        due = loop.time() - self.seconds
        for wait in list(self._waits):
            if wait.since > due:
                break
            del self._waits[wait]
            wait.stalled = True
            wait.task.cancel()
        self._timer = background.call_later(self.seconds / _CHECKS, self._check, loop) if self._waits else None
