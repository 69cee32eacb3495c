"""The ASGI application: one route object in a Starlette app, inside a guard that turns bugs into 500s."""

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Final

from starlette.applications import Starlette
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from topics_gateway.body import drain
from topics_gateway.body_timeout import BodyTimeouts
from topics_gateway.connection_quota import hold_connection
from topics_gateway.cross_origin import CrossOrigin
from topics_gateway.errors import error_response, internal
from topics_gateway.group_endpoints import GroupEndpoints
from topics_gateway.grpc_web import GrpcWeb
from topics_gateway.live_events import ChangeCache, LiveEndpoint
from topics_gateway.origins import OriginPolicy
from topics_gateway.probe_endpoints import ProbeEndpoints
from topics_gateway.queue_endpoints import QueueEndpoints
from topics_gateway.record_endpoints import RecordEndpoints
from topics_gateway.render import RenderCache
from topics_gateway.request import ON_ROUTED, ClientDisconnectedError, Handler, PassedOnError, Request, ms_since
from topics_gateway.response import EventStream, Response, send_response
from topics_gateway.router_endpoints import RouterEndpoints
from topics_gateway.routes import UNROUTED, Route, RouteTable
from topics_gateway.settings import GatewaySettings
from topics_gateway.sql_endpoints import SqlEndpoints
from topics_gateway.sse import query_token, serve
from topics_gateway.topic_endpoints import TopicEndpoints
from topics_gateway.transport import BrokenOffError
from topics_gateway.watch_endpoints import WatchEndpoints
from topics_gateway.websocket import PATHS, WebSocketEndpoint, plain_request
from topics_gateway.work_endpoints import WorkEndpoint
from topics_service.api.access.auth import ANONYMOUS, Principal
from topics_service.api.access.authorizer import NO_ROUTE, PROBES, Authorizer, authorize
from topics_service.api.access.passwords import UnverifiedPasswordError
from topics_service.api.access.quota import CONNECTIONS, Held, count_refusal
from topics_service.api.grpc.admin_servicer import Probed
from topics_service.api.grpc.calls import Calls
from topics_service.api.interfaces import Topics
from topics_service.api.request_context import HEADER_BYTES, begin, current_request
from topics_service.api.running import LostCallError
from topics_service.engine.errors import Reason, TopicsError

log: Final = logging.getLogger("topics.http")

_OUTCOMES: Final = ("", "1xx", "2xx", "3xx", "4xx", "5xx")
_GONE: Final = "gone"  # the client left, or a stop cut the request off
_OPEN_WATCH: Final = "topics.v1.WatchService.OpenWatch"
_PLAIN: Final = Route(NO_ROUTE, plain_request)
# A browser's EventSource can't send headers.
_TAKES_TOKEN: Final = frozenset({_OPEN_WATCH, "topics.v1.QueueService.Work"})


def create_app(
    api: Topics, settings: GatewaySettings, authorizer: Authorizer | None = None, calls: Calls | None = None
) -> Starlette:
    """The HTTP gateway to `api`, without authentication if there is no `authorizer`. `calls` are served as gRPC-Web.

    It has no lifespan: the caller starts and stops the parts behind `api`.
    """
    authorizer = authorizer or Authorizer()
    rendered = RenderCache(settings.render_cache_bytes)
    api.metrics.caches["renderings"] = rendered
    changes = ChangeCache()
    table = RouteTable(_handlers(api, settings, rendered, changes))
    origins = OriginPolicy(settings.hosts, settings.origins)
    sockets = WebSocketEndpoint(api, settings, authorizer, rendered, origins, changes)
    http: ASGIApp = _Routes(table, settings, authorizer, api, origins).handle
    if calls is not None:
        http = GrpcWeb(http, calls, settings, authorizer, api.metrics, origins)
    return _Gateway(_guarded(http, settings, api), sockets)


def create_probes(api: Probed, settings: GatewaySettings, authorizer: Authorizer) -> ASGIApp:
    """The probes and metrics alone, for a node of a cluster that passes all other requests on."""
    table = RouteTable(_probes(api, settings))
    return _Guard(_Routes(table, settings, authorizer, api, OriginPolicy(settings.hosts, settings.origins)).handle)


def create_reads(api: Topics, node: Probed, settings: GatewaySettings, authorizer: Authorizer) -> ASGIApp:
    """Reads of topics alone, which count as those of `node`. Raises PassedOnError where `api` does."""
    rendered = RenderCache(settings.render_cache_bytes)
    handlers: Mapping[str, Handler] = {
        "topics.v1.TopicsService.GetTopic": TopicEndpoints(api, settings).get,
        "topics.v1.TopicsService.Diff": RecordEndpoints(api, settings, rendered).diff,
    }
    origins = OriginPolicy(settings.hosts, settings.origins)
    return _guarded(_Routes(RouteTable(handlers), settings, authorizer, node, origins).handle, settings, node)


