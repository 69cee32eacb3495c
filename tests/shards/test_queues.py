"""Queues over several shards: each call runs where the queue is, and what a worker has not got is leased to nobody."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager, nullcontext

import pytest
from shards.world import ShardsWorld, open_shards

from topics_service.api.access.auth import UNRESTRICTED, Principal
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.model import AppendRequest, Batch, ConfigInput, QueueCounters
from topics_service.engine.placement import home_of, shard_of_placement
from topics_service.engine.queue.jobs import ClaimRequest, Job, ListJobsRequest, SettleRequest
from topics_service.engine.watch.frames import ErrorFrame, HeartbeatFrame
from topics_shards.locating import Located
from topics_shards.queues import ShardedQueues
from topics_shards.shards import LocalShards, Method, P, R, StreamMethod

QUEUE = ConfigInput(type="queue")
NAMES = ("q:a", "q:b", "q:c", "q:d", "q:e")


class SlowShards(LocalShards):
    """Shards that are all elsewhere: items of streams are on the way until `arrived` is set."""

    def __init__(self, world: ShardsWorld) -> None:
        super().__init__(world.all_shards)
        self._far = dict(self.local)
        self.local = {}
        self.count = len(self._far)
        self.arrived = asyncio.Event()
        self.sent = asyncio.Event()

    async def _items(self, items: AsyncGenerator[R, None]) -> AsyncGenerator[R, None]:
        async with aclosing(items):
            async for item in items:
                self.sent.set()
                await self.arrived.wait()
                yield item

    async def call(self, shard: int, method: Method[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """See Shards."""
        return await method(self._far[shard].of(method), *args, **kwargs)

    def stream(
        self, shard: int, method: StreamMethod[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncGenerator[R, None]:
        """See Shards."""
        return self._items(method(self._far[shard].of(method), *args, **kwargs))


@asynccontextmanager
async def open_queue(jobs: int = 4) -> AsyncIterator[ShardsWorld]:
    """Shards with queues of these jobs, some in each."""
    async with open_shards(3) as world:
        for name in NAMES:
            batch = Batch([b"%d" % i for i in range(jobs)])
            await world.api.append(AppendRequest(topic=name, batch=batch, config=QUEUE), principal=UNRESTRICTED)
        yield world


def slow(world: ShardsWorld) -> tuple[ShardedQueues, SlowShards]:
    """The calls of a process that has none of the shards."""
    shards = SlowShards(world)
    return ShardedQueues(Located(shards), lambda _: nullcontext()), shards


def counters(world: ShardsWorld, name: str) -> QueueCounters:
    """The counts of a queue, at its shard."""
    return world.engines[home_of(name, 3)].queues.counters(name)


async def test_calls_run_at_the_shard_of_the_queue() -> None:
    async with open_queue() as world:
        queues = world.api.queues
        assert {home_of(name, 3) for name in NAMES} == {0, 1, 2}
        for name in NAMES:
            claimed = await queues.claim(ClaimRequest(topic=name, node="w", max=3))
            assert [job.seq for job in claimed.jobs] == [1, 2, 3]
            assert (await queues.ack(SettleRequest(topic=name, node="w", seqs=[1]))).done == 1
            assert (await queues.extend(SettleRequest(topic=name, node="w", seqs=[2], lease_ms=5000))).done == 1
            assert (await queues.nack(SettleRequest(topic=name, node="w", seqs=[3]))).done == 1
            page = await queues.jobs(ListJobsRequest(topic=name, state="ready"))
            assert [job.block.base_seq + job.position for job in page.jobs] == [3, 4]
            assert (counters(world, name).in_flight, counters(world, name).ready) == (1, 2)


async def test_a_claim_elsewhere_keeps_its_leases() -> None:
    async with open_queue() as world:
        queues, shards = slow(world)
        shards.arrived.set()
        reply = await queues.claim(ClaimRequest(topic="q:a", node="w", max=2))
        for _ in range(5):
            await asyncio.sleep(0)
        assert [job.seq for job in reply.jobs] == [1, 2]
        assert counters(world, "q:a").in_flight == 2


async def test_a_claim_that_is_cancelled_while_its_answer_is_on_the_way_leases_nothing() -> None:
    async with open_queue() as world:
        queues, shards = slow(world)
        claim = asyncio.create_task(queues.claim(ClaimRequest(topic="q:a", node="w", max=2)))
        await shards.sent.wait()
        assert counters(world, "q:a").in_flight == 2
        claim.cancel()
        with pytest.raises(asyncio.CancelledError):
            await claim
        assert (counters(world, "q:a").in_flight, counters(world, "q:a").ready) == (0, 4)


async def test_a_claim_of_no_queue_is_refused() -> None:
    async with open_queue() as world:
        queues, _ = slow(world)
        with pytest.raises(TopicsError) as refused:
            await queues.claim(ClaimRequest(topic="none", node="w"))
        assert refused.value.reason is Reason.TOPIC_NOT_FOUND


async def test_a_work_stream_leases_when_the_next_frame_is_asked_for() -> None:
    async with open_queue(jobs=3) as world:
        queues, shards = slow(world)
        shards.arrived.set()
        async with aclosing(queues.push(ClaimRequest(topic="q:a", node="w", max=2), principal=UNRESTRICTED)) as frames:
            assert isinstance(await anext(frames), HeartbeatFrame)
            assert counters(world, "q:a").in_flight == 0
            jobs = await anext(frames)
            assert isinstance(jobs, list)
            assert [job.seq for job in jobs] == [1, 2]
            assert counters(world, "q:a").in_flight == 2
            await queues_ack(world, jobs[:1])
            following = await anext(frames)
            assert isinstance(following, list)
            assert [job.seq for job in following] == [3]
            assert await queues.stop_work("q:a", "w") == 2
        assert (counters(world, "q:a").in_flight, counters(world, "q:a").ready) == (0, 2)


async def queues_ack(world: ShardsWorld, jobs: list[Job]) -> None:
    """Ack jobs of the queue q:a."""
    fence = [job.lease_id for job in jobs]
    await world.api.queues.ack(SettleRequest(topic="q:a", node="w", seqs=[job.seq for job in jobs], lease_ids=fence))


async def test_a_work_stream_that_is_refused_raises_in_place_of_its_first_frame() -> None:
    async with open_queue() as world:
        queues, _ = slow(world)
        frames = queues.push(ClaimRequest(topic="none", node="w"), principal=UNRESTRICTED)
        with pytest.raises(TopicsError) as refused:
            await anext(frames)
        assert refused.value.reason is Reason.TOPIC_NOT_FOUND


async def test_a_work_stream_ends_with_its_queue() -> None:
    async with open_queue() as world:
        queues, shards = slow(world)
        shards.arrived.set()
        async with aclosing(queues.push(ClaimRequest(topic="q:b", node="w", max=9), principal=UNRESTRICTED)) as frames:
            await anext(frames)
            await anext(frames)
            await world.api.delete_topic("q:b")
            last = await anext(frames)
            assert isinstance(last, ErrorFrame)
            assert last.terminal


async def placed_queue(world: ShardsWorld) -> str:
    """A queue of one job in another shard than its name says, which the caller's process does not know."""
    name, placement = "q:a", next(f"g{n}" for n in range(99) if shard_of_placement(f"g{n}", 3) != home_of("q:a", 3))
    await world.api.put_topic(name, QUEUE, principal=UNRESTRICTED, placement=placement)
    await world.api.append(AppendRequest(topic=name, batch=Batch([b"1"])), principal=UNRESTRICTED)
    world.located.forget(name)
    return name


