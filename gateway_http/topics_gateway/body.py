"""Request bodies: the size limit, the content type and gzip, in the order 413, 415, 400."""

import asyncio
import zlib
from typing import Final

from topics_gateway.call import Call
from topics_gateway.errors import payload_too_large, unsupported_media_type
from topics_service.engine.errors import TopicsError, invalid

_GZIP: Final = 31  # zlib's window bits for one gzip member
# A member of nothing is 20 bytes: a body of them would be minutes of work.
_MAX_MEMBERS: Final = 1 << 16
# What of a body is shown to zlib at a time, of each member first and at most: it copies what is left of it.
_FIRST_BYTES: Final = 512
_MOST_BYTES: Final = 1 << 20


async def read_json(call: Call, limit: int, *, optional: bool = False) -> bytes:
    """The request's JSON text, inflated, not yet parsed. With `optional` an empty body is `{}`, of any type.

    Raises `payload_too_large`, `throttled` (the bodies of one key hold as much as they may), `unsupported_media_type`,
    `invalid_request` (bad gzip), and ClientGoneError when the client leaves while it sends.
    """
    _check_declared(call, limit)
    if awaits_100(call):
        _check_type(call)  # before it is told to send
    body = await _read(call, limit)
    if optional and not body:
        return b"{}"
    if not _check_type(call):
        return body
    content = await asyncio.to_thread(inflate, body, limit)  # a few bytes may inflate to the whole limit
    if call.held is not None:
        call.held.grow(len(body) + len(content))
    return content


async def drain(call: Call, budget: int) -> bool:
    """Read and drop what is left of the body, at most about `budget` bytes; whether the end was reached.

    A client that waits to be told to send its body is not told.
    """
    if awaits_100(call):
        return False
    while not call.body_ended:
        if budget < 0 or call.stalled:
            return False
        try:
            budget -= len(await call.chunk())
        except TopicsError:  # it stopped sending
            return False
    return True


def inflate(body: bytes, limit: int) -> bytes:
    """The content of `body`, one gzip member or several (RFC 1952, 2.2), joined.

    Raises `payload_too_large` above `limit` bytes in all, without inflating further, and `invalid_request` for no
    member, a corrupt or truncated one, and for anything else behind one.
    """
    view = memoryview(body)
    parts: list[bytes] = []
    at = size = members = 0
    while at < len(body) or not members:
        members += 1
        if members > _MAX_MEMBERS:
            raise invalid(f"the body has more than {_MAX_MEMBERS} gzip members")
        stream, shown = zlib.decompressobj(wbits=_GZIP), _FIRST_BYTES
        while not stream.eof:
            if at == len(body):
                raise invalid("the body is not complete gzip")
            piece = view[at : at + shown]
            shown = min(2 * shown, _MOST_BYTES)
            try:
                part = stream.decompress(piece, limit + 1 - size)
            except zlib.error as error:
                raise invalid(f"the body is not valid gzip: {error}") from None
            at += len(piece) - len(stream.unused_data) - len(stream.unconsumed_tail)
            size += len(part)
            if size > limit:
                raise payload_too_large(limit)
            parts.append(part)
    return b"".join(parts)


def awaits_100(call: Call) -> bool:
    """Whether the client waits for `100 Continue`, and has sent nothing of its body yet."""
    awaits = call.scope.get("state", {}).get("awaits_100")
    return awaits is not None and bool(awaits())


def _check_type(call: Call) -> bool:
    """Raise `unsupported_media_type` unless the body is JSON; whether it is in gzip."""
    given = call.headers.get(b"content-encoding", b"").lower().split(b",")
    codings = [coding for part in given if (coding := part.strip()) not in (b"", b"identity")]
    if len(codings) > 1 or any(coding not in (b"gzip", b"x-gzip") for coding in codings):
        raise unsupported_media_type("the Content-Encoding must be gzip or identity")
    if not call.headers.get(b"content-type", b"").lstrip().startswith(b"application/json"):
        raise unsupported_media_type("the Content-Type must be application/json")
    return bool(codings)


def _check_declared(call: Call, limit: int) -> None:
    declared = call.headers.get(b"content-length", b"")
    if declared.isdigit() and (len(declared) > 19 or int(declared) > limit):
        raise payload_too_large(limit)


async def _read(call: Call, limit: int) -> bytes:
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
