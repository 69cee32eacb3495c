"""Arguments and results of calls. All are immutable; times are milliseconds since the Unix epoch (`_ts_ms`)."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NamedTuple, TypeVar

from topics_client.errors import InvalidRequestError, TopicsError
from topics_client.members import unknown_member

if TYPE_CHECKING:
    import typing_extensions

    from topics_client.codecs import Codec

    Value_co = typing_extensions.TypeVar("Value_co", covariant=True, default=Any)
else:
    Value_co = TypeVar("Value_co", covariant=True)
Of = TypeVar("Of")

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SHOWN: Final = 200  # bytes of data in a repr


def topic_partition_name(topic: str, partition: int) -> str:
    """The name of a partition in cursors and positions: `topic`, or `topic@N` for a partition N > 0."""
    return f"{topic}@{partition}" if partition else topic


def decoded(data: bytes, binary: bool) -> Any:
    """Decode a record's data: the value of its JSON text, or the bytes themselves."""
    return data if binary else json.loads(data)


def _shown(data: bytes) -> str:
    """The beginning of bytes, for a repr."""
    return repr(data) if len(data) <= _SHOWN else f"{data[:_SHOWN]!r}… {len(data):,} bytes"


class RawJson(bytes):
    """A JSON text in UTF-8, sent unchanged. The server stores it byte for byte, except for surrounding white space."""


Headers = Mapping[str, Any] | RawJson
"""The headers of a record: a JSON object, as a mapping or as its text."""


class NewRecord(NamedTuple):
    """A record to append.

    `value` is any JSON value, RawJson, or plain bytes, which are stored as a binary record. Deletes, filters and
    routers select records by `tag` (at most 256 bytes). Readers with the same `node` (at most 128 bytes) don't receive
    the record. `meta` is a JSON object of headers (at most 16 KiB, 64 keys).
    """

    value: Any
    tag: str | None = None
    node: str | None = None
    meta: Headers | None = None

    @classmethod
    def of(cls, members: Mapping[str, Any]) -> "NewRecord":
        """Create a record from a mapping with these names, such as a line of a file. Raises InvalidRequestError for an
        unknown name, with the closest match, and for a missing value."""
        if wrong := unknown_member(members, cls._fields):
            raise InvalidRequestError("invalid_request", wrong)
        if "value" not in members:
            raise InvalidRequestError("invalid_request", 'a record has a member "value"')
        return cls(**members)


class Record(NamedTuple, Generic[Value_co]):
    """A stored record. Its value is a `Value_co`: any value, unless it was read by a codec."""

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
    def value(self) -> Value_co:
        """The JSON value, decoded at each access; the bytes of a binary record; with a codec, the value it decoded
        once. Raises DecodeError for a record that was yielded undecodable."""
        value: Value_co = decoded(self.data, self.binary)
        return value

    def decode(self, of: "type[Of] | Codec[Of]") -> Of:
        """Decode the value as a type or by a codec. Raises DecodeError."""
        value: Of = _decode(self, of)
        return value

    @property
    def meta(self) -> dict[str, Any]:
        """The headers; empty if there are none."""
        return json.loads(self.meta_data) if self.meta_data else {}

    @property
    def time(self) -> datetime:
        """The commit time, in UTC."""
        return _EPOCH + timedelta(milliseconds=self.ts_ms)

    def __repr__(self) -> str:
        tag = "" if self.tag is None else f" tag {self.tag!r}"
        name, time = topic_partition_name(self.topic, self.partition), self.time.isoformat(timespec="milliseconds")
        return f"<Record {name} seq {self.seq} {time}{tag} {_shown(self.data)}>"


