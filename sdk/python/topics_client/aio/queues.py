"""Queues: claim jobs, ack and nack them, extend their leases."""

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import cast

from topics_client.aio.base import AsyncBase
from topics_client.decoding import job_of, job_view_of
from topics_client.enums import number_of
from topics_client.models import Job, JobState, JobView, Settled
from topics_client.requests import fence, finished, tag_match
from topics_proto.v1 import job_pb2
from topics_proto.v1 import queue_service_pb2 as pb


class AsyncQueues(AsyncBase):
    """Calls on the jobs of queues. Each raises NotFoundError for a missing topic, ConflictError for one that is not a
    queue."""

    async def claim(
        self,
        queue: str,
        node: str,
        *,
        max: int = 1,
        lease_ms: int | None = None,
        ack: Sequence[Job] = (),
    ) -> list[Job]:
        """Lease up to `max` jobs to the worker `node` for `lease_ms`, by default the queue's. An empty or shorter list
        means that no more jobs are ready.

        Acks the jobs in `ack` first, in the same call. Never retried: if the response is lost, the jobs become ready
        again when their leases expire.
        """
        request = pb.ClaimRequest(topic=queue, node=node, max=max, lease_ms=lease_ms, ack=finished(ack))
        reply = await self.connection.unary(self.connection.queues.Claim, request)
        return [job_of(queue, job) for job in reply.claimed]

    async def ack(self, queue: str, node: str, jobs: Iterable[Job]) -> Settled:
        """Acknowledge jobs, which removes them permanently. Jobs whose lease is lost are skipped and listed in the
        result."""
        request = pb.AckRequest(topic=queue, node=node, **fence(jobs))
        reply = await self.connection.unary(self.connection.queues.Ack, request, repeatable=True)
        return Settled(reply.acked, tuple(reply.skipped))

    async def nack(
        self,
        queue: str,
        node: str,
        jobs: Iterable[Job],
        *,
        delay_ms: int = 0,
        release: bool = False,
        reason: str = "",
    ) -> Settled:
        """Return jobs to the queue, to be claimed again after `delay_ms`. Counts as a failed attempt unless `release`
        is set.

        The `reason`, at most 4096 bytes, is stored with the jobs and included in their dead letters. Jobs that have no
        deliveries left are dead-lettered at once and listed in the result.
        """
        mode = pb.NACK_MODE_RELEASE if release else pb.NACK_MODE_RETRY
        request = pb.NackRequest(topic=queue, node=node, delay_ms=delay_ms, mode=mode, reason=reason, **fence(jobs))
        reply = await self.connection.unary(self.connection.queues.Nack, request, repeatable=True)
        return Settled(reply.nacked, tuple(reply.skipped), tuple(reply.dead_lettered), tuple(reply.exhausted))

    async def extend(self, queue: str, node: str, jobs: Iterable[Job], lease_ms: int) -> Settled:
        """Extend leases to expire `lease_ms` from now."""
        request = pb.ExtendRequest(topic=queue, node=node, lease_ms=lease_ms, **fence(jobs))
        reply = await self.connection.unary(self.connection.queues.Extend, request, repeatable=True)
        return Settled(reply.extended, tuple(reply.skipped))

    async def redrive(
        self,
        queue: str,
        *,
        tag: str | None = None,
        tag_prefix: str | None = None,
        max: int = 0,
    ) -> int:
        """Move up to `max` dead letters (0: all) back into the queue. Returns the number moved."""
        request = pb.RedriveRequest(topic=queue, match=tag_match(tag, tag_prefix), max=max)
        return (await self.connection.unary(self.connection.queues.Redrive, request)).redriven

    async def list_jobs(self, queue: str, state: JobState = "ready") -> AsyncIterator[JobView]:
        """List the jobs in a state, in order of seq. Leases are not affected."""
        number = cast("job_pb2.JobState.ValueType", number_of("state", state))
        request = pb.ListJobsRequest(topic=queue, state=number, limit=1000)
        while True:
            reply = await self.connection.unary(self.connection.queues.ListJobs, request)
            for view in reply.jobs:
                yield job_view_of(queue, view)
            if not reply.HasField("next_after"):
                return
            request.after = reply.next_after
