"""DescribeTopicPartitions: the partitions of topics, page by page, on a real server."""

from collections.abc import Iterator
from uuid import uuid4

import pytest

from support.http import Api, ok
from support.kafka_wire import Wire
from support.server import ServerProcess
from topics_kafka.protocol import ApiKey, Message
from topics_service.api.catalog import uuid_of


@pytest.fixture
def api(server: ServerProcess) -> Iterator[Api]:
    with Api(server.base) as api:
        yield api


@pytest.fixture
def name() -> str:
    return f"t.{uuid4().hex[:10]}"


def described(wire: Wire, *names: str, limit: int = 2000, at: tuple[str, int] | None = None) -> Message:
    cursor = None if at is None else {"topic_name": at[0], "partition_index": at[1]}
    topics = [{"name": name} for name in names]
    return wire.call(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, topics=topics, response_partition_limit=limit, cursor=cursor)


def numbers(answer: Message) -> dict[str, list[int]]:
    """The partitions of each topic."""
    return {each["name"]: [one["partition_index"] for one in each["partitions"]] for each in answer["topics"]}


def test_topics_are_described_as_by_metadata(wire: Wire, api: Api, name: str) -> None:
    made = ok(api.put(name, partition_count=3), 201)
    answer = described(wire, f"{name}.none", name, name, "no name")
    topic, none, bad = sorted(answer["topics"], key=lambda each: {0: 0, 3: 1, 17: 2}[each["error_code"]])
    assert answer["next_cursor"] is None
    assert [each["name"] for each in answer["topics"]] == sorted((name, f"{name}.none", "no name"))
    assert (topic["name"], topic["topic_id"], topic["is_internal"]) == (name, uuid_of(made["topic_id"]), False)
    assert topic["topic_authorized_operations"] == sum(1 << each for each in (3, 4, 5, 6, 7, 8, 10, 11))
    for number, partition in enumerate(topic["partitions"]):
        assert (partition["error_code"], partition["partition_index"], partition["leader_id"]) == (0, number, 1)
        assert (partition["replica_nodes"], partition["isr_nodes"], partition["offline_replicas"]) == ([1], [1], [])
        assert (partition["eligible_leader_replicas"], partition["last_known_elr"]) == ([], []), "Java takes no null"
    assert len(topic["partitions"]) == 3
    assert (none["partitions"], bad["partitions"]) == ([], [])


def test_pages(wire: Wire, api: Api, name: str) -> None:
    wanted = {f"{name}.a": 3, f"{name}.b": 2, f"{name}.c": 4}
    for each, count in wanted.items():
        ok(api.put(each, partition_count=count), 201)
    for asked in (list(wanted), []):
        for limit in (1, 2, 3, 5, 9):
            found: dict[str, list[int]] = {each: [] for each in wanted}
            at: tuple[str, int] | None = (f"{name}.a", 0)
            while at is not None and at[0].startswith(name):
                answer = described(wire, *asked, limit=limit, at=at)
                page = numbers(answer)
                assert 1 <= sum(map(len, page.values())) <= limit
                for each in wanted.keys() & page.keys():
                    found[each] += page[each]
                cursor = answer["next_cursor"]
                at = None if cursor is None else (cursor["topic_name"], cursor["partition_index"])
            assert found == {each: [*range(count)] for each, count in wanted.items()}, (asked, limit)
    assert numbers(described(wire, *wanted, at=(f"{name}.b", 1))) == {f"{name}.b": [1], f"{name}.c": [0, 1, 2, 3]}
    assert numbers(described(wire, *wanted, at=(f"{name}.bb", 7))) == {f"{name}.c": [0, 1, 2, 3]}
    assert numbers(described(wire, *wanted, at=(f"{name}.b", 9))) == {f"{name}.b": [], f"{name}.c": [0, 1, 2, 3]}


@pytest.mark.parametrize(("limit", "at"), [(0, None), (-1, None), (10, ("t", -1))])
def test_what_makes_no_sense(wire: Wire, name: str, limit: int, at: tuple[str, int] | None) -> None:
    (topic,) = described(wire, name, limit=limit, at=at)["topics"]
    assert (topic["name"], topic["error_code"], topic["partitions"]) == (name, 42, [])
