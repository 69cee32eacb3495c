"""Cross-origin resource sharing: pages of listed origins may read the responses (the Fetch standard, 3.3)."""

import time
from collections.abc import Mapping
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from topics_gateway.routes import annotated_routes
from topics_service.api.request_context import HEADER, POSITION
from topics_service.statistics import RequestStatistics

_RPC: Final = "Preflight"  # among the RPCs, in metrics
_MAX_AGE_SECONDS: Final = 3600
_METHODS: Final = ", ".join(sorted({"HEAD", *(method for _, method, _ in annotated_routes())}))
_REQUEST_HEADERS: Final = ", ".join(
    (
        "Authorization", "Content-Type", "Content-Encoding", "Idempotency-Key", "Last-Event-ID", HEADER, POSITION,
        "traceparent", "tracestate", "grpc-timeout", "x-grpc-web", "x-user-agent",
    )
)  # fmt: skip
_VARY: Final = (b"vary", b"origin")
_ANSWER: Final = ((b"access-control-expose-headers", f"Retry-After, {HEADER}, {POSITION}".encode()), _VARY)
_PREFLIGHT: Final = (
    (b"access-control-allow-methods", _METHODS.encode()),
    (b"access-control-allow-headers", _REQUEST_HEADERS.encode()),
    (b"access-control-max-age", b"%d" % _MAX_AGE_SECONDS),
    _VARY,
)


class CrossOrigin:
    """Answers preflight requests of `pages`, and marks every other answer to them as theirs to read.

    A preflight has no key, so none is asked for; it learns no more than that its origin is listed. Credentials of the
    browser (cookies, client certificates) are not allowed: keys are in a header that the page sets itself.
    """

    def __init__(self, app: ASGIApp, pages: frozenset[bytes], statistics: RequestStatistics) -> None:
        """`pages` are origins as browsers write them."""
        self._app = app
        self._pages = pages
        self._statistics = statistics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        origin = headers.get(b"origin")
        if origin not in self._pages:
            await self._app(scope, receive, _adding(send, (_VARY,)))
            return
        allowed = (b"access-control-allow-origin", origin)
        if scope["method"] == "OPTIONS" and _is_preflight(headers):
            started = time.perf_counter()
            await send({"type": "http.response.start", "status": 204, "headers": (allowed, *_PREFLIGHT)})
            await send({"type": "http.response.body", "body": b""})
            self._statistics.observe(_RPC, "2xx", time.perf_counter() - started)
            return
        await self._app(scope, receive, _adding(send, (allowed, *_ANSWER)))


def _is_preflight(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether an OPTIONS asks for another request. One with a body is none: it would stay unread."""
    if headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers:
        return False
    return b"access-control-request-method" in headers


def _adding(send: Send, headers: tuple[tuple[bytes, bytes], ...]) -> Send:
    async def adding(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *headers]
        await send(message)

    return adding
