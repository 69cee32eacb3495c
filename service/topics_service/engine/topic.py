"""A topic: its identity, configuration, recency and logs."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from msgspec import Struct

from topics_service.engine.errors import in_another_shard, partition_not_found
from topics_service.engine.log import Log
from topics_service.engine.model import Durability, Identity, PartitionState, TopicConfig, TopicState, TopicSummary
from topics_service.engine.placement import Spread
from topics_service.engine.snapshot import Snapshot

_AUTO_MAX = 500
_HALF_LIFE_MS = 30_000
_AUTO_FLOOR_MS = 300_000


class TopicRow(Struct, kw_only=True, array_like=True):
    """The catalog row of a topic. New fields go to the end, with a default.

    Without a `spread` all partitions are here, and no other shard knows the topic.
    """

    version: int = 1
    name: str
    topic_id: str
    slug: str
    rrl: str
    config: TopicConfig
    log_ids: list[int]
    created_ts: int
    kafka_configs: dict[str, str] = {}
    placement: str = ""
    spread: Spread | None = None

    def encode(self) -> bytes:
        """The stored form."""
        if self.spread is not None:
            return msgspec.msgpack.encode(self)
        return msgspec.msgpack.encode(msgspec.structs.astuple(self)[: -1 if self.placement else -2])

    @property
    def partition_count(self) -> int:
        """The number of partitions, in all shards."""
        return len(self.log_ids) if self.spread is None else self.spread.partition_count

    @property
    def numbers(self) -> range:
        """The partitions that the logs are of."""
        return range(len(self.log_ids)) if self.spread is None else self.spread.numbers

    @property
    def is_part(self) -> bool:
        """Return whether the topic's home is another shard."""
        return self.spread is not None and self.spread.epoch != 0

    def epoch(self, number: int) -> int:
        """The epoch that clients see of a topic with this number as its catalog key."""
        return number if self.spread is None else self.spread.epoch or number


decode_row = msgspec.msgpack.Decoder(TopicRow).decode


class LogOpener(Protocol):
    """Makes the log with this id, of a topic of this class, from its rows, once."""

    def __call__(self, log_id: int, durability: Durability, /) -> Log: ...


