"""TopicsService over gRPC."""
# ruff: noqa: N802  # methods carry the names of the proto

import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, TypeVar

from grpc.aio import ServicerContext

from topics_proto.v1 import topics_service_pb2 as pb
from topics_proto.v1 import topics_service_pb2_grpc
from topics_service.api.bulk import BulkTopics, Turns
from topics_service.api.grpc import convert
from topics_service.api.grpc.append_stream import AppendPipe
from topics_service.api.grpc.bulk_diff import bulk_messages
from topics_service.api.grpc.configs import config_input
from topics_service.api.grpc.guard import caller
from topics_service.api.interfaces import Topics

Context = ServicerContext[Any, Any]
Timed = TypeVar(
    "Timed",
    pb.PutTopicResponse,
    pb.GetTopicResponse,
    pb.ListTopicsResponse,
    pb.DeleteTopicResponse,
    pb.AppendResponse,
    pb.DiffResponse,
    pb.LocateTimeResponse,
    pb.DeleteRecordsResponse,
)


class TopicsServicer(topics_service_pb2_grpc.TopicsServiceServicer):
    """Converts, calls the api, converts back and says how long all of it took.

    Methods raise TopicsError for `guard.Guard` to translate. gRPC cancels a method when its client cancels or
    its deadline passes, which ends a waiting Diff and leaves a write that was already made.
    """

    def __init__(self, api: Topics, bulk_topics: Callable[[pb.BulkDiffRequest], BulkTopics] | None = None) -> None:
        """`bulk_topics` chooses what answers a bulk read, if that is not always `api`."""
        self._api = api
        self._bulk_topics = bulk_topics
        self._turns = Turns()

    async def PutTopic(self, request: pb.PutTopicRequest, context: Context) -> pb.PutTopicResponse:
        """See proto/topics/v1/topics_service.proto, as for every method here."""
        started = time.perf_counter()
        reply = await self._api.put_topic(
            request.topic,
            config_input(request.config),
            principal=caller(),
            partition_count=request.partition_count or None,
            placement=request.placement,
            zone=request.zone,
        )
        return _timed(convert.put_topic_response(reply), started)

    async def GetTopic(self, request: pb.GetTopicRequest, context: Context) -> pb.GetTopicResponse:
        started = time.perf_counter()
        touch = request.touch if request.HasField("touch") else True
        state = await self._api.get_topic(request.topic, touch=touch, partition=request.partition)
        return _timed(pb.GetTopicResponse(state=convert.topic_state(state)), started)

    async def ListTopics(self, request: pb.ListTopicsRequest, context: Context) -> pb.ListTopicsResponse:
        started = time.perf_counter()
        reply = await self._api.list_topics(convert.list_topics_request(request), principal=caller())
        return _timed(convert.list_topics_response(reply), started)

    async def DeleteTopic(self, request: pb.DeleteTopicRequest, context: Context) -> pb.DeleteTopicResponse:
        started = time.perf_counter()
        reply = await self._api.delete_topic(request.topic, if_empty=request.if_empty)
        reply.routers_removed = list(filter(caller().allows_name, reply.routers_removed))
        return _timed(convert.delete_topic_response(reply), started)

    async def Append(self, request: pb.AppendRequest, context: Context) -> pb.AppendResponse:
        started = time.perf_counter()
        return_seqs = request.return_seqs if request.HasField("return_seqs") else True
        append = convert.append_request(request, self._api.limits)
        del request  # its records take as much memory once more
        reply = await self._api.append(append, principal=caller())
        return _timed(convert.append_response(reply, return_seqs=return_seqs), started)

    async def Diff(self, request: pb.DiffRequest, context: Context) -> pb.DiffResponse:
        started = time.perf_counter()
        include_meta = request.include_meta if request.HasField("include_meta") else True
        reply = await self._api.diff(convert.diff_request(request))
        response = convert.diff_response(reply, include_tags=request.include_tags, include_meta=include_meta)
        return _timed(response, started)

    async def AppendStream(
        self, request_iterator: AsyncIterator[pb.AppendStreamRequest], context: Context
    ) -> AsyncIterator[pb.AppendStreamResponse]:
        pipe = AppendPipe(self._api, request_iterator, principal=caller())
        async with aclosing(pipe.acks()) as acks:
            async for ack in acks:
                yield ack

    async def BulkDiff(self, request: pb.BulkDiffRequest, context: Context) -> AsyncIterator[Any]:
        """Yields messages that are serialized, which the guard lets through."""
        api = self._api if self._bulk_topics is None else self._bulk_topics(request)
        async with aclosing(bulk_messages(api, request, self._turns)) as messages:
            async for message in messages:
                yield message

    async def LocateTime(self, request: pb.LocateTimeRequest, context: Context) -> pb.LocateTimeResponse:
        started = time.perf_counter()
        partition = request.partition
        seq, head = await self._api.locate(request.topic, convert.checked_time(request.ts_ms), partition)
        response = pb.LocateTimeResponse(topic=request.topic, partition=partition, seq=seq, head_seq=head)
        return _timed(response, started)

    async def DeleteRecords(self, request: pb.DeleteRecordsRequest, context: Context) -> pb.DeleteRecordsResponse:
        started = time.perf_counter()
        reply = await self._api.delete_records(convert.delete_records_request(request))
        return _timed(convert.delete_records_response(reply), started)


def _timed(response: Timed, started: float) -> Timed:
    response.performance.server_total_ms = (time.perf_counter() - started) * 1e3
    return response
