"""The parts of one process of a server with shards: the cores of its shards, the ways to the others, and the API."""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Final

from topics_server.core import Core, process_sources
from topics_server.lag import LoopLag
from topics_server.processes.board import Board, BoardHealth
from topics_server.processes.ledger import SharedUsage, SharedWatchStatistics
from topics_server.processes.metrics import Allowed, ProcessMetrics
from topics_server.processes.share import Share
from topics_server.resources import Resources
from topics_service.api.access.authorizer import Authorizer
from topics_service.api.audit import AuditLog
from topics_service.api.checkpoints import Checkpoints
from topics_service.api.kafka import KafkaShards
from topics_service.api.metrics.merging import Report
from topics_service.api.observers import Observers
from topics_service.api.scheduling.pressure import Pressure
from topics_service.engine.clock import SystemClock
from topics_service.engine.errors import TopicsError
from topics_service.engine.placement import SQL_SHARD
from topics_service.storage import checkpoint
from topics_shards.checkpoints import KEEPER, MEET_SECONDS, CheckpointsApi, ShardedCheckpoints
from topics_shards.holds import HoldSender
from topics_shards.kafka import ShardedKafka
from topics_shards.locating import Located
from topics_shards.process import ProcessApi, ProcessObjects
from topics_shards.remote import RemoteShards, remote_methods
from topics_shards.shard_work import ShardWork
from topics_shards.shards import LocalShards, LostCallError, Shard, Shards
from topics_shards.sql import ShardedSql, SqlPlacements
from topics_shards.topics import ShardedTopics
from topics_shards.wire.client import Channel
from topics_shards.wire.server import ShardServer, unix

log = logging.getLogger("topics.processes")

_FOLLOW_SECONDS: Final = 2.0
_RETRY_SECONDS: Final = 0.2
_SPREAD_SECONDS: Final = 2.0  # that a change of users waits for a process that does not answer
_REPORT_SECONDS: Final = 5.0