def _guarded(http: ASGIApp, settings: GatewaySettings, api: Probed) -> ASGIApp:
    guarded = _Guard(http)
    return CrossOrigin(guarded, settings.origins, api.metrics.http) if settings.origins else guarded


def _probes(api: Probed, settings: GatewaySettings) -> Mapping[str, Handler]:
    probes = ProbeEndpoints(api, settings)
    return {
        "topics.v1.AdminService.GetHealth": probes.health,
        "topics.v1.AdminService.GetReady": probes.ready,
        "topics.v1.AdminService.GetMetrics": probes.metrics,
    }


def _handlers(
    api: Topics, settings: GatewaySettings, rendered: RenderCache, changes: ChangeCache
) -> Mapping[str, Handler]:
    """The handler of every RPC that is built, by full name. Their methods and paths are in the proto files."""
    topics = TopicEndpoints(api, settings)
    records = RecordEndpoints(api, settings, rendered)
    watches = WatchEndpoints(api, settings, rendered)
    queues = QueueEndpoints(api, settings)
    routers = RouterEndpoints(api, settings)
    groups = GroupEndpoints(api, settings, rendered)
    sql: dict[str, Handler] = {}
    if api.sql is not None:
        calls = SqlEndpoints(api.sql, settings)
        sql = {
            "topics.v1.SqlService.Execute": calls.execute,
            "topics.v1.SqlService.Subscribe": LiveEndpoint(api.sql.live, settings, changes).subscribe,
            "topics.v1.SqlService.Consume": calls.consume,
            "topics.v1.SqlService.Ack": calls.ack,
        }
    return {
        **sql,
        "topics.v1.TopicsService.PutTopic": topics.put,
        "topics.v1.TopicsService.GetTopic": topics.get,
        "topics.v1.TopicsService.ListTopics": topics.list,
        "topics.v1.TopicsService.DeleteTopic": topics.delete,
        "topics.v1.TopicsService.Append": records.append,
        "topics.v1.TopicsService.Diff": records.diff,
        "topics.v1.TopicsService.DeleteRecords": records.delete,
        "topics.v1.QueueService.Claim": queues.claim,
        "topics.v1.QueueService.Ack": queues.ack,
        "topics.v1.QueueService.Nack": queues.nack,
        "topics.v1.QueueService.Extend": queues.extend,
        "topics.v1.QueueService.Work": WorkEndpoint(api).work,
        "topics.v1.QueueService.Redrive": queues.redrive,
        "topics.v1.QueueService.ListJobs": queues.jobs,
        "topics.v1.RouterService.PutRouter": routers.put,
        "topics.v1.RouterService.GetRouter": routers.get,
        "topics.v1.RouterService.ListRouters": routers.list,
        "topics.v1.RouterService.DeleteRouter": routers.delete,
        "topics.v1.GroupService.ListGroups": groups.list,
        "topics.v1.GroupService.GetGroup": groups.get,
        "topics.v1.GroupService.DeleteGroup": groups.delete,
        "topics.v1.GroupService.Consume": groups.consume,
        "topics.v1.GroupService.CommitPositions": groups.commit,
        "topics.v1.GroupService.FetchPositions": groups.positions,
        "topics.v1.GroupService.ResetPositions": groups.reset,
        "topics.v1.GroupService.DeletePositions": groups.delete_positions,
        "topics.v1.WatchService.CreateWatch": watches.create,
        _OPEN_WATCH: watches.open,
        **_probes(api, settings),
    }


class _Gateway(Starlette):
    """Starlette with our guard in place of its own two, which answer in plain text and cost a Request per call.

    Its router gets what is not a plain request; those have routes of their own.
    """

    def __init__(self, http: ASGIApp, sockets: BaseRoute) -> None:
        super().__init__(routes=[sockets])
        self._http = http

    def build_middleware_stack(self) -> ASGIApp:
        async def call(scope: Scope, receive: Receive, send: Send) -> None:
            await (self._http if scope["type"] == "http" else self.router)(scope, receive, send)

        return call