class Job(NamedTuple, Generic[Value_co]):
    """A leased record of a queue: no other worker receives it until `deadline_ts_ms`, or longer if the lease is
    extended."""

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
    """True if this is the last delivery: if it fails, the job is dead-lettered."""

    @property
    def value(self) -> Value_co:
        """See Record.value."""
        value: Value_co = decoded(self.data, self.binary)
        return value

    def decode(self, of: "type[Of] | Codec[Of]") -> Of:
        """See Record.decode."""
        value: Of = _decode(self, of)
        return value

    @property
    def meta(self) -> dict[str, Any]:
        """The headers; empty if there are none."""
        return json.loads(self.meta_data) if self.meta_data else {}

    def __repr__(self) -> str:
        tag = "" if self.tag is None else f" tag {self.tag!r}"
        return f"<Job {self.queue} seq {self.seq} delivery {self.deliveries}{tag} {_shown(self.data)}>"


class DecodeError(TopicsError):
    """A codec can't decode the `record`, which may be a Job; its bytes are `record.data`. Iterate again to continue
    after it."""

    def __init__(self, record: Record[Any] | Job[Any], why: str) -> None:
        name = record.queue if isinstance(record, Job) else topic_partition_name(record.topic, record.partition)
        super().__init__("undecodable", f"{name}, seq {record.seq}: {why}", {"topic": name, "seq": str(record.seq)})
        self.record = record
        self.why = why

    def __reduce__(self) -> tuple[type["DecodeError"], tuple[Record[Any] | Job[Any], str]]:
        return (DecodeError, (self.record, self.why))


def _decode(record: Record[Any] | Job[Any], of: Any) -> Any:
    from topics_client.codecs import value_as

    return value_as(of, record)


GapReason = Literal["cap", "ttl", "mixed", "recreated", "source_trim", "from_seq_too_old", "unspecified"]


@dataclass(frozen=True, slots=True)
class Gap:
    """Records that retention removed before they were read: `first_seq` to `last_seq`.

    `missed_estimate` is an upper bound of their number: it may include seqs deleted on purpose before. With the reason
    `recreated`, the topic was deleted and created again, and reading restarts at `earliest_seq`.
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
    """Records were lost to retention before they were read; `gap` is their range. Iterate again to continue after
    it."""

    def __init__(self, gap: Gap) -> None:
        super().__init__(
            "gap",
            f"{gap.topic}: seq {gap.first_seq} to {gap.last_seq} is gone ({gap.reason}); "
            "iterate again to continue after it, or ask for gaps as objects",
            {"topic": gap.topic, "gap_from": str(gap.first_seq), "gap_to": str(gap.last_seq)},
        )
        self.gap = gap

    def __reduce__(self) -> tuple[type["GapError"], tuple[Gap]]:
        return (GapError, (self.gap,))


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """A watch has reached the head of a topic; subsequent records are delivered as they are written."""

    topic: str
    partition: int
    head_seq: int


@dataclass(frozen=True, slots=True)
class TopicDeleted:
    """A watched topic was deleted, with its records."""

    topic: str
    partition: int
    head_seq: int


@dataclass(frozen=True, slots=True)
class Advice:
    """A notice from the server that does not end the watch: it is being throttled, or a topic exceeds a limit."""

    reason: str
    message: str
    topics: tuple[str, ...]
    retry_after_ms: int | None


Notice = Gap | CaughtUp | TopicDeleted | Advice
"""The events of a watch other than records."""

Event = Record | Notice


@dataclass(frozen=True, slots=True)
class Appended:
    """The result of an append: durable at the topic's durability class, and visible. Its seqs are contiguous.

    `deduped` means that the key had been used before: nothing was stored, and the seqs are those of the first write.
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
        """The seqs of the records, in order."""
        return range(self.first_seq, self.last_seq + 1)

    @property
    def count(self) -> int:
        """The number of records."""
        return len(self.seqs)


