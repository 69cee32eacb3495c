"""Writes that are taken in ahead of their acks: their order, their outcomes, and what comes after them."""

import asyncio

import pytest
from shards.far import names
from shards.world import ShardsWorld, open_shards

from support.waiting import until
from topics_service.api.access.auth import UNRESTRICTED, Principal, Scope
from topics_service.api.running import LostCallError
from topics_service.api.topics import Submitted, TopicsApi
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.model import AppendRequest, Batch, ConfigInput, DiffRequest

NEAR, FAR = (next(iter(names(shard))) for shard in (0, 1))


async def submit(world: ShardsWorld, topic: str, data: bytes, partition: int = 0) -> Submitted:
    request = AppendRequest(topic=topic, partition=partition, batch=Batch([data]))
    return await world.api.submit(request, principal=UNRESTRICTED)


async def stored(world: ShardsWorld, topic: str, partition: int = 0) -> list[bytes]:
    found = []
    for part in (await world.api.diff(DiffRequest(topic=topic, partition=partition))).slices:
        found += [part.block.record_data(i) for i in range(part.start, part.stop)]
    return found


@pytest.mark.parametrize("topic", [NEAR, FAR])
async def test_writes_keep_their_order(topic: str) -> None:
    async with open_shards(3) as world:
        writes = [await submit(world, topic, b"%d" % i) for i in range(50)]
        replies = [await world.api.settle(write) for write in writes]
        assert [reply.first_seq for reply in replies] == list(range(1, 51))
        assert await stored(world, topic) == [b"%d" % i for i in range(50)]
        assert all(map(world.api.is_settled, writes))


async def test_writes_keep_their_order_when_the_shard_lets_one_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, waits = asyncio.Event(), 0

    async def wait(_: int) -> bool:
        nonlocal waits
        waits += 1
        if waits == 1:
            await gate.wait()
        return True

    async with open_shards(3, wired=True) as world:
        await world.api.settle(await submit(world, FAR, b"0"))
        monkeypatch.setattr(world.apis[1]._pressure, "flushed", wait)
        first = await submit(world, FAR, b"1")
        writes = [await submit(world, FAR, b"%d" % i) for i in range(2, 5)]
        await until(lambda: waits)
        assert not world.api.is_settled(first)
        gate.set()
        assert [(await world.api.settle(each)).first_seq for each in [first, *writes]] == [2, 3, 4, 5]
        assert await stored(world, FAR) == [b"%d" % i for i in range(5)]
        assert not world.apis[1]._turns


async def test_a_write_that_is_cancelled_while_it_waits_for_its_turn_lets_none_overtake() -> None:
    gate = asyncio.Event()

    class Slow(TopicsApi):
        async def submit(self, request: AppendRequest, *, principal: Principal) -> Submitted:
            began.append(request.batch.datas[0])
            await gate.wait()
            return Submitted(error=TopicsError(Reason.TOPIC_FULL, "text"))

        async def settle(self, submitted: Submitted) -> None:  # type: ignore[override]
            return None

    began: list[object] = []
    async with open_shards(1):
        api = object.__new__(Slow)
        api._turns = {}
        requests = [AppendRequest(topic="t", batch=Batch([b"%d" % i])) for i in range(3)]
        tasks = [asyncio.create_task(api.publish(request, principal=UNRESTRICTED)) for request in requests[:2]]
        await asyncio.sleep(0)
        tasks[1].cancel()
        await asyncio.wait((tasks[1],))
        last = asyncio.create_task(api.publish(requests[2], principal=UNRESTRICTED))
        for _ in range(5):
            await asyncio.sleep(0)
        assert began == [b"0"]
        gate.set()
        await asyncio.gather(tasks[0], last)
        assert began == [b"0", b"2"]
        assert not api._turns


@pytest.mark.parametrize("topic", [NEAR, FAR])
async def test_a_write_is_visible_once_all_are_settled(topic: str) -> None:
    async with open_shards(3) as world:
        writes = [await submit(world, topic, b"%d" % i) for i in range(10)]
        await world.api.settle_all(writes)
        assert len(await stored(world, topic)) == 10
        assert all(map(world.api.is_settled, writes))
        assert (await world.api.settle(writes[-1])).first_seq == 10


