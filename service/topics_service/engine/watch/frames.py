"""A subscription and the frames of its stream, the same for gRPC, SSE and WebSocket (docs/contract.md, 8)."""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from topics_service.engine.errors import Reason
from topics_service.engine.model import Slice, TagMatch, Tombstone
from topics_service.engine.watch.topic_partition import format_topic_partition

_INVOLUNTARY: Final = frozenset({"cap", "ttl", "mixed"})


class _OfTopic(Struct, frozen=True, kw_only=True):
    """A frame about one partition of a topic: `partition` is None where the topic has no other."""

    topic: str
    partition: int | None = None

    @property
    def topic_partition(self) -> str:
        """The key of its cursor, see `topic_partition`."""
        return format_topic_partition(self.topic, self.partition or 0)


class WatchTopic(Struct, frozen=True, kw_only=True):
    """The start in one topic: after `from_seq`, or with `tail` at the head of this moment."""

    from_seq: int = 0
    tail: bool = False


class WatchRequest(Struct, kw_only=True):
    """Follow many topics (docs/contract.md, 8.2).

    The keys of `topics` are names or, beyond the contract, a prefix and a `*` (`tenant42:*`, or `*` for everything):
    every topic that starts with it, also those created later, which are followed from their first record. `topic@3` is
    partition 3 of a topic (see `topic_partition`); names and prefixes mean partition 0. `cursor` maps the same keys to
    the last seq processed and replaces their start; a topic that it lacks although it has others of the same pattern
    is new, and is read from its first record too.

    `limit` and `max_batch_bytes` bound one frame of records: a limit of 0 means 256 and is clamped to 1000, None bytes
    mean 262144 and 0 means 1 MiB, clamped to 8 MiB. `heartbeat_ms` None means no heartbeats. `nodes` drops records
    written by these nodes, `filter` keeps only those with a matching tag. `strong` holds records back until they are
    durable by fsync. `lenient` ignores unknown topics. `include_tags`, `include_metas` and `include_data` tell the
    protocol layer which columns to send.
    """

    topics: dict[str, WatchTopic]
    cursor: dict[str, int] = {}
    nodes: tuple[bytes, ...] = ()
    filter: TagMatch | None = None
    limit: int = 0
    max_batch_bytes: int | None = None
    heartbeat_ms: int | None = None
    strong: bool = False
    lenient: bool = False
    include_tags: bool = False
    include_metas: bool = True
    include_data: bool = True


class Position(Struct, frozen=True, kw_only=True):
    """The state of one topic when the subscription began: the reader's cursor, and the log."""

    from_seq: int
    head_seq: int
    earliest_seq: int


class RecordsFrame(_OfTopic, frozen=True, kw_only=True):
    """New records of one topic, as block slices in seq order.

    `from_seq` is the cursor before the read; `to_seq` the one after it, which can lie beyond the last record when
    those behind it were filtered out.
    """

    slices: Sequence[Slice]
    from_seq: int
    to_seq: int
    head_seq: int


class TombstoneFrame(_OfTopic, frozen=True, kw_only=True):
    """A gap in one topic. `opening` says that the stream had not read the topic before: the cursor was stale."""

    tombstone: Tombstone
    opening: bool

    @property
    def too_old(self) -> bool:
        """Return whether SSE and gRPC report `from_seq_too_old`: not for another topic's cursor or a source's loss."""
        return self.opening and self.tombstone.reason in _INVOLUNTARY


class CaughtUpFrame(_OfTopic, frozen=True, kw_only=True):
    """One topic is drained to `head_seq`: once for each change from backlog to live."""

    head_seq: int


class TopicDeletedFrame(_OfTopic, frozen=True, kw_only=True):
    """The last frame of a deleted topic. `head_seq` is the highest seq it had."""

    head_seq: int
    reason: str = "deleted"


class HeartbeatFrame(Struct, frozen=True, kw_only=True):
    """Nothing else was sent for the heartbeat interval; `ts` is the server's time in ms."""

    ts: int


class ErrorFrame(Struct, frozen=True, kw_only=True):
    """Something about the stream itself; a `terminal` one is its last frame. No topics means the whole stream.

    `topics` are topic partitions. `code` is HTTP-aligned: 409 not a queue any more, 410 session removed, 429 paced or
    too many topics, 500 a topic that can't be read, 503 shutting down.
    """

    reason: Reason
    code: int
    message: str
    retry_after_ms: int | None = None
    topics: tuple[str, ...] = ()
    terminal: bool = True


WatchFrame = RecordsFrame | TombstoneFrame | CaughtUpFrame | TopicDeletedFrame
Frame = WatchFrame | HeartbeatFrame | ErrorFrame
