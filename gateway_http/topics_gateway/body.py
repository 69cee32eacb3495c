"""Request bodies: the size limit, the content type and gzip, in the order 413, 415, 400."""

import asyncio
import time
import zlib
from collections.abc import Iterator
from io import BytesIO
from typing import Final

from topics_gateway.errors import payload_too_large, unsupported_media_type
from topics_gateway.json_fields import MAX_PARTS, JsonObject, parse_object
from topics_gateway.request import Request
from topics_service.api.access.quota import MEMORY, SMALL_BYTES, exceeded
from topics_service.engine.errors import TopicsError, invalid

_GZIP: Final = 31  # zlib's window bits for one gzip member
# A member of nothing is 20 bytes: a body of them would be minutes of work.
_MAX_MEMBERS: Final = 1 << 16
# What of a body is shown to zlib at a time, of each member first and at most: it copies what is left of it.
_FIRST_BYTES: Final = 512
_STEP_BYTES: Final = 1 << 20
_SLOW_SECONDS: Final = 10.0
_SLOW_RATE: Final = 16384  # bytes/s

OBJECT_BYTES: Final = 2 << 20
"""Maximum body size of requests other than writes: no valid one is larger."""


async def read_object(
    request: Request, limit: int, *, optional: bool = False, max_parts: int = MAX_PARTS, max_bytes: int = OBJECT_BYTES
) -> JsonObject:
    """Read the request's JSON object; see `read_json` and `parse_object`. An oversized body is not kept."""
    return parse_object(await read_json(request, limit, optional=optional, max_bytes=max_bytes), max_parts=max_parts)


async def read_json(request: Request, limit: int, *, optional: bool = False, max_bytes: int | None = None) -> bytes:
    """Read the request's JSON text, inflated but not parsed. If `optional`, an empty body of any type is `{}`.

    A text of more than `max_bytes` is `invalid_request`.

    Raises `payload_too_large`, `throttled` (the bodies of one key hold as much as they may), `unsupported_media_type`,
    `invalid_request` (bad gzip), and ClientDisconnectedError when the client leaves while it sends.
    """
    kept = limit if max_bytes is None else min(limit, max_bytes)
    _check_declared(request, limit)
    if awaits_100(request):
        _check_type(request)  # before `100 Continue` is sent
    body = await _read(request, limit, kept)
    if optional and body == b"":
        return b"{}"
    if _check_type(request) and body is not None:
        body = await _inflated(request, body, limit, kept)
    if body is None:
        raise invalid(f"the body has more than {kept} bytes, which only a write may")
    return body


async def read_bytes(request: Request, limit: int) -> bytes:
    """Read the unchanged body. Raises `payload_too_large`, `throttled` and ClientDisconnectedError."""
    _check_declared(request, limit)
    body = await _read(request, limit, limit)
    assert body is not None, "it is refused above what is kept"
    return body


async def drain(request: Request, budget: int) -> bool:
    """Read and drop the rest of the body, at most about `budget` bytes; return True if its end was reached.

    A client that waits for `100 Continue` does not get it.
    """
    if awaits_100(request):
        return False
    while not request.body_ended:
        if budget < 0 or request.stalled:
            return False
        try:
            budget -= len(await request.chunk())
        except TopicsError:  # it stopped sending
            return False
    return True


def inflate(body: bytes, limit: int) -> bytes:
    """The content of `body`, one gzip member or several (RFC 1952, 2.2), joined.

    Raises `payload_too_large` above `limit` bytes in all, without inflating further, and `invalid_request` for no
    member, a corrupt or truncated one, and for anything else behind one.
    """
    return b"".join(_inflate(body, limit))


def awaits_100(request: Request) -> bool:
    """Return whether the client waits for `100 Continue` and has sent nothing of its body yet."""
    awaits = request.scope.get("state", {}).get("awaits_100")
    return awaits is not None and bool(awaits())


