"""DescribeConfigs, AlterConfigs and IncrementalAlterConfigs on a real server."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from support.http import Api, ok
from support.kafka_wire import Wire
from support.server import ServerProcess
from topics_kafka.configs import CONFIGS
from topics_kafka.protocol import SUPPORTED, ApiKey

from .test_topics import create, topic, versions

SET, DELETE, APPEND, SUBTRACT = range(4)
MAX = str((1 << 63) - 1)


@pytest.fixture
def api(server: ServerProcess) -> Iterator[Api]:
    with Api(server.base) as api:
        yield api


@pytest.fixture
def name(wire: Wire) -> str:
    """A topic without overrides."""
    name = f"t.{uuid4().hex[:10]}"
    assert create(wire, topic(name))[0]["error_code"] == 0
    return name


def describe(wire: Wire, name: str, *keys: str, version: int = 4, kind: int = 2, **more: Any) -> dict[str, Any]:
    asked = {"resource_type": kind, "resource_name": name, "configuration_keys": list(keys) or None}
    (found,) = wire.call(ApiKey.DESCRIBE_CONFIGS, version, resources=[asked], **more)["results"]
    assert (found["resource_type"], found["resource_name"]) == (kind, name)
    return found


def overrides(wire: Wire, name: str) -> dict[str, str]:
    return {each["name"]: each["value"] for each in describe(wire, name)["configs"] if each["config_source"] == 1}


def alter(wire: Wire, name: str, configs: dict[str, str | None], *, version: int = 2, **more: Any) -> int:
    """Send AlterConfigs for one topic. Returns the error code."""
    resource = {
        "resource_type": more.pop("kind", 2),
        "resource_name": name,
        "configs": [{"name": key, "value": value} for key, value in configs.items()],
    }
    (answer,) = wire.call(ApiKey.ALTER_CONFIGS, version, resources=[resource], **more)["responses"]
    assert bool(answer["error_code"]) == bool(answer["error_message"])
    return int(answer["error_code"])


def patch(wire: Wire, name: str, *changes: tuple[str, int, str | None], version: int = 1, **more: Any) -> int:
    """Send IncrementalAlterConfigs for one topic. Returns the error code."""
    configs = [{"name": key, "config_operation": operation, "value": value} for key, operation, value in changes]
    resource = {"resource_type": more.pop("kind", 2), "resource_name": name, "configs": configs}
    (answer,) = wire.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, version, resources=[resource], **more)["responses"]
    assert bool(answer["error_code"]) == bool(answer["error_message"])
    return int(answer["error_code"])


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_CONFIGS))
def test_defaults(version: int, wire: Wire, name: str) -> None:
    found = describe(wire, name, version=version, include_synonyms=True)
    assert found["error_code"] == 0
    assert {each["name"]: each["value"] for each in found["configs"]} == {
        config.name: config.default for config in CONFIGS.values()
    }
    assert {each["config_source"] for each in found["configs"]} == {5}
    assert not any(each["read_only"] or each["is_sensitive"] for each in found["configs"])
    (size,) = (each for each in found["configs"] if each["name"] == "max.message.bytes")
    assert size["synonyms"] == [{"name": "message.max.bytes", "value": "1048588", "source": 5}]
    if version >= 3:
        assert size["config_type"] == 3


def test_described_is_what_was_asked(wire: Wire, name: str) -> None:
    found = describe(wire, name, "retention.ms", "cleanup.policy", "no.such.key")["configs"]
    assert [(each["name"], each["synonyms"]) for each in found] == [("cleanup.policy", []), ("retention.ms", [])]
    assert describe(wire, "no.such.topic")["error_code"] == 3
    assert describe(wire, name, kind=8)["error_code"] == 42


def test_synonyms_of_an_override(tmp_path: Path) -> None:
    env = {"TOPICS_KAFKA_MAX_BATCH_BYTES": 5000}
    with ServerProcess(tmp_path, kafka=True, env=env) as server, Wire(server.kafka_port) as wire:
        create(wire, topic("a"), topic("b", max_message_bytes="1048588"))
        (size,) = describe(wire, "a", "max.message.bytes", include_synonyms=True)["configs"]
        assert (size["value"], size["config_source"]) == ("5000", 4)
        (size,) = describe(wire, "b", "max.message.bytes", include_synonyms=True)["configs"]
        assert (size["value"], size["config_source"]) == ("1048588", 1), "what is set is no default"
        assert [(each["value"], each["source"]) for each in size["synonyms"]] == [("1048588", 1), ("5000", 4)]


def test_the_broker(wire: Wire, server: ServerProcess) -> None:
    for broker in ("1", ""):
        found = {each["name"]: each for each in describe(wire, broker, kind=4)["configs"]}
        assert found["advertised.listeners"]["value"] == f"127.0.0.1:{server.kafka_port}"
        assert all(each["read_only"] and each["config_source"] == 4 for each in found.values())
    assert [each["name"] for each in describe(wire, "1", "node.id", kind=4)["configs"]] == ["node.id"]
    assert describe(wire, "2", kind=4)["error_code"] == 42
    assert alter(wire, "1", {"num.partitions": "3"}, kind=4) == 42
    assert patch(wire, "1", ("num.partitions", SET, "3"), kind=4) == 42


def test_both_protocols_show_the_same(wire: Wire, api: Api, name: str) -> None:
    ok(api.put(name, ttl_ms=5000, cap_bytes=6000, cap_records=7, discard="reject", durability="fsync", priority=3))
    assert overrides(wire, name) == {
        "retention.ms": "5000",
        "retention.bytes": "6000",
        "topics.cap.records": "7",
        "topics.discard": "reject",
        "topics.durability": "fsync",
    }
    assert patch(wire, name, ("retention.ms", SET, "8000"), ("topics.durability", SET, "memory")) == 0
    config = api.state(name)["config"]
    assert (config["ttl_ms"], config["durability"], config["durable"]) == (8000, "memory", False)
    assert (config["cap_bytes"], config["cap_records"], config["priority"]) == (6000, 7, 3)
    assert patch(wire, name, ("retention.ms", SET, "-1"), ("retention.bytes", DELETE, None)) == 0
    config = api.state(name)["config"]
    assert (config["ttl_ms"], config["cap_bytes"]) == (0, 0)
    assert "retention.ms" not in overrides(wire, name)


def test_configs_stored_for_kafka_survive_a_put_over_http(wire: Wire, api: Api, name: str) -> None:
    assert patch(wire, name, ("segment.bytes", SET, "2000000")) == 0
    ok(api.put(name, ttl_ms=1000))
    assert overrides(wire, name) == {"segment.bytes": "2000000", "retention.ms": "1000"}


@pytest.mark.parametrize("version", versions(ApiKey.ALTER_CONFIGS))
def test_alter_replaces_all(version: int, wire: Wire, api: Api, name: str) -> None:
    given = {"retention.ms": "9000", "segment.ms": "60000", "topics.durability": "fsync"}
    assert alter(wire, name, given, version=version) == 0
    assert overrides(wire, name) == given
    assert alter(wire, name, {"retention.bytes": "10"}, version=version, validate_only=True) == 0
    assert overrides(wire, name) == given
    assert alter(wire, name, {"retention.bytes": "10", "max.message.bytes": "99"}, version=version) == 0
    assert overrides(wire, name) == {
        "retention.bytes": "10",
        "max.message.bytes": "99",
        "topics.durability": "fsync",  # Kafka's tools do not know it, and must not weaken it
    }
    assert alter(wire, name, {}, version=version) == 0
    assert overrides(wire, name) == {"topics.durability": "fsync"}
    assert alter(wire, name, {"topics.durability": "disk"}, version=version) == 0
    assert overrides(wire, name) == {}


@pytest.mark.parametrize("version", versions(ApiKey.INCREMENTAL_ALTER_CONFIGS))
def test_patch_changes_some(version: int, wire: Wire, name: str) -> None:
    assert patch(wire, name, ("retention.ms", SET, "1"), ("segment.ms", SET, "2"), version=version) == 0
    assert patch(wire, name, ("segment.ms", DELETE, None), ("flush.ms", DELETE, None), version=version) == 0
    assert overrides(wire, name) == {"retention.ms": "1"}
    assert patch(wire, name, ("retention.ms", SET, "5"), version=version, validate_only=True) == 0
    assert overrides(wire, name) == {"retention.ms": "1"}
    assert patch(wire, name, ("message.timestamp.type", SET, "LogAppendTime"), version=version) == 0
    assert overrides(wire, name) == {"retention.ms": "1", "message.timestamp.type": "LogAppendTime"}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (("cleanup.policy", APPEND, "delete"), 0),
        (("cleanup.policy", APPEND, "compact"), 40),
        (("cleanup.policy", SUBTRACT, "delete"), 40),
        (("cleanup.policy", SUBTRACT, "compact"), 0),
        (("retention.ms", APPEND, "1"), 40),
        (("no.such.key", APPEND, "1"), 40),
        (("no.such.key", SET, "1"), 40),
        (("no.such.key", DELETE, None), 40),
        (("retention.ms", 9, "1"), 42),
        (("retention.ms", SET, None), 42),
    ],
)
def test_operations(change: tuple[str, int, str | None], code: int, wire: Wire, name: str) -> None:
    assert patch(wire, name, change) == code
    assert overrides(wire, name) in ({}, {"cleanup.policy": "delete"})


@pytest.mark.parametrize(
    ("key", "right", "wrong"),
    [
        ("retention.ms", ["-1", "1", " 7 ", MAX], ["0", "-2", "x", "", "1.5", "1e3", "1_0", "٣", str(1 << 63)]),
        ("retention.bytes", ["-1", "1", MAX], ["0", "-2", "1k"]),
        ("max.message.bytes", ["0", "1000000"], ["-1", str(1 << 31)]),
        ("segment.bytes", ["1048576"], ["13", str(1 << 31)]),
        ("message.timestamp.type", ["CreateTime", "LogAppendTime"], ["createtime", ""]),
        ("message.timestamp.before.max.ms", ["0", MAX], ["-1"]),
        ("message.timestamp.after.max.ms", ["0", MAX], ["-1"]),
        ("cleanup.policy", ["delete"], ["compact", "delete,compact", ""]),
        ("compression.type", ["producer"], ["gzip", "uncompressed"]),
        ("min.insync.replicas", ["1"], ["2", "0"]),
        ("preallocate", ["true", "FALSE"], ["1", "yes"]),
        ("min.cleanable.dirty.ratio", ["0", "0.5", "1"], ["1.1", "-0.1", "nan", "x"]),
        ("flush.messages", [MAX], ["1"]),
        ("remote.storage.enable", ["false"], ["true"]),
        ("unclean.leader.election.enable", ["true", "false"], ["maybe"]),
        ("topics.durability", ["ephemeral", "memory", "disk", "fsync"], ["Disk", ""]),
        ("topics.discard", ["old", "reject"], ["new"]),
        ("topics.cap.records", ["-1", "1"], ["0"]),
    ],
)
def test_values(key: str, right: list[str], wrong: list[str], wire: Wire, name: str) -> None:
    for value in wrong:
        assert patch(wire, name, (key, SET, value)) == 40, value
    for value in right:
        assert patch(wire, name, (key, SET, value)) == 0, value
        (found,) = describe(wire, name, key)["configs"]
        assert found["value"].lower() == value.strip().lower()


def test_failover_is_decided_when_the_topic_is_made(wire: Wire, name: str) -> None:
    key = "rafka.failover.enabled"
    with_it = f"{name}.with"
    assert create(wire, topic(with_it, rafka_failover_enabled="true", retention_ms="5"))[0]["error_code"] == 0
    assert overrides(wire, with_it) == {key: "true", "retention.ms": "5"}
    for topic_name, now, other in ((name, "false", "true"), (with_it, "true", "false")):
        assert patch(wire, topic_name, (key, SET, other)) == 40
        assert alter(wire, topic_name, {key: other}) == 40
        assert patch(wire, topic_name, (key, SET, now)) == 0
        assert alter(wire, topic_name, {key: now}) == 0
    assert patch(wire, with_it, (key, DELETE, None)) == 40
    assert alter(wire, with_it, {"cleanup.policy": "compact"}) == 40
    assert alter(wire, with_it, {"segment.ms": "9"}) == 0
    assert overrides(wire, with_it) == {key: "true", "segment.ms": "9"}


def test_what_is_named_twice(wire: Wire, name: str) -> None:
    assert patch(wire, name, ("retention.ms", SET, "1"), ("retention.ms", SET, "2")) == 42
    resource = {"resource_type": 2, "resource_name": name, "configs": []}
    for key, version in ((ApiKey.ALTER_CONFIGS, 2), (ApiKey.INCREMENTAL_ALTER_CONFIGS, 1)):
        answers = wire.call(key, version, resources=[resource, resource])["responses"]
        assert [each["error_code"] for each in answers] == [42]
    assert alter(wire, "no.such.topic", {}) == 3
    assert patch(wire, "no.such.topic") == 3
    assert alter(wire, name, {}, kind=8) == 42
    assert SUPPORTED[ApiKey.ALTER_CONFIGS] == (0, 2)


def test_no_names_are_all_names(wire: Wire, name: str) -> None:
    asked = {"resource_type": 2, "resource_name": name, "configuration_keys": []}
    (found,) = wire.call(ApiKey.DESCRIBE_CONFIGS, 4, resources=[asked])["results"]
    assert found["configs"] == describe(wire, name)["configs"] != []
