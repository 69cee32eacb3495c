"""Shards that crash, lose calls or do not answer, in the process of a test, with one API over them."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from engine.engine_support import CrashStore

from support.audit import audit
from support.waiting import until
from topics_service.api.metrics.collector import Metrics
from topics_service.api.observers import NO_OBSERVERS
from topics_service.api.scheduling.commit import Commit
from topics_service.api.topics import TopicsApi
from topics_service.engine.clock import SystemClock
from topics_service.engine.engine import Engine
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.limits import Limits
from topics_service.engine.placement import Place
from topics_service.storage.store import Family, StoreLostError, WriteBatch
from topics_shards.health import LocalHealth
from topics_shards.locating import Located
from topics_shards.shards import LostCallError, Method, P, R, Shard, Shards, StreamMethod
from topics_shards.topics import ShardedTopics

PATIENCE = 0.02  # s
TURNS = 12


class Disk(CrashStore):
    """The disk of one shard; `on_write` is called after each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.on_write: Callable[[], None] = lambda: None

    def write(self, batch: WriteBatch) -> None:
        super().write(batch)
        self.on_write()

    def after(self, *, keep: bool) -> "Disk":
        """The rows that a crash leaves: with `keep` all that were written, else all that were synced."""
        self.cut_power(self.writes if keep else self.synced)
        left = Disk()
        left._rows = self._rows
        left._durable._rows = [rows.copy() for rows in self._rows]
        return left


class TurnCommit(Commit):
    """Makes writes durable some turns of the loop later: calls that do not wait for it are faster."""

    def __init__(self, engine: Engine, disk: Disk) -> None:
        super().__init__(engine.synced, engine.sync_failed)
        self._engine, self._disk = engine, disk
        self._is_due = self.is_dead = False
        engine.writer.request_sync = self.want

    def want(self, ticket: int) -> None:
        """See Commit."""
        if not self._is_due:
            self._is_due = True
            self._later(TURNS)

    def stop(self) -> None:
        """See Commit."""
        self.is_dead = True

    def _later(self, turns: int) -> None:
        if turns:
            self._loop.call_soon(self._later, turns - 1)
        else:
            self._sync()

    def _sync(self) -> None:
        self._is_due = False
        if not self.is_dead:
            self._disk.sync()
            self.publish(self._engine.writer.written)


class Node:
    """One shard, from a start to its end."""

    def __init__(self, place: Place, disk: Disk, limits: Limits) -> None:
        self.disk = disk
        self.engine = Engine(disk, SystemClock(), place=place, limits=limits, boot_id="boot")
        self.commit = TurnCommit(self.engine, disk)
        self.api = TopicsApi(self.engine, self.commit)
        self.api.parts.patience_seconds = PATIENCE
        self.shard = Shard(self.api)
        self.is_dead = False

    def die(self) -> None:
        """Answer nothing any more, and write nothing."""
        self.is_dead = True
        error = StoreLostError("killed")
        self.api.parts.stop()
        self.commit.stop()
        self.engine.writer.fail(error)
        self.commit.refuse(error)


