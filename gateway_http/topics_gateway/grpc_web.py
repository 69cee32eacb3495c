"""gRPC-Web, in binary form: the gRPC services for browsers and other clients without HTTP/2 trailers.

A request is one message in a frame; a response is messages in frames, and the status in a last one. Methods that take a
stream are not served.
"""

import asyncio
import base64
import re
import struct
import time
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import aclosing
from typing import Final
from urllib.parse import quote

import grpc
from starlette.types import ASGIApp, Receive, Scope, Send

from topics_gateway.body import drain, read_bytes
from topics_gateway.body_timeout import BodyTimeouts
from topics_gateway.connection_quota import hold_connection
from topics_gateway.origins import OriginPolicy
from topics_gateway.request import ClientDisconnectedError, Request
from topics_gateway.settings import GatewaySettings
from topics_service.api.access.authorizer import Authorizer
from topics_service.api.access.quota import Held, count_refusal
from topics_service.api.grpc.calls import CallContext, Calls, Metadata
from topics_service.api.grpc.handlers import OUR_METHODS
from topics_service.api.grpc.status import failure
from topics_service.api.metrics.collector import Counters
from topics_service.api.request_context import HEADER_BYTES, begin
from topics_service.engine.errors import TopicsError, invalid

_PATHS: Final = OUR_METHODS.encode()
_TYPES: Final = frozenset({b"application/grpc-web", b"application/grpc-web+proto"})
_TYPE: Final = b"application/grpc-web+proto"
_HEAD: Final = struct.Struct(">BI")  # flags and length of a frame
_COMPRESSED: Final = 1
_TRAILERS: Final = 0x80
_PASSED_ON: Final = (b"authorization", HEADER_BYTES, b"traceparent", b"tracestate")
_TIMEOUT: Final = re.compile(rb"([0-9]{1,8})([HMSmun])")
_SECONDS: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
Headers = list[tuple[bytes, bytes]]

_PRINTABLE: Final = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")


class GrpcWeb:
    """Answers gRPC-Web requests to methods of topics.v1; every other request is `app`'s."""

    def __init__(
        self,
        app: ASGIApp,
        calls: Calls,
        settings: GatewaySettings,
        authorizer: Authorizer,
        metrics: Counters,
        origins: OriginPolicy,
    ) -> None:
        self._app = app
        self._calls = calls
        self._authorizer = authorizer
        self._metrics = metrics
        self._origins = origins
        self._max_bytes = settings.max_body_bytes + _HEAD.size
        self._body_timeouts = BodyTimeouts(settings.body_timeout_seconds)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not scope["raw_path"].startswith(_PATHS) or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive, self._body_timeouts)
        if request.headers.get(b"content-type", b"").partition(b";")[0].strip().lower() not in _TYPES:
            await self._app(scope, receive, send)
            return
        request.memory = self._authorizer.quotas.memory
        try:
            await self._serve(request, send)
        except ClientDisconnectedError:
            pass
        finally:
            if request.held is not None:
                request.held.release()

    async def _serve(self, request: Request, send: Send) -> None:
        method = request.scope["raw_path"].decode("latin-1")
        context = CallContext(_metadata(request.headers), _peer(request.scope))
        headers = [(b"content-type", _TYPE)]
        request_id = begin(request.headers.get(HEADER_BYTES), request.scope.get("client"))
        if request_id.given is not None:
            headers.append((HEADER_BYTES, request_id.given.encode()))
        streams = self._calls.streams(method)
        try:
            await self._admit(request, method)
            if streams is None:
                context.end(grpc.StatusCode.UNIMPLEMENTED, "gRPC-Web has no such method here")
                await self._send_early(request, context, headers, send)
                return
            seconds = _timeout(request.headers)
            opened = await self._calls.open(method, context)
            message = _unframed(await read_bytes(request, self._max_bytes))
        except TopicsError as error:
            context.end(*failure(error))
            count_refusal(self._metrics.refusals, "grpc", error)
            if streams is not None:
                rpc = method.removeprefix(OUR_METHODS).replace("/", ".")
                self._metrics.grpc.observe(rpc, context.code().name, time.perf_counter() - request.started)
            await self._send_early(request, context, headers, send)
            return
        if request.held is not None:
            request.held.release()  # the guard holds the message from here on
        answers = opened.answers(message)
        if streams:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await request.unless_gone(_within(seconds, _pump(answers, request, send), context))
            await send({"type": "http.response.body", "body": _trailers(context)})
        else:
            frames: list[bytes] = []
            await request.unless_gone(_within(seconds, _gather(answers, frames), context))
            await _send_whole(headers, b"".join((*frames, _trailers(context))), send)

    async def _admit(self, request: Request, method: str) -> None:
        """Check the caller, before anything is read. Raises TopicsError."""
        if self._authorizer.open:
            self._origins.check(request.headers, request.scope["http_version"])
            return
        rpc = method[1:].replace("/", ".")
        principal = await self._authorizer.authenticate(rpc, request.headers.get(b"authorization"))
        if principal.key_id:
            usage = self._authorizer.quotas.for_key(principal.key_id)
            hold_connection(request.scope, principal, usage)
            request.held = Held(usage, request.memory)

    async def _send_early(self, request: Request, context: CallContext, headers: Headers, send: Send) -> None:
        """Send the status of a call whose request may not have been read."""
        # The rest of the body is in the way of the next request on this connection.
        if not await drain(request, self._max_bytes) and request.scope["http_version"].startswith("1"):
            headers.append((b"connection", b"close"))
        await _send_whole(headers, _trailers(context), send)


