"""Running calls by caller, so that they end when its key is revoked, its user changes or its token expires."""

import asyncio
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Protocol, Self

from topics_net import background
from topics_service.api.access.auth import Principal, kind_of
from topics_service.engine.errors import Reason, TopicsError


class Cancellable(Protocol):
    """A task, a future or a call."""

    def cancel(self) -> object: ...


_MAX_SLEEP_SECONDS: Final = 3600.0
_SEND_SECONDS: Final = 30.0


class _Expiry:
    """Cancels a call when its token expires, until it is stopped."""

    __slots__ = ("_call", "_expires", "_timer")

    def __init__(self, call: Cancellable, expires: float) -> None:
        self._call = call
        self._expires = expires
        self._wait()

    def stop(self, _: object = None) -> None:
        """Leave the call alone from now on. Idempotent."""
        self._timer.cancel()

    def _wait(self) -> None:
        """The clock may be set meanwhile, and a token may be valid for longer than a timer can be."""
        left = min(max(0.0, self._expires - time.time()), _MAX_SLEEP_SECONDS)
        self._timer = background.call_later(left, self._woken)

    def _woken(self) -> None:
        if time.time() >= self._expires:
            self._call.cancel()
        else:
            self._wait()


class RevocableCalls:
    """Running tasks and calls of all callers, on one event loop.

    Every request passes through it, so it uses plain sets and never hashes a Principal.
    """

    def __init__(self) -> None:
        self._calls: set[RevocableCall] = set()
        self._futures: dict[Cancellable, Principal] = {}

    def add(self, principal: Principal, running: "asyncio.Future[Any]") -> None:
        """Cancel a future, which must serve only `principal`, if that becomes invalid before it is done."""
        futures = self._futures
        if running not in futures:
            running.add_done_callback(self._remove)
            if principal.expires is not None:
                running.add_done_callback(_Expiry(running, principal.expires).stop)
        futures[running] = principal

    def add_task(self, principal: Principal) -> None:
        """Add the current task, as `add` does."""
        task = _task()
        if task is not None:
            self.add(principal, task)

    def call(self, principal: Principal) -> "RevocableCall":
        """Return a context that is cancelled once `principal` is invalid; leaving it then raises `unauthorized`."""
        return RevocableCall(self._calls, principal)

    def cancel_unless(self, is_valid: Callable[[Principal], bool]) -> None:
        """Cancel the calls and futures of all principals but the valid ones, and but the current task."""
        current = _task()
        for call in [each for each in self._calls if not is_valid(each.principal)]:
            if not call.is_of(current):
                self._calls.discard(call)
                call.cancel()
        for running in [each for each, principal in self._futures.items() if not is_valid(principal)]:
            if running is not current:
                running.cancel()

    def _remove(self, running: "asyncio.Future[Any]") -> None:
        self._futures.pop(running, None)


class RevocableCall:
    """A revocable part of a task, from enter to exit.

    A stream marks the time in which gRPC sends a message by `begin_sending` and `end_sending`. A call that is cancelled
    then ends without a status, and its client would wait forever. So the stream ends behind the message, and is
    cancelled only if the client does not read that within 30 s.
    """

    __slots__ = ("_calls", "_expiry", "_is_revoked", "_is_sending", "_send_timer", "_task", "principal")

    def __init__(self, calls: "set[RevocableCall]", principal: Principal) -> None:
        self._calls: Final = calls
        self.principal: Final = principal
        self._is_revoked = False
        self._is_sending = False
        self._task: asyncio.Task[Any] | None = None
        self._expiry: _Expiry | None = None
        self._send_timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        self._task = _task()
        if self._task is not None:
            self._calls.add(self)
            if self.principal.expires is not None:
                self._expiry = _Expiry(self, self.principal.expires)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._calls.discard(self)
        if self._expiry is not None:
            self._expiry.stop()
        if self._send_timer is not None:
            self._send_timer.cancel()
        task = self._task
        if not self._is_revoked or task is None or kind is None or not issubclass(kind, asyncio.CancelledError):
            return
        if not task.uncancel():  # no other cancellation is pending, such as that of a client that left
            raise revoked(self.principal) from None

    def is_of(self, task: asyncio.Task[Any] | None) -> bool:
        """True if it is a part of the task."""
        return self._task is task

    def begin_sending(self) -> None:
        """The task leaves this part of it, to send a message."""
        self._is_sending = True

    def end_sending(self) -> None:
        """The task is back. Raises `unauthorized` if the caller became invalid meanwhile."""
        self._is_sending = False
        if self._is_revoked:
            raise revoked(self.principal)

    def cancel(self) -> None:
        """Cancel the task, as its caller is no longer valid. Idempotent."""
        if self._is_revoked or self._task is None:
            return
        self._is_revoked = True
        if self._is_sending:
            self._send_timer = background.call_later(_SEND_SECONDS, self._task.cancel)
        else:
            self._task.cancel()


def revoked(principal: Principal) -> TopicsError:
    """Return the error for calls whose caller is no longer valid."""
    how = "has expired or its key was replaced" if principal.expires is not None else "was removed or changed"
    return TopicsError(Reason.UNAUTHORIZED, f"the {kind_of(principal)} {how}")


def _task() -> asyncio.Task[Any] | None:
    """Return the current task, None outside of an event loop."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
