"""A long read: page after page of one topic up to an end, or for ever."""

import asyncio
from collections.abc import AsyncGenerator

from msgspec.structs import replace

from topics_service.api.topics import TopicsApi
from topics_service.engine.model import BulkRequest, DiffReply


async def read_bulk(
    api: TopicsApi, request: BulkRequest, *, follow: bool
) -> AsyncGenerator[tuple[DiffReply, bool], None]:
    """Pages that follow each other without a hole, each with whether it is the last.

    Without `follow` they end at `end_seq` or, if that is lower, at the head of the moment of the call; with it they go
    on as records are written, up to `end_seq` if there is one. A page may hold no records. Nothing is read before it is
    asked for, and the loop gets a turn between pages. Raises TopicsError, also for a topic that was deleted meanwhile
    and for a server that drains.
    """
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
        await asyncio.sleep(0)
        cursor.from_seq = reply.next_from_seq
        reply, _ = await api.bulk(cursor)
        while reply.next_from_seq == cursor.from_seq == reply.head_seq:
            # Parked at once: nothing can come between the read and the wait.
            await api.news(request.topic, request.partition)
            reply, _ = await api.bulk(cursor)
