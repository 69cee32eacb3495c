"""The state and the list of topics over several shards: as one engine with the same topics has them."""

import dataclasses
from collections import Counter
from contextlib import AsyncExitStack
from random import Random
from typing import Any, Final, Self

import pytest
from engine.engine_support import FakeClock
from msgspec.structs import replace
from shards.world import ShardsWorld, open_shards

from topics_service.api.access.auth import UNRESTRICTED, Principal
from topics_service.api.parts import PartsApi
from topics_service.api.topics import TopicsApi
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.model import (
    AppendRequest,
    Batch,
    ConfigInput,
    DiffRequest,
    ListTopicsReply,
    ListTopicsRequest,
    TopicState,
)
from topics_service.engine.offsets.positions import ListGroupsRequest
from topics_service.engine.placement import home_of
from topics_service.engine.router.router import ListRoutersRequest
from topics_shards.wire.methods import RemoteMethod

_COUNTS: Final = (1, 1, 1, 2, 3, 5, 8)


class Twins(AsyncExitStack):
    """The same calls to one shard, and to three."""

    one: ShardsWorld
    three: ShardsWorld

    async def __aenter__(self) -> Self:
        self.one = await self.enter_async_context(open_shards(1))
        self.three = await self.enter_async_context(open_shards(3))
        for world in (self.one, self.three):
            clock = FakeClock()
            for engine in world.engines:
                for part in (engine, engine.catalog, engine.parts):
                    part._clock = clock
        return self

    async def put(self, name: str, count: int | None = None, **config: Any) -> None:
        for world in (self.one, self.three):
            await world.api.put_topic(name, ConfigInput(**config), principal=UNRESTRICTED, partition_count=count)

    async def append(self, name: str, partition: int, data: bytes) -> None:
        for world in (self.one, self.three):
            request = AppendRequest(topic=name, partition=partition, batch=Batch([data]))
            await world.api.append(request, principal=UNRESTRICTED)

    async def read(self, name: str, partition: int) -> None:
        for world in (self.one, self.three):
            await world.api.diff(DiffRequest(topic=name, partition=partition))

    async def fill(self, chance: Random, topics: int) -> list[str]:
        names = [f"{chance.choice('abc')}.{number}" for number in range(topics)]
        for name in names:
            count = chance.choice(_COUNTS)
            await self.put(name, count)
            for _ in range(chance.randrange(4)):
                await self.append(name, chance.randrange(count), b"x" * chance.randrange(9))
            if chance.random() < 0.3:
                await self.read(name, chance.randrange(count))
        return names

    async def state(self, name: str, **request: Any) -> TopicState:
        found = [await world.api.get_topic(name, **request) for world in (self.one, self.three)]
        assert told(found[0]) == told(found[1])
        return found[1]

    async def page(self, principal: Principal = UNRESTRICTED, **request: Any) -> ListTopicsReply:
        found = []
        for world in (self.one, self.three):
            page = await world.api.list_topics(ListTopicsRequest(**request), principal=principal)
            assert not any(line.partitions for line in page.topics), "all partitions are counted"
            found.append(replace(page, topics=[replace(line, topic_id="") for line in page.topics]))
        assert found[0] == found[1]
        return found[1]


def told(state: TopicState) -> TopicState:
    """A state without what is random in it, or the count of its shard."""
    identity = replace(state.identity, topic_id="", epoch=0)
    return replace(state, identity=identity, partitions=list(state.partitions))


async def test_the_states_of_topics() -> None:
    async with Twins() as twins:
        for name in await twins.fill(Random(1), 30):
            count = (await twins.state(name, touch=False)).identity.partition_count
            for partition in range(count):
                state = await twins.state(name, partition=partition)
                assert state.partition == partition
                assert [each.partition for each in state.partitions] == ([] if count == 1 else [*range(count)])


@pytest.mark.parametrize("touch", [False, True])
@pytest.mark.parametrize("size", [1, 2, 7, 100])
async def test_the_pages_of_a_list(size: int, *, touch: bool) -> None:
    async with Twins() as twins:
        names = sorted(await twins.fill(Random(2), 25))
        for prefix in ("", "a.", "b.1", "x"):
            found: list[str] = []
            after = None
            while True:
                page = await twins.page(prefix=prefix, after=after, page_size=size, touch=touch)
                found += [line.topic for line in page.topics]
                after = page.next_after
                if after is None:
                    break
                assert len(page.topics) == size
            assert found == [name for name in names if name.startswith(prefix)]


