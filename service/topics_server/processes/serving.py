"""One process of a server with shards: its shards, and its doors to all of them."""

import asyncio
import contextlib
import time
from dataclasses import replace
from typing import Final

from topics_server import maintenance
from topics_server.core import Core, process_sources
from topics_server.lag import LoopLag
from topics_server.listeners import Listeners
from topics_server.notices import Shutdown, log_stopped
from topics_server.processes import directory
from topics_server.processes.metrics import ProcessMetrics
from topics_server.reload import Readers, Reload, SighupHandler
from topics_server.resources import Resources, open_store
from topics_server.serving import Serving
from topics_server.settings import Settings
from topics_service.api.access.authorizer import Authorizer
from topics_service.api.audit import AuditLog
from topics_service.api.checkpoints import Checkpoints
from topics_service.api.observers import Observers
from topics_service.engine.clock import Clock
from topics_service.engine.placement import Place
from topics_service.storage import shardfiles
from topics_service.storage.holding import Hold
from topics_service.storage.rocks import RocksStore
from topics_service.storage.store import StoreError
from topics_shards.health import LocalHealth
from topics_shards.locating import Located
from topics_shards.shards import LocalShards, Shard
from topics_shards.sql import ShardedSql, SqlPlacements
from topics_shards.topics import ShardedTopics

_MIN_TABLES: Final = 32  # that a store may keep open


