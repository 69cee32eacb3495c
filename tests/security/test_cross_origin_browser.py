"""Pages of other origins in a real browser: a listed one uses the whole HTTP API, another one gets nowhere."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import pytest

from support.browser import CHROMIUM, Page, open_browser
from support.http import Api
from support.server import ServerProcess

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")

# What the pages have in common. `api` gives [status, body, request id], or the name of what went wrong.
SCRIPT = """
globalThis.api = async (method, url, body, headers = {}) => {
  if (body != null) headers = { "Content-Type": "application/json", ...headers };
  try {
    const reply = await fetch(url, { method, headers, body: body && JSON.stringify(body) });
    return [reply.status, await reply.json(), reply.headers.get("x-request-id"), reply.headers.get("retry-after")];
  } catch (error) {
    return error.name;
  }
};
globalThis.events = (url, wanted) => new Promise((done) => {
  const seen = [], source = new EventSource(url);
  source.addEventListener("record", (event) => {
    seen.push(...JSON.parse(event.data).records.map((record) => record.data));
    if (seen.length >= wanted) done(seen) || source.close();
  });
  source.addEventListener("error", () => done(["error"]) || source.close());
});
globalThis.socket = (url, commands) => new Promise((done) => {
  const ops = [], socket = new WebSocket(url);
  socket.onopen = () => commands.forEach((command) => socket.send(JSON.stringify(command)));
  socket.onmessage = (event) => {
    ops.push(JSON.parse(event.data).op);
    if (ops.includes("record")) done(ops) || socket.close();
  };
  socket.onerror = () => done(["error"]);
});
0
"""


class Site(NamedTuple):
    """Two servers, and a page of each origin."""

    unkeyed: ServerProcess
    keyed: ServerProcess
    listed: Page
    other: Page


class _Empty(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>a page</title>")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("site")
    with ThreadingHTTPServer(("127.0.0.1", 0), _Empty) as pages:
        threading.Thread(target=pages.serve_forever).start()
        try:
            app, evil = (f"http://{name}.example:{pages.server_port}" for name in ("app", "evil"))
            env = {"TOPICS_CORS_ORIGINS": app}
            with (
                ServerProcess(directory / "unkeyed", env=env) as unkeyed,
                ServerProcess(directory / "keyed", env={**env, "TOPICS_API_KEYS": "k,r:read:"}) as keyed,
                open_browser(directory, "--host-resolver-rules=MAP *.example 127.0.0.1") as browser,
            ):
                listed, other = (Page(browser, f"{origin}/") for origin in (app, evil))
                for page in (listed, other):
                    page.run(SCRIPT)
                yield Site(unkeyed, keyed, listed, other)
        finally:
            pages.shutdown()


def call(page: Page, function: str, *arguments: Any) -> Any:
    """The outcome of one of the script's functions."""
    return page.run(f"{function}({', '.join(json.dumps(each) for each in arguments)})")


def test_a_listed_page_calls_without_a_key(site: Site) -> None:
    base, page = site.unkeyed.base, site.listed
    url = f"{base}/v0/topics/plain"
    headers = {"Idempotency-Key": "once", "X-Request-Id": "page-1"}
    status, body, request_id, _ = call(page, "api", "POST", url, {"records": [{"data": "a"}]}, headers)
    assert (status, body["seqs"], request_id) == (201, [1], "page-1")
    status, body, *_ = call(page, "api", "POST", url, {"records": [{"data": "a"}]}, headers)
    assert (status, body["deduped"]) == (200, True)
    status, body, *_ = call(page, "api", "POST", f"{url}/diff", {"from_seq": 0})
    assert [record["data"] for record in body["records"]] == ["a"]
    assert call(page, "api", "PUT", url, {"cap_records": 5})[0] == 200
    status, body, *_ = call(page, "api", "GET", f"{base}/v0/topics/none")
    assert (status, body["error"]["code"]) == (404, "topic_not_found")
    assert call(page, "api", "DELETE", url)[0] == 200


def test_a_listed_page_calls_with_a_key(site: Site) -> None:
    url, page = f"{site.keyed.base}/v0/topics/keyed", site.listed
    key = {"Authorization": "Bearer k"}
    assert call(page, "api", "POST", url, {"records": [{"data": 1}]}, key)[0] == 201
    for headers, status in (({}, 401), ({"Authorization": "Bearer wrong"}, 401), ({"Authorization": "Bearer r"}, 403)):
        assert call(page, "api", "POST", url, {"records": [{"data": 1}]}, headers)[0] == status
    assert call(page, "api", "GET", url, None, key)[1]["head_seq"] == 1


@pytest.mark.parametrize("keys", [False, True], ids=["without keys", "with a key"])
def test_a_listed_page_follows_events(site: Site, keys: bool) -> None:
    server, page = site.keyed if keys else site.unkeyed, site.listed
    headers = {"Authorization": "Bearer k"} if keys else {}
    url = f"{server.base}/v0/topics/followed"
    assert call(page, "api", "POST", url, {"records": [{"data": "a"}, {"data": "b"}]}, headers)[0] == 201
    session = call(page, "api", "POST", f"{server.base}/v0/watch", {"topics": {"followed": {}}}, headers)[1]
    stream = server.base + session["stream_url"] + ("?token=k" if keys else "")
    assert call(page, "events", stream, 2) == ["a", "b"]


def test_a_listed_page_opens_a_socket(site: Site) -> None:
    commands = [{"op": "publish", "topic": "socket", "records": [{"data": 1}]}, {"op": "subscribe", "topic": "socket"}]
    url = site.unkeyed.base.replace("http", "ws") + "/v0/ws"
    assert call(site.listed, "socket", url, commands) == ["ack", "subscribed", "record"]


def test_another_page_gets_nowhere(site: Site) -> None:
    """The browser lets it read nothing, and the server without keys does nothing for it."""
    for server in (site.unkeyed, site.keyed):
        url = f"{server.base}/v0/topics/other"
        headers = {"Authorization": "Bearer k"} if server is site.keyed else {}
        assert call(site.other, "api", "POST", url, {"records": [{"data": 1}]}, headers) == "TypeError"
        assert call(site.other, "api", "GET", f"{server.base}/v0/health") == "TypeError"
    with Api(site.unkeyed.base) as api:
        assert api.get("other").status_code == 404
        api.append("secret", 1)
        session = api.send("POST", "/v0/watch", {"topics": {"secret": {}}}).json()
    assert call(site.other, "events", site.unkeyed.base + session["stream_url"], 1) == ["error"]
    assert call(site.other, "socket", site.unkeyed.base.replace("http", "ws") + "/v0/ws", []) == ["error"]
