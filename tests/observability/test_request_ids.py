"""Lines of the log say which request they belong to, in text and JSON; clients can choose the id and nothing else."""

import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import pytest

from support.collector import Collector
from support.kafka_wire import Wire
from support.server import ServerProcess
from support.waiting import poll
from topics_gateway import GatewaySettings, create_app
from topics_kafka.protocol import ErrorCode
from topics_proto.v1 import admin_service_pb2, admin_service_pb2_grpc
from topics_server.logs import JsonFormatter, TextFormatter, within_request
from topics_server.settings import SettingsError, load
from topics_service.api.request_context import KafkaRequest, RequestContext, begin, begin_call, current_request
from topics_service.api.scheduling.commit import GroupCommit
from topics_service.api.topics import TopicsApi
from topics_service.engine.clock import SystemClock
from topics_service.engine.engine import Engine
from topics_service.storage.memory import MemoryStore

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
MALFORMED = ["", "a b", 'quo"te', "new\nline", "tab\t", "ünï", "x" * 129, "<script>", "a;b", "a,b"]


def lines(server: ServerProcess) -> list[dict[str, Any]]:
    """The lines of a log of JSON; each is one object."""
    return [json.loads(line) for line in server.log.splitlines()]


def line(server: ServerProcess, logger: str, start: str) -> dict[str, Any]:
    """The newest line of a logger that begins so, once it is there."""

    def found() -> dict[str, Any] | None:
        those = [each for each in lines(server) if each["logger"] == logger and each["message"].startswith(start)]
        return those[-1] if those else None

    there: dict[str, Any] | None = poll(found, 20, f"a line of {logger}")
    assert there is not None
    return there


def test_a_grpc_call_in_the_log_and_back(traced: ServerProcess, secret: str, collector: Collector) -> None:
    metadata = (("authorization", f"Bearer {secret}"), ("x-request-id", "op-42.a"), ("traceparent", TRACEPARENT))
    with grpc.insecure_channel(traced.grpc_target) as channel:
        admin = admin_service_pb2_grpc.AdminServiceStub(channel)
        _, call = admin.CreateCheckpoint.with_call(admin_service_pb2.CreateCheckpointRequest(), metadata=metadata)
        assert dict(call.initial_metadata())["x-request-id"] == "op-42.a"
        _, call = admin.CreateCheckpoint.with_call(admin_service_pb2.CreateCheckpointRequest(), metadata=metadata[:1])
        assert "x-request-id" not in dict(call.initial_metadata())
    told = [each for each in lines(traced) if each["logger"] == "topics.checkpoints" and "request" in each]
    given = next(each for each in told if each["request"] == "op-42.a")
    assert (given["level"], given["trace"]) == ("info", TRACE)
    made_up = told[-1]["request"]
    assert made_up != "op-42.a"
    assert RequestContext("http", None, made_up).text == begin(made_up).text == made_up


def test_a_kafka_request_in_the_log(traced: ServerProcess, collector: Collector) -> None:
    with Wire(traced.kafka_port) as wire:
        assert wire.authenticate("not-the-password")["error_code"] == ErrorCode.SASL_AUTHENTICATION_FAILED
        port = wire.socket.getsockname()[1]
    told = line(traced, "topics.kafka", "SASL authentication")
    assert told["request"] == f"127.0.0.1:{port}/2"
    span = collector.find("rafka.gateway.kafka.sasl-authenticate", error_type="SASL_AUTHENTICATION_FAILED")
    assert told["trace"] == span.trace_id


def test_http_answers_with_the_id_it_was_given(traced: ServerProcess, secret: str) -> None:
    key = {"authorization": f"Bearer {secret}"}
    with httpx.Client(base_url=traced.base, headers=key, timeout=20, trust_env=False, verify=False) as client:
        for path, status in (("/v0/topics", 200), ("/v0/topics/none-such", 404), ("/v0/health", 200)):
            reply = client.get(path, headers={"x-request-id": "web/7:~x"})
            assert (reply.status_code, reply.headers.get_list("x-request-id")) == (status, ["web/7:~x"])
            assert "x-request-id" not in client.get(path).headers
        refused = client.get("/v0/topics", headers={"x-request-id": "no-key", "authorization": "Bearer wrong"})
        assert (refused.status_code, refused.headers["x-request-id"]) == (401, "no-key")
        for bad in ("a b", 'quo"te', "x" * 129, "a;b"):
            assert "x-request-id" not in client.get("/v0/topics", headers={"x-request-id": bad}).headers, bad


