"""Metric families that only read counters: of requests, the storage, Kafka, SQL and a node of a cluster."""

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from prometheus_client.metrics_core import Metric

from topics_service import __version__
from topics_service.api.metrics.exposition import counter, gauge, histogram
from topics_service.statistics import (
    NODE_ROLES,
    ArchiveStatistics,
    CheckpointStatistics,
    Histogram,
    KafkaStatistics,
    LiveStatistics,
    NodeStatistics,
    PostgresStatistics,
    RequestStatistics,
    ShardStatistics,
    SpaceStatistics,
    SqlStatistics,
    TraceStatistics,
)
from topics_service.storage.properties import StoreState


class Disk(Protocol):
    """The disk of the data directory."""

    free_bytes: int


class Sources(Protocol):
    """Sources of the storage metrics; see `MetricsSources`."""

    @property
    def disk(self) -> Disk: ...
    @property
    def min_free_bytes(self) -> int: ...
    @property
    def space(self) -> SpaceStatistics: ...
    @property
    def store(self) -> Callable[[], StoreState]: ...


def storage(
    sources: Sources, checkpoints: CheckpointStatistics, archive: ArchiveStatistics, recovery_seconds: float
) -> Iterator[Metric]:
    """Disk, RocksDB, checkpoints, recovery and version."""
    store = sources.store()
    yield gauge("disk_free_bytes", "Free space of the data directory's disk.", sources.disk.free_bytes)
    yield gauge("disk_min_free_bytes", "Below so much free space writes are refused.", sources.min_free_bytes)
    yield gauge("disk_short", "1 while writes are refused for want of free space.", sources.space.short)
    yield counter("disk_refused_writes", "Writes that were refused for want of free space.", sources.space.refused)
    yield counter("disk_reclaims", "Times that room was made on the disk.", sources.space.rounds)
    yield gauge("store_level0_files", "Tables of level 0, in the family with most.", store.level0_files)
    yield gauge("store_memtable_bytes", "Memory of what is not in tables yet.", store.memtable_bytes)
    yield gauge("store_table_bytes", "Size of all tables.", store.table_bytes)
    yield gauge("store_wal_bytes", "Size of the write-ahead log's files.", store.wal_bytes)
    yield gauge("store_block_cache_bytes", "Memory of the store's block cache.", store.block_cache_bytes)
    yield gauge("store_compactions_running", "Compactions under way.", store.compactions)
    yield gauge("store_flushes_running", "Flushes of memory to tables under way.", store.flushes)
    pending = store.compaction_pending_bytes
    yield gauge("store_compaction_pending_bytes", "Bytes that compactions have to rewrite, by estimate.", pending)
    yield gauge("store_write_stopped", "1 while the store takes no writes.", store.write_stopped)
    yield gauge("store_background_errors", "Errors of background work.", store.background_errors)
    made = [(("done",), checkpoints.made), (("failed",), checkpoints.failed)]
    yield counter("checkpoints", "Checkpoints, made for backups.", made, ("outcome",))
    yield gauge("checkpoint_last_time_seconds", "Time of the last one.", checkpoints.last_time)
    yield gauge("checkpoint_last_seconds", "Duration of the last one.", checkpoints.last_seconds)
    yield gauge("wal_archive_bytes", "Size of the log files that are kept for backups.", archive.bytes)
    oldest = archive.oldest_time
    yield gauge("wal_archive_oldest_time_seconds", "Time of the last write to the oldest of them.", oldest)
    yield gauge("recovery_seconds", "Duration of the recovery at the start.", recovery_seconds)
    yield gauge("build_info", "1, with the version as label.", [((__version__,), 1)], ("version",))


def traces(statistics: TraceStatistics) -> Iterator[Metric]:
    """Traces."""
    by_state = ("ended", statistics.ended), ("exported", statistics.exported), ("failed", statistics.failed)
    spans = [((state,), count) for state, count in by_state]
    yield counter("trace_spans", "Spans that ended, were exported, or could not be.", spans, ("state",))


