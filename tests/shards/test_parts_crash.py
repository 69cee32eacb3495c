"""Topics with parts, whose shards crash or do not answer in the middle of a change."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import pytest
from engine.engine_support import records
from shards.fragile import FragileWorld, fragile_shards

from topics_service.api.access.auth import UNRESTRICTED
from topics_service.api.parts import PartsApi
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.model import AppendRequest, Batch, ConfigInput, DiffRequest
from topics_service.engine.placement import home_of
from topics_shards.shards import LostCallError

RETRIED: Final = (Reason.NOT_READY, Reason.THROTTLED)


async def put(world: FragileWorld, count: int | None = None, name: str = "t", **config: int) -> None:
    given = ConfigInput(durability="fsync", **config)  # type: ignore[arg-type]
    await world.api.put_topic(name, given, principal=UNRESTRICTED, partition_count=count)


async def append(world: FragileWorld, partition: int, data: bytes, name: str = "t") -> int:
    request = AppendRequest(topic=name, partition=partition, batch=Batch([data]), create=False)
    return (await world.api.append(request, principal=UNRESTRICTED)).first_seq


async def read(world: FragileWorld, partition: int, name: str = "t") -> list[bytes]:
    page = await world.api.diff(DiffRequest(topic=name, partition=partition, limit=1000))
    return [data for _, data in records(page)]


async def repeated(world: FragileWorld, run: Callable[[], Awaitable[object]]) -> None:
    """Run something that may be repeated until it succeeds, as clients do."""
    for _ in range(10):
        try:
            await run()
        except LostCallError:
            pass
        except TopicsError as error:
            if error.reason not in RETRIED:
                raise
        else:
            return
        await world.settle()
    raise AssertionError("it never succeeded")


async def a_life(world: FragileWorld) -> None:
    """Create, write, grow, configure, delete and recreate, each until it is acknowledged."""
    await repeated(world, lambda: put(world, 3))
    for partition in range(3):
        await repeated(world, lambda partition=partition: append(world, partition, b"first"))
    await repeated(world, lambda: put(world, 5))
    await repeated(world, lambda: append(world, 4, b"first"))
    await repeated(world, lambda: put(world, cap_records=50))
    await repeated(world, lambda: world.api.delete_topic("t"))
    await repeated(world, lambda: put(world, 4))
    for partition in range(4):
        await repeated(world, lambda partition=partition: append(world, partition, b"second"))


async def check_the_second_life(world: FragileWorld) -> None:
    """Nothing of the first one is left, and all of the second one is there."""
    await world.settle()
    world.check()
    for partition in range(4):
        assert set(await read(world, partition)) == {b"second"}
    for engine in world.engines:
        topic = engine.catalog.find("t")
        if topic is not None:
            assert (topic.partition_count, topic.config.cap_records) == (4, 0)


async def test_a_life_without_faults() -> None:
    async with fragile_shards() as world:
        await a_life(world)
        await check_the_second_life(world)
        assert world.shards.writes > 25


@pytest.mark.parametrize("keep", [True, False], ids=["killed", "power cut"])
@pytest.mark.parametrize("offset", [0, 1, 2], ids=["itself", "next", "before"])
async def test_a_crash_after_each_write(offset: int, *, keep: bool) -> None:
    write = 0
    while True:
        write += 1
        async with fragile_shards() as world:
            world.shards.crash_at = (write, offset, keep)
            await a_life(world)
            await check_the_second_life(world)
            if world.shards.crash_at is not None:  # there are no more writes
                break
    assert write > 25


@pytest.mark.parametrize("method", ["extend", "adopt", "drop", "describe", "put_topic", "delete_topic"])
async def test_an_answer_that_is_lost(method: str) -> None:
    async with fragile_shards() as world:
        world.shards.lost.add(method)
        await a_life(world)
        await check_the_second_life(world)


async def test_a_change_is_not_acknowledged_while_a_shard_is_away() -> None:
    async with fragile_shards() as world:
        await put(world, 3)
        for partition in range(3):
            await append(world, partition, b"1")
        home = home_of("t", 3)
        world.shards.away.add((home + 1) % 3)
        with pytest.raises(TopicsError) as error:
            await put(world, cap_records=9)
        assert (error.value.reason, error.value.detail) == (Reason.NOT_READY, {"topic": "t"})
        with pytest.raises(TopicsError) as error:
            await put(world, cap_records=9)
        assert error.value.reason is Reason.NOT_READY, "it is the config already, but not everywhere"
        assert await append(world, 2, b"2") == 2, "others go on"
        world.shards.crash(home)
        await world.settle()
        await put(world, cap_records=9)
        world.check()


async def test_a_deletion_that_a_shard_does_not_confirm() -> None:
    async with fragile_shards() as world:
        await put(world, 3)
        for partition in range(3):
            await append(world, partition, b"1")
        home = home_of("t", 3)
        other = (home + 1) % 3
        world.shards.away.add(other)
        with pytest.raises(TopicsError) as error:
            await world.api.delete_topic("t")
        assert error.value.reason is Reason.NOT_READY
        for call in (read(world, 0), append(world, 0, b"2")):
            with pytest.raises(TopicsError) as error:
                await call
            assert error.value.reason is Reason.TOPIC_NOT_FOUND
        for again in (world.api.delete_topic("t"), put(world, 3)):
            with pytest.raises(TopicsError) as error:
                await again
            assert error.value.reason is Reason.NOT_READY
        request = AppendRequest(topic="t", batch=Batch([b"2"]))
        with pytest.raises(TopicsError) as error:
            await world.api.append(request, principal=UNRESTRICTED)
        assert (error.value.reason, error.value.retry_after_ms) == (Reason.THROTTLED, 200)
        world.shards.crash(home)
        await world.settle()
        world.check()
        assert not any(engine.has_topic("t") for engine in world.engines)
        await put(world, 3)
        assert [await append(world, partition, b"3") for partition in range(3)] == [1, 1, 1]


async def test_a_copy_that_was_under_way_when_the_topic_was_deleted() -> None:
    async with fragile_shards() as world:
        await put(world, 3)
        home = home_of("t", 3)
        other = (home + 1) % 3
        copy = world.engines[home].parts.register("t", other)
        await world.api.delete_topic("t")
        world.shards.crash(other)
        with pytest.raises(TopicsError) as error:
            await world.shards.call(other, PartsApi.adopt, copy)
        assert error.value.reason is Reason.TOPIC_NOT_FOUND
        await world.settle()
        world.check()


async def test_an_older_config_that_arrives_late_changes_nothing() -> None:
    async with fragile_shards() as world:
        await put(world, 3)
        other = (home_of("t", 3) + 1) % 3
        await append(world, 1, b"1")
        old = await world.shards.call(home_of("t", 3), PartsApi.describe, "t")
        await put(world, 6, cap_records=7)
        await world.shards.call(other, PartsApi.adopt, old)
        world.check()
        assert world.engines[other].catalog.topics["t"].config.cap_records == 7


async def test_changes_at_the_same_time() -> None:
    async with fragile_shards() as world:
        for node in world.shards.nodes:
            node.api.parts.patience_seconds = 20
        await put(world, 3)
        for partition in range(3):
            await append(world, partition, b"1")

        async def later(cap: int) -> None:
            for _ in range(cap * 5):  # turns of the loop: while parts are told of the change before
                await asyncio.sleep(0)
            await put(world, cap_records=cap)

        changes = [later(cap) for cap in range(3, 30)]
        extended = [world.located.extend("t", shard) for shard in range(3)]
        await asyncio.gather(*changes, *extended, put(world, 7, cap_records=2), append(world, 1, b"2"))
        world.check()
        for engine in world.engines:
            topic = engine.catalog.topics["t"]
            assert (topic.partition_count, topic.config.cap_records) == (7, 29)


async def test_a_placed_topic_is_still_found_after_a_call_that_its_shard_did_not_answer() -> None:
    """Its name leads there as before: the call that failed did not reserve it first."""
    async with fragile_shards() as world:
        call = world.api.put_topic
        name = next(f"p{n}" for n in range(99) if home_of(f"p{n}", 3) != home_of("g", 3))
        for _ in range(2):
            reply = await call(name, ConfigInput(), principal=UNRESTRICTED, placement="g")
            world.shards.away.add(home_of("g", 3))
            with pytest.raises(TopicsError) as error:
                await call(name, ConfigInput(), principal=UNRESTRICTED, placement="g")
            assert error.value.reason is Reason.NOT_READY
            await world.settle()
            world.located.forget(name)
            assert (await world.api.get_topic(name)).identity == reply.identity
        with pytest.raises(TopicsError):
            await call("another", ConfigInput(type="queue"), principal=UNRESTRICTED, placement="g", partition_count=2)
        assert await world.located.find("another") is None, "a topic that was refused leaves no reservation"
