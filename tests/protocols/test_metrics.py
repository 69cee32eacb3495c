"""The metrics of a real server: they move with what it does."""

import json
import re
import threading
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from support.http import Api, Wire, ok, path, request
from support.server import ServerProcess
from support.waiting import poll
from topics_proto.v1 import admin_service_pb2, admin_service_pb2_grpc

TEXT = "text/plain; version=0.0.4"


class Metrics:
    """The samples of one scrape by name and labels."""

    def __init__(self, text: str) -> None:
        self.samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def __call__(self, name: str, **labels: str) -> float:
        return self.samples.get((f"topics_{name}", frozenset(labels.items())), 0)


def scrape(api: Api) -> Metrics:
    response = api.send("GET", "/v0/metrics")
    assert (response.status_code, response.headers["content-type"]) == (200, TEXT)
    return Metrics(response.text)


@pytest.fixture
def alone(start: Callable[..., ServerProcess]) -> Any:
    """A server of this module only."""
    server = start()
    with Api(server.base) as api:
        yield api


def test_get_head_and_accept(api: Api) -> None:
    text = api.send("GET", "/v0/metrics")
    assert text.headers["content-type"] == TEXT
    head = api.send("HEAD", "/v0/metrics")
    assert (head.status_code, head.headers["content-type"], head.content) == (200, TEXT, b"")
    assert int(head.headers["content-length"]) > 1000
    for accept in ("application/json", "text/html, Application/JSON;q=0.9"):
        found = ok(api.send("GET", "/v0/metrics", headers={"accept": accept}))
        assert found["ready"] is True
        head = api.send("HEAD", "/v0/metrics", headers={"accept": accept})
        assert (head.headers["content-type"], head.content) == ("application/json", b"")
    for accept in ("*/*", "text/plain", "application/openmetrics-text; version=1.0.0"):
        assert api.send("GET", "/v0/metrics", headers={"accept": accept}).headers["content-type"] == TEXT
    assert api.send("POST", "/v0/metrics", {}).status_code == 405
    zipped = api.send("GET", "/v0/metrics", headers={"accept-encoding": "gzip"})
    assert zipped.headers["content-encoding"] == "gzip"
    assert zipped.text.startswith("# HELP topics_topics ")


def test_counters_move_with_writes_and_reads(alone: Api) -> None:
    before = scrape(alone)
    assert (before("topics"), before("ready"), before("recovery_progress")) == (0, 1, 1)
    name = alone.make(durability="fsync")
    for data in (1, 22, 333):
        alone.append(name, data)
    assert len(alone.read(name)["records"]) == 3
    assert alone.get("nope").status_code == 404
    assert alone.send("GET", "/v0/nothing").status_code == 404
    after = scrape(alone)

    def grown(metric: str, **labels: str) -> float:
        return after(metric, **labels) - before(metric, **labels)

    assert grown("topics") == grown("topics_by_class", **{"class": "fsync"}) == 1
    assert (grown("records_live"), grown("bytes_live")) == (3, 6)
    assert after("topic_head_seq", topic=name) == after("topic_records_live", topic=name) == 3
    assert after("topic_earliest_seq", topic=name) == 1
    assert grown("wal_frames_total") >= 4
    assert grown("wal_bytes_written_total") > 100
    # Every call waited for a separate fsync, as there was no other call to share it.
    assert grown("wal_fsyncs_total") == grown("wal_fsync_latency_us_count") >= 4
    assert grown("wal_fsync_latency_us_sum") > 0
    assert grown("commit_group_writes_sum") >= 4
    assert (after("wal_queue_depth"), after("wal_queue_depth_peak"), after("wal_read_only")) == (0, 1, 0)
    assert grown("http_request_seconds_count", rpc="TopicsService.Append", status="2xx") == 3
    assert grown("http_request_seconds_count", rpc="TopicsService.GetTopic", status="4xx") == 1
    assert grown("http_request_seconds_count", rpc="unrouted", status="4xx") == 1
    assert after("http_request_seconds_sum", rpc="TopicsService.Append", status="2xx") > 0
    assert after("http_requests_in_flight") == 1
    assert grown("cache_hits_total", cache="blocks") >= 3
    assert grown("cache_misses_total", cache="renderings") >= 1
    assert after("cache_bytes", cache="blocks") > 0
    assert after("process_resident_memory_bytes") > 10 << 20
    assert after("process_open_fds") > 5
    alone.drop(name)
    assert scrape(alone)("topics") == 0


def test_writes_share_fsyncs(alone: Api) -> None:
    name = alone.make(durability="fsync")

    def load() -> None:
        with Api(alone.base) as api:
            for _ in range(50):
                api.append(name, 1)

    threads = [threading.Thread(target=load) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = scrape(alone)
    assert found("wal_queue_depth_peak") > 1
    assert found("wal_fsyncs_total") < found("commit_group_writes_sum") == found("wal_frames_total")


def test_the_lag_is_measured(alone: Api) -> None:
    found = poll(lambda: found if (found := scrape(alone))("event_loop_lag_measured_ms_count") >= 2 else None)
    assert found is not None
    assert found("event_loop_lag_ms") >= 0


def test_a_long_poll_is_in_flight_and_counts_as_gone_when_its_client_leaves(alone: Api) -> None:
    name = alone.make()
    body = json.dumps({"wait_ms": 30_000, "from_seq": 0}).encode()
    with Wire(int(alone.base.rpartition(":")[2])) as wire:
        wire.send(request("POST", path(name, "/diff"), body))
        poll(lambda: scrape(alone)("http_requests_in_flight") == 2)
    poll(lambda: scrape(alone)("http_request_seconds_count", rpc="TopicsService.Diff", status="gone") == 1)
    assert scrape(alone)("http_requests_in_flight") == 1


def test_both_protocols_tell_the_same(start: Callable[..., ServerProcess]) -> None:
    server = start()
    with Api(server.base) as api, grpc.insecure_channel(server.grpc_target) as channel:
        api.append(api.make(), 1, 2)
        admin = admin_service_pb2_grpc.AdminServiceStub(channel)
        text = admin.GetMetrics(admin_service_pb2.GetMetricsRequest())
        assert text.content_type == TEXT
        assert Metrics(text.body.decode())("records_live") == scrape(api)("records_live") == 2
        asked = admin_service_pb2.GetMetricsRequest(format=admin_service_pb2.METRICS_FORMAT_JSON)
        found = admin.GetMetrics(asked)
        over_http = ok(api.send("GET", "/v0/metrics", headers={"accept": "application/json"}))
        steady = [key for key in over_http if key not in ("uptime_ms", "wal")]
        assert [json.loads(found.body)[key] for key in steady] == [over_http[key] for key in steady]
        counted = Metrics(admin.GetMetrics(admin_service_pb2.GetMetricsRequest()).body.decode())
        assert counted("grpc_call_seconds_count", rpc="AdminService.GetMetrics", code="OK") == 2


def test_labels_are_bounded(api: Api) -> None:
    for i in range(20):
        api.send("GET", f"/v0/nothing/{i}")
        api.send("GET", path(f"no-topic-{i}"))
    names = {dict(labels).get("rpc", "unrouted") for _, labels in scrape(api).samples}
    assert all(re.fullmatch(r"unrouted|WebSocket|[A-Z]\w+Service\.[A-Z]\w+", name) for name in names), names