def kafka(statistics: KafkaStatistics) -> Iterator[Metric]:
    """The Kafka listener."""
    finished = statistics.requests.finished.items()
    yield histogram("kafka_request_seconds", "Duration of Kafka requests.", finished, ("api", "outcome"))
    yield gauge("kafka_requests_in_flight", "Kafka requests under way.", statistics.requests.in_flight)
    errors = list(statistics.errors.items())
    yield counter("kafka_errors", "Error codes in responses to Kafka clients.", errors, ("api", "error"))
    yield gauge("kafka_connections", "Open connections of Kafka clients.", statistics.connections)
    closed = [((reason,), count) for reason, count in statistics.closed.items()]
    yield counter("kafka_connections_closed", "Kafka connections that the server ended.", closed, ("reason",))
    yield gauge("kafka_frame_bytes", "Memory of Kafka requests that arrive or are served.", statistics.frame_bytes)
    yield counter("kafka_received_bytes", "Bytes of requests from Kafka clients.", statistics.bytes_in)
    yield counter("kafka_sent_bytes", "Bytes of responses to Kafka clients.", statistics.bytes_out)
    yield counter("kafka_out_of_range", "Fetches of offsets that are not there.", statistics.out_of_range)
    yield counter("kafka_gap_records", "Lost records that fetches have passed over.", statistics.gap_records)


def postgres(statistics: PostgresStatistics) -> Iterator[Metric]:
    """The PostgreSQL listener."""
    finished = statistics.requests.finished.items()
    meaning = "Duration of statements of PostgreSQL clients."
    yield histogram("postgres_statement_seconds", meaning, finished, ("statement", "outcome"))
    errors = [((sqlstate,), count) for sqlstate, count in statistics.errors.items()]
    yield counter("postgres_errors", "Errors that PostgreSQL clients got, by SQLSTATE.", errors, ("sqlstate",))
    yield gauge("postgres_connections", "Open connections of PostgreSQL clients.", statistics.connections)
    closed = [((reason,), count) for reason, count in statistics.closed.items()]
    yield counter("postgres_connections_closed", "PostgreSQL connections that the server ended.", closed, ("reason",))
    meaning = "Memory of messages that arrive from PostgreSQL clients."
    yield gauge("postgres_receive_bytes", meaning, statistics.receive_bytes)
    yield counter("postgres_received_bytes", "Bytes of messages from PostgreSQL clients.", statistics.bytes_in)
    yield counter("postgres_sent_bytes", "Bytes of messages to PostgreSQL clients.", statistics.bytes_out)
    yield counter("postgres_canceled", "Statements that cancel requests named.", statistics.canceled)
    meaning = "Cancel requests that were passed on to another process or node."
    yield counter("postgres_cancels_passed_on", meaning, statistics.passed_on)
    lost = [((what,), count) for what, count in statistics.lost.items()]
    yield counter(
        "postgres_lost", "Transactions, results and outcomes lost with the owner of SQL's shard.", lost, ("what",)
    )


def sql(statistics: SqlStatistics) -> Iterator[Metric]:
    """The families of SQL."""
    kinds = [((kind,), count) for kind, count in statistics.statements.items()]
    yield counter("sql_statements", "Statements of SQL that were begun, by kind.", kinds, ("statement",))
    yield counter("sql_failed_requests", "Requests of SQL that ended with an error.", statistics.failed)
    yield counter("sql_timeouts", "Statements that took longer than they may.", statistics.timeouts)
    yield counter("sql_rows_read", "Rows in results of SELECT.", statistics.rows_read)
    yield counter("sql_rows_changed", "Rows that were inserted, updated or deleted.", statistics.rows_changed)
    yield counter("sql_analysis_seconds", "Time that analytical queries took.", statistics.analysis_seconds)
    meaning = "Sessions of connections elsewhere with a transaction or a result under way here."
    yield gauge("sql_sessions", meaning, statistics.sessions)
    yield counter("consumer_claims", "Claims that consumers were given.", statistics.claims)
    yield gauge("consumer_open_claims", "Claims that consumers hold.", statistics.open_claims)
    expired = "Claims that were not acknowledged in time, whose messages are handed out again."
    yield counter("consumer_expired_claims", expired, statistics.expired_claims)


def live(statistics: LiveStatistics) -> Iterator[Metric]:
    """The families of live queries."""
    yield gauge("live_queries", "Live queries that are followed.", statistics.queries)
    yield counter("live_rows", "Rows in snapshots of live queries.", statistics.rows)
    yield counter("live_changes", "Changes that live queries were given.", statistics.changes)
    yield counter("live_gaps", "Snapshots of live queries whose changes were not all there.", statistics.gaps)


