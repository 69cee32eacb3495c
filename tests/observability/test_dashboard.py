"""The Grafana dashboard and the alert rules ask for metrics that a real server has, with labels that those have."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from support.http import Api
from support.kafka_wire import Wire
from support.server import ServerProcess
from topics_kafka.protocol import ApiKey
from topics_proto.v1 import admin_service_pb2, admin_service_pb2_grpc
from topics_service.api.metrics import families
from topics_service.api.metrics.exposition import render
from topics_service.statistics import NodeStatistics, ShardStatistics

HERE = Path(__file__).parents[2] / "docs" / "grafana"
DASHBOARD = json.loads((HERE / "topics.json").read_text())
RULES = [rule for group in yaml.safe_load((HERE / "alerts.yaml").read_text())["groups"] for rule in group["rules"]]
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
OF_PROMETHEUS = {"instance", "job"}  # labels that a scrape adds
METRIC = re.compile(r"\b(topics_\w+)(\{[^}]*\})?")
SELECTED = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
GROUPED = re.compile(r"\b(?:by|without) \(([^)]*)\)")

Names = dict[str, set[str]]


@pytest.fixture(scope="module")
def exposed(plain: ServerProcess) -> Names:
    """The labels of every series of a server that has done a bit of everything."""
    with Api(plain.base) as api, grpc.insecure_channel(plain.grpc_target) as channel, Wire(plain.kafka_port) as wire:
        api.append(api.make(durability="fsync"), 1)
        api.make(type="queue")
        api.get("no-such-topic")
        api.append("dash-from", 1)
        assert api.send("PUT", "/v0/routers/dash", {"source": "dash-from", "dest": "dash-to"}).status_code == 201
        wire.call(ApiKey.DESCRIBE_GROUPS, 0, groups=["none"])
        wire.call(ApiKey.METADATA, 1, topics=[{"name": "no/such"}])
        commit_position(wire)
        admin_service_pb2_grpc.AdminServiceStub(channel).GetReady(admin_service_pb2.GetReadyRequest())
        with Wire(plain.kafka_port) as hostile:
            hostile.socket.sendall(b"GET / HTTP/1.1\r\n\r\n")
            hostile.socket.recv(100)
        text = api.send("GET", "/v0/metrics").text
    of_shards = NodeStatistics(shards=[ShardStatistics(), ShardStatistics()])
    text += render(families.cluster(of_shards)).decode()  # of a node of a cluster
    found: Names = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    for name in re.findall(r"^# TYPE (\S+)", text, re.MULTILINE):
        found.setdefault(name, documented(name))  # what has no series yet
    return found


def documented(name: str) -> set[str]:
    """The labels in the table of docs/metrics.md, which another test keeps in step with the server."""
    row = re.search(rf"^\| `{name}` \| \w+ \|([^|]*)\|", (HERE.parent / "metrics.md").read_text(), re.MULTILINE)
    assert row is not None, name
    return set(re.findall(r"`(\w+)`", row[1]))


def commit_position(wire: Wire) -> None:
    partition = {"partition_index": 0, "committed_offset": 0, "committed_leader_epoch": -1, "committed_metadata": ""}
    topics = [{"name": "dash-from", "partitions": [partition]}]
    body: dict[str, Any] = {"group_id": "dash", "generation_id_or_member_epoch": -1, "member_id": "", "topics": topics}
    wire.call(ApiKey.OFFSET_COMMIT, 7, group_instance_id=None, **body)


def expressions() -> Iterator[tuple[str, str]]:
    for panel in PANELS:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for rule in RULES:
        yield rule["alert"], rule["expr"]


def test_every_metric_is_one_of_the_server(exposed: Names) -> None:
    asked: set[str] = set()
    for where, expr in expressions():
        named = METRIC.findall(expr)
        assert named, where
        labels: set[str] = set()
        for name, selector in named:
            assert name in exposed, f"{where}: there is no {name}"
            asked.add(name)
            labels |= exposed[name]
            wrong = set(SELECTED.findall(selector)) - exposed[name] - OF_PROMETHEUS
            assert not wrong, f"{where}: {name} has no {wrong}"
        for grouped in GROUPED.findall(expr):
            wrong = {label.strip() for label in grouped.split(",")} - labels - OF_PROMETHEUS
            assert not wrong, f"{where}: no metric of {expr} has {wrong}"
    # What an operator asks for first must be on it.
    stems = ("request_seconds", "lag_records", "oldest_ready", "lag_ms", "submit_full", "group_writes", "free_bytes")
    stems += ("cluster_role", "cluster_put_seconds", "cluster_behind")
    for stem in (*stems, "fsync_latency", "resident_memory", "open_fds", "watch_lag"):
        assert any(stem in name for name in asked), stem


def test_rates_are_of_counters_and_quantiles_of_histograms(exposed: Names) -> None:
    for where, expr in expressions():
        for name in re.findall(r"rate\((topics_\w+)", expr):
            assert name.endswith(("_total", "_bucket", "_count", "_sum")), f"{where}: {name} is no counter"
        for name in re.findall(r"histogram_quantile\([^,]+, sum by \(le[^)]*\) \(rate\((topics_\w+)", expr):
            assert name.endswith("_bucket"), f"{where}: {name}"
        assert expr.count("(") == expr.count(")"), where


def test_every_panel_is_complete() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    titles = [panel["title"] for panel in PANELS]
    assert len(titles) == len(set(titles))
    variables = {each["name"]: each["type"] for each in DASHBOARD["templating"]["list"]}
    assert variables == {"datasource": "datasource", "instance": "query"}
    source = {"type": "prometheus", "uid": "${datasource}"}
    for panel in PANELS:
        where = panel["title"]
        assert where, panel["id"]
        assert panel["description"], where
        assert panel["fieldConfig"]["defaults"]["unit"], where
        assert panel["datasource"] == source, where
        assert panel["targets"], where
        for target in panel["targets"]:
            assert target["datasource"] == source, where
            assert target["legendFormat"], where
            assert 'instance=~"$instance"' in target["expr"], where
    places = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    cells = [(x, y) for p in places for x in range(p["x"], p["x"] + p["w"]) for y in range(p["y"], p["y"] + p["h"])]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24


def test_every_rule_is_complete() -> None:
    names = [rule["alert"] for rule in RULES]
    assert len(names) == len(set(names))
    for rule in RULES:
        assert rule["alert"].startswith("Topics")
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "0s"))


def test_the_documentation_names_what_it_ships() -> None:
    text = (HERE.parent / "metrics.md").read_text()
    assert "grafana/topics.json" in text
    assert "grafana/alerts.yaml" in text
    for rule in RULES:
        assert f"`{rule['alert']}`" in text
