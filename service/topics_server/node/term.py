"""The time in which a node owns the shard: its core, and the calls that it serves."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

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
from topics_server.listeners import gateway_settings
from topics_server.node.gate import LostShardError, ReadGate
from topics_server.node.peers import Standpoint
from topics_server.resources import Resources
from topics_service.api.access.authorizer import Authorizer
from topics_service.api.cluster import ClusterApi
from topics_service.api.grpc.admin_servicer import BulkReaders
from topics_service.api.grpc.server import create_calls
from topics_service.engine.clock import Clock
from topics_service.statistics import NodeStatistics

log: Final = logging.getLogger("topics.cluster")

_SHORT_SECONDS: Final = 0.05  # for calls that end by themselves
_DRAIN_SECONDS: Final = 1.0  # for long polls and streams, after the drain has begun
_CANCEL_SECONDS: Final = 5.0


class Term:
    """One ownership. Begins with `start`; ends with `finish`, or with `abort` when the shard is lost."""

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
        cluster: ClusterApi,
        bulk_readers: BulkReaders,
        statistics: NodeStatistics,
    ) -> None:
        """Begin to upload; `store` is that of the takeover."""
        self.ownership = ownership
        self.is_over = False
        """True once the shard is lost: what is cancelled then ends as when a server dies."""
        self.on_change: Callable[[], None] = lambda: None
        """Called on the loop when objects were acknowledged, or the shard was lost."""
        self.failure: BaseException | None = None
        self._store = store
        uploader = Uploader(
            bucket, ownership.shard, ownership.position, ownership.nonce, resources.settings.cluster_window
        )
        uploader.statistics.latency = statistics.puts
        store.own(uploader)
        self.uploader = uploader
        self.gate = ReadGate(session, bucket, uploader, ownership.nonce)
        self.core = Core(resources, clock, store, authorizer=authorizer, commit=self._commit, node=statistics)
        self.calls = create_calls(
            self.core.api,
            authorizer=authorizer,
            bulk_readers=bulk_readers,
            checkpoints=self.core.checkpoints,
            cluster=cluster,
            observer=resources.traces.grpc,
        )
        app = create_app(self.core.api, gateway_settings(resources.settings), authorizer.cancelling(), self.calls)
        self._app: ASGIApp = resources.traces.app(app)
        self._has_ended = False
        self._tasks: set[asyncio.Task[object]] = set()
        self._background: list[asyncio.Task[None]] = []

    def _commit(self, engine: "object") -> LogCommit:
        self._log_commit = commit = LogCommit.for_engine(engine, self._store, self.lose)  # type: ignore[arg-type]
        commit.on_published = self._changed
        return commit

    def _changed(self) -> None:
        self.on_change()

    def lose(self, error: BaseException) -> None:
        """Note that the shard is lost; `on_change` follows."""
        if self.failure is None:
            self.failure = error
            self.on_change()

    async def start(self, set_serving: Callable[[bool], None]) -> None:
        """Recover the engine as after a power cut; as after a kill, if the owner before was this life of the directory.
        Raises StoreError and TopicsError."""
        self._background = [background.start(each) for each in self.core.background(set_serving)]
        await maintenance.recover(self.core.engine, asyncio.Event(), self._store.life)
        self.core.recovered()

    async def standpoint(self) -> Standpoint:
        """A number of writes that are all that was acknowledged before the call. Raises LostShardError, and `not_ready`
        while that is not certain."""
        if not self.gate.is_open:
            await self.gate.look()
        return Standpoint(epoch=self.ownership.epoch, ticket=self._store.ticket)

    # ------------------------------------------------------------- calls

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve an HTTP request or a WebSocket."""
        task = asyncio.current_task()
        assert task is not None, "applications run in tasks"
        self._tasks.add(task)
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            if not self.is_over or task.uncancel():
                raise
            raise BrokenOffError from None
        finally:
            self._tasks.discard(task)

    def enter(self) -> None:
        """Note that the current task is a call."""
        task = asyncio.current_task()
        assert task is not None, "each call has its task"
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --------------------------------------------------------------- end

    async def finish(self) -> bool:
        """End calls in good order, close the engine and make all of it durable. No new calls may come.

        Return whether everything is in the log; it is not if the shard is lost meanwhile, or the bucket is away.
        """
        await self._ended(_SHORT_SECONDS)
        self.core.api.drain()
        await self._ended(_DRAIN_SECONDS)
        await self._cancel()
        await self._end()
        return self.failure is None and not self._store.is_ahead

    async def abort(self) -> None:
        """End at once, if it has not ended: calls that wait are broken off, and nothing is written any more."""
        if self._has_ended:
            return
        error = self.failure or LostShardError("the shard was given up")
        self.lose(error)
        self._log_commit.abandon(error)
        await asyncio.to_thread(self.uploader.stop)  # else the core would wait for a bucket that is away
        await self._cancel()
        await self._end()

    async def _end(self) -> None:
        self._has_ended = True
        for task in self._background:
            task.cancel()
        if self._background:
            await asyncio.wait(self._background)
        await self.core.stop()
        await asyncio.to_thread(self.uploader.stop)
        self._store.disown()

    async def _ended(self, seconds: float) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)

    async def _cancel(self) -> None:
        self.is_over = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            _, left = await asyncio.wait(self._tasks, timeout=_CANCEL_SECONDS)
            if left:
                log.error("%d calls do not end", len(left))
