"""Queues: lease jobs, finish them, give them back, keep them."""

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
    """Calls on the jobs of queues. Each raises NotFoundError without the topic, ConflictError if it is no queue."""

    async def claim(
        self,
        queue: str,
        node: str,
        *,
        max: int = 1,
        lease_ms: int | None = None,
        ack: Sequence[Job] = (),
    ) -> list[Job]:
        """Lease up to `max` jobs to the worker `node`, for `lease_ms` or as long as the queue says. None, or fewer,
        means that there are no more for now.

        First finishes the jobs in `ack`, at no call of its own. Made once: jobs of an answer that is lost come back
        when their lease ends.
        """
        request = pb.ClaimRequest(topic=queue, node=node, max=max, lease_ms=lease_ms, ack=finished(ack))
        reply = await self.connection.unary(self.connection.queues.Claim, request)
        return [job_of(queue, job) for job in reply.claimed]

    async def ack(self, queue: str, node: str, jobs: Iterable[Job]) -> Settled:
        """Finish jobs: they are gone for good. A job whose lease is lost is skipped, and told in the answer."""
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
        """Give jobs back, to be claimed again after `delay_ms`. It counts as a failed attempt unless `release`.

        The `reason`, at most 4096 bytes, is kept with the jobs and told in their dead letters.
        Those that this was the last delivery of are dead-lettered at once, as the answer tells.
        """
        mode = pb.NACK_MODE_RELEASE if release else pb.NACK_MODE_RETRY
        request = pb.NackRequest(topic=queue, node=node, delay_ms=delay_ms, mode=mode, reason=reason, **fence(jobs))
        reply = await self.connection.unary(self.connection.queues.Nack, request, repeatable=True)
        return Settled(reply.nacked, tuple(reply.skipped), tuple(reply.dead_lettered), tuple(reply.exhausted))

    async def extend(self, queue: str, node: str, jobs: Iterable[Job], lease_ms: int) -> Settled:
        """Let leases end in `lease_ms` from now."""
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
        """Move dead letters of the queue back into it, at most `max` of them (0: all). How many it was."""
        request = pb.RedriveRequest(topic=queue, match=tag_match(tag, tag_prefix), max=max)
        return (await self.connection.unary(self.connection.queues.Redrive, request)).redriven

    async def list_jobs(self, queue: str, state: JobState = "ready") -> AsyncIterator[JobView]:
        """The jobs in a state, in order of seq. Touches no lease."""
        number = cast("job_pb2.JobState.ValueType", number_of("state", state))
        request = pb.ListJobsRequest(topic=queue, state=number, limit=1000)
        while True:
            reply = await self.connection.unary(self.connection.queues.ListJobs, request)
            for view in reply.jobs:
                yield job_view_of(queue, view)
            if not reply.HasField("next_after"):
                return
            request.after = reply.next_after
