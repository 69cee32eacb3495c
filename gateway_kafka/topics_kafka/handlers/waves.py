"""Many small writes of one request, in groups that share their fsync."""

import asyncio
from collections.abc import Coroutine, Iterable
from itertools import islice
from typing import Any, Final, TypeVar

T = TypeVar("T")

_TOGETHER: Final = 64


async def in_waves(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run `work`, 64 at a time, which share an fsync. Returns the results in order; an exception ends the rest."""
    coroutines = iter(work)
    found: list[T] = []
    while wave := list(islice(coroutines, _TOGETHER)):
        found += await asyncio.gather(*wave)
    return found
