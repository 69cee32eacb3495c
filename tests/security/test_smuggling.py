"""Requests that a proxy in front might read in another way than the server: none is answered twice or taken for two."""

from collections.abc import Iterator

import pytest

from support.http import Wire
from support.server import ServerProcess

HOST = b"host: localhost\r\n"
GET = b"GET /v0/health HTTP/1.1\r\n"
HEAD = b"POST /v0/topics/t HTTP/1.1\r\n" + HOST + b"content-type: application/json\r\n"
BODY = b'{"records":[{"data":1}]}'
LENGTH = b"content-length: 24\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n"
CHUNKS = b"18\r\n" + BODY + b"\r\n0\r\n\r\n"
HIDDEN = GET + HOST + b"\r\n"


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
        "a coding before chunked": HEAD + b"transfer-encoding: identity, chunked\r\n\r\n" + CHUNKS,
        "chunked twice": HEAD + b"transfer-encoding: chunked, chunked\r\n\r\n" + CHUNKS,
        "an empty coding": HEAD + b"transfer-encoding: ,chunked\r\n\r\n" + CHUNKS,
        "a coding with a parameter": HEAD + b"transfer-encoding: chunked;a=b\r\n\r\n" + CHUNKS,
        "a coding in quotes": HEAD + b'transfer-encoding: "chunked"\r\n\r\n' + CHUNKS,
        "a coding of nothing": HEAD + b"transfer-encoding: identity\r\n\r\n",
        "chunks of an old client": HEAD.replace(b"/1.1", b"/1.0") + CHUNKED + b"\r\n" + CHUNKS,
        "two types": HEAD + b"content-type: text/plain\r\n" + LENGTH + b"\r\n" + BODY,
        "two idempotency keys": HEAD + b"idempotency-key: a\r\nidempotency-key: b\r\n" + LENGTH + b"\r\n" + BODY,
        "an empty length": HEAD + b"content-length:\r\n\r\n" + BODY,
        "no host": GET + b"\r\n",
        "two hosts": GET + HOST + HOST + b"\r\n",
        "two hosts of an old client": GET.replace(b"/1.1", b"/1.0") + HOST + HOST + b"\r\n",
        "an empty host": GET + b"host:\r\n\r\n",
        "a list of hosts": GET + b"host: localhost,evil\r\n\r\n",
        "a host with a user": GET + b"host: localhost@evil\r\n\r\n",
        "a host with a path": GET + b"host: localhost/evil\r\n\r\n",
        "a host with a blank": GET + b"host: local host\r\n\r\n",
        "two keys": GET + HOST + b"authorization: Bearer a\r\nAuthorization: Bearer a\r\n\r\n",
        "two keys of an upgrade": GET + HOST + b"connection: upgrade\r\nupgrade: websocket\r\n"
        b"authorization: Bearer a\r\nauthorization: Bearer b\r\n\r\n",
        "another version": GET.replace(b"/1.1", b"/2.0") + HOST + b"\r\n",
        "an ancient version": GET.replace(b"/1.1", b"/0.9") + HOST + b"\r\n",
        "no version": b"GET /v0/health\r\n\r\n",
        "a newer version": GET.replace(b"/1.1", b"/1.2") + HOST + b"\r\n",
        "a target for another host": b"GET http://evil/v0/health HTTP/1.1\r\n" + HOST + b"\r\n",
        "a target for another port": b"GET http://localhost:1/v0/health HTTP/1.1\r\n" + HOST + b"\r\n",
        "a target with a user": b"GET http://a@localhost/v0/health HTTP/1.1\r\n" + HOST + b"\r\n",
        "a target of another scheme": b"GET ftp://localhost/v0/health HTTP/1.1\r\n" + HOST + b"\r\n",
        "a target with a host alone": b"GET http://localhost/v0/health HTTP/1.1\r\n\r\n",
        "a target with a fragment": b"GET /v0/health#a HTTP/1.1\r\n" + HOST + b"\r\n",
        "two blanks before the target": b"GET  /v0/health HTTP/1.1\r\n" + HOST + b"\r\n",
        "two blanks behind the target": b"GET /v0/health  HTTP/1.1\r\n" + HOST + b"\r\n",
        "a blank behind the version": b"GET /v0/health HTTP/1.1 \r\n" + HOST + b"\r\n",
        "a tab in the request line": b"GET\t/v0/health HTTP/1.1\r\n" + HOST + b"\r\n",
        "a tab before the colon": GET + b"host\t: localhost\r\n\r\n",
        "a folded first line": GET + b" host: localhost\r\n\r\n",
        "a name of nothing": GET + HOST + b": a\r\n\r\n",
        "a line without a colon": GET + HOST + b"a\r\n\r\n",
        "a byte too many": HEAD + CHUNKED + b"\r\n" + CHUNKS.replace(BODY, BODY + b"X"),
    }.items(),
    ids=lambda case: case[0].replace(" ", "-"),
)
def test_what_can_be_read_in_two_ways_is_refused(server: ServerProcess, request_: tuple[str, bytes]) -> None:
    """The connection ends, so that later bytes are not taken for a request."""
    assert statuses(server, request_[1] + HIDDEN) == [400]


@pytest.mark.parametrize(
    "request_",
    [
        HEAD + LENGTH + b"\r\n" + BODY,
        HEAD + CHUNKED + b"\r\n" + CHUNKS,
        HEAD + b"Transfer-Encoding: Chunked\r\n\r\n" + CHUNKS,
        HEAD + CHUNKED + b"\r\n" + CHUNKS.replace(b"0\r\n\r\n", b"0;a=b\r\na: b\r\n\r\n"),
        HEAD + LENGTH.replace(b"24", b"28") + b"\r\n" + BODY[:-1] + b"\r\n\r\n}",
        HEAD + CHUNKED + b"\r\n1c\r\n" + BODY[:-1] + b"\r\n\r\n}\r\n0\r\n\r\n",
        b"\r\n" + HEAD + LENGTH + b"\r\n" + BODY,
        HEAD.replace(b"localhost", b"LocalHost:80 \t") + LENGTH + b"\r\n" + BODY,
        HEAD.replace(b"localhost", b"[::1]:4000") + LENGTH + b"\r\n" + BODY,
        HEAD.replace(b" /v0", b" http://LOCALHOST:80/v0") + LENGTH + b"\r\n" + BODY,
    ],
)
@pytest.mark.parametrize("step", [1 << 20, 1, 7])
def test_what_is_plain_is_taken(server: ServerProcess, request_: bytes, step: int) -> None:
    """However it is cut, with a request right behind it."""
    data = request_ + HIDDEN
    with Wire(server.http_port) as wire:
        for at in range(0, len(data), step):
            wire.send(data[at : at + step])
        first, second = wire.reply(), wire.reply()
    assert first is not None
    assert second is not None
    assert first.status in (200, 201)
    assert (second.status, b'"status":"ok"' in second.body) == (200, True)


def test_old_clients_need_no_host_and_end_with_their_answer(server: ServerProcess) -> None:
    with Wire(server.http_port) as wire:
        wire.send(GET.replace(b"/1.1", b"/1.0") + b"\r\n" + HIDDEN)
        assert [reply.status for reply in wire.replies()] == [200]
