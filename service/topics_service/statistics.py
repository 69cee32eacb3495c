"""Counters as plain integers: cheap where things happen, read as they stand when somebody asks.

Nothing here knows how metrics are shown; `api.metrics` does.
"""

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path


class Histogram:
    """Number of values in each bucket, and their sum. A bucket holds values up to its bound.

    One thread observes; concurrent readers may see the sum a moment before the count.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` ascend; one more bucket takes values above the last."""
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.sum: float = 0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.sum += value
        self.counts[bisect_left(self.bounds, value)] += 1

    @property
    def count(self) -> int:
        """Number of values."""
        return sum(self.counts)


@dataclass(slots=True)
class CacheStatistics:
    """Hits and misses of a cache."""

    hits: int = 0
    misses: int = 0


@dataclass(slots=True)
class SqlStatistics:
    """Statements of SQL by kind, such as `Insert`, requests that failed, rows, statements that took too long, and the
    time that analytical queries took. `sessions` of other nodes have a transaction or results under way here.

    Claims of consumers: all, those that are open, and those that were not acknowledged in time.
    """

    statements: Counter[str] = field(default_factory=Counter)
    failed: int = 0
    rows_read: int = 0
    rows_changed: int = 0
    timeouts: int = 0
    analysis_seconds: float = 0.0
    sessions: int = 0
    claims: int = 0
    open_claims: int = 0
    expired_claims: int = 0


@dataclass(slots=True)
class LiveStatistics:
    """Live queries that are followed, and what they were given since the start: rows of snapshots, changes, gaps."""

    queries: int = 0
    rows: int = 0
    changes: int = 0
    gaps: int = 0


@dataclass(slots=True)
class WatchStatistics:
    """Connected streams, and frames sent to watchers since the start.

    `connections` are long-lived ones of every kind (SSE, WebSocket, gRPC streams), `streams` the subscriptions on them,
    and `sessions` those of `POST /v0/watch`, whether connected or not. `paced` counts the advisories about pacing,
    `slow` the frames that took more than 5 s to send. Those `elsewhere` are of other processes of the same server.
    """

    connections: int = 0
    sessions: int = 0
    streams: int = 0
    frames: int = 0
    records: int = 0
    paced: int = 0
    slow: int = 0
    connections_elsewhere: int = 0
    sessions_elsewhere: int = 0


@dataclass(frozen=True, slots=True)
class WatchLag:
    """Lag of streams behind the heads of their topics, in seqs: in total, and the largest.

    `behind` is how many are not at the head; `truncated` says that there are too many streams to look at all.
    """

    records: int = 0
    largest: int = 0
    behind: int = 0
    truncated: bool = False


@dataclass(slots=True)
class CheckpointStatistics:
    """Checkpoints since the start: how many were made and how many failed; of the last one that was made, when it was
    (seconds since the epoch) and how long it took."""

    made: int = 0
    failed: int = 0
    last_time: float = 0.0
    last_seconds: float = 0.0

    def counted(self, make: Callable[[Path], None]) -> Callable[[Path], None]:
        """Return `make` with each checkpoint counted."""

        def count(path: Path) -> None:
            began = time.monotonic()
            try:
                make(path)
            except BaseException:
                self.failed += 1
                raise
            self.made += 1
            self.last_time, self.last_seconds = time.time(), time.monotonic() - began

        return count


@dataclass(slots=True)
class ArchiveStatistics:
    """The archive of the write-ahead log: its bytes, and when its oldest file was written last (seconds since 1970,
    0 for none)."""

    bytes: int = 0
    oldest_time: float = 0.0


@dataclass(slots=True)
class SpaceStatistics:
    """The disk: whether writes are refused for want of space, how many were, and how often room was made on it."""

    short: bool = False
    refused: int = 0
    rounds: int = 0


