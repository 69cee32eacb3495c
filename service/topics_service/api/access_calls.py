"""What runs for a key, so that it can be ended when the key goes."""

import asyncio
from collections.abc import Container
from types import TracebackType
from typing import Any, Final, Protocol, Self

from topics_service.api.auth import Principal
from topics_service.engine.errors import Reason, TopicsError


class Ends(Protocol):
    """What can be ended: a task, a future, a call."""

    def cancel(self) -> object: ...


class Running:
    """The tasks and calls of all keys. Belongs to one event loop.

    Every request passes this, so it hashes no Principal and keeps plain sets.
    """

    def __init__(self) -> None:
        self._calls: set[Call] = set()
        self._others: dict[Ends, Principal] = {}

    def add(self, principal: Principal, running: "asyncio.Future[Any]") -> None:
        """What does nothing but serve `principal`, until it is done: it is cancelled when the key goes."""
        others = self._others
        if running not in others:
            running.add_done_callback(self._remove)
        others[running] = principal

    def add_task(self, principal: Principal) -> None:
        """As `add`, of the running task."""
        task = _task()
        if task is not None:
            self.add(principal, task)

    def call(self, principal: Principal) -> "Call":
        """While entered, what the task waits for is ended when the key goes: leaving raises `unauthorized` then."""
        return Call(self._calls, principal)

    def end_all_but(self, principals: Container[Principal]) -> None:
        """End what runs for anybody else."""
        for call in [each for each in self._calls if each.principal not in principals]:
            self._calls.discard(call)
            call.cancel()
        for running in [each for each, principal in self._others.items() if principal not in principals]:
            running.cancel()

    def _remove(self, running: "asyncio.Future[Any]") -> None:
        self._others.pop(running, None)


class Call:
    """A part of a task, from enter to exit."""

    __slots__ = ("_calls", "_ended", "_task", "principal")

    def __init__(self, calls: "set[Call]", principal: Principal) -> None:
        self._calls: Final = calls
        self.principal: Final = principal
        self._ended = False
        self._task: asyncio.Task[Any] | None = None

    def __enter__(self) -> Self:
        self._task = _task()
        if self._task is not None:
            self._calls.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._calls.discard(self)
        task = self._task
        if not self._ended or task is None or kind is None or not issubclass(kind, asyncio.CancelledError):
            return
        if not task.uncancel():  # nobody else wants its end, as when the client has left
            raise gone() from None

    def cancel(self) -> None:
        """Its key has gone."""
        self._ended = True
        if self._task is not None:
            self._task.cancel()


def gone() -> TopicsError:
    """What is told to a call whose key has gone."""
    return TopicsError(Reason.UNAUTHORIZED, "the API key was removed or changed")


def _task() -> asyncio.Task[Any] | None:
    """The running task; None outside of a loop."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
