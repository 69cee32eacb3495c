"""Several shards in the process of a test, with one API over them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from topics_service.api.access.auth import UNRESTRICTED
from topics_service.api.access.passwords import Passwords
from topics_service.api.access.users import Users
from topics_service.api.metrics.collector import Metrics
from topics_service.api.observers import NO_OBSERVERS
from topics_service.api.scheduling.commit import CommitStatistics, GroupCommit
from topics_service.api.sql.requests import SqlRequest
from topics_service.api.topics import TopicsApi
from topics_service.engine.clock import SystemClock
from topics_service.engine.engine import Engine
from topics_service.engine.placement import Place
from topics_service.storage.memory import MemoryStore
from topics_shards.health import LocalHealth
from topics_shards.locating import Located
from topics_shards.shards import LocalShards, Shard
from topics_shards.sql import ShardedSql, SqlPlacements
from topics_shards.topics import ShardedTopics
from topics_sql.reader import Reader


class ShardsWorld:
    """The API over `engines`, one for each shard."""

    def __init__(self, engines: list[Engine], commits: list[GroupCommit]) -> None:
        apis = [TopicsApi(engine, commit) for engine, commit in zip(engines, commits, strict=True)]
        self.engines, self.apis = engines, apis
        self.clock = SystemClock()
        users = Users()
        sqls = [api.serve_sql(Reader(), users, Passwords(users)) for api in apis]
        self.shards = LocalShards({number: Shard(api) for number, api in enumerate(apis)})
        self.located = located = Located(self.shards)
        for sql in sqls:
            sql.placements = SqlPlacements(located)
        for api in apis:
            api.parts.connect(self.shards)
            api.parts.resume()
        metrics = Metrics(engines[0], CommitStatistics())
        self.api = ShardedTopics(located, engines[0].limits, metrics, NO_OBSERVERS, LocalHealth(apis))
        self._sql = ShardedSql(located, apis[0].consumers)

    async def sql(self, text: str, *params: Any) -> list[list[Any]]:
        """The rows of the last statement. Raises TopicsError."""
        reply = await self._sql.execute(SqlRequest(sql=text, params=params or None), principal=UNRESTRICTED)
        if reply.error is not None:
            raise reply.error
        return [list(row) for row in reply.results[-1].rows]


@asynccontextmanager
async def open_shards(count: int = 3) -> AsyncIterator[ShardsWorld]:
    """Shards on memory stores."""
    engines = [Engine(MemoryStore(), SystemClock(), place=Place(shard, count)) for shard in range(count)]
    commits = [GroupCommit.for_engine(engine) for engine in engines]
    try:
        yield ShardsWorld(engines, commits)
    finally:
        for commit in commits:
            commit.stop()
