"""HTTP requests as spans, by OpenTelemetry's conventions for HTTP servers."""

import asyncio
from typing import Any, Final

from starlette.types import ASGIApp

from topics_gateway.request import ON_ROUTED, PassedOnError, Request
from topics_gateway.routes import annotated_routes
from topics_gateway.websocket import PATH, PATHS
from topics_server.tracing.spans import CallSpan, Spans, named, now
from topics_service.api.access.authorizer import rule_of

PACKAGE: Final = "topics.v1."
UNTRACED: Final = frozenset({"AdminService.GetHealth", "AdminService.GetReady", "AdminService.GetMetrics"})
"""Probes and scrapes, which are frequent and uninteresting."""
STREAMS: Final = frozenset({"WatchService.OpenWatch", "QueueService.Work", "SqlService.Subscribe"})
NAMES: Final = {
    "topic": "messaging.destination.name",
    "router": "topics.router",
    "group": "messaging.consumer.group.name",
}
"""The attributes that names of a request become, by the field that holds them."""

_ROUTES: Final = {(rpc.removeprefix(PACKAGE), method): path for rpc, method, path in annotated_routes()}


def traced_app(app: ASGIApp, spans: Spans) -> ASGIApp:
    """The HTTP application, each call of which is a span: a stream as a whole, with the number of its events."""

    async def call(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await _Request(spans, scope, send).serve(app, receive)
        elif scope["type"] == "websocket":
            await _Socket(spans, scope, receive, send).serve(app)
        else:
            await app(scope, receive, send)

    return call


class _Request:
    """One request. Its span begins, as of its arrival, when its route is known."""

    def __init__(self, spans: Spans, scope: Any, send: Any) -> None:
        self._spans = spans
        self._scope = scope
        self._send = send
        self._arrived = now()
        self._request: Request | None = None
        self._span: CallSpan | None = None
        self._status = 0
        self._parts = 0
        self._is_passed_on = False

    async def serve(self, app: ASGIApp, receive: Any) -> None:
        self._scope[ON_ROUTED] = self._routed
        try:
            await app(self._scope, receive, self._sent)
        except PassedOnError:
            self._is_passed_on = True
            raise
        except asyncio.CancelledError:
            raise
        except Exception:
            self._status = self._status or 500
            raise
        finally:
            del self._scope[ON_ROUTED]  # it made a cycle
            self._end()

    def _routed(self, request: Request) -> None:
        if request.rpc in UNTRACED:
            return
        self._request = request
        scope, rpc = self._scope, request.rpc
        method = scope["method"]
        attributes: dict[str, str | int | bool] = {
            "http.request.method": named(method),
            "url.scheme": scope["scheme"],
            "network.protocol.version": scope["http_version"],
        }
        name = method if method.isalpha() and len(method) <= 16 else "HTTP"
        if rpc:
            route = _ROUTES.get((rpc, "GET" if method == "HEAD" else method), "")
            attributes |= {"http.route": route, "topics.rpc": rpc}
            name = f"{method} {route}"
            if request.name and (attribute := NAMES.get(rule_of(PACKAGE + rpc).field)):
                attributes[attribute] = named(request.name)
        headers = request.headers
        self._span = self._spans.begin(
            name,
            attributes,
            headers=trace_headers(headers) if b"traceparent" in headers else {},
            started=self._arrived,
            children=rpc not in STREAMS,
        )

    async def _sent(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
        elif message.get("body"):
            self._parts += 1
        await self._send(message)

    def _end(self) -> None:
        span, request = self._span, self._request
        if span is None or request is None:
            return
        if self._status:
            span.span.set_attribute("http.response.status_code", self._status)
        if request.rpc in STREAMS and self._status == 200:
            span.span.set_attribute("topics.stream.sent", self._parts)
        if self._is_passed_on:
            span.span.set_attribute("topics.passed_on", True)
        elif request.error:
            span.fail(request.error, ours=self._status >= 500)
        elif self._status >= 500:
            span.fail("internal", ours=True)
        elif not self._status or request.gone:
            span.span.set_attribute("topics.gone", True)
        span.end()


class _Socket:
    """One WebSocket: a span from the upgrade to the end, with the number of messages each way."""

    def __init__(self, spans: Spans, scope: Any, receive: Any, send: Any) -> None:
        self._spans = spans
        self._scope = scope
        self._receive = receive
        self._send = send
        self._taken = self._given = 0
        self._status = 101

    async def serve(self, app: ASGIApp) -> None:
        headers = dict(self._scope["headers"])
        asked = self._scope["raw_path"]
        route = (asked if asked in PATHS else PATH).decode()
        span = self._spans.begin(
            f"GET {route}",
            {"http.request.method": "GET", "http.route": route, "url.scheme": self._scope["scheme"]},
            headers=trace_headers(headers) if b"traceparent" in headers else {},
            children=False,
        )
        try:
            await app(self._scope, self._taking, self._giving)
        finally:
            if span is not None:
                span.span.set_attributes(
                    {
                        "http.response.status_code": self._status,
                        "topics.stream.received": self._taken,
                        "topics.stream.sent": self._given,
                    }
                )
                span.end()

    async def _taking(self) -> Any:
        message = await self._receive()
        self._taken += message["type"] == "websocket.receive"
        return message

    async def _giving(self, message: Any) -> None:
        self._given += message["type"] == "websocket.send"
        if message["type"] == "websocket.http.response.start":
            self._status = message["status"]
        await self._send(message)


def trace_headers(headers: dict[bytes, bytes]) -> dict[str, str]:
    """Those of W3C's trace context."""
    found = {"traceparent": headers[b"traceparent"].decode("latin-1")}
    if (state := headers.get(b"tracestate")) is not None:
        found["tracestate"] = state.decode("latin-1")
    return found
