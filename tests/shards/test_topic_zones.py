"""A topic that names a zone lies in the shards that prefer it."""

import pytest
from shards.world import ShardsWorld, open_shards

from topics_service.api.access.auth import UNRESTRICTED
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.model import AppendRequest, Batch, ConfigInput, DiffRequest, ListTopicsRequest, PutTopicReply
from topics_service.engine.placement import (
    Place,
    group_of,
    home_of,
    placement_in_zone,
    shard_of,
    shards_of,
    zone_of,
)

COUNT = 4
ZONES = {"a": [1, 3], "b": [2]}
NAMES = [f"t{n}" for n in range(12)]


def open_zones(world: ShardsWorld, zones: dict[str, list[int]] = ZONES) -> None:
    world.api.zones = lambda zone: zones.get(zone, [])


async def put(world: ShardsWorld, name: str, zone: str = "", partitions: int | None = None) -> PutTopicReply:
    return await world.api.put_topic(name, ConfigInput(), principal=UNRESTRICTED, zone=zone, partition_count=partitions)


def holders(world: ShardsWorld, name: str) -> dict[int, list[int]]:
    """The partitions of a topic in each shard that has some."""
    found = {shard: engine.catalog.find(name) for shard, engine in enumerate(world.engines)}
    return {
        shard: [n for n in range(topic.partition_count) if topic.find_log(n) is not None]
        for shard, topic in found.items()
        if topic is not None and topic.logs
    }


async def append(world: ShardsWorld, name: str, partition: int, text: str) -> None:
    request = AppendRequest(topic=name, partition=partition, batch=Batch([text.encode()]))
    await world.api.append(request, principal=UNRESTRICTED)


def test_placements_say_where_partitions_are() -> None:
    placement = placement_in_zone("a", [3, 1])
    assert (zone_of(placement), group_of(placement)) == ("a", "")
    assert (zone_of("orders"), group_of("orders")) == ("", "orders")
    assert (zone_of(""), group_of("")) == ("", "")
    homes = set()
    for name in NAMES:
        spreads = [Place(shard, COUNT).spread(name, 5, placement) for shard in range(COUNT)]
        for partition in range(5):
            there = [shard for shard, spread in enumerate(spreads) if partition in spread.numbers]
            assert there == [shard_of(name, partition, COUNT, placement)]
            assert shards_of(name, COUNT, placement)[partition % 2] == there[0]
        homes.add(shard_of(name, 0, COUNT, placement))
        assert [shard for shard in range(COUNT) if Place(shard, COUNT).is_home(name, placement)] == [
            shard_of(name, 0, COUNT, placement)
        ]
    assert homes == {1, 3}, "topics with one partition are in both"


@pytest.mark.parametrize("name", NAMES)
async def test_all_partitions_are_in_the_zone(name: str) -> None:
    async with open_shards(COUNT) as world:
        open_zones(world)
        reply = await put(world, name, "a", 3)
        assert (reply.created, reply.identity.zone, reply.identity.group) == (True, "a", "")
        for forgotten in (False, True):
            for partition in range(3):
                if forgotten:
                    world.located.forget(name)  # as another node, or after a start
                await append(world, name, partition, f"{partition}")
        found = holders(world, name)
        assert set(found) == {1, 3}
        assert sorted(n for numbers in found.values() for n in numbers) == [0, 1, 2]
        for partition in range(3):
            world.located.forget(name)
            page = await world.api.diff(DiffRequest(topic=name, partition=partition, from_seq=0))
            assert page.head_seq == 2
        world.located.forget(name)
        state = await world.api.get_topic(name)
        assert (state.identity.zone, [each.head_seq for each in state.partitions]) == ("a", [2, 2, 2])
        world.located.forget(name)
        [listed] = (await world.api.list_topics(ListTopicsRequest(), principal=UNRESTRICTED)).topics
        assert (listed.head_seq, listed.count, listed.partition_count) == (2, 6, 3)
        assert (await put(world, name, "", 5)).identity.partition_count == 5
        await append(world, name, 4, "grown")
        assert set(holders(world, name)) == {1, 3}
        world.located.forget(name)
        assert (await world.api.delete_topic(name)).deleted
        assert not holders(world, name)
        world.located.forget(name)
        assert (await put(world, name, "b", 2)).created
        await append(world, name, 1, "again")
        assert set(holders(world, name)) == {2}
        assert (await world.api.delete_topic(name)).deleted
        assert (await put(world, name, "", 2)).created
        await append(world, name, 1, "plain")
        assert set(holders(world, name)) == {home_of(name, COUNT), shard_of(name, 1, COUNT)}


async def test_a_topic_stays_where_it_was_made_when_shards_prefer_another_zone() -> None:
    async with open_shards(COUNT) as world:
        zones = dict(ZONES)
        open_zones(world, zones)
        for name in NAMES:
            await put(world, name, "a", 2)
        zones["a"] = [0, 2]
        for name in NAMES:
            world.located.forget(name)
            assert not (await put(world, name, "a")).created
            await append(world, name, 1, "x")
            assert set(holders(world, name)) == {1, 3}
        del zones["a"]
        assert not (await put(world, NAMES[0], "a")).created, "it is there, whatever shards prefer now"


async def test_zones_that_are_refused() -> None:
    async with open_shards(COUNT) as world:
        open_zones(world)

        async def refusal(name: str, zone: str, placement: str = "") -> TopicsError:
            with pytest.raises(TopicsError) as caught:
                await world.api.put_topic(name, ConfigInput(), principal=UNRESTRICTED, zone=zone, placement=placement)
            return caught.value

        unknown = await refusal("t", "c")
        assert (unknown.reason, unknown.detail) == (Reason.ZONE_NOT_FOUND, {"zone": "c"})
        assert (await refusal("t", "a,b")).reason is Reason.INVALID_REQUEST
        assert (await refusal("t", "a", "orders")).reason is Reason.INVALID_REQUEST
        assert (await refusal("t", "", placement_in_zone("a", [0]))).reason is Reason.INVALID_REQUEST
        assert not holders(world, "t")
        await put(world, "t", "a")
        await put(world, "u")
        for name, zone, placement, had in (("t", "b", "", "a"), ("t", "", "orders", "a"), ("u", "a", "", None)):
            world.located.forget(name)
            refused = await refusal(name, zone, placement)
            assert refused.reason is Reason.TOPIC_EXISTS_INCOMPATIBLE
            assert (refused.detail or {}).get("zone") == had


async def test_a_name_is_free_when_the_topic_was_not_made() -> None:
    async with open_shards(COUNT) as world:
        open_zones(world)
        for name in NAMES:
            with pytest.raises(TopicsError):
                await world.api.put_topic(name, ConfigInput(type="nothing"), principal=UNRESTRICTED, zone="a")
            await append(world, name, 0, "1")
            assert set(holders(world, name)) == {home_of(name, COUNT)}