def requests(
    http: RequestStatistics,
    grpc: RequestStatistics,
    errors: Mapping[str, int],
    refusals: Mapping[tuple[str, str], int],
) -> Iterator[Metric]:
    """Requests of HTTP and gRPC. `errors` are those of HTTP by code, `refusals` are by protocol and limit of a key."""
    yield histogram("http_request_seconds", "Duration of HTTP requests.", http.finished.items(), ("rpc", "status"))
    yield gauge("http_requests_in_flight", "HTTP requests under way.", http.in_flight)
    by_code = [((code,), count) for code, count in errors.items()]
    yield counter("http_errors", "HTTP requests that were refused, by the code of the error.", by_code, ("code",))
    yield histogram("grpc_call_seconds", "Duration of gRPC calls.", grpc.finished.items(), ("rpc", "code"))
    yield gauge("grpc_calls_in_flight", "gRPC calls under way.", grpc.in_flight)
    meaning = "Refusals because a key holds as much as it may."
    yield counter("key_limit_refusals", meaning, list(refusals.items()), ("door", "limit"))


def cluster(node: NodeStatistics) -> Iterator[Metric]:
    """A node of a cluster. With several shards, what is of a shard has a label `shard`."""
    shards = node.shards
    names = ("shard",) if len(shards) > 1 else ()
    labels = [(str(number),) if names else () for number in range(len(shards))]

    def each(value: Callable[[ShardStatistics], float]) -> list[tuple[tuple[str, ...], float]]:
        return [(label, value(shard)) for label, shard in zip(labels, shards, strict=True)]

    shown = NODE_ROLES if names else NODE_ROLES[:-1]
    roles = [
        ((*label, role), float(role == shard.role))
        for label, shard in zip(labels, shards, strict=True)
        for role in shown
    ]
    yield gauge("cluster_role", "1 for the role of this node, 0 for the others.", roles, (*names, "role"))
    epoch = "Epoch of the shard's owner, as this node knows it."
    yield gauge("cluster_epoch", epoch, each(lambda shard: shard.epoch), names)
    number = "Number of the newest object that is acknowledged or applied."
    yield gauge("cluster_number", number, each(lambda shard: shard.number), names)
    behind = "Objects that a follower knows of and has not applied."
    yield gauge("cluster_behind_objects", behind, each(lambda shard: shard.behind), names)
    yield gauge("cluster_nodes", "Nodes that live.", node.nodes)
    followers = "Followers of the owner that are caught up."
    yield gauge("cluster_followers", followers, each(lambda shard: shard.followers), names)
    yield gauge("cluster_lease_seconds", "Rest of the node's lease; below 0 it has ended.", node.lease_seconds)
    unacknowledged = "Bytes of writes that are not in the object store yet."
    held = each(lambda shard: shard.unacknowledged_bytes)
    yield gauge("cluster_unacknowledged_bytes", unacknowledged, held, names)
    puts = [(label, _seconds(shard.puts)) for label, shard in zip(labels, shards, strict=True)]
    yield histogram("cluster_put_seconds", "Time until the object store had an object.", puts, names)
    takeovers = "Times that this node became the owner, handovers too."
    yield counter("cluster_takeovers", takeovers, each(lambda shard: shard.takeovers), names)
    handovers = "Times that this node handed the shard over."
    yield counter("cluster_handovers", handovers, each(lambda shard: shard.handovers), names)
    yield counter("cluster_fenced", "Times that this node lost the shard.", each(lambda shard: shard.fenced), names)
    probes = "Looks into the object store before reads, without a lease."
    yield counter("cluster_probes", probes, each(lambda shard: shard.probes), names)
    reads = "Reads that this node has served as a follower, from its own rows."
    yield counter("cluster_follower_reads", reads, node.follower_reads)
    forwarded = [((door,), count) for door, count in node.forwarded.items()]
    yield counter("cluster_forwarded", "Requests that were passed on to the owner.", forwarded, ("door",))
    yield counter(
        "cluster_refused", "Of these, and of this node's own, those whose signature it refused.", node.refused
    )


def _seconds(micros: Histogram) -> Histogram:
    """The same in seconds."""
    found = Histogram(tuple(bound / 1e6 for bound in micros.bounds))
    found.counts, found.sum = list(micros.counts), micros.sum / 1e6
    return found
