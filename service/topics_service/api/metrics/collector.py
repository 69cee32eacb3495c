"""Metrics of the server: one snapshot, as Prometheus text or JSON (docs/contract.md, 11).

Counters are kept where events happen and read here on request. `docs/metrics.md` describes every metric;
a test keeps it in step.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import msgspec
from prometheus_client.metrics_core import Metric

from topics_service.api.metrics.exposition import Table, counter, gauge, histogram, of_process, render
from topics_service.api.metrics.families import Disk, cluster, kafka, live, postgres, requests, sql, storage, traces
from topics_service.api.scheduling.commit import CommitStatistics
from topics_service.engine.engine import Engine
from topics_service.engine.errors import TopicsError
from topics_service.engine.model import QueueCounters
from topics_service.statistics import (
    ArchiveStatistics,
    CacheStatistics,
    CheckpointStatistics,
    Histogram,
    KafkaStatistics,
    LiveStatistics,
    NodeStatistics,
    PostgresStatistics,
    RequestStatistics,
    SpaceStatistics,
    SqlStatistics,
    TraceStatistics,
    WatchLag,
    WatchStatistics,
)
from topics_service.storage.properties import StoreState

TEXT_TYPE: Final = "text/plain; version=0.0.4"
JSON_TYPE: Final = "application/json"
TOPICS_SHOWN: Final = 1000
ROUTERS_SHOWN: Final = 1000
POSITIONS_SHOWN: Final = 1000


class Lag(Protocol):
    """The event loop's lag, in ms: its average of late, its last measurement and all of them."""

    lag_ms: float
    last_ms: float
    histogram: Histogram


class Cache(Protocol):
    """A cache that counts its hits; `size` is in bytes."""

    @property
    def statistics(self) -> CacheStatistics: ...

    @property
    def size(self) -> int: ...


@dataclass
class _NoDisk:
    free_bytes: int = 0


@dataclass
class _NoLag:
    lag_ms: float = 0.0
    last_ms: float = 0.0
    histogram: Histogram = field(default_factory=lambda: Histogram(()))


@dataclass(frozen=True, kw_only=True)
class MetricsSources:
    """Measurements of a server outside its engine. The defaults suit an engine without a server around it."""

    lag: Lag = field(default_factory=_NoLag)
    disk: Disk = field(default_factory=_NoDisk)
    min_free_bytes: int = 0
    space: SpaceStatistics = field(default_factory=SpaceStatistics)
    store: Callable[[], StoreState] = StoreState
    wal_switches: Callable[[], int] = lambda: 0
    request_bytes: Callable[[], int] = lambda: 0
    traces: TraceStatistics = field(default_factory=TraceStatistics)
    node: NodeStatistics | None = None


class Exposition(Protocol):
    """The metrics of a server, whatever it is at present, and the counters that protocols keep."""

    @property
    def http(self) -> RequestStatistics: ...
    @property
    def grpc(self) -> RequestStatistics: ...
    @property
    def refusals(self) -> Counter[tuple[str, str]]: ...
    @property
    def errors(self) -> Counter[str]: ...
    async def text(self, allowed: tuple[str, ...] | None = None) -> bytes:
        """See Counters."""
        ...

    async def json(self) -> bytes:
        """See Counters."""
        ...


