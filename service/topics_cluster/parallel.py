"""Many calls, of which a bounded number is under way."""

import asyncio
from collections.abc import Coroutine, Iterable


async def run_all(calls: Iterable[Coroutine[object, object, None]], most: int) -> None:
    """Await all of `calls`, which are made as they are needed, `most` at a time.

    Raises the first error, after the others that were under way were cancelled.
    """
    waiting = iter(calls)

    async def work() -> None:
        for call in waiting:
            await call

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(most):
                group.create_task(work())
    except* Exception as errors:
        first: BaseException = errors
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from None