@pytest.fixture
async def broken() -> Any:
    """The HTTP API in front of an api with a bug."""
    engine = Engine(MemoryStore(), SystemClock())
    commit = GroupCommit.for_engine(engine)
    api = TopicsApi(engine, commit)

    async def get_topic(*_: Any, **__: Any) -> None:
        raise RuntimeError("a bug\nof two lines")

    api.get_topic = get_topic  # type: ignore[assignment,method-assign]
    transport = httpx.ASGITransport(create_app(api, GatewaySettings()))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client
    commit.stop()


class Lines(logging.Handler):
    """Keeps what is logged, in both formats."""

    def __init__(self) -> None:
        super().__init__()
        self.addFilter(within_request)
        self.text: list[str] = []
        self.json: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.text.append(TextFormatter("%(levelname)s %(name)s: %(message)s").format(record))
        self.json.append(json.loads(JsonFormatter().format(record)))


@pytest.fixture
def said() -> Iterator[Lines]:
    handler = Lines()
    logging.getLogger("topics").addHandler(handler)
    yield handler
    logging.getLogger("topics").removeHandler(handler)


async def test_a_bug_behind_http_is_logged_with_its_request(broken: httpx.AsyncClient, said: Lines) -> None:
    reply = await broken.get("/v0/topics/t", headers={"x-request-id": "find-me"})
    assert (reply.status_code, reply.headers["x-request-id"]) == (500, "find-me")
    first, *below = said.text[0].splitlines()
    assert first == "ERROR topics.http: GET '/v0/topics/t' failed request=find-me"
    assert below[0] == "Traceback (most recent call last):"
    assert (said.json[0]["request"], "trace" in said.json[0]) == ("find-me", False)
    assert said.json[0]["exception"].endswith("RuntimeError: a bug\nof two lines")
    other = await broken.get("/v0/topics/t")
    assert (other.status_code, "x-request-id" in other.headers) == (500, False)
    assert said.json[1]["request"] not in ("", "find-me")


def test_http2_and_streams_answer_with_it_too(traced: ServerProcess, secret: str) -> None:
    headers = {"authorization": f"Bearer {secret}", "x-request-id": "over-2"}
    with httpx.Client(base_url=traced.base, headers=headers, timeout=20, http1=False, http2=True) as client:
        reply = client.get("/v0/topics")
        assert (reply.http_version, reply.headers["x-request-id"]) == ("HTTP/2", "over-2")
    with httpx.Client(base_url=traced.base, headers=headers, timeout=20, trust_env=False, verify=False) as client:
        client.put("/v0/topics/id-t", json={}).raise_for_status()
        watch = client.post("/v0/watch", json={"topics": {"id-t": {}}}).json()
        with client.stream("GET", watch["stream_url"]) as stream:
            assert stream.headers.get_list("x-request-id") == ["over-2"]
            assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"


def test_only_well_formed_ids_are_taken() -> None:
    for bad in MALFORMED:
        request = begin(bad.encode())
        assert request.given is None
        assert request.text == request.text  # made once
        assert request.text != begin(None).text
        assert begin_call((("x-request-id", bad),)).given is None
    for good in ("a", "x" * 128, "A-Z_0.9~:@/+="):
        assert begin(good.encode()).text == begin_call((("x-request-id", good),)).text == good
    assert begin_call((("x-request-id", b"binary"), ("x", "y"))).given == "binary"
    assert KafkaRequest("127.0.0.1:5", 7).text == "127.0.0.1:5/7"


def test_a_line_can_not_be_forged() -> None:
    token = current_request.set(None)
    try:
        record = logging.LogRecord("topics.x", logging.INFO, "", 1, "name %r", ("a\nb",), None)
        assert within_request(record)
        assert TextFormatter("%(message)s").format(record) == r"name 'a\nb'"
        forged = logging.LogRecord("topics.x", logging.INFO, "", 1, 'a\n{"level":"critical"}', (), None)
        assert "\n" not in JsonFormatter().format(forged)
    finally:
        current_request.reset(token)


def test_the_format_is_text_or_json() -> None:
    assert load({}, {}).log_format == "text"
    assert load({"TOPICS_LOG_FORMAT": "json"}, {}).log_format == "json"
    with pytest.raises(SettingsError, match="TOPICS_LOG_FORMAT='xml' is not one of text, json"):
        load({"TOPICS_LOG_FORMAT": "xml"}, {})


def test_an_exception_of_one_line_in_json() -> None:
    try:
        raise ValueError("x")
    except ValueError:
        record = logging.LogRecord("topics.x", logging.ERROR, "", 1, "it failed", (), sys.exc_info())
    text = JsonFormatter().format(record)
    assert "\n" not in text
    assert json.loads(text)["exception"].startswith("Traceback")
    assert set(json.loads(text)) == {"ts", "time", "level", "logger", "message", "exception"}
