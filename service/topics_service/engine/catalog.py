"""The catalog of topics: by name, as rows, and with the moment at which each becomes visible."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from msgspec.structs import replace
from sortedcontainers import SortedDict

from topics_service.engine import names, snapshot
from topics_service.engine.blocks import BlockCache
from topics_service.engine.clock import Clock
from topics_service.engine.errors import Reason, TopicsError, invalid, topic_not_found
from topics_service.engine.limits import Limits
from topics_service.engine.log import Log
from topics_service.engine.model import TopicConfig
from topics_service.engine.placement import SINGLE, Place
from topics_service.engine.redirects import Redirects
from topics_service.engine.snapshot import Snapshot
from topics_service.engine.stored_catalog import StoredCatalog
from topics_service.engine.topic import Topic, TopicRow
from topics_service.engine.topic_counts import TopicCounts
from topics_service.engine.transaction import Transaction
from topics_service.engine.writer import Writer
from topics_service.storage import keys
from topics_service.storage.store import Family, Store

_NEXT_TOPIC = b"next_topic"
_NEXT_LOG = b"next_log"
_SHARD_BITS = 40  # ids of logs differ from those in other shards, whose pages are in the same caches


class Catalog:
    """All topics of one data directory."""

    def __init__(
        self,
        writer: Writer,
        memory: Store,
        cache: BlockCache,
        clock: Clock,
        limits: Limits,
        prefix: names.ResourcePrefix,
        new_id: Callable[[int], str],
        place: Place = SINGLE,
    ) -> None:
        self.topics: SortedDict[str, Topic] = SortedDict()
        self.by_id: dict[str, Topic] = {}
        self.counts = TopicCounts()
        self.place = place
        self.redirects = Redirects(writer)
        """Names whose topic is in another shard."""
        self.on_created: list[Callable[[Topic], None]] = []
        """Called when a new topic becomes visible."""
        self.on_changed: list[Callable[[], None]] = []
        """Called when a topic becomes visible, is removed or gets more partitions."""
        self.on_news: list[Callable[[Topic], None]] = []
        """Called with each topic that becomes visible, is removed, or has another config or more partitions."""
        self.on_configured: Callable[[Topic], None] = lambda _topic: None
        """Called with each topic that is new or has another config or more partitions, before it is used."""
        self.check_new: Callable[[str, str], None] = lambda _name, _placement: None
        """Raises unless a topic of this name may be created in this one of several shards."""
        self._writer = writer
        self._memory = memory
        self._cache = cache
        self._clock = clock
        self._limits = limits
        self._prefix = prefix
        self._new_id = new_id
        self._counted = self._parts = 0
        self._next_topic = _counter(writer.store, _NEXT_TOPIC)
        self._next_log = max(_counter(writer.store, _NEXT_LOG), (place.shard << _SHARD_BITS) + 1)

    def __len__(self) -> int:
        return len(self.topics) - self._parts

    @property
    def partitions(self) -> int:
        """The number of partitions of the topics whose home is here, also those in other shards: they count towards
        the limit from the moment in which they are promised."""
        return self._counted

    def each(self) -> Iterable[Topic]:
        """All topics, in no order."""
        return dict.values(self.topics)

    def find(self, name: str) -> Topic | None:
        """Return the topic, even while its creation waits for an fsync."""
        topic: Topic | None = self.topics.get(name)
        return topic

    def visible(self, name: str) -> Topic:
        """Return the topic as readers see it: only once its creation is durable. Raises `topic_not_found`."""
        topic: Topic | None = self.topics.get(name)
        if topic is None or self.unsynced(topic):
            raise topic_not_found(name)
        return topic

    def unsynced(self, topic: Topic) -> int:
        """Return the ticket that the topic's creation waits for; 0 if it is durable."""
        return topic.visible_after if topic.visible_after > self._writer.synced else 0

    def under(self, prefixes: list[str], after: str | None = None, *, parts: bool = False) -> Iterator[str]:
        """Yield the names after `after` under `prefixes`, which are disjoint and in order; with `parts` also those of
        topics whose home is another shard."""
        if self._parts and not parts:
            topics = self.topics
            return (name for name in self._under(prefixes, after) if not topics[name].is_part)
        return self._under(prefixes, after)

    def _under(self, prefixes: list[str], after: str | None) -> Iterator[str]:
        for prefix in prefixes:
            start = prefix if after is None else max(prefix, after)
            for name in self.topics.irange(minimum=start, inclusive=(start != after, True)):
                if not name.startswith(prefix):
                    break
                yield name

    def load(self, stored: StoredCatalog) -> None:
        """Take over what recovery found."""
        self.topics, self.by_id, self.counts = stored.topics, stored.by_id, stored.counts
        self._counted, self._parts = stored.counted, stored.parts

    def has_room_for(self, count: int) -> bool:
        """Return whether `count` more topics, each with one partition, may be created."""
        limit = self._limits.max_topics
        return not limit or self._counted + self._limits.elsewhere.partitions + count <= limit

    def check_capacity(self, partitions: int) -> None:
        """Raise `throttled` unless the limit allows this many more partitions."""
        if not self.has_room_for(partitions):
            raise TopicsError(
                Reason.THROTTLED, "the server has reached its limit of topics and partitions",
                {"limit": "max_topics", "max": self._limits.max_topics},
            )  # fmt: skip

    def create(
        self,
        name: str,
        resolved: TopicConfig,
        partitions: int = 1,
        kafka_configs: dict[str, str] | None = None,
        placement: str = "",
    ) -> Topic:
        """Write a new topic, which readers see once that is durable. Raises `throttled` when there are too many."""
        self.check_partitions(resolved, partitions)
        with Transaction(self._writer) as tx:
            topic = self.stage(tx, name, resolved, partitions, kafka_configs, placement)
            tx.commit()
        return topic

    def stage(
        self,
        tx: Transaction,
        name: str,
        resolved: TopicConfig,
        partitions: int = 1,
        kafka_configs: dict[str, str] | None = None,
        placement: str = "",
    ) -> Topic:
        """Stage a new topic, which is found once the transaction is committed. Its logs may be staged in the same one.

        One topic at a time. Raises `throttled` when there are too many, ElsewhereError, and `topic_not_found` for
        one without a placement whose home is another shard.
        """
        self.redirects.check(name)
        spread = None
        if self.place.count > 1:
            self.check_new(name, placement)
        self.check_capacity(partitions)
        if self.place.count > 1 and partitions > 1:
            spread = self.place.spread(name, partitions, placement)
            partitions = len(spread.numbers)
        now = self._clock.now_ms()
        row = TopicRow(
            name=name, topic_id=f"top_{self._new_id(now)}", slug=names.slug(name), rrl=names.rrl(self._prefix, name),
            config=resolved, log_ids=[], created_ts=now, kafka_configs=kafka_configs or {}, placement=placement,
            spread=spread,
        )  # fmt: skip
        return self.stage_row(tx, row, partitions)

    def stage_row(self, tx: Transaction, row: TopicRow, logs: int) -> Topic:
        """Stage a new topic, or part of one, with this row and that many new logs; home has seen to its limit."""
        number = self._next_topic
        ids = row.log_ids = list(range(self._next_log, self._next_log + logs))
        tx.batch.put(Family.TOPICS, keys.u64(number), row.encode())
        tx.batch.put(Family.META, _NEXT_TOPIC, keys.u64(number + 1))
        self._stage_logs(tx, ids)
        topic = Topic(number, row, self._new_logs(ids))
        self.on_configured(topic)
        tx.stage(_Creation(self, topic))
        return topic

    def created(self, topic: Topic, ticket: int) -> None:
        """Add a topic that `stage` staged, once it is written."""
        self._next_topic = topic.number + 1
        if topic.logs:
            self._next_log = topic.logs[-1].log_id + 1
        self.topics[topic.name] = self.by_id[topic.topic_id] = topic
        topic.visible_after = ticket
        if topic.spread is not None and topic.is_part:
            self._parts += 1
        else:
            self._counted += topic.partition_count
            self.counts.add(topic.config)
        self._writer.promote_with(-topic.number, lambda synced: self._announce(topic, synced))
        self._writer.request_sync(ticket)

    def check_partitions(self, config: TopicConfig, count: int) -> None:
        """Raise `invalid_request` if a topic with this config can't have that number of partitions."""
        limit = self._limits.max_partitions
        if not 1 <= count <= limit:
            raise invalid(f"partition_count must be from 1 to {limit}", {"partition_count": count})
        if count > 1 and config.type == "queue":
            raise invalid("a queue has one partition", {"partition_count": count})

    def grow(self, topic: Topic, count: int, tx: Transaction, row: TopicRow) -> tuple[TopicRow, list[Log]]:
        """Stage growth to `count` partitions. `row` is the new row without them; return the row with them and all logs.

        `row` has the new `spread` already, if it has one. `grown` must follow the commit.
        """
        logs = count if row.spread is None else len(row.spread.numbers)
        ids = list(range(self._next_log, self._next_log + logs - len(topic.logs)))
        row = replace(row, log_ids=[*row.log_ids, *ids])
        self._stage_logs(tx, ids)
        tx.batch.put(Family.TOPICS, keys.u64(topic.number), row.encode())
        return row, [*topic.logs, *self._new_logs(ids)]

    def grown(self, topic: Topic, row: TopicRow, logs: list[Log]) -> None:
        """Apply what `grow` staged, once it is written."""
        if not topic.is_part:
            self._counted += row.partition_count - topic.partition_count
        if len(logs) > len(topic.logs):
            self._next_log = logs[-1].log_id + 1
        topic.adopt(row, logs)
        self.on_configured(topic)
        self._notify(topic)
        self._notify_changed()

    def _stage_logs(self, tx: Transaction, ids: list[int]) -> None:
        for log_id in ids:
            tx.batch.put(Family.LOGS, keys.u64(log_id), snapshot.encode(Snapshot()))
        if ids:
            tx.batch.put(Family.META, _NEXT_LOG, keys.u64(ids[-1] + 1))

    def _new_logs(self, ids: list[int]) -> list[Log]:
        return [Log(log_id, self._writer, self._memory, self._cache, Snapshot(), ceiling=0) for log_id in ids]

    def remove(self, topic: Topic, tx: Transaction) -> None:
        """Stage the removal of the topic's rows; `removed` must follow the commit."""
        tx.batch.delete(Family.TOPICS, keys.u64(topic.number))
        for log in topic.logs:
            log.remove(tx.batch)

    def removed(self, topic: Topic) -> None:
        """Forget the topic once its removal is written, and wake all waiters."""
        del self.topics[topic.name], self.by_id[topic.topic_id]
        if topic.is_part:
            self._parts -= 1
        else:
            self._counted -= topic.partition_count
            self.counts.remove(topic.config)
        self._writer.forget(-topic.number)
        for log in topic.logs:
            log.removed()
        self._notify(topic)
        self._notify_changed()

    def reconfigured(self, topic: Topic, row: TopicRow) -> None:
        """Apply the topic's new row, once it is written."""
        if not topic.is_part:
            self.counts.remove(topic.config)
            self.counts.add(row.config)
        topic.adopt(row, topic.logs)
        self.on_configured(topic)
        self._notify(topic)

    def _notify(self, topic: Topic) -> None:
        for callback in self.on_news:
            callback(topic)

    def _notify_changed(self) -> None:
        for callback in self.on_changed:
            callback()

    def _announce(self, topic: Topic, synced: int) -> bool:
        if topic.visible_after > synced:
            return False
        if not topic.is_part:
            for callback in self.on_created:
                callback(topic)
        self._notify(topic)
        self._notify_changed()
        return True


class _Creation(NamedTuple):
    """A new topic's part of a transaction."""

    catalog: Catalog
    topic: Topic

    def publish(self, ticket: int) -> int:
        """See Change."""
        self.catalog.created(self.topic, ticket)
        return ticket

    def undo(self) -> None:
        """See Change."""


def _counter(store: Store, key: bytes) -> int:
    row = store.get(Family.META, key)
    return 1 if row is None else keys.read_u64(row)
