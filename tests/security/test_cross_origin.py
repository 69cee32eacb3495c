"""Cross-origin resource sharing: pages of listed origins may read every answer, others get what they always got."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.http import REC, Api, Wire, envelope
from support.server import ServerProcess
from support.ws import RefusedError, WebSocket

PAGE, OTHER = "https://app.example", "https://evil.example"
ORIGINS = f"{PAGE}, http://localhost:5173 ,"
KEY = {"authorization": "Bearer k"}
PREFLIGHT = {
    "access-control-allow-origin": PAGE,
    "access-control-allow-methods": "DELETE, GET, HEAD, POST, PUT",
    "access-control-allow-headers": "Authorization, Content-Type, Content-Encoding, Idempotency-Key, Last-Event-ID, "
    "x-request-id, x-topics-position, traceparent, tracestate, grpc-timeout, x-grpc-web, x-user-agent",
    "access-control-max-age": "3600",
    "vary": "origin",
}
READABLE = {
    "access-control-allow-origin": PAGE,
    "access-control-expose-headers": "Retry-After, x-request-id, x-topics-position",
}


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with a key, and one page."""
    env = {"TOPICS_CORS_ORIGINS": ORIGINS, "TOPICS_API_KEYS": "k,busy max_streams=1"}
    with ServerProcess(tmp_path_factory.mktemp("keyed"), env=env) as server:
        yield server
        assert server.stop() == 0
        assert "Traceback" not in server.log


@pytest.fixture(scope="module")
def unkeyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server without keys, and one page."""
    with ServerProcess(tmp_path_factory.mktemp("unkeyed"), env={"TOPICS_CORS_ORIGINS": ORIGINS}) as server:
        yield server
        assert server.stop() == 0
        assert "Traceback" not in server.log


@pytest.fixture(scope="module")
def unset(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with default settings."""
    with ServerProcess(tmp_path_factory.mktemp("unset")) as server:
        yield server


@pytest.fixture(params=["HTTP/1.1", "HTTP/2"])
def http2(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "HTTP/2")


def client(server: ServerProcess, http2: bool) -> httpx.Client:
    return httpx.Client(base_url=server.base, http1=not http2, http2=http2, trust_env=False, verify=False, timeout=20)


def preflight(http: httpx.Client, path: str, origin: str, *, method: str = "POST") -> httpx.Response:
    headers = {
        "origin": origin,
        "access-control-request-method": method,
        "access-control-request-headers": "authorization,content-type",
        "sec-fetch-site": "cross-site",
        "sec-fetch-mode": "cors",
    }
    return http.options(path, headers=headers)


def sharing(reply: httpx.Response) -> dict[str, str]:
    """The headers with the origins that may read the answer."""
    return {name: value for name, value in reply.headers.items() if name.startswith("access-control-")}


def varies(reply: httpx.Response) -> bool:
    return "origin" in [each.strip() for each in reply.headers.get("vary", "").split(",")]


@pytest.mark.parametrize(
    "path", ["/v0/topics/t", "/v0/topics/t/diff", "/v0/watch/x", "/v0/metrics", "/v0/nowhere", "/"]
)
def test_a_preflight_needs_no_key_and_says_what_a_page_may_send(
    keyed: ServerProcess, unkeyed: ServerProcess, http2: bool, path: str
) -> None:
    for server in (keyed, unkeyed):
        with client(server, http2) as http:
            for method in ("POST", "PUT", "DELETE", "GET", "BREW"):
                reply = preflight(http, path, PAGE, method=method)
                assert (reply.status_code, reply.content) == (204, b"")
                assert {name: value for name, value in reply.headers.items() if name != "date"} == PREFLIGHT
            reply = preflight(http, path, "http://localhost:5173")
            assert reply.headers["access-control-allow-origin"] == "http://localhost:5173"


def test_preflights_are_counted(keyed: ServerProcess) -> None:
    with client(keyed, False) as http:
        preflight(http, "/v0/topics/t", PAGE)
        metrics = http.get("/v0/metrics", headers=KEY).text
    assert 'topics_http_request_seconds_count{rpc="Preflight",status="2xx"}' in metrics


