"""The parts of one process of a server with shards: the cores of its shards, the ways to the others, and the API."""

import asyncio
from collections.abc import Iterable

from topics_server.core import Core, process_sources
from topics_server.lag import LoopLag
from topics_server.processes.board import Board, BoardHealth
from topics_server.processes.ledger import SharedUsage, SharedWatchStatistics
from topics_server.processes.metrics import ProcessMetrics
from topics_server.processes.share import Share
from topics_server.resources import Resources
from topics_server.served_shards import LocalWork, ServedShards
from topics_service.api.access.authorizer import Authorizer
from topics_service.api.checkpoints import Checkpoints
from topics_service.api.kafka import KafkaShards
from topics_service.api.sql.sessions import SessionParts
from topics_service.engine.placement import SQL_SHARD
from topics_service.storage import checkpoint
from topics_shards.checkpoints import KEEPER, MEET_SECONDS, CheckpointsApi, ShardedCheckpoints
from topics_shards.process import ProcessObjects
from topics_shards.remote import RemoteShards, remote_methods
from topics_shards.shards import LocalShards, Shard, Shards
from topics_shards.wire.client import Channel
from topics_shards.wire.server import ShardServer, unix

_DRAIN_SECONDS = 0.2


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
        self._share = share
        self._channels: dict[int, Channel] = {}
        self._server: ShardServer | None = None
        self._process: ProcessObjects | None = None
        self._works: list[LocalWork] = []
        apis = [core.api for core in cores.values()]
        self._local = {shard: Shard(core.api) for shard, core in cores.items()}
        self._shards = self._reached()
        self.health = BoardHealth(board, cores)
        sources = process_sources(lag, authorizer, resources.traces.statistics)
        metrics = ProcessMetrics(lambda: [api.metrics for api in apis], sources)
        if share is not None:
            ledger, process = share.ledger, share.process
            metrics.watch = SharedWatchStatistics(ledger, process)
            authorizer.quotas.make = lambda key_id, limits: SharedUsage(ledger, process, key_id, limits)
        self._served = served = ServedShards(
            resources, self._shards, metrics, self.health, authorizer=authorizer, lag=lag, others=self._others
        )
        metrics.others = served.reports
        self.api, self.audit = served.api, served.audit
        own = CheckpointsApi({shard: core.store for shard, core in cores.items()}, self._meet, self._are_met)
        self.checkpoints = ShardedCheckpoints(self._shards, own, self.api.observers)
        if self._shards.process == KEEPER:
            folder = resources.settings.data_path / "checkpoints"
            make = apis[0].metrics.checkpoints.counted(self.checkpoints.maker())
            own.kept = Checkpoints(folder, make, checkpoint.remove, self.health.ready)
            own.kept.clear()
        if self._process is not None:
            self._process.add(*served.objects, own)
        for api in apis:
            served.connect(api)

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

    def _others(self) -> Iterable[int]:
        return map(self._shards.number_of, self._channels)

    def _meet(self, number: int) -> bool:
        share = self._share
        return share is None or share.board.meet(share.process, share.processes, number, MEET_SECONDS)

    def _are_met(self, number: int) -> bool:
        share = self._share
        return share is None or share.board.are_met(share.process, share.processes, number)

    async def open(self) -> None:
        """Take calls of the other processes from now on. Raises OSError."""
        if self._server is not None and self._share is not None:
            await self._server.listen(self._share.socket_of(self._share.process))

    def recovered(self, core: Core) -> None:
        """Begin what a shard does by itself. Call it once its engine has recovered."""
        self._works.append(self._served.begin(core))

    async def kafka(self) -> KafkaShards:
        """See `listeners.Served`. Waits for all shards."""
        return await self._served.kafka()

    def postgres(self) -> SessionParts:
        """See `listeners.Served`."""
        return self._served.postgres()

    def drain(self) -> None:
        """Stop taking calls, and end the waits of those under way."""
        self.api.drain()
        for core in self.cores.values():
            core.drain()
        self.health.write()

    async def close(self) -> None:
        """End the calls between processes, when none of them has any of clients."""
        await self._served.stop_kafka()
        await self._served.stop_postgres()
        await asyncio.gather(*(each.stop() for each in self._works))
        if self._server is not None:
            await self._server.drain(_DRAIN_SECONDS)
        for channel in self._channels.values():
            channel.close()
        if self._server is not None:
            await self._server.close()

    async def follow_users(self) -> None:
        """Follow the users of CREATE USER of another process, until cancelled."""
        share = self._share
        if share is not None and SQL_SHARD not in self.cores:
            number = self._shards.number_of(share.owner(SQL_SHARD))
            await self._served.follow_users(lambda: number)
