"""What calls give and take. Everything here is immutable; times are milliseconds since the Unix epoch (`_ts_ms`)."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, NamedTuple

from topics_client.errors import TopicsError

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def decoded(data: bytes, binary: bool) -> Any:
    """What a record's bytes stand for: the value of their JSON text, or the bytes themselves."""
    return data if binary else json.loads(data)


class RawJson(bytes):
    """A JSON text in UTF-8, sent as it is. The server keeps it byte for byte, but for white space around it."""


Headers = Mapping[str, Any] | RawJson
"""The headers of a record: a JSON object, as a mapping or as its text."""


class NewRecord(NamedTuple):
    """A record to append.

    `value` is any JSON value, RawJson, or plain bytes, which are kept as a binary record. `tag` (at most 256 bytes) is
    what deletes, filters and routers go by. Readers that name the same `node` (128 bytes) don't get the record. `meta`
    is a JSON object of headers (16 KiB, 64 keys).
    """

    value: Any
    tag: str | None = None
    node: str | None = None
    meta: Headers | None = None


class Record(NamedTuple):
    """A stored record."""

    topic: str
    partition: int
    seq: int
    ts_ms: int
    data: bytes
    binary: bool
    tag: str | None
    node: str | None
    meta_data: bytes

    @property
    def value(self) -> Any:
        """The JSON value, decoded anew at each use; the bytes of a binary record."""
        return decoded(self.data, self.binary)

    @property
    def meta(self) -> dict[str, Any]:
        """The headers; empty where there are none."""
        return json.loads(self.meta_data) if self.meta_data else {}

    @property
    def time(self) -> datetime:
        """When it was committed, in UTC."""
        return _EPOCH + timedelta(milliseconds=self.ts_ms)


class Job(NamedTuple):
    """A record of a queue under a lease: nobody else's until `deadline_ts_ms`, unless the lease is extended."""

    queue: str
    seq: int
    lease_id: str
    deadline_ts_ms: int
    ts_ms: int
    data: bytes
    binary: bool
    tag: str | None
    deliveries: int
    meta_data: bytes
    is_last: bool = False
    """Whether no delivery follows this one: should it fail, the job is dead-lettered."""

    @property
    def value(self) -> Any:
        """The JSON value, decoded anew at each use; the bytes of a binary record."""
        return decoded(self.data, self.binary)

    @property
    def meta(self) -> dict[str, Any]:
        """The headers; empty where there are none."""
        return json.loads(self.meta_data) if self.meta_data else {}


GapReason = Literal["cap", "ttl", "mixed", "recreated", "source_trim", "from_seq_too_old", "unspecified"]


@dataclass(frozen=True, slots=True)
class Gap:
    """Records that were there once, and that retention took before they were read: `first_seq` to `last_seq`.

    `missed_estimate` counts them from above: seqs deleted on purpose before may be among them. With the reason
    `recreated` the topic was deleted and made again, and reading begins anew at `earliest_seq`.
    """

    topic: str
    partition: int
    first_seq: int
    last_seq: int
    reason: GapReason
    missed_estimate: int
    earliest_seq: int
    head_seq: int


class GapError(TopicsError):
    """Records were lost to retention before they were read; `gap` says which. Iterate again to go on behind it."""

    def __init__(self, gap: Gap) -> None:
        super().__init__(
            "gap",
            f"{gap.topic}: seq {gap.first_seq} to {gap.last_seq} is gone ({gap.reason}); "
            "iterate again to go on behind it, or ask for gaps as objects",
            {"topic": gap.topic, "gap_from": str(gap.first_seq), "gap_to": str(gap.last_seq)},
        )
        self.gap = gap

    def __reduce__(self) -> tuple[type["GapError"], tuple[Gap]]:
        return (GapError, (self.gap,))


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """A watch has come to the head of a topic; from here on records come as they are written."""

    topic: str
    partition: int
    head_seq: int


@dataclass(frozen=True, slots=True)
class TopicDeleted:
    """A topic that was watched is gone, and so are its records."""

    topic: str
    partition: int
    head_seq: int


@dataclass(frozen=True, slots=True)
class Advice:
    """What the server says of an open watch without ending it: that it paces it, or that a topic is one too many."""

    reason: str
    message: str
    topics: tuple[str, ...]
    retry_after_ms: int | None


Event = Record | Gap | CaughtUp | TopicDeleted | Advice


@dataclass(frozen=True, slots=True)
class Appended:
    """The answer to an append: durable for the class of the topic, and visible. Its seqs are contiguous.

    With `deduped` the key had been used before: nothing was stored now, and the seqs are those of the first time.
    """

    topic: str
    partition: int
    first_seq: int
    last_seq: int
    head_seq: int
    created: bool
    deduped: bool

    @property
    def seqs(self) -> range:
        """The seq of each record, in their order."""
        return range(self.first_seq, self.last_seq + 1)

    @property
    def count(self) -> int:
        """How many records it was."""
        return len(self.seqs)


