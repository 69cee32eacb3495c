"""Queue calls over all shards: a queue has one partition, and so one shard."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager, aclosing

from topics_service.api.access.auth import Principal
from topics_service.api.queues import QueuesApi
from topics_service.api.work import WorkFrame
from topics_service.engine.errors import TopicsError
from topics_service.engine.queue.jobs import (
    ClaimReply,
    ClaimRequest,
    ListJobsReply,
    ListJobsRequest,
    RedriveReply,
    RedriveRequest,
    SettleReply,
    SettleRequest,
)
from topics_shards.locating import Located

Connection = Callable[[Principal], AbstractContextManager[None]]


class ShardedQueues:
    """See QueuesApi."""

    def __init__(self, located: Located, connection: Connection) -> None:
        """`connection` holds a slot for a stream of this process."""
        self._located = located
        self._connection = connection
        self._ending: set[asyncio.Task[None]] = set()

    async def claim(self, request: ClaimRequest) -> ClaimReply:
        """See QueuesApi. Leases of a claim that was cancelled are released, also when its answer was on the way."""
        shards, shard = self._located.shards, self._located.shard(request.topic, 0)
        if shards.direct(shard) is not None:
            try:
                return await shards.call(shard, QueuesApi.claim, request)
            except TopicsError as error:
                if not await self._located.has_moved(request.topic, shard, error):
                    raise
        handed = self._located.stream(request.topic, QueuesApi.hand_over, request)
        try:
            reply = await anext(handed)
        except BaseException:
            await handed.aclose()
            raise
        ending = asyncio.create_task(_exhaust(handed))  # the worker need not wait for it
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        return reply

    async def ack(self, request: SettleRequest) -> SettleReply:
        """See QueuesApi."""
        return await self._located.call(request.topic, 0, QueuesApi.ack, request)

    async def nack(self, request: SettleRequest) -> SettleReply:
        """See QueuesApi."""
        return await self._located.call(request.topic, 0, QueuesApi.nack, request)

    async def extend(self, request: SettleRequest) -> SettleReply:
        """See QueuesApi."""
        return await self._located.call(request.topic, 0, QueuesApi.extend, request)

    async def push(self, request: ClaimRequest, *, principal: Principal) -> AsyncGenerator[WorkFrame, None]:
        """See QueuesApi. Jobs are leased only when the frame after the first one is asked for."""
        frames = self._located.stream(request.topic, QueuesApi.push, request, principal=principal, slot=False)
        async with aclosing(frames):
            first = await anext(frames)
            with self._connection(principal):
                yield first
                async for frame in frames:
                    yield frame

    async def stop_work(self, name: str, node: str) -> int:
        """See QueuesApi."""
        return await self._located.call(name, 0, QueuesApi.stop_work, name, node)

    async def redrive(self, request: RedriveRequest, *, principal: Principal) -> RedriveReply:
        """See QueuesApi."""
        return await self._located.call(request.topic, 0, QueuesApi.redrive, request, principal=principal)

    async def jobs(self, request: ListJobsRequest) -> ListJobsReply:
        """See QueuesApi."""
        return await self._located.call(request.topic, 0, QueuesApi.jobs, request)


async def _exhaust(handed: AsyncGenerator[ClaimReply, None]) -> None:
    """Say that the reply has come. If that gets lost, its leases end on their own, or are released while held."""
    async for _ in handed:
        pass
