"""Several shards in the process of a test, with one API over them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from topics_shards.health import LocalHealth
from topics_shards.locating import Located
from topics_shards.shards import LocalShards, Shard
from topics_shards.topics import ShardedTopics

from topics_service.api.metrics.collector import Metrics
from topics_service.api.observers import NO_OBSERVERS
from topics_service.api.scheduling.commit import CommitStatistics, GroupCommit
from topics_service.api.topics import TopicsApi
from topics_service.engine.catalog import keep_logs_apart
from topics_service.engine.clock import SystemClock
from topics_service.engine.engine import Engine
from topics_service.storage.memory import MemoryStore


class ShardsWorld:
    """The API over `engines`, one for each shard."""

    def __init__(self, engines: list[Engine], commits: list[GroupCommit]) -> None:
        apis = [TopicsApi(engine, commit) for engine, commit in zip(engines, commits, strict=True)]
        self.engines = engines
        self.shards = LocalShards({number: Shard(api) for number, api in enumerate(apis)})
        metrics = Metrics(engines[0], CommitStatistics())
        self.api = ShardedTopics(Located(self.shards), engines[0].limits, metrics, NO_OBSERVERS, LocalHealth(apis))


@asynccontextmanager
async def open_shards(count: int = 3) -> AsyncIterator[ShardsWorld]:
    """Shards on memory stores."""
    stores = [MemoryStore() for _ in range(count)]
    for shard, store in enumerate(stores):
        keep_logs_apart(store, shard)
    engines = [Engine(store, SystemClock()) for store in stores]
    commits = [GroupCommit.for_engine(engine) for engine in engines]
    try:
        yield ShardsWorld(engines, commits)
    finally:
        for commit in commits:
            commit.stop()
