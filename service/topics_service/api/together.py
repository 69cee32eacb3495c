"""Requests that come in the same turn of the event loop, served by one call."""

import asyncio
from collections.abc import Callable, Hashable, Sequence
from contextvars import Context, copy_context
from typing import Generic, TypeVar

from topics_net import background

K = TypeVar("K", bound=Hashable)
R = TypeVar("R")
T = TypeVar("T")


class Together(Generic[K, R, T]):
    """Collects what comes for one key within a turn of the loop.

    The first of a turn is told to go alone, at once: who is alone never waits. Those that come before the loop goes on
    are what `serve` gets, in their order, when it does.
    """

    def __init__(self, serve: Callable[[K, Sequence[R]], Sequence[T] | None], most: int) -> None:
        """`serve` answers each request, or gives None: then each has to go alone. It gets at most `most` of them."""
        self._serve = serve
        self._most = most
        self._groups: dict[K, list[tuple[R, asyncio.Future[T | None], Context]]] = {}

    def join(self, key: K, request: R, *, patient: bool = False) -> "asyncio.Future[T | None] | None":
        """Where the answer will be; None, there or here, says that the request has to go alone.

        One that is `patient` waits for the others also when it is the first.
        """
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = []
            background.call_soon(self._end, key)
            if not patient:
                return None
        if len(group) == self._most:
            self.flush(key)
        future = asyncio.get_running_loop().create_future()
        group.append((request, future, copy_context()))
        return future

    def flush(self, key: K) -> None:
        """Serve now who has joined: what its caller is about to do comes after them."""
        if group := self._groups.get(key):
            self._answer(key, group)
            group.clear()

    def _end(self, key: K) -> None:
        self._answer(key, self._groups.pop(key))

    def _answer(self, key: K, group: list[tuple[R, "asyncio.Future[T | None]", Context]]) -> None:
        waiting = [each for each in group if not each[1].done()]  # else its caller has left
        if not waiting:
            return
        futures = [future for _, future, _ in waiting]
        # What is done for several is no one's, for the log, the audit and the trace.
        within = waiting[0][2] if len(waiting) == 1 else Context()
        try:
            given = within.run(self._serve, key, [request for request, _, _ in waiting])
            answers: Sequence[T | None] = given or [None] * len(waiting)
        except Exception as error:
            for future in futures:
                future.set_exception(error)
            return
        for future, answer in zip(futures, answers, strict=True):
            future.set_result(answer)
