"""Requests, replies and their parts: the plain structs that cross the engine's seam.

Sequence numbers are u64, `*_ts` and `*_ms` are integer milliseconds, text inside records is UTF-8 bytes.
"""

from collections.abc import Iterable, Iterator, Sequence
from operator import add
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import UNSET, Raw, Struct, UnsetType

from topics_service.engine.placement import group_of, zone_of
from topics_service.storage.block import Block
from topics_service.storage.recordbatch import jsonvalue
from topics_service.storage.varbinary import lengths

TopicType = Literal["log", "queue"]
Discard = Literal["old", "reject"]
Durability = Literal["ephemeral", "memory", "disk", "fsync"]
GapReason = Literal["cap", "ttl", "mixed", "recreated", "source_trim"]

JSON_KIND = jsonvalue.JSON
BINARY_KIND = jsonvalue.BINARY


class Clamp(NamedTuple):
    """Bounds, both inclusive, into which a value is brought instead of refused."""

    low: int
    high: int


class ConfigInput(Struct, kw_only=True, frozen=True):
    """A topic configuration as a client sent it; None, or UNSET, means the field was left out. See `config.resolve`."""

    type: str | None = None
    ttl_ms: int | None = None
    cap_records: int | None = None
    cap_bytes: int | None = None
    discard: str | None = None
    durable: bool | None = None
    durability: str | None = None
    priority: int | None = None
    auto_priority: bool | None = None
    auto_create: bool | None = None
    idempotency_window_ms: int | None = None
    dedupe_node: bool | None = None
    lease_ms: int | None = None
    claim_jitter_ms: int | None = None
    max_deliveries: int | None = None
    dead_letter: str | None = None
    leases_durable: bool | None = None
    retain_until_acked_by: tuple[str, ...] | UnsetType = UNSET


class TopicConfig(Struct, kw_only=True, frozen=True):
    """A resolved topic configuration (docs/contract.md, 3.2); the field order is the order of the JSON echo.

    The types are all that protocols know of a field: enums are Literals, integers without a Clamp are u64.

    Beyond the contract, and in no echo unless it is set: `retain_until_acked_by` are groups whose committed positions
    retention stays behind.
    """

    type: TopicType = "log"
    ttl_ms: int = 0
    cap_records: int = 0
    cap_bytes: int = 0
    discard: Discard = "old"
    durable: bool = False
    durability: Durability = "disk"
    priority: Annotated[int, Clamp(-1000, 1000)] | None = None
    auto_priority: bool = True
    auto_create: bool = True
    idempotency_window_ms: int = 120_000
    dedupe_node: bool = True
    lease_ms: Annotated[int, Clamp(100, 86_400_000)] = 30_000
    claim_jitter_ms: Annotated[int, Clamp(0, 5000)] = 0
    max_deliveries: int = 0
    dead_letter: str | None = None
    leases_durable: bool = False
    retain_until_acked_by: tuple[str, ...] | UnsetType = UNSET

    @property
    def retaining(self) -> tuple[str, ...]:
        """The groups of `retain_until_acked_by`, none if it is not set."""
        return self.retain_until_acked_by or ()


class Batch(Struct):
    """The records of one append, as columns of equal length. A None column means no record has that part.

    `datas` holds JSON text as it was sent (kind 0) or raw bytes (kind 1), as bytes or as views of a decoded body, and
    `sizes` their lengths; `metas` holds JSON object text.
    `kinds` has one byte per record, or is None when every record is JSON.
    """

    datas: Sequence[bytes | Raw]
    tags: list[bytes | None] | None = None
    nodes: list[bytes | None] | None = None
    metas: list[bytes | None] | None = None
    kinds: bytes | None = None
    sizes: list[int] = []

    def __post_init__(self) -> None:
        if not self.sizes:
            self.sizes = list(map(len, self.datas))

    def pieces(self, max_bytes: int) -> "Iterable[Batch]":
        """The records in order, in batches of at most `max_bytes` bytes of data and meta each, or of one record."""
        sizes = self.sizes if self.metas is None else list(map(add, self.sizes, lengths(self.metas, 0)))
        return (self,) if len(sizes) == 1 or sum(sizes) <= max_bytes else self._pieces(sizes, max_bytes)

    def _pieces(self, sizes: Sequence[int], max_bytes: int) -> "Iterator[Batch]":
        start = nbytes = 0
        for i, size in enumerate(sizes):
            if nbytes + size > max_bytes and i > start:
                yield self._part(slice(start, i))
                start, nbytes = i, 0
            nbytes += size
        yield self._part(slice(start, len(sizes)))

    def _part(self, part: slice) -> "Batch":
        tags, nodes, metas = (
            None if column is None else column[part] for column in (self.tags, self.nodes, self.metas)
        )
        kinds = None if self.kinds is None else self.kinds[part]
        return Batch(datas=self.datas[part], tags=tags, nodes=nodes, metas=metas, kinds=kinds, sizes=self.sizes[part])


