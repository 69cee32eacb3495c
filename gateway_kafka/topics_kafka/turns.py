"""Long work on the event loop: in turns, so that other connections get theirs."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Final

from topics_kafka.protocol import Message
from topics_net import background

TURN_SECONDS: Final = 0.002
SHARED_SECONDS: Final = 0.01


class Turns:
    """How long all connections together may take in requests before the loop does something else.

    What one request takes can't be cut short: so while the loop turns once, they begin new ones for 10 ms. Those that
    are left wait in line.
    """

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._ends = 0.0
        self._running = False

    def may(self) -> bool:
        """Whether one more request may begin in this turn."""
        if not self._running:
            self._begin()
        return time.perf_counter() < self._ends

    def wait(self, go_on: Callable[[], None]) -> None:
        """Call `go_on` once in a later turn, when it is its turn."""
        if not self._running:
            self._begin()
        self._waiting.append(go_on)

    async def come(self) -> None:
        """Return when what has begun already may go on; ask `may` for how long."""
        loop = asyncio.get_running_loop()
        while True:
            turn = loop.create_future()
            self.wait(partial(_set, turn))
            await turn
            if self.may():  # those that were woken before may have used it up
                return

    def _begin(self) -> None:
        self._running = True
        self._ends = time.perf_counter() + SHARED_SECONDS
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


def in_turns(work: Generator[None, None, Message]) -> Message | Awaitable[Message]:
    """The message that `work` returns: at once if that takes no longer than a turn. It yields where it may be left."""
    message = _turn(work)
    return _rest(work) if message is None else message


def _turn(work: Generator[None, None, Message]) -> Message | None:
    ends = time.perf_counter() + TURN_SECONDS
    try:
        while True:
            next(work)
            if time.perf_counter() >= ends:
                return None
    except StopIteration as end:
        message: Message = end.value
        return message


async def _rest(work: Generator[None, None, Message]) -> Message:
    while True:
        await asyncio.sleep(0)
        message = _turn(work)
        if message is not None:
            return message
