"""The limit on how long a request may pause while it sends its body."""

import asyncio
from typing import Any

from topics_net.deadlines import Deadlines


class BodyWait:
    """One wait for a piece of a body: the waiting task, and whether it was ended for taking too long."""

    __slots__ = ("stalled", "task")

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.task = task
        self.stalled = False

    def end(self) -> None:
        """Cancel the task."""
        self.stalled = True
        self.task.cancel()


class BodyTimeouts(Deadlines[BodyWait]):
    """Cancels the tasks that wait for longer than `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds, BodyWait.end)

    def enter(self) -> BodyWait:
        """Begin a wait of the current task, which must `cancel` it in any case."""
        task = asyncio.current_task()
        assert task is not None, "handlers run in tasks"
        wait = BodyWait(task)
        self.start(wait)
        return wait
