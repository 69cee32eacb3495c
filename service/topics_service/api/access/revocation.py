"""Running calls by API key, so that they can be cancelled when the key is revoked."""

import asyncio
from collections.abc import Container
from types import TracebackType
from typing import Any, Final, Protocol, Self

from topics_service.api.access.auth import Principal
from topics_service.engine.errors import Reason, TopicsError


class Cancellable(Protocol):
    """A task, a future or a call."""

    def cancel(self) -> object: ...


class RevocableCalls:
    """Running tasks and calls of all keys, on one event loop.

    Every request passes through it, so it uses plain sets and never hashes a Principal.
    """

    def __init__(self) -> None:
        self._calls: set[RevocableCall] = set()
        self._futures: dict[Cancellable, Principal] = {}

    def add(self, principal: Principal, running: "asyncio.Future[Any]") -> None:
        """Cancel a future, which must serve only `principal`, if the key is revoked before it is done."""
        futures = self._futures
        if running not in futures:
            running.add_done_callback(self._remove)
        futures[running] = principal

    def add_task(self, principal: Principal) -> None:
        """Add the current task, as `add` does."""
        task = _task()
        if task is not None:
            self.add(principal, task)

    def call(self, principal: Principal) -> "RevocableCall":
        """Return a context that is cancelled when the key is revoked; leaving it then raises `unauthorized`."""
        return RevocableCall(self._calls, principal)

    def cancel_all_except(self, principals: Container[Principal]) -> None:
        """Cancel the calls and futures of all other principals."""
        for call in [each for each in self._calls if each.principal not in principals]:
            self._calls.discard(call)
            call.cancel()
        for running in [each for each, principal in self._futures.items() if principal not in principals]:
            running.cancel()

    def _remove(self, running: "asyncio.Future[Any]") -> None:
        self._futures.pop(running, None)


class RevocableCall:
    """A revocable part of a task, from enter to exit."""

    __slots__ = ("_calls", "_is_revoked", "_task", "principal")

    def __init__(self, calls: "set[RevocableCall]", principal: Principal) -> None:
        self._calls: Final = calls
        self.principal: Final = principal
        self._is_revoked = False
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
        if not self._is_revoked or task is None or kind is None or not issubclass(kind, asyncio.CancelledError):
            return
        if not task.uncancel():  # no other cancellation is pending, such as that of a client that left
            raise key_revoked() from None

    def cancel(self) -> None:
        """Cancel the task, as the key was revoked."""
        self._is_revoked = True
        if self._task is not None:
            self._task.cancel()


def key_revoked() -> TopicsError:
    """Return the error for calls whose key was revoked."""
    return TopicsError(Reason.UNAUTHORIZED, "the API key was removed or changed")


def _task() -> asyncio.Task[Any] | None:
    """Return the current task, None outside of an event loop."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
