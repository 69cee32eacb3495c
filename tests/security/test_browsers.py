"""Requests that a browser makes for a page of somebody else, at a server without keys: refused, and nothing changes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.http import Api, Wire, envelope, ok
from support.server import ServerProcess
from support.ws import RefusedError, WebSocket

SERVED = (
    "localhost", "LocalHost", "localhost.", "localhost:1", "localhost:", "a.localhost", "a.B.localhost.:65535",
    "127.0.0.1", "127.9.9.9:80", "192.0.2.7", "0.0.0.0", "[::1]", "[::1]:4000", "[2001:DB8::1]", "[::ffff:127.0.0.1]",
    "topics.internal", "TOPICS.internal.:4000", "my_service", "10.internal",
)  # fmt: skip
REFUSED = (
    "evil.example", "evil.example:4000", "evil.example.", "localhost.evil.example", "evil-localhost", "xlocalhost",
    "localhost..", ".localhost", "a..localhost", "-.localhost", "127.1", "0x7f.1", "2130706433", "0177.0.0.1",
    "127.0.0.1.", "127.0.0.01", "127.0.0.1.evil.example", "[127.0.0.1]", "[localhost]", "[::g]", "localhost:65536",
    "localhost:000080", "topics.internal.evil.example", "x.topics.internal", "internal", "*",
)  # fmt: skip
MALFORMED = (
    "", "::1", "[::1", "[::1].evil.example", "[]", "localhost:x", "localhost:80x", "localhost:80:80", "localhost:-1",
    ":80", "user@localhost", "localhost:1@evil.example", "evil.example@localhost", "localhost/", "localhost#x",
    "localhost x", "localhost,evil.example", "l\xf6calhost",
)  # fmt: skip
PROBES = ("/v0/health", "/v0/ready", "/healthz", "/readyz")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    env = {"TOPICS_ALLOWED_HOSTS": " topics.internal, My_Service. ,,10.internal"}
    with ServerProcess(tmp_path_factory.mktemp("browsers"), env=env) as server:
        with Api(server.base) as api:
            ok(api.put("jobs", type="queue"), 201)
            ok(api.put("t"), 201)
        yield server
        assert server.stop() == 0
        assert "Traceback" not in server.log


def ask(server: ServerProcess, line: str, *fields: str, body: bytes | None = None) -> Any:
    """The answer to a request with exactly these fields."""
    lines = [line, *fields, *([] if body is None else [f"Content-Length: {len(body)}"]), "Connection: close", "", ""]
    with Wire(server.http_port) as wire:
        reply = wire.send("\r\n".join(lines).encode("latin-1") + (body or b"")).reply()
    assert reply is not None
    return reply


def by_http2(server: ServerProcess, authority: str) -> httpx.Response:
    with httpx.Client(http1=False, http2=True, trust_env=False, verify=False) as client:
        return client.get(f"{server.base}/v0/topics", headers={"host": authority})


def upgrade(server: ServerProcess, **headers: str) -> int:
    """The status of an upgrade to a WebSocket."""
    try:
        WebSocket(server.base, **headers).close()
    except RefusedError as error:
        return error.status
    return 101


@pytest.mark.parametrize("host", SERVED)
def test_hosts_that_are_served(server: ServerProcess, host: str) -> None:
    assert ask(server, "GET /v0/topics HTTP/1.1", f"Host: {host}").status == 200
    assert by_http2(server, host).status_code == 200
    assert upgrade(server, host=host) == 101


@pytest.mark.parametrize("host", REFUSED)
def test_hosts_that_are_not(server: ServerProcess, host: str) -> None:
    reply = ask(server, "GET /v0/topics HTTP/1.1", f"Host: {host}")
    assert reply.status == 403
    assert "TOPICS_ALLOWED_HOSTS" in envelope(reply.json, "forbidden")["message"]
    assert upgrade(server, host=host) == 403
    assert by_http2(server, host).status_code == 403


@pytest.mark.parametrize("host", MALFORMED)
def test_hosts_that_are_none(server: ServerProcess, host: str) -> None:
    """Whatever the keys, these are no requests (RFC 9112, 3.2)."""
    assert ask(server, "GET /v0/topics HTTP/1.1", f"Host: {host}").status == 400
    if host:
        assert upgrade(server, host=host) == 400
    if host.isascii() and host:
        assert by_http2(server, host).status_code == 400


@pytest.mark.parametrize(
    "path", ["/v0/topics/x", "/v0/nowhere", "/v0/metrics", "/v0/ws", "/", "/v0/watch/x", "/v0/healthy"]
)
def test_a_host_counts_on_every_path(server: ServerProcess, path: str) -> None:
    for method in ("GET", "PUT", "DELETE", "OPTIONS", "BREW"):
        assert ask(server, f"{method} {path} HTTP/1.1", "Host: evil.example", body=b"{}").status in (400, 403)
    assert ask(server, f"GET {path} HTTP/1.1", "Host: evil.example").status == 403


def test_a_host_in_the_target_counts_more_than_the_header(server: ServerProcess) -> None:
    for target, host, status in (
        ("http://evil.example/v0/topics", "localhost", 403),
        ("http://user@localhost/v0/topics", "localhost", 403),
        ("http://localhost:1/v0/topics", "localhost", 200),
        ("http://[::1]:4000/v0/topics", "[::1]:4000", 200),
        ("HTTP://Topics.Internal/v0/topics", "topics.internal", 200),
        ("https://evil.example/v0/health", "evil.example", 200),
    ):
        reply = ask(server, f"GET {target} HTTP/1.1", f"Host: {host}")
        assert reply.status in (status, 400 if "evil" in target + host or "@" in target or ":1/" in target else status)
    assert ask(server, "GET http://evil.example/v0/topics HTTP/1.0").status == 403


def test_probes_and_old_clients_need_no_host_that_is_served(server: ServerProcess) -> None:
    for path in PROBES:
        assert ask(server, f"GET {path} HTTP/1.1", "Host: 10-0-0-7.pod.cluster").status == 200
        assert ask(server, f"GET {path} HTTP/1.0").status == 200
    assert ask(server, "GET /v0/topics HTTP/1.0").status == 200
    assert ask(server, "GET /v0/topics HTTP/1.0", "Host: evil.example").status == 403
    assert ask(server, "GET /v0/topics HTTP/1.0", "Host:").status == 400


def requests(server: ServerProcess, *fields: str) -> dict[str, int]:
    """The status of one request of each kind that a page can make without being asked about it first."""
    own = f"Host: 127.0.0.1:{server.http_port}"
    return {
        line: ask(server, f"{line} HTTP/1.1", own, *fields, body=body).status
        for line, body in (
            ("POST /v0/topics/jobs/redrive", b""),
            ("POST /v0/topics/t/diff", b""),
            ("POST /v0/topics/jobs/claim", b"{}"),
            ("GET /v0/topics/t?touch=true", None),
            ("GET /v0/topics", None),
            ("GET /v0/nowhere", None),
            ("GET /v0/watch/none", None),
            ("GET /v0/topics/jobs/work?node=", None),
            ("GET /v0/health", None),
            ("OPTIONS /v0/topics/t", None),
        )
    }  # fmt: skip


@pytest.mark.parametrize(
    "fields",
    [
        ["Origin: http://evil.example"],
        ["Origin: null"],
        ["Origin: "],
        ["Origin: http://localhost.evil.example"],
        ["Origin: http://localhost:80@evil.example"],
        ["Origin: http://127.1"],
        ["Origin: file://localhost"],
        ["Origin: chrome-extension://localhost"],
        ["Origin: http://192.0.2.7"],
        ["Origin: http://evil.example", "Sec-Fetch-Site: same-origin"],
        ["Sec-Fetch-Site: cross-site"],
        ["Sec-Fetch-Site: Cross-Site ", "Sec-Fetch-Mode: no-cors"],
        ["Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document"],
    ],
    ids=str,
)
def test_pages_of_others_get_nothing(server: ServerProcess, fields: list[str]) -> None:
    before = server_state(server)
    assert set(requests(server, *fields).values()) == {403}
    assert server_state(server) == before
    headers = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
    assert upgrade(server, **headers) == 403


@pytest.mark.parametrize(
    "fields",
    [
        [],
        ["Origin: http://127.0.0.1:{port}"],
        ["Origin: http://127.0.0.1:{port}", "Sec-Fetch-Site: cross-site"],
        ["Origin: http://localhost:3000", "Sec-Fetch-Site: cross-site"],
        ["Sec-Fetch-Site: same-origin"],
        ["Sec-Fetch-Site: same-site"],
        ["Sec-Fetch-Site: none", "Sec-Fetch-Mode: navigate"],
    ],
    ids=str,
)
def test_own_pages_and_those_of_this_machine_are_served(server: ServerProcess, fields: list[str]) -> None:
    fields = [field.format(port=server.http_port) for field in fields]
    assert 403 not in requests(server, *fields).values()
    headers = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
    assert upgrade(server, **headers) == 101


def test_the_own_origin_is_that_of_the_host_with_its_port(server: ServerProcess) -> None:
    for host, origin, status in (
        ("topics.internal", "http://topics.internal", 200),
        ("topics.internal", "https://TOPICS.internal", 200),
        ("topics.internal:80", "http://topics.internal", 200),
        ("topics.internal:443", "https://topics.internal", 200),
        ("topics.internal:443", "http://topics.internal", 403),
        ("topics.internal:4000", "http://topics.internal:4001", 403),
        ("topics.internal:4000", "http://10.internal:4000", 403),
    ):
        reply = ask(server, "GET /v0/topics HTTP/1.1", f"Host: {host}", f"Origin: {origin}")
        assert reply.status == status, (host, origin)


def test_http2_knows_no_other_rule(server: ServerProcess) -> None:
    with httpx.Client(base_url=server.base, http1=False, http2=True, trust_env=False, verify=False) as client:
        for headers, status in (
            ({"origin": "http://evil.example"}, 403),
            ({"sec-fetch-site": "cross-site"}, 403),
            ({"origin": "http://localhost"}, 400),  # it takes a queue of dead letters
        ):
            reply = client.post("/v0/topics/jobs/redrive", headers=headers)
            assert reply.status_code == status
        assert client.get("/healthz", headers={"host": "evil.example"}).status_code == 200


def server_state(server: ServerProcess) -> Any:
    reply = ask(server, "GET /v0/topics HTTP/1.1", "Host: localhost")
    assert reply.status == 200
    return json.dumps([{**each, "performance": None} for each in reply.json["topics"]])


def test_a_star_serves_every_host_and_no_other_origin(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, env={"TOPICS_ALLOWED_HOSTS": "*"}) as server:
        for host in ("evil.example", "anything"):
            assert ask(server, "GET /v0/topics HTTP/1.1", f"Host: {host}").status == 200
        assert ask(server, "GET /v0/topics HTTP/1.1", "Host: a", "Origin: http://b").status == 403


def test_with_keys_nothing_of_this_counts(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, env={"TOPICS_API_KEYS": "k"}) as server:
        fields = ("Host: evil.example", "Origin: http://other.example", "Sec-Fetch-Site: cross-site")
        assert ask(server, "GET /v0/topics HTTP/1.1", *fields).status == 401
        assert ask(server, "GET /v0/topics HTTP/1.1", *fields, "Authorization: Bearer k").status == 200
        assert upgrade(server, host="evil.example", origin="http://other.example", authorization="Bearer k") == 101