class Composition:
    """See `listeners.Served`. `open` comes first, on the event loop, and `close` last."""

    def __init__(
        self,
        resources: Resources,
        cores: dict[int, Core],
        authorizer: Authorizer,
        lag: LoopLag,
        board: Board,
        share: Share | None,
    ) -> None:
        self.cores = cores
        self.authorizer = authorizer
        self.audit = AuditLog(resources.audit_file.write) if resources.audit_file is not None else None
        self._share = share
        self._channels: dict[int, Channel] = {}
        self._server: ShardServer | None = None
        self._process: ProcessObjects | None = None
        self._works: list[ShardWork] = []
        self._senders: list[HoldSender] = []
        apis = [core.api for core in cores.values()]
        sources = process_sources(lag, authorizer, resources.traces.statistics)
        metrics = ProcessMetrics([api.metrics for api in apis], sources, self._reports)
        if share is not None:
            ledger, process = share.ledger, share.process
            metrics.watch = SharedWatchStatistics(ledger, process)
            authorizer.quotas.make = lambda key_id, limits: SharedUsage(ledger, process, key_id, limits)
        self._local = {shard: Shard(core.api) for shard, core in cores.items()}
        self._shards = self._reached()
        observers = Observers(*resources.traces.observers, *(() if self.audit is None else (self.audit.observe,)))
        self._located = located = Located(self._shards)
        self.health = BoardHealth(board, cores)
        settings = resources.settings
        pressure = Pressure(lag_ms=lambda: lag.sustained_ms, max_lag_ms=settings.max_lag_ms)
        self.api = ShardedTopics(
            located,
            settings.limits,
            metrics,
            observers,
            self.health,
            overload_ms=pressure.overload_ms,
            watch_caps=settings.watch_caps,
        )
        self.api.watches.connections.quotas = authorizer.quotas
        metrics.watch_lag = self.api.watches.lag
        metrics.lags = self.api.groups.lags
        own = CheckpointsApi({shard: core.store for shard, core in cores.items()}, self._meet)
        self.checkpoints = ShardedCheckpoints(self._shards, own, observers)
        if self._shards.process == KEEPER:
            folder = settings.data_path / "checkpoints"
            make = apis[0].metrics.checkpoints.counted(self.checkpoints.maker())
            own.kept = Checkpoints(folder, make, checkpoint.remove, self.health.ready)
            own.kept.clear()
        if self._process is not None:
            self._process.add(ProcessApi(metrics.report, authorizer.users), own, self.api.watches)
        self.api.sql = ShardedSql(located, self.api.consumers)
        self._kafka = ShardedKafka(self.api, located)
        self._kafka_groups = settings.kafka.groups
        for api in apis:
            api.parts.connect(self._shards)
            if api.sql is not None:
                api.sql.placements = SqlPlacements(located)
                if share is not None:
                    api.sql.users.spread = self._spread

    def _reached(self) -> Shards:
        """All shards, as this process reaches them."""
        share = self._share
        if share is None:
            return LocalShards(self._local)
        methods, name = remote_methods(), f"process {share.process}"
        self._process = ProcessObjects()
        number = share.count + share.process
        self._server = ShardServer({**self._local, number: self._process}, methods, name)
        for process in range(share.processes):
            if process != share.process:
                self._channels[process] = Channel(unix(share.socket_of(process)), f"process {process}", name)
        owners = {shard: self._channels[share.owner(shard)] for shard in range(share.count) if shard not in self._local}
        owners |= {share.count + process: channel for process, channel in self._channels.items()}
        shards = RemoteShards(share.count, self._local, owners, methods)
        shards.process, shards.processes = share.process, share.processes
        return shards

    def _meet(self, number: int) -> bool:
        share = self._share
        return share is None or share.board.meet(share.process, share.processes, number, MEET_SECONDS)

    async def open(self) -> None:
        """Take calls of the other processes from now on. Raises OSError."""
        if self._server is not None and self._share is not None:
            await self._server.listen(self._share.socket_of(self._share.process))

    def recovered(self, core: Core) -> None:
        """Begin what a shard does by itself. Call it once its engine has recovered."""
        core.api.parts.resume()
        self._senders.append(HoldSender.serve(core.engine.parts.place.shard, core.engine, core.api, self._located))
        work = ShardWork(self._located, core.api, core.engine, SystemClock())
        work.start()
        self._works.append(work)

    async def kafka(self) -> KafkaShards:
        """See `listeners.Served`. Waits for all shards."""
        await self._kafka.start(self._kafka_groups)
        return self._kafka

    def drain(self) -> None:
        """Stop taking calls, and end the waits of those under way."""
        self.api.drain()
        for core in self.cores.values():
            core.drain()
        self.health.write()

    async def close(self) -> None:
        """End the calls between processes, when none of them has any of clients."""
        await self._kafka.stop()
        for sender in self._senders:
            await sender.stop()
        for core in self.cores.values():
            core.api.parts.stop()
        await asyncio.gather(*(each.stop() for each in self._works))
        if self._server is not None:
            await self._server.drain(_RETRY_SECONDS)
        for channel in self._channels.values():
            channel.close()
        if self._server is not None:
            await self._server.close()

    # -------------------------------------------------- the other processes

    async def follow_users(self) -> None:
        """Follow the users of CREATE USER, which are rows of the shard of SQL, until cancelled."""
        share = self._share
        if share is None or SQL_SHARD in self.cores:
            return
        owner = self._shards.number_of(share.owner(SQL_SHARD))
        while True:
            try:
                rows = await self._shards.call(owner, ProcessApi.stored_users)
                self.authorizer.users.replace_stored(rows)
            except (TopicsError, LostCallError) as error:
                log.debug("the users stay as they were: %s", error)
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            await asyncio.sleep(_FOLLOW_SECONDS)

    async def _spread(self) -> None:
        """Tell all processes the users that there are now; one that does not answer asks later itself."""
        rows = self.authorizer.users.stored

        async def tell(process: int) -> None:
            with contextlib.suppress(TopicsError, LostCallError, TimeoutError):
                async with asyncio.timeout(_SPREAD_SECONDS):
                    await self._shards.call(self._shards.number_of(process), ProcessApi.replace_users, rows)

        await asyncio.gather(*(tell(process) for process in self._channels))

    async def _reports(self, allowed: Allowed) -> Sequence[Report]:
        """The metrics of the other processes; without those of one that does not answer."""

        async def ask(process: int) -> Report | None:
            with contextlib.suppress(TopicsError, LostCallError, TimeoutError):
                async with asyncio.timeout(_REPORT_SECONDS):
                    return await self._shards.call(self._shards.number_of(process), ProcessApi.report, allowed)
            return None

        found = await asyncio.gather(*(ask(process) for process in self._channels))
        return [report for report in found if report is not None]
