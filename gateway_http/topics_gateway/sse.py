"""Server-sent events: answers that stream until one side ends them (docs/contract.md, 8.3 to 8.6)."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final, Generic, Self, TypeVar
from urllib.parse import unquote_to_bytes

from starlette.types import Send

from topics_gateway.request import Request
from topics_gateway.response import EventStream, encode
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.watch.frames import ErrorFrame, HeartbeatFrame

T = TypeVar("T")
_HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
    (b"connection", b"keep-alive"),  # the transport leaves it out where it has no meaning or is not true
)
_RETRY: Final = b"retry: 2000\n\n"
_ONE_LINE: Final = bytes.maketrans(b"\r\n", b"  ")
TOO_SLOW: Final = (
    b'event: error\ndata: {"code":408,"error":"the client took not one byte for too long; reconnect to go on"}\n\n'
)


def require_event_stream(request: Request) -> None:
    """Raise `not_acceptable` unless the Accept header is absent, empty, or names text/event-stream or */*."""
    accept = request.headers.get(b"accept", b"").strip().lower()
    if accept and b"text/event-stream" not in accept and b"*/*" not in accept:
        raise TopicsError(Reason.NOT_ACCEPTABLE, "this is a stream of text/event-stream, which the client won't accept")


def query_token(query: bytes) -> bytes | None:
    """The first `token` of a query string, decoded as x-www-form-urlencoded; None without one."""
    for pair in query.split(b"&"):
        name, _, value = pair.partition(b"=")
        if unquote_to_bytes(name.replace(b"+", b" ")) == b"token":
            return unquote_to_bytes(value.replace(b"+", b" "))
    return None


def event(name: bytes, data: bytes, event_id: bytes = b"") -> bytes:
    """One block: `id:` (unless empty), `event:` and `data:`, which is JSON. A raw line break in it becomes a space."""
    if b"\n" in data or b"\r" in data:
        data = data.translate(_ONE_LINE)
    if event_id:
        return b"id: %b\nevent: %b\ndata: %b\n\n" % (event_id, name, data)
    return b"event: %b\ndata: %b\n\n" % (name, data)


def heartbeat(frame: HeartbeatFrame) -> bytes:
    """A comment, which clients do not see as an event and which leaves their Last-Event-ID alone."""
    return b": hb %d\n\n" % frame.ts


def error(frame: ErrorFrame, **more: Any) -> bytes:
    """An `error` event without an id. `more` are members that this stream adds."""
    members: dict[str, Any] = {"code": frame.code, "error": frame.message}
    if frame.retry_after_ms is not None:
        members["retry_after_ms"] = frame.retry_after_ms
    if frame.topics:
        members["topics"] = frame.topics
    return event(b"error", encode(members | more))


class _Opened(Generic[T]):
    """A generator with its first item."""

    def __init__(self, first: T, frames: AsyncGenerator[T, None]) -> None:
        self._first: T | None = first
        self._frames = frames

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        first, self._first = self._first, None
        return await anext(self._frames) if first is None else first


@asynccontextmanager
async def opened(frames: AsyncGenerator[T, None]) -> AsyncIterator[AsyncIterator[T]]:
    """The source of an EventStream whose first frame says that it is open, and that raises its refusal in its place."""
    async with aclosing(frames):
        yield _Opened(await anext(frames), frames)


async def serve(stream: EventStream, request: Request, send: Send) -> int:
    """Open the stream's source and send its events until it ends; the status of the answer.

    Raises TopicsError if the source does not open, before anything is sent, and ClientDisconnectedError once the client
    disconnects. In both cases, and when the call is cancelled, the source is closed before this returns. The next frame
    is asked for once the transport has room again. A source that fails later ends the stream with an `error` event.
    """
    # For the transport, should the client stop reading altogether.
    state = request.scope.setdefault("state", {})
    state["timeout_event"] = TOO_SLOW
    async with stream.source as frames:
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        if request.scope["method"] == "HEAD":
            await send({"type": "http.response.body", "body": b""})
        else:
            await request.unless_gone(_pump(stream, frames, send, state))
    return 200


async def _pump(stream: EventStream, frames: Any, send: Send, state: Mapping[str, Any]) -> None:
    rendered = stream.encoder(frames)
    await send({"type": "http.response.body", "body": _RETRY + stream.opening, "more_body": True})
    try:
        async for frame in frames:
            body = rendered(frame)
            await send({"type": "http.response.body", "body": body, "more_body": True})
            if "gone" in state:  # it was dropped, so nothing may be asked for that says it was handed over
                await asyncio.get_running_loop().create_future()  # `unless_gone` is about to end this
    except TopicsError as failed:
        last = error(ErrorFrame(reason=failed.reason, code=failed.reason.value.http_status, message=failed.message))
        await send({"type": "http.response.body", "body": last, "more_body": True})
    await send({"type": "http.response.body", "body": b""})