@dataclass(slots=True)
class TraceStatistics:
    """Spans since the start: those that ended and are to be exported, and those that were exported or could not be.

    The rest waits, or was dropped because the queue was full.
    """

    ended: int = 0
    exported: int = 0
    failed: int = 0


_REQUEST_BOUNDS_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30)


class RequestStatistics:
    """The requests of one protocol: those under way, and how long the others took, by RPC and outcome.

    Both labels must come from small fixed sets: pairs are never removed.
    """

    __slots__ = ("finished", "in_flight")

    def __init__(self) -> None:
        self.in_flight = 0
        self.finished: dict[tuple[str, str], Histogram] = {}

    def observe(self, rpc: str, outcome: str, seconds: float) -> None:
        """Count a request that has ended."""
        key = (rpc, outcome)
        histogram = self.finished.get(key)
        if histogram is None:
            histogram = self.finished[key] = Histogram(_REQUEST_BOUNDS_SECONDS)
        histogram.sum += seconds  # as Histogram.observe, without its call
        histogram.counts[bisect_left(_REQUEST_BOUNDS_SECONDS, seconds)] += 1


@dataclass(slots=True)
class KafkaStatistics:
    """The Kafka listener since the start: requests by API and outcome, error codes by API and error name, bytes both
    ways, and refused or closed connections by reason.

    `connections` are open now, `frame_bytes` the memory of requests that are being received or served. `out_of_range`
    are fetches of offsets that are not there (any more), `gap_records` offsets that fetches passed over for a gap.
    """

    requests: RequestStatistics = field(default_factory=RequestStatistics)
    errors: Counter[tuple[str, str]] = field(default_factory=Counter)
    closed: Counter[str] = field(default_factory=Counter)
    connections: int = 0
    frame_bytes: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    out_of_range: int = 0
    gap_records: int = 0


@dataclass(slots=True)
class PostgresStatistics:
    """The PostgreSQL listener since the start: statements by their first word and outcome, errors by SQLSTATE, bytes
    both ways, connections that the server ended by reason, and statements that cancel requests named. Of SQL that runs
    at another process, what was `lost` with its process by kind, and the cancel requests that were `passed_on`.

    `connections` are open now, `receive_bytes` the memory of messages that arrive.
    """

    requests: RequestStatistics = field(default_factory=RequestStatistics)
    errors: Counter[str] = field(default_factory=Counter)
    closed: Counter[str] = field(default_factory=Counter)
    connections: int = 0
    receive_bytes: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    canceled: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    passed_on: int = 0


_PUT_BOUNDS_US = (
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    10_000_000,
)

NODE_ROLES = ("starting", "following", "taking_over", "owning", "handing_over", "absent")
"""The roles of a node of a cluster for a shard; `absent` is that of one that keeps no replica of it."""


@dataclass(slots=True)
class ShardStatistics:
    """A shard at a node of a cluster: the node's role for it, where it stands in the log of objects, and what it did.

    `number` is that of the newest object that is acknowledged, at the owner, or applied, at a follower. `behind` counts
    the objects that a follower knows of and has not applied, `followers` those of the owner that are caught up. `puts`
    are the times until the object store had an object, in us.
    """

    role: str = "starting"
    epoch: int = 0
    number: int = 0
    behind: int = 0
    followers: int = 0
    unacknowledged_bytes: int = 0
    takeovers: int = 0
    handovers: int = 0
    fenced: int = 0
    probes: int = 0
    puts: Histogram = field(default_factory=lambda: Histogram(_PUT_BOUNDS_US))


@dataclass(slots=True)
class NodeStatistics:
    """A node of a cluster, and its shards by number.

    `follower_reads` are reads that it has served from its own rows, `refused` the requests that owners did not take
    from it. `lease_seconds` is what is left of the lease; below 0 it has ended, or etcd is away.
    """

    nodes: int = 0
    lease_seconds: float = 0.0
    follower_reads: int = 0
    forwarded: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    shards: list[ShardStatistics] = field(default_factory=lambda: [ShardStatistics()])
