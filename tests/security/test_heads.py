"""Heads of requests on a server with keys: methods, what is ambiguous or malformed, `Expect`."""

from collections.abc import Callable, Iterator

import grpc
import pytest
from security.held import bearer

from support.http import RawReply, Wire, request
from support.http2 import END_HEADERS, END_STREAM, HEADERS, PING, Answer, Http2, block, h2frame
from support.server import ServerProcess
from support.waiting import poll

KEY = "Bearer k"
HEAD = [(":method", "GET"), (":path", "/v0/topics"), (":scheme", "http"), (":authority", "localhost")]
BODY = b'{"records":[{"data":1}]}'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("heads"), env={"TOPICS_API_KEYS": "k"}) as server:
        yield server
        assert server.stop() == 0
        assert " ERROR " not in server.log


def ask1(server: ServerProcess, method: str, target: str, body: bytes | None = None, **headers: str) -> RawReply:
    """Over HTTP/1.1, on a connection that continues."""
    with Wire(server.http_port) as wire:
        reply = wire.send(request(method, target, body, **headers)).reply(head=method == "HEAD")
        assert reply is not None
        assert wire.send(request("GET", "/v0/health")).reply() is not None, "the connection ended"
    return reply


def ask2(server: ServerProcess, *fields: tuple[str, str]) -> Answer:
    """Over HTTP/2, on a connection that continues."""
    with Http2(server.http_port) as client:
        client.send(h2frame(HEADERS, END_HEADERS | END_STREAM, 1, block(list(fields))))
        poll(lambda: 1 in client.answers(), 20, "an answer")
        client.send(h2frame(PING, data=b"12345678"))
        poll(lambda: any(kind == PING for kind, _, _ in client.frames()), 20, "a pong")
    return client.answers()[1]


def code(reply: RawReply | Answer) -> tuple[int, str]:
    """Of an error, in an envelope with its time."""
    body = RawReply(reply.status, {}, reply.body).json
    assert sorted(body) == ["error", "performance"]
    assert 0 <= body["performance"]["server_total_ms"] < 10_000
    return reply.status, body["error"]["code"]


# --------------------------------------------------------------------- methods


@pytest.mark.parametrize(
    "method", ["BREW", "get", "PRI", "SOURCE", "DESCRIBE", "TRACE", "GETX", "PATCH", "!#$%&'*+.^_`|~", "M" * 300]
)
def test_a_method_that_the_path_does_not_take(server: ServerProcess, method: str) -> None:
    """Known or not, over both versions alike: 401, 404, 405, in this order."""
    for path, key, told in (
        ("/v0/topics", "", (401, "unauthorized")),
        ("/v0/nothing", "", (401, "unauthorized")),
        ("/v0/nothing", KEY, (404, "not_found")),
        ("/v0/topics", KEY, (405, "method_not_allowed")),
        ("/v0/ws", KEY, (405, "method_not_allowed")),
    ):
        headers = {"authorization": key} if key else {}
        for body in (None, BODY):
            assert code(ask1(server, method, path, body, **headers)) == told
        chunked = ask1(server, method, path, **headers, Transfer_Encoding="chunked\r\n\r\n1\r\nx\r\n0")
        assert code(chunked) == told
        fields = dict(HEAD) | {":method": method, ":path": path} | headers
        assert code(ask2(server, *fields.items())) == told


def test_connect_is_no_exception_but_ends_the_connection(server: ServerProcess) -> None:
    with Wire(server.http_port) as wire:
        reply = wire.send(request("CONNECT", "/v0/topics", authorization=KEY) + request("GET", "/v0/health")).reply()
        assert reply is not None
        assert code(reply) == (405, "method_not_allowed")
        assert wire.reply() is None
    with Wire(server.http_port) as wire:
        reply = wire.send(request("CONNECT", "localhost:80", authorization=KEY)).reply()
        assert reply is not None
        assert code(reply) == (400, "invalid_request")
    assert code(ask2(server, (":method", "CONNECT"), (":authority", "localhost:80"))) == (400, "invalid_request")


