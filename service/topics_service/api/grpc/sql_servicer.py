"""SqlService over gRPC."""
# ruff: noqa: N802  # methods carry the names of the proto

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from grpc.aio import ServicerContext

from topics_proto.v1 import sql_service_pb2 as pb
from topics_proto.v1 import sql_service_pb2_grpc
from topics_service.api.grpc import sql
from topics_service.api.grpc.guard import caller
from topics_service.api.interfaces import Sql

Context = ServicerContext[Any, Any]


class SqlServicer(sql_service_pb2_grpc.SqlServiceServicer):
    """Converts, calls the api, converts back. See TopicsServicer."""

    def __init__(self, api: Sql) -> None:
        self._api = api

    async def Execute(self, request: pb.ExecuteRequest, context: Context) -> pb.ExecuteResponse:
        """See proto/topics/v1/sql_service.proto, as for every method here."""
        reply = await self._api.execute(sql.sql_request(request), principal=caller())
        return await asyncio.to_thread(sql.sql_response, reply) if reply.is_large else sql.sql_response(reply)

    async def Consume(self, request: pb.SqlServiceConsumeRequest, context: Context) -> pb.SqlServiceConsumeResponse:
        reply = await self._api.consumers.consume(sql.consume_request(request), principal=caller())
        return sql.consume_response(reply)

    async def Ack(self, request: pb.SqlServiceAckRequest, context: Context) -> pb.SqlServiceAckResponse:
        acknowledged = await self._api.consumers.ack(sql.ack_request(request), principal=caller())
        return sql.ack_response(acknowledged)

    async def Subscribe(self, request: pb.SubscribeRequest, context: Context) -> AsyncIterator[pb.SubscribeResponse]:
        made = sql.LiveFrames()
        async with aclosing(self._api.live.follow(sql.live_request(request), principal=caller())) as frames:
            async for frame in frames:
                yield made.message(frame)
