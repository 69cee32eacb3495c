"""The WebSocket endpoints: GET /v0/ws (docs/contract.md, 9), and GET /api/sql/ws of live queries."""

import time
from contextlib import ExitStack, closing
from typing import Final, NoReturn

from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from topics_gateway.connection_quota import MessageBytes, hold_connection
from topics_gateway.errors import error_response, method_not_allowed, not_found
from topics_gateway.live_events import ChangeCache
from topics_gateway.live_socket import LiveSocket
from topics_gateway.origins import OriginPolicy
from topics_gateway.render import RenderCache
from topics_gateway.request import Request, ms_since
from topics_gateway.response import Response
from topics_gateway.settings import GatewaySettings
from topics_gateway.socket_frames import SocketFrames
from topics_gateway.socket_session import SocketSession
from topics_service.api.access.auth import Principal
from topics_service.api.access.authorizer import NO_ROUTE, Authorizer
from topics_service.api.access.quota import count_refusal
from topics_service.api.interfaces import Topics
from topics_service.api.request_context import HEADER_BYTES, begin
from topics_service.engine.errors import Reason, TopicsError, invalid

PATH: Final = b"/v0/ws"
LIVE_PATHS: Final = (b"/api/sql/ws", b"/v1/api/sql/ws")
PATHS: Final = frozenset((PATH, *LIVE_PATHS))

_NAME: Final = "WebSocket"  # among the RPCs, in metrics
_PROTOCOL: Final = "websocket"


async def plain_request(request: Request) -> NoReturn:
    """Any request to the path of the sockets that is no upgrade."""
    if request.scope["method"] not in ("GET", "HEAD"):
        raise method_not_allowed(request.scope["method"])
    raise invalid("this is a WebSocket: ask for an upgrade to it, over HTTP/1.1")


class WebSocketEndpoint(BaseRoute):
    """Opens and serves sockets of authorized callers. Refusals are HTTP, with the usual error body."""

    def __init__(
        self,
        api: Topics,
        settings: GatewaySettings,
        authorizer: Authorizer,
        rendered: RenderCache,
        origins: OriginPolicy,
        live: ChangeCache,
    ) -> None:
        """`live` has the texts of changes that streams of live queries share."""
        self._api = api
        self._live = live
        self._settings = settings
        self._authorizer = authorizer
        self._origins = origins
        self._frames = SocketFrames(rendered)
        api.metrics.caches["socket_frames"] = self._frames.cache

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Every upgrade, whatever its path."""
        return (Match.FULL if scope["type"] == "websocket" else Match.NONE), {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one socket until one side ends it."""
        started = time.perf_counter()
        begin(dict(scope["headers"]).get(HEADER_BYTES), scope.get("client"), "websocket")
        statistics = self._api.metrics.http
        with ExitStack() as held:
            try:
                principal = await self._admit(scope)
                usage = self._authorizer.quotas.for_key(principal.key_id) if principal.key_id else None
                if usage is not None:
                    hold_connection(scope, principal, usage)
                held.enter_context(self._api.watches.connection(principal))
            except TopicsError as error:
                count_refusal(self._api.metrics.refusals, _PROTOCOL, error)
                statistics.observe(_NAME, f"{error.reason.value.http_status // 100}xx", time.perf_counter() - started)
                await _refuse(error_response(error, ms_since(started)), send)
                return
            statistics.observe(_NAME, "1xx", time.perf_counter() - started)
            await receive()  # websocket.connect
            message = held.enter_context(closing(MessageBytes(usage, self._authorizer.quotas.memory, self._refused)))
            await send({"type": "websocket.accept", "utf8": True, "holds": message.grow})
            utf8 = "websocket.utf8" in scope.get("extensions", {})
            if self._api.sql is not None and scope["raw_path"] in LIVE_PATHS:
                queries = self._api.sql.live
                await LiveSocket(self._api, queries, principal, self._live, receive, send, utf8=utf8).run()
                return
            session = SocketSession(
                self._api, self._settings.limits, principal, self._frames, receive, send, utf8=utf8, usage=usage
            )
            await session.run()

    def _refused(self, error: TopicsError) -> None:
        count_refusal(self._api.metrics.refusals, _PROTOCOL, error)

    async def _admit(self, scope: Scope) -> Principal:
        """Return the caller if it may open a socket. Raises TopicsError."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        principal = await self._authorizer.authenticate(NO_ROUTE, headers.get(b"authorization"))
        if self._authorizer.open:
            self._origins.check(headers, scope["http_version"])
        if scope["raw_path"] != PATH and (self._api.sql is None or scope["raw_path"] not in LIVE_PATHS):
            raise not_found()
        ready = self._api.ready()
        if ready.reason == "shutting_down":
            raise TopicsError(Reason.SHUTTING_DOWN, "the server is shutting down")
        if ready.reason == "not_ready":
            progress = {"replay_progress": ready.replay_progress}
            raise TopicsError(Reason.NOT_READY, "the server is starting", progress)
        return principal


async def _refuse(response: Response, send: Send) -> None:
    headers = ((b"content-type", response.content_type), *response.headers)
    await send({"type": "websocket.http.response.start", "status": response.status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": response.body})
