"""Topics of a placement group lie in its shard, wherever their names lead."""

import asyncio

import pytest
from shards.world import ShardsWorld, open_shards

from topics_service.api.access.auth import UNRESTRICTED
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.model import AppendRequest, Batch, ConfigInput, PutTopicReply
from topics_service.engine.placement import SQL_SHARD, home_of, shard_of_placement

COUNT = 3
GROUP = "orders"
SHARD = home_of(GROUP, COUNT)
NAMES = [name for name in (f"t{n}" for n in range(20)) if home_of(name, COUNT) != SHARD][:4]


async def put(world: ShardsWorld, name: str, placement: str = "") -> PutTopicReply:
    return await world.api.put_topic(name, ConfigInput(), principal=UNRESTRICTED, placement=placement)


def holders(world: ShardsWorld, name: str) -> list[int]:
    return [shard for shard, engine in enumerate(world.engines) if engine.has_topic(name)]


async def test_topics_of_one_group_are_in_one_shard() -> None:
    async with open_shards(COUNT) as world:
        for name in NAMES:
            reply = await put(world, name, GROUP)
            assert (reply.created, reply.identity.placement) == (True, GROUP)
            assert holders(world, name) == [SHARD]
            assert not (await put(world, name, GROUP)).created
            assert (await put(world, name)).identity.placement == GROUP


async def test_the_group_of_sql_is_where_tables_are() -> None:
    assert shard_of_placement("sql", COUNT) == SQL_SHARD
    async with open_shards(COUNT) as world:
        await world.sql("CREATE TABLE items (id INT PRIMARY KEY)")
        for name in NAMES:
            await put(world, name, "sql")
            await world.sql(f"ALTER TOPIC {name} ADD SOURCE items ON INSERT")


@pytest.mark.parametrize(("first", "second"), [("", GROUP), (GROUP, "other"), (GROUP, "sql")])
async def test_the_group_of_a_topic_stays(first: str, second: str) -> None:
    async with open_shards(COUNT) as world:
        await put(world, NAMES[0], first)
        with pytest.raises(TopicsError) as caught:
            await put(world, NAMES[0], second)
        assert caught.value.reason is Reason.TOPIC_EXISTS_INCOMPATIBLE
        assert (await put(world, NAMES[0])).identity.placement == first


async def test_a_deleted_topic_can_get_another_group() -> None:
    async with open_shards(COUNT) as world:
        for group in (GROUP, "", "sql", GROUP):
            assert (await put(world, NAMES[0], group)).created
            assert holders(world, NAMES[0]) == [shard_of_placement(group, COUNT) if group else home_of(NAMES[0], COUNT)]
            world.located.forget(NAMES[0])
            assert (await world.api.delete_topic(NAMES[0])).deleted


async def test_a_name_is_free_when_the_topic_was_not_made() -> None:
    async with open_shards(COUNT) as world:
        for bad in (ConfigInput(type="nothing"), ConfigInput(durability="stone")):
            with pytest.raises(TopicsError):
                await world.api.put_topic(NAMES[0], bad, principal=UNRESTRICTED, placement=GROUP)
        await world.api.append(AppendRequest(topic=NAMES[0], batch=Batch([b"1"])), principal=UNRESTRICTED)
        assert holders(world, NAMES[0]) == [home_of(NAMES[0], COUNT)]


async def test_a_reservation_without_its_topic_is_in_nobodys_way() -> None:
    async with open_shards(COUNT) as world:
        async with world.located.placed(NAMES[0], GROUP):
            pass  # killed here
        world.located.forget(NAMES[0])
        assert (await put(world, NAMES[0])).created
        assert holders(world, NAMES[0]) == [home_of(NAMES[0], COUNT)]


async def test_two_groups_at_once() -> None:
    async with open_shards(COUNT) as world:
        groups = ["a", "b", "c", "d"]
        made = await asyncio.gather(*(put(world, NAMES[0], group) for group in groups), return_exceptions=True)
        created = [reply for reply in made if isinstance(reply, PutTopicReply)]
        assert created
        assert len({reply.identity.topic_id for reply in created}) == 1
        assert len(holders(world, NAMES[0])) == 1
