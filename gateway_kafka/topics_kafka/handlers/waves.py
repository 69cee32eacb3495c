"""Much work of one request, in parts between which other requests run."""

import asyncio
from collections.abc import Coroutine, Iterable
from itertools import islice
from typing import Any, Final, TypeVar

T = TypeVar("T")

_TOGETHER: Final = 64


async def in_waves(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The outcomes of `work`, in order: 64 at a time, which share their fsync. What raises ends the rest."""
    coroutines = iter(work)
    found: list[T] = []
    while wave := list(islice(coroutines, _TOGETHER)):
        found += await asyncio.gather(*wave)
    return found
