"""The engine of a running server with everything that writes ask: durability, room on the disk, load, and the API."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any

from msgspec import structs

from topics_server import maintenance
from topics_server.disk import FreeSpace
from topics_server.forwarder import Forwarder
from topics_server.lag import LoopLag
from topics_server.notices import log
from topics_server.resources import Resources
from topics_server.shown_settings import shown_settings
from topics_server.space import DiskSpace
from topics_server.trimming import trim_archive
from topics_service.api.access.authorizer import Authorizer
from topics_service.api.audit import AuditLog
from topics_service.api.checkpoints import Checkpoints
from topics_service.api.metrics.collector import MetricsSources
from topics_service.api.observers import Observers
from topics_service.api.scheduling.commit import Commit, GroupCommit
from topics_service.api.scheduling.pressure import Pressure
from topics_service.api.sql.analysis.api import Analyses
from topics_service.api.sql.cancels import SessionCancels
from topics_service.api.sql.sessions import OwnSessions, SessionParts
from topics_service.api.topics import TopicsApi
from topics_service.engine.clock import Clock
from topics_service.engine.engine import Engine
from topics_service.engine.errors import TopicsError
from topics_service.engine.limits import NOWHERE, Elsewhere
from topics_service.engine.placement import SINGLE, Place
from topics_service.statistics import NodeStatistics, SpaceStatistics, TraceStatistics
from topics_service.storage import checkpoint, properties
from topics_service.storage.reclaim import Reclaim
from topics_service.storage.rocks import RocksStore
from topics_service.storage.segment_upkeep import SegmentUpkeep
from topics_service.storage.store import StoreError
from topics_service.storage.tombstone_compaction import TombstoneCompaction
from topics_sql.reader import Reader


def process_sources(
    lag: LoopLag, authorizer: Authorizer, traces: TraceStatistics, sources: MetricsSources | None = None
) -> MetricsSources:
    """The measurements of a process, beside those of a store."""
    memory = authorizer.quotas.memory
    return replace(
        sources or MetricsSources(),
        lag=lag,
        request_bytes=lambda: memory.used if memory is not None else 0,
        traces=traces,
    )


class Core:
    """The engine, its commit thread, its API and its checkpoints, on the running event loop. Not recovered yet."""

    def __init__(
        self,
        resources: Resources,
        clock: Clock,
        store: RocksStore,
        *,
        authorizer: Authorizer,
        commit: Callable[[Engine], Commit] = GroupCommit.for_engine,
        node: NodeStatistics | None = None,
        lag: LoopLag | None = None,
        place: Place = SINGLE,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        """`commit` makes what turns the engine's writes durable; `node` has the figures of a node of a cluster.

        `place` is its shard, and `elsewhere` what is in the others. `lag` is that of the loop where somebody measures
        that, and all else of the process, already.
        """
        settings, traces = resources.settings, resources.traces
        self._settings = settings
        self.store = store
        self.clock = clock
        self.engine = engine = Engine(
            store,
            clock,
            limits=settings.limits if elsewhere is None else structs.replace(settings.limits, elsewhere=elsewhere),
            prefix=settings.resource_prefix,
            cache_bytes=settings.memory.blocks,
            recover=False,
            place=place,
        )
        engine.blocks.on_damage = lambda error: log.error("%s", error.message)
        self.audit = AuditLog(resources.audit_file.write) if resources.audit_file is not None else None
        observers = Observers(*traces.observers, *(() if self.audit is None else (self.audit.observe,)))
        if traces.observers:
            engine.writer.span = Observers(*traces.observers)
        self._commit = commit(engine)
        engine.writer.on_write_failed = lambda error: log.critical("the server is read-only from now on: %s", error)
        self._segments = SegmentUpkeep(
            store,
            has_room=lambda: not settings.min_free_bytes or self._space.left() > 2 * settings.min_free_bytes,
            is_sound=lambda: engine.writer.failure is None,
        )
        self._reclaim = Reclaim(store, lambda: engine.writer.total_bytes, self._segments)
        engine.writer.on_freed = self._reclaim.freed
        self._tombstones = TombstoneCompaction(store)
        self._measures_lag = lag is None
        self._lag = lag or LoopLag()
        self._disk = FreeSpace(settings.data_path)
        statistics = SpaceStatistics()
        self._space = DiskSpace(
            self._disk,
            store,
            self._reclaim,
            statistics,
            reserve=settings.min_free_bytes,
            written=lambda: engine.writer.statistics.bytes,
            is_writable=lambda: engine.writer.failure is None,
            elsewhere=elsewhere or NOWHERE,
        )
        pressure = Pressure(
            lag_ms=lambda: self._lag.sustained_ms,
            max_lag_ms=settings.max_lag_ms,
            free_bytes=self._space.left,
            min_free_bytes=settings.min_free_bytes,
            statistics=statistics,
            flushing=lambda: store.flushing if engine.writer.failure is None else 0,
        )
        engine.capacity.disk = pressure.space if settings.min_free_bytes else None
        self.authorizer = authorizer
        sources = MetricsSources(
            disk=self._disk,
            min_free_bytes=settings.min_free_bytes,
            space=statistics,
            store=lambda: properties.read(store.path, store.families, store.merged),
            wal_switches=store.wal_switches,
            node=node,
        )
        if self._measures_lag:
            sources = process_sources(self._lag, authorizer, traces.statistics, sources)
        self.api = TopicsApi(engine, self._commit, pressure, settings.watch_caps, sources, observers)
        sql = self.api.serve_sql(
            Reader(),
            self.authorizer.users,
            self.authorizer.passwords,
            settings=shown_settings(settings),
            timeout_seconds=settings.sql_statement_timeout,
            analyses=Analyses(cache_bytes=settings.sql_cache_bytes, memory_bytes=settings.sql_memory_bytes),
        )
        sql.live.max_queries = settings.sql_max_live_queries
        changes = engine.tables.changes
        changes.max_bytes, changes.idle_ms = settings.sql_changes_bytes, settings.sql_changes_idle_seconds * 1000
        consumers = self.api.consumers
        consumers.default_timeout, consumers.max_timeout = (
            settings.default_consume_timeout,
            settings.max_consume_timeout,
        )
        self.api.watches.connections.quotas = self.authorizer.quotas
        folder = settings.data_path / "checkpoints"
        make = self.api.metrics.checkpoints.counted(partial(checkpoint.create, store))
        self.checkpoints = Checkpoints(folder, make, checkpoint.remove, engine.ready, observers)
        self.checkpoints.clear()

    def background(
        self, set_serving: Callable[[bool], None], *, forwards: bool = True
    ) -> list[Coroutine[Any, Any, None]]:
        """The work that runs on the event loop until it is cancelled. `set_serving` gets the engine's health. Where
        several cores share a loop, one forwarder serves them, and none of them `forwards` itself."""
        work = [
            maintenance.keep_up(self.engine, self._disk, set_serving),
            trim_archive(self._settings, self.api.metrics.archive),
            maintenance.compact_tombstones(self._tombstones),
            maintenance.keep_segments(self._segments),
        ]
        if forwards:
            work.append(Forwarder(self.engine.routers).run())
        if self._measures_lag:
            work.append(self._lag.run())
        if self._settings.min_free_bytes:
            work.append(self._space.keep())
        return work

    async def kafka(self) -> TopicsApi:
        """See `listeners.Served`."""
        return self.api

    def postgres(self) -> SessionParts:
        """See `listeners.Served`."""
        assert self.api.sql is not None, "every server has SQL"
        return SessionParts(OwnSessions(self.api.sql), SessionCancels())

    def taken(self) -> int:
        """See DiskSpace."""
        return self._space.taken()

    def drain(self) -> None:
        """See TopicsApi."""
        self.api.drain()

    def recovered(self) -> None:
        """Take over what else is in the store. Call it in the turn of the event loop in which recovery has ended."""
        if self.api.sql is not None and self.engine.recovered == 1.0:
            self.api.sql.users.load(self.engine)

    @property
    def is_sound(self) -> bool:
        """True while the storage works. After a failure the store must not be written any more."""
        return self.engine.writer.failure is None

    async def stop(self) -> None:
        """Make pending writes durable, end the threads, and close the engine. Call it when no calls are left."""
        with contextlib.suppress(TopicsError):
            await self._commit.settle(self.engine.writer.written)
        await self.stop_upkeep()
        with contextlib.suppress(StoreError):
            self.engine.close()
        await asyncio.to_thread(self._commit.stop)

    async def stop_upkeep(self) -> None:
        """End the upkeep of the database, which runs on threads."""
        upkeep = (self._tombstones, self._segments, self._reclaim)
        await asyncio.gather(*(asyncio.to_thread(each.stop) for each in upkeep))
