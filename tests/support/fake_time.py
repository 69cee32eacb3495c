"""An event loop whose time costs nothing: for tests of what happens after seconds, or minutes."""

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

P = ParamSpec("P")


class FakeTimeLoop(asyncio.SelectorEventLoop):
    """Time stands still while something can run, and jumps to the next timer when nothing can."""

    def __init__(self) -> None:
        self.now = 1000.0
        super().__init__(_Jump(self))

    def time(self) -> float:
        return self.now


class _Jump(selectors.DefaultSelector):
    def __init__(self, loop: FakeTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        events = super().select(0)
        if not events and timeout != 0:
            assert timeout is not None, "everybody waits, and nothing will ever happen"
            self._loop.now += timeout
        return events


def in_fake_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an async test on such a loop."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with asyncio.Runner(loop_factory=FakeTimeLoop) as runner:
            runner.run(test(*args, **kwargs))

    return run


async def steps(count: int = 1) -> None:
    """Let the loop run the given number of steps."""
    for _ in range(count):
        await asyncio.sleep(0)
