"""SQL consumers over shards: a topic in one, the group in another, and the statements in that of SQL."""

import asyncio
from typing import Any

import pytest
from shards.faults import Faults
from shards.world import ShardsWorld, open_shards

from support.waiting import until
from topics_service.api.access.auth import UNRESTRICTED
from topics_service.api.sql.requests import AckRequest, ConsumeReply, ConsumeRequest
from topics_service.engine.errors import TopicsError
from topics_service.engine.model import AppendRequest, Batch, ConfigInput
from topics_service.engine.placement import SQL_SHARD, home_of

SHARDS = 3
GROUPS = [next(name for name in map("g{}".format, range(99)) if home_of(name, SHARDS) == shard) for shard in range(3)]
PLACED = next(name for name in map("app.events{}".format, range(99)) if home_of(name, SHARDS) != SQL_SHARD)
ELSEWHERE = next(name for name in map("events{}".format, range(99)) if home_of(name, SHARDS) != SQL_SHARD)
TOPICS = [PLACED, ELSEWHERE]
"""One that SQL has made beside its tables, and one that lies where its name says."""


async def make(world: ShardsWorld, count: int = 0) -> None:
    await world.sql(f"CREATE TOPIC {PLACED}")
    await world.api.put_topic(ELSEWHERE, ConfigInput(), principal=UNRESTRICTED, partition_count=3)
    for topic in TOPICS:
        await append(world, topic, count)


async def append(world: ShardsWorld, topic: str, count: int, partition: int = 0) -> None:
    if count:
        request = AppendRequest(topic=topic, batch=Batch([b"1"] * count), partition=partition)
        await world.api.append(request, principal=UNRESTRICTED)


async def consume(world: ShardsWorld, topic: str, group: str | None, **given: Any) -> ConsumeReply:
    request = ConsumeRequest(topic=topic, group=group, **{"start": "earliest", "timeout_seconds": 0} | given)
    return await world.api.consumers.consume(request, principal=UNRESTRICTED)


async def offsets(world: ShardsWorld, topic: str, group: str | None, **given: Any) -> list[int]:
    return [message.offset for message in (await consume(world, topic, group, **given)).messages]


async def ack(world: ShardsWorld, topic: str, group: str, upto: int, partition: int = 0) -> int:
    request = AckRequest(topic=topic, group=group, upto_offset=upto, partition=partition)
    return await world.api.consumers.ack(request, principal=UNRESTRICTED)


async def position(world: ShardsWorld, topic: str, group: str) -> list[tuple[int, int]]:
    found = await world.api.groups.positions(group, topic, principal=UNRESTRICTED)
    return [(each.partition, each.from_seq) for each in found]


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("topic", TOPICS)
async def test_a_group_goes_on_behind_what_it_acked(topic: str, group: str) -> None:
    async with open_shards(SHARDS) as world:
        await make(world, 5)
        assert await offsets(world, topic, group, limit=2) == [0, 1]
        assert await ack(world, topic, group, 1) == 1
        assert await offsets(world, topic, group) == [2, 3, 4]
        assert await ack(world, topic, group, 3) == 3
        assert await ack(world, topic, group, 0) == 3, "it never goes back"
        assert await position(world, topic, group) == [(0, 4)]
        assert world.engines[home_of(group, SHARDS)].groups.find(group) is not None
        with pytest.raises(TopicsError) as error:
            await ack(world, topic, group, 5)
        assert error.value.reason.code == "invalid_request"


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("topic", TOPICS)
async def test_claims_are_where_the_partition_is(topic: str, group: str) -> None:
    async with open_shards(SHARDS) as world:
        await make(world, 5)

        async def claim() -> tuple[list[int], str]:
            page = await consume(world, topic, group, limit=2, visibility_seconds=60)
            assert page.claim is not None
            return [message.offset for message in page.messages], page.claim.claim_id

        (first, a), (second, b) = await claim(), await claim()
        assert (first, second) == ([0, 1], [2, 3])
        for name, acked in ((b, -1), (a, 3)):
            request = AckRequest(topic=topic, group=group, upto_offset=None, claim_id=name)
            assert await world.api.consumers.ack(request, principal=UNRESTRICTED) == acked
        assert await position(world, topic, group) == [(0, 4)]
        assert (await claim())[0] == [4]
        assert await ack(world, topic, group, 4) == 4


