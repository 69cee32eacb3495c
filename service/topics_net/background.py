"""Timers and callbacks that belong to no request, although one may have set them.

asyncio runs what it is given in a copy of the context of that moment. What outlives the request that it was set by, or
serves others as well, would be logged, audited and traced as that request's. So everything of this kind is set here.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")


def call_soon(callback: Callable[..., object], *args: Any) -> asyncio.Handle:
    """As the running loop's `call_soon`."""
    return asyncio.get_running_loop().call_soon(callback, *args, context=Context())


def call_later(seconds: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
    """As the running loop's `call_later`."""
    return asyncio.get_running_loop().call_later(seconds, callback, *args, context=Context())


def call_at(when: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
    """As the running loop's `call_at`."""
    return asyncio.get_running_loop().call_at(when, callback, *args, context=Context())


def start(work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
    """As `asyncio.create_task`; the caller keeps the task, of which the loop has no more than a weak reference."""
    return asyncio.get_running_loop().create_task(work, context=Context())