@pytest.mark.parametrize(
    "rest",
    ["Content-Length: 4\r\n\r\nbody", "Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n"],
    ids=["length", "chunked"],
)
def test_an_options_with_a_body_is_no_preflight(keyed: ServerProcess, rest: str) -> None:
    """It is refused as any other request without a key, and its body is read."""
    fields = f"Host: localhost\r\nOrigin: {PAGE}\r\nAccess-Control-Request-Method: PUT\r\n"
    after = "GET /v0/health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with Wire(keyed.http_port) as wire:
        wire.send(f"OPTIONS /v0/topics/t HTTP/1.1\r\n{fields}{rest}{after}".encode())
        replies = [wire.reply(), wire.reply()]
    assert [reply.status for reply in replies if reply is not None] == [401, 200]


def answers(server: ServerProcess, http2: bool, headers: dict[str, str]) -> dict[str, httpx.Response]:
    """Answers of every kind."""
    small = {"content-type": "application/json", **headers}
    with client(server, http2) as http:
        return {
            "probe": http.get("/v0/health", headers=headers),
            "write": http.post("/v0/topics/t", json=REC, headers=headers),
            "gzip": http.get("/v0/metrics", headers={**headers, "accept-encoding": "gzip"}),
            "head": http.head("/v0/topics/t", headers=headers),
            "no JSON": http.post("/v0/topics/t", content=b"{", headers=small),
            "text": http.post("/v0/topics/t", content=b"{}", headers={**headers, "content-type": "text/plain"}),
            "no topic": http.get("/v0/topics/none", headers=headers),
            "no route": http.get("/v0/nowhere", headers=headers),
            "no method": http.options("/v0/topics/t", headers=headers),
            "no watch": http.get("/v0/watch/none", headers=headers),
            "no stream": http.get("/v0/topics/t/work", headers={**headers, "accept": "application/json"}),
            "no key": http.get("/v0/topics", headers={**headers, "authorization": "Bearer wrong"}),
        }


STATUSES = {
    "probe": 200, "gzip": 200, "head": 200, "no JSON": 400, "text": 415, "no topic": 404, "no route": 404,
    "no method": 405, "no watch": 404, "no stream": 406,
}  # fmt: skip


def test_every_answer_to_a_listed_page_is_readable(keyed: ServerProcess, http2: bool) -> None:
    found = answers(keyed, http2, {**KEY, "origin": PAGE, "sec-fetch-site": "cross-site"})
    assert found.pop("write").status_code in (200, 201)
    for kind, reply in found.items():
        assert reply.status_code == {**STATUSES, "no key": 401}[kind], kind
        assert sharing(reply) == READABLE, kind
        assert varies(reply), kind
    assert found["gzip"].headers["vary"] == "accept-encoding, origin"


def test_without_keys_too(unkeyed: ServerProcess, http2: bool) -> None:
    found = answers(unkeyed, http2, {"origin": PAGE, "sec-fetch-site": "cross-site"})
    assert found.pop("write").status_code in (200, 201)
    for kind, reply in found.items():
        assert reply.status_code == {**STATUSES, "no key": 200}[kind], kind
        assert sharing(reply) == READABLE, kind


def test_a_page_reads_why_it_has_to_wait_and_gets_its_request_id(keyed: ServerProcess, http2: bool) -> None:
    headers = {"authorization": "Bearer busy", "origin": PAGE, "x-request-id": "from-the-page"}
    with client(keyed, http2) as http:
        http.put("/v0/topics/stream", json={"type": "queue"}, headers=KEY)
        with http.stream("GET", "/v0/topics/stream/work?node=a", headers=headers) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            assert sharing(stream) == READABLE
            assert stream.headers["x-request-id"] == "from-the-page"
            with client(keyed, http2) as another:
                refused = another.get("/v0/topics/stream/work?node=b", headers=headers)
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "1"
    assert refused.headers["x-request-id"] == "from-the-page"
    assert sharing(refused) == READABLE