@pytest.mark.parametrize("group", GROUPS)
async def test_each_partition_has_its_own_position(group: str) -> None:
    async with open_shards(SHARDS) as world:
        await make(world)
        for partition in range(3):
            await append(world, ELSEWHERE, 3, partition)
            assert await ack(world, ELSEWHERE, group, partition, partition) == partition
        for partition in range(3):
            left = list(range(partition + 1, 3))
            assert await offsets(world, ELSEWHERE, group, partition=partition) == left
        assert await position(world, ELSEWHERE, group) == [(0, 1), (1, 2), (2, 3)]


@pytest.mark.parametrize("group", GROUPS)
async def test_the_statements_move_the_same_positions(group: str) -> None:
    async with open_shards(SHARDS) as world:
        await make(world, 4)
        assert len(await world.sql(f"CONSUME FROM {PLACED} GROUP '{group}' FROM EARLIEST LIMIT 3")) == 3
        await world.sql(f"ACK {PLACED} GROUP '{group}' UPTO OFFSET 2")
        assert await position(world, PLACED, group) == [(0, 3)]
        assert len(await world.sql(f"CONSUME FROM {PLACED} GROUP '{group}' FROM EARLIEST")) == 1
        assert await offsets(world, PLACED, group) == [3]


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("topic", TOPICS)
async def test_a_group_that_begins_at_the_latest_misses_nothing_from_then_on(topic: str, group: str) -> None:
    async with open_shards(SHARDS) as world:
        await make(world, 3)
        waiting = [asyncio.create_task(consume(world, topic, group, start="latest", timeout_seconds=20)) for _ in "ab"]
        await until(lambda: _is_pinned(world, topic, group))
        await append(world, topic, 2)
        for reply in await asyncio.gather(*waiting):
            assert [message.offset for message in reply.messages] == [3, 4]
        assert await position(world, topic, group) == [(0, 3)]
        assert await offsets(world, topic, group) == [3, 4]


def _is_pinned(world: ShardsWorld, topic: str, group: str) -> bool:
    return world.engines[home_of(group, SHARDS)].groups.position(group, topic, 0) is not None


async def test_the_latest_is_that_before_the_group_was_asked() -> None:
    """A record that comes while the position is being noted in the group's shard is delivered."""
    async with open_shards(SHARDS) as world:
        await make(world, 1)
        group = next(group for group in GROUPS if home_of(group, SHARDS) != home_of(ELSEWHERE, SHARDS))
        with Faults(world).before("PositionsApi.pin", lambda: append(world, ELSEWHERE, 1)):
            reply = await consume(world, ELSEWHERE, group, start="latest", timeout_seconds=20)
        assert [message.offset for message in reply.messages] == [1]


async def test_an_ack_of_a_topic_that_was_made_again_is_refused() -> None:
    async with open_shards(SHARDS) as world:
        await make(world, 3)
        group = next(group for group in GROUPS if home_of(group, SHARDS) != home_of(ELSEWHERE, SHARDS))

        async def remake() -> None:
            await world.api.delete_topic(ELSEWHERE)
            await append(world, ELSEWHERE, 5)

        with Faults(world).before("PositionsApi.advance", remake), pytest.raises(TopicsError) as error:
            await ack(world, ELSEWHERE, group, 2)
        assert error.value.reason.code == "topic_not_found"
        assert await offsets(world, ELSEWHERE, group) == [0, 1, 2, 3, 4]


async def test_a_plain_read_needs_no_group() -> None:
    async with open_shards(SHARDS) as world:
        await make(world, 3)
        for topic in TOPICS:
            assert await offsets(world, topic, None) == [0, 1, 2]
        assert not any(len(engine.groups) for engine in world.engines)
