"""Topics with partitions in several shards."""

import pytest
from shards.world import ShardsWorld, open_shards

from topics_service.api.access.auth import UNRESTRICTED
from topics_service.api.parts import PartsApi
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.model import AppendRequest, Batch, ConfigInput, DeleteRequest, DiffRequest
from topics_service.engine.placement import home_of, shard_of


async def put(world: ShardsWorld, name: str, count: int | None = None, **config: int) -> None:
    await world.api.put_topic(name, ConfigInput(**config), principal=UNRESTRICTED, partition_count=count)  # type: ignore[arg-type]


async def append(world: ShardsWorld, name: str, partition: int, data: bytes = b"1") -> int:
    request = AppendRequest(topic=name, partition=partition, batch=Batch([data]))
    return (await world.api.append(request, principal=UNRESTRICTED)).first_seq


async def test_each_partition_lies_in_its_shard() -> None:
    async with open_shards(3) as world:
        await put(world, "t", 7)
        for partition in range(7):
            for n in range(1, partition + 2):
                assert await append(world, "t", partition) == n
        for partition in range(7):
            page = await world.api.diff(DiffRequest(topic="t", partition=partition))
            assert (page.partition, page.head_seq, page.partition_count) == (partition, partition + 1, 7)
        for shard, engine in enumerate(world.engines):
            topic = engine.catalog.topics["t"]
            assert topic.is_part == (shard != home_of("t", 3))
            assert [number for number, _ in topic.numbered()] == [p for p in range(7) if shard_of("t", p, 3) == shard]
            assert topic.identity.partition_count == 7
        identities = {engine.catalog.topics["t"].identity for engine in world.engines}
        assert len(identities) == 1, "the epoch is that of home in all of them"


async def test_a_part_is_made_when_it_is_needed() -> None:
    async with open_shards(3) as world:
        await put(world, "t", 3)
        home = home_of("t", 3)
        assert [engine.has_topic("t") for engine in world.engines] == [shard == home for shard in range(3)]
        await append(world, "t", 1)
        assert [engine.has_topic("t") for engine in world.engines] == [
            shard in (home, (home + 1) % 3) for shard in range(3)
        ]


@pytest.mark.parametrize("partition", [-1, 3, 4, 1 << 40])
async def test_a_partition_that_does_not_exist(partition: int) -> None:
    async with open_shards(3) as world:
        await put(world, "t", 3)
        with pytest.raises(TopicsError) as error:
            await append(world, "t", partition)
        assert error.value.reason is Reason.PARTITION_NOT_FOUND
        assert error.value.detail == {"topic": "t", "partition": partition, "partition_count": 3}
        home = home_of("t", 3)
        assert [engine.has_topic("t") for engine in world.engines] == [shard == home for shard in range(3)]


async def test_a_topic_that_does_not_exist_is_answered_by_its_home() -> None:
    async with open_shards(3) as world:
        with pytest.raises(TopicsError) as error:
            await append(world, "t", 1)
        assert error.value.detail == {"topic": "t", "partition": 1, "partition_count": 1}
        with pytest.raises(TopicsError) as error:
            await world.api.diff(DiffRequest(topic="t", partition=2))
        assert error.value.reason is Reason.TOPIC_NOT_FOUND
        assert not any(engine.has_topic("t") for engine in world.engines)


async def test_a_change_reaches_all_parts_before_it_is_acknowledged() -> None:
    async with open_shards(3) as world:
        await put(world, "t", 3)
        for partition in range(3):
            for _ in range(4):
                await append(world, "t", partition)
        await put(world, "t", 5, cap_records=2)
        for engine in world.engines:
            topic = engine.catalog.topics["t"]
            assert (topic.config.cap_records, topic.partition_count) == (2, 5)
            assert not engine.parts.pending
        for partition in range(5):
            page = await world.api.diff(DiffRequest(topic="t", partition=partition))
            assert page.head_seq - page.earliest_seq + 1 == (2 if partition < 3 else 0)
        assert await append(world, "t", 4) == 1


async def test_a_deletion_removes_all_parts() -> None:
    async with open_shards(3) as world:
        await put(world, "t", 6)
        for partition in range(6):
            await append(world, "t", partition)
        reply = await world.api.delete_topic("t")
        assert reply.deleted
        for engine in world.engines:
            assert not engine.has_topic("t")
            assert (engine.parts.pending, engine.writer.total_records) == ({}, 0)
        await put(world, "t", 6)
        for partition in range(6):
            assert await append(world, "t", partition) == 1


async def test_only_an_empty_topic_is_deleted_with_if_empty() -> None:
    async with open_shards(3) as world:
        await put(world, "t", 3)
        for partition in (1, 2):
            await append(world, "t", partition)
        with pytest.raises(TopicsError) as error:
            await world.api.delete_topic("t", if_empty=True)
        assert error.value.detail == {"topic": "t", "count": 2}
        for partition in (1, 2):
            await world.api.delete_records(DeleteRequest(topic="t", partition=partition, before_seq=2))
        assert (await world.api.delete_topic("t", if_empty=True)).deleted
        assert not (await world.api.delete_topic("t", if_empty=True)).deleted


async def test_a_copy_of_a_dead_life_is_refused() -> None:
    async with open_shards(3) as world:
        await put(world, "t", 3)
        other = (home_of("t", 3) + 1) % 3
        dead = await world.shards.call(home_of("t", 3), PartsApi.extend, "t", other)
        await world.api.delete_topic("t")
        with pytest.raises(TopicsError) as error:
            await world.shards.call(other, PartsApi.adopt, dead)
        assert error.value.reason is Reason.TOPIC_NOT_FOUND
        await put(world, "t", 3)
        assert await append(world, "t", 1) == 1
        with pytest.raises(TopicsError):
            await world.shards.call(other, PartsApi.adopt, dead)
        assert await world.shards.call(other, PartsApi.drop, "t", dead.topic_id) == []
        assert await append(world, "t", 1) == 2, "a late drop leaves the next life alone"


async def test_the_extents_of_partitions() -> None:
    async with open_shards(3) as world:
        await put(world, "t", 6)
        for _ in range(3):
            await append(world, "t", 4)
        found = await world.shards.call(shard_of("t", 4, 3), PartsApi.extents, [("t", 4), ("t", 1), ("t", 0), ("u", 0)])
        four, one, *others = [None if each is None else each.state for each in found]
        assert four is not None
        assert (four.partition, four.head_seq, four.earliest_seq, four.count) == (4, 3, 1, 3)
        assert one is not None
        assert (one.partition, one.head_seq, one.earliest_seq, one.count) == (1, 0, 1, 0)
        assert others == [None, None]
