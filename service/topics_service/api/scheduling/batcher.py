"""Batching of requests that arrive in the same iteration of the event loop."""

import asyncio
from collections.abc import Callable, Hashable, Sequence
from contextvars import Context, copy_context
from typing import Generic, TypeVar

from topics_net import background

K = TypeVar("K", bound=Hashable)
R = TypeVar("R")
T = TypeVar("T")


class WriteBatcher(Generic[K, R, T]):
    """Batches the requests for one key within an iteration of the event loop.

    The first request in a loop iteration runs immediately, on its own; later ones are batched until the loop runs
    again, and `serve` then gets them in order.
    """

    def __init__(self, serve: Callable[[K, Sequence[R]], Sequence[T] | None], max_batch: int) -> None:
        """`serve` answers at most `max_batch` requests, or returns None if each must run on its own."""
        self._serve = serve
        self._max_batch = max_batch
        self._groups: dict[K, list[tuple[R, asyncio.Future[T | None], Context]]] = {}

    def join(self, key: K, request: R, *, linger: bool = False) -> "asyncio.Future[T | None] | None":
        """Add a request to the batch of its key; the future gives its answer.

        None, returned or as the answer, means that the request must run on its own. With `linger`, the first request of
        an iteration waits for the batch too.
        """
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = []
            background.call_soon(self._end, key)
            if not linger:
                return None
        if len(group) == self._max_batch:
            self.flush(key)
        future = asyncio.get_running_loop().create_future()
        group.append((request, future, copy_context()))
        return future

    def flush(self, key: K) -> None:
        """Flush the pending batch so that the caller's write is ordered after it."""
        if group := self._groups.get(key):
            self._answer(key, group)
            group.clear()

    def _end(self, key: K) -> None:
        self._answer(key, self._groups.pop(key))

    def _answer(self, key: K, group: list[tuple[R, "asyncio.Future[T | None]", Context]]) -> None:
        waiting = [each for each in group if not each[1].done()]  # else its caller was cancelled
        if not waiting:
            return
        futures = [future for _, future, _ in waiting]
        # A batch of several requests belongs to none of them in the log, the audit log and the trace.
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