@dataclass(frozen=True, slots=True)
class Page:
    """The answer to a diff: what lies behind a cursor. `gap` lies before `records`."""

    topic: str
    partition: int
    records: tuple[Record, ...]
    gap: Gap | None
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    caught_up: bool
    lag: int


@dataclass(frozen=True, slots=True)
class Deleted:
    """The answer to a delete of records, and the topic right after it."""

    deleted: int
    earliest_seq: int
    head_seq: int
    count: int
    bytes: int


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The configuration of a topic. None is the server's default, except for `type`, where it is what the topic has.

    docs/configuration.md and the reference of `TopicConfig` in the protos say what each means.
    """

    type: Literal["log", "queue"] | None = None
    ttl_ms: int | None = None
    cap_records: int | None = None
    cap_bytes: int | None = None
    discard: Literal["old", "reject"] | None = None
    durability: Literal["ephemeral", "memory", "disk", "fsync"] | None = None
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
    retain_until_acked_by: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class TopicPut:
    """The answer to `put_topic`: what is in force now."""

    topic: str
    created: bool
    config: TopicConfig
    topic_id: str
    epoch: int
    partition_count: int


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """Where one partition of a topic stands."""

    partition: int
    head_seq: int
    earliest_seq: int
    next_seq: int
    count: int
    bytes: int
    last_write_ts_ms: int | None


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """Jobs of a queue: `ready` to be claimed now, `in_flight` under a lease, `dead_lettered` so far.

    `delayed` ones are not due yet; those among them that are `retrying` were delivered before. Nobody gets `exhausted`
    ones any more, and the dead-letter topic has not taken them yet.
    """

    ready: int
    in_flight: int
    dead_lettered: int
    delayed: int = 0
    retrying: int = 0
    exhausted: int = 0


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """Everything known of a topic; positions and counters are those of `partition`."""

    topic: str
    type: str
    head_seq: int
    earliest_seq: int
    next_seq: int
    count: int
    bytes: int
    config: TopicConfig
    effective_priority: int
    last_write_ts_ms: int | None
    last_read_ts_ms: int | None
    queue: QueueCounts | None
    topic_id: str
    slug: str
    rrl: str
    epoch: int
    partition_count: int
    partition: int
    partitions: tuple[PartitionInfo, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class TopicSummary:
    """A line of a listing of topics."""

    topic: str
    type: str
    head_seq: int
    earliest_seq: int
    count: int
    bytes: int
    durable: bool
    effective_priority: int
    topic_id: str
    partition_count: int


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """What a router does. `tag` or `tag_prefix` is its filter, both None: everything is copied."""

    source: str
    dest: str
    tag: str | None = None
    tag_prefix: str | None = None
    guarantee: Literal["at_least_once", "exactly_once"] = "at_least_once"
    preserve_node: bool = True
    preserve_tag: bool = True
    allow_cycle: bool = False


@dataclass(frozen=True, slots=True)
class RouterInfo:
    """A router and how far it has come. `last_error` says why it stands still, if it does."""

    router: str
    config: RouterConfig
    forwarded_total: int
    lag_records: int
    last_error: str | None


@dataclass(frozen=True, slots=True)
class RouterSummary:
    """A line of a listing of routers."""

    router: str
    source: str
    dest: str
    guarantee: str
    forwarded_total: int
    lag_records: int


@dataclass(frozen=True, slots=True)
class Settled:
    """The answer to an ack, a nack or an extend: how many jobs it was done for, and the seqs that the worker does not
    hold (any more).

    After a nack nobody gets the jobs `dead_lettered`, nor those `exhausted`, which the dead-letter topic has not taken
    yet.
    """

    done: int
    skipped: tuple[int, ...]
    dead_lettered: tuple[int, ...] = ()
    exhausted: tuple[int, ...] = ()


JobState = Literal["ready", "in_flight", "delayed", "exhausted"]


@dataclass(frozen=True, slots=True)
class Attempt:
    """A delivery of a job that failed: its number, when it ended, the worker, and what it said.

    In place of the worker the server says `lease expired` or `connection ended`; the reason is empty where nothing was
    said.
    """

    delivery: int
    ended_at_ts_ms: int
    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class JobView:
    """A job as it looks to someone who only looks."""

    record: Record
    state: str
    deliveries: int
    priority: int
    node: str | None
    deadline_ts_ms: int | None
    ready_at_ts_ms: int | None
    attempts: tuple[Attempt, ...] = ()
    """The last that failed, oldest first."""


@dataclass(frozen=True, slots=True)
class GroupPosition:
    """Position of a consumer group in a partition: all up to `from_seq` is dealt with.

    A Kafka client may have committed beyond `head_seq`: that counts as the head, with a `lag` of 0.
    """

    topic: str
    partition: int
    from_seq: int
    metadata: str
    commit_ts_ms: int
    head_seq: int
    earliest_seq: int
    lag: int


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """A line of a listing of consumer groups."""

    group: str
    state: str
    members: int
    positions: int
    last_commit_ts_ms: int | None
