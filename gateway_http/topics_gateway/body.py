"""Request bodies: the size limit, the content type and gzip, in the order 413, 415, 400."""

import asyncio
import zlib

from topics_gateway.call import Call
from topics_gateway.errors import payload_too_large, unsupported_media_type
from topics_service.engine.errors import TopicsError, invalid

_GZIP = 31  # zlib's window bits for one gzip member


async def read_json(call: Call, limit: int, *, optional: bool = False) -> bytes:
    """The request's JSON text, inflated, not yet parsed. With `optional` an empty body is `{}`, of any type.

    Raises `payload_too_large`, `throttled` (the bodies of one key hold as much as they may), `unsupported_media_type`,
    `invalid_request` (bad gzip), and ClientGoneError when the client leaves while it sends.
    """
    body = await _read(call, limit)
    if optional and not body:
        return b"{}"
    encoding = call.headers.get(b"content-encoding", b"").strip().lower()
    if encoding not in (b"", b"identity", b"gzip"):
        raise unsupported_media_type("the Content-Encoding must be gzip or identity")
    if not call.headers.get(b"content-type", b"").lstrip().startswith(b"application/json"):
        raise unsupported_media_type("the Content-Type must be application/json")
    if encoding != b"gzip":
        return body
    content = await asyncio.to_thread(inflate, body, limit)  # a few bytes may inflate to the whole limit
    if call.held is not None:
        call.held.grow(len(body) + len(content))
    return content


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
    stream = zlib.decompressobj(wbits=_GZIP)
    try:
        content = stream.decompress(body, limit + 1)
    except zlib.error as error:
        raise invalid(f"the body is not valid gzip: {error}") from None
    if len(content) > limit:
        raise payload_too_large(limit)
    if not stream.eof or stream.unused_data:
        raise invalid("the body is not exactly one complete gzip member")
    return content


async def _read(call: Call, limit: int) -> bytes:
    declared = call.headers.get(b"content-length", b"")
    if declared.isdigit() and len(declared) < 20 and int(declared) > limit:
        raise payload_too_large(limit)
    chunks = []
    size, held = 0, call.held
    while not call.body_ended:
        chunk = await call.chunk()
        size += len(chunk)
        if size > limit:
            raise payload_too_large(limit)
        if held is not None:
            held.grow(size)
        chunks.append(chunk)
    return b"".join(chunks)
