"""The ASGI application: one route object in a Starlette app, inside a guard that turns bugs into 500s."""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from starlette.applications import Starlette
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from topics_gateway.body import drain
from topics_gateway.call import Call, ClientGoneError, Handler, ms_since
from topics_gateway.errors import error_reply, internal
from topics_gateway.probe_endpoints import ProbeEndpoints
from topics_gateway.record_endpoints import RecordEndpoints
from topics_gateway.reply import Reply, send_reply
from topics_gateway.routes import RouteTable
from topics_gateway.settings import GatewaySettings
from topics_gateway.topic_endpoints import TopicEndpoints
from topics_service.api.topics import TopicsApi
from topics_service.engine.errors import TopicsError

log: Final = logging.getLogger("topics.http")

Authorize = Callable[[Scope], Awaitable[None]]
"""Raises TopicsError to refuse a request; called before anything else is decided about it."""


async def allow_all(scope: Scope) -> None:
    """Let every request in."""


def create_app(api: TopicsApi, settings: GatewaySettings, authorize: Authorize = allow_all) -> Starlette:
    """The HTTP door to `api`. It has no lifespan of its own: the caller starts and stops what is behind `api`."""
    return _Gateway(routes=[_Routes(RouteTable(_handlers(api, settings)), settings, authorize)])


def _handlers(api: TopicsApi, settings: GatewaySettings) -> Mapping[str, Handler]:
    """The handler of every RPC that is built, by full name. Their methods and paths are in the proto files."""
    topics = TopicEndpoints(api, settings)
    records = RecordEndpoints(api, settings)
    probes = ProbeEndpoints(api, settings)
    return {
        "topics.v1.TopicsService.PutTopic": topics.put,
        "topics.v1.TopicsService.GetTopic": topics.get,
        "topics.v1.TopicsService.ListTopics": topics.list,
        "topics.v1.TopicsService.DeleteTopic": topics.delete,
        "topics.v1.TopicsService.Append": records.append,
        "topics.v1.TopicsService.Diff": records.diff,
        "topics.v1.TopicsService.DeleteRecords": records.delete,
        "topics.v1.AdminService.GetHealth": probes.health,
        "topics.v1.AdminService.GetReady": probes.ready,
    }


class _Gateway(Starlette):
    """Starlette with our guard in place of its own two, which answer in plain text and cost a Request per call."""

    def build_middleware_stack(self) -> ASGIApp:
        return _Guard(self.router)


class _Guard:
    """Answers `internal` for any exception that nothing inside has turned into a reply."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        arrived = time.perf_counter()
        started = False

        async def noting_send(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, noting_send)
        except Exception:
            if started:  # too late for a reply: the server logs it and breaks the response off
                raise
            log.exception("%s %s failed", scope["method"], scope["path"])
            reply = error_reply(internal(), ms_since(arrived))
            await send_reply(reply, scope, send, accept_encoding=b"", gzip_min_bytes=len(reply.body) + 1)


class _Routes(BaseRoute):
    """Every route of the door, dispatched on the undecoded path without regular expressions."""

    def __init__(self, table: RouteTable, settings: GatewaySettings, authorize: Authorize) -> None:
        self._table = table
        self._settings = settings
        self._authorize = authorize

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return (Match.FULL if scope["type"] == "http" else Match.NONE), {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = Call(scope, receive, self._settings.body_timeout_seconds)
        try:
            reply = await self._answer(call)
        except ClientGoneError:
            return
        await send_reply(
            reply,
            scope,
            send,
            accept_encoding=call.headers.get(b"accept-encoding", b""),
            gzip_min_bytes=self._settings.gzip_min_bytes,
        )

    async def _answer(self, call: Call) -> Reply:
        try:
            await self._authorize(call.scope)
            return await self._table.find(call)(call)
        except TopicsError as error:
            reply = error_reply(error, call.elapsed_ms)
        # The rest of the body is in the way of the next request on this connection.
        if not await drain(call, self._settings.max_body_bytes) and call.scope["http_version"].startswith("1"):
            return reply._replace(headers=(*reply.headers, (b"connection", b"close")))
        return reply
