"""Several shards in the process of a test, with one API over them."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from topics_service.api.access.auth import UNRESTRICTED
from topics_service.api.access.passwords import Passwords
from topics_service.api.access.users import Users
from topics_service.api.metrics.collector import Metrics
from topics_service.api.observers import NO_OBSERVERS
from topics_service.api.scheduling.commit import CommitStatistics, GroupCommit
from topics_service.api.sql.requests import SqlRequest
from topics_service.api.topics import TopicsApi
from topics_service.engine.clock import Clock, SystemClock
from topics_service.engine.engine import Engine
from topics_service.engine.limits import Limits
from topics_service.engine.placement import Place
from topics_service.storage.memory import MemoryStore
from topics_shards.health import LocalHealth
from topics_shards.holds import HoldSender
from topics_shards.locating import Located
from topics_shards.remote import RemoteShards, remote_methods
from topics_shards.shards import LocalShards, Shard, Shards
from topics_shards.sql import ShardedLive, ShardedSql, SqlPlacements
from topics_shards.systemtables import MergedSystemTables
from topics_shards.topics import ShardedTopics
from topics_shards.wire.client import Channel
from topics_shards.wire.server import ShardServer, unix
from topics_sql.reader import Reader


class ShardsWorld:
    """The API over `engines`, one for each shard."""

    def __init__(self, engines: list[Engine], commits: list[GroupCommit], wire: "Wire | None" = None) -> None:
        apis = [TopicsApi(engine, commit) for engine, commit in zip(engines, commits, strict=True)]
        self.engines, self.apis, self.commits = engines, apis, commits
        self.clock = SystemClock()
        users = Users()
        sqls = [api.serve_sql(Reader(), users, Passwords(users)) for api in apis]
        shards = {number: Shard(api) for number, api in enumerate(apis)}
        self.shards: Shards = LocalShards(shards) if wire is None else wire.shards(shards)
        self.wire = wire
        self.all_shards = shards
        """Each of them, also those that calls go to through a socket."""
        self.located = located = Located(self.shards)
        for sql in sqls:
            sql.placements = SqlPlacements(located)
            sql.system.merged = MergedSystemTables(located)
        for api in apis:
            api.parts.connect(self.shards)
            api.parts.resume()
        self.senders = [
            HoldSender.serve(number, engine, api, located)
            for number, (engine, api) in enumerate(zip(engines, apis, strict=True))
        ]
        metrics = Metrics(engines[0], CommitStatistics())
        self.api = ShardedTopics(located, engines[0].limits, metrics, NO_OBSERVERS, LocalHealth(apis))
        self._sql = ShardedSql(located, self.api.consumers, ShardedLive(located, self.api.watches.connection))

    @property
    def untold(self) -> int:
        """The number of moved positions that the shards of their partitions do not know yet."""
        return sum(sender.untold for sender in self.senders)

    async def stop(self) -> None:
        """End what runs by itself."""
        for sender in self.senders:
            await sender.stop()
        for api in self.apis:
            api.parts.stop()
        for commit in self.commits:
            commit.stop()

    async def sql(self, text: str, *params: Any) -> list[list[Any]]:
        """The rows of the last statement. Raises TopicsError."""
        reply = await self._sql.execute(SqlRequest(sql=text, params=params or None), principal=UNRESTRICTED)
        if reply.error is not None:
            raise reply.error
        return [list(row) for row in reply.results[-1].rows]


class Wire:
    """A socket that all shards but the first are called through."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.server: ShardServer
        self.channel: Channel

    def shards(self, shards: dict[int, Shard]) -> RemoteShards:
        """Shards of which the first is in this process; `serve` comes next."""
        methods = remote_methods()
        self.server = ShardServer({number: shard for number, shard in shards.items() if number}, methods, "others")
        self.channel = Channel(unix(self.path), "others", "first")
        owners = dict.fromkeys(range(1, len(shards)), self.channel)
        return RemoteShards(len(shards), {0: shards[0]}, owners, methods)

    async def serve(self) -> None:
        """Take calls."""
        await self.server.listen(self.path)

    async def close(self) -> None:
        """End all."""
        self.channel.close()
        await self.server.drain(5)
        await self.server.close()


always_wired = False
"""Set by a fixture: tests that open shards run twice."""


@asynccontextmanager
async def open_shards(
    count: int = 3,
    *,
    wired: bool | None = None,
    clock: Clock | None = None,
    limits: Limits | None = None,
    stores: Sequence[MemoryStore] = (),
) -> AsyncIterator[ShardsWorld]:
    """Shards on memory stores. `wired`: every call to a shard but the first goes through a Unix socket; by default each
    test runs with it and without it."""
    engines = [
        Engine(
            stores[shard] if stores else MemoryStore(),
            clock or SystemClock(),
            limits=limits,
            place=Place(shard, count),
            boot_id="boot-1" if stores else "",
        )
        for shard in range(count)
    ]
    commits = [GroupCommit.for_engine(engine) for engine in engines]
    with TemporaryDirectory(prefix="shards-") as directory:
        wire = Wire(Path(directory) / "socket") if (always_wired if wired is None else wired) else None
        world = ShardsWorld(engines, commits, wire)
        try:
            if wire is not None:
                await wire.serve()
            yield world
        finally:
            if wire is not None:
                await wire.close()
            await world.stop()