@pytest.mark.parametrize(
    "origin",
    [
        OTHER, "null", "", "http://app.example", "https://app.example:444", "https://app.example:443",
        "https://app.example.", "https://APP.example", "https://app.example.evil.example", "https://x.app.example",
        "https://app.example/", f"{PAGE}, {PAGE}", "http://localhost:5174", "*",
    ],
)  # fmt: skip
def test_other_pages_get_what_they_got(keyed: ServerProcess, unkeyed: ServerProcess, http2: bool, origin: str) -> None:
    """With a key in the request all is served, without keys only pages of the machine; no other origin may read it."""
    with client(keyed, http2) as http:
        assert preflight(http, "/v0/topics/t", origin).status_code == 401
    for server, headers, status in ((keyed, KEY, 200), (unkeyed, {}, 200 if "localhost" in origin else 403)):
        with client(server, http2) as http:
            reply = http.get("/v0/topics", headers={**headers, "origin": origin})
            ahead = http.options(
                "/v0/topics/t", headers={**headers, "origin": origin, "access-control-request-method": "PUT"}
            )
        assert (reply.status_code, ahead.status_code) == (status, 405 if status == 200 else 403)
        assert not sharing(reply)
        assert not sharing(ahead)
        assert varies(reply)
        assert varies(ahead)


def test_a_list_of_pages_opens_no_host(unkeyed: ServerProcess) -> None:
    """A name that points here is refused as before, in an answer that the page may read."""
    with client(unkeyed, False) as http:
        reply = http.get("/v0/topics", headers={"host": "evil.example", "origin": PAGE})
        assert reply.status_code == 403
        assert "TOPICS_ALLOWED_HOSTS" in envelope(reply.json(), "forbidden")["message"]
        assert sharing(reply) == READABLE
        assert http.get("/v0/topics", headers={"sec-fetch-site": "cross-site"}).status_code == 403


def test_sockets_open_for_listed_pages_only(keyed: ServerProcess, unkeyed: ServerProcess) -> None:
    WebSocket(unkeyed.base, origin=PAGE).close()
    WebSocket(keyed.base, origin=PAGE, **KEY).close()
    for origin in (OTHER, "null", "https://app.example:444"):
        with pytest.raises(RefusedError) as refused:
            WebSocket(unkeyed.base, origin=origin)
        assert refused.value.status == 403


def raw(server: ServerProcess, *lines: str, body: str = "") -> bytes:
    """The bytes of an answer, without what is different each time."""
    length = [f"Content-Length: {len(body)}", "Content-Type: application/json"] if body else []
    with Wire(server.http_port) as wire:
        wire.send("\r\n".join([*lines, "Host: localhost", *length, "Connection: close", "", body]).encode())
        reply = wire.reply()
    assert reply is not None
    reply.headers.pop("date", None)
    shown: Any = reply.json
    if isinstance(shown, dict):
        shown.pop("performance", None)
        reply.headers.pop("content-length", None)  # with the time in it
    return json.dumps([reply.status, list(reply.headers.items()), shown]).encode()


def test_without_the_setting_nothing_is_different(unset: ServerProcess) -> None:
    with Api(unset.base) as api:
        api.append("t", 1)
    for line, body in (
        ("GET /v0/topics/none HTTP/1.1", ""),
        ("OPTIONS /v0/topics/t HTTP/1.1", ""),
        ("POST /v0/topics/t/diff HTTP/1.1", "{}"),
        ("GET /v0/nowhere HTTP/1.1", ""),
    ):
        plain = raw(unset, line, body=body)
        own = raw(unset, line, "Origin: http://localhost:5173", "Access-Control-Request-Method: PUT", body=body)
        assert own == plain
        assert b"access-control" not in plain
        assert b"vary" not in plain
    refused = raw(unset, "OPTIONS /v0/topics/t HTTP/1.1", f"Origin: {PAGE}", "Access-Control-Request-Method: PUT")
    assert json.loads(refused)[0] == 403
    assert b"access-control" not in refused


def test_a_star_stops_the_start(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, env={"TOPICS_CORS_ORIGINS": f"{PAGE},*"})
    server.spawn()
    assert server.wait(30) == 1
    assert "TOPICS_CORS_ORIGINS: '*' is not an origin" in server.log
    assert "Traceback" not in server.log
