"""Items of a request whose partitions other processes have: one call for each shard."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from topics_kafka.protocol import Message
from topics_service.engine.errors import TopicsError

Q = TypeVar("Q")
R = TypeVar("R")


class Elsewhere(Generic[Q, R]):
    """Collects items by shard, each with what shows its outcome in the response. True if there are any.

    `call` asks a shard for the outcomes of items; `failed` makes one of the error of a whole call.
    """

    def __init__(self, call: Callable[[int, list[Q]], Awaitable[list[R]]], failed: Callable[[TopicsError], R]) -> None:
        self._call = call
        self._failed = failed
        self._items: dict[int, list[Q]] = {}
        self._shows: dict[int, list[Callable[[R], None]]] = {}
        self._calls: dict[int, asyncio.Future[list[R]]] = {}

    def __bool__(self) -> bool:
        return bool(self._items)

    def add(self, shard: int, item: Q, show: Callable[[R], None]) -> None:
        """Add an item."""
        self._items.setdefault(shard, []).append(item)
        self._shows.setdefault(shard, []).append(show)

    def start(self) -> None:
        """Make the calls. Those on one shard go out in the order in which they are started."""
        for shard, items in self._items.items():
            call = self._calls[shard] = asyncio.ensure_future(self._call(shard, items))
            call.add_done_callback(_retrieve)

    async def shown(self) -> None:
        """Wait for the calls, which run on if this is cancelled, and show their outcomes."""
        if not self._calls:
            self.start()
        await asyncio.wait(self._calls.values())
        for shard, call in self._calls.items():
            shows = self._shows[shard]
            try:
                outcomes = call.result()
            except TopicsError as error:
                outcomes = [self._failed(error)] * len(shows)
            for show, outcome in zip(shows, outcomes, strict=True):
                show(outcome)


def _retrieve(call: "asyncio.Future[list[R]]") -> None:
    """Keep asyncio from complaining of an error that no client waits for any more."""
    if not call.cancelled():
        call.exception()


def completed(answer: Message | Awaitable[Message], elsewhere: Elsewhere[Q, R] | None) -> Message | Awaitable[Message]:
    """The response once the outcomes of other processes are shown in it as well."""
    if elsewhere is None or (isinstance(answer, dict) and not elsewhere):
        return answer
    return _completed(answer, elsewhere)  # an answer that is not there yet may still add to `elsewhere`


async def _completed(answer: Message | Awaitable[Message], elsewhere: Elsewhere[Q, R]) -> Message:
    response = answer if isinstance(answer, dict) else await answer
    if elsewhere:
        await elsewhere.shown()
    return response