class FragileShards(Shards):
    """Shards that are in this process, and may be away."""

    def __init__(self, count: int, limits: Limits) -> None:
        self.count, self.limits = count, limits
        self.away: set[int] = set()
        """Shards that answer `not_ready`."""
        self.lost: set[str] = set()
        """Names of methods whose next answer is lost."""
        self.nodes = [Node(Place(shard, count), Disk(), limits) for shard in range(count)]
        self._connect()
        self.writes = 0
        self.crash_at: tuple[int, int, bool] | None = None
        """The write after which a shard crashes: its own one, or one of the next; and whether what it wrote stays."""

    def _connect(self) -> None:
        for shard, node in enumerate(self.nodes):
            if not node.is_dead:
                node.api.parts.connect(self)
                node.disk.on_write = lambda shard=shard: self._written(shard)  # type: ignore[misc]

    @property
    def local(self) -> Mapping[int, Shard]:  # type: ignore[override]
        return {number: node.shard for number, node in enumerate(self.nodes)}

    async def call(self, shard: int, method: Method[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        await asyncio.sleep(0)
        if shard in self.away:
            raise TopicsError(Reason.NOT_READY, f"shard {shard} is away")
        node = self.nodes[shard]
        try:
            result = await method(node.shard.of(method), *args, **kwargs)
        except TopicsError as error:
            if node.is_dead:
                raise LostCallError from error
            raise
        if node.is_dead or method.__name__ in self.lost:
            self.lost.discard(method.__name__)
            raise LostCallError
        return result

    def stream(
        self, shard: int, method: StreamMethod[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncGenerator[R, None]:
        raise NotImplementedError

    def crash(self, shard: int, *, keep: bool = True) -> None:
        """End a shard, and start it again with what its disk has kept."""
        old = self.nodes[shard]
        old.die()
        self.nodes[shard] = Node(Place(shard, self.count), old.disk.after(keep=keep), self.limits)
        self._connect()
        self.nodes[shard].api.parts.resume()

    def _written(self, shard: int) -> None:
        self.writes += 1
        if self.crash_at is not None and self.crash_at[0] == self.writes:
            _, offset, keep = self.crash_at
            self.crash_at = None
            victim = (shard + offset) % self.count
            asyncio.get_running_loop().call_soon(lambda: self.crash(victim, keep=keep))


class FragileWorld:
    """The API over such shards."""

    def __init__(self, count: int, limits: Limits) -> None:
        self.shards = FragileShards(count, limits)
        self.located = Located(self.shards)
        metrics = Metrics(self.engines[0], self.shards.nodes[0].commit.statistics)
        health = LocalHealth([node.api for node in self.shards.nodes])
        self.api = ShardedTopics(self.located, limits, metrics, NO_OBSERVERS, health)

    @property
    def engines(self) -> list[Engine]:
        """Those that run now."""
        return [node.engine for node in self.shards.nodes]

    async def settle(self) -> None:
        """Have all shards answer, and wait until no part has anything to learn."""
        self.shards.away.clear()
        self.shards.lost.clear()
        await until(lambda: not any(engine.parts.pending for engine in self.engines))

    def check(self) -> None:
        """The shards agree on every topic, and have no rows of others."""
        for node in self.shards.nodes:
            assert audit(node.disk) == []
        topics: dict[str, list[Any]] = {}
        for shard, engine in enumerate(self.engines):
            store, logs = self.shards.nodes[shard].disk, set[int]()
            for topic in engine.catalog.each():
                topics.setdefault(topic.name, []).append((shard, topic))
                logs |= {log.log_id for log in topic.logs}
                place, count = Place(shard, self.shards.count), topic.partition_count
                here = list(place.spread(topic.name, count, topic.placement).numbers)
                assert [number for number, _ in topic.numbered()] == here, "each log is in its shard, and no other"
            for family in (Family.LOGS, Family.BLOCKS, Family.CEILINGS, Family.GAPS, Family.DELETES):
                found = {int.from_bytes(key[:8], "big") for key, _ in store.scan(family, b"", b"\xff" * 40)}
                assert found <= logs, f"shard {shard} has {family.name} of a topic that is gone"
        for name, found in topics.items():
            homes = [(shard, topic) for shard, topic in found if not topic.is_part]
            assert len(homes) == 1, f'"{name}" has one home'
            at, home = homes[0]
            assert Place(at, self.shards.count).is_home(name, home.placement)
            for shard, part in found:
                if part.is_part:
                    assert part.identity == home.identity, f'"{name}" is another topic in shard {shard}'
                    assert (part.config, part.kafka_configs) == (home.config, home.kafka_configs)
                    assert shard in home.spread.shards, "home knows of it"


@asynccontextmanager
async def fragile_shards(count: int = 3, limits: Limits | None = None) -> AsyncIterator[FragileWorld]:
    """Shards on disks that crashes cut."""
    world = FragileWorld(count, limits or Limits())
    try:
        yield world
    finally:
        for node in world.shards.nodes:
            node.die()
