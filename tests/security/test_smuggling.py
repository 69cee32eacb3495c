"""Requests that a proxy in front might read in another way than the server: none is answered twice or taken for two."""

from collections.abc import Iterator

import pytest

from support.http import Wire
from support.server import ServerProcess

HEAD = b"POST /v0/topics/t HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
BODY = b'{"records":[{"data":1}]}'
LENGTH = b"content-length: 24\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n"
CHUNKS = b"18\r\n" + BODY + b"\r\n0\r\n\r\n"
HIDDEN = b"GET /v0/health HTTP/1.1\r\nhost: localhost\r\n\r\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("smuggling")) as server:
        yield server
        assert server.stop() == 0
        assert "Traceback" not in server.log


def statuses(server: ServerProcess, data: bytes) -> list[int]:
    """Of all answers, when nothing more is sent."""
    with Wire(server.http_port) as wire:
        wire.send(data).half_close()
        return [reply.status for reply in wire.replies()]


@pytest.mark.parametrize(
    "request_",
    {
        "length and chunks": HEAD + LENGTH + CHUNKED + b"\r\n" + CHUNKS,
        "chunks and length": HEAD + CHUNKED + LENGTH + b"\r\n" + CHUNKS,
        "two lengths": HEAD + LENGTH + b"content-length: 5\r\n\r\n" + BODY,
        "the same length twice": HEAD + LENGTH + LENGTH + b"\r\n" + BODY,
        "a list of lengths": HEAD + b"content-length: 24, 24\r\n\r\n" + BODY,
        "a signed length": HEAD + b"content-length: +24\r\n\r\n" + BODY,
        "a hexadecimal length": HEAD + b"content-length: 0x18\r\n\r\n" + BODY,
        "a folded line": HEAD + b"x-a: b\r\n c\r\n" + LENGTH + b"\r\n" + BODY,
        "a folded coding": HEAD + b"transfer-encoding:\r\n chunked\r\n\r\n" + CHUNKS,
        "bare line feeds": (HEAD + LENGTH + b"\r\n").replace(b"\r\n", b"\n") + BODY,
        "a bare carriage return": HEAD + b"x: a\rb\r\n" + LENGTH + b"\r\n" + BODY,
        "an unknown coding": HEAD + b"transfer-encoding: xchunked\r\n\r\n" + CHUNKS,
        "chunks that are not last": HEAD + b"transfer-encoding: chunked, identity\r\n\r\n" + CHUNKS,
        "identity and length": HEAD + b"transfer-encoding: identity\r\n" + LENGTH + b"\r\n" + BODY,
        "a blank before the colon": HEAD + b"transfer-encoding : chunked\r\n\r\n" + CHUNKS,
        "a control character": HEAD + b"transfer-encoding: \x0bchunked\r\n\r\n" + CHUNKS,
        "two codings": HEAD + CHUNKED + CHUNKED + b"\r\n" + CHUNKS,
        "a NUL": HEAD + b"x: a\0b\r\n" + LENGTH + b"\r\n" + BODY,
        "a size with a line feed": HEAD + CHUNKED + b"\r\n" + CHUNKS.replace(b"18\r\n", b"18\n"),
        "data with a line feed": HEAD + CHUNKED + b"\r\n" + CHUNKS.replace(BODY + b"\r\n", BODY + b"\n"),
        "a size in 0x": HEAD + CHUNKED + b"\r\n0x" + CHUNKS,
        "a signed size": HEAD + CHUNKED + b"\r\n+" + CHUNKS,
        "an extension with a line feed": HEAD + CHUNKED + b"\r\n" + CHUNKS.replace(b"18\r\n", b"18;a\nb\r\n"),
        "a size beyond 64 bits": HEAD + CHUNKED + b"\r\nfffffffffffffffff\r\n" + CHUNKS,
        "a byte too many": HEAD + CHUNKED + b"\r\n" + CHUNKS.replace(BODY, BODY + b"X"),
    }.items(),
    ids=lambda case: case[0].replace(" ", "-"),
)
def test_what_can_be_read_in_two_ways_is_refused(server: ServerProcess, request_: tuple[str, bytes]) -> None:
    """And the connection ends, so that what stands behind it is nobody's request."""
    assert statuses(server, request_[1] + HIDDEN) == [400]


@pytest.mark.parametrize("request_", [HEAD + LENGTH + b"\r\n" + BODY, HEAD + CHUNKED + b"\r\n" + CHUNKS])
def test_what_is_plain_is_taken(server: ServerProcess, request_: bytes) -> None:
    with Wire(server.http_port) as wire:
        wire.send(request_ + HIDDEN)
        first, second = wire.reply(), wire.reply()
    assert first is not None
    assert second is not None
    assert first.status in (200, 201)
    assert (second.status, b'"status":"ok"' in second.body) == (200, True)


def test_old_clients_end_with_their_answer(server: ServerProcess) -> None:
    """HTTP/1.0 knows no chunks: whoever speaks it may take what follows for the body."""
    request = HEAD.replace(b"HTTP/1.1", b"HTTP/1.0") + CHUNKED + b"\r\n" + CHUNKS
    assert statuses(server, request + HIDDEN) in ([200], [400])