def joined(batches: Sequence[Batch]) -> Batch:
    """One batch of the records of several, in their order."""
    counts = [len(batch.datas) for batch in batches]
    kinds = None
    if any(batch.kinds is not None for batch in batches):
        kinds = b"".join(batch.kinds or bytes(count) for batch, count in zip(batches, counts, strict=True))
    return Batch(
        datas=[data for batch in batches for data in batch.datas],
        tags=_joined([batch.tags for batch in batches], counts),
        nodes=_joined([batch.nodes for batch in batches], counts),
        metas=_joined([batch.metas for batch in batches], counts),
        kinds=kinds,
        sizes=[size for batch in batches for size in batch.sizes],
    )


def _joined(columns: Sequence[list[bytes | None] | None], counts: Sequence[int]) -> list[bytes | None] | None:
    if not any(columns):
        return None
    return [value for column, count in zip(columns, counts, strict=True) for value in column or [None] * count]


class AppendRequest(Struct, kw_only=True):
    """Append `batch` to `topic`, atomically (docs/contract.md, 4).

    `create` None follows the topic's (or the inline config's) `auto_create`. `config` counts only when this call
    creates the topic, which then has one partition. Beyond the contract, on a queue only: `delay_ms` hides the
    records from claims for that long (clamped to 86400000), and claims serve a higher `priority`, 0 to 9, first.
    """

    topic: str
    batch: Batch
    partition: int = 0
    idempotency_key: str | None = None
    create: bool | None = None
    config: ConfigInput | None = None
    disable_backpressure: bool = False
    delay_ms: int = 0
    priority: int = 0

    @property
    def is_scheduled(self) -> bool:
        """Return whether the jobs have a delay or a priority."""
        return bool(self.delay_ms or self.priority)


class AppendReply(Struct, kw_only=True):
    """The position of the batch. `count` is that of this write (of the original write when `deduped`).

    `fsync_gated` says that the topic's class holds the ack for an fsync; only then is `fsync_ms` above zero.
    """

    topic: str
    partition: int = 0
    partition_count: int = 1
    first_seq: int
    count: int
    head_seq: int
    created: bool
    deduped: bool
    fsync_gated: bool = False
    wal_append_ms: float = 0.0
    fsync_ms: float = 0.0
    throttle_wait_ms: float = 0.0

    @property
    def last_seq(self) -> int:
        """The seq of the batch's last record."""
        return self.first_seq + self.count - 1


class DiffRequest(Struct, kw_only=True):
    """Read the records after `from_seq` (docs/contract.md, 5).

    `limit` 0 means the default (256), above the maximum it is clamped; `max_batch_bytes` 0 means 1 MiB, clamped to
    8 MiB; `wait_ms` is clamped to 30000. `nodes` drops records written by these nodes.

    Beyond the contract, instead of `from_seq`: `from_ts` starts at the first record of that time (ms) or later, `last`
    that many live records before the end (0: only new ones). `filter` keeps only records with a matching tag: `limit`
    then counts matches, and a page can end before it is full (see `reader.read`). With `committed` the cursor is a
    group's position: beyond the head it counts as the head, and does not reveal a recreated topic. A topic with another
    id than `topic_id` is `topic_not_found`, unless that is empty.
    """

    topic: str
    partition: int = 0
    from_seq: int = 0
    from_ts: int | None = None
    last: int | None = None
    limit: int = 0
    nodes: tuple[bytes, ...] = ()
    wait_ms: int = 0
    max_batch_bytes: int = 0
    filter: "TagMatch | None" = None
    committed: bool = False
    topic_id: str = ""


class BulkRequest(DiffRequest, kw_only=True):
    """A page of a long read whose pages belong together. `limit` and `max_batch_bytes` count as they are.

    `end_seq` is the last seq to read (None: the head). `epoch` is 0 for the first page and then that of the first
    reply: a topic that was recreated in between is `topic_not_found`.
    """

    end_seq: int | None = None
    epoch: int = 0


class Slice(Struct, frozen=True):
    """The records at positions `start` (inclusive) to `stop` (exclusive) of an immutable block."""

    block: Block
    start: int
    stop: int


class Tombstone(Struct, frozen=True, kw_only=True):
    """An explicit gap: the records `gap_from..gap_to` (inclusive) were lost to `reason` (docs/contract.md, 5.3)."""

    gap_from: int
    gap_to: int
    reason: GapReason
    missed_estimate: int
    earliest_seq: int
    head_seq: int


