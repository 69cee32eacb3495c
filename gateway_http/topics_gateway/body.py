"""Request bodies: the size limit, the content type and gzip, in the order 413, 415, 400."""

import asyncio
import time
import zlib
from collections.abc import Iterator
from io import BytesIO
from typing import Final

from topics_gateway.call import Call
from topics_gateway.errors import payload_too_large, unsupported_media_type
from topics_gateway.jsonbody import MOST_PARTS, JsonObject, parse_object
from topics_service.api.quota import MEMORY, SMALL_BYTES, exceeded
from topics_service.engine.errors import TopicsError, invalid

_GZIP: Final = 31  # zlib's window bits for one gzip member
_STEP_BYTES: Final = 1 << 20
_SLOW_SECONDS: Final = 10.0
_SLOW_RATE: Final = 16384  # bytes/s


OBJECT_BYTES: Final = 2 << 20
"""The most that a request other than a write may have: what is larger has more than any may ask for."""


async def read_object(
    call: Call, limit: int, *, optional: bool = False, most: int = MOST_PARTS, most_bytes: int = OBJECT_BYTES
) -> JsonObject:
    """The object that the request's JSON is; see `read_json` and `parse_object`. Of a larger one nothing is kept."""
    return parse_object(await read_json(call, limit, optional=optional, most_bytes=most_bytes), most=most)


async def read_json(call: Call, limit: int, *, optional: bool = False, most_bytes: int | None = None) -> bytes:
    """The request's JSON text, inflated, not yet parsed. With `optional` an empty body is `{}`, of any type.

    A text of more than `most_bytes` is `invalid_request`.

    Raises `payload_too_large`, `throttled` (the bodies of one key hold as much as they may), `unsupported_media_type`,
    `invalid_request` (bad gzip), and ClientGoneError when the client leaves while it sends.
    """
    kept = limit if most_bytes is None else min(limit, most_bytes)
    body = await _read(call, limit, kept)
    if optional and body == b"":
        return b"{}"
    encoding = call.headers.get(b"content-encoding", b"").strip().lower()
    if encoding not in (b"", b"identity", b"gzip"):
        raise unsupported_media_type("the Content-Encoding must be gzip or identity")
    if not call.headers.get(b"content-type", b"").lstrip().startswith(b"application/json"):
        raise unsupported_media_type("the Content-Type must be application/json")
    if body is not None and encoding == b"gzip":
        body = await _inflated(call, body, limit, kept)
    if body is None:
        raise invalid(f"the body has more than {kept} bytes, which only a write may")
    return body


async def drain(call: Call, budget: int) -> bool:
    """Read and drop what is left of the body, at most about `budget` bytes; whether the end was reached."""
    while not call.body_ended:
        if budget < 0 or call.stalled:
            return False
        try:
            budget -= len(await call.chunk())
        except TopicsError:  # it stopped sending
            return False
    return True


def inflate(body: bytes, limit: int) -> bytes:
    """The content of `body`, which must be exactly one gzip member.

    Raises `payload_too_large` above `limit` bytes, without inflating further, and `invalid_request` for a corrupt,
    truncated or overlong member.
    """
    return b"".join(_inflate(body, limit))


def _inflate(body: bytes, limit: int) -> Iterator[bytes]:
    """See `inflate`: the content in pieces, none of them empty."""
    stream = zlib.decompressobj(wbits=_GZIP)
    size = at = 0
    given = b""
    while not stream.eof:
        if not given:
            given, at = body[at : at + _STEP_BYTES], at + _STEP_BYTES
        is_last = not given
        try:
            piece = stream.decompress(given, _STEP_BYTES)
        except zlib.error as error:
            raise invalid(f"the body is not valid gzip: {error}") from None
        given = stream.unconsumed_tail
        size += len(piece)
        if size > limit:
            raise payload_too_large(limit)
        if piece:
            yield piece
        elif is_last:
            break
    if not stream.eof or stream.unused_data or at < len(body):
        raise invalid("the body is not exactly one complete gzip member")


async def _inflated(call: Call, body: bytes, limit: int, kept: int) -> bytes | None:
    """The content of `body`, for which memory is held before more of it is inflated; None if it is above `kept`."""
    pieces = _inflate(body, limit)
    content = BytesIO()
    piece = await asyncio.to_thread(next, pieces, b"")  # a few bytes may inflate to the whole limit
    size = 0
    while piece:
        size += len(piece)
        if size <= kept:
            content.write(piece)
            await call.hold(len(body) + size)
        is_over = len(piece) < _STEP_BYTES and len(body) <= _STEP_BYTES
        piece = next(pieces, b"") if is_over else await asyncio.to_thread(next, pieces, b"")
    return content.getvalue() if size <= kept else None


async def _read(call: Call, limit: int, kept: int) -> bytes | None:
    """The body as it came; None if it is above `kept`, when it is read and dropped.

    Memory is held as its bytes arrive, so that a client who sends none holds none. While others wait for memory, who
    sends slowly is refused: it would hold what it has for ever.
    """
    declared = call.headers.get(b"content-length", b"")
    if declared.isdigit() and len(declared) < 20 and int(declared) > limit:
        raise payload_too_large(limit)
    first = b"" if call.body_ended else await call.chunk()
    if call.body_ended and len(first) <= min(kept, SMALL_BYTES):
        return first
    body = BytesIO()  # whose value is not copied
    size, waited, now = len(first), 0.0, time.monotonic
    body.write(first)
    while size <= limit:
        if size > kept:
            body = BytesIO()
        elif size > SMALL_BYTES:
            await call.hold(size)
        if call.body_ended:
            return body.getvalue() if size <= kept else None
        began = now()
        chunk = await call.chunk()
        waited += now() - began
        size += len(chunk)
        body.write(chunk)
        if waited > _SLOW_SECONDS and size < waited * _SLOW_RATE and call.held is not None and call.held.is_short:
            raise exceeded("the body comes too slowly while others wait for memory", MEMORY, call.held.most)
    raise payload_too_large(limit)