async def test_a_claim_finds_a_queue_of_a_placement_group() -> None:
    async with open_shards(3) as world:
        name = await placed_queue(world)
        reply = await world.api.queues.claim(ClaimRequest(topic=name, node="w"))
        assert [job.seq for job in reply.jobs] == [1]


async def test_a_push_stream_finds_a_queue_of_a_placement_group() -> None:
    async with open_shards(3) as world:
        name = await placed_queue(world)
        async with aclosing(world.api.queues.push(ClaimRequest(topic=name, node="w"), principal=UNRESTRICTED)) as jobs:
            frames = [await anext(jobs) for _ in range(2)]
        assert isinstance(frames[0], HeartbeatFrame)
        assert isinstance(frames[1], list)
        assert [job.seq for job in frames[1]] == [1]


async def test_a_push_stream_that_can_not_be_takes_no_slot() -> None:
    taken = []

    @contextmanager
    def connection(_: Principal) -> Iterator[None]:
        taken.append(True)
        if taken:
            raise TopicsError(Reason.THROTTLED, "text")
        yield

    async with open_queue() as world:
        queues = ShardedQueues(world.located, connection)
        for name, reason in (("absent", Reason.TOPIC_NOT_FOUND), (NAMES[0], Reason.THROTTLED)):
            with pytest.raises(TopicsError) as caught:
                await anext(queues.push(ClaimRequest(topic=name, node="w"), principal=UNRESTRICTED))
            assert caught.value.reason is reason
            assert taken == [True] * (reason is Reason.THROTTLED)
        assert counters(world, NAMES[0]).in_flight == 0
