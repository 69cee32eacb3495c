"""QueueService over gRPC."""
# ruff: noqa: N802  # methods carry the names of the proto

import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, TypeVar

from grpc.aio import ServicerContext

from topics_proto.v1 import queue_service_pb2 as pb
from topics_proto.v1 import queue_service_pb2_grpc
from topics_service.api.grpc import jobs
from topics_service.api.grpc.guard import caller
from topics_service.api.interfaces import Topics
from topics_service.engine.errors import TopicsError
from topics_service.engine.watch.frames import ErrorFrame

Context = ServicerContext[Any, Any]
Timed = TypeVar(
    "Timed",
    pb.ClaimResponse,
    pb.AckResponse,
    pb.NackResponse,
    pb.ExtendResponse,
    pb.StopWorkResponse,
    pb.RedriveResponse,
    pb.ListJobsResponse,
)


class QueueServicer(queue_service_pb2_grpc.QueueServiceServicer):
    """Converts, calls the api, converts back and says how long all of it took.

    Methods raise TopicsError for `guard.Guard` to translate. gRPC cancels a method when its client cancels or its
    deadline passes: a waiting Claim then leaves nothing leased, and a Work gives back its jobs.
    """

    def __init__(self, api: Topics) -> None:
        self._api = api

    async def Claim(self, request: pb.ClaimRequest, context: Context) -> pb.ClaimResponse:
        """See proto/topics/v1/queue_service.proto, as for every method here."""
        started = time.perf_counter()
        reply = await self._api.queues.claim(jobs.claim_request(request))
        return _timed(jobs.claim_response(reply), started)

    async def Ack(self, request: pb.AckRequest, context: Context) -> pb.AckResponse:
        started = time.perf_counter()
        reply = await self._api.queues.ack(jobs.ack_request(request))
        return _timed(jobs.ack_response(reply), started)

    async def Nack(self, request: pb.NackRequest, context: Context) -> pb.NackResponse:
        started = time.perf_counter()
        reply = await self._api.queues.nack(jobs.nack_request(request))
        return _timed(jobs.nack_response(reply), started)

    async def Extend(self, request: pb.ExtendRequest, context: Context) -> pb.ExtendResponse:
        started = time.perf_counter()
        reply = await self._api.queues.extend(jobs.extend_request(request))
        return _timed(jobs.extend_response(reply), started)

    async def Work(self, request: pb.WorkRequest, context: Context) -> AsyncIterator[pb.WorkResponse]:
        async with aclosing(self._api.queues.push(jobs.claim_request(request), principal=caller())) as frames:
            async for frame in frames:
                yield jobs.work_frame(request.topic, frame)
                if isinstance(frame, ErrorFrame) and frame.terminal:
                    raise TopicsError(frame.reason, frame.message, retry_after_ms=frame.retry_after_ms)

    async def StopWork(self, request: pb.StopWorkRequest, context: Context) -> pb.StopWorkResponse:
        started = time.perf_counter()
        held = await self._api.queues.stop_work(request.topic, request.node)
        return _timed(pb.StopWorkResponse(topic=request.topic, held=held), started)

    async def Redrive(self, request: pb.RedriveRequest, context: Context) -> pb.RedriveResponse:
        started = time.perf_counter()
        reply = await self._api.queues.redrive(jobs.redrive_request(request), principal=caller())
        return _timed(jobs.redrive_response(reply), started)

    async def ListJobs(self, request: pb.ListJobsRequest, context: Context) -> pb.ListJobsResponse:
        started = time.perf_counter()
        asked = jobs.list_jobs_request(request)
        return _timed(jobs.list_jobs_response(await self._api.queues.jobs(asked), asked.state), started)


def _timed(response: Timed, started: float) -> Timed:
    response.performance.server_total_ms = (time.perf_counter() - started) * 1e3
    return response
