"""The engine: every call of the topics service on plain structs, synchronous, with clock and store injected.

A call that writes returns its reply and a ticket. The reply may be sent once everything up to the ticket is durable
(`synced`); 0 means at once. All calls belong on one thread; each is atomic.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from itertools import islice

from msgspec import Struct
from ulid import ULID

from topics_client.units import counted
from topics_service.engine import checks, config, idempotency, maintenance, names, reader, recovery, retention
from topics_service.engine.batches import Batches
from topics_service.engine.blocks import BlockCache
from topics_service.engine.capacity import Capacity
from topics_service.engine.catalog import Catalog
from topics_service.engine.clock import Clock
from topics_service.engine.errors import (
    Reason,
    TopicsError,
    in_another_shard,
    invalid,
    partition_not_found,
    topic_not_found,
    topic_recreated,
)
from topics_service.engine.limits import Limits
from topics_service.engine.log import Log
from topics_service.engine.model import (
    AppendReply,
    AppendRequest,
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
    TopicSummary,
)
from topics_service.engine.offsets.groups import Groups
from topics_service.engine.parts import Parts
from topics_service.engine.placement import SINGLE, Place, group_of
from topics_service.engine.producers import Producers
from topics_service.engine.queue.queues import Queues
from topics_service.engine.router.forwarding import Forwarding
from topics_service.engine.router.routers import Routers
from topics_service.engine.stored_catalog import StoredCatalog
from topics_service.engine.tables.routing import Routing
from topics_service.engine.tables.tables import Tables
from topics_service.engine.tables.topic_catalog import TopicCatalog, check_target, spread_target
from topics_service.engine.tables.topic_reads import TopicReads
from topics_service.engine.tables.topics import TopicDefinitions
from topics_service.engine.topic import Topic, TopicRow, partition_state
from topics_service.engine.transaction import Transaction
from topics_service.engine.watch.core import Watch
from topics_service.engine.watch.frames import WatchRequest
from topics_service.engine.writer import writer_for
from topics_service.storage import keys
from topics_service.storage.memory import MemoryStore
from topics_service.storage.store import Family, Store

_PURGE_ROWS = 1000
_TTL_LOGS_A_SWEEP = 1000
_OPENED = 10  # logs that could be examined while a dormant topic is opened
_LOGS_A_SLICE = 1000
_LOGS_A_PAGE = 10_000  # of a list of topics: 10 ms


class Totals(Struct, frozen=True, kw_only=True):
    """Figures of a topic, each the sum over its partitions."""

    head: int
    earliest: int
    count: int
    bytes: int


class Parked:
    """A wait for records. `leave` ends it, and may be called twice."""

    def __init__(self, log: Log, wake: Callable[[], None]) -> None:
        self._log = log
        self._wake = wake
        log.park(wake)

    def leave(self) -> None:
        """End the wait."""
        self._log.leave(self._wake)


class Engine:
    """All topics of one data directory."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        limits: Limits | None = None,
        prefix: names.ResourcePrefix | None = None,
        boot_id: str = "",
        cache_bytes: int = 64 << 20,
        recover: bool = True,
        new_id: Callable[[int], str] = lambda now: str(ULID.from_timestamp(now / 1000)).lower(),
        random: Callable[[int], bytes] = os.urandom,
        place: Place = SINGLE,
    ) -> None:
        """Recover the state in the store; O(topics). Raises StoreOpenError.

        `boot_id` names this boot of the machine ("" = unknown: an unclean end is then taken for a power cut);
        `new_id` makes a ULID from a time in ms, `random` bytes for lease ids; `place` is its shard, if it is not alone.
        With `recover` False the caller runs `recover()` in slices.
        """
        self.limits = limits or Limits()
        self.draining = False
        self._clock = clock
        self._memory = MemoryStore()
        self.blocks = BlockCache(cache_bytes)
        self.writer = writer_for(store, self.limits)
        self.catalog = Catalog(
            self.writer,
            self._memory,
            self.blocks,
            clock,
            self.limits,
            prefix or names.ResourcePrefix(),
            new_id,
            place,
        )
        self.parts = Parts(self, self.catalog, self.writer, clock, place)
        self.capacity = Capacity(self.writer, self._memory, clock, self.limits)
        self._touched: dict[int, Log] = {}
        self.routers = Routers(
            self.catalog, self.writer, clock, self.limits, Forwarding(self.writer, self.capacity, clock, self._touch)
        )
        self.queues = Queues(self.catalog, self.writer, clock, self.limits, self.capacity, self._touch, random, place)
        self.batches = Batches(
            self.catalog, self.writer, clock, self.capacity, Producers(self.writer, self._memory), self._touch
        )
        self.groups = Groups(self.catalog, self.writer, clock, self.limits)
        self.topic_catalog = TopicCatalog(self.catalog, store)
        self.routing = Routing(self.topic_catalog, self.capacity, clock, self.limits, self._touch)
        self.tables = Tables(self.writer, clock, self.topic_catalog, max_tables=self.limits.max_tables, random=random)
        self.tables.routing = self.routing
        self.tables.topics = TopicReads(self.catalog, clock, self._touch)
        self.tables.environment.message_id = self.routing.ids.next
        self.tables.definitions.topics = TopicDefinitions(
            self, self.catalog, self.writer, clock, self.topic_catalog, self.routing, self.tables, self._touch
        )
        self._ttl_cursor = ""
        self._stored: StoredCatalog | None = None  # during recovery
        self.recovered = 0.0  # the completed fraction of recovery; at 1.0 the engine takes calls
        if recover:
            for _ in self.recover(boot_id):
                pass

    def recover(self, boot_id: str, stored: StoredCatalog | None = None, *, syncs: bool = True) -> Iterator[float]:
        """Load the topics, yielding the completed fraction at times. No other call is allowed before it ends.

        `stored` is what is known of the store already, up to its last write. What is decided here is durable at the
        end, and that blocks; without `syncs` the caller waits for it, before the first call.
        """
        self._stored = stored = stored or StoredCatalog(self.writer.store)
        for _ in stored.complete():
            self.recovered = stored.done
            yield self.recovered
        recovery.begin(self.writer, self._memory, self.blocks, stored, boot_id, syncs=syncs)
        self.catalog.load(stored)
        self.catalog.redirects.load()
        self.parts.load()
        self.topic_catalog.load(stored.by_number)
        self.routing.load()
        self.tables.load()
        self.routers.load(recovery.routers(self.writer.store, self.catalog.topics))
        self.groups.load(recovery.groups(self.writer.store, stored.by_number))
        self.queues.recover()
        self._stored = None
        self.recovered = 1.0

    # ------------------------------------------------------------ durability

    def synced(self, ticket: int) -> None:
        """Publish everything up to `ticket`, which is durable now."""
        self.writer.on_synced(ticket)

    def sync_failed(self, error: BaseException) -> None:
        """Refuse all writes after a failed fsync. Changes that waited for it stay invisible."""
        self.writer.fail(error)

    def sync(self) -> None:
        """Make everything durable and publish it, blocking: for tests, simulation and shutdown."""
        written = self.writer.written
        self.writer.store.sync()
        self.writer.on_synced(written)

    def expiry_ticket(self, name: str | None = None) -> int:
        """Return the ticket that a reply about the topic (None: any topic) must wait for; 0 if there is none.

        There is one for a moment after records of an `fsync` topic have expired. See `Log.visible`.
        """
        writer = self.writer
        if writer.expiry_ticket <= writer.synced or writer.failure is not None:
            return 0
        topic = None if name is None else self.catalog.find(name)
        return writer.expiry_ticket if topic is None else max((log.expiry_ticket for log in topic.logs), default=0)

    def close(self) -> None:
        """Mark the directory as cleanly closed, unless the server is read-only; durable on return."""
        if self.close_later():
            self.writer.store.sync()

    def close_later(self) -> bool:
        """As `close`, without waiting: it is closed once what is written now is durable, if nothing is written after
        that. Return whether anything was written."""
        if self.writer.failure is not None or self.recovered < 1.0:
            return False
        used = (topic for topic in self.catalog.each() if not topic.is_dormant)
        recovery.close(self.writer, (log for topic in used for log in topic.logs))
        return True

    def ready(self) -> ReadyState:
        """Return the readiness: whether the engine takes work, and the reason if not."""
        reason = ""
        if self.draining:
            reason = "shutting_down"
        elif self.recovered < 1.0:
            reason = "not_ready"
        elif self.writer.failure is not None:
            reason = "read_only"
        topics = len(self.catalog if self._stored is None else self._stored)
        return ReadyState(ready=not reason, reason=reason, topics=topics, replay_progress=self.recovered)

    def sample(self, limit: int, allowed: tuple[str, ...] | None = None) -> Iterator[tuple[str, Totals]]:
        """Yield up to `limit` topics by name, as readers saw them last: nothing is read, expired or touched.

        Only names that start with one of `allowed`, if given. Figures are sums over the partitions that are here.
        """
        for name in islice(self.catalog.under(names.narrow("", allowed), parts=True), limit):
            topic = self.catalog.topics[name]
            if not self.catalog.unsynced(topic):
                views = [log.view for log in topic.logs]
                yield topic.name, Totals(
                    head=sum(s.head for s in views), earliest=sum(s.earliest for s in views),
                    count=sum(s.count for s in views), bytes=sum(s.bytes for s in views),
                )  # fmt: skip

    # ---------------------------------------------------------------- topics

    def put_topic(
        self,
        name: str,
        given: ConfigInput,
        partition_count: int | None = None,
        kafka_configs: dict[str, str] | None = None,
        stage: Callable[[Transaction], None] | None = None,
        placement: str = "",
    ) -> tuple[PutTopicReply, int]:
        """Create the topic or replace its config. See TopicsApi.put_topic.

        `kafka_configs` replaces the configs that only Kafka knows, and only Kafka gives them; None keeps them. `stage`
        adds to the write of a topic that exists.
        """
        topic = self.catalog.find(name)
        if topic is None:
            names.check_topic_name(name, by_kafka=kafka_configs is not None)
            names.check_placement(group_of(placement))
            topic = self.catalog.create(
                name, config.resolve(name, given), partition_count or 1, kafka_configs, placement
            )
            return _put_reply(topic, created=True), topic.visible_after
        checks.check_placement(topic.name, topic.identity, placement)
        if topic.is_part:
            self.catalog.redirects.check(name)
            raise in_another_shard(name)
        resolved = config.resolve(name, given, topic.config)
        if self.topic_catalog.routes_of_topic(topic.number):
            check_target(topic, resolved)
        count = topic.partition_count if partition_count is None else partition_count
        self._check_growth(topic, count)
        ticket = max([topic.visible_after, *(log.pending_ticket for log in topic.logs)])
        row = topic.row(resolved, kafka_configs=topic.kafka_configs if kafka_configs is None else kafka_configs)
        is_changed = resolved != topic.config or row.kafka_configs != topic.kafka_configs
        if self.parts.place.count > 1 and (is_changed or count > topic.partition_count):
            row = self.parts.revised(topic, row, count)
        if is_changed:
            ticket = self.reconfigure(topic, row, count, stage)
        elif count > topic.partition_count or stage is not None:
            grown = None
            with Transaction(self.writer) as tx:
                if count > topic.partition_count:
                    grown = self.catalog.grow(topic, count, tx, row)
                    self.parts.stage_change(tx, topic, row)
                if stage is not None:
                    stage(tx)
                tx.commit()
            if grown is not None:
                self.catalog.grown(topic, *grown)
            ticket = tx.ticket
        return _put_reply(topic, created=False), ticket

    def creation_ticket(self, name: str) -> int:
        """Return the ticket after which an existing topic is visible; 0 if it already is, or does not exist."""
        topic = self.catalog.find(name)
        return 0 if topic is None else self.catalog.unsynced(topic)

    def get_topic(self, name: str, *, touch: bool = True, partition: int = 0) -> TopicState:
        """The topic's state. See TopicsApi.get_topic."""
        topic, now = self.catalog.visible(name), self._clock.now_ms()
        topic.partition(partition)
        if touch:
            topic.touch(now)
        return self._state(topic, now, partition)

    def has_topic(self, name: str) -> bool:
        """Return whether a write to `name` would find a topic; readers may not see it yet."""
        return name in self.catalog.topics

    def list_topics(self, request: ListTopicsRequest, allowed: tuple[str, ...] | None = None) -> ListTopicsReply:
        """One page of topics in name order, only those that start with one of `allowed`. See TopicsApi.list_topics."""
        now, logs = self._clock.now_ms(), 0
        page: list[TopicSummary] = []
        for name in self.catalog.under(names.narrow(request.prefix, allowed), request.after):
            topic = self.catalog.topics[name]
            if self.catalog.unsynced(topic):
                continue
            logs += topic.partition_count
            if len(page) == request.page_size or (page and logs > _LOGS_A_PAGE):
                return ListTopicsReply(topics=page, next_after=page[-1].topic)
            if request.touch:
                topic.touch(now, read=False)
            page.append(topic.summary(now))
        return ListTopicsReply(topics=page, next_after=None)

    def delete_topic(self, name: str, *, if_empty: bool = False, elsewhere: int = 0) -> tuple[DeleteTopicReply, int]:
        """Remove the topic, its rows and its routers. See TopicsApi.delete_topic.

        `elsewhere` is the number of records in other shards; `Parts` has them dropped.
        """
        topic = self.catalog.find(name)
        if topic is None:
            self.catalog.redirects.check(name)
            return DeleteTopicReply(topic=name, deleted=False, routers_removed=[]), 0
        if topic.is_part:
            self.catalog.redirects.check(name)
            raise in_another_shard(name)
        if if_empty:
            now = self._clock.now_ms()
            for log in topic.logs:
                log.visible(topic.config, now)
            count = sum(log.state.count for log in topic.logs) + elsewhere
            if count:
                raise TopicsError(
                    Reason.TOPIC_NOT_EMPTY,
                    f'topic "{name}" holds {counted(count, "record")}',
                    {"topic": name, "count": count},
                )
        removed, ticket = self.remove(topic, None)
        return DeleteTopicReply(topic=name, deleted=True, routers_removed=removed), ticket

    def remove(self, topic: Topic, stage: Callable[[Transaction], None] | None) -> tuple[list[str], int]:
        """See parts.TopicCalls."""
        routers = self.routers.touching(topic.name)
        with Transaction(self.writer) as tx:
            self.routers.remove(routers, tx)
            self.groups.remove_topic(topic, tx)
            self.topic_catalog.stage_removal(tx, topic)
            self.catalog.remove(topic, tx)
            if topic.spread is not None:
                self.parts.stage_deletion(tx, topic)
            if stage is not None:
                stage(tx)
            tx.commit()
        for log in topic.logs:
            self._touched.pop(log.log_id, None)
        self.routers.removed(routers)
        self.queues.forget(topic)
        self.groups.removed_topic(topic)
        self.catalog.removed(topic)
        return [router.name for router in routers], tx.ticket

    # --------------------------------------------------------------- records

    def append(self, request: AppendRequest) -> tuple[AppendReply, int]:
        """Append a batch, atomically. See TopicsApi.append. Checks run in the order of docs/contract.md, 4.2."""
        self.writer.check()
        batch = request.batch
        checks.check_count(batch, self.limits)
        checks.check_idempotency_key(request.idempotency_key, self.limits)
        checks.check_records(batch, self.limits)
        checks.check_schedule(request)
        now, key = self._clock.now_ms(), request.idempotency_key
        topic = self.catalog.find(request.topic)
        created = topic is None
        if topic is not None:
            checks.check_scheduled_type(request, topic.config.type)
            log = topic.partition(request.partition)
            first = None if key is None else log.remembered(key, topic.config, now)
            if first is not None:
                reply = AppendReply(
                    topic=topic.name, partition=request.partition, partition_count=topic.partition_count,
                    first_seq=first.first_seq, count=first.count, head_seq=first.head_seq, created=False, deduped=True,
                )  # fmt: skip
                return reply, max(log.ticket_of(reply.last_seq), self.catalog.unsynced(topic))
        with Transaction(self.writer) as tx:
            if topic is None:
                topic = self._stage_for(request, tx)
                log = topic.log
            s = log.begin(topic.config, now)
            if self.capacity.is_checked(topic):
                try:
                    self.capacity.check(topic, s, len(batch.datas), checks.batch_bytes(batch), log=log)
                except TopicsError:
                    if created:
                        tx.commit()  # a topic that is too small for the write stays
                    raise
            remember = None if key is None else (key, min(now + topic.config.idempotency_window_ms + 1, config.U64_MAX))
            first_seq = log.append(tx, s, batch, topic.config, now, remember)
            jobs = self.queues.stage_jobs(tx, topic, request, first_seq, now) if request.is_scheduled else None
            try:
                ticket = tx.commit()
            except TopicsError:
                if created:
                    self.queues.forget(topic)  # it is open if jobs were staged
                raise
        if jobs is not None:
            self.queues.added(topic, jobs)
        self._touched[log.log_id] = log
        reply = AppendReply(
            topic=topic.name, partition=request.partition, partition_count=topic.partition_count, first_seq=first_seq,
            count=len(batch.datas), head_seq=s.head, created=created, deduped=False,
            fsync_gated=topic.config.durability == "fsync",
        )  # fmt: skip
        return reply, max(ticket, self.catalog.unsynced(topic))

    def diff(self, request: DiffRequest) -> DiffReply:
        """Read one page after a cursor, without waiting. See TopicsApi.diff."""
        topic, now, limits = self.catalog.visible(request.topic), self._clock.now_ms(), self.limits
        if request.topic_id and request.topic_id != topic.topic_id:
            raise topic_recreated(request.topic, topic.topic_id)
        log = topic.partition(request.partition)
        topic.touch(now)
        s = log.visible(topic.config, now)
        return reader.page(request, topic.config, s, log.blocks, log.stores(s), limits, topic.partition_count)

    def bulk(self, request: BulkRequest) -> tuple[DiffReply, int]:
        """Return one page of a long read, and the topic's epoch for the next one, without waiting. See `api.bulk`."""
        topic, now = self.catalog.visible(request.topic), self._clock.now_ms()
        if request.topic_id and request.topic_id != topic.identity.topic_id:
            raise topic_recreated(request.topic, topic.identity.topic_id)
        if request.epoch and request.epoch != topic.identity.epoch:
            raise topic_not_found(request.topic)
        log = topic.partition(request.partition)
        topic.touch(now)
        s, from_seq = log.visible(topic.config, now), request.from_seq
        if request.from_ts is not None or request.last is not None:
            from_seq = reader.start(s, log.blocks, request)
        nodes = frozenset(request.nodes if topic.config.dedupe_node else ())
        reply = reader.read(
            topic.name, s, log.blocks, from_seq, request.limit, request.max_batch_bytes, nodes, request.end_seq,
            scan=True, match=request.filter, stores=log.stores(s), partition=request.partition,
        )  # fmt: skip
        return reply, topic.identity.epoch

    def locate(self, name: str, ts: int, partition: int = 0) -> tuple[int, int]:
        """Return the first live seq with a record time of `ts` (ms) or later (head + 1 if none), and the head."""
        topic, now = self.catalog.visible(name), self._clock.now_ms()
        log = topic.partition(partition)
        s = log.visible(topic.config, now)
        return reader.locate(s, log.blocks, ts)

    def park(self, name: str, wake: Callable[[], None], partition: int = 0) -> Parked:
        """Call `wake` when records of the partition become visible or it is deleted, until the result is left."""
        return Parked(self.catalog.visible(name).partition(partition), wake)

    def watch(
        self,
        request: WatchRequest,
        wake: Callable[[str], None],
        *,
        epochs: Mapping[str, int] | None = None,
        heads: Mapping[str, int] | None = None,
    ) -> Watch:
        """Follow many topics; `wake` is called with the name of each topic that has news. See Watch."""
        return Watch(self.catalog, self._clock, self.limits, request, wake, epochs=epochs, heads=heads)

    def priority(self, name: str) -> int:
        """Return the topic's current effective priority; 0 if it does not exist."""
        topic = self.catalog.find(name)
        return 0 if topic is None else topic.effective_priority(self._clock.now_ms())

    def delete_records(self, request: DeleteRequest) -> tuple[DeleteReply, int]:
        """Delete by seq and/or tag. See TopicsApi.delete_records."""
        if request.before_seq is None and request.match is None:
            raise invalid("a delete needs before_seq or match")
        topic = self.catalog.visible(request.topic)
        log = topic.partition(request.partition)
        deleted, s, ticket = log.delete(topic.config, self._clock.now_ms(), request.before_seq, request.match)
        self._touched[log.log_id] = log
        reply = DeleteReply(
            topic=topic.name, partition=request.partition, partition_count=topic.partition_count, deleted=deleted,
            earliest_seq=s.earliest, head_seq=s.head, count=s.count, bytes=s.bytes,
        )  # fmt: skip
        return reply, ticket

    def index(self, name: str, partition: int = 0, stop: int | None = None) -> bool:
        """Index one more block of Kafka batches among those that begin below `stop`.

        Return True if there may be more. Call it before a tag is deleted.
        """
        log = self.catalog.visible(name).partition(partition)
        return maintenance.index_marked(log, self.writer, self._memory, stop)

    # ---------------------------------------------------------------- maintenance

    def maintain(self) -> bool:
        """Run one bounded slice of background work; return True if more is due. Call it often, between requests.

        Forwarding is separate (`routers.forward`), because it yields to requests and this does not.

        Raises TopicsError, `internal` for damage too, after all other logs: a damaged log is skipped until the next
        write to it.
        """
        if self.writer.failure is not None or self.recovered < 1.0:
            return False
        self.routers.poll()
        more_work = self.queues.mover.bury_due()
        more_work = self.tables.upkeep() or more_work
        damaged: TopicsError | None = None
        for log_id, log in list(islice(self._touched.items(), _LOGS_A_SLICE)):
            try:
                more = maintenance.run(log, self.writer, self._memory)
            except TopicsError as error:
                if error.reason is not Reason.INTERNAL or self.writer.failure is not None:
                    raise
                damaged, more = damaged or error, False
            if not more:
                del self._touched[log_id]
        if damaged is not None:
            raise damaged
        return more_work or bool(self._touched)

    def sweep(self) -> None:
        """Remove expired records and idempotency rows. Call it every second."""
        if self.writer.failure is not None or self.recovered < 1.0:
            return
        now = self._clock.now_ms()
        self.batches.producers.sweep(now, _PURGE_ROWS)
        for store in (self.writer.store, self._memory):
            batch = store.batch()
            idempotency.purge(store, batch, now, _PURGE_ROWS)
            if batch.is_empty():
                continue
            if store is self.writer.store:
                self.writer.commit(batch)
            else:
                store.write(batch)
        self.groups.sweep()
        self.parts.sweep()
        topics, examined = self.catalog.topics, 0
        for name in topics.irange(minimum=self._ttl_cursor, inclusive=(False, True)):
            self._ttl_cursor, topic = name, topics[name]
            examined += topic.log_count
            if topic.config.ttl_ms:
                examined += _OPENED * topic.is_dormant
                for log in topic.logs:
                    log.visible(topic.config, now)
                    if log.has_expired:
                        log.has_expired = False
                        self._touched[log.log_id] = log
            if examined >= _TTL_LOGS_A_SWEEP:
                return
        self._ttl_cursor = ""

    # ------------------------------------------------------------- internals

    def _state(self, topic: Topic, now: int, partition: int = 0) -> TopicState:
        state = topic.state(topic.partition(partition).visible(topic.config, now), now, partition)
        if topic.config.type == "queue":
            state.queue = self.queues.state(topic)
        if topic.partition_count > 1:
            state.partitions = [
                partition_state(number, log.visible(topic.config, now)) for number, log in topic.numbered()
            ]
        return state

    def _touch(self, log: Log) -> None:
        """Note that maintenance is due on the log."""
        self._touched[log.log_id] = log

    def _stage_for(self, request: AppendRequest, tx: Transaction) -> Topic:
        """Stage the creation of the topic that the request writes to."""
        self.catalog.redirects.check(request.topic)
        given = request.config or ConfigInput()
        create = request.create
        if create is None:
            create = given.auto_create is not False
        if not create:
            raise topic_not_found(request.topic)
        names.check_topic_name(request.topic)
        if self.parts.place.count > 1 and not self.parts.place.is_home(request.topic):
            raise topic_not_found(request.topic)  # its home says whether it is to be made
        if request.partition:
            raise partition_not_found(request.topic, request.partition, 1)
        resolved = config.resolve(request.topic, given)
        checks.check_scheduled_type(request, resolved.type)
        return self.catalog.stage(tx, request.topic, resolved)

    def _check_growth(self, topic: Topic, count: int) -> None:
        """Raise for a number of partitions that the topic can't have."""
        if count == topic.partition_count:
            return
        self.catalog.check_partitions(topic.config, count)
        if count < topic.partition_count:
            raise TopicsError(
                Reason.TOPIC_EXISTS_INCOMPATIBLE,
                f'topic "{topic.name}" has {counted(topic.partition_count, "partition")}; they can\'t be removed',
                {"topic": topic.name, "partition_count": topic.partition_count},
            )
        if self.routers.is_end(topic.name):
            raise invalid(f'"{topic.name}" is an end of a router, which has one partition')
        local = self.parts.local(topic, count)
        if local < count and self.topic_catalog.routes_of_topic(topic.number):
            raise spread_target(topic)
        self.catalog.check_capacity(count - topic.partition_count)

    def reconfigure(
        self, topic: Topic, row: TopicRow, count: int, stage: Callable[[Transaction], None] | None = None
    ) -> int:
        """Replace the config, with `count` partitions; tightened caps and TTL take effect in the same write."""
        now, resolved = self._clock.now_ms(), row.config
        moved: list[Log] = []
        grown: tuple[TopicRow, list[Log]] | None = None
        with Transaction(self.writer) as tx:
            tx.batch.put(Family.TOPICS, keys.u64(topic.number), row.encode())
            for log, hold in zip(topic.logs, self.groups.index.holds(topic, resolved), strict=True):
                log.visible(
                    topic.config, now
                )  # expired records stay expired under a longer TTL, also until this is durable
                s = log.begin(topic.config, now)
                retention.expire(s, log.blocks, resolved.ttl_ms, now, hold)
                if resolved.discard == "old":
                    retention.evict(s, log.blocks, resolved, hold)
                if s.volatile_from and resolved.durability != "ephemeral":
                    log.materialize(tx.batch, s)
                    moved.append(log)
                if resolved.durability != topic.config.durability:
                    log.renew_ceiling(tx.batch)
                log.stage(tx, s, resolved, hold=True)
            self.queues.stage_config(tx, topic, resolved)
            if count > topic.partition_count:
                grown = self.catalog.grow(topic, count, tx, row)
            if row.spread is not None:
                self.parts.stage_change(tx, topic, row)
            if stage is not None:
                stage(tx)
            ticket = tx.commit()
        for log in moved:
            log.dematerialize()
        self.catalog.reconfigured(topic, row)
        if grown is not None:
            self.catalog.grown(topic, *grown)
        for log in topic.logs:
            self._touched[log.log_id] = log
        return ticket


def _put_reply(topic: Topic, *, created: bool) -> PutTopicReply:
    return PutTopicReply(topic=topic.name, created=created, config=topic.config, identity=topic.identity)
