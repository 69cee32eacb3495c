"""Spans of a real server, as a collector gets them: of every protocol, with their parents, and without secrets."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx
import pytest
from websockets.sync.client import connect

from support.collector import Collector, tracing
from support.http import Api
from support.kafka_wire import Wire
from support.server import ServerProcess
from support.waiting import poll
from topics_client.installation import install_line
from topics_kafka.protocol import ApiKey
from topics_proto.v1 import admin_service_pb2, admin_service_pb2_grpc, topics_service_pb2_grpc
from topics_proto.v1 import topics_service_pb2 as pb
from topics_proto.v1.record_pb2 import AppendRecord
from topics_proto.v1.topic_pb2 import TopicConfig
from topics_server.tracing import Tracing, TracingError, start

TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{CALLER}-01"
RECORD = "what-is-in-a-record-stays-there"


@pytest.fixture
def http(traced: ServerProcess, secret: str) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {secret}"}
    with httpx.Client(base_url=traced.base, headers=headers, timeout=20, trust_env=False, verify=False) as client:
        yield client


@pytest.fixture
def channel(traced: ServerProcess) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(traced.grpc_target) as channel:
        yield channel


@pytest.fixture
def kafka(traced: ServerProcess, secret: str) -> Iterator[Wire]:
    with Wire(traced.kafka_port, client_id="tracer") as wire:
        wire.authenticate(secret)
        yield wire


def append(http: httpx.Client, topic: str, headers: dict[str, str] | None = None) -> None:
    reply = http.post(f"/v0/topics/{topic}", json={"records": [{"data": RECORD}]}, headers=headers)
    assert reply.status_code in (200, 201), reply.text


def test_http_goes_on_with_the_callers_trace(http: httpx.Client, collector: Collector) -> None:
    http.put("/v0/topics/http-t", json={"durability": "fsync"}).raise_for_status()
    append(http, "http-t", {"traceparent": TRACEPARENT, "tracestate": "vendor=1"})
    span = collector.find("POST /v0/topics/{topic}", messaging_destination_name="http-t")
    assert (span.trace_id, span.parent_id, span.kind, span.failed) == (TRACE, CALLER, "SERVER", False)
    assert span.attributes == {
        "http.request.method": "POST",
        "http.route": "/v0/topics/{topic}",
        "http.response.status_code": 200,
        "url.scheme": "http",
        "network.protocol.version": "1.1",
        "topics.rpc": "TopicsService.Append",
        "messaging.destination.name": "http-t",
    }
    assert collector.children(span) == ["topics.commit.wait", "topics.store.write"]
    for child in collector.spans:
        if child.parent_id == span.span_id:
            assert (child.trace_id, child.kind) == (TRACE, "INTERNAL")
            assert span.ns[0] <= child.ns[0] <= child.ns[1] <= span.ns[1]
    put = collector.find("PUT /v0/topics/{topic}", messaging_destination_name="http-t")
    assert put.parent_id == ""
    assert put.trace_id != TRACE
    created = collector.find("topics.topic.put", topic="http-t")
    assert (created.parent_id, created.attributes["partition_count"]) == (put.span_id, 1)
    assert created.attributes["topic_id"].startswith("top_")
    assert span.resource["service.name"] == "topics"
    assert span.resource["deployment.environment.name"] == "test"


@pytest.mark.parametrize("header", ["", "00-zz-1", "00-" + "0" * 32 + "-" + CALLER + "-01", "x" * 5000])
def test_a_bad_traceparent_begins_a_trace_of_its_own(http: httpx.Client, collector: Collector, header: str) -> None:
    append(http, f"bad-{len(header)}", {"traceparent": header})
    span = collector.find("POST /v0/topics/{topic}", messaging_destination_name=f"bad-{len(header)}")
    assert span.parent_id == ""
    assert int(span.trace_id, 16) > 0


def test_a_caller_that_does_not_sample_is_followed(http: httpx.Client, collector: Collector) -> None:
    append(http, "unsampled", {"traceparent": TRACEPARENT[:-1] + "0"})
    append(http, "sampled", {"traceparent": TRACEPARENT})
    collector.find("POST /v0/topics/{topic}", messaging_destination_name="sampled")
    assert "unsampled" not in [span.attributes.get("messaging.destination.name") for span in collector.spans]


def test_errors_have_their_stable_code(
    http: httpx.Client, channel: grpc.Channel, collector: Collector, secret: str
) -> None:
    assert http.get("/v0/topics/nowhere").status_code == 404
    span = collector.find("GET /v0/topics/{topic}", messaging_destination_name="nowhere")
    assert (span.attributes["error.type"], span.attributes["http.response.status_code"]) == ("topic_not_found", 404)
    assert not span.failed  # it is the caller's
    assert http.get("/v0/topics/refused", headers={"authorization": "Bearer wrong-key"}).status_code == 401
    refused = collector.find("GET /v0/topics/{topic}", messaging_destination_name="refused")
    assert refused.attributes["error.type"] == "unauthorized"
    assert http.get("/v0/nothing/here?token=very-secret").status_code == 404
    assert collector.find("GET", error_type="not_found").attributes.get("http.route") is None
    stub = topics_service_pb2_grpc.TopicsServiceStub(channel)
    metadata = (("authorization", f"Bearer {secret}"),)
    with pytest.raises(grpc.RpcError):
        stub.GetTopic(pb.GetTopicRequest(topic="nowhere-either"), metadata=metadata)
    span = collector.find("topics.v1.TopicsService/GetTopic", messaging_destination_name="nowhere-either")
    assert (span.attributes["error.type"], span.attributes["rpc.grpc.status_code"]) == ("topic_not_found", 5)


def test_grpc_goes_on_with_the_callers_trace(channel: grpc.Channel, collector: Collector, secret: str) -> None:
    stub = topics_service_pb2_grpc.TopicsServiceStub(channel)
    metadata = (("authorization", f"Bearer {secret}"), ("traceparent", TRACEPARENT))
    request = pb.AppendRequest(topic="grpc-t", config=TopicConfig(durable=True))
    request.records.add(data=json.dumps(RECORD).encode())
    stub.Append(request, metadata=metadata)
    span = collector.find("topics.v1.TopicsService/Append", messaging_destination_name="grpc-t")
    assert (span.trace_id, span.parent_id, span.kind) == (TRACE, CALLER, "SERVER")
    assert span.attributes == {
        "rpc.system": "grpc",
        "rpc.service": "topics.v1.TopicsService",
        "rpc.method": "Append",
        "rpc.grpc.status_code": 0,
        "messaging.destination.name": "grpc-t",
    }
    assert "topics.commit.wait" in collector.children(span)
    assert "topics.store.write" in collector.children(span)


def test_kafka_has_the_registrys_names(kafka: Wire, http: httpx.Client, collector: Collector) -> None:
    asked = {"name": "wire-t", "num_partitions": 3, "replication_factor": 1, "assignments": [], "configs": []}
    kafka.call(ApiKey.CREATE_TOPICS, topics=[asked], timeout_ms=5000, validate_only=False)
    request = collector.find("rafka.gateway.kafka.create-topics")
    assert (request.kind, request.attributes["messaging.client.id"]) == ("SERVER", "tracer")
    created = collector.find("rafka.gateway.topic.create.via-wire", topic="wire-t")
    assert (created.parent_id, created.attributes["partition_count"]) == (request.span_id, 3)
    assert created.attributes["topic_id"] == http.get("/v0/topics/wire-t").json()["topic_id"]

    kafka.call(ApiKey.METADATA, 9, topics=[{"name": "auto-t"}], allow_auto_topic_creation=True,
               include_cluster_authorized_operations=False, include_topic_authorized_operations=False)  # fmt: skip
    metadata = collector.find("rafka.gateway.kafka.metadata", messaging_destination_name="auto-t")
    assert metadata.attributes["auto_create"] is True
    made = collector.find("rafka.gateway.topic.create.from-metadata", topic="auto-t")
    assert made.parent_id == metadata.span_id

    resource = {"resource_type": 2, "resource_name": "wire-t", "configuration_keys": None}
    kafka.call(ApiKey.DESCRIBE_CONFIGS, resources=[resource], include_synonyms=False, include_documentation=False)
    collector.find("rafka.gateway.topic.describe-configs")
    kafka.call(ApiKey.ALTER_CONFIGS, resources=[{"resource_type": 2, "resource_name": "wire-t", "configs": []}],
               validate_only=False)  # fmt: skip
    collector.find("rafka.gateway.topic.alter-configs")
    kafka.call(ApiKey.DELETE_TOPICS, 5, topic_names=["wire-t"], timeout_ms=5000)
    deleted = collector.find("rafka.gateway.topic.delete.via-wire", messaging_destination_name="wire-t")
    gone = collector.find("rafka.broker.topic.delete", topic="wire-t")
    assert gone.parent_id == deleted.span_id
    kafka.call(ApiKey.DELETE_TOPICS, 5, topic_names=["wire-t"], timeout_ms=5000)
    again = collector.find("rafka.gateway.topic.delete.via-wire", error_type="UNKNOWN_TOPIC_OR_PARTITION")
    assert again.parent_id == ""


def test_a_stream_is_one_span(
    http: httpx.Client, channel: grpc.Channel, traced: ServerProcess, collector: Collector, secret: str
) -> None:
    for _ in range(5):
        append(http, "streamed")
    metadata = (("authorization", f"Bearer {secret}"),)
    stub = topics_service_pb2_grpc.TopicsServiceStub(channel)
    requests = [
        pb.AppendStreamRequest(append=pb.AppendRequest(topic="streamed", records=[AppendRecord(data=b"1")]))
        for _ in range(7)
    ]
    answers = list(stub.AppendStream(iter(requests), metadata=metadata))
    assert sum(len(answer.acks) for answer in answers) == 7
    span = collector.find("topics.v1.TopicsService/AppendStream")
    assert (span.attributes["topics.stream.received"], span.attributes["topics.stream.sent"]) == (7, len(answers))
    assert collector.children(span) == []

    watch = http.post("/v0/watch", json={"topics": {"streamed": {"from_seq": 0}}}).json()
    with http.stream("GET", watch["stream_url"]) as stream:
        for line in stream.iter_lines():
            if line.startswith("event: caught-up"):
                break
    span = collector.find("GET /v0/watch/{wid}")
    assert span.attributes["topics.stream.sent"] >= 2
    assert watch["wid"] not in str(span.attributes)

    url = traced.base.replace("http", "ws", 1) + "/v0/ws"
    with connect(url, additional_headers={"authorization": f"Bearer {secret}", "traceparent": TRACEPARENT}) as socket:
        socket.send('{"op":"ping"}')
        socket.recv(10)
    span = collector.find("GET /v0/ws")
    assert (span.trace_id, span.parent_id) == (TRACE, CALLER)
    assert (span.attributes["topics.stream.received"], span.attributes["topics.stream.sent"]) == (1, 1)


def test_routers_checkpoints_and_recovery(
    http: httpx.Client, channel: grpc.Channel, collector: Collector, secret: str
) -> None:
    http.put("/v0/routers/traced-r", json={"source": "r-from", "dest": "r-to"}).raise_for_status()
    append(http, "r-from")
    span = collector.find("topics.router.forward", topics_router="traced-r")
    assert span.attributes["topics.router.source"] == "r-from"
    assert span.attributes["messaging.destination.name"] == "r-to"
    assert span.attributes["messaging.batch.message_count"] == 1
    admin = admin_service_pb2_grpc.AdminServiceStub(channel)
    admin.CreateCheckpoint(
        admin_service_pb2.CreateCheckpointRequest(), metadata=(("authorization", f"Bearer {secret}"),)
    )
    call = collector.find("topics.v1.AdminService/CreateCheckpoint")
    assert collector.find("topics.checkpoint.create").parent_id == call.span_id
    assert collector.find("topics.recovery").parent_id == ""


def test_probes_and_scrapes_are_no_spans(http: httpx.Client, collector: Collector) -> None:
    for path in ("/v0/health", "/v0/ready", "/v0/metrics", "/healthz"):
        assert http.get(path).status_code == 200
    append(http, "after-probes")
    collector.find("POST /v0/topics/{topic}", messaging_destination_name="after-probes")
    assert not [span for span in collector.spans if "AdminService.Get" in str(span.attributes)]


def test_no_record_and_no_secret_leaves(
    http: httpx.Client, kafka: Wire, traced: ServerProcess, collector: Collector, secret: str
) -> None:
    append(http, "secrets-t")
    http.get("/v0/watch/none", params={"token": "token-in-the-query"})
    torn = b'{"records":[{"data":"' + RECORD.encode()
    http.post("/v0/topics/secrets-t", content=torn, headers={"content-type": "application/json"})
    with Wire(traced.kafka_port) as wire:
        wire.authenticate("wrong-kafka-password")
    collector.find("rafka.gateway.kafka.sasl-authenticate", error_type="SASL_AUTHENTICATION_FAILED")
    collector.find("GET /v0/watch/{wid}", error_type="not_found")
    collector.find("POST /v0/topics/{topic}", error_type="invalid_request")
    sent = b"".join(collector.bodies)
    assert b"secrets-t" in sent
    for text in (secret, RECORD, "token-in-the-query", "wrong-kafka-password", "collector-sekret"):
        assert text.encode() not in sent, text
        assert text not in traced.log, text


def test_the_trace_is_in_the_counters_and_the_probe_of_them(http: httpx.Client, collector: Collector) -> None:
    append(http, "counted")
    collector.find("POST /v0/topics/{topic}", messaging_destination_name="counted")
    text = http.get("/v0/metrics").text
    exported = float(text.partition('topics_trace_spans_total{state="exported"} ')[2].partition("\n")[0])
    assert exported >= 3


@pytest.mark.parametrize("outage", ["nobody listens", "it refuses", "it hangs"])
def test_a_dead_collector_costs_nothing_but_its_spans(tmp_path: Path, outage: str) -> None:
    with Collector() as collector:
        collector.status = 400 if outage == "it refuses" else 200
        if outage == "it hangs":
            collector.answers.clear()
        endpoint = "http://127.0.0.1:9" if outage == "nobody listens" else collector.endpoint
        env = tracing(endpoint, OTEL_BSP_MAX_QUEUE_SIZE=64, OTEL_BSP_MAX_EXPORT_BATCH_SIZE=32)
        with ServerProcess(tmp_path / outage.replace(" ", "-"), env=env) as server, Api(server.base) as api:
            name = api.make()
            for i in range(200):
                api.append(name, i)
            assert api.state(name)["count"] == 200
            failed = 'topics_trace_spans_total{state="failed"} '
            if outage == "it refuses":
                poll(lambda: not api.send("GET", "/v0/metrics").text.partition(failed)[2].startswith("0.0"), 20)
                assert server.log.count("the collector takes no spans") == 1
            began = time.monotonic()
            assert server.stop() == 0
            assert time.monotonic() - began < 8
            assert "Traceback" not in server.log


def test_what_is_left_goes_out_at_the_end(tmp_path: Path) -> None:
    with Collector() as collector:
        env = tracing(collector.endpoint, OTEL_BSP_SCHEDULE_DELAY="60000", OTEL_SERVICE_NAME="of-my-own")
        with ServerProcess(tmp_path / "server", env=env) as server, Api(server.base) as api:
            api.append(api.make(), 1)
            assert collector.spans == []
            assert server.stop() == 0
        names = [span.name for span in collector.spans]
        assert "topics.recovery" in names
        assert "POST /v0/topics/{topic}" in names
        assert {span.resource["service.name"] for span in collector.spans} == {"of-my-own"}


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER must be one of otlp, console, none, not 'zipkin'"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "OTEL_EXPORTER_OTLP_PROTOCOL must be http/protobuf"),
        ({"OTEL_BSP_MAX_QUEUE_SIZE": "1", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "2"}, "one of the variables OTEL_"),
    ],
)
def test_what_can_not_be_had_is_refused(monkeypatch: pytest.MonkeyPatch, env: dict[str, str], said: str) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(TracingError, match=re.escape(said)):
        start(asked=True)


def test_off_by_the_variables_of_opentelemetry() -> None:
    for env in ({"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none"}):
        assert type(start(env, asked=True)) is Tracing


def test_without_the_extra_the_server_says_what_to_install(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden" / "opentelemetry"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ModuleNotFoundError(name='opentelemetry')\n")
    server = ServerProcess(tmp_path / "server", env={"TOPICS_TRACING": "1", "PYTHONPATH": hidden.parent})
    server.spawn()
    assert server.wait(20) == 1
    install = install_line("tracing")
    assert server.log == f"topics serve: TOPICS_TRACING is set, but opentelemetry is missing: {install}\n"


def test_off_means_that_nothing_is_imported(tmp_path: Path) -> None:
    with Collector() as collector:
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint, "PYTHONPROFILEIMPORTTIME": "1"}
        with ServerProcess(tmp_path / "server", env=env) as server, Api(server.base) as api:
            api.append(api.make(), 1)
            assert server.stop() == 0
        assert " topics_server.tracing\n" in server.log
        assert "opentelemetry" not in server.log
        assert collector.bodies == []
