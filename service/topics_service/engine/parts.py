"""Topics whose partitions lie in several shards: what one shard knows and does of them.

The *home* of a topic decides on its config and its life. A shard that has a partition of it, or has to know it, has a
*part*: a topic of the same id and epoch with the logs of its own partitions. Home writes down which shards may have a
part before one is made. What the parts have to learn stands in a row of home, written with the change itself, until all
of them have confirmed it: a new config, more partitions, the end of the topic. Every step can be repeated.

A part that is dropped leaves a marker with its id, which refuses a copy of the same life that arrives late.
"""

import struct
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final, NamedTuple, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from topics_service.engine.catalog import Catalog
from topics_service.engine.clock import Clock
from topics_service.engine.errors import Reason, TopicsError, in_another_shard, topic_not_found
from topics_service.engine.model import PartitionState, TopicConfig
from topics_service.engine.placement import Place, Spread, shard_of
from topics_service.engine.stored_logs import DAMAGE, damaged
from topics_service.engine.topic import Topic, TopicRow, partition_state
from topics_service.engine.transaction import Transaction
from topics_service.engine.writer import Writer
from topics_service.storage import keys
from topics_service.storage.store import Family

PENDING: Final = b"parts\x00"
"""Rows of `Family.META` of what is pending; then the name of the topic."""
_DROPPED: Final = b"dropped\x00"
_MARKER: Final = struct.Struct(">Q")  # time in ms
_MARKED_MS: Final = 3_600_000  # no call is under way for so long
_MARKERS_A_SWEEP: Final = 200
_RETRY_MS: Final = 200


class TopicDefinition(Struct, frozen=True, kw_only=True):
    """A topic as its home has it. `revision` grows with each change of it that parts have to know."""

    name: str
    topic_id: str
    slug: str
    rrl: str
    config: TopicConfig
    created_ts: int
    epoch: int
    revision: int
    partition_count: int
    kafka_configs: dict[str, str] = {}
    placement: str = ""


class Pending(Struct, frozen=True, array_like=True):
    """A change of a topic that other shards have yet to learn."""

    topic_id: str
    epoch: int
    revision: int
    is_deleted: bool
    shards: tuple[int, ...]

    @property
    def order(self) -> tuple[bool, int]:
        """The place among what there was to learn of this topic: the later contains the earlier."""
        return self.is_deleted, self.revision


class Extent(Struct, frozen=True):
    """A partition as its shard has it, and the recency of the topic there."""

    state: PartitionState
    last_read_ts: int | None
    effective_priority: int


class TopicCalls(Protocol):
    """The calls of the engine that parts need."""

    def reconfigure(self, topic: Topic, row: TopicRow, count: int, stage: Callable[[Transaction], None]) -> int:
        """Replace the row, with `count` partitions in all; returns the ticket of the write."""
        ...

    def remove(self, topic: Topic, stage: Callable[[Transaction], None]) -> tuple[list[str], int]:
        """Remove the topic and what hangs on it; returns the names of its routers, and the ticket of the write."""
        ...


