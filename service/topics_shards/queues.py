"""Queue calls over all shards: a queue has one partition, and so one shard."""

from contextlib import AbstractContextManager

from topics_service.api.access.auth import Principal
from topics_service.api.queues import QueuesApi
from topics_service.api.work import WorkStream
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


class ShardedQueues:
    """See QueuesApi."""

    def __init__(self, located: Located) -> None:
        self._located = located

    async def claim(self, request: ClaimRequest) -> ClaimReply:
        """See QueuesApi."""
        return await self._located.call(request.topic, 0, QueuesApi.claim, request)

    async def ack(self, request: SettleRequest) -> SettleReply:
        """See QueuesApi."""
        return await self._located.call(request.topic, 0, QueuesApi.ack, request)

    async def nack(self, request: SettleRequest) -> SettleReply:
        """See QueuesApi."""
        return await self._located.call(request.topic, 0, QueuesApi.nack, request)

    async def extend(self, request: SettleRequest) -> SettleReply:
        """See QueuesApi."""
        return await self._located.call(request.topic, 0, QueuesApi.extend, request)

    def work(self, request: ClaimRequest, *, principal: Principal) -> AbstractContextManager[WorkStream]:
        """See QueuesApi."""
        raise NotImplementedError

    def stop_work(self, name: str, node: str) -> int:
        """See QueuesApi."""
        raise NotImplementedError

    async def redrive(self, request: RedriveRequest, *, principal: Principal) -> RedriveReply:
        """See QueuesApi."""
        return await self._located.call(request.topic, 0, QueuesApi.redrive, request, principal=principal)

    async def jobs(self, request: ListJobsRequest) -> ListJobsReply:
        """See QueuesApi."""
        return await self._located.call(request.topic, 0, QueuesApi.jobs, request)
