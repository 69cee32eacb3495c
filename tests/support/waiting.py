"""Waiting for a condition, with a deadline."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def poll(
    condition: Callable[[], T], seconds: float = 20.0, what: str | Callable[[], str] = "", *, pause: float = 0.01
) -> T:
    """Call `condition` until it gives something true; AssertionError after `seconds`, which says `what` was waited for.

    A condition that costs much to check takes a longer `pause`.
    """
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            text = what if isinstance(what, str) else what()
            raise AssertionError(f"not within {seconds} s: {text or condition} (last: {value!r})")
        time.sleep(pause)


async def until(condition: Callable[[], object], seconds: float = 20.0, *, pause: float = 0.001) -> None:
    """Give the loop turns until the condition holds; TimeoutError after `seconds`."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(pause)
