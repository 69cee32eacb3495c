"""Positions of Kafka clients over shards and processes: a group in one, the partitions of a topic in all."""

import pytest
from shards.kafka_world import Process, open_kafka
from shards.retention import Retention

from support.waiting import until
from topics_kafka.protocol import ApiKey
from topics_service.api.access.auth import UNRESTRICTED
from topics_service.engine.placement import home_of

GROUPS = [next(name for name in map("g{}".format, range(99)) if home_of(name, 3) == shard) for shard in range(3)]


async def commit(process: Process, group: str, offsets: dict[tuple[str, int], int]) -> dict[tuple[str, int], int]:
    """The error codes by topic and partition."""
    topics = [
        {
            "name": topic,
            "partitions": [
                {"partition_index": partition, "committed_offset": offset, "committed_leader_epoch": 3,
                 "committed_metadata": "note"}
            ],
        }
        for (topic, partition), offset in offsets.items()
    ]  # fmt: skip
    answer = await process.call(
        ApiKey.OFFSET_COMMIT, 9, group_id=group, generation_id_or_member_epoch=-1, member_id="",
        group_instance_id=None, topics=topics,
    )  # fmt: skip
    return {
        (topic["name"], each["partition_index"]): each["error_code"]
        for topic in answer["topics"]
        for each in topic["partitions"]
    }


async def fetch(process: Process, group: str) -> dict[tuple[str, int], tuple[int, str]]:
    asked = {"group_id": group, "topics": None, "member_id": None, "member_epoch": -1}
    answer = await process.call(ApiKey.OFFSET_FETCH, 9, groups=[asked], require_stable=False)
    (found,) = answer["groups"]
    assert found["error_code"] == 0
    return {
        (topic["name"], each["partition_index"]): (each["committed_offset"], each["metadata"])
        for topic in found["topics"]
        for each in topic["partitions"]
    }


async def create(process: Process, name: str, partitions: int) -> None:
    topic = {"name": name, "num_partitions": partitions, "replication_factor": 1, "assignments": [], "configs": []}
    answer = await process.call(ApiKey.CREATE_TOPICS, 7, topics=[topic], timeout_ms=1000, validate_only=False)
    assert answer["topics"][0]["error_code"] == 0


@pytest.mark.parametrize("group", GROUPS)
async def test_positions_are_those_of_all_processes_and_doors(group: str) -> None:
    async with open_kafka() as kafka:
        await create(kafka.first, "t", 4)
        await until(lambda: all(_knows(process, "t") for process in kafka.processes))
        codes = await commit(kafka.first, group, {("t", 0): 5, ("t", 3): 7, ("t", 4): 1, ("nowhere", 0): 1})
        assert codes == {("t", 0): 0, ("t", 3): 0, ("t", 4): 3, ("nowhere", 0): 3}
        assert await commit(kafka.second, group, {("t", 1): 6}) == {("t", 1): 0}
        for process in kafka.processes:
            assert await fetch(process, group) == {("t", 0): (5, "note"), ("t", 1): (6, "note"), ("t", 3): (7, "note")}
            shown = await process.topics.groups.positions(group, "t", principal=UNRESTRICTED)
            assert [(each.partition, each.from_seq, each.lag) for each in shown] == [(0, 5, 0), (1, 6, 0), (3, 7, 0)]
        answer = await kafka.second.call(
            ApiKey.OFFSET_DELETE, 0, group_id=group,
            topics=[{"name": "t", "partitions": [{"partition_index": 0}, {"partition_index": 3}]}],
        )  # fmt: skip
        assert answer["error_code"] == 0
        assert await fetch(kafka.first, group) == {("t", 1): (6, "note")}


async def test_a_commit_that_goes_back_holds_again_before_it_is_answered() -> None:
    async with open_kafka() as kafka:
        at = Retention(kafka.world)
        group = next(group for group in GROUPS if home_of(group, 3) != home_of("t", 3))
        await at.put(group, cap_records=4)
        await at.append(4)
        await until(lambda: _knows(kafka.first, "t"))
        assert await commit(kafka.first, group, {("t", 0): 3}) == {("t", 0): 0}
        await at.told()
        assert at.hold() == 3
        assert await commit(kafka.first, group, {("t", 0): 1}) == {("t", 0): 0}
        assert at.hold() == 1
        answer = await kafka.first.call(
            ApiKey.OFFSET_DELETE, 0, group_id=group, topics=[{"name": "t", "partitions": [{"partition_index": 0}]}]
        )
        assert answer["error_code"] == 0
        assert at.hold() == 0


def _knows(process: Process, name: str) -> bool:
    return process.kafka.catalog.find(name) is not None