class Parts:
    """The topics of one shard that other shards know too. Every method that writes returns the ticket to wait for."""

    def __init__(self, calls: TopicCalls, catalog: Catalog, writer: Writer, clock: Clock, place: Place) -> None:
        self.place = place
        self.pending: dict[str, Pending] = {}
        """By the names of the topics, which may be deleted. Each stays until `done`."""
        self.on_pending: Callable[[str], object] = lambda _name: None
        """Called with the name of each topic that parts have to learn of."""
        self._calls = calls
        self._catalog = catalog
        self._writer = writer
        self._clock = clock
        self._sweep_cursor = _DROPPED
        if place.count > 1:
            catalog.check_new = self._check_new

    def load(self) -> None:
        """Take over what was pending at the last end. Raises StoreOpenError for a damaged row."""
        if self.place.count == 1:
            return
        for key, value in self._writer.store.scan(Family.META, *keys.prefix_range(PENDING)):
            name = key[len(PENDING) :].decode(errors="replace")
            try:
                self.pending[name] = decode_pending(value)
            except DAMAGE as error:
                raise damaged(f'the pending change of topic "{name}"', error) from error

    # --------------------------------------------------------------------- home

    def define(self, name: str) -> TopicDefinition:
        """A topic whose home is here. Raises `topic_not_found`."""
        return _definition(self._at_home(name))

    def register(self, name: str, shard: int) -> TopicDefinition:
        """Write down that a shard may have a part; it must be durable before one is made. Raises `topic_not_found`."""
        topic = self._at_home(name)
        if not 0 <= shard < self.place.count:
            raise ValueError(f"there is no shard {shard}")
        spread = topic.spread or self.place.spread(name, topic.partition_count, topic.placement)
        if shard != self.place.shard and shard not in spread.shards:
            row = topic.row(topic.config, spread=replace(spread, shards=tuple(sorted({*spread.shards, shard}))))
            with Transaction(self._writer) as tx:
                tx.batch.put(Family.TOPICS, keys.u64(topic.number), row.encode())
                tx.commit()
            topic.adopt(row, topic.logs)
        return _definition(topic)

    def revised(self, topic: Topic, row: TopicRow, count: int) -> TopicRow:
        """A changed row with `count` partitions in all: its next revision."""
        spread = topic.spread
        if spread is None:
            if count == topic.partition_count:
                return row
            spread = self.place.spread(topic.name, count, topic.placement)
        return replace(row, spread=replace(spread, partition_count=count, revision=spread.revision + 1))

    def local(self, topic: Topic, count: int) -> int:
        """The number of partitions of a topic that are here, when it has `count` in all."""
        return count if self.place.count == 1 else len(self.place.spread(topic.name, count, topic.placement).numbers)

    def stage_change(self, tx: Transaction, topic: Topic, row: TopicRow) -> None:
        """Stage that the parts of a topic have to learn of its new row."""
        spread = row.spread
        if spread is not None and spread.shards:
            self._stage_pending(tx, topic, spread, is_deleted=False)

    def stage_deletion(self, tx: Transaction, topic: Topic) -> None:
        """Stage that the parts of a topic have to be dropped."""
        if topic.spread is not None and topic.spread.shards:
            self._stage_pending(tx, topic, topic.spread, is_deleted=True)

    def done(self, name: str, pending: Pending) -> None:
        """All shards have confirmed it. Nothing happens if there is something newer."""
        if self.pending.get(name) is pending:
            with Transaction(self._writer) as tx:
                tx.batch.delete(Family.META, PENDING + name.encode())
                tx.commit()
            del self.pending[name]

    def elsewhere(self, name: str) -> dict[int, list[int]]:
        """The partitions in other shards, by the shards that may have a part; nothing if the topic is not at home."""
        topic = self._catalog.find(name)
        if topic is None or topic.spread is None or topic.is_part:
            return {}
        found: dict[int, list[int]] = {shard: [] for shard in topic.spread.shards}
        for partition in range(topic.partition_count):
            shard = shard_of(name, partition, self.place.count, topic.placement)
            if shard in found:
                found[shard].append(partition)
        return found

    def _at_home(self, name: str) -> Topic:
        topic = self._catalog.find(name)
        if topic is None:
            raise topic_not_found(name)
        if topic.is_part:
            raise in_another_shard(name)
        return topic

    def _stage_pending(self, tx: Transaction, topic: Topic, spread: Spread, *, is_deleted: bool) -> None:
        pending = Pending(topic.topic_id, topic.identity.epoch, spread.revision, is_deleted, spread.shards)
        tx.batch.put(Family.META, PENDING + topic.name.encode(), msgspec.msgpack.encode(pending))
        tx.stage(_Pended(self, topic.name, pending))

    def _check_new(self, name: str, placement: str) -> None:
        if not self.place.is_home(name, placement):
            raise topic_not_found(name)
        pending = self.pending.get(name)
        if pending is not None and pending.is_deleted:
            raise TopicsError(
                Reason.THROTTLED,
                f'the topic "{name}" before this one is still being deleted in other shards',
                {"topic": name, "retry_after_ms": _RETRY_MS},
                retry_after_ms=_RETRY_MS,
            )

    # -------------------------------------------------------------------- parts

    def adopt(self, definition: TopicDefinition) -> int:
        """Make the part of a topic, or bring it up to date. A revision older than that of the part changes nothing.

        Raises `topic_not_found` for a life of the topic that has ended, as far as is known here, `throttled` for too
        many partitions, and `internal` if the part is that of another life, which is dropped before this one begins.
        """
        name, topic = definition.name, self._catalog.find(definition.name)
        if self._is_dropped(definition):
            raise topic_not_found(name)
        spread = replace(
            self.place.spread(name, definition.partition_count, definition.placement),
            epoch=definition.epoch,
            revision=definition.revision,
        )
        if topic is None:
            return self._make(definition, spread)
        known = topic.spread
        if known is None or not known.epoch or self.place.is_home(name, definition.placement):
            raise in_another_shard(name)  # a part of a topic whose home is here
        if topic.topic_id != definition.topic_id:
            raise TopicsError(
                Reason.INTERNAL, f'shard {self.place.shard} has a part of another topic "{name}"', {"topic": name}
            )
        if definition.revision > known.revision:
            row = topic.row(definition.config, kafka_configs=definition.kafka_configs, spread=spread)
            count = max(definition.partition_count, topic.partition_count)
            self._calls.reconfigure(topic, row, count, lambda tx: tx.stage(_Awaited()))
        return self._writer.written  # one that is the same may be waiting for its fsync

    def drop(self, name: str, topic_id: str) -> tuple[list[str], int]:
        """Remove the part of a topic, if it is there, with all that hangs on it, and remember that it is gone.

        Returns the names of its routers here, which are removed too. Another life of the name is left alone.
        """
        topic = self._catalog.find(name)
        marker = _MARKER.pack(self._clock.now_ms())

        def stage(tx: Transaction) -> None:
            tx.batch.put(Family.META, _marker_key(name, topic_id), marker)

        if topic is not None and topic.is_part and topic.topic_id == topic_id:
            return self._calls.remove(topic, stage)
        with Transaction(self._writer) as tx:
            stage(tx)
            tx.commit()
        return [], tx.ticket

    def extents(self, places: Sequence[tuple[str, int]]) -> list[Extent | None]:
        """Each partition as this shard has it; None where it has none. Nothing is touched."""
        now = self._clock.now_ms()
        return [self._extent(name, partition, now) for name, partition in places]

    def sweep(self) -> None:
        """Remove markers that have done their work; a slice of them per call."""
        if self.place.count == 1:
            return
        stop, before = keys.prefix_range(_DROPPED)[1], self._clock.now_ms() - _MARKED_MS
        found = list(islice(self._writer.store.scan(Family.META, self._sweep_cursor, stop), _MARKERS_A_SWEEP))
        self._sweep_cursor = found[-1][0] + b"\x00" if len(found) == _MARKERS_A_SWEEP else _DROPPED
        old = [key for key, value in found if decode_marker(value) < before]
        if old:
            with Transaction(self._writer) as tx:
                for key in old:
                    tx.batch.delete(Family.META, key)
                tx.commit()

    def _make(self, definition: TopicDefinition, spread: Spread) -> int:
        row = TopicRow(
            name=definition.name, topic_id=definition.topic_id, slug=definition.slug, rrl=definition.rrl,
            config=definition.config, log_ids=[], created_ts=definition.created_ts,
            kafka_configs=definition.kafka_configs, placement=definition.placement, spread=spread,
        )  # fmt: skip
        if self.place.is_home(row.name, row.placement):
            raise topic_not_found(row.name)
        with Transaction(self._writer) as tx:
            topic = self._catalog.stage_row(tx, row, len(spread.numbers))
            tx.commit()
        return topic.visible_after

    def _is_dropped(self, definition: TopicDefinition) -> bool:
        """Return whether the part of this life of the topic was dropped here not long ago."""
        return self._writer.store.get(Family.META, _marker_key(definition.name, definition.topic_id)) is not None

    def _extent(self, name: str, partition: int, now: int) -> Extent | None:
        topic = self._catalog.find(name)
        log = None if topic is None or self._catalog.unsynced(topic) else topic.find_log(partition)
        if topic is None or log is None:
            return None
        state = partition_state(partition, log.visible(topic.config, now))
        return Extent(state, topic.last_read_ts, topic.effective_priority(now))