@dataclass(frozen=True, slots=True)
class Page:
    """The result of a diff: the records after a cursor. `gap` precedes `records`."""

    topic: str
    partition: int
    records: tuple[Record, ...]
    gap: Gap | None
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    caught_up: bool
    lag: int

    def __repr__(self) -> str:
        gap = f" gap {self.gap.first_seq} to {self.gap.last_seq}" if self.gap else ""
        return (
            f"<Page {topic_partition_name(self.topic, self.partition)}{gap} {len(self.records)} records, "
            f"next_from_seq {self.next_from_seq}, head_seq {self.head_seq}>"
        )


@dataclass(frozen=True, slots=True)
class Deleted:
    """The result of a delete of records, and the state of the topic right after it."""

    deleted: int
    earliest_seq: int
    head_seq: int
    count: int
    bytes: int


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The configuration of a topic. None means the server's default, for `type` the topic's current type.

    See docs/configuration.md and the reference of `TopicConfig` in the protos for their meaning.
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
    """The result of `put_topic`: the configuration now in effect."""

    topic: str
    created: bool
    config: TopicConfig
    topic_id: str
    epoch: int
    partition_count: int
    placement: str = ""
    zone: str = ""


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """The state of one partition of a topic."""

    partition: int
    head_seq: int
    earliest_seq: int
    next_seq: int
    count: int
    bytes: int
    last_write_ts_ms: int | None


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """Numbers of jobs of a queue: `ready` to be claimed, `in_flight` under a lease, `dead_lettered` so far.

    `delayed` jobs are not due yet; of these, `retrying` jobs were delivered before. `exhausted` jobs have no deliveries
    left and are waiting for the dead-letter topic to accept them.
    """

    ready: int
    in_flight: int
    dead_lettered: int
    delayed: int = 0
    retrying: int = 0
    exhausted: int = 0


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """The full state of a topic; positions and counters are those of `partition`."""

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
    placement: str = ""
    zone: str = ""


@dataclass(frozen=True, slots=True)
class TopicSummary:
    """An entry in a list of topics."""

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
    """The configuration of a router. `tag` or `tag_prefix` is its filter; if both are None, everything is copied."""

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
    """A router and its progress. `last_error` is the error that has stopped it, if any."""

    router: str
    config: RouterConfig
    forwarded_total: int
    lag_records: int
    last_error: str | None


@dataclass(frozen=True, slots=True)
class RouterSummary:
    """An entry in a list of routers."""

    router: str
    source: str
    dest: str
    guarantee: str
    forwarded_total: int
    lag_records: int


@dataclass(frozen=True, slots=True)
class Settled:
    """The result of an ack, nack or extend: the number of jobs it applied to, and the seqs whose leases the worker does
    not hold (any more).

    After a nack, the jobs `dead_lettered` are not delivered again; neither are those `exhausted`, which are waiting for
    the dead-letter topic to accept them.
    """

    done: int
    skipped: tuple[int, ...]
    dead_lettered: tuple[int, ...] = ()
    exhausted: tuple[int, ...] = ()


JobState = Literal["ready", "in_flight", "delayed", "exhausted"]


@dataclass(frozen=True, slots=True)
class Attempt:
    """A failed delivery of a job: its number, its end, the worker, and the reason.

    The server records `lease expired` or `connection ended` as the reason if no worker reported one; it is empty if
    none was given.
    """

    delivery: int
    ended_at_ts_ms: int
    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class JobView:
    """A read-only view of a job."""

    record: Record
    state: str
    deliveries: int
    priority: int
    node: str | None
    deadline_ts_ms: int | None
    ready_at_ts_ms: int | None
    attempts: tuple[Attempt, ...] = ()
    """The latest failed deliveries, oldest first."""


@dataclass(frozen=True, slots=True)
class GroupPosition:
    """The position of a consumer group in a partition: all records up to `from_seq` are processed.

    A Kafka client may commit beyond `head_seq`: that counts as the head, with a `lag` of 0.
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
    """An entry in a list of consumer groups."""

    group: str
    state: str
    members: int
    positions: int
    last_commit_ts_ms: int | None