class Counters(ABC):
    """The counters of the protocols, with the means to show them beside all others. Belongs to the event loop.

    Requests are counted into `http`, `grpc` and `kafka`, HTTP error codes into `errors`, streams into `watch`. A
    protocol with a cache adds it to `caches`.
    """

    def __init__(self) -> None:
        self.http = RequestStatistics()
        self.grpc = RequestStatistics()
        self.kafka = KafkaStatistics()
        self.postgres = PostgresStatistics()
        self.watch = WatchStatistics()
        self.refusals: Counter[tuple[str, str]] = Counter()  # by protocol and limit of a key: api.access.quota
        self.errors: Counter[str] = Counter()
        self.sql = SqlStatistics()
        self.live = LiveStatistics()
        self.caches: dict[str, Cache] = {}

    @abstractmethod
    async def text(self, allowed: tuple[str, ...] | None = None) -> bytes:
        """The Prometheus text exposition, of type TEXT_TYPE. All of it is read at once, most is written on a thread.

        Series per topic are those of names that start with one of `allowed`, where it is given; series per router
        those of routers whose name, source and destination do; series per position those whose group and topic do.
        """

    @abstractmethod
    async def json(self) -> bytes:
        """The aggregates as one JSON object, without a block per topic."""

    def families(self, sources: MetricsSources, behind: WatchLag) -> Iterator[Metric]:
        """The families of the protocols, and of what they share: the loop, traces and caches."""
        yield from traces(sources.traces)
        yield from requests(self.http, self.grpc, self.errors, self.refusals)
        yield from kafka(self.kafka)
        yield from postgres(self.postgres)
        yield from sql(self.sql)
        yield from live(self.live)
        yield gauge("request_bytes", "Memory of requests over HTTP and gRPC.", sources.request_bytes())
        watch = self.watch
        yield gauge("watch_streams", "Subscriptions that are followed.", watch.streams)
        yield counter("watch_frames", "Frames that streams were given, heartbeats too.", watch.frames)
        yield counter("watch_records", "Records in those frames.", watch.records)
        yield counter("watch_paced", "Streams paced for overload.", watch.paced)
        yield counter("watch_slow", "Frames that a client took more than 5 s to take.", watch.slow)
        yield gauge("watch_lag_records", "Seqs that all streams together are behind.", behind.records)
        yield gauge("watch_lag_records_max", "Seqs that the slowest stream is behind.", behind.largest)
        yield gauge("watch_streams_behind", "Streams that are not at the head.", behind.behind)
        yield gauge("watch_lag_truncated", "1 when there are too many streams to look at all.", behind.truncated)
        lag = sources.lag
        yield gauge("event_loop_lag_ms", "Lag of the event loop, averaged over half a second.", lag.lag_ms)
        yield gauge("event_loop_lag_last_ms", "Lag of the event loop as measured last.", lag.last_ms)
        yield histogram("event_loop_lag_measured_ms", "Every measurement of the lag.", [((), lag.histogram)])
        caches = [((name,), cache) for name, cache in self.caches.items()]
        hits = [(labels, cache.statistics.hits) for labels, cache in caches]
        misses = [(labels, cache.statistics.misses) for labels, cache in caches]
        yield counter("cache_hits", "Look-ups that a cache answered.", hits, ("cache",))
        yield counter("cache_misses", "Look-ups that a cache could not answer.", misses, ("cache",))
        sizes = [(labels, cache.size) for labels, cache in caches]
        yield gauge("cache_bytes", "Memory that a cache uses.", sizes, ("cache",))


