"""The time in which a node owns a shard: its core, and the calls that run there."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any, Final

from starlette.types import ASGIApp, Receive, Scope, Send

from topics_cluster.bucket import Bucket
from topics_cluster.commit import LogCommit
from topics_cluster.coordinator import Session
from topics_cluster.store import ShardStore
from topics_cluster.takeover import Ownership
from topics_cluster.uploader import Uploader
from topics_gateway.app import create_app
from topics_gateway.transport import BrokenOffError
from topics_net import background
from topics_server import maintenance
from topics_server.core import Core
from topics_server.lag import LoopLag
from topics_server.listeners import gateway_settings
from topics_server.node.gate import LostShardError, ReadGate
from topics_server.node.peers import Standpoint
from topics_server.resources import Resources
from topics_service.api.access.authorizer import Authorizer
from topics_service.api.cluster import ClusterApi
from topics_service.api.grpc.admin_servicer import FindBulkReaders
from topics_service.api.grpc.server import create_calls
from topics_service.api.running import RunningCalls
from topics_service.api.zones import Zones
from topics_service.engine.clock import Clock
from topics_service.engine.errors import TopicsError
from topics_service.engine.limits import Elsewhere
from topics_service.engine.placement import SINGLE, SQL_SHARD, Place
from topics_service.statistics import NodeStatistics
from topics_service.storage.store import StoreLostError

log: Final = logging.getLogger("topics.cluster")

_SHORT_SECONDS: Final = 0.01  # for calls that have come, to write
_DRAIN_SECONDS: Final = 0.1  # for long polls and streams, which end when the drain begins
_CANCEL_SECONDS: Final = 5.0


class Term:
    """One ownership. Begins with `start`, and takes calls from `open` on. Ends with `drain` and `finish`, or with
    `abort` when the shard is lost; then `release`."""

    def __init__(
        self,
        resources: Resources,
        clock: Clock,
        store: ShardStore,
        ownership: Ownership,
        *,
        bucket: Bucket,
        session: Session,
        authorizer: Authorizer,
        statistics: NodeStatistics,
        place: Place = SINGLE,
        lag: LoopLag | None = None,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        """Begin to upload; `store` is that of the takeover. `place` is the shard's among those of the cluster; for
        `lag` and `elsewhere` see Core."""
        self.ownership = ownership
        self.on_change: Callable[[], None] = lambda: None
        """Called on the loop when objects were acknowledged, or the shard was lost."""
        self.failure: BaseException | None = None
        self._store = store
        self._running = RunningCalls()
        uploader = Uploader(
            bucket,
            ownership.shard,
            ownership.position,
            ownership.nonce,
            version=ownership.version,
            window=resources.settings.cluster_window,
            linger=resources.settings.cluster_linger_ms / 1000,
        )
        uploader.statistics.latency = statistics.shards[ownership.shard].puts
        store.own(uploader)
        self.uploader = uploader
        self.gate = ReadGate(session, bucket, uploader, ownership.nonce)
        self.core = Core(
            resources,
            clock,
            store,
            authorizer=authorizer,
            commit=self._commit,
            node=statistics if place == SINGLE else None,  # with several shards its figures are of none of them
            place=place,
            lag=lag,
            elsewhere=elsewhere,
        )
        self._background: list[asyncio.Task[None]] = []

    def _commit(self, engine: "object") -> LogCommit:
        self._log_commit = commit = LogCommit.for_engine(engine, self._store, self.lose)  # type: ignore[arg-type]
        commit.on_published = self._changed
        return commit

    def _changed(self) -> None:
        self.on_change()

    def lose(self, error: BaseException) -> None:
        """Note that the shard is lost, and let no call begin any more; `on_change` follows."""
        if self.failure is None:
            self.failure = error
            self.gate.close()
            self.on_change()

    async def start(self, set_serving: Callable[[bool], None]) -> None:
        """Recover the engine as after a power cut; as after a kill, if the owner before was this life of the directory.
        Return once that is in the log. Raises StoreError, TopicsError and LostShardError."""
        self._background = [background.start(each) for each in self.core.background(set_serving)]
        stored = self._store.take_catalog()
        engine = self.core.engine
        await maintenance.recover(engine, asyncio.Event(), self._store.life, stored, syncs=False)
        maintenance.log_ready(engine)
        if self.ownership.shard == SQL_SHARD:  # it has the users of CREATE USER
            self.core.recovered()
        await self._log_commit.settle(engine.writer.written)  # the node's other shards do not wait
        if self.failure is not None:
            raise LostShardError(str(self.failure)) from self.failure

    @property
    def running(self) -> RunningCalls:
        """The calls under way, which are broken off at the end."""
        return self._running

    def position(self) -> Standpoint:
        """The position behind everything that was written."""
        return Standpoint(epoch=self.ownership.epoch, ticket=self._store.ticket)

    async def standpoint(self) -> Standpoint:
        """A number of writes that are all that was acknowledged before the call. Raises LostShardError, and `not_ready`
        while that is not certain."""
        if not self.gate.is_open:
            await self.gate.look()
        return self.position()

    def open(self) -> None:
        """Take calls from now on: it is certain that the shard is owned here."""

    # --------------------------------------------------------------- end

    async def drain(self) -> None:
        """End calls in good order, when no new ones come, and close the engine: those that have written end with their
        commit; those that wait for something with what they have; streams, for their clients to resume them elsewhere.
        """
        self.uploader.hurry()
        await self._running.ended(_SHORT_SECONDS)
        await self._stop_background()
        self.core.api.drain()
        engine = self.core.engine
        with contextlib.suppress(TopicsError):
            engine.close_later()
        engine.sync_failed(StoreLostError("the shard is handed over"))  # nothing may be written behind that
        with contextlib.suppress(TopicsError):
            await self._log_commit.settle(engine.writer.written)
        await self._running.ended(_DRAIN_SECONDS)

    async def finish(self) -> bool:
        """Break off calls that are left, and let the database go; `drain` comes before, and `release` after it.

        Return whether everything is in the log; it is not if the shard is lost meanwhile, or the bucket is away.
        """
        await self._break_off()
        if self.failure is None and self._store.is_ahead:
            await asyncio.to_thread(self._log_commit.stop)
        self._store.disown()
        return self.failure is None and not self._store.is_ahead

    async def abort(self) -> None:
        """End at once, and write nothing any more; `release` has to follow. Calls are broken off: what they wrote may
        be in the log or not."""
        self._log_commit.lose(self.failure or LostShardError("the shard was given up"))
        await self._stop_background()
        self.core.api.drain()
        await self._break_off()
        self._log_commit.abandon()
        await asyncio.to_thread(self.uploader.stop)
        self._store.disown()

    async def release(self) -> None:
        """End the threads. Nothing that they do is in the log, so this can wait until another node owns the shard."""
        await asyncio.gather(asyncio.to_thread(self.uploader.stop), self.core.stop_upkeep())

    async def _break_off(self) -> None:
        if not await self._running.break_off(_CANCEL_SECONDS):
            log.error("%d calls do not end", len(self._running.tasks))

    async def _stop_background(self) -> None:
        tasks, self._background = self._background, []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


class SoleTerm(Term):
    """An ownership of the only shard of a cluster: the calls of clients are served by it."""

    def __init__(
        self,
        resources: Resources,
        *args: Any,
        cluster: ClusterApi,
        bulk_readers: FindBulkReaders,
        zones: Zones,
        **kwargs: Any,
    ) -> None:
        """See Term; `zones` finds the shards that prefer a zone."""
        super().__init__(resources, *args, **kwargs)
        self.core.api.zones = zones
        authorizer = self.core.authorizer
        self.calls = create_calls(
            self.core.api,
            authorizer=authorizer,
            bulk_readers=bulk_readers,
            checkpoints=self.core.checkpoints,
            cluster=cluster,
            observer=resources.traces.grpc,
            running=self._running,
        )
        app = create_app(self.core.api, gateway_settings(resources.settings), authorizer.cancelling(), self.calls)
        self._app: ASGIApp = resources.traces.app(app)

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve an HTTP request or a WebSocket."""
        task, running = asyncio.current_task(), self._running
        assert task is not None, "applications run in tasks"
        running.begin(task)
        try:
            await self._app({**scope}, receive, send)  # the connection keeps its scope, in which Starlette puts the app
        except asyncio.CancelledError:
            if not running.is_broken_off():
                raise
            raise BrokenOffError from None
        finally:
            running.end(task)