def _check_type(request: Request) -> bool:
    """Raise `unsupported_media_type` unless the body is JSON; whether it is in gzip."""
    given = request.headers.get(b"content-encoding", b"").lower().split(b",")
    codings = [coding for part in given if (coding := part.strip()) not in (b"", b"identity")]
    if len(codings) > 1 or any(coding not in (b"gzip", b"x-gzip") for coding in codings):
        raise unsupported_media_type("the Content-Encoding must be gzip or identity")
    if not request.headers.get(b"content-type", b"").lstrip().startswith(b"application/json"):
        raise unsupported_media_type("the Content-Type must be application/json")
    return bool(codings)


def _check_declared(request: Request, limit: int) -> None:
    declared = request.headers.get(b"content-length", b"")
    if declared.isdigit() and (len(declared) > 19 or int(declared) > limit):
        raise payload_too_large(limit)


def _inflate(body: bytes, limit: int) -> Iterator[bytes]:
    """See `inflate`: the content in pieces, none of them empty."""
    view = memoryview(body)
    at = size = members = 0
    while at < len(body) or not members:
        members += 1
        if members > _MAX_MEMBERS:
            raise invalid(f"the body has more than {_MAX_MEMBERS} gzip members")
        stream, shown = zlib.decompressobj(wbits=_GZIP), _FIRST_BYTES
        while not stream.eof:
            given = view[at : at + shown]
            shown = min(2 * shown, _STEP_BYTES)
            try:
                piece = stream.decompress(given, _STEP_BYTES)
            except zlib.error as error:
                raise invalid(f"the body is not valid gzip: {error}") from None
            at += len(given) - len(stream.unused_data if stream.eof else stream.unconsumed_tail)  # at eof both are it
            size += len(piece)
            if size > limit:
                raise payload_too_large(limit)
            if piece:
                yield piece
            elif not given and not stream.eof:
                raise invalid("the body is not complete gzip")


def _step(pieces: Iterator[bytes]) -> bytes:
    """The next part of the content, of at least a step; a shorter one is the last."""
    parts, size = [], 0
    for piece in pieces:
        parts.append(piece)
        size += len(piece)
        if size >= _STEP_BYTES:
            break
    return b"".join(parts)


async def _inflated(request: Request, body: bytes, limit: int, kept: int) -> bytes | None:
    """The content of `body`, for which memory is held before more of it is inflated; None if it is above `kept`."""
    pieces = _inflate(body, limit)
    content = BytesIO()
    size = 0
    while step := await asyncio.to_thread(_step, pieces):  # a few bytes may inflate to the whole limit
        size += len(step)
        if size <= kept:
            content.write(step)
            await request.hold(len(body) + size)
        if len(step) < _STEP_BYTES:
            break
    return content.getvalue() if size <= kept else None


async def _read(request: Request, limit: int, kept: int) -> bytes | None:
    """The body as received; None if it is above `kept`, when it is read and dropped.

    Memory is held as its bytes arrive, so that a client who sends none holds none. While others wait for memory, slow
    senders are refused: they would hold their part without end.
    """
    first = b"" if request.body_ended else await request.chunk()
    if request.body_ended and len(first) <= min(kept, SMALL_BYTES):
        return first
    body = BytesIO()  # whose value is not copied
    size, waited, now = len(first), 0.0, time.monotonic
    body.write(first)
    while size <= limit:
        if size > kept:
            body = BytesIO()
        elif size > SMALL_BYTES:
            await request.hold(size)
        if request.body_ended:
            return body.getvalue() if size <= kept else None
        began = now()
        chunk = await request.chunk()
        waited += now() - began
        size += len(chunk)
        body.write(chunk)
        if waited > _SLOW_SECONDS and size < waited * _SLOW_RATE and request.held is not None and request.held.is_short:
            raise exceeded("the body comes too slowly while others wait for memory", MEMORY, request.held.max_bytes)
    raise payload_too_large(limit)