class _Pended(NamedTuple):
    """A change for parts in a transaction."""

    parts: Parts
    name: str
    pending: Pending

    def publish(self, ticket: int) -> int:
        """See Change. The caller waits for the change itself."""
        self.parts.pending[self.name] = self.pending
        self.parts.on_pending(self.name)
        return ticket

    def undo(self) -> None:
        """See Change."""


class _Awaited(NamedTuple):
    """A transaction that is waited for, whatever is in it."""

    def publish(self, ticket: int) -> int:
        """See Change."""
        return ticket

    def undo(self) -> None:
        """See Change."""


decode_pending = msgspec.msgpack.Decoder(Pending).decode


def decode_marker(row: bytes) -> int:
    """The time at which a part was dropped; 0 for a damaged row, which is swept."""
    return int(_MARKER.unpack(row)[0]) if len(row) == _MARKER.size else 0


def _marker_key(name: str, topic_id: str) -> bytes:
    return _DROPPED + name.encode() + b"\x00" + topic_id.encode()


def _definition(topic: Topic) -> TopicDefinition:
    identity, spread = topic.identity, topic.spread
    return TopicDefinition(
        name=topic.name, topic_id=identity.topic_id, slug=identity.slug, rrl=identity.rrl, config=topic.config,
        created_ts=topic.created_ts, epoch=identity.epoch, revision=0 if spread is None else spread.revision,
        partition_count=topic.partition_count, kafka_configs=topic.kafka_configs, placement=topic.placement,
    )  # fmt: skip