@pytest.mark.parametrize("topic", [NEAR, FAR])
async def test_a_refusal_comes_with_the_outcome(topic: str) -> None:
    async with open_shards(3) as world:
        full = ConfigInput(cap_records=1, discard="reject")
        await world.api.put_topic(topic, full, principal=UNRESTRICTED)
        first, second, third = [await submit(world, topic, b"%d" % i) for i in range(3)]
        assert (await world.api.settle(first)).first_seq == 1
        for refused in (second, third):
            with pytest.raises(TopicsError) as caught:
                await world.api.settle(refused)
            assert caught.value.reason is Reason.TOPIC_FULL
        await world.api.settle_all((first, second, third))


@pytest.mark.parametrize("topic", [NEAR, FAR])
async def test_writes_to_partitions_of_shards_that_do_not_know_the_topic_yet(topic: str) -> None:
    async with open_shards(3) as world:
        await world.api.put_topic(topic, ConfigInput(), principal=UNRESTRICTED, partition_count=4)
        writes = [await submit(world, topic, b"%d" % i, partition=i % 4) for i in range(12)]
        replies = [await world.api.settle(write) for write in writes]
        assert [(reply.partition, reply.first_seq) for reply in replies] == [(i % 4, i // 4 + 1) for i in range(12)]
        for partition in range(4):
            assert await stored(world, topic, partition) == [b"%d" % i for i in range(partition, 12, 4)]
        absent = await submit(world, topic, b"1", partition=4)
        with pytest.raises(TopicsError) as caught:
            await world.api.settle(absent)
        assert caught.value.reason is Reason.PARTITION_NOT_FOUND


@pytest.mark.parametrize("topic", [NEAR, FAR])
async def test_a_shard_that_lost_its_part_with_an_earlier_life_does_not_deny_the_topic(topic: str) -> None:
    async with open_shards(3) as world:
        for life in (1, 2):
            await world.api.put_topic(topic, ConfigInput(), principal=UNRESTRICTED, partition_count=3)
            for partition in range(3):
                if life == 2 and world.located.shard(topic, partition) != world.located.home(topic):
                    with pytest.raises(TopicsError) as caught:
                        await world.api.settle(await submit(world, topic, b"0", partition))
                    assert caught.value.reason is Reason.NOT_READY
                await world.api.settle(await submit(world, topic, b"0", partition))
                assert await stored(world, topic, partition) == [b"0"]
            await world.api.delete_topic(topic)
        gone = await submit(world, topic, b"1", partition=1)
        with pytest.raises(TopicsError) as caught:
            await world.api.settle(gone)
        assert caught.value.reason is Reason.TOPIC_NOT_FOUND


async def test_a_caller_that_may_not_write() -> None:
    reader = Principal("key1", frozenset({Scope.READ}), ("other",))
    async with open_shards(3) as world:
        request = AppendRequest(topic=FAR, batch=Batch([b"1"]), config=ConfigInput(type="queue", dead_letter="x"))
        with pytest.raises(TopicsError) as caught:
            await world.api.settle(await world.api.submit(request, principal=reader))
        assert caught.value.reason is Reason.FORBIDDEN


async def test_a_topic_that_was_made_again_elsewhere_is_found() -> None:
    async with open_shards(3) as world:
        await world.api.settle(await submit(world, FAR, b"0"))
        await world.api.delete_topic(FAR)
        for placement in ("g1", "g2", "g3", "g4"):
            if await shard_of(world, FAR, placement) != 1:
                break
        world.located.forget(FAR)  # as in a process that had no part in it
        write = await submit(world, FAR, b"1")
        with pytest.raises(TopicsError) as caught:
            await world.api.settle(write)
        assert caught.value.reason is Reason.NOT_READY
        await world.api.settle(await submit(world, FAR, b"1"))
        assert await stored(world, FAR) == [b"1"]


async def shard_of(world: ShardsWorld, topic: str, placement: str) -> int:
    """Make the topic in a placement group again, and return the shard that has it."""
    await world.api.delete_topic(topic)
    await world.api.put_topic(topic, ConfigInput(), principal=UNRESTRICTED, placement=placement)
    return next(number for number, engine in enumerate(world.engines) if engine.has_topic(topic))


async def test_a_write_is_lost_with_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_shards(3, wired=True) as world:
        assert world.wire is not None
        await world.api.settle(await submit(world, FAR, b"0"))
        began = asyncio.Event()

        async def never(_: int) -> bool:
            began.set()
            return await asyncio.Future()

        monkeypatch.setattr(world.apis[1]._pressure, "flushed", never)
        write = await submit(world, FAR, b"1")
        await began.wait()
        for connection in list(world.wire.server.connections):
            connection.transport.abort()
        with pytest.raises(LostCallError):
            await world.api.settle(write)
        with pytest.raises(LostCallError):
            await world.api.settle_all([write])
