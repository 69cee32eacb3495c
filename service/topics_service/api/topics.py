"""Topic calls, shared by gRPC, HTTP and Kafka."""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from topics_service.api.access.auth import Principal
from topics_service.api.access.authorizer import check_append, check_put
from topics_service.api.access.passwords import Passwords
from topics_service.api.access.users import Users
from topics_service.api.catalog import Catalog, CatalogView
from topics_service.api.catalog_copy import CatalogApi
from topics_service.api.groups import GroupsApi
from topics_service.api.membership import MembershipApi
from topics_service.api.metrics.collector import Metrics, MetricsSources
from topics_service.api.mirrors import MirrorsApi
from topics_service.api.observers import NO_OBSERVERS, Facts, Observers
from topics_service.api.parts import PartsApi
from topics_service.api.placements import PlacementsApi
from topics_service.api.positions import PositionsApi
from topics_service.api.queues import QueuesApi
from topics_service.api.routers import RoutersApi
from topics_service.api.scheduling.batcher import WriteBatcher
from topics_service.api.scheduling.commit import Commit
from topics_service.api.scheduling.pressure import Pressure, Shortage
from topics_service.api.sql.analysis.api import Analyses
from topics_service.api.sql.consume import ConsumeApi
from topics_service.api.sql.executor import SqlApi
from topics_service.api.sql.live import LiveApi
from topics_service.api.sql.reader import SqlReader
from topics_service.api.sql.system import SettingLine, SystemTables
from topics_service.api.sql.users import UserStatements
from topics_service.api.watch import EngineSource, WatchApi, WatchCaps
from topics_service.api.zones import Zones, check_zoned, no_zones, placed_in
from topics_service.engine import cluster
from topics_service.engine.batches import BatchReply, BatchRequest, FetchReply, FetchRequest
from topics_service.engine.engine import Engine, Parked
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.limits import Limits
from topics_service.engine.membership.members import GroupSettings
from topics_service.engine.model import (
    AppendReply,
    AppendRequest,
    Batch,
    BulkRequest,
    ConfigInput,
    DeleteReply,
    DeleteRequest,
    DeleteTopicReply,
    DiffReply,
    DiffRequest,
    ListTopicsReply,
    ListTopicsRequest,
    PutTopicReply,
    ReadyState,
    TopicState,
    joined,
)
from topics_service.engine.names import check_placement
from topics_service.engine.placement import zone_of
from topics_service.engine.producers import Producer

# Limits for writes that are batched.
_SMALL_RECORDS: Final = 4
_SMALL_BYTES: Final = 4096
_MAX_BATCHED: Final = 64


class Settable(Protocol):
    """An object that can be set, such as an asyncio.Event."""

    def set(self) -> None:
        """Signal the event."""


class Submitted(Struct, kw_only=True):
    """A write that was submitted or refused; `TopicsApi.settle` returns the outcome once `ticket` is durable."""

    ticket: int = 0
    reply: AppendReply | None = None
    error: TopicsError | None = None
    written: float = 0.0  # on time.perf_counter