class _Guard:
    """Answers `internal` for any exception that nothing inside has turned into a reply, but for a call whose outcome is
    unknown: that has no answer."""

    def __init__(self, http: ASGIApp) -> None:
        self._http = http

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrived = time.perf_counter()
        started = False

        async def noting_send(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._http(scope, receive, noting_send)
        except PassedOnError:
            raise
        except LostCallError:
            raise BrokenOffError from None
        except Exception:
            if started:  # too late for a reply: the server logs it and breaks the response off
                raise
            log.exception("%s %r failed", scope["method"], scope["path"])
            response = error_response(internal(), ms_since(arrived))
            request_id = current_request.get()
            if request_id is not None and request_id.given is not None:
                send = _echoing(send, request_id.given)
            await send_response(response, scope, send, accept_encoding=b"", gzip_min_bytes=len(response.body) + 1)


class _Routes:
    """All routes of the gateway, dispatched on the undecoded path without regular expressions; counts the requests."""

    def __init__(
        self,
        table: RouteTable,
        settings: GatewaySettings,
        authorizer: Authorizer,
        api: Probed,
        origins: OriginPolicy,
    ) -> None:
        self._table = table
        self._settings = settings
        self._body_timeouts = BodyTimeouts(settings.body_timeout_seconds)
        self._authorizer = authorizer
        self._origins = origins
        self._observers = api.observers
        self._statistics = api.metrics.http
        self._refusals = api.metrics.refusals
        self._errors = api.metrics.errors

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, self._body_timeouts)
        request.memory = self._authorizer.quotas.memory
        request_id = begin(request.headers.get(HEADER_BYTES), scope.get("client"))
        if request_id.given is not None:
            send = _echoing(send, request_id.given)
        statistics, outcome = self._statistics, _OUTCOMES[5]
        statistics.in_flight += 1
        try:
            status = await self._serve(request, send)
            outcome = _OUTCOMES[status // 100]
        except ClientDisconnectedError:
            outcome = _GONE
        except PassedOnError:
            outcome = ""
            raise
        except asyncio.CancelledError:
            outcome = _GONE
            raise
        finally:
            if request.held is not None:
                request.held.release()
            statistics.in_flight -= 1
            if outcome:
                statistics.observe(request.rpc or UNROUTED, outcome, time.perf_counter() - request.started)

    async def _serve(self, request: Request, send: Send) -> int:
        """Authorize the call and answer it; returns the status of the answer."""
        route = _PLAIN if request.scope["raw_path"] in PATHS else self._table.find(request)
        if ON_ROUTED in request.scope:
            request.scope[ON_ROUTED](request)
        try:
            try:  # most callers are known at once
                request.principal = self._identify(request, route.rpc)
            except UnverifiedPasswordError as unverified:
                request.principal = await self._verify(unverified, route.rpc)
            if request.principal.key_id:
                self._count(request)
            elif self._authorizer.open:
                self._origins.check(request.headers, request.scope["http_version"], any_host=route.rpc in PROBES)
            with self._authorizer.slot(route.rpc, request.principal):
                return await self._send(request, await self._answer(request, route), send)
        except TopicsError as error:
            return await self._send(request, await self._refuse(request, error), send)

    def _identify(self, request: Request, rpc: str) -> Principal:
        authorization = request.headers.get(b"authorization")
        if authorization is None and rpc in _TAKES_TOKEN:
            token = query_token(request.scope["query_string"])
            authorization = None if token is None else b"Bearer " + token
        try:
            return self._authorizer.identify(rpc, authorization)
        except TopicsError:
            if rpc != _OPEN_WATCH:
                raise
            return ANONYMOUS  # a missing session (404) takes precedence over a bad key (401): docs/contract.md, 8

    async def _verify(self, unverified: UnverifiedPasswordError, rpc: str) -> Principal:
        try:
            return await self._authorizer.verify(unverified)
        except TopicsError:
            if rpc != _OPEN_WATCH:
                raise
            return ANONYMOUS

    def _count(self, request: Request) -> None:
        """Count the connection, and the memory of the body, against the key. Raises `throttled`."""
        usage = self._authorizer.quotas.for_key(request.principal.key_id)
        hold_connection(request.scope, request.principal, usage)
        request.held = Held(usage, request.memory)

    async def _answer(self, request: Request, route: Route) -> Response | EventStream:
        try:
            if route.rpc != _OPEN_WATCH:  # the session knows the one key that may open it
                authorize(request.principal, route.rpc, request.name, self._observers)
            return await route.handler(request)
        except TopicsError as error:
            return await self._refuse(request, error)

    async def _send(self, request: Request, response: Response | EventStream, send: Send) -> int:
        if isinstance(response, EventStream):
            return await serve(response, request, send)
        accepted = request.headers.get(b"accept-encoding", b"")
        await send_response(
            response, request.scope, send, accept_encoding=accepted, gzip_min_bytes=self._settings.gzip_min_bytes
        )
        return response.status

    async def _refuse(self, request: Request, error: TopicsError) -> Response:
        request.error = error.reason.code
        self._errors[request.error] += 1
        response = error_response(error, request.elapsed_ms)
        if error.reason is Reason.THROTTLED:
            count_refusal(self._refusals, "http", error)
            if (error.detail or {}).get("limit") == CONNECTIONS:
                return response._replace(headers=(*response.headers, (b"connection", b"close")))
        # The rest of the body is in the way of the next request on this connection.
        if not await drain(request, self._settings.max_body_bytes) and request.scope["http_version"].startswith("1"):
            return response._replace(headers=(*response.headers, (b"connection", b"close")))
        return response


def _echoing(send: Send, request_id: str) -> Send:
    """Give the request's id back to the client that chose it."""

    async def echo(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], (HEADER_BYTES, request_id.encode())]
        await send(message)

    return echo
