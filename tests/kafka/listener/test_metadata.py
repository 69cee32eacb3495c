"""ApiVersions, Metadata by Rafka's rule, and DescribeCluster, on a real server in every version."""

import json
import struct
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from support.http import Api, ok
from support.kafka_wire import Wire
from support.server import ServerProcess
from topics_kafka.protocol import SUPPORTED, ApiKey, decode_response
from topics_kafka.registry import APIS
from topics_service.api.catalog import uuid_of

VERSIONS = range(SUPPORTED[ApiKey.METADATA][0], SUPPORTED[ApiKey.METADATA][1] + 1)


@pytest.fixture
def api(server: ServerProcess) -> Iterator[Api]:
    with Api(server.base) as api:
        yield api


@pytest.fixture
def name() -> str:
    return f"t.{uuid4().hex[:10]}"


def metadata(wire: Wire, *names: str, version: int = 13, create: bool = False) -> dict[str, Any]:
    body = wire.call(
        ApiKey.METADATA, version, topics=[{"name": name} for name in names], allow_auto_topic_creation=create
    )
    return {topic["name"]: topic for topic in body["topics"]}


@pytest.mark.parametrize("version", range(5))
def test_versions(version: int, wire: Wire) -> None:
    body = wire.call(ApiKey.API_VERSIONS, version, client_software_name="a-b.c", client_software_version="1.0.0-x")
    assert body["error_code"] == 0
    found = {entry["api_key"]: (entry["min_version"], entry["max_version"]) for entry in body["api_keys"]}
    assert found == {key: api.advertised for key, api in APIS.items()}
    assert found[ApiKey.PRODUCE][0] == 0, "else old librdkafka sends uncompressed batches"


@pytest.mark.parametrize("version", [5, 99, -1])
def test_an_unknown_version_of_api_versions(version: int, wire: Wire) -> None:
    wire.write_frame(struct.pack(">hhih", ApiKey.API_VERSIONS, version, 77, -1) + b"\x01nonsense")
    correlation, body = decode_response(ApiKey.API_VERSIONS, 0, wire.read_frame())
    assert (correlation, body["error_code"]) == (77, 35)
    assert {entry["api_key"] for entry in body["api_keys"]} == set(APIS)
    assert wire.call(ApiKey.API_VERSIONS, 0)["error_code"] == 0, "the connection goes on"


@pytest.mark.parametrize(("software", "release"), [("", "1"), ("a", ""), ("a b", "1"), ("-a", "1"), ("a", "1/2")])
def test_software_that_kafka_refuses(software: str, release: str, wire: Wire) -> None:
    body = wire.call(ApiKey.API_VERSIONS, 3, client_software_name=software, client_software_version=release)
    assert (body["error_code"], body["api_keys"]) == (42, [])


@pytest.mark.parametrize("version", VERSIONS)
def test_a_topic_of_another_protocol(version: int, wire: Wire, api: Api, name: str, server: ServerProcess) -> None:
    made = ok(api.put(name), 201)
    body = wire.call(ApiKey.METADATA, version, topics=[{"name": name}], allow_auto_topic_creation=False)
    (broker,) = body["brokers"]
    assert (broker["node_id"], broker["host"], broker["port"]) == (1, "127.0.0.1", server.kafka_port)
    (topic,) = body["topics"]
    assert (topic["error_code"], topic["name"]) == (0, name)
    (partition,) = topic["partitions"]
    assert (partition["partition_index"], partition["leader_id"]) == (0, 1)
    assert (partition["replica_nodes"], partition["isr_nodes"]) == ([1], [1])
    if version >= 1:
        assert body["controller_id"] == 1
    if version >= 2:
        assert len(body["cluster_id"]) == 22
    if version >= 7:
        assert partition["leader_epoch"] == 0
    if version >= 10:
        assert topic["topic_id"] == uuid_of(made["topic_id"])


