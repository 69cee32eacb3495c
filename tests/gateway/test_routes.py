"""Routing: the table comes from the proto files; 404, 405, HEAD, and the guard."""

import logging
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from topics_gateway import GatewaySettings, create_app
from topics_gateway.body_timeout import BodyTimeouts
from topics_gateway.request import Request
from topics_gateway.response import Response
from topics_gateway.routes import Route, RouteTable, annotated_routes, split_path
from topics_service.api.access.auth import KeyRing
from topics_service.api.access.authorizer import NO_GROUP_ROUTE, NO_ROUTE, NO_ROUTER_ROUTE, NO_TOPIC_ROUTE, Authorizer
from topics_service.api.topics import TopicsApi
from topics_service.engine.errors import Reason, TopicsError

DIFF = "topics.v1.TopicsService.Diff"


def check_envelope(reply: httpx.Response, status: int, code: str) -> None:
    body = reply.json()
    assert (reply.status_code, body["error"]["code"]) == (status, code)
    assert set(body) == {"error", "performance"}
    assert set(body["error"]) <= {"code", "message", "detail"}
    assert body["error"]["message"]
    assert body["performance"]["server_total_ms"] > 0
    assert reply.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"), ("GET", "/v0"), ("GET", "/v0/nonexistent/route"), ("GET", "/v1/topics"), ("DELETE", "/nothing"),
        ("POST", "/v0/topics/x/xyz"), ("GET", "/v0/topics/x/diff/y"), ("GET", "/v0/topics/"), ("GET", "/metrics"),
        ("GET", "//v0/topics"), ("PUT", "/v0/topics//diff"), ("GET", "/v0/topics/x/"), ("GET", "/v0%2Ftopics"),
    ],
)  # fmt: skip
async def test_unknown_paths(client: httpx.AsyncClient, method: str, path: str) -> None:
    check_envelope(await client.request(method, path), 404, "not_found")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "/v0/topics/t/diff"), ("GET", "/v0/topics/t/diff"), ("DELETE", "/v0/topics/t/diff"),
        ("GET", "/v0/topics/t/delete"), ("PATCH", "/v0/topics/t"), ("POST", "/v0/topics"), ("DELETE", "/v0/topics"),
        ("POST", "/v0/health"), ("HEAD", "/v0/topics/t/diff"),
    ],
)  # fmt: skip
async def test_wrong_methods(client: httpx.AsyncClient, method: str, path: str) -> None:
    reply = await client.request(method, path)
    if method == "HEAD":
        assert (reply.status_code, reply.content) == (405, b"")
    else:
        check_envelope(reply, 405, "method_not_allowed")


async def refusal(route: Route) -> tuple[str, Reason]:
    with pytest.raises(TopicsError) as error:
        await route.handler(None)  # type: ignore[arg-type]
    return route.rpc, error.value.reason


async def test_rpcs_without_a_handler_are_not_found(api: TopicsApi, settings: GatewaySettings) -> None:
    async def handler(request: Request) -> Response:
        raise AssertionError

    table = RouteTable({DIFF: handler})

    def find(method: str, path: str) -> Any:
        return table.find(Request({"method": method, "raw_path": path.encode(), "headers": []}, None, BodyTimeouts(60)))  # type: ignore[arg-type]

    assert find("POST", "/v0/topics/t/diff") == (DIFF, handler)
    assert await refusal(find("PUT", "/v0/topics/t/diff")) == (NO_TOPIC_ROUTE, Reason.METHOD_NOT_ALLOWED)
    for rpc, method, path in annotated_routes():
        if rpc != DIFF:
            kinds = {"{topic}": NO_TOPIC_ROUTE, "{router}": NO_ROUTER_ROUTE, "{group}": NO_GROUP_ROUTE}
            below = next((rule for variable, rule in kinds.items() if variable in path), NO_ROUTE)
            path = path.replace("{", "").replace("}", "")
            assert await refusal(find(method, path)) == (rpc, Reason.NOT_FOUND)
            assert await refusal(find("PATCH", path)) == (below, Reason.NOT_FOUND)
    with pytest.raises(ValueError, match="no route"):
        RouteTable({"topics.v1.TopicsService.Nothing": handler})


