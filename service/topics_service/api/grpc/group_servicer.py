"""GroupService over gRPC."""
# ruff: noqa: N802  # methods carry the names of the proto

import time
from typing import Any, TypeVar

from grpc.aio import ServicerContext

from topics_proto.v1 import group_service_pb2 as pb
from topics_proto.v1 import group_service_pb2_grpc
from topics_service.api.grpc import groups
from topics_service.api.grpc.convert import diff_response
from topics_service.api.grpc.guard import caller
from topics_service.api.interfaces import Topics

Context = ServicerContext[Any, Any]
Timed = TypeVar(
    "Timed",
    pb.ListGroupsResponse,
    pb.GetGroupResponse,
    pb.DeleteGroupResponse,
    pb.ConsumeResponse,
    pb.CommitPositionsResponse,
    pb.FetchPositionsResponse,
    pb.ResetPositionsResponse,
    pb.DeletePositionsResponse,
)


class GroupServicer(group_service_pb2_grpc.GroupServiceServicer):
    """Converts, calls the api, converts back and says how long all of it took. See TopicsServicer."""

    def __init__(self, api: Topics) -> None:
        self._api = api

    async def ListGroups(self, request: pb.ListGroupsRequest, context: Context) -> pb.ListGroupsResponse:
        """See proto/topics/v1/group_service.proto, as for every method here."""
        started = time.perf_counter()
        reply = await self._api.groups.page(groups.list_request(request), principal=caller())
        return _timed(groups.list_response(reply), started)

    async def GetGroup(self, request: pb.GetGroupRequest, context: Context) -> pb.GetGroupResponse:
        started = time.perf_counter()
        state = await self._api.groups.get(request.group, principal=caller())
        return _timed(pb.GetGroupResponse(state=groups.state_message(state)), started)

    async def DeleteGroup(self, request: pb.DeleteGroupRequest, context: Context) -> pb.DeleteGroupResponse:
        started = time.perf_counter()
        reply = await self._api.groups.delete(request.group, principal=caller())
        return _timed(pb.DeleteGroupResponse(group=reply.group, deleted=reply.deleted), started)

    async def Consume(self, request: pb.ConsumeRequest, context: Context) -> pb.ConsumeResponse:
        started = time.perf_counter()
        include_meta = request.include_meta if request.HasField("include_meta") else True
        reply = await self._api.groups.consume(groups.consume_request(request), principal=caller())
        page = diff_response(reply.page, include_tags=request.include_tags, include_meta=include_meta)
        response = pb.ConsumeResponse(
            group=request.group, partition=request.partition, committed_from_seq=reply.committed, page=page
        )
        response.performance.records_scanned = reply.page.records_scanned
        response.page.ClearField("performance")
        return _timed(response, started)

    async def CommitPositions(self, request: pb.CommitPositionsRequest, context: Context) -> pb.CommitPositionsResponse:
        started = time.perf_counter()
        reply = await self._api.groups.commit(request.group, groups.commit_items(request), principal=caller())
        positions = map(groups.position_message, reply.positions)
        response = pb.CommitPositionsResponse(group=reply.group, created=reply.created, positions=positions)
        return _timed(response, started)

    async def FetchPositions(self, request: pb.FetchPositionsRequest, context: Context) -> pb.FetchPositionsResponse:
        started = time.perf_counter()
        found = await self._api.groups.positions(request.group, request.topic or None, principal=caller())
        positions = map(groups.position_message, found)
        return _timed(pb.FetchPositionsResponse(group=request.group, positions=positions), started)

    async def ResetPositions(self, request: pb.ResetPositionsRequest, context: Context) -> pb.ResetPositionsResponse:
        started = time.perf_counter()
        moved = await self._api.groups.reset(groups.reset_request(request), principal=caller())
        positions = map(groups.position_message, moved)
        return _timed(pb.ResetPositionsResponse(group=request.group, positions=positions), started)

    async def DeletePositions(self, request: pb.DeletePositionsRequest, context: Context) -> pb.DeletePositionsResponse:
        started = time.perf_counter()
        targets = groups.targets(request.topics)
        deleted = await self._api.groups.delete_positions(request.group, targets, principal=caller())
        return _timed(pb.DeletePositionsResponse(group=request.group, deleted=deleted), started)


def _timed(response: Timed, started: float) -> Timed:
    response.performance.server_total_ms = (time.perf_counter() - started) * 1e3
    return response
