"""WatchService over gRPC."""
# ruff: noqa: N802  # methods carry the names of the proto

import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping
from contextlib import aclosing
from typing import Any, Final

import grpc
from grpc.aio import ServicerContext

from topics_proto.v1 import watch_service_pb2 as pb
from topics_service.api.grpc.convert import tag_match
from topics_service.api.grpc.frames import FrameWriter, position_message
from topics_service.api.grpc.guard import caller
from topics_service.api.grpc.record_runs import RunCache
from topics_service.api.interfaces import Topics
from topics_service.api.watch_stream import SessionStream
from topics_service.engine.errors import TopicsError, invalid
from topics_service.engine.watch.frames import ErrorFrame, WatchRequest, WatchTopic
from topics_service.engine.watch.scope import by_topic_partition

Context = ServicerContext[Any, Any]

_HEARTBEAT_MS: Final = 15_000
_RUNS_BYTES: Final = 16 << 20
_STRONG: Final[dict[int, bool]] = {
    pb.WATCH_CONSISTENCY_UNSPECIFIED: False,
    pb.WATCH_CONSISTENCY_EVENTUAL: False,
    pb.WATCH_CONSISTENCY_STRONG: True,
}


class WatchServicer:
    """Converts and calls the api; streams give serialized messages.

    Methods raise TopicsError for `guard.Guard` to translate. gRPC cancels a stream when its client cancels or leaves,
    which lets go of everything that it holds.
    """

    def __init__(self, api: Topics) -> None:
        self._api = api
        self._runs = RunCache(_RUNS_BYTES)
        api.metrics.caches["protobuf"] = self._runs

    def register(self, server: grpc.aio.Server) -> None:
        """Add the service to a server. In place of the generated function, which would serialize the messages again."""
        service = pb.DESCRIPTOR.services_by_name["WatchService"].full_name
        handlers: dict[str, Any] = {
            "CreateWatch": grpc.unary_unary_rpc_method_handler(
                self.CreateWatch,
                request_deserializer=pb.CreateWatchRequest.FromString,
                response_serializer=pb.CreateWatchResponse.SerializeToString,
            ),
            "OpenWatch": grpc.unary_stream_rpc_method_handler(
                self.OpenWatch, request_deserializer=pb.OpenWatchRequest.FromString
            ),
            "Watch": grpc.unary_stream_rpc_method_handler(self.Watch, request_deserializer=pb.WatchRequest.FromString),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))

    async def CreateWatch(self, request: pb.CreateWatchRequest, context: Context) -> pb.CreateWatchResponse:
        """See proto/topics/v1/watch_service.proto, as for every method here."""
        started = time.perf_counter()
        asked = watch_request(request.subscription, lenient=request.lenient)
        session = await self._api.watches.create(asked, principal=caller())
        response = pb.CreateWatchResponse(
            wid=session.wid,
            stream_url=f"/v0/watch/{session.wid}",
            session_ttl_ms=session.ttl_ms,
            topics={name: position_message(position) for name, position in session.positions.items()},
        )
        response.performance.server_total_ms = (time.perf_counter() - started) * 1e3
        return response

    async def OpenWatch(self, request: pb.OpenWatchRequest, context: Context) -> AsyncIterator[bytes]:
        opened = self._api.watches.open(request.wid, dict(request.cursor), principal=caller())
        async with aclosing(self._messages(opened)) as messages:
            async for message in messages:
                yield message

    async def Watch(self, request: pb.WatchRequest, context: Context) -> AsyncIterator[bytes]:
        asked = watch_request(request.subscription, lenient=request.lenient)
        opened = self._api.watches.stream(asked, principal=caller())
        async with aclosing(self._messages(opened)) as messages:
            async for message in messages:
                yield message

    async def _messages(self, opened: Awaitable[SessionStream]) -> AsyncGenerator[bytes, None]:
        """All of a stream; it ends with the status of a terminal error."""
        with await opened as stream:
            writer = FrameWriter(self._runs, self._api.limits, stream)
            yield writer.subscribed()
            async for frame in stream:
                for message in writer.messages(frame):
                    yield message
                if isinstance(frame, ErrorFrame) and frame.terminal:
                    raise TopicsError(frame.reason, frame.message, retry_after_ms=frame.retry_after_ms)


def watch_request(asked: pb.WatchSubscription, *, lenient: bool) -> WatchRequest:
    """A subscription; the engine clamps its numbers. Raises `invalid_request` for values that its struct cannot
    express.
    """
    strong = _STRONG.get(asked.consistency)
    if strong is None:
        raise invalid(f"consistency: unknown value {asked.consistency}")
    return WatchRequest(
        topics=_topics(asked.topics),
        cursor=dict(asked.cursor),
        nodes=tuple(node.encode() for node in asked.node),
        filter=tag_match(asked.filter, "filter") if asked.HasField("filter") else None,
        limit=asked.limit,
        max_batch_bytes=asked.max_batch_bytes if asked.HasField("max_batch_bytes") else None,
        heartbeat_ms=asked.heartbeat_ms if asked.HasField("heartbeat_ms") else _HEARTBEAT_MS,
        strong=strong,
        lenient=lenient,
        include_tags=asked.include_tags,
        include_metas=asked.include_meta if asked.HasField("include_meta") else True,
        include_data=asked.include_data if asked.HasField("include_data") else True,
    )


def _topics(given: Mapping[str, pb.WatchTopic]) -> dict[str, WatchTopic]:
    return by_topic_partition(
        (name, start.partition, WatchTopic(from_seq=start.from_seq, tail=start.tail)) for name, start in given.items()
    )