class Metrics(Counters):
    """Reads the counters of the engine, the commit thread and the protocols. Answers in every state of the server.

    Start-up sets `recovery_seconds`.
    """

    def __init__(
        self,
        engine: Engine,
        commit: CommitStatistics,
        sources: MetricsSources | None = None,
        watch_lag: Callable[[], WatchLag] = WatchLag,
    ) -> None:
        super().__init__()
        self._engine = engine
        self._commit = commit
        self._sources = sources or MetricsSources()
        self._watch_lag = watch_lag
        self._started = time.monotonic()
        self.checkpoints = CheckpointStatistics()
        self.archive = ArchiveStatistics()
        self.recovery_seconds = 0.0
        self.caches["blocks"] = engine.blocks

    async def text(self, allowed: tuple[str, ...] | None = None) -> bytes:
        """See Counters."""
        tables, families = self.tables(allowed), [*self.of_engine(), *of_process()]  # the first expires records
        texts = [table.text() for table in tables]
        return await asyncio.to_thread(render, families) + b"".join(texts)

    async def json(self) -> bytes:
        """See Counters."""
        return msgspec.json.encode(self.snapshot())

    def tables(self, allowed: tuple[str, ...] | None) -> list[Table]:
        """The series per topic, queue, router and position; see `text`."""
        return [*self._per_topic(allowed), self._per_router(allowed), self._per_position(allowed)]

    def snapshot(self) -> dict[str, Any]:
        """The members of the JSON object; O(1), however many topics there are."""
        engine, commit = self._engine, self._commit
        writer, ready, latency = engine.writer, engine.ready(), commit.latency
        fsyncs = latency.count
        return {
            "topics": ready.topics,
            **{f"topics_{name}": count for name, count in engine.catalog.counts.by_class.items()},
            "routers": len(engine.routers),
            "records_live": writer.total_records,
            "bytes_live": writer.total_bytes,
            "queue_topics": engine.catalog.counts.queues,
            "queue_leases_in_flight": engine.queues.leases_in_flight,
            "sse_connections": self.watch.connections,
            "watch_sessions": self.watch.sessions,
            "ready": ready.ready,
            "replay_progress": ready.replay_progress,
            "uptime_ms": int((time.monotonic() - self._started) * 1e3),
            "wal": {
                "fsyncs": fsyncs,
                "frames": writer.statistics.batches,
                "batches": writer.statistics.batches,
                "bytes_written": writer.statistics.bytes,
                "rotations": self._sources.wal_switches(),
                "queue_depth": commit.waiting,
                "queue_depth_peak": commit.waiting_peak,
                "submit_full_total": writer.statistics.stalls,
                "read_only": writer.failure is not None,
                "fsync_count": fsyncs,
                "fsync_micros_total": int(latency.sum),
            },
        }

    def of_engine(self) -> Iterator[Metric]:
        """All families but those of the process."""
        now = self.snapshot()
        yield from self._aggregates(now)
        yield from self._wal(now["wal"])
        yield from self._extras()

    def _aggregates(self, now: dict[str, Any]) -> Iterator[Metric]:
        yield gauge("topics", "Topics that exist.", now["topics"])
        by_class = [((name,), count) for name, count in self._engine.catalog.counts.by_class.items()]
        yield gauge("topics_by_class", "Topics by durability class.", by_class, ("class",))
        yield gauge("routers", "Routers that exist.", now["routers"])
        yield gauge("routers_blocked", "Routers blocked by an error.", self._engine.routers.blocked)
        routers_truncated = now["routers"] > ROUTERS_SHOWN
        yield gauge("router_metrics_truncated", "1 when there are more routers than series.", routers_truncated)
        groups = self._engine.groups
        yield gauge("groups", "Consumer groups that exist.", len(groups))
        positions_truncated = groups.index.positions > POSITIONS_SHOWN
        yield gauge("group_metrics_truncated", "1 when there are more positions than series.", positions_truncated)
        yield gauge("records_live", "Live records in all topics.", now["records_live"])
        yield gauge("bytes_live", "Bytes of the live records, data and meta.", now["bytes_live"])
        yield gauge("queue_topics", "Topics of type queue.", now["queue_topics"])
        yield gauge("queue_leases_in_flight", "Leases that workers hold.", now["queue_leases_in_flight"])
        yield gauge("sse_connections", "Open streams: SSE, WebSocket and gRPC.", now["sse_connections"])
        yield gauge("watch_sessions", "Watch sessions that exist.", now["watch_sessions"])
        yield gauge("ready", "1 when the server takes work.", now["ready"])
        yield gauge("recovery_progress", "The part of recovery that is done.", now["replay_progress"])
        yield gauge("uptime_ms", "Time since the start, in milliseconds.", now["uptime_ms"])
        truncated = now["topics"] > TOPICS_SHOWN
        yield gauge("topic_metrics_truncated", "1 when there are more topics than series per topic.", truncated)

    def _per_topic(self, allowed: tuple[str, ...] | None) -> list[Table]:
        shown = list(self._engine.sample(TOPICS_SHOWN, allowed))
        states = [s for _, s in shown]
        columns = [
            ("topic_head_seq", "Highest assigned seq per topic.", [s.head for s in states]),
            ("topic_earliest_seq", "First live seq per topic.", [s.earliest for s in states]),
            ("topic_records_live", "Live records per topic.", [s.count for s in states]),
            ("topic_bytes_live", "Bytes of the live records per topic.", [s.bytes for s in states]),
        ]
        queues = [(name, state) for name, _ in shown if (state := self._queue(name)) is not None]
        jobs = [
            ("topic_queue_ready", "Jobs that wait for a worker, per queue.", [state.ready for _, state in queues]),
            ("topic_queue_in_flight", "Jobs that a worker holds, per queue.", [state.in_flight for _, state in queues]),
            ("topic_queue_delayed", "Jobs that are not due yet, per queue.", [state.delayed for _, state in queues]),
            (
                "topic_queue_exhausted",
                "Jobs after their last delivery that the dead-letter topic has not taken yet, per queue.",
                [state.exhausted for _, state in queues],
            ),
            (
                "topic_queue_oldest_ready_ms",
                "Age of the oldest job that waits.",
                [self._age(name) for name, _ in queues],
            ),
        ]
        return [
            Table(("topic",), [(name,) for name, _ in shown], columns),
            Table(("topic",), [(name,) for name, _ in queues], jobs),
        ]

    def _per_router(self, allowed: tuple[str, ...] | None) -> Table:
        shown = list(self._engine.routers.sample(ROUTERS_SHOWN, allowed))
        columns = [
            ("router_lag_records", "Seqs of the source to be forwarded, per router.", [router.lag for router in shown]),
            ("router_forwarded_total", "Records delivered, per router.", [router.forwarded for router in shown]),
        ]
        return Table(("router",), [(router.name,) for router in shown], columns)

    def _per_position(self, allowed: tuple[str, ...] | None) -> Table:
        shown = list(self._engine.groups.index.lags(POSITIONS_SHOWN, allowed))
        series: list[tuple[str, ...]] = [(group, topic, str(partition)) for group, topic, partition, _ in shown]
        column = ("group_lag_records", "Seqs behind the position of a group.", [lag for *_, lag in shown])
        return Table(("group", "topic", "partition"), series, [column])

    def _queue(self, name: str) -> QueueCounters | None:
        """The counters of a topic that is a queue, if they can be had."""
        engine, topic = self._engine, self._engine.catalog.find(name)
        if topic is None or topic.config.type != "queue" or engine.recovered < 1.0:
            return None
        try:
            return engine.queues.state(topic)
        except TopicsError:  # the store fails
            return None

    def _age(self, name: str) -> int:
        """The age of a queue's oldest ready job, 0 if it can't be read."""
        topic = self._engine.catalog.find(name)
        try:
            return self._engine.queues.oldest_ready_ms(topic) if topic is not None else 0
        except TopicsError:
            return 0

    def _wal(self, now: dict[str, Any]) -> Iterator[Metric]:
        yield counter("wal_frames", "Write batches appended to the write-ahead log.", now["frames"])
        yield counter("wal_batches", "The same: each batch is appended by a write of its own.", now["batches"])
        yield counter("wal_fsyncs", "Fsyncs of the write-ahead log for waiting writes.", now["fsyncs"])
        yield counter("wal_bytes_written", "Bytes of the write batches.", now["bytes_written"])
        yield counter("wal_rotations", "New log files that were seen, a lower bound.", now["rotations"])
        yield gauge("wal_queue_depth", "Calls that wait for an fsync.", now["queue_depth"])
        yield gauge("wal_queue_depth_peak", "Most calls that ever waited for an fsync.", now["queue_depth_peak"])
        yield counter("wal_submit_full", "Write batches refused for a stall of the store.", now["submit_full_total"])
        yield gauge("wal_read_only", "1 after a storage failure: every write is refused.", now["read_only"])
        latency = [((), self._commit.latency)]
        yield histogram("wal_fsync_latency_us", "Duration of the fsyncs, in microseconds.", latency)

    def _extras(self) -> Iterator[Metric]:
        group = [((), self._commit.group)]
        yield histogram("commit_group_writes", "Write batches covered by each fsync.", group)
        yield from storage(self._sources, self.checkpoints, self.archive, self.recovery_seconds)
        yield from self.families(self._sources, self._watch_lag())
        if self._sources.node is not None:
            yield from cluster(self._sources.node)


class NodeMetrics:
    """The metrics of a node of a cluster while it has no engine: of the node, its requests and the process."""

    def __init__(self, node: NodeStatistics, ready: Callable[[], bool]) -> None:
        self._node = node
        self._ready = ready
        self._started = time.monotonic()
        self.http = RequestStatistics()
        self.grpc = RequestStatistics()
        self.refusals: Counter[tuple[str, str]] = Counter()
        self.errors: Counter[str] = Counter()

    async def text(self, allowed: tuple[str, ...] | None = None) -> bytes:
        """See Metrics."""
        ready = gauge("ready", "1 when the server takes work.", self._ready())
        uptime = gauge("uptime_ms", "Time since the start, in milliseconds.", self._uptime_ms)
        counted = requests(self.http, self.grpc, self.errors, self.refusals)
        return await asyncio.to_thread(render, [ready, uptime, *counted, *cluster(self._node), *of_process()])

    async def json(self) -> bytes:
        """See Metrics."""
        return msgspec.json.encode({"ready": self._ready(), "uptime_ms": self._uptime_ms})

    @property
    def _uptime_ms(self) -> int:
        return int((time.monotonic() - self._started) * 1e3)
