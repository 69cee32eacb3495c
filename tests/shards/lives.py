"""Shards that end and begin again on their stores, in the process of a test, with all that works in the background."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any

from topics_server.forwarder import Forwarder
from topics_service.api.access.auth import UNRESTRICTED
from topics_service.api.metrics.collector import Metrics
from topics_service.api.observers import NO_OBSERVERS
from topics_service.api.scheduling.commit import CommitStatistics, GroupCommit
from topics_service.api.topics import TopicsApi
from topics_service.engine.clock import SystemClock
from topics_service.engine.engine import Engine
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.limits import Limits
from topics_service.engine.model import AppendReply, AppendRequest, Batch, ConfigInput, DiffRequest
from topics_service.engine.placement import Place, home_of
from topics_service.storage.memory import MemoryStore
from topics_shards.health import LocalHealth
from topics_shards.holds import HoldSender
from topics_shards.locating import Located
from topics_shards.shard_work import ShardWork
from topics_shards.shards import LocalShards, LostCallError, Method, NotHereError, P, R, Shard, StreamMethod
from topics_shards.topics import ShardedTopics

_MAINTENANCE_SECONDS = 0.005
_SHORT_SECONDS = 0.01
_DRAIN_SECONDS = 0.1


class LivingShard(Shard):
    """A shard that may leave: calls that come then have not happened, and those under way are lost."""

    def __init__(self, api: TopicsApi) -> None:
        super().__init__(api)
        self.calls: set[asyncio.Future[Any]] = set()
        self.is_over = False

    async def run(self, method: Method[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """See Shard."""
        self._check()
        return await self._lived(super().run(method, *args, **kwargs))

    async def stream(self, method: StreamMethod[P, R], /, *args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[R, None]:
        """See Shard."""
        self._check()
        async with aclosing(super().stream(method, *args, **kwargs)) as items:
            while True:
                try:
                    item = await self._lived(anext(items))
                except StopAsyncIteration:
                    return
                yield item

    async def ended(self, seconds: float) -> None:
        """Wait for the calls under way, for so long at most."""
        if self.calls:
            await asyncio.wait(self.calls, timeout=seconds)

    async def break_off(self) -> None:
        """Lose the calls under way."""
        self.is_open, self.is_over = False, True
        calls = list(self.calls)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    def _check(self) -> None:
        if not self.is_open:
            raise NotHereError

    async def _lived(self, work: Awaitable[R]) -> R:
        if self.is_over:
            raise LostCallError
        call: asyncio.Future[R] = asyncio.ensure_future(work)
        self.calls.add(call)
        call.add_done_callback(self.calls.discard)
        try:
            return await call
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self.is_over and task is not None and not task.cancelling():
                raise LostCallError from None
            raise


class Life:
    """One shard from its start to its end."""

    def __init__(self, number: int, count: int, store: MemoryStore, limits: Limits | None) -> None:
        self.number = number
        self.engine = Engine(store, SystemClock(), place=Place(number, count), limits=limits, boot_id="boot")
        self.commit = GroupCommit.for_engine(self.engine)
        self.api = TopicsApi(self.engine, self.commit)
        self.shard = LivingShard(self.api)
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self, located: Located) -> None:
        """Begin the work in the background."""
        self.api.parts.connect(located.shards)
        self.api.parts.resume()
        self.sender = HoldSender.serve(self.number, self.engine, self.api, located)
        self.work = ShardWork(located, self.api, self.engine, SystemClock())
        self.work.start()
        self._tasks = [asyncio.create_task(work) for work in (Forwarder(self.engine.routers).run(), self._maintain())]

    async def end(self) -> None:
        """As if killed: calls under way are lost."""
        self.shard.is_open, self.shard.is_over = False, True
        await self._stop()
        await self.shard.break_off()
        self.api.drain()
        self.commit.stop()

    async def hand_over(self) -> None:
        """End in good order: calls that have written end, streams end for their clients to resume them elsewhere."""
        self.shard.is_open = False
        await self.shard.ended(_SHORT_SECONDS)
        await self._stop()
        self.api.drain()
        with suppress(TopicsError):
            await self.commit.settle(self.engine.writer.written)
        await self.shard.ended(_DRAIN_SECONDS)
        await self.shard.break_off()
        self.engine.close()
        self.commit.stop()

    async def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        self.api.parts.stop()
        await self.sender.stop()
        await self.work.stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _maintain(self) -> None:
        while True:
            with suppress(TopicsError):
                self.engine.maintain()
            await asyncio.sleep(_MAINTENANCE_SECONDS)


class LivingShards(LocalShards):
    """Calls on shards that may end at any moment. Each is taken for one to another process."""

    def __init__(self, count: int) -> None:
        super().__init__({})
        self.count = count
        self.lives: dict[int, Life] = {}

    async def call(self, shard: int, method: Method[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """See Shards."""
        return await self._life(shard).shard.run(method, *args, **kwargs)

    async def stream(
        self, shard: int, method: StreamMethod[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncGenerator[R, None]:
        """See Shards."""
        async with aclosing(self._life(shard).shard.stream(method, *args, **kwargs)) as items:
            async for item in items:
                yield item

    def _life(self, shard: int) -> Life:
        life = self.lives.get(shard)
        if life is None or not life.shard.is_open:
            raise TopicsError(Reason.NOT_READY, f"shard {shard} is away")
        return life


class World:
    """The API over shards that live on these stores."""

    def __init__(self, count: int, limits: Limits | None = None) -> None:
        self.count = count
        self._limits = limits
        self._crashes = asyncio.Lock()
        self.stores = [MemoryStore() for _ in range(count)]
        self.shards = LivingShards(count)
        self.located = Located(self.shards)
        for number in range(count):
            self.begin(number)
        engine = self.engine(0)
        metrics = Metrics(engine, CommitStatistics())
        health = LocalHealth([life.api for life in self.shards.lives.values()])
        self.api = ShardedTopics(self.located, engine.limits, metrics, NO_OBSERVERS, health)

    def engine(self, number: int) -> Engine:
        """The engine of a shard."""
        return self.shards.lives[number].engine

    def engine_of(self, topic: str) -> Engine:
        """The engine of a topic's home."""
        return self.engine(home_of(topic, self.count))

    def begin(self, number: int) -> None:
        """Start a shard."""
        life = self.shards.lives[number] = Life(number, self.count, self.stores[number], self._limits)
        life.begin(self.located)

    async def end(self, number: int) -> None:
        """Kill a shard."""
        await self.shards.lives.pop(number).end()

    async def crash(self, number: int) -> None:
        """Kill a shard and start it again."""
        async with self._crashes:
            await self.end(number)
            self.begin(number)

    async def append(
        self, topic: str, *datas: bytes, config: ConfigInput | None = None, tag: bytes | None = None
    ) -> AppendReply:
        """Append records."""
        tags: list[bytes | None] | None = None if tag is None else [tag] * len(datas)
        request = AppendRequest(topic=topic, batch=Batch(list(datas), tags=tags), config=config)
        return await self.api.append(request, principal=UNRESTRICTED)

    async def read(self, topic: str, after: int = 0) -> list[bytes]:
        """The data of all records that a reader finds, and `-` for each gap."""
        found: list[bytes] = []
        while True:
            reply = await self.api.diff(DiffRequest(topic=topic, from_seq=after))
            found += [b"-"] if reply.tombstone is not None else []
            found += [part.block.record_data(i) for part in reply.slices for i in range(part.start, part.stop)]
            if reply.next_from_seq == after:
                return found
            after = reply.next_from_seq


@asynccontextmanager
async def open_world(count: int = 3, limits: Limits | None = None) -> AsyncIterator[World]:
    """Shards on memory stores."""
    world = World(count, limits)
    try:
        yield world
    finally:
        for number in list(world.shards.lives):
            with contextlib.suppress(Exception):
                await world.end(number)


def names(count: int, *homes: int, prefix: str = "t") -> list[str]:
    """Names of topics with these homes, all different."""
    found: list[str] = []
    for home in homes:
        number = 0
        while home_of(f"{prefix}{number}", count) != home or f"{prefix}{number}" in found:
            number += 1
        found.append(f"{prefix}{number}")
    return found