@pytest.mark.parametrize("method", ["G(T", '"G"', "G\xe9T", "G\x00T", "G@T"])
def test_a_method_that_is_none(server: ServerProcess, method: str) -> None:
    with Wire(server.http_port) as wire:
        reply = wire.send(request(method, "/v0/topics", authorization=KEY)).reply()
        assert reply is not None
        assert code(reply) == (400, "invalid_request")
        assert wire.reply() is None
    if method.isascii() and "\0" not in method:
        assert code(ask2(server, *(dict(HEAD) | {":method": method, "authorization": KEY}).items()))[0] == 400


def test_methods_that_come_one_behind_the_other(server: ServerProcess) -> None:
    """A method of which a part is one that the parser knows, byte by byte; and many in one read."""
    one = request("GETS", "/v0/health", BODY, authorization=KEY) + request("POS", "/v0/health", authorization=KEY)
    one += request("GET", "/v0/health")
    with Wire(server.http_port) as wire:
        for byte in one:
            wire.send(bytes([byte]))
        told = [wire.reply() for _ in range(3)]
        assert [reply and reply.status for reply in told] == [405, 405, 200]
        wire.send(one * 15)
        assert [reply.status for _, reply in zip(range(45), wire.replies(), strict=False)] == [405, 405, 200] * 15


# ------------------------------------------------------- before authentication


@pytest.mark.parametrize(
    "head",
    [
        "GET /v0/topics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer k\r\nAuthorization: Bearer k",
        "GET /v0/topics HTTP/1.1\r\nHost: localhost\r\nHost: localhost",
        "GET /v0/topics HTTP/1.1\r\nAccept: */*",
        "GET /v0/topics HTTP/2.0\r\nHost: localhost",
        "POST /v0/topics/t HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: identity, chunked",
    ],
)
def test_an_ambiguous_head_is_refused_before_the_key(server: ServerProcess, head: str) -> None:
    with Wire(server.http_port) as wire:
        reply = wire.send(head.encode() + b"\r\n\r\n" + request("GET", "/v0/health")).reply()
        assert reply is not None
        assert code(reply) == (400, "invalid_request")
        assert reply.headers["connection"] == "close"
        assert wire.reply() is None


def test_a_head_that_is_too_large_tells_its_time(server: ServerProcess) -> None:
    with Wire(server.http_port) as wire:
        reply = wire.send(request("GET", "/v0/health", a="b" * 100_000)).reply()
        assert reply is not None
        assert code(reply) == (431, "invalid_request")


@pytest.mark.parametrize(
    "fields",
    {
        "two keys": [*HEAD, ("authorization", KEY), ("authorization", KEY)],
        "another host": [*HEAD, ("authorization", KEY), ("host", "evil")],
        "another port": [*HEAD, ("authorization", KEY), ("host", "localhost:1")],
        "two hosts": [*HEAD, ("host", "localhost"), ("host", "localhost")],
        "no host": [*HEAD[:3]],
        "an empty authority": [*HEAD[:3], (":authority", "")],
        "a list of authorities": [*HEAD[:3], (":authority", "localhost, evil")],
        "two authorities": [*HEAD, (":authority", "localhost")],
        "two paths": [*HEAD, (":path", "/v0/topics")],
        "no path": [HEAD[0], *HEAD[2:]],
        "an empty path": [HEAD[0], (":path", ""), *HEAD[2:]],
        "a fragment": [HEAD[0], (":path", "/v0/topics#a"), *HEAD[2:]],
        "an upper-case name": [*HEAD, ("Accept", "*/*")],
        "a blank in a name": [*HEAD, ("a b", "c")],
        "a line feed in a value": [*HEAD, ("a", "b\nc: d")],
        "a blank around a value": [*HEAD, ("authorization", KEY + " ")],
        "connection": [*HEAD, ("connection", "close")],
        "transfer-encoding": [*HEAD, ("transfer-encoding", "chunked")],
        "upgrade": [*HEAD, ("upgrade", "websocket")],
        "te": [*HEAD, ("te", "gzip")],
        "a late pseudo-header": [*HEAD[:3], ("accept", "*/*"), HEAD[3]],
        "an unknown pseudo-header": [*HEAD, (":a", "b")],
        "two types": [*HEAD, ("content-type", "a"), ("content-type", "b")],
        "two lengths": [*HEAD, ("content-length", "0"), ("content-length", "0")],
    }.items(),
    ids=lambda case: case[0].replace(" ", "-"),
)
def test_a_head_of_http2_that_is_ambiguous_or_malformed(
    server: ServerProcess, fields: tuple[str, list[tuple[str, str]]]
) -> None:
    """It ends its stream; the other ones on the connection, which may be those of others, continue."""
    assert code(ask2(server, *fields[1])) == (400, "invalid_request")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "localhost:80"])
