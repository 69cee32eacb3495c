"""What runs for a key, so that it can be ended when the key goes."""

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, Protocol
from weakref import WeakSet

from topics_service.api.auth import Principal
from topics_service.engine.errors import Reason, TopicsError


class Running:
    """The tasks and calls of each key. Belongs to one event loop."""

    def __init__(self) -> None:
        self._of: defaultdict[Principal, WeakSet[_Ends]] = defaultdict(WeakSet)

    def add_task(self, principal: Principal) -> None:
        """The task that calls this does nothing but serve `principal`: it is cancelled when the key goes."""
        task = _task()
        if task is not None:
            self._of[principal].add(task)

    @contextmanager
    def call(self, principal: Principal) -> Iterator[None]:
        """While entered, what the task waits for is ended when the key goes: leaving raises `unauthorized` then."""
        task = _task()
        if task is None:
            yield
            return
        call = _Call(task)
        self._of[principal].add(call)
        try:
            yield
        except asyncio.CancelledError:
            if call.ended and not task.uncancel():  # nobody else wants its end, as when the client has left
                raise gone() from None
            raise
        finally:
            if (calls := self._of.get(principal)) is not None:
                calls.discard(call)

    def end_all_but(self, principals: Collection[Principal]) -> None:
        """End what runs for anybody else."""
        for principal in set(self._of).difference(principals):
            for each in list(self._of.pop(principal)):
                each.cancel()


def gone() -> TopicsError:
    """What is told to a call whose key has gone."""
    return TopicsError(Reason.UNAUTHORIZED, "the API key was removed or changed")


class _Ends(Protocol):
    def cancel(self) -> object: ...


class _Call:
    """A part of a task."""

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._task = task
        self.ended = False

    def cancel(self) -> None:
        self.ended = True
        self._task.cancel()


def _task() -> asyncio.Task[Any] | None:
    """The running task; None outside of a loop."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