@pytest.mark.parametrize("version", VERSIONS)
def test_rafkas_rule(version: int, wire: Wire, name: str) -> None:
    """A missing topic is created with one partition if that is allowed, else error 3. Before version 4 it always is."""
    kept_out = metadata(wire, name, version=version, create=False)[name]
    if version >= 4:
        assert (kept_out["error_code"], kept_out["partitions"]) == (3, [])
        made = metadata(wire, name, version=version, create=True)[name]
    else:
        made = kept_out
    assert (made["error_code"], len(made["partitions"])) == (0, 1)
    assert metadata(wire, name, create=False)[name]["error_code"] == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_all_topics_and_none(version: int, wire: Wire, api: Api, name: str) -> None:
    ok(api.put(name), 201)
    everything = wire.call(ApiKey.METADATA, version, topics=[] if version == 0 else None)
    found = [topic["name"] for topic in everything["topics"]]
    assert name in found
    assert found == sorted(found)
    if version >= 1:
        assert wire.call(ApiKey.METADATA, version, topics=[])["topics"] == []


def test_a_topic_of_a_client_is_visible_over_every_protocol(wire: Wire, api: Api, name: str) -> None:
    assert metadata(wire, name, create=True)[name]["error_code"] == 0
    state = api.state(name)
    assert (state["topic"], state["head_seq"], state["config"]["durability"]) == (name, 0, "disk")


def test_many_at_once_each_once(wire: Wire, name: str) -> None:
    names = [f"{name}.{number}" for number in range(150)]
    body = wire.call(
        ApiKey.METADATA, 13, topics=[{"name": each} for each in [*names, *names]], allow_auto_topic_creation=True
    )
    assert [topic["name"] for topic in body["topics"]] == names
    assert {topic["error_code"] for topic in body["topics"]} == {0}


@pytest.mark.parametrize("bad", ["a:b", "a b", "ü", "", ".", "..", "x" * 250])
def test_names_that_kafka_or_we_refuse(bad: str, wire: Wire) -> None:
    topic = metadata(wire, bad, create=True)[bad]
    assert (topic["error_code"], topic["partitions"]) == (17, [])


def test_names_that_only_other_protocols_can_create_are_found(wire: Wire, api: Api, name: str) -> None:
    long = f"tenant42:{name}" + "x" * 240
    ok(api.put(long[:255]), 201)
    assert metadata(wire, long[:255])[long[:255]]["error_code"] == 0


def test_by_id(wire: Wire, api: Api, name: str) -> None:
    made = ok(api.put(name), 201)
    known, unknown = uuid_of(made["topic_id"]), UUID(int=77)
    body = wire.call(ApiKey.METADATA, 13, topics=[{"topic_id": known}, {"topic_id": unknown}, {"name": name}])
    found, missing, named = body["topics"]
    assert (found["error_code"], found["name"], found["topic_id"]) == (0, name, known)
    assert (missing["error_code"], missing["name"], missing["topic_id"]) == (100, None, unknown)
    assert named == found
    ok(api.drop(name))
    ok(api.put(name), 201)
    again = wire.call(ApiKey.METADATA, 13, topics=[{"topic_id": known}, {"name": name}])["topics"]
    assert again[0]["error_code"] == 100, "a topic that is made again is another one"
    assert again[1]["topic_id"] not in (known, None)


def test_authorized_operations(wire: Wire, api: Api, name: str) -> None:
    ok(api.put(name), 201)
    asked = {"topics": [{"name": name}], "include_topic_authorized_operations": True}
    (topic,) = wire.call(ApiKey.METADATA, 13, **asked)["topics"]
    assert topic["topic_authorized_operations"] == sum(1 << each for each in (3, 4, 5, 6, 7, 8, 10, 11))
    (topic,) = wire.call(ApiKey.METADATA, 13, topics=[{"name": name}])["topics"]
    assert topic["topic_authorized_operations"] == -(1 << 31)
    cluster = wire.call(ApiKey.METADATA, 9, topics=[], include_cluster_authorized_operations=True)
    assert cluster["cluster_authorized_operations"] == sum(1 << each for each in (5, 7, 8, 10, 12))


@pytest.mark.parametrize("version", range(3))
def test_describe_cluster(version: int, wire: Wire, server: ServerProcess) -> None:
    body = wire.call(ApiKey.DESCRIBE_CLUSTER, version)
    (broker,) = body["brokers"]
    assert (broker["broker_id"], broker["host"], broker["port"]) == (1, "127.0.0.1", server.kafka_port)
    assert (body["error_code"], body["controller_id"]) == (0, 1)
    assert body["cluster_id"] == wire.call(ApiKey.METADATA, topics=[])["cluster_id"]
    if version >= 1:
        assert wire.call(ApiKey.DESCRIBE_CLUSTER, version, endpoint_type=2)["error_code"] == 42


