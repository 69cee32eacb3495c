"""The calls of an API that ends before its server does."""

import asyncio
from typing import Final


class LostCallError(Exception):
    """A call may have had its effect or not: who ran it is gone. Its client sees what it sees when a server dies."""


class RunningCalls:
    """The tasks of calls, so that they can be waited for and broken off. Belongs to the event loop."""

    def __init__(self) -> None:
        self.tasks: Final[set[asyncio.Task[object]]] = set()
        self.is_over = False
        """True once calls are broken off: one that is cancelled then ends for its client as when a server dies."""

    def enter(self) -> None:
        """Note that the current task is a call, to its end."""
        task = asyncio.current_task()
        assert task is not None, "each call has its task"
        if task not in self.tasks:
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    def is_broken_off(self) -> bool:
        """Return whether the current task, which was cancelled, is a call that was broken off; it may then continue."""
        task = asyncio.current_task()
        return self.is_over and task is not None and not task.uncancel()

    async def ended(self, seconds: float) -> bool:
        """Wait for all calls, for so long at most. Return whether none is left."""
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=seconds)
        return not self.tasks

    async def break_off(self, seconds: float) -> bool:
        """Cancel all calls, and wait for them as `ended` does."""
        self.is_over = True
        for task in self.tasks:
            task.cancel()
        return await self.ended(seconds)