def test_the_table_has_every_binding() -> None:
    routes = list(annotated_routes())
    assert ("topics.v1.TopicsService.Append", "POST", "/v0/topics/{topic}") in routes
    assert ("topics.v1.AdminService.GetReady", "GET", "/readyz") in routes
    assert len({(method, path) for _, method, path in routes}) == len(routes)


def test_segments_are_decoded_after_the_split() -> None:
    assert split_path(b"/v0/topics/a%2Fb%3A%c3%a9/diff") == ["", "v0", "topics", "a/b:é", "diff"]
    assert split_path("/é".encode()) == ["", "é"]
    assert split_path(b"/%zz%") == ["", "%zz%"]


async def test_a_path_that_is_not_utf8_is_refused_in_the_envelope(client: httpx.AsyncClient) -> None:
    check_envelope(await client.get("/v0/topics/%ff"), 400, "invalid_request")
    check_envelope(await client.get("/%ff"), 400, "invalid_request")


async def test_names_are_percent_decoded(client: httpx.AsyncClient) -> None:
    assert (await client.put("/v0/topics/a%3Ab")).json()["topic"] == "a:b"
    assert (await client.get("/v0/topics/a:b")).status_code == 200
    check_envelope(await client.put("/v0/topics/a%2Fb"), 400, "invalid_request")
    check_envelope(await client.get("/v0/topics/a%2Fdiff"), 404, "topic_not_found")


@pytest.mark.parametrize("path", ["/v0/health", "/v0/ready", "/healthz", "/readyz", "/v0/topics", "/v0/topics/t"])
async def test_head_is_get_without_the_body(client: httpx.AsyncClient, path: str) -> None:
    await client.put("/v0/topics/t")
    got = await client.get(path)
    head = await client.head(path)
    assert (head.status_code, head.content) == (got.status_code, b"")
    assert head.headers["content-type"] == got.headers["content-type"]
    assert int(head.headers["content-length"]) > 0


class BrokenApi:
    sql = None

    def __init__(self, api: TopicsApi) -> None:
        self.metrics, self.observers = api.metrics, api.observers

    def ready(self) -> Any:
        raise RuntimeError("secret")


async def test_a_bug_is_a_500_that_says_nothing(
    caplog: pytest.LogCaptureFixture, settings: GatewaySettings, api: TopicsApi
) -> None:
    app = create_app(BrokenApi(api), settings)  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        with caplog.at_level(logging.ERROR):
            reply = await client.get("/v0/ready")
    check_envelope(reply, 500, "internal")
    assert "secret" not in reply.text
    assert [(record.name, record.exc_info is not None) for record in caplog.records] == [("topics.http", True)]
    assert list(api.metrics.http.finished) == [("AdminService.GetReady", "5xx")]
    assert api.metrics.http.in_flight == 0


async def test_a_bug_after_the_reply_began_breaks_it_off(drive: Callable[..., Any]) -> None:
    sent = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message["type"])
        if message["type"] == "http.response.body":
            raise RuntimeError("broken pipe")

    _, run = drive("GET", "/v0/health", send=send)
    with pytest.raises(RuntimeError, match="broken pipe"):
        await run
    assert sent == ["http.response.start", "http.response.body"]


async def test_the_gate_comes_before_everything(api: TopicsApi, settings: GatewaySettings) -> None:
    transport = httpx.ASGITransport(create_app(api, settings, Authorizer(KeyRing([]))))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        for method, path in (("GET", "/nothing"), ("PATCH", "/v0/topics"), ("POST", "/v0/topics/t"), ("GET", "/%ff")):
            check_envelope(await client.request(method, path, content=b"x"), 401, "unauthorized")