class ShardedServer(Serving):
    """All shards of a data directory in one process, with the doors of a server.

    Used as a Server is.
    """

    def __init__(self, settings: Settings, *, clock: Clock | None = None, hangups: SighupHandler | None = None) -> None:
        """`clock` replaces the system's clock; `hangups` are the SIGHUPs to follow."""
        super().__init__(settings, clock, hangups)
        self._hold: Hold | None = None
        self._count = 0
        self._stores: dict[int, RocksStore] = {}
        self._served: _Served | None = None
        self._listeners: Listeners | None = None
        self._background: list[asyncio.Task[None]] = []
        self._shutdown: Shutdown | None = None

    @property
    def api(self) -> ShardedTopics:
        """The API that all listeners call, from `startup` on."""
        assert self._served is not None, "the server has not started"
        return self._served.api

    @property
    def http_port(self) -> int:
        """The port of HTTP; 0 while it is not listened on, as for the others."""
        return self._listeners.http_port if self._listeners else 0

    @property
    def grpc_port(self) -> int:
        """The port of gRPC."""
        return self._listeners.grpc_port if self._listeners else 0

    @property
    def kafka_port(self) -> int:
        """The port of Kafka."""
        return self._listeners.kafka_port if self._listeners else 0

    def open(self) -> None:
        """Open the resources of the server: files, sockets, the stores. Blocks; raises StartError."""
        with contextlib.ExitStack() as stack:
            self._hold, self._count = directory.take(self._settings)
            stack.callback(self._hold.release)
            resources = Resources.open(self._settings, opens_store=False)
            stack.callback(resources.close, is_sound=True)
            tables = max(_MIN_TABLES, resources.tables // self._count)
            for shard in range(self._count):
                self._stores[shard] = store = open_store(self._of_shard(resources, shard).settings, tables)
                stack.callback(_close, store)
            self._resources = resources
            stack.pop_all()

    def _of_shard(self, resources: Resources, shard: int) -> Resources:
        settings = resources.settings
        path = shardfiles.directory(settings.data_path, shard)
        return resources.with_settings(
            replace(settings, data_dir=str(path), memory_bytes=settings.memory_bytes // self._count)
        )

    async def startup(self) -> None:
        """Listen, recover, serve. Health probes are answered during recovery; Kafka is listened on after it.

        Raises StartError, StoreError or TopicsError; `shutdown` undoes a partial start.
        """
        resources = self._resources
        assert resources is not None, "open() comes first"
        lag, authorizer = LoopLag(), resources.settings.authorizer()
        cores = {
            shard: Core(
                self._of_shard(resources, shard),
                self._clock,
                store,
                authorizer=authorizer,
                lag=lag,
                place=Place(shard, self._count),
            )
            for shard, store in self._stores.items()
        }
        metrics = ProcessMetrics(
            [core.api.metrics for core in cores.values()],
            process_sources(lag, authorizer, resources.traces.statistics),
        )
        self._served = served = _Served(resources, cores, authorizer, metrics)
        readers = Readers(resources.settings)
        self._listeners = listeners = Listeners(resources, served, readers)
        if self._hangups is not None:
            self._hangups.follow(self._reload(resources, served, readers))
        self._background = [
            asyncio.create_task(each)
            for each in (lag.run(), *(work for core in cores.values() for work in core.background(_unheard)))
        ]
        await listeners.start()
        for core in cores.values():
            began = time.monotonic()
            with core.api.observers("topics.recovery", {}):
                await maintenance.recover(core.engine, self._stop)
                core.recovered()
            core.api.metrics.recovery_seconds = time.monotonic() - began
        self._background.append(asyncio.create_task(_show_health(served.api, listeners)))
        listeners.grpc.set_serving(served.api.ready().ready)
        if not self._stop.is_set():
            await listeners.start_kafka()

    def _reload(self, resources: Resources, served: "_Served", readers: Readers) -> Reload:
        def remove_sessions(key_id: str) -> None:
            for core in served.cores.values():
                core.api.watches.remove_sessions(key_id)

        return Reload(
            resources.settings,
            served.authorizer,
            remove_sessions,
            resources.certificates,
            readers,
            audit_file=resources.audit_file,
            audit_log=served.audit,
        )

    async def shutdown(self) -> None:
        """Drain, end the background work, and make the rest durable."""
        served, listeners = self._served, self._listeners
        if served is None:
            return
        if listeners is not None:
            await listeners.stop()
        for task in self._background:
            task.cancel()
        if self._background:
            await asyncio.wait(self._background)
        if self._hangups is not None:
            self._hangups.leave()
        cores = list(served.cores.values())
        kept = sum(sum(core.engine.catalog.counts.by_class.values()) for core in cores)
        forgotten = sum(core.engine.catalog.counts.by_class.get("ephemeral", 0) for core in cores)
        recovered = all(core.engine.recovered >= 1 for core in cores)
        await asyncio.gather(*(core.stop() for core in cores))
        served.authorizer.passwords.close()
        if self._stopped_at:
            is_sound = all(core.is_sound for core in cores)
            self._shutdown = Shutdown(self._stopped_at, is_sound, recovered, kept - forgotten, forgotten)

    def close(self) -> None:
        """Close the resources of `open` and log the outcome. Blocks."""
        if self._resources is None:
            return
        unwritten: StoreError | None = None
        cores = {} if self._served is None else self._served.cores
        for shard, store in self._stores.items():
            try:
                if shard not in cores or cores[shard].is_sound:
                    store.close()
                else:
                    store.abandon()
            except StoreError as error:
                unwritten = unwritten or error
        self._stores = {}
        self._resources.close(is_sound=True)
        self._resources = None
        if self._hold is not None:
            self._hold.release()
        if self._shutdown is not None:
            log_stopped(self._shutdown, unwritten)


class _Served:
    """The cores of the shards, and the API over them; see `listeners.Served`."""

    def __init__(
        self, resources: Resources, cores: dict[int, Core], authorizer: Authorizer, metrics: ProcessMetrics
    ) -> None:
        self.cores = cores
        self.authorizer = authorizer
        self.audit = AuditLog(resources.audit_file.write) if resources.audit_file is not None else None
        self.checkpoints: Checkpoints | None = None
        observers = Observers(*resources.traces.observers, *(() if self.audit is None else (self.audit.observe,)))
        located = Located(LocalShards({shard: Shard(core.api) for shard, core in cores.items()}))
        apis = [core.api for core in cores.values()]
        self.api = ShardedTopics(located, resources.settings.limits, metrics, observers, LocalHealth(apis))
        self.api.sql = ShardedSql(located, apis[0].consumers)
        for api in apis:
            api.parts.connect(located.shards)
            if api.sql is not None:
                api.sql.placements = SqlPlacements(located)

    def drain(self) -> None:
        """Stop taking calls, and end the waits of those under way."""
        self.api.drain()
        for core in self.cores.values():
            core.drain()


async def _show_health(api: ShardedTopics, listeners: Listeners) -> None:
    """Keep the health of gRPC in step with the shards, until cancelled."""
    while True:
        listeners.grpc.set_serving(api.ready().ready)
        await asyncio.sleep(1.0)


def _unheard(_: bool) -> None:
    """Ignore the health of one shard: that of all counts."""


def _close(store: RocksStore) -> None:
    with contextlib.suppress(StoreError):
        store.close()
