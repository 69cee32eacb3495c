"""Bulk reads: page after page of one topic, up to an end or indefinitely."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Final, Protocol

from msgspec.structs import replace

from topics_service.engine.limits import Limits
from topics_service.engine.model import BulkRequest, DiffReply

_TURNS: Final = 8  # of the loop, which an append takes less of: else it waits for a page at each of them


class BulkTopics(Protocol):
    """The calls that a bulk read makes; see TopicsApi."""

    @property
    def limits(self) -> Limits: ...
    async def bulk(self, request: BulkRequest) -> tuple[DiffReply, int]: ...
    async def news(self, topic: str, partition: int = 0, after: int | None = None) -> None: ...


class Turns:
    """Has the long reads of a process take their pages one at a time, with turns of the loop for all others between.

    With pages of 1 MiB that halves the time of concurrent appends, for a few percent of the reader's speed.
    """

    def __init__(self) -> None:
        self._one = asyncio.Lock()

    async def wait(self) -> None:
        """Return when it is one's turn to take a page."""
        async with self._one:
            for _ in range(_TURNS):
                await asyncio.sleep(0)


async def read_bulk(
    api: BulkTopics, request: BulkRequest, turns: Turns | None = None, *, follow: bool
) -> AsyncGenerator[tuple[DiffReply, bool], None]:
    """Pages that follow each other without a hole, each with whether it is the last.

    Without `follow` they end at `end_seq` or, if that is lower, at the head as of the call; with it they continue as
    records are written, up to `end_seq` if there is one. A page may hold no records. Nothing is read before it is
    requested, and then in turn (without `turns`: a turn of the loop later). Raises TopicsError, also if the topic is
    deleted during the read, or the server drains.
    """
    if turns is not None:  # many can begin at once
        await turns.wait()
    reply, epoch = await api.bulk(request)
    end = request.end_seq
    if not follow:
        end = reply.head_seq if end is None else min(end, reply.head_seq)
    cursor = replace(request, from_ts=None, last=None, end_seq=end, epoch=epoch)
    while True:
        done = end is not None and reply.next_from_seq >= end
        yield reply, done
        if done:
            return
        await (asyncio.sleep(0) if turns is None else turns.wait())
        cursor.from_seq = reply.next_from_seq
        reply, _ = await api.bulk(cursor)
        while reply.next_from_seq == cursor.from_seq == reply.head_seq:
            await api.news(request.topic, request.partition, after=reply.head_seq)
            reply, _ = await api.bulk(cursor)
