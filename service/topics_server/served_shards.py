"""The calls on all shards of a server or a cluster, and the work of the shards that are in this process."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, TypeVar

from topics_server.core import Core
from topics_server.lag import LoopLag
from topics_server.processes.metrics import Allowed, ProcessMetrics
from topics_server.resources import Resources
from topics_service.api.access.authorizer import Authorizer
from topics_service.api.audit import AuditLog
from topics_service.api.kafka import Brokers, KafkaShards, ReplicaLogs
from topics_service.api.metrics.merging import Report
from topics_service.api.observers import Observers
from topics_service.api.scheduling.pressure import Pressure
from topics_service.api.sql.cancels import SessionCancels
from topics_service.api.sql.held import HeldSessions
from topics_service.api.sql.sessions import SessionParts, Sessions
from topics_service.api.topics import TopicsApi
from topics_service.engine.errors import TopicsError
from topics_service.engine.placement import SQL_SHARD
from topics_shards.health import Health
from topics_shards.holds import HoldSender
from topics_shards.kafka import ShardedKafka
from topics_shards.locating import Located
from topics_shards.process import ProcessApi
from topics_shards.sessions import RelayedCancels, RelayedSessions
from topics_shards.shard_work import ShardWork
from topics_shards.shards import LostCallError, Method, P, Shards
from topics_shards.sql import ShardedLive, ShardedSql, SqlPlacements
from topics_shards.systemtables import MergedSystemTables
from topics_shards.topics import ShardedTopics

log: Final = logging.getLogger("topics.server")

T = TypeVar("T")

_FOLLOW_SECONDS: Final = 2.0
_RETRY_SECONDS: Final = 0.2
_SPREAD_SECONDS: Final = 2.0  # that a change of users waits for a process that does not answer
_REPORT_SECONDS: Final = 5.0


class LocalWork:
    """The work of a shard of this process with the others. Begins at once."""

    def __init__(self, located: Located, core: Core, confirm: Callable[[], Awaitable[object]] | None = None) -> None:
        """`confirm` is that of HoldSender."""
        self._parts = core.api.parts
        self._parts.resume()
        shard = core.engine.parts.place.shard
        self._holds = HoldSender.serve(shard, core.engine, core.api, located, confirm)
        self._work = ShardWork(located, core.api, core.engine, core.clock)
        self._work.start()

    async def stop(self) -> None:
        """End what is under way; it continues after the next start."""
        self._parts.stop()
        await asyncio.gather(self._holds.stop(), self._work.stop())


class ServedShards:
    """The API of all doors."""

    def __init__(
        self,
        resources: Resources,
        shards: Shards,
        metrics: ProcessMetrics,
        health: Health,
        *,
        authorizer: Authorizer,
        lag: LoopLag,
        others: Callable[[], Iterable[int]],
        brokers: Brokers | None = None,
        replica: Callable[[int], ReplicaLogs | None] = lambda _shard: None,
    ) -> None:
        """`others` gives the numbers of the other processes, or nodes, that may be called now. `brokers` are the nodes
        of a cluster, `replica` finds this node's one of a shard."""
        settings = resources.settings
        self.audit = AuditLog(resources.audit_file.write) if resources.audit_file is not None else None
        self._shards = shards
        self._authorizer = authorizer
        self._others = others
        self._located = located = Located(shards)
        observers = Observers(*resources.traces.observers, *(() if self.audit is None else (self.audit.observe,)))
        pressure = Pressure(lag_ms=lambda: lag.sustained_ms, max_lag_ms=settings.max_lag_ms)
        self.api = ShardedTopics(
            located,
            settings.limits,
            metrics,
            observers,
            health,
            overload_ms=pressure.overload_ms,
            watch_caps=settings.watch_caps,
        )
        self.api.watches.connections.quotas = authorizer.quotas
        metrics.watch_lag = self.api.watches.lag
        metrics.lags = self.api.groups.lags
        self.api.sql = ShardedSql(located, self.api.consumers, ShardedLive(located, self.api.watches.connection))
        self._groups = settings.kafka.groups
        self._kafka = ShardedKafka(self.api, located, brokers, replica)
        self._kafka.catalog.on_changed.append(self.api.topics_changed)
        self._timeout_seconds = settings.sql_statement_timeout
        self._sessions: RelayedSessions | None = None
        self._cancels = SessionCancels()
        self.objects = (ProcessApi(shards.local, metrics.report, authorizer.users), self.api.watches, self._cancels)
        """Those that other processes call on this one."""

    def shard_of(self, topic: str, partition: int) -> int:
        """The shard of a partition, as far as this process knows."""
        return self._located.shard(topic, partition)

    # ------------------------------------------------------- shards that are here

    def connect(self, api: TopicsApi) -> None:
        """Let a shard of this process reach the others. Call it before its engine recovers."""
        api.parts.connect(self._shards)
        if api.sql is not None:
            api.sql.placements = SqlPlacements(self._located)
            api.sql.system.merged = MergedSystemTables(self._located)
            api.sql.users.spread = self._spread

    def begin(self, core: Core, confirm: Callable[[], Awaitable[object]] | None = None) -> "LocalWork":
        """Begin what a shard does by itself. Call it once its engine has recovered, before calls come. `confirm` raises
        if another process owns the shard by now."""
        self._kafka.join(core.api)
        return LocalWork(self._located, core, confirm)

    # ------------------------------------------------------------------ Kafka

    async def kafka(self) -> KafkaShards:
        """See `listeners.Served`. Waits for all shards."""
        await self._kafka.start(self._groups)
        return self._kafka

    async def stop_kafka(self) -> None:
        """Follow the topics of other shards no more."""
        await self._kafka.stop()

    # ------------------------------------------------------------- PostgreSQL

    def postgres(self) -> SessionParts:
        """See `listeners.Served`."""
        statistics, shard = self.api.metrics.postgres, self._shards.direct(SQL_SHARD)
        sessions: Sessions
        if shard is not None:
            held = shard.of(HeldSessions.execute)
            assert isinstance(held, HeldSessions)
            sessions = held.own
        else:
            self._sessions = sessions = RelayedSessions(self._shards, self._timeout_seconds, statistics.lost)
        if self._shards.is_alone:
            return SessionParts(sessions, self._cancels)
        return SessionParts(sessions, self._cancels, RelayedCancels(self._shards, self._others, statistics))

    async def stop_postgres(self) -> None:
        """Give back what sessions have at the owner of SQL's shard."""
        if self._sessions is not None:
            await self._sessions.close()

    # -------------------------------------------------- the other processes

    async def follow_users(self, owner: Callable[[], int | None]) -> None:
        """Follow the users of CREATE USER, which are rows of the shard of SQL, until cancelled.

        `owner` gives the number of the process that has that shard; None if it is this one, or not known.
        """
        while True:
            number = owner()
            if number is not None:
                try:
                    rows = await self._shards.call(number, ProcessApi.stored_users)
                    self._authorizer.users.replace_stored(rows)
                except (TopicsError, LostCallError) as error:
                    log.debug("the users stay as they were: %s", error)
                    number = None
            await asyncio.sleep(_RETRY_SECONDS if number is None else _FOLLOW_SECONDS)

    async def _spread(self) -> None:
        """Tell all processes the users that there are now; one that does not answer asks later itself."""
        await self._each(_SPREAD_SECONDS, ProcessApi.replace_users, self._authorizer.users.stored)

    async def reports(self, allowed: Allowed) -> Sequence[Report]:
        """The metrics of the other processes; without those of one that does not answer."""
        return await self._each(_REPORT_SECONDS, ProcessApi.report, allowed)

    async def _each(self, seconds: float, method: Method[P, T], /, *args: P.args, **kwargs: P.kwargs) -> list[T]:
        """Call all other processes at once; the results of those that answer in time."""

        async def ask(number: int) -> T | None:
            with contextlib.suppress(TopicsError, LostCallError, TimeoutError):
                async with asyncio.timeout(seconds):
                    return await self._shards.call(number, method, *args, **kwargs)
            return None

        found = await asyncio.gather(*map(ask, self._others()))
        return [each for each in found if each is not None]
