"""One process of a server with shards: its shards, and its doors to all of them."""

import asyncio
import contextlib
import time
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from typing import Any, Final

from topics_server import maintenance
from topics_server.core import Core
from topics_server.forwarder import Forwarder
from topics_server.lag import LoopLag
from topics_server.listeners import Listeners
from topics_server.notices import Shutdown, log_stopped
from topics_server.processes import directory
from topics_server.processes.board import Board, CountingCommit, ShardElsewhere
from topics_server.processes.composition import Composition
from topics_server.processes.share import Share
from topics_server.reload import Readers, SighupHandler
from topics_server.resources import Resources, open_store
from topics_server.serving import Serving
from topics_server.settings import Settings
from topics_service.api.scheduling.commit import Commit
from topics_service.engine.clock import Clock
from topics_service.engine.engine import Engine
from topics_service.engine.placement import Place
from topics_service.storage.holding import Hold
from topics_service.storage.rocks import RocksStore
from topics_service.storage.store import StoreError
from topics_shards.topics import ShardedTopics

_AT_ONCE: Final = 8  # stores that are opened or closed
_OTHERS_SECONDS: Final = 2.0  # beyond the drain, for the other processes to be done as well
_HEALTH_SECONDS: Final = 0.1


class ShardedServer(Serving):
    """One process of a server with shards, with the doors of a server: the only one unless it has a share.

    Used as a Server is.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock | None = None,
        hangups: SighupHandler | None = None,
        share: Share | None = None,
    ) -> None:
        """`clock` replaces the system's clock; `hangups` are the SIGHUPs to follow. With a `share` it has some of the
        shards, and its parent the lock of the directory."""
        super().__init__(settings, clock, hangups)
        self._share = share
        self._hold: Hold | None = None
        self._count = 0
        self._finish: asyncio.Event | None = None
        self._stores: dict[int, RocksStore] = {}
        self._served: Composition | None = None
        self._listeners: Listeners | None = None
        self._background: list[asyncio.Task[None]] = []
        self._shutdown: Shutdown | None = None

    @property
    def api(self) -> ShardedTopics:
        """The API that all listeners call, from `startup` on."""
        assert self._served is not None, "the server has not started"
        return self._served.api

    def open(self) -> None:
        """Open the resources of the server: files, sockets, the stores. Blocks; raises StartError."""
        with contextlib.ExitStack() as stack:
            if self._share is None:
                self._hold, self._count = directory.take(self._settings)
                stack.callback(self._hold.release)
            else:
                self._count = self._share.count
            shards = range(self._count) if self._share is None else self._share.shards
            processes = 1 if self._share is None else self._share.processes
            settings = replace(
                self._settings,
                memory_bytes=self._settings.memory_bytes // processes,
                wal_archive_bytes=self._settings.wal_archive_bytes * len(shards) // self._count,
            )
            resources = Resources.open(settings, opens_store=False, shares_ports=self._share is not None)
            stack.callback(resources.close, is_sound=True)
            parts = [resources.for_shard(shard, len(shards)) for shard in shards]
            stack.callback(self._close_stores)
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                opening = [pool.submit(open_store, each.settings, each.tables) for each in parts]
                wait(opening)
                for shard, opened in zip(shards, opening, strict=True):
                    if opened.exception() is None:
                        self._stores[shard] = opened.result()
            for opened in opening:
                opened.result()
            self._resources = resources
            stack.pop_all()

    async def startup(self) -> None:
        """Listen, recover, serve. Health probes are answered during recovery; Kafka is listened on after it.

        Raises StartError, StoreError or TopicsError; `shutdown` undoes a partial start.
        """
        resources = self._resources
        assert resources is not None, "open() comes first"
        lag, authorizer = LoopLag(), resources.settings.authorizer()
        board = Board(self._count) if self._share is None else self._share.board
        cores = {
            shard: Core(
                resources.for_shard(shard, len(self._stores)),
                self._clock,
                store,
                authorizer=authorizer,
                lag=lag,
                place=Place(shard, self._count),
                commit=partial(_commit, board, shard),
                elsewhere=ShardElsewhere(board, shard),
            )
            for shard, store in self._stores.items()
        }
        if self._share is not None:
            self._finish = self._share.listen(self.stop)
        self._served = served = Composition(resources, cores, authorizer, lag, board, self._share)
        await served.open()
        readers = Readers(resources.settings)
        self._ports = self._listeners = listeners = Listeners(resources, served, readers)
        if self._hangups is not None:
            self._hangups.follow(listeners.reload())
        self._background = [
            asyncio.create_task(each)
            for each in (
                lag.run(),
                Forwarder(*(core.engine.routers for core in cores.values())).run(),
                *(work for core in cores.values() for work in core.background(_unheard, forwards=False)),
            )
        ]
        await listeners.start()
        self._tell(listening=True)
        for core in cores.values():
            began = time.monotonic()
            with core.api.observers("topics.recovery", {}):
                await maintenance.recover(core.engine, self._stop)
                core.recovered()
            core.api.metrics.recovery_seconds = time.monotonic() - began
            if core.engine.recovered >= 1:
                served.recovered(core)
        maintenance.log_ready(*(core.engine for core in cores.values()))
        served.health.write()
        self._background += [
            asyncio.create_task(_show_health(served, listeners)),
            asyncio.create_task(served.follow_users()),
        ]
        listeners.grpc.set_serving(served.api.ready().ready)
        if not self._stop.is_set():
            await listeners.start_postgres()
            await self._start_kafka(listeners)
            self._tell(serving=True)

    async def _start_kafka(self, listeners: Listeners) -> None:
        """Listen for Kafka once all shards answer, unless the server stops before."""
        tasks = [asyncio.ensure_future(each) for each in (listeners.start_kafka(), self._stop.wait())]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        if not tasks[0].cancelled():
            tasks[0].result()

    def _tell(self, **message: Any) -> None:
        if self._share is not None:
            self._share.tell(**message)

    async def shutdown(self) -> None:
        """Drain, end the background work, and make the rest durable."""
        served, listeners = self._served, self._listeners
        if served is None:
            return
        if listeners is not None:
            await listeners.stop()
        if self._finish is not None:
            self._tell(drained=True)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._settings.drain_seconds + _OTHERS_SECONDS):
                    await self._finish.wait()
        await served.close()
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
        unwritten = self._close_stores()
        self._resources.close(is_sound=True)
        self._resources = None
        if self._hold is not None:
            self._hold.release()
        if self._shutdown is not None:
            log_stopped(self._shutdown, unwritten)

    def _close_stores(self) -> StoreError | None:
        """Flush memory to disk and close the stores; return the error of one that could not be written."""
        cores = {} if self._served is None else self._served.cores

        def close(shard: int) -> StoreError | None:
            store = self._stores[shard]
            try:
                if shard not in cores or cores[shard].is_sound:
                    store.close()
                else:
                    store.abandon()
            except StoreError as error:
                return error
            return None

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            errors = list(pool.map(close, self._stores))
        self._stores = {}
        return next((error for error in errors if error is not None), None)


async def _show_health(served: Composition, listeners: Listeners) -> None:
    """Keep the health of gRPC, and what other processes know, in step with the shards, until cancelled."""
    while True:
        served.health.write()
        listeners.grpc.set_serving(served.api.ready().ready)
        await asyncio.sleep(_HEALTH_SECONDS)


def _commit(board: Board, shard: int, engine: Engine) -> Commit:
    commit = CountingCommit.for_engine(engine)
    commit.on_published = partial(board.measure, shard, engine)
    return commit


def _unheard(_: bool) -> None:
    """Ignore the health of one shard: that of all counts."""
