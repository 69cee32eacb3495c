"""Decoding and encoding of frames, for every served API and version.

A message is a dict with kio's field names: times are int ms, error codes ints, arrays lists, uuids `uuid.UUID` or None
for the all-zero one. A frame does not include the 4 bytes of length in front of it. Codecs are compiled at first use.
"""

import struct
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from topics_kafka.protocol.decoding import Decoder, Message, decoder, skip_tags
from topics_kafka.protocol.encoding import Buffer, Encoder, encoder, gathered
from topics_kafka.protocol.errors import MalformedError
from topics_kafka.protocol.schema import SCHEMA

SMALL_FRAME: Final = 2048
"""Frames up to this size are copied: `bytes` are read faster than other buffers."""

_peek: Final = struct.Struct(">hhi").unpack_from
_head: Final = struct.Struct(">hhih")
_correlation: Final = struct.Struct(">i")
_correlation_and_tags: Final = struct.Struct(">ix")


class _Request(NamedTuple):
    """The codec of requests in one version."""

    flexible: bool
    decode: Decoder
    encode: Encoder


class _Response(NamedTuple):
    """The codec of responses in one version."""

    header: struct.Struct
    flexible_header: bool
    decode: Decoder
    encode: Encoder


_requests: dict[tuple[int, int], _Request] = {}
_responses: dict[tuple[int, int], _Response] = {}


def _request(key: int, version: int) -> _Request:
    codec = _requests.get((key, version))
    if codec is None:
        api = SCHEMA.api(key, version)
        if api is None:
            raise MalformedError(f"version {version} of API {key} is not served")
        flexible = api.flexible(version)
        title, fields = f"{api.name} request v{version}", api.request(version)
        codec = _Request(flexible, decoder(title, fields, flexible), encoder(title, fields, flexible))
        _requests[key, version] = codec
    return codec


def _response(key: int, version: int) -> _Response:
    codec = _responses.get((key, version))
    if codec is None:
        api = SCHEMA.api(key, version)
        if api is None:
            raise MalformedError(f"version {version} of API {key} is not served")
        flexible, flexible_header = api.flexible(version), api.flexible_response_header(version)
        title, fields = f"{api.name} response v{version}", api.response(version)
        header = _correlation_and_tags if flexible_header else _correlation
        codec = _Response(header, flexible_header, decoder(title, fields, flexible), encoder(title, fields, flexible))
        _responses[key, version] = codec
    return codec


def request_header(frame: Buffer) -> tuple[int, int, int]:
    """(API key, version, correlation id) of a request, of any API and version. Raises MalformedError below 8 bytes."""
    try:
        key, version, correlation_id = _peek(frame)
    except struct.error as error:
        raise MalformedError("a frame shorter than a request header") from error
    return key, version, correlation_id


def decode_request(frame: Buffer) -> tuple[Message, Message]:
    """The header (request_api_key, request_api_version, correlation_id, client_id) and the body of a request.

    Bytes after the body and unknown tagged fields are ignored. Values of `bytes` and `records` are views of the frame.
    Raises MalformedError, and nothing else, for anything that can't be decoded, including unsupported versions.
    """
    try:
        buffer = frame if len(frame) > SMALL_FRAME or isinstance(frame, bytes) else bytes(frame)
        if isinstance(buffer, bytearray):
            buffer = memoryview(buffer)
        end = len(buffer)
        key, version, correlation_id, length = _head.unpack_from(buffer)
        request = _requests.get((key, version)) or _request(key, version)
        position = 10
        client_id = None
        if length >= 0:
            position += length
            if position > end:
                raise MalformedError("the length of client_id")
            client_id = str(buffer[10:position], "utf-8")
        if request.flexible:
            tags = buffer[position]
            position += 1
            if tags:
                position = skip_tags(buffer, position, end, tags)
        header = {
            "request_api_key": key,
            "request_api_version": version,
            "correlation_id": correlation_id,
            "client_id": client_id,
        }
        return header, request.decode(buffer, position, end)
    except MalformedError:
        raise
    except Exception as error:
        raise MalformedError(f"a request that can't be decoded: {error}") from error


def encode_response(
    api_key: int, version: int, correlation_id: int, body: Mapping[str, Any]
) -> list[bytes | memoryview]:
    """A response in pieces, without the 4 bytes of length.

    A `records` value is one buffer or a sequence of buffers; large ones are pieces of the result, uncopied.
    """
    response = _responses.get((api_key, version)) or _response(api_key, version)
    pieces: list[Buffer] = [response.header.pack(correlation_id)]
    cuts: list[int] = []
    response.encode(body, pieces, cuts)
    return gathered(pieces, cuts)


def encode_request(
    api_key: int, version: int, correlation_id: int, client_id: str | None, body: Mapping[str, Any]
) -> list[bytes | memoryview]:
    """A request in pieces, without the 4 bytes of length. For tools and tests."""
    request = _request(api_key, version)
    name = b"" if client_id is None else client_id.encode()
    pieces: list[Buffer] = [_head.pack(api_key, version, correlation_id, -1 if client_id is None else len(name)), name]
    if request.flexible:
        pieces.append(b"\0")
    cuts: list[int] = []
    request.encode(body, pieces, cuts)
    return gathered(pieces, cuts)


def decode_response(api_key: int, version: int, frame: Buffer) -> tuple[int, Message]:
    """The (correlation id, body) of a response. For tools and tests; raises MalformedError like `decode_request`."""
    response = _response(api_key, version)
    try:
        buffer = memoryview(frame) if isinstance(frame, bytearray) else frame
        end = len(buffer)
        (correlation_id,) = _correlation.unpack_from(buffer)
        position = 4
        if response.flexible_header:
            position = skip_tags(buffer, 5, end, buffer[4])
        return correlation_id, response.decode(buffer, position, end)
    except MalformedError:
        raise
    except Exception as error:
        raise MalformedError(f"a response that can't be decoded: {error}") from error