class Topic:
    """A live topic. `number` is its catalog key: it grows with every topic created, so a recreated topic never looks
    like the one before. `identity.epoch` is that of the topic's home. One log for each partition that is here: the
    home of a topic with a `spread`, and each *part* of it in another shard, have only some of them, or none.

    A topic that recovery found is dormant until its row or its logs are used: a server may have a million topics, of
    which most are idle. The first use decodes them, in about 10 us; it reads memory only.
    """

    __slots__ = (
        "_open_log",
        "_row",
        "_stored",
        "config",
        "identity",
        "last_read_ts",
        "logs",
        "name",
        "number",
        "partition_count",
        "spread",
        "stored_log_ids",
        "touched_ts",
        "visible_after",
    )

    _open_log: LogOpener
    _row: TopicRow
    identity: Identity
    logs: list[Log]
    partition_count: int
    """The number of partitions, in all shards."""
    spread: Spread | None
    stored_log_ids: tuple[int, ...]
    """The ids of the logs of a dormant topic."""

    def __init__(self, number: int, row: TopicRow, logs: list[Log], visible_after: int = 0) -> None:
        self.number = number
        self.name = row.name
        self.last_read_ts: int | None = None
        self.touched_ts: int | None = None
        self.visible_after = visible_after  # the ticket of its creation, before which readers don't see it
        self.adopt(row, logs)

    @classmethod
    def dormant(
        cls,
        number: int,
        name: str,
        config: TopicConfig,
        row: bytes,
        log_ids: tuple[int, ...],
        open_log: LogOpener,
        spread: Spread | None = None,
    ) -> "Topic":
        """A topic that is opened when it is used. `name`, `config`, `log_ids` and `spread` are those of its row, which
        is valid and up to date."""
        topic = cls.__new__(cls)
        topic.number = number
        topic.name = name
        topic.config = config
        topic.last_read_ts = topic.touched_ts = None
        topic.visible_after = 0
        topic.spread = spread
        topic.partition_count = len(log_ids) if spread is None else spread.partition_count
        topic._stored = row
        topic.stored_log_ids = log_ids
        topic._open_log = open_log
        return topic

    def adopt(self, row: TopicRow, logs: list[Log]) -> None:
        """Take over a new catalog row and these logs; name and identity stay."""
        self._stored: bytes | None = None
        self.logs = logs
        self._identify(row)
        for partition, log in self.numbered():
            log.blocks.topic_partition = (self.name, partition)

    def _identify(self, row: TopicRow) -> None:
        self._row, self.config, self.spread = row, row.config, row.spread
        count = self.partition_count = row.partition_count
        self.identity = Identity(
            topic_id=row.topic_id,
            slug=row.slug,
            rrl=row.rrl,
            epoch=row.epoch(self.number),
            partition_count=count,
            placement=row.placement,
        )

    if not TYPE_CHECKING:  # mypy would allow any attribute

        def __getattr__(self, name: str) -> Any:
            """Open a dormant topic: called when one of the attributes that it has not set yet is asked for."""
            stored = self._stored if name in ("_row", "identity", "logs") else None
            if stored is None:
                raise AttributeError(f"a topic has no attribute {name!r}", name=name, obj=self)
            if name == "logs":
                durability = self.config.durability
                self.adopt(self._row, [self._open_log(log_id, durability) for log_id in self.stored_log_ids])
            else:
                row = decode_row(stored)
                row.config = self.config  # one object for all topics that have the same
                self._identify(row)
            return getattr(self, name)

    @property
    def is_dormant(self) -> bool:
        """Return whether the logs have not been used since the start."""
        return self._stored is not None

    @property
    def is_part(self) -> bool:
        """Return whether the topic's home is another shard."""
        return self.spread is not None and self.spread.epoch != 0

    @property
    def log_count(self) -> int:
        """The number of logs that are here; a dormant topic stays dormant."""
        return len(self.logs if self._stored is None else self.stored_log_ids)

    @property
    def topic_id(self) -> str:
        """The id; a dormant topic stays dormant."""
        return self.identity.topic_id if self._stored is None else decode_row(self._stored).topic_id

    def peek(self) -> TopicRow:
        """The row; a dormant topic stays dormant."""
        return self._row if self._stored is None else decode_row(self._stored)

    @property
    def placement(self) -> str:
        """The placement group that it was made for, empty for none."""
        return self._row.placement

    @property
    def created_ts(self) -> int:
        """The time of its creation in ms."""
        return self._row.created_ts

    def row(self, config: TopicConfig, **changed: Any) -> TopicRow:
        """The catalog row with another config, and other fields that are given."""
        return msgspec.structs.replace(self._row, config=config, **changed)

    @property
    def kafka_configs(self) -> dict[str, str]:
        """The configs that only Kafka knows, as far as they were set."""
        return self._row.kafka_configs

    @property
    def log(self) -> Log:
        """The log of partition 0, the only partition of queues and of a router's ends."""
        return self.logs[0] if self.spread is None else self.partition(0)

    def partition(self, number: int) -> Log:
        """The log of a partition. Raises `partition_not_found`, and `internal` for one that is in another shard."""
        if self.spread is None and 0 <= number < len(self.logs):
            return self.logs[number]
        if not 0 <= number < self.partition_count:
            raise partition_not_found(self.name, number, self.partition_count)
        found = self.find_log(number)
        if found is None:
            raise in_another_shard(self.name, number)
        return found

    def find_log(self, number: int) -> Log | None:
        """The log of a partition, if it is here."""
        if self.spread is None:
            return self.logs[number] if 0 <= number < len(self.logs) else None
        numbers = self.spread.numbers
        return self.logs[numbers.index(number)] if number in numbers else None

    def numbered(self) -> Iterator[tuple[int, Log]]:
        """Yield the logs that are here, with the numbers of their partitions."""
        return enumerate(self.logs) if self.spread is None else zip(self.spread.numbers, self.logs, strict=False)

    def partition_bytes(self, number: int) -> int:
        """Bytes of the records in an existing partition, as readers saw them last."""
        return self.partition(number).view.bytes

    def touch(self, now: int, *, read: bool = True) -> None:
        """Count a consumption for recency; `read` False leaves `last_read_ts` alone (a list with touch)."""
        self.touched_ts = now
        if read:
            self.last_read_ts = now

    def effective_priority(self, now: int) -> int:
        """The manual priority, or 500 halved for every 30 s since the topic was read (docs/contract.md, 3.7)."""
        if self.config.priority is not None:
            return self.config.priority
        if self.touched_ts is None or not self.config.auto_priority:
            return 0
        idle = max(0, now - self.touched_ts)
        return 0 if idle >= _AUTO_FLOOR_MS else round(_AUTO_MAX * 2 ** (-idle / _HALF_LIFE_MS))

    def state(self, s: Snapshot, now: int, partition: int = 0) -> TopicState:
        """The state that a client sees of the snapshot `s`, which is one of the partition."""
        return TopicState(
            topic=self.name,
            partition=partition,
            config=self.config,
            identity=self.identity,
            head_seq=s.head,
            earliest_seq=s.earliest,
            count=s.count,
            bytes=s.bytes,
            effective_priority=self.effective_priority(now),
            last_write_ts=s.last_ts or None,
            last_read_ts=self.last_read_ts,
        )

    def summary(self, now: int) -> TopicSummary:
        """The line of a list that a client sees."""
        config, views = self.config, [log.visible(self.config, now) for log in self.logs]
        first, is_alone = views[0], len(views) == 1
        is_whole = len(views) == self.partition_count
        return TopicSummary(
            self.name,
            self._row.topic_id,
            config.type,
            config.durable,
            first.head,
            first.earliest,
            first.count if is_alone else sum(each.count for each in views),
            first.bytes if is_alone else sum(each.bytes for each in views),
            self.effective_priority(now),
            self.partition_count,
            () if is_whole else tuple([number for number, _ in self.numbered()]),
            "" if is_whole else self.placement,
        )


def partition_state(number: int, s: Snapshot) -> PartitionState:
    """The state that a client sees of one partition among several."""
    return PartitionState(
        partition=number, head_seq=s.head, earliest_seq=s.earliest, next_seq=s.head + 1, count=s.count, bytes=s.bytes,
        last_write_ts=s.last_ts or None,
    )  # fmt: skip
