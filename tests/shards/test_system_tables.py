"""System tables over shards: rows of all of them, in order, complete or refused."""

from typing import Any

import pytest
from shards.faults import Faults
from shards.world import ShardsWorld, open_shards

from topics_service.api.access.auth import UNRESTRICTED
from topics_service.api.sql import systempages
from topics_service.api.sql.requests import AckRequest
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.model import AppendRequest, Batch, ConfigInput
from topics_service.engine.placement import home_of
from topics_shards import systemtables

COUNT = 3
TOPICS = [f"topic{number:02}" for number in range(12)]
GROUPS = [f"g{number}" for number in range(6)]


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systempages, "_ROWS", 2)


async def make(world: ShardsWorld) -> None:
    for name in TOPICS:
        await world.api.put_topic(name, ConfigInput(), principal=UNRESTRICTED)
    await world.api.put_topic("wide", ConfigInput(), principal=UNRESTRICTED, partition_count=5)
    for partition in (0, 1, 3):
        await append(world, "wide", partition + 1, partition)
    await world.sql("CREATE TOPIC app.news ALIAS app.nick")


async def append(world: ShardsWorld, topic: str, count: int, partition: int = 0) -> None:
    request = AppendRequest(topic=topic, batch=Batch([b"1"] * count), partition=partition)
    await world.api.append(request, principal=UNRESTRICTED)


async def refused(world: ShardsWorld, reason: Reason, text: str) -> TopicsError:
    with pytest.raises(TopicsError) as caught:
        await world.sql(text)
    assert caught.value.reason is reason, caught.value
    return caught.value


async def test_topics_of_all_shards_are_there_once() -> None:
    async with open_shards(COUNT) as world:
        await make(world)
        assert len({home_of(name, COUNT) for name in TOPICS}) == COUNT
        found = await world.sql("SELECT name, alias, partitions FROM system.topics")
        assert found == [
            ["app.news", "app.nick", 1], *([name, None, 1] for name in TOPICS), ["wide", None, 5],
        ]  # fmt: skip
        assert await world.sql("SELECT count(*) FROM system.topics WHERE partitions > 1") == [[1]]
        assert await world.sql("SELECT name FROM system.topics ORDER BY name DESC LIMIT 1") == [["wide"]]


async def test_partitions_of_all_shards_are_there_also_those_that_no_shard_has_made_yet() -> None:
    async with open_shards(COUNT) as world:
        await make(world)
        found = await world.sql(
            "SELECT partition, first_offset, next_offset, count FROM system.topic_partitions WHERE topic = 'wide'"
        )
        assert found == [[0, 0, 1, 1], [1, 0, 2, 2], [2, 0, 0, 0], [3, 0, 4, 4], [4, 0, 0, 0]]
        assert await world.sql("SELECT count(*) FROM system.topic_partitions") == [[len(TOPICS) + 6]]
        pairs = "SELECT t.name FROM system.topics t JOIN system.topics u ON t.name = u.name WHERE t.partitions = 5"
        assert await world.sql(pairs) == [["wide"]]
        joined = (
            "SELECT t.partitions, p.count FROM system.topics t"
            " JOIN system.topic_partitions p ON t.name = p.topic WHERE p.count > 3"
        )
        assert await world.sql(joined) == [[5, 4]]


async def test_offsets_of_groups_have_the_lag_of_partitions_in_other_shards() -> None:
    async with open_shards(COUNT) as world:
        await make(world)
        assert len({home_of(name, COUNT) for name in GROUPS}) == COUNT
        expected: list[list[Any]] = []
        for group in GROUPS:
            for partition in (1, 3):
                request = AckRequest(topic="wide", group=group, partition=partition, upto_offset=1)
                await world.api.consumers.ack(request, principal=UNRESTRICTED)
                expected.append([group, "wide", partition, 1, partition - 1])
        found = await world.sql(
            "SELECT group_id, topic, partition_id, last_acked_offset, lag FROM system.topic_offsets"
        )
        assert found == expected
        await world.api.delete_topic("wide")
        assert await world.sql("SELECT group_id FROM system.topic_offsets") == []


async def test_a_shard_that_does_not_answer_fails_the_statement() -> None:
    async with open_shards(COUNT) as world:
        await make(world)
        faults = Faults(world)
        faults.cut_off({"SystemPages"})
        for table in sorted(systempages.SPREAD):
            with pytest.raises(Exception):  # noqa: B017, PT011 - of the kind that the fault has
                await world.sql(f"SELECT * FROM system.{table}")
        assert await world.sql("SELECT name FROM system.namespaces") != []
        faults.cut_off(set())
        assert len(await world.sql("SELECT * FROM system.topics")) == len(TOPICS) + 2


async def test_too_many_rows_are_refused() -> None:
    async with open_shards(COUNT) as world:
        await make(world)
        for api in world.apis:
            assert api.sql is not None
            api.sql.system.merged = systemtables.MergedSystemTables(world.located, max_rows=10)
        await refused(world, Reason.RESULT_TOO_LARGE, "SELECT count(*) FROM system.topics")
        await refused(world, Reason.RESULT_TOO_LARGE, "SELECT count(*) FROM system.topic_partitions")