async def test_a_page_asks_each_shard_for_little_more_than_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page over eight shards costs one call for each, some hundred bytes for a topic, and not much that it drops."""
    topics, size, asked = 1000, 100, Counter[str]()
    method = RemoteMethod(TopicsApi.list_topics, is_read=True)
    async with open_shards(8, wired=False) as world:
        for number in range(topics):
            await world.api.put_topic(f"topic-{number:04}", ConfigInput(), principal=UNRESTRICTED)
        call = world.shards.call

        async def counted(shard: int, *args: Any, **kwargs: Any) -> Any:
            page = await call(shard, *args, **kwargs)
            asked["calls"] += 1
            asked["topics"] += len(page.topics)
            asked["bytes"] += len(method.encode_result(page))
            return page

        monkeypatch.setattr(world.shards, "call", counted)
        after, pages = None, 0
        while True:
            page = await world.api.list_topics(ListTopicsRequest(after=after, page_size=size), principal=UNRESTRICTED)
            after, pages = page.next_after, pages + 1
            if after is None:
                break
    assert pages == topics / size
    assert asked["calls"] <= 8 * pages * 1.1
    assert asked["topics"] <= topics * 1.6
    assert asked["bytes"] <= asked["topics"] * 120


async def test_a_caller_sees_only_what_it_may_know_of() -> None:
    async with Twins() as twins:
        await twins.fill(Random(3), 20)
        page = await twins.page(dataclasses.replace(UNRESTRICTED, prefixes=("a.", "c.1")))
        assert {state.topic[0] for state in page.topics} == {"a", "c"}


async def test_a_page_has_at_most_10_000_partitions() -> None:
    async with Twins() as twins:
        for number in range(12):
            await twins.put(f"t{number:02}", 1000)
        found = []
        after = None
        while True:
            page = await twins.page(after=after)
            found.append(len(page.topics))
            after = page.next_after
            if after is None:
                break
        assert found == [10, 2]


async def test_a_list_does_not_make_parts() -> None:
    async with Twins() as twins:
        await twins.put("t", 6)
        await twins.page()
        await twins.state("t", partition=4)
        assert [engine.has_topic("t") for engine in twins.three.engines].count(True) == 1


async def test_what_was_read_in_another_shard_counts_for_the_topic() -> None:
    async with Twins() as twins:
        await twins.put("t", 3)
        await twins.read("t", 1)
        state = await twins.state("t", touch=False)
        assert (state.effective_priority, state.last_read_ts) == (500, FakeClock().now_ms())


@pytest.mark.parametrize("partition", [-1, 3, 9])
async def test_a_state_of_a_partition_that_does_not_exist(partition: int) -> None:
    async with Twins() as twins:
        await twins.put("t", 3)
        for world in (twins.one, twins.three):
            with pytest.raises(TopicsError) as error:
                await world.api.get_topic("t", partition=partition)
            assert error.value.detail == {"topic": "t", "partition": partition, "partition_count": 3}


async def test_a_placed_topic_with_a_part_is_found_from_its_name() -> None:
    """Another shard may have a part of a topic that has all its partitions in the shard of its placement group."""
    async with open_shards(3) as world:
        group = "g"
        name = next(f"t{n}" for n in range(99) if home_of(f"t{n}", 3) != home_of(group, 3))
        call = world.api.put_topic
        await call(name, ConfigInput(), principal=UNRESTRICTED, partition_count=4, placement=group)
        await world.located.extend(name, home_of(name, 3))
        assert [engine.catalog.find(name) is not None for engine in world.engines].count(True) == 2
        world.located.forget(name)
        state = await world.api.get_topic(name, partition=3)
        assert (state.identity.placement, state.identity.partition_count) == (group, 4)
        world.located.forget(name)
        request = AppendRequest(topic=name, partition=2, batch=Batch([b"1"]))
        assert (await world.api.append(request, principal=UNRESTRICTED)).partition_count == 4
        world.located.forget(name)
        reply = await call(name, ConfigInput(cap_records=3), principal=UNRESTRICTED, partition_count=5)
        assert (reply.created, reply.identity.partition_count) == (False, 5)
        reply = await call(name, ConfigInput(cap_records=4), principal=UNRESTRICTED, placement=group)
        known = [engine.catalog.topics[name] for engine in world.engines if engine.has_topic(name)]
        assert [topic.config.cap_records for topic in known] == [4, 4]
        with pytest.raises(TopicsError) as error:
            await world.shards.call(home_of(name, 3), PartsApi.extend, name, home_of(group, 3))
        assert error.value.reason is Reason.INTERNAL
        world.located.forget(name)
        assert (await world.api.delete_topic(name)).deleted
        assert not any(engine.has_topic(name) for engine in world.engines)
        assert (await call(name, ConfigInput(), principal=UNRESTRICTED)).created


async def test_a_shard_that_is_away_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients try again after `not_ready`, and not after an internal error."""
    async with open_shards(3) as world:
        await world.api.put_topic("wide", ConfigInput(), principal=UNRESTRICTED, partition_count=8)
        away, call = (home_of("wide", 3) + 1) % 3, world.shards.call

        async def reached(shard: int, *args: Any, **kwargs: Any) -> Any:
            if shard == away:
                raise TopicsError(Reason.NOT_READY, "its node is gone")
            return await call(shard, *args, **kwargs)

        monkeypatch.setattr(world.shards, "call", reached)
        for found in (
            world.api.get_topic("wide"),
            world.api.list_topics(ListTopicsRequest(), principal=UNRESTRICTED),
            world.api.groups.page(ListGroupsRequest(), principal=UNRESTRICTED),
            world.api.routers.page(ListRoutersRequest(), principal=UNRESTRICTED),
        ):
            with pytest.raises(TopicsError) as error:
                await found
            assert error.value.reason is Reason.NOT_READY