def test_a_host_that_is_the_authority(server: ServerProcess, host: str) -> None:
    assert ask2(server, *HEAD, ("authorization", KEY), ("host", host)).status == 200
    assert ask2(server, *HEAD[:3], ("authorization", KEY), ("host", host)).status == 200


@pytest.mark.parametrize("second", ["k", "wrong"])
def test_two_keys_over_grpc(server: ServerProcess, second: str) -> None:
    with grpc.insecure_channel(server.grpc_target) as channel:
        for method in ("TopicsService/ListTopics", "AdminService/GetReady"):
            with pytest.raises(grpc.RpcError) as error:
                channel.unary_unary(f"/topics.v1.{method}")(b"", metadata=bearer("k") + bearer(second), timeout=30)
            assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT


# ---------------------------------------------------------------------- Expect


def upload(path: str, **headers: str) -> bytes:
    """The head of a body that waits for `100 Continue`."""
    return request("POST", path, BODY, **{"authorization": KEY, "Expect": "100-continue"} | headers)[: -len(BODY)]


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (lambda: upload("/v0/topics/t", authorization="Bearer wrong"), 401),
        (lambda: upload("/v0/nothing"), 404),
        (lambda: upload("/v0/topics"), 405),
        (lambda: upload("/v0/topics/t", Content_Type="text/plain"), 415),
        (lambda: upload("/v0/topics/t", Content_Encoding="br"), 415),
        (lambda: upload("/v0/topics/t").replace(b": 24", b": 99999999999"), 413),
    ],
)
def test_whoever_waits_for_100_gets_its_error_without(
    server: ServerProcess, head: Callable[[], bytes], status: int
) -> None:
    """And the connection closes: what comes next may be the body or not."""
    with Wire(server.http_port) as wire:
        reply = wire.send(head()).reply()
        assert reply is not None
        assert code(reply)[0] == status
        assert reply.headers["connection"] == "close"
        assert wire.send(BODY).reply() is None


def test_whoever_does_not_wait_for_100_goes_on(server: ServerProcess) -> None:
    """A part of the body is here: the rest is read and dropped."""
    with Wire(server.http_port) as wire:
        wire.send(upload("/v0/topics/t", authorization="Bearer wrong") + BODY[:5])
        wire.send(BODY[5:] + request("GET", "/v0/health"))
        replies = [wire.reply(), wire.reply()]
        assert [reply and reply.status for reply in replies] == [401, 200]


@pytest.mark.parametrize("value", ["100-continue", "100-Continue"])
def test_whoever_waits_for_100_is_told_to_go_on(server: ServerProcess, value: str) -> None:
    with Wire(server.http_port) as wire:
        told = wire.send(upload("/v0/topics/t", Expect=value)).reply()
        assert told is not None
        assert told.status == 100
        reply = wire.send(BODY).reply()
        assert reply is not None
        assert reply.status in (200, 201)
        told = wire.send(request("GET", "/v0/health", Expect=value)).reply()  # there is no body to wait for
        assert told is not None
        assert told.status == 200


def test_http2_answers_without_100_too(server: ServerProcess) -> None:
    with Http2(server.http_port) as client:
        fields = dict(HEAD) | {":method": "POST", ":path": "/v0/topics/t", "expect": "100-continue"}
        client.send(h2frame(HEADERS, END_HEADERS, 1, block(list(fields.items()))))
        poll(lambda: b"unauthorized" in client.answers().get(1, Answer(0, b"")).body, 20, "an answer")
    assert [kind for kind, stream, _ in client.frames() if stream == 1].count(HEADERS) == 1
