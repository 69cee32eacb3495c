"""RouterService over gRPC."""
# ruff: noqa: N802  # methods carry the names of the proto

import time
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from grpc.aio import ServicerContext

from topics_proto.v1 import record_pb2, router_pb2, router_service_pb2_grpc
from topics_proto.v1 import router_service_pb2 as pb
from topics_service.api.cursor import read_cursor, write_cursor
from topics_service.api.grpc.convert import tag_match
from topics_service.api.grpc.enums import names, numbers
from topics_service.api.grpc.guard import caller
from topics_service.api.interfaces import Topics
from topics_service.engine.errors import invalid
from topics_service.engine.model import TagMatch
from topics_service.engine.router.router import Guarantee, ListRoutersRequest, PutRouterRequest, RouterConfig

Context = ServicerContext[Any, Any]
Timed = TypeVar("Timed", pb.PutRouterResponse, pb.GetRouterResponse, pb.ListRoutersResponse, pb.DeleteRouterResponse)

_GUARANTEES: Final = numbers(router_pb2.RouterGuarantee.DESCRIPTOR)
_GUARANTEE_NAMES: Final[Mapping[int, Guarantee]] = names(router_pb2.RouterGuarantee.DESCRIPTOR, "at_least_once")


class RouterServicer(router_service_pb2_grpc.RouterServiceServicer):
    """Converts, calls the api, converts back and says how long all of it took. See TopicsServicer."""

    def __init__(self, api: Topics) -> None:
        self._api = api

    async def PutRouter(self, request: pb.PutRouterRequest, context: Context) -> pb.PutRouterResponse:
        """See proto/topics/v1/router_service.proto, as for every method here."""
        started = time.perf_counter()
        reply = await self._api.routers.put(put_request(request), principal=caller())
        response = pb.PutRouterResponse(router=reply.router, created=reply.created, config=config_message(reply.config))
        return _timed(response, started)

    async def GetRouter(self, request: pb.GetRouterRequest, context: Context) -> pb.GetRouterResponse:
        started = time.perf_counter()
        state = await self._api.routers.get(request.router, principal=caller())
        message = router_pb2.RouterState(
            router=state.router,
            config=config_message(state.config),
            forwarded_total=state.forwarded_total,
            lag_records=state.lag_records,
            last_error=state.last_error,
        )
        return _timed(pb.GetRouterResponse(state=message), started)

    async def ListRouters(self, request: pb.ListRoutersRequest, context: Context) -> pb.ListRoutersResponse:
        started = time.perf_counter()
        page_size = request.page_size if request.HasField("page_size") else 100
        wanted = ListRoutersRequest(
            prefix=request.prefix,
            source=request.source,
            dest=request.dest,
            after=read_cursor(request.cursor),
            page_size=min(max(page_size, 1), 1000),
        )
        page = await self._api.routers.page(wanted, principal=caller())
        routers = [
            router_pb2.RouterSummary(
                router=state.router,
                source=state.config.source,
                dest=state.config.dest,
                guarantee=_GUARANTEES[state.config.guarantee],
                forwarded_total=state.forwarded_total,
                lag_records=state.lag_records,
            )
            for state in page.routers
        ]
        return _timed(pb.ListRoutersResponse(routers=routers, next_cursor=write_cursor(page.next_after)), started)

    async def DeleteRouter(self, request: pb.DeleteRouterRequest, context: Context) -> pb.DeleteRouterResponse:
        started = time.perf_counter()
        reply = await self._api.routers.delete(request.router, principal=caller())
        return _timed(pb.DeleteRouterResponse(router=reply.router, deleted=reply.deleted), started)


def put_request(request: pb.PutRouterRequest) -> PutRouterRequest:
    """A PutRouter; an enum set to its unspecified value counts as left out.

    Raises `invalid_request` without a source or destination, for a filter without a rule, and for a guarantee that
    this version does not know.
    """
    given = request.config
    if not given.source or not given.dest:
        raise invalid("config.source and config.dest are required")
    if given.guarantee not in _GUARANTEE_NAMES:
        raise invalid(f"config.guarantee: unknown value {given.guarantee}")
    return PutRouterRequest(
        router=request.router,
        config=RouterConfig(
            source=given.source,
            dest=given.dest,
            preserve_node=given.preserve_node if given.HasField("preserve_node") else True,
            preserve_tag=given.preserve_tag if given.HasField("preserve_tag") else True,
            filter=tag_match(given.filter, "config.filter") if given.HasField("filter") else None,
            allow_cycle=given.allow_cycle,
            guarantee=_GUARANTEE_NAMES[given.guarantee],
        ),
        create_dest=given.create_dest if given.HasField("create_dest") else True,
        backfill=given.backfill,
    )


def config_message(config: RouterConfig) -> router_pb2.RouterConfig:
    """A config in force, with every field set but those that act on a call only."""
    return router_pb2.RouterConfig(
        source=config.source,
        dest=config.dest,
        preserve_node=config.preserve_node,
        preserve_tag=config.preserve_tag,
        filter=None if config.filter is None else _match_message(config.filter),
        allow_cycle=config.allow_cycle,
        guarantee=_GUARANTEES[config.guarantee],
    )


def _match_message(match: TagMatch) -> record_pb2.TagMatch:
    text = match.value.decode()
    return record_pb2.TagMatch(eq=text) if match.op == "Eq" else record_pb2.TagMatch(prefix=text)


def _timed(response: Timed, started: float) -> Timed:
    response.performance.server_total_ms = (time.perf_counter() - started) * 1e3
    return response
