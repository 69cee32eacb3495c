"""The ends of partitions in several shards, one call for each shard."""

import asyncio
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from topics_service.api.positions import Ends, PositionsApi
from topics_service.engine.errors import Reason, TopicsError
from topics_shards.locating import Located

T = TypeVar("T")

Partition = tuple[str, int]
"""A topic's name and the number of a partition."""
Found = Mapping[Partition, Ends | TopicsError]
"""The ends of each partition, or the reason why it has none: `topic_not_found` or `partition_not_found`."""


async def ends_of(located: Located, partitions: Iterable[Partition], ts: int | None = None) -> Found:
    """The ends of partitions. With `ts` also the cursor in front of the first record of that time (ms) or later.

    Raises for a shard that does not answer.
    """
    asked: dict[int, list[Partition]] = {}
    for name, number in dict.fromkeys(partitions):
        asked.setdefault(located.shard(name, number), []).append((name, number))
    found: dict[Partition, Ends | TopicsError] = {}
    for part in await together([_look(located, shard, some, ts) for shard, some in asked.items()]):
        found.update(part)
    return found


async def together(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of calls that are made at once. Raises the first error in the order of the calls."""
    if len(work) < 2:
        return [await each for each in work]
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        await asyncio.wait(tasks)
    finally:
        for task in tasks:
            task.cancel()
    return [task.result() for task in tasks]


async def _look(located: Located, shard: int, partitions: Sequence[Partition], ts: int | None) -> Found:
    found: dict[Partition, Ends | TopicsError] = {}
    unknown: list[Partition] = []
    for partition, answer in zip(
        partitions, await located.shards.call(shard, PositionsApi.ends, partitions, ts), strict=True
    ):
        if answer is not None:
            found[partition] = answer
        else:
            unknown.append(partition)  # it is elsewhere, or nowhere: to say so is up to the topic's home
    answers = await together([_ask(located, *partition, ts) for partition in unknown])
    return found | dict(zip(unknown, answers, strict=True))


async def _ask(located: Located, name: str, number: int, ts: int | None) -> Ends | TopicsError:
    """One partition, by way of its topic's home."""
    try:
        return await located.call(name, number, PositionsApi.ends_of, name, number, ts)
    except TopicsError as error:
        if error.reason in (Reason.TOPIC_NOT_FOUND, Reason.PARTITION_NOT_FOUND):
            return error
        raise
