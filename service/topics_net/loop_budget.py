"""Fair sharing of the event loop: long work runs in slices, so that other connections are served in between."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Final, TypeVar

from topics_net import background

T = TypeVar("T")

SLICE_SECONDS: Final = 0.002
BUDGET_SECONDS: Final = 0.01


class LoopBudget:
    """The time that the work of all connections of a listener may take in one iteration of the event loop.

    A single piece of work can't be interrupted. New ones begin for 10 ms in each iteration; the others wait in line.
    """

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._ends = 0.0
        self._running = False

    def has_time(self) -> bool:
        """Return whether one more piece of work may begin in this iteration."""
        if not self._running:
            self._begin()
        return time.perf_counter() < self._ends

    def enqueue(self, resume: Callable[[], None]) -> None:
        """Call `resume` once in a later iteration, in the order of the line."""
        if not self._running:
            self._begin()
        self._waiting.append(resume)

    async def wait_turn(self) -> None:
        """Wait in line until there is time for work that has already begun; `has_time` says for how long."""
        loop = asyncio.get_running_loop()
        while True:
            turn = loop.create_future()
            self.enqueue(partial(_set, turn))
            await turn
            if self.has_time():  # those that were woken before may have used it up
                return

    def _begin(self) -> None:
        self._running = True
        self._ends = time.perf_counter() + BUDGET_SECONDS
        background.call_soon(self._next)

    def _next(self) -> None:
        self._running = False
        if self._waiting:
            self._begin()
        for _ in range(len(self._waiting)):
            if time.perf_counter() >= self._ends:
                return
            self._waiting.popleft()()


def _set(turn: "asyncio.Future[None]") -> None:
    if not turn.done():
        turn.set_result(None)


def run_in_slices(work: Generator[None, None, T]) -> T | Awaitable[T]:
    """Return the result of `work`, which is not None, at once if one slice is enough.

    `work` yields where it may be paused.
    """
    result = _slice(work)
    return _remaining(work) if result is None else result


def _slice(work: Generator[None, None, T]) -> T | None:
    ends = time.perf_counter() + SLICE_SECONDS
    try:
        while True:
            next(work)
            if time.perf_counter() >= ends:
                return None
    except StopIteration as end:
        result: T = end.value
        return result


async def _remaining(work: Generator[None, None, T]) -> T:
    while True:
        await asyncio.sleep(0)
        result = _slice(work)
        if result is not None:
            return result
