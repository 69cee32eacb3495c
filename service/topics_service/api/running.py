"""The calls of an API that ends before its server does."""

import asyncio
import contextlib
from typing import Any, Final


class LostCallError(Exception):
    """A call may have had its effect or not: who ran it is gone. Its client sees what it sees when a server dies."""


class RunningCalls:
    """The tasks of calls, so that they can be waited for and broken off. Belongs to the event loop."""

    def __init__(self) -> None:
        self.tasks: Final[set[asyncio.Task[object]]] = set()
        self.is_over = False
        """True once calls are broken off: one that is cancelled then ends for its client as when a server dies."""
        self._ended = asyncio.Event()

    def enter(self) -> None:
        """Note that the current task is a call, to its end."""
        task = asyncio.current_task()
        assert task is not None, "each call has its task"
        if self.begin(task):
            task.add_done_callback(self.end)

    def begin(self, task: asyncio.Task[Any]) -> bool:
        """Note that a task is in a call, until `end`. Return False if it is in one already, whose end counts."""
        if task in self.tasks:
            return False
        self.tasks.add(task)
        return True

    def end(self, task: asyncio.Task[Any]) -> None:
        """Note that a task is in no call any more."""
        self.tasks.discard(task)
        if not self.tasks:
            self._ended.set()

    def is_broken_off(self) -> bool:
        """Return whether the current task, which was cancelled, is a call that was broken off; it may then continue."""
        task = asyncio.current_task()
        return self.is_over and task is not None and not task.uncancel()

    async def ended(self, seconds: float) -> bool:
        """Wait for all calls, for so long at most. Return whether none is left."""
        if self.tasks:
            self._ended.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._ended.wait()
        return not self.tasks

    async def break_off(self, seconds: float) -> bool:
        """Cancel all calls, and wait for them as `ended` does."""
        self.is_over = True
        for task in self.tasks:
            task.cancel()
        return await self.ended(seconds)