def test_ids_last(tmp_path: Path, name: str) -> None:
    with ServerProcess(tmp_path, kafka=True, env={"TOPICS_KAFKA_NODE_ID": 7}) as server:
        with Wire(server.kafka_port) as wire:
            before = wire.call(ApiKey.METADATA, topics=[{"name": name}], allow_auto_topic_creation=True)
        assert before["controller_id"] == 7
        assert server.stop() == 0
        server.start()
        with Wire(server.kafka_port) as wire:
            after = wire.call(ApiKey.METADATA, topics=[{"name": name}], allow_auto_topic_creation=False)
    assert after["topics"] == before["topics"]
    assert after["cluster_id"] == before["cluster_id"]
    with ServerProcess(tmp_path / "other", kafka=True) as other, Wire(other.kafka_port) as wire:
        assert wire.call(ApiKey.METADATA, topics=[])["cluster_id"] != before["cluster_id"]


def test_the_advertised_address_and_no_creation(tmp_path: Path, name: str) -> None:
    env = {"TOPICS_KAFKA_ADVERTISED": "broker.example:19092", "TOPICS_KAFKA_AUTO_CREATE": 0, "TOPICS_MAX_TOPICS": 1}
    with ServerProcess(tmp_path, kafka=True, env=env) as server, Wire(server.kafka_port) as wire:
        body = wire.call(ApiKey.METADATA, topics=[{"name": name}], allow_auto_topic_creation=True)
        assert (body["brokers"][0]["host"], body["brokers"][0]["port"]) == ("broker.example", 19092)
        assert body["topics"][0]["error_code"] == 3
        assert wire.call(ApiKey.METADATA, topics=None)["topics"] == []


def test_there_is_a_limit(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, kafka=True, env={"TOPICS_MAX_TOPICS": 2}) as server, Wire(server.kafka_port) as wire:
        found = metadata(wire, "a", "b", "c", create=True)
        assert sorted(topic["error_code"] for topic in found.values()) == [0, 0, 44]


def test_errors_are_counted(wire: Wire, server: ServerProcess, name: str) -> None:
    metadata(wire, name)
    with urllib.request.urlopen(f"{server.base}/v0/metrics", timeout=30) as reply:
        text = reply.read().decode()
    assert 'topics_kafka_errors_total{api="Metadata",error="UNKNOWN_TOPIC_OR_PARTITION"}' in text
    assert 'topics_kafka_request_seconds_count{api="Metadata",outcome="answered"}' in text


def test_keys_see_their_topics(login: Callable[[str], Wire], keyed: ServerProcess) -> None:
    full, t42, read, write, admin = (login(key) for key in ("full", "t42", "read", "write", "admin"))
    for topic in ("t42.a", "other.a"):
        metadata(full, topic, create=True)
    found = metadata(t42, "t42.a", "other.a", "other.b", create=True)
    assert {name: topic["error_code"] for name, topic in found.items()} == {"t42.a": 0, "other.a": 29, "other.b": 29}
    everything = t42.call(ApiKey.METADATA, topics=None)["topics"]
    assert {topic["name"].partition(".")[0] for topic in everything} == {"t42"}
    other = metadata(full, "other.a")["other.a"]["topic_id"]
    (hidden,) = t42.call(ApiKey.METADATA, topics=[{"topic_id": other}])["topics"]
    assert (hidden["error_code"], hidden["name"]) == (29, None)
    assert metadata(read, "new.read", create=True)["new.read"]["error_code"] == 3, "who can't write makes nothing"
    assert metadata(admin, "new.admin", create=True)["new.admin"]["error_code"] == 3
    assert metadata(write, "new.write", create=True)["new.write"]["error_code"] == 0
    assert metadata(write, "other.a")["other.a"]["error_code"] == 0, "a producer must find its topic"
    asked = {"topics": [{"name": "other.a"}], "include_topic_authorized_operations": True}
    (topic,) = write.call(ApiKey.METADATA, 13, **asked)["topics"]
    assert topic["topic_authorized_operations"] == (1 << 4) | (1 << 8)
    assert json.dumps(keyed.log).count("sekret") == 0
