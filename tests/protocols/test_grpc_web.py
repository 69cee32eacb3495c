"""gRPC-Web on the HTTP port: what comes over the wire, and the generated TypeScript client in Node and in a browser."""

import base64
import json
import shutil
import signal
import struct
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from support.browser import CHROMIUM, Page, open_browser
from support.http import Wire
from support.server import ServerProcess
from support.waiting import poll
from topics_proto.v1 import queue_service_pb2, record_pb2, watch_service_pb2
from topics_proto.v1 import topics_service_pb2 as pb

ROOT = Path(__file__).parents[2]
CLIENTS = ROOT / "tests/clients"
PACKAGES = CLIENTS / "node_modules"
NODE = shutil.which("node")
TYPE = "application/grpc-web+proto"
OK, INVALID, DEADLINE, NOT_FOUND, DENIED, EXHAUSTED, UNIMPLEMENTED, UNAUTHENTICATED = 0, 3, 4, 5, 7, 8, 12, 16
KEY = {"authorization": "Bearer k"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("web")
    env = {
        "TOPICS_API_KEYS": "k,r:read:mine:,one max_in_flight=1",
        "TOPICS_MAX_BODY_BYTES": 100_000,
        "TOPICS_AUDIT_LOG": directory / "audit",
        "TOPICS_TEST_MIN_HEARTBEAT_MS": 50,
    }
    with ServerProcess(directory, env=env) as server:
        yield server
        assert server.stop() == 0
        assert "Traceback" not in server.log


@pytest.fixture(params=["HTTP/1.1", "HTTP/2"])
def http(request: pytest.FixtureRequest, server: ServerProcess) -> Iterator[httpx.Client]:
    http2 = request.param == "HTTP/2"
    with httpx.Client(
        base_url=server.base, http1=not http2, http2=http2, trust_env=False, verify=False, timeout=20
    ) as client:
        yield client


class Answer(NamedTuple):
    """The messages of a response, and the status in its last frame."""

    messages: list[bytes]
    trailers: dict[str, str]

    @property
    def code(self) -> int:
        return int(self.trailers["grpc-status"])

    @property
    def reason(self) -> str:
        """The stable code in the details."""
        status = status_pb2.Status.FromString(base64.b64decode(self.trailers["grpc-status-details-bin"]))
        assert status.code == self.code
        info = error_details_pb2.ErrorInfo()
        assert status.details[0].Unpack(info)
        return str(info.reason)


def framed(message: Message | bytes, flags: int = 0) -> bytes:
    data = message if isinstance(message, bytes) else message.SerializeToString()
    return struct.pack(">BI", flags, len(data)) + data


def parsed(body: bytes) -> Answer:
    messages = []
    while True:
        flags, size = struct.unpack_from(">BI", body)
        data, body = body[5 : 5 + size], body[5 + size :]
        assert len(data) == size
        if flags:
            assert flags == 0x80
            assert body == b""
            lines = data.decode().removesuffix("\r\n").split("\r\n")
            return Answer(messages, dict(line.split(": ", 1) for line in lines))
        messages.append(data)


def call(http: httpx.Client, method: str, request: Message | bytes, **headers: str) -> Answer:
    """One call with a key, `method` as `Service/Method`; `headers` with `_` for `-`."""
    fields = {**KEY, "content-type": TYPE} | {name.replace("_", "-"): value for name, value in headers.items()}
    content = request if isinstance(request, bytes) else framed(request)
    reply = http.post(f"/topics.v1.{method}", content=content, headers=fields)
    assert reply.status_code == 200
    assert reply.headers["content-type"] == TYPE
    return parsed(reply.content)


def append(http: httpx.Client, topic: str, *datas: bytes) -> pb.AppendResponse:
    request = pb.AppendRequest(topic=topic, records=[record_pb2.AppendRecord(data=data) for data in datas])
    answer = call(http, "TopicsService/Append", request)
    assert answer.code == OK
    return pb.AppendResponse.FromString(answer.messages[0])


def open_streams(http: httpx.Client) -> float:
    text = http.get("/v0/metrics", headers=KEY).text
    [value] = [line.split()[1] for line in text.splitlines() if line.startswith("topics_sse_connections ")]
    return float(value)


def test_a_unary_call(http: httpx.Client) -> None:
    first = append(http, "unary", b"1", b"2").seqs[0]
    answer = call(http, "TopicsService/Diff", pb.DiffRequest(topic="unary", from_seq=first), content_type=f"{TYPE};a=b")
    assert answer.trailers == {"grpc-status": "0", "grpc-message": ""}
    [message] = answer.messages
    assert [record.data for record in pb.DiffResponse.FromString(message).records] == [b"2"]


def test_a_stream(http: httpx.Client) -> None:
    """It comes as it is made, and ends with its client's deadline."""
    append(http, "stream", b"1")
    subscription = watch_service_pb2.WatchSubscription(topics={"stream": watch_service_pb2.WatchTopic(tail=True)})
    subscription.heartbeat_ms = 50
    request = framed(watch_service_pb2.WatchRequest(subscription=subscription))
    fields = {**KEY, "content-type": TYPE, "grpc-timeout": "2S", "x-request-id": "mine"}
    with http.stream("POST", "/topics.v1.WatchService/Watch", content=request, headers=fields) as reply:
        assert reply.headers["x-request-id"] == "mine"
        body = b""
        for piece in reply.iter_raw():
            if not body:
                append(http, "stream", b'"live"')
            body += piece
    answer = parsed(body)
    kinds = [watch_service_pb2.WatchResponse.FromString(each).frame.WhichOneof("kind") for each in answer.messages]
    assert kinds[0] == "subscribed"
    assert {"records", "heartbeat"} <= set(kinds)
    assert answer.code == DEADLINE


def test_a_stream_that_its_client_leaves_is_closed(http: httpx.Client, server: ServerProcess) -> None:
    append(http, "left", b"1")
    subscription = watch_service_pb2.WatchSubscription(topics={"left": watch_service_pb2.WatchTopic()})
    request = framed(watch_service_pb2.WatchRequest(subscription=subscription))
    with httpx.Client(base_url=server.base, trust_env=False, verify=False) as another:
        fields = {**KEY, "content-type": TYPE}
        with another.stream("POST", "/topics.v1.WatchService/Watch", content=request, headers=fields) as reply:
            pieces = reply.iter_raw()  # which would end the request if it were dropped
            next(pieces)
            assert open_streams(http) == 1
    poll(lambda: open_streams(http) == 0, 20)


def test_errors_have_their_status_and_reason(http: httpx.Client) -> None:
    answer = call(http, "TopicsService/GetTopic", pb.GetTopicRequest(topic="50% \u00e4\n"))
    assert (answer.code, answer.reason, answer.messages) == (NOT_FOUND, "TOPIC_NOT_FOUND", [])
    assert answer.trailers["grpc-message"] == 'topic "50%25 %C3%A4%0A" does not exist'
    for key, code in (("Bearer none", UNAUTHENTICATED), ("", UNAUTHENTICATED), ("Bearer r", DENIED)):
        answer = call(http, "TopicsService/DeleteTopic", pb.DeleteTopicRequest(topic="unary"), authorization=key)
        assert answer.code == code
    answer = call(http, "TopicsService/GetTopic", pb.GetTopicRequest(topic="unary"), authorization="Bearer r")
    assert answer.code == DENIED
    answer = call(http, "QueueService/Claim", queue_service_pb2.ClaimRequest(topic="mine:q"), authorization="Bearer r")
    assert answer.code == DENIED


def test_what_is_no_request_changes_nothing(http: httpx.Client) -> None:
    message = pb.AppendRequest(topic="never", records=[record_pb2.AppendRecord(data=b"1")])
    whole = framed(message)
    for body in (b"", whole[:4], whole[:-1], whole + b"\0", whole + whole, framed(message, 0x80), framed(b"\xff")):
        answer = call(http, "TopicsService/Append", body)
        assert (answer.code, answer.reason) == (INVALID, "INVALID_REQUEST")
    answer = call(http, "TopicsService/Append", framed(message, 1))
    assert "compressed" in answer.trailers["grpc-message"]
    for timeout in ("", "1", "S", "-1S", "1s", "123456789S", "1 S"):
        assert call(http, "TopicsService/Append", whole, grpc_timeout=timeout).code == INVALID
    too_large = pb.AppendRequest(topic="never", records=[record_pb2.AppendRecord(data=b"1" * 100_000)])
    answer = call(http, "TopicsService/Append", too_large)
    assert (answer.code, answer.reason) == (EXHAUSTED, "PAYLOAD_TOO_LARGE")
    assert call(http, "TopicsService/GetTopic", pb.GetTopicRequest(topic="never")).code == NOT_FOUND


def test_methods_that_are_not_served(http: httpx.Client) -> None:
    """Those that take a stream, those that do not exist, and other services."""
    for method in ("TopicsService/AppendStream", "TopicsService/Nothing", "TopicsService", "Nothing/GetTopic"):
        assert call(http, method, b"").code == UNIMPLEMENTED
    assert call(http, "TopicsService/Nothing", b"", authorization="").code == UNAUTHENTICATED
    for path, content_type, method, status in (
        ("/grpc.health.v1.Health/Check", TYPE, "POST", 404),
        ("/topics.v1.TopicsService/GetTopic", "application/grpc-web-text", "POST", 404),
        ("/topics.v1.TopicsService/GetTopic", "application/json", "POST", 404),
        ("/topics.v1.TopicsService/GetTopic", TYPE, "GET", 404),
    ):
        reply = http.request(method, path, headers={**KEY, "content-type": content_type})
        assert reply.status_code == status
        assert reply.json()["error"]["code"] == "not_found"


def test_the_deadline_of_a_call(http: httpx.Client) -> None:
    head = append(http, "late", b"1").head_seq
    request = pb.DiffRequest(topic="late", from_seq=head, wait_ms=10_000)
    answer = call(http, "TopicsService/Diff", request, grpc_timeout="200m")
    assert (answer.code, answer.messages) == (DEADLINE, [])


def test_the_limits_of_a_key_count(http: httpx.Client, server: ServerProcess) -> None:
    head = append(http, "limited", b"1").head_seq
    waiting = pb.DiffRequest(topic="limited", from_seq=head, wait_ms=20_000)
    fields = {"content-type": TYPE, "authorization": "Bearer one"}
    body = framed(waiting)
    lines = ["POST /topics.v1.TopicsService/Diff HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in fields.items()]
    with Wire(server.http_port) as wire:
        wire.send("\r\n".join([*lines, "", ""]).encode() + body)
        answer = call(http, "TopicsService/GetTopic", pb.GetTopicRequest(topic="limited"), authorization="Bearer one")
        while answer.code == OK:  # until the other one has come
            answer = call(
                http, "TopicsService/GetTopic", pb.GetTopicRequest(topic="limited"), authorization="Bearer one"
            )
    assert (answer.code, answer.reason) == (EXHAUSTED, "THROTTLED")


def test_calls_are_counted_and_audited(http: httpx.Client, server: ServerProcess) -> None:
    append(http, "audited", b"1")
    assert call(http, "TopicsService/DeleteTopic", pb.DeleteTopicRequest(topic="audited")).code == OK
    metrics = http.get("/v0/metrics", headers=KEY).text
    assert 'topics_grpc_call_seconds_count{code="OK",rpc="TopicsService.DeleteTopic"}' in metrics
    lines = [json.loads(line) for line in (server.work_dir / "audit").read_text().splitlines()]
    deleted = [line for line in lines if line["action"] == "topic.delete" and line["topic"] == "audited"]
    assert deleted
    assert (deleted[-1]["door"], deleted[-1]["outcome"]) == ("grpc", "done")
    assert deleted[-1]["peer"].startswith("127.0.0.1:")


def test_pages_of_others_get_nothing_without_keys(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server, httpx.Client(base_url=server.base, trust_env=False, verify=False) as http:
        append(http, "t", b"1")
        for headers in ({"origin": "http://evil.example"}, {"sec_fetch_site": "cross-site"}, {"host": "evil.example"}):
            answer = call(http, "TopicsService/DeleteTopic", pb.DeleteTopicRequest(topic="t"), **headers)
            assert (answer.code, answer.reason) == (DENIED, "FORBIDDEN")
        assert call(http, "TopicsService/GetTopic", pb.GetTopicRequest(topic="t")).code == OK


def test_a_stream_ends_with_its_key(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("k\nstays\n")
    subscription = watch_service_pb2.WatchSubscription(topics={"t": watch_service_pb2.WatchTopic()})
    request = framed(watch_service_pb2.WatchRequest(subscription=subscription))
    with (
        ServerProcess(tmp_path / "server", env={"TOPICS_API_KEYS_FILE": keys}) as server,
        httpx.Client(base_url=server.base, trust_env=False, verify=False, timeout=20) as http,
    ):
        append(http, "t", b"1")
        fields = {**KEY, "content-type": TYPE}
        with http.stream("POST", "/topics.v1.WatchService/Watch", content=request, headers=fields) as reply:
            pieces = reply.iter_raw()
            next(pieces)
            keys.write_text("stays\n")
            server.signal(signal.SIGHUP)
            with pytest.raises(httpx.RemoteProtocolError):  # as event streams do
                list(pieces)
        assert call(http, "TopicsService/GetTopic", pb.GetTopicRequest(topic="t")).code == UNAUTHENTICATED
        stays = call(http, "TopicsService/GetTopic", pb.GetTopicRequest(topic="t"), authorization="Bearer stays")
        assert stays.code == OK
        assert "Traceback" not in server.log


# ------------------------------------------------------------------------------ the TypeScript client

IMPORTS = {
    "@bufbuild/protobuf": "protobuf/dist/esm/index.js",
    "@bufbuild/protobuf/codegenv2": "protobuf/dist/esm/codegenv2/index.js",
    "@bufbuild/protobuf/reflect": "protobuf/dist/esm/reflect/index.js",
    "@bufbuild/protobuf/wire": "protobuf/dist/esm/wire/index.js",
    "@bufbuild/protobuf/wkt": "protobuf/dist/esm/wkt/index.js",
    "@connectrpc/connect": "connect/dist/esm/index.js",
    "@connectrpc/connect/protocol": "connect/dist/esm/protocol/index.js",
    "@connectrpc/connect/protocol-connect": "connect/dist/esm/protocol-connect/index.js",
    "@connectrpc/connect/protocol-grpc": "connect/dist/esm/protocol-grpc/index.js",
    "@connectrpc/connect/protocol-grpc-web": "connect/dist/esm/protocol-grpc-web/index.js",
    "@connectrpc/connect-web": "connect-web/dist/esm/index.js",
}
ERROR_INFO = "google.rpc.ErrorInfo"
VISITED = {
    "seqs": [1, 2],
    "followed": ["subscribed", "records", "caughtUp"],
    "unknown": ["NotFound", 'topic "no such 50% \u00e4" does not exist', [ERROR_INFO]],
    "late": ["DeadlineExceeded"],
    "stranger": ["Unauthenticated", "missing or unknown API key", [ERROR_INFO]],
    "datas": ['"a"', '"b"'],
}


@pytest.fixture
def client_files(tmp_path: Path) -> Path:
    """A directory with the script and what it imports."""
    if not (PACKAGES / "@connectrpc").exists():
        pytest.skip("no @connectrpc in tests/clients/node_modules: npm ci --prefix tests/clients")
    files = tmp_path / "files"
    shutil.copytree(ROOT / "sdk/generated/ts/lib", files / "lib")
    shutil.copy(CLIENTS / "grpc_web.mjs", files)
    (files / "node_modules").symlink_to(PACKAGES)
    return files


def check_visit(visited: dict[str, Any]) -> None:
    visited["late"] = visited["late"][:1]
    assert visited == VISITED


@pytest.mark.skipif(NODE is None, reason="node is not installed")
def test_the_typescript_client_in_node(client_files: Path, server: ServerProcess) -> None:
    (client_files / "main.mjs").write_text(
        'import { visit } from "./grpc_web.mjs";\n'
        "console.log(JSON.stringify(await visit(...process.argv.slice(2))));\n"
        "process.exit(0);\n"
    )
    command = [str(NODE), "main.mjs", server.base, "from-node", "k"]
    done = subprocess.run(command, cwd=client_files, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    check_visit(json.loads(done.stdout))


class _Files(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_the_typescript_client_in_a_page_of_another_origin(client_files: Path, tmp_path: Path) -> None:
    imports = {name: f"/node_modules/@{name[1:].partition('/')[0]}/{path}" for name, path in IMPORTS.items()}
    (client_files / "index.html").write_text(
        f'<!doctype html><script type="importmap">{json.dumps({"imports": imports})}</script>'
        '<script type="module">import { visit } from "./grpc_web.mjs"; globalThis.visit = visit;</script>'
    )
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Files, directory=str(client_files))) as pages:
        threading.Thread(target=pages.serve_forever).start()
        try:
            origin = f"http://app.example:{pages.server_port}"
            env = {"TOPICS_API_KEYS": "k", "TOPICS_CORS_ORIGINS": origin}
            with (
                ServerProcess(tmp_path / "server", env=env) as server,
                open_browser(tmp_path, "--host-resolver-rules=MAP *.example 127.0.0.1") as browser,
            ):
                page = Page(browser, f"{origin}/")
                check_visit(page.run(f"visit({json.dumps(server.base)}, 'from-a-page', 'k')"))
        finally:
            pages.shutdown()
