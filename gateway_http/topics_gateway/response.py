"""Responses: JSON bytes with the headers that every answer carries, and streams of events."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple

import msgspec
from starlette.types import Scope, Send

_INLINE_GZIP_BYTES = 64 << 10  # about a millisecond; more is compressed on a thread

encode = msgspec.json.encode
"""Compact JSON of dicts and structs, members in their order."""


class Response(NamedTuple):
    """A complete answer. `headers` come on top of content-type, content-length and the encoding."""

    status: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()
    content_type: bytes = b"application/json"


class EventStream(NamedTuple):
    """A streaming answer: server-sent events from an open source (`sse.serve`).

    Entering `source` opens it: that raises TopicsError, or gives an asynchronous iterator of frames. `encoder` makes
    of that iterator the function that turns each of its frames into the bytes of whole events, empty for nothing.
    `opening` are events that go out at once, behind `retry:`.
    """

    source: AbstractAsyncContextManager[AsyncIterator[Any]]
    encoder: Callable[[Any], Callable[[Any], bytes]]
    opening: bytes = b""


def json_response(status: int, members: dict[str, Any]) -> Response:
    """`members` as the JSON object of a response."""
    return Response(status, encode(members))


async def send_response(
    response: Response, scope: Scope, send: Send, *, accept_encoding: bytes, gzip_min_bytes: int
) -> None:
    """Send `response`, compressed if the client accepts gzip and it is large enough; HEAD gets the headers only."""
    body = response.body
    headers = [(b"content-type", response.content_type), *response.headers]
    if len(body) >= gzip_min_bytes:
        headers.append((b"vary", b"accept-encoding"))
        if accept_encoding and names_gzip(accept_encoding):
            headers.append((b"content-encoding", b"gzip"))
            if len(body) <= _INLINE_GZIP_BYTES:
                body = _compress(body)
            else:
                body = await asyncio.to_thread(_compress, body)
    headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


def names_gzip(accept_encoding: bytes) -> bool:
    """Return whether an Accept-Encoding value names gzip, or x-gzip, with a weight above zero."""
    for part in accept_encoding.lower().split(b","):
        coding, _, weight = part.replace(b" ", b"").partition(b";")
        if coding in (b"gzip", b"x-gzip") and not (weight.startswith(b"q=0") and not weight[3:].strip(b".0")):
            return True
    return False


def _compress(body: bytes) -> bytes:
    return gzip.compress(body, compresslevel=1, mtime=0)
