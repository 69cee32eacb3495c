"""Timers, callbacks and tasks that run outside the context of any request.

asyncio runs a callback in a copy of the context in which it was scheduled. Work that outlives the request that
scheduled it, or serves other requests too, would be logged, audited and traced as part of that request; it is
scheduled here.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")


def call_soon(callback: Callable[..., object], *args: Any) -> asyncio.Handle:
    """Schedule a callback like the running loop's `call_soon`."""
    return asyncio.get_running_loop().call_soon(callback, *args, context=Context())


def call_later(seconds: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
    """Schedule a callback like the running loop's `call_later`."""
    return asyncio.get_running_loop().call_later(seconds, callback, *args, context=Context())


def call_at(when: float, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
    """Schedule a callback like the running loop's `call_at`."""
    return asyncio.get_running_loop().call_at(when, callback, *args, context=Context())


def start(work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
    """Start a task like `asyncio.create_task`. The caller must keep it: the loop has only a weak reference."""
    return asyncio.get_running_loop().create_task(work, context=Context())