async def _pump(answers: AsyncGenerator[bytes, None], request: Request, send: Send) -> None:
    state = request.scope.setdefault("state", {})
    async with aclosing(answers) as messages:
        async for message in messages:
            await send({"type": "http.response.body", "body": _frame(message), "more_body": True})
            if "gone" in state:  # it was dropped, so nothing may be asked for that says it was handed over
                raise ClientDisconnectedError


async def _gather(answers: AsyncGenerator[bytes, None], frames: list[bytes]) -> None:
    async with aclosing(answers) as messages:
        frames += [_frame(message) async for message in messages]


async def _within(seconds: float | None, work: Awaitable[None], context: CallContext) -> None:
    """Do `work`; an expired deadline cancels it and becomes the status."""
    try:
        async with asyncio.timeout(seconds):
            await work
    except TimeoutError:
        context.end(grpc.StatusCode.DEADLINE_EXCEEDED, "the deadline has passed")


async def _send_whole(headers: Headers, body: bytes, send: Send) -> None:
    headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _frame(data: bytes, flags: int = 0) -> bytes:
    return _HEAD.pack(flags, len(data)) + data


def _trailers(context: CallContext) -> bytes:
    """The last frame: the status, as lines of headers."""
    lines = [f"grpc-status: {context.code().value[0]}", f"grpc-message: {quote(context.details, safe=_PRINTABLE)}"]
    for name, value in context.trailing_metadata():
        lines.append(f"{name}: {value if isinstance(value, str) else base64.b64encode(value).decode()}")
    return _frame("".join(f"{line}\r\n" for line in lines).encode(), _TRAILERS)


def _unframed(body: bytes) -> bytes:
    """The one message of a request. Raises `invalid_request`."""
    if len(body) < _HEAD.size:
        raise invalid("the body must be one frame of gRPC-Web")
    flags, size = _HEAD.unpack_from(body)
    if flags & _COMPRESSED:
        raise invalid("messages of gRPC-Web are not compressed here")
    if flags or size != len(body) - _HEAD.size:
        raise invalid("the body must be one frame of gRPC-Web")
    return body[_HEAD.size :]


def _timeout(headers: Mapping[bytes, bytes]) -> float | None:
    """The seconds that the client gives the call. Raises `invalid_request`."""
    given = headers.get(b"grpc-timeout")
    if given is None:
        return None
    match = _TIMEOUT.fullmatch(given)
    if match is None:
        raise invalid("grpc-timeout must be up to eight digits and a unit: H, M, S, m, u or n")
    return int(match[1]) * _SECONDS[match[2]]


def _metadata(headers: Mapping[bytes, bytes]) -> Metadata:
    return tuple((name.decode(), headers[name].decode("latin-1")) for name in _PASSED_ON if name in headers)


def _peer(scope: Scope) -> str:
    host, port = scope.get("client") or ("", 0)
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"