class DiffReply(Struct, kw_only=True):
    """One page of records as block slices, in seq order."""

    topic: str
    partition: int = 0
    partition_count: int = 1
    slices: Sequence[Slice]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    tombstone: Tombstone | None
    records_scanned: int

    @property
    def caught_up(self) -> bool:
        """Nothing more to read right now."""
        return self.next_from_seq == self.head_seq

    @property
    def lag(self) -> int:
        """Return the number of seqs between the cursor and the head."""
        return self.head_seq - self.next_from_seq


class TagMatch(Struct, frozen=True):
    """`Eq` matches the tag `value` exactly, `Glob` every tag that starts with `value` (the `*` already cut off)."""

    op: Literal["Eq", "Glob"]
    value: bytes


class DeleteRequest(Struct, kw_only=True):
    """Delete records below `before_seq` and/or with a matching tag; both are ANDed (docs/contract.md, 6)."""

    topic: str
    partition: int = 0
    before_seq: int | None = None
    match: TagMatch | None = None


class DeleteReply(Struct, kw_only=True):
    """The result of a delete, and the state after it."""

    topic: str
    partition: int = 0
    partition_count: int = 1
    deleted: int
    earliest_seq: int
    head_seq: int
    count: int
    bytes: int


class PutTopicReply(Struct, kw_only=True):
    """The outcome of a PUT: `created` only when this call brought the topic into existence."""

    topic: str
    created: bool
    config: TopicConfig
    identity: "Identity"


class Identity(Struct, frozen=True, kw_only=True):
    """Identity of a topic: `topic_id` is unique forever, `slug` and `rrl` are labels, `epoch` grows on each create.

    `placement` is that of `engine.placement`, empty for none.
    """

    topic_id: str
    slug: str
    rrl: str
    epoch: int
    partition_count: int = 1
    placement: str = ""

    @property
    def group(self) -> str:
        """The placement group, whose topics lie in one shard; empty for none."""
        return group_of(self.placement)

    @property
    def zone(self) -> str:
        """The zone that its shards preferred when it was made; empty for none."""
        return zone_of(self.placement)


class QueueCounters(Struct, frozen=True, kw_only=True):
    """The counters of a queue: those of docs/contract.md, 10.8, and the jobs that these leave out.

    `delayed` jobs are not due yet, those among them that are `retrying` were delivered before; `exhausted` ones, which
    wait for the dead letter topic, are not delivered again.
    """

    ready: int
    in_flight: int
    dead_lettered: int
    delayed: int = 0
    retrying: int = 0
    exhausted: int = 0


class PartitionState(Struct, frozen=True, kw_only=True):
    """The state of one partition of a topic; the field order is the order of the JSON."""

    partition: int
    head_seq: int
    earliest_seq: int
    next_seq: int
    count: int
    bytes: int
    last_write_ts: int | None


class TopicState(Struct, kw_only=True):
    """A topic's state (docs/contract.md, 3.4). `last_write_ts` and `last_read_ts` are None if it never happened.

    Positions and counters are those of one partition. `partitions` has those of all, and is empty where there is one.
    """

    topic: str
    partition: int = 0
    config: TopicConfig
    identity: Identity
    head_seq: int
    earliest_seq: int
    count: int
    bytes: int
    effective_priority: int
    last_write_ts: int | None
    last_read_ts: int | None
    queue: QueueCounters | None = None
    partitions: Sequence[PartitionState] = ()

    @property
    def next_seq(self) -> int:
        """The seq that the next append will get, unless a crash skips some."""
        return self.head_seq + 1


class ListTopicsRequest(Struct, kw_only=True):
    """A page of topics in name order. `after` is the last name of the page before; `page_size` is 1..1000.

    A page may hold fewer when they have many partitions.
    """

    prefix: str = ""
    after: str | None = None
    page_size: int = 100
    touch: bool = False


class TopicSummary(Struct, array_like=True, gc=False):
    """A topic's line in a list (docs/contract.md, 3.5). A page has many, which other nodes ask for: it is small.

    `head_seq` and `earliest_seq` are those of partition 0, `count` and `bytes` are of all partitions; in a shard that
    has not all of them, of those that it has, whose numbers are `partitions` then, with the `placement` of the topic.
    """

    topic: str
    topic_id: str
    type: TopicType
    durable: bool
    head_seq: int
    earliest_seq: int
    count: int
    bytes: int
    effective_priority: int
    partition_count: int = 1
    partitions: tuple[int, ...] = ()
    placement: str = ""


class ListTopicsReply(Struct, kw_only=True):
    """Topics in name order; `next_after` is None on the last page."""

    topics: list[TopicSummary]
    next_after: str | None


class DeleteTopicReply(Struct, kw_only=True):
    """`deleted` is False when there was no such topic."""

    topic: str
    deleted: bool
    routers_removed: list[str]


class ReadyState(Struct, kw_only=True):
    """Readiness: `ready`, or the reason it is not (`not_ready`, `shutting_down`, `read_only`)."""

    ready: bool
    reason: str
    topics: int
    replay_progress: float


Detail = dict[str, Any]