class TopicsApi:
    """Runs calls on the engine and replies when their effect is as durable as promised.

    Every method raises TopicsError. All of them run on the event loop that owns the engine. Cancelling a call ends
    its wait; a write that was already submitted to the store stays. Callers have authorized the call itself; methods
    that take a `principal` check the other names of the request, and raise `forbidden`.
    """

    def __init__(
        self,
        engine: Engine,
        commit: Commit,
        pressure: Pressure | None = None,
        watch_caps: WatchCaps | None = None,
        metrics_sources: MetricsSources | None = None,
        observers: Observers = NO_OBSERVERS,
    ) -> None:
        self.observers = observers
        self._engine = engine
        self._commit = commit
        self._pressure = pressure or Pressure()
        self._waiting: set[Settable] = set()
        self._turns: dict[tuple[str, int], asyncio.Future[object]] = {}  # the ends of `submit` under way
        self._batcher = WriteBatcher(self._append_batched, _MAX_BATCHED)
        self.zones: Zones = no_zones
        """Finds the shards that prefer a zone."""
        self.membership: MembershipApi | None = None
        """The calls of group members, once they are served."""
        self.placements = PlacementsApi(self._admit, self._settle)
        self.parts = PartsApi(engine, self._admit, self._settle)
        self.copied = CatalogApi(engine)
        self.metrics = Metrics(engine, commit.statistics, metrics_sources, lambda: self.watches.lag())
        self.watches = WatchApi(
            EngineSource(self._admit), engine.priority, self._pressure.overload_ms, self.metrics.watch, watch_caps
        )
        self.routers = RoutersApi(self._admit, self._settle, self.news, observers)
        self.groups = GroupsApi(self._admit, self._settle, self.diff, observers)
        self.consumers = ConsumeApi(
            self._admit,
            self._settle,
            self.routers.forwarded,
            self.expiry_durable,
            self.notify_on_drain,
            observers,
            self.metrics.sql,
        )
        self.positions = PositionsApi(self._admit, self._settle)
        self.mirrors = MirrorsApi(self._admit, self._settle)
        self.sql: SqlApi | None = None
        self.queues = QueuesApi(
            self._admit, self._settle, self.watches.connection, self.routers.forwarded, observers=observers
        )

    @property
    def limits(self) -> Limits:
        """The limits that requests meet."""
        return self._engine.limits

    @cached_property
    def catalog(self) -> CatalogView:
        """The topics, for reading. The first use must come after recovery, and takes O(topics)."""
        return CatalogView(self._engine)

    def serve_members(self, settings: GroupSettings, catalog: Catalog | None = None) -> MembershipApi:
        """The calls of group members; the first call, after recovery, starts their coordinator with the settings.

        `catalog` has the topics that members may consume, if these are not the engine's.
        """
        if self.membership is None:
            topics = self.catalog if catalog is None else catalog
            self.membership = MembershipApi(
                self._engine, topics, self.settled, self.is_durable, settings, self.positions
            )
        return self.membership

    def serve_sql(
        self,
        reader: SqlReader,
        users: Users,
        passwords: Passwords,
        *,
        settings: Sequence[SettingLine] = (),
        timeout_seconds: float = 30.0,
        analyses: Analyses | None = None,
    ) -> SqlApi:
        """Serve SQL, read by `reader`; call it once, before the protocols are set up."""
        statements = UserStatements(self._admit, self._settle, users, passwords)
        self.sql = SqlApi(
            self._admit,
            self._settle,
            reader,
            pressure=self._pressure,
            consumers=self.consumers,
            users=statements,
            system=SystemTables(self._engine, users=statements.lines, settings=settings, admit=self._admit),
            statistics=self.metrics.sql,
            observers=self.observers,
            timeout_seconds=timeout_seconds,
            analyses=analyses,
            live=LiveApi(
                self._admit, self._settle, reader, self.watches.connection, self.notify_on_drain, self.metrics.live
            ),
        )
        self.sql.parts = self.parts
        self.sql.settle_expiry = self.expiry_durable
        self.metrics.caches["plans"] = self.sql.plans
        self.metrics.caches["arrow"] = self.sql.analyses
        return self.sql

    def cluster_id(self) -> str:
        """See `cluster.cluster_id`."""
        return cluster.cluster_id(self._engine.writer)

    async def put_topic(
        self,
        name: str,
        config: ConfigInput,
        *,
        principal: Principal,
        partition_count: int | None = None,
        kafka_configs: dict[str, str] | None = None,
        placement: str = "",
        zone: str = "",
    ) -> PutTopicReply:
        """Create a topic or replace its config; durable before it is acknowledged (docs/contract.md, 3.3).

        Beyond the contract, `partition_count` (None: 1 for a new topic, no change for an old one) makes a topic of
        many partitions or adds some; `kafka_configs` are those that only the Kafka protocol knows, None leaves them.
        Topics with the same `placement` lie in one shard, where there are several, and one with a `zone` in those that
        prefer it; it is that of their creation.
        """
        if placement or zone:
            placement = self._placement(name, placement, zone)
        facts: Facts = {"topic": name, "config": config}
        if partition_count is not None:
            facts["partition_count"] = partition_count
        if kafka_configs:
            facts["kafka_configs"] = kafka_configs
        if placement:
            facts |= {"zone": zone_of(placement)} if zone_of(placement) else {"placement": placement}
        with self.observers("topic.put", facts, principal):
            engine = self._admit()
            check_put(principal, config)
            if engine.parts.pending:
                await self.parts.free(name)
                engine = self._admit()
            with self.observers("topics.topic.put", {"topic": name}) as applied:
                try:
                    reply, ticket = engine.put_topic(name, config, partition_count, kafka_configs, placement=placement)
                except TopicsError as error:
                    if error.reason is Reason.TOPIC_EXISTS_INCOMPATIBLE:
                        await self._settle(engine.writer.written)  # only now do readers find that topic too
                    raise
                applied["topic_id"] = reply.identity.topic_id
                applied["partition_count"] = reply.identity.partition_count
                applied["topics.created"] = reply.created
            if engine.parts.pending:
                await self.parts.finish(name)
            await self._settle(ticket)
            facts["created"] = reply.created
        return reply

    async def create_topic(
        self,
        name: str,
        config: ConfigInput,
        *,
        principal: Principal,
        partition_count: int | None = None,
        kafka_configs: dict[str, str] | None = None,
        placement: str = "",
        zone: str = "",
    ) -> bool:
        """Create a topic unless there is one; return whether there was none, once the topic is visible."""
        if self._admit().has_topic(name):
            await self._settle(self._engine.creation_ticket(name))
            return False
        await self.put_topic(
            name,
            config,
            principal=principal,
            partition_count=partition_count,
            kafka_configs=kafka_configs,
            placement=placement,
            zone=zone,
        )
        return True

    def _placement(self, name: str, placement: str, zone: str) -> str:
        """The placement of a topic that names one, or a zone. The caller of a shard of several has found it."""
        if zone:
            check_zoned(zone, placement)
            topic = self._admit().catalog.find(name)
            return placed_in(name, zone, self.zones, None if topic is None else topic.placement)
        if self._engine.parts.place.count == 1:
            check_placement(placement)
        return placement

    async def get_topic(self, name: str, *, touch: bool = True, partition: int = 0) -> TopicState:
        """A topic's state; with `touch` it counts as a read for recency (docs/contract.md, 3.4).

        For a router's destination it includes the records that the source holds now (`RoutersApi.forwarded`), as do
        reads.
        """
        await self.routers.forwarded(name)
        state = self._admit().get_topic(name, touch=touch, partition=partition)
        await self.expiry_durable(name)
        return state

    async def list_topics(self, request: ListTopicsRequest, *, principal: Principal) -> ListTopicsReply:
        """One page, in name order, of the topics that the caller may know of (docs/contract.md, 3.5)."""
        page = self._admit().list_topics(request, principal.prefixes)
        await self.expiry_durable()
        return page

    async def delete_topic(self, name: str, *, if_empty: bool = False) -> DeleteTopicReply:
        """Remove a topic and everything in it, irreversibly and durably (docs/contract.md, 3.6).

        Over several shards, records that are written elsewhere at the same moment may escape `if_empty`.
        """
        facts: Facts = {"topic": name, "if_empty": if_empty}
        with self.observers("topic.delete", facts):
            try:
                engine, elsewhere = self._admit(), 0
                if engine.parts.place.count > 1:
                    await self.parts.free(name)
                    elsewhere = await self.parts.count_elsewhere(name) if if_empty else 0
                    engine = self._admit()
                with self.observers("rafka.broker.topic.delete", {"topic": name}):
                    reply, ticket = engine.delete_topic(name, if_empty=if_empty, elsewhere=elsewhere)
            except TopicsError:
                await self.expiry_durable(name)
                raise
            if engine.parts.pending:
                reply.routers_removed = sorted({*reply.routers_removed, *await self.parts.finish(name)})
            await self._settle(ticket)
            facts |= {"deleted": reply.deleted, "routers_removed": reply.routers_removed}
        return reply

    async def append(self, request: AppendRequest, *, principal: Principal) -> AppendReply:
        """Append records atomically; return once they are as durable as their class, and visible (docs/contract.md, 4).

        Small appends to one partition in the same loop iteration are written as one block.
        """
        topic = self._admit().catalog.find(request.topic) if _is_small(request) else None
        if topic is not None:
            check_append(principal, request, exists=True)
            # A write that waits for an fsync anyway should share it.
            linger = topic.config.durability == "fsync"
            answer = self._batcher.join((topic.name, request.partition), request.batch, linger=linger)
            submitted = None if answer is None else await answer
            if submitted is not None:
                return await self.settle(submitted)
        return await self.settle(await self.submit(request, principal=principal))

    async def submit(self, request: AppendRequest, *, principal: Principal) -> Submitted:
        """The first half of `append`: take the write in without waiting for its durability.

        Raises `forbidden`, and `shutting_down` or `not_ready`; `settle` reports other faults. Writes take
        effect in the order in which these calls return.
        """
        engine = self._admit()

        def write() -> tuple[AppendReply, int]:  # after a wait the topic may be another one, or none
            check_append(principal, request, exists=engine.has_topic(request.topic))
            return engine.append(request)

        check_append(principal, request, exists=engine.has_topic(request.topic))
        try:
            has_waited = await self._pressure.flushed(sum(request.batch.sizes))
            self._batcher.flush((request.topic, request.partition))
            started = time.perf_counter()
            if request.disable_backpressure:
                (reply, ticket), waited = await self._pressure.push_through(write)
                started += waited / 1e3
                reply.throttle_wait_ms = waited
            else:
                self._pressure.check()
                reply, ticket = write() if has_waited else engine.append(request)
        except TopicsError as error:
            # A write that is refused for its size may have created its topic, which stays: let it be seen first.
            ticket = engine.creation_ticket(request.topic)
            self._commit.want(ticket)
            return Submitted(ticket=ticket, error=error)
        written = time.perf_counter()
        reply.wal_append_ms = (written - started) * 1e3
        self._commit.want(ticket)  # at once: the caller may settle late, after a slow client
        if reply.created:
            facts: Facts = {"topic": request.topic, "created": True, "by": "append"}
            if request.config is not None:
                facts["config"] = request.config
            self.observers.note("topic.put", facts, principal)
        return Submitted(ticket=ticket, reply=reply, written=written)

    def _append_batched(self, topic_partition: tuple[str, int], batches: Sequence[Batch]) -> Sequence[Submitted] | None:
        """Append the batches as one; returns None, without any effect, if each must be appended on its own."""
        topic, partition = topic_partition
        if not self._engine.has_topic(topic):
            return None
        started = time.perf_counter()
        try:
            engine = self._admit()
            self._pressure.check()
            reply, ticket = engine.append(AppendRequest(topic=topic, partition=partition, batch=joined(batches)))
        except TopicsError:
            return None
        written = time.perf_counter()
        self._commit.want(ticket)
        reply.wal_append_ms = (written - started) * 1e3
        submitted, first_seq = [], reply.first_seq
        for batch in batches:
            own = replace(reply, first_seq=first_seq, count=len(batch.datas))
            submitted.append(Submitted(ticket=ticket, reply=own, written=written))
            first_seq += own.count
        return submitted

    async def settle(self, submitted: Submitted) -> AppendReply:
        """The second half of `append`: its reply when it is due, or its error."""
        reply = submitted.reply
        if submitted.ticket or reply is None:
            await self._settle(submitted.ticket)
        if submitted.ticket and reply is not None and reply.fsync_gated:
            reply.fsync_ms = (time.perf_counter() - submitted.written) * 1e3
        if reply is None:
            assert submitted.error is not None, "it is one or the other"
            raise submitted.error
        return reply

    def is_settled(self, submitted: Submitted) -> bool:
        """True if `settle` returns without waiting."""
        return self._commit.covers(submitted.ticket)

    async def settle_all(self, writes: Iterable[Submitted]) -> None:
        """Return once each of these writes is visible, or has failed."""
        with suppress(TopicsError):
            await self._settle(max((each.ticket for each in writes), default=0))

    async def publish(self, request: AppendRequest, *, principal: Principal) -> AppendReply:
        """`submit` and `settle`: writes to one partition take effect in the order of these calls, as those of a client
        that submits one after the other."""
        place, before = (request.topic, request.partition), None
        if self._turns:
            before = self._turns.get(place)
        turn = self._turns[place] = asyncio.get_running_loop().create_future()
        try:
            if before is not None:
                await asyncio.shield(before)
            submitted = await self.submit(request, principal=principal)
        finally:
            is_last = self._turns.get(place) is turn
            if before is not None and not before.done():  # cancelled before its turn
                before.add_done_callback(turn.set_result)
                if is_last:
                    self._turns[place] = before
            else:
                turn.set_result(None)
                if is_last:
                    del self._turns[place]
        return await self.settle(submitted)

    def check_write(self) -> None:
        """Raise the error that any write would get now, for protocols that do much work before they append."""
        self._admit()
        self._pressure.check()

    def append_batch(self, request: BatchRequest, *, acks_all: bool = False) -> tuple[BatchReply, int]:
        """Take in a batch of a Kafka client; the reply may be sent once `settled(ticket)` returns.

        With `acks_all` that is, in a cluster, once the object store has the batch, unless the topic is `ephemeral`.

        Raises TopicsError, `throttled` too, and SequenceError; see `Batches.append`. The gateway has checked that the
        caller may write to the topic, which must exist.
        """
        self.check_write()
        reply, ticket = self._engine.batches.append(request)
        if acks_all and self._commit.is_replicated:
            topic = self._engine.catalog.find(request.topic)
            if topic is not None and topic.config.durability != "ephemeral":
                ticket = self._engine.writer.written
        self._commit.want(ticket)
        return reply, ticket

    def fetch(self, request: FetchRequest) -> FetchReply:
        """Read batches of one partition after a cursor, without waiting; see `Batches.fetch`."""
        return self._admit().batches.fetch(request)

    async def settled(self, ticket: int) -> None:
        """Return once all writes up to `ticket` are visible. Raises `internal` if they can't be made durable."""
        await self._settle(ticket)

    def is_durable(self, ticket: int) -> bool:
        """True if `settled` returns without waiting."""
        return self._commit.covers(ticket)

    def extent(self, topic: str, partition: int) -> tuple[int, int]:
        """The partition's earliest and head seq."""
        state = self._admit().get_topic(topic, touch=False, partition=partition)
        return state.earliest_seq, state.head_seq

    def offset_at(self, topic: str, partition: int, ts: int) -> tuple[int, int] | None:
        """See `Batches.offset_at`."""
        return self._admit().batches.offset_at(topic, partition, ts)

    def newest_time(self, topic: str, partition: int) -> tuple[int, int] | None:
        """See `Batches.newest_time`."""
        return self._admit().batches.newest_time(topic, partition)

    def new_producer_id(self) -> tuple[int, int]:
        """See `Producers.new_id`."""
        return self._admit().batches.producers.new_id()

    def producers(self, topic: str, partition: int) -> Sequence[Producer]:
        """The idempotent producers that the partition knows, at most 1000 of them."""
        engine = self._admit()
        return engine.batches.producers.for_log(engine.catalog.visible(topic).partition(partition))

    def park(self, topic: str, wake: Callable[[], None], partition: int = 0) -> Parked:
        """See `Engine.park`."""
        return self._engine.park(topic, wake, partition)

    async def diff(self, request: DiffRequest) -> DiffReply:
        """Read from a cursor, waiting up to `wait_ms` for a first record (docs/contract.md, 5).

        Deletion of the topic ends the wait with `topic_not_found`.
        """
        await self.routers.forwarded(request.topic)
        reply = self._admit().diff(request)
        await self.expiry_durable(request.topic)
        if request.wait_ms <= 0 or reply.slices or reply.tombstone is not None or not reply.caught_up:
            return reply
        try:
            async with asyncio.timeout(min(request.wait_ms, self._engine.limits.max_wait_ms) / 1000):
                await self.news(request.topic, request.partition)
        except TimeoutError:
            return reply
        reply = self._engine.diff(replace(request, from_seq=reply.next_from_seq, from_ts=None, last=None))
        await self.expiry_durable(request.topic)
        return reply

    async def bulk(self, request: BulkRequest) -> tuple[DiffReply, int]:
        """One page of a long read and the topic's epoch; see `api.bulk`."""
        if not request.epoch:
            await self.routers.forwarded(request.topic)
        page = self._admit().bulk(request)
        await self.expiry_durable(request.topic)
        return page

    async def news(self, topic: str, partition: int = 0, after: int | None = None) -> None:
        """Return when records of the partition become visible, when it is deleted, or when the server drains.

        Returns at once if there are visible records `after` a seq, which came between the caller's read and this call.
        """
        woken = asyncio.Event()
        park = self._engine.park(topic, woken.set, partition)
        try:
            if after is not None and self._engine.get_topic(topic, touch=False, partition=partition).head_seq > after:
                return
            with self.notify_on_drain(woken):
                await woken.wait()
        finally:
            park.leave()

    @contextmanager
    def notify_on_drain(self, event: Settable) -> Iterator[None]:
        """Set `event` if the server starts to drain."""
        self._waiting.add(event)
        try:
            yield
        finally:
            self._waiting.discard(event)

    @property
    def draining(self) -> bool:
        """True while the server drains before it stops."""
        return self._engine.draining

    async def locate(self, name: str, ts: int, partition: int = 0) -> tuple[int, int]:
        """The first live seq of time `ts` (ms) or later, head + 1 if there is none yet; and the head."""
        found = self._admit().locate(name, ts, partition)
        await self.expiry_durable(name)
        return found

    async def delete_records(self, request: DeleteRequest) -> DeleteReply:
        """Delete records by seq and/or tag, permanently and silently (docs/contract.md, 6).

        Before a delete by tag, records of Kafka clients are indexed, in slices between other requests.
        """
        facts: Facts = {
            "topic": request.topic,
            "partition": request.partition,
            "before_seq": request.before_seq,
            "match": request.match,
        }
        with self.observers("records.delete", facts):
            if request.match is not None and self._admit().index(request.topic, request.partition):
                request = await self._indexed(request)
            reply, ticket = self._admit().delete_records(request)
            await self._settle(ticket)
            facts["deleted"] = reply.deleted
        return reply

    async def _indexed(self, request: DeleteRequest) -> DeleteRequest:
        """Index the current records; the request goes no further than that, since more may come all the time."""
        stop = self.extent(request.topic, request.partition)[1] + 1
        more = True
        while more:
            await asyncio.sleep(0)
            more = self._admit().index(request.topic, request.partition, stop)
        before = request.before_seq
        return replace(request, before_seq=stop if before is None else min(before, stop))

    def drain(self) -> None:
        """Stop taking calls (they get `shutting_down`) and end the waits of those under way."""
        self._engine.draining = True
        self.parts.stop()
        self.queues.drain()
        for woken in self._waiting:
            woken.set()
        self.copied.drain()
        self.watches.drain()

    def ready(self) -> ReadyState:
        """Return the readiness of the server, with the cause if it is not ready."""
        return self._engine.ready()

    def shortage(self) -> Shortage | None:
        """Return why a ready server refuses all writes, or None."""
        return self._pressure.space.shortage()

    def _admit(self) -> Engine:
        """Return the engine. Raises `not_ready` or `shutting_down` while the server starts or stops."""
        if self._engine.draining:
            raise TopicsError(Reason.SHUTTING_DOWN, "the server is shutting down")
        if self._engine.recovered < 1.0:
            progress = {"replay_progress": self._engine.recovered}
            raise TopicsError(Reason.NOT_READY, "the server is starting", progress)
        return self._engine

    async def _settle(self, ticket: int) -> None:
        if ticket:
            await self._commit.wait(ticket)
        await self.expiry_durable()

    def is_expiry_durable(self) -> bool:
        """True if `expiry_durable` returns without waiting."""
        return not self._engine.expiry_ticket()

    async def expiry_durable(self, topic: str | None = None) -> None:
        """Wait until expiry found in the topic (None: in any) is as durable as its class requires.

        This is immediate except for an `fsync` topic in which a reader has just found expired records. Protocols that
        use synchronous reads (`fetch`, `extent`, `offset_at`, `newest_time`) wait for this before they reply.
        """
        ticket = self._engine.expiry_ticket(topic)
        if ticket:
            with suppress(TopicsError):  # the fsync failed: reads continue
                await self._commit.wait(ticket)


def _is_small(request: AppendRequest) -> bool:
    """True for a few small records without further options."""
    batch = request.batch
    return (
        0 < len(batch.datas) <= _SMALL_RECORDS
        and sum(batch.sizes) <= _SMALL_BYTES
        and request.idempotency_key is None
        and request.config is None
        and not request.disable_backpressure
        and not request.is_scheduled
    )
