"""CreateTopics, DeleteTopics and CreatePartitions on a real server."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from support.http import Api, ok
from support.kafka_wire import Wire
from support.server import ServerProcess
from topics_kafka.protocol import SUPPORTED, ApiKey
from topics_service.api.catalog import uuid_of


@pytest.fixture
def api(server: ServerProcess) -> Iterator[Api]:
    with Api(server.base) as api:
        yield api


@pytest.fixture
def name() -> str:
    return f"t.{uuid4().hex[:10]}"


def versions(api: ApiKey) -> range:
    return range(SUPPORTED[api][0], SUPPORTED[api][1] + 1)


def topic(
    name: str, partitions: int = -1, replicas: int = -1, assignments: Any = (), **configs: str | None
) -> dict[str, Any]:
    """A topic to create. Dots in names of configs are written as underscores."""
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": replicas,
        "assignments": [{"partition_index": index, "broker_ids": ids} for index, ids in assignments],
        "configs": [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()],
    }


def create(wire: Wire, *topics: dict[str, Any], version: int = 7, **more: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = wire.call(ApiKey.CREATE_TOPICS, version, topics=list(topics), **more)["topics"]
    return found


def partitions(wire: Wire, name: str) -> int:
    """The number of partitions according to Metadata; 0 if there is no such topic."""
    (found,) = wire.call(ApiKey.METADATA, topics=[{"name": name}], allow_auto_topic_creation=False)["topics"]
    return len(found["partitions"])


@pytest.mark.parametrize("version", versions(ApiKey.CREATE_TOPICS))
def test_create(version: int, wire: Wire, api: Api, name: str) -> None:
    (made,) = create(wire, topic(name, 3, 1, retention_ms="1000", retention_bytes="5000"), version=version)
    assert (made["name"], made["error_code"], made["error_message"]) == (name, 0, None)
    state = api.state(name)
    assert (state["config"]["ttl_ms"], state["config"]["cap_bytes"]) == (1000, 5000)
    assert partitions(wire, name) == 3
    if version >= 5:
        assert (made["num_partitions"], made["replication_factor"]) == (3, 1)
        configs = {entry["name"]: (entry["value"], entry["config_source"]) for entry in made["configs"]}
        assert configs["retention.ms"] == ("1000", 1)
        assert configs["cleanup.policy"] == ("delete", 5)
    if version >= 7:
        assert made["topic_id"] == uuid_of(state["topic_id"])


def test_what_speaks_against_a_topic(wire: Wire, name: str) -> None:
    assert create(wire, topic(name))[0]["error_code"] == 0
    wrong = {
        36: topic(name),
        17: topic("a:b"),
        37: topic(f"{name}.a", 0),
        38: topic(f"{name}.b", 1, 3),
        39: topic(f"{name}.c", assignments=[(0, [2])]),
        42: topic(f"{name}.d", 2, assignments=[(0, [1])]),
        40: topic(f"{name}.e", retention_ms="soon"),
    }
    answers = create(wire, *wrong.values(), topic(f"{name}.right"))
    assert [answer["error_code"] for answer in answers] == [*wrong, 0]
    assert all(answer["error_message"] for answer in answers[:-1])
    assert [partitions(wire, each["name"]) for each in wrong.values()] == [1, 0, 0, 0, 0, 0, 0]
    assert partitions(wire, f"{name}.right") == 1


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (topic("x", -2), 37),
        (topic("x", 1_000_000), 37),
        (topic("x", 1, 0), 38),
        (topic("x", 1, -2), 38),
        (topic("x", assignments=[(1, [1])]), 39),
        (topic("x", assignments=[(0, [1]), (0, [1])]), 39),
        (topic("x", assignments=[(0, [])]), 39),
        (topic("x", assignments=[(0, [1, 1])]), 39),
        (topic("x", replicas=1, assignments=[(0, [1])]), 42),
        (topic(""), 17),
        (topic("."), 17),
        (topic(".."), 17),
        (topic("y" * 250), 17),
        (topic("x", cleanup_policy="compact"), 40),
        (topic("x", cleanup_policy="compact,delete"), 40),
        (topic("x", no_such_key="1"), 40),
        (topic("x", retention_ms=None), 40),
        (topic("x", min_insync_replicas="2"), 40),
        (topic("x", compression_type="gzip"), 40),
    ],
)
def test_topics_that_are_refused(given: dict[str, Any], code: int, wire: Wire) -> None:
    (answer,) = create(wire, given)
    assert (answer["error_code"], bool(answer["error_message"])) == (code, True)
    assert create(wire, given, validate_only=True)[0]["error_code"] == code


def test_assignments_say_how_many(wire: Wire, name: str) -> None:
    (made,) = create(wire, topic(name, assignments=[(1, [1]), (0, [1])]))
    assert (made["error_code"], made["num_partitions"]) == (0, 2)
    assert partitions(wire, name) == 2


def test_one_that_is_named_twice(wire: Wire, name: str) -> None:
    answers = create(wire, topic(name, 1), topic(f"{name}.b"), topic(name, 2))
    assert [(each["name"], each["error_code"]) for each in answers] == [(name, 42), (f"{name}.b", 0)]
    assert partitions(wire, name) == 0


def test_only_to_validate(wire: Wire, name: str) -> None:
    (made,) = create(wire, topic(name, 5, retention_ms="7"), validate_only=True)
    assert (made["error_code"], made["num_partitions"], made["topic_id"]) == (0, 5, None)
    assert partitions(wire, name) == 0


def test_defaults_and_limits(tmp_path: Path) -> None:
    env = {"TOPICS_KAFKA_NUM_PARTITIONS": 4, "TOPICS_MAX_TOPICS": 6}
    with ServerProcess(tmp_path, kafka=True, env=env) as server, Wire(server.kafka_port) as wire:
        assert create(wire, topic("a"))[0]["num_partitions"] == 4
        (made,) = create(wire, topic("b"))
        assert (made["error_code"], "limit of topics" in made["error_message"]) == (44, True)
        assert create(wire, topic("c", 2))[0]["error_code"] == 0
        (grown,) = wire.call(ApiKey.CREATE_PARTITIONS, topics=[{"name": "c", "count": 3}])["results"]
        assert grown["error_code"] == 44


@pytest.mark.parametrize("version", versions(ApiKey.DELETE_TOPICS))
def test_delete(version: int, wire: Wire, api: Api, name: str) -> None:
    create(wire, topic(name, 3))
    names = [name, f"{name}.none"]
    asked: dict[str, Any] = {"topics": [{"name": each} for each in names]} if version >= 6 else {"topic_names": names}
    answers = wire.call(ApiKey.DELETE_TOPICS, version, **asked)["responses"]
    assert [(each["name"], each["error_code"]) for each in answers] == [(names[0], 0), (names[1], 3)]
    assert partitions(wire, name) == 0
    assert api.get(name).status_code == 404


def test_delete_by_id(wire: Wire, name: str) -> None:
    (made,) = create(wire, topic(name))
    unknown = UUID(int=1)
    asked = [
        {"name": name, "topic_id": made["topic_id"]},
        {"name": None, "topic_id": unknown},
        {"name": None, "topic_id": None},
        {"name": None, "topic_id": made["topic_id"]},
    ]
    answers = wire.call(ApiKey.DELETE_TOPICS, 6, topics=asked)["responses"]
    assert [each["error_code"] for each in answers] == [42, 100, 42, 0]
    assert (answers[3]["name"], answers[3]["topic_id"]) == (name, made["topic_id"])
    assert partitions(wire, name) == 0


def test_delete_one_that_is_named_twice(wire: Wire, name: str) -> None:
    create(wire, topic(name))
    answers = wire.call(ApiKey.DELETE_TOPICS, 4, topic_names=[name, name])["responses"]
    assert [each["error_code"] for each in answers] == [42]
    assert partitions(wire, name) == 1


@pytest.mark.parametrize("version", versions(ApiKey.CREATE_PARTITIONS))
def test_create_partitions(version: int, wire: Wire, api: Api, name: str) -> None:
    ok(api.put(name, ttl_ms=77_000, durability="fsync", discard="reject", priority=5), 201)
    config = api.state(name)["config"]

    def grow(count: int, **more: Any) -> int:
        asked = {"topics": [{"name": name, "count": count, "assignments": more.pop("assignments", None)}], **more}
        (answer,) = wire.call(ApiKey.CREATE_PARTITIONS, version, **asked)["results"]
        assert bool(answer["error_code"]) == bool(answer["error_message"])
        return int(answer["error_code"])

    assert grow(3, validate_only=True) == 0
    assert partitions(wire, name) == 1
    assert grow(3) == 0
    assert partitions(wire, name) == 3
    assert grow(3) == 37
    assert grow(2) == 37
    assert grow(100_000) == 37
    assert grow(5, assignments=[{"broker_ids": [1]}]) == 39
    assert grow(4, assignments=[{"broker_ids": [9]}]) == 39
    assert grow(4, assignments=[{"broker_ids": [1]}]) == 0
    assert partitions(wire, name) == 4
    assert api.state(name)["config"] == config, "nothing else has changed"


def test_what_can_not_grow(wire: Wire, api: Api, name: str) -> None:
    queue, source, end = api.make("q", type="queue"), api.make("s"), api.make("d")
    ok(api.send("PUT", f"/v0/routers/{name}", {"source": source, "dest": end}), 201)
    create(wire, topic(name))
    asked = [{"name": each, "count": 2} for each in (queue, source, end, "no.such.topic", name, name)]
    answers = wire.call(ApiKey.CREATE_PARTITIONS, topics=asked)["results"]
    assert [each["error_code"] for each in answers] == [42, 42, 42, 3, 42]


def test_partitions_last(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, kafka=True) as server:
        with Wire(server.kafka_port) as wire:
            create(wire, topic("t", 2, max_message_bytes="1000", topics_durability="fsync", topics_discard="reject"))
            wire.call(ApiKey.CREATE_PARTITIONS, topics=[{"name": "t", "count": 3}])
            before = wire.call(ApiKey.METADATA, topics=None)["topics"]
        server.kill()
        server.start()
        with Wire(server.kafka_port) as wire:
            assert wire.call(ApiKey.METADATA, topics=None)["topics"] == before
            asked = {"resource_type": 2, "resource_name": "t", "configuration_keys": None}
            (found,) = wire.call(ApiKey.DESCRIBE_CONFIGS, resources=[asked])["results"]
            overrides = {each["name"]: each["value"] for each in found["configs"] if each["config_source"] == 1}
            assert overrides == {
                "max.message.bytes": "1000", "topics.durability": "fsync", "topics.discard": "reject"
            }  # fmt: skip
