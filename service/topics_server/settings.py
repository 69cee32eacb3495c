"""Every setting of the server, once: environment variable, command-line flag, default and meaning.

`make proto` writes the table of docs/configuration.md from it. Importing this module needs no package of the server, so
`topics serve --help` lists the settings in a base install too: packages of the server are imported where they are used.
"""

import socket
from collections.abc import Mapping
from dataclasses import Field, dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from topics_client.environment import VARIABLES, is_service_link
from topics_client.environment import split_host as split_host
from topics_kafka.settings import KafkaSettings
from topics_postgres.settings import PostgresSettings
from topics_server import secret_settings
from topics_server.logs import FORMATS
from topics_server.memory import Plan, plan
from topics_server.setting_checks import SettingsError as SettingsError
from topics_server.setting_checks import check
from topics_server.setting_kinds import Read, one_of, read_address, read_members, read_port, read_store
from topics_server.setting_kinds import setting as _setting
from topics_service.api.access.hosts import Hosts, parse_authority, read_names, read_origins
from topics_service.storage.shardfiles import MOST_SHARDS

if TYPE_CHECKING:
    from topics_server.keys import Keys
    from topics_service.api.access.authorizer import Authorizer
    from topics_service.api.access.quota import KeyLimits, Quotas
    from topics_service.api.access.tokens import TokenKey, Tokens
    from topics_service.api.access.users import UserRow
    from topics_service.api.watch import WatchCaps
    from topics_service.engine.limits import Limits
    from topics_service.engine.names import ResourcePrefix

_LEVELS: Final = ("debug", "info", "warning", "error")
_MAX_I32: Final = (1 << 31) - 1
_MAX_BULK_READERS: Final = 64
_MAX_SHOWN: Final = 80  # characters of a value in an error

UNUSED: Final = frozenset(
    f"TOPICS_{name}"
    for name in (
        "COLD_DIR",
        "HOT_RETAIN_BYTES",
        "HOT_RETAIN_SEGMENTS",
        "SEGMENT_MAX_AGE_MS",
        "SEGMENT_MAX_BYTES",
        "SEGMENT_MAX_EVENTS",
        "WAL_SHARDS",
    )
)
"""Variables of the `/v0` contract that mean nothing here: this storage has no segments, shards or cold folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of `topics serve`. The flag of `TOPICS_DATA_DIR` is `--data-dir`, and so on for each.

    Only secrets have none, since everyone on the machine can read a command line; nor has a file whose flag they would
    be short for.
    """

    host: str = _setting(
        "TOPICS_HOST",
        "127.0.0.1",
        "listen address for HTTP and gRPC; host:port sets both",
        read=read_address,
    )
    port: int = _setting(
        "TOPICS_PORT",
        4000,
        "HTTP port (HTTP/1.1 and cleartext HTTP/2); 0 picks a free one",
        read=read_port,
        what="PORT",
    )
    port_file: str = _setting("TOPICS_PORT_FILE", "", "file that receives host:port of HTTP once it is bound")
    grpc_port: int = _setting("TOPICS_GRPC_PORT", 4001, "gRPC port; 0 picks a free one", read=read_port, what="PORT")
    grpc_port_file: str = _setting("TOPICS_GRPC_PORT_FILE", "", "file that receives host:port of gRPC once it is bound")
    kafka_port: str = _setting(
        "TOPICS_KAFKA_PORT",
        "",
        "Kafka port; 0 picks a free one; Kafka is disabled if unset",
        read=lambda text: str(read_port(text)),
        what="PORT",
    )
    kafka_port_file: str = _setting(
        "TOPICS_KAFKA_PORT_FILE", "", "file that receives host:port of Kafka once it accepts connections"
    )
    kafka_advertised: str = _setting(
        "TOPICS_KAFKA_ADVERTISED",
        "",
        "host or host:port advertised to Kafka clients; the bound address if unset",
        read=read_address,
    )
    kafka_tls_cert: str = _setting(
        "TOPICS_KAFKA_TLS_CERT",
        "",
        "PEM certificate chain of the Kafka port; that of TOPICS_TLS_CERT_FILE if unset",
    )
    kafka_tls_key: str = _setting(
        "TOPICS_KAFKA_TLS_KEY", "", "PEM private key of the certificate; read from the certificate's file if unset"
    )
    pg_port: str = _setting(
        "TOPICS_PG_PORT",
        "",
        "PostgreSQL port; 0 picks a free one; the protocol is disabled if unset",
        read=lambda text: str(read_port(text)),
        what="PORT",
    )
    pg_port_file: str = _setting(
        "TOPICS_PG_PORT_FILE", "", "file that receives host:port of PostgreSQL once it accepts connections"
    )
    tls_cert_file: str = _setting(
        "TOPICS_TLS_CERT_FILE", "", "PEM certificate chain of all ports, reloaded on SIGHUP; TLS is disabled if unset"
    )
    tls_key_file: str = _setting(
        "TOPICS_TLS_KEY_FILE", "", "PEM private key of the certificate; read from the certificate's file if unset"
    )
    tls_client_ca_file: str = _setting(
        "TOPICS_TLS_CLIENT_CA_FILE",
        "",
        "PEM file of the authorities of client certificates, which all TLS ports then require",
    )
    data_dir: str = _setting("TOPICS_DATA_DIR", "./topics-data", "database directory; one process at a time")
    api_keys: "Keys | None" = _setting(  # noqa: RUF009  # they do not change
        "TOPICS_API_KEYS",
        None,
        "API keys with scopes and prefixes, see security.md; authentication is disabled if unset",
        flag=False,
    )
    api_keys_file: str = _setting(
        "TOPICS_API_KEYS_FILE",
        "",
        "file of API keys, one per line, reloaded on SIGHUP; replaces TOPICS_API_KEYS",
        flag=False,
    )
    sql_users: "tuple[UserRow, ...] | None" = _setting(  # noqa: RUF009  # they do not change
        "TOPICS_SQL_USERS",
        None,
        "users with passwords, roles and prefixes, see security.md",
        flag=False,
    )
    sql_users_file: str = _setting(
        "TOPICS_SQL_USERS_FILE",
        "",
        "file of users, one per line, reloaded on SIGHUP; replaces TOPICS_SQL_USERS",
        flag=False,
    )
    jwt_secret: "TokenKey | None" = _setting(  # noqa: RUF009  # it does not change
        "TOPICS_JWT_SECRET",
        None,
        "secret of JWT bearer tokens signed with HS256, at least 32 bytes",
        flag=False,
    )
    jwt_public_key_file: str = _setting(
        "TOPICS_JWT_PUBLIC_KEY_FILE",
        "",
        "PEM file of the public key of JWT bearer tokens signed with RS256, reloaded on SIGHUP; replaces "
        "TOPICS_JWT_SECRET",
    )
    jwt_issuer: str = _setting("TOPICS_JWT_ISSUER", "", "required issuer (iss) of tokens; any if unset")
    jwt_audience: str = _setting(
        "TOPICS_JWT_AUDIENCE", "", "required audience (aud) of tokens; if unset, tokens with an audience are refused"
    )
    allow_user_role_consume: bool = _setting(
        "TOPICS_ALLOW_USER_ROLE_CONSUME", False, "let users and tokens with the role user read and consume topics"
    )
    default_consume_timeout: int = _setting(
        "TOPICS_DEFAULT_CONSUME_TIMEOUT", 30, "time that a consume of /api/topics waits unless it says otherwise"
    )
    max_consume_timeout: int = _setting(
        "TOPICS_MAX_CONSUME_TIMEOUT", 300, "maximum time that a consume of /api/topics waits; longer ones are clamped"
    )
    audit_log: str = _setting(
        "TOPICS_AUDIT_LOG",
        "",
        "file for the audit log of changes to topics, routers, groups and keys; - is stderr; disabled if unset",
    )
    probe_auth: bool = _setting("TOPICS_PROBE_AUTH", False, "require an API key for the health and readiness probes")
    allow_insecure_no_auth: bool = _setting(
        "TOPICS_ALLOW_INSECURE_NO_AUTH", False, "serve a non-loopback address without authentication"
    )
    allowed_hosts: str = _setting(
        "TOPICS_ALLOWED_HOSTS",
        "",
        "comma-separated host names under which HTTP clients may reach a server without API keys, besides IP "
        "addresses and localhost; * allows any",
    )
    cors_origins: str = _setting(
        "TOPICS_CORS_ORIGINS",
        "",
        "comma-separated origins whose pages in browsers may use the HTTP API (CORS), such as "
        "https://app.example; CORS is disabled if unset",
    )
    org: str = _setting("TOPICS_ORG", "topics", "first part of a topic's rrl")
    env: str = _setting("TOPICS_ENV", "dev", "second part of a topic's rrl")
    cluster: str = _setting(
        "TOPICS_CLUSTER", "local", "third part of a topic's rrl; the name of the cluster in TOPICS_CLUSTER_STORE"
    )
    cluster_store: str = _setting(
        "TOPICS_CLUSTER_STORE",
        "",
        "object store of a cluster, such as s3://bucket/prefix, with the variables AWS_* of backups; see cluster.md. "
        "The server is a single process if unset",
        read=read_store,
        what="URL",
    )
    cluster_etcd: str = _setting(
        "TOPICS_CLUSTER_ETCD",
        "",
        "comma-separated host:port of the members of etcd, which tell the nodes of a cluster who lives",
        read=read_members,
    )
    cluster_node: str = _setting("TOPICS_CLUSTER_NODE", "", "name of this node; the machine's name if unset")
    cluster_advertised: str = _setting(
        "TOPICS_CLUSTER_ADVERTISED",
        "",
        "host at which the other nodes reach the ports of this one; TOPICS_HOST if unset",
    )
    cluster_port: int = _setting(
        "TOPICS_CLUSTER_PORT",
        0,
        "port at which the nodes of a cluster with several shards call each other; 0 picks a free one",
        read=read_port,
        what="PORT",
    )
    cluster_secret_file: str = _setting(
        "TOPICS_CLUSTER_SECRET_FILE",
        "",
        "file of the secret that the nodes of a cluster share, at least 32 bytes, reloaded on SIGHUP",
    )
    cluster_lease_seconds: int = _setting(
        "TOPICS_CLUSTER_LEASE_SECONDS", 2, "time after which a node that does not answer has no shard any more"
    )
    cluster_window: int = _setting(
        "TOPICS_CLUSTER_WINDOW", 4, "number of objects that the owner of a shard writes at once, at most 16", maximum=16
    )
    cluster_linger_ms: int = _setting(
        "TOPICS_CLUSTER_LINGER_MS",
        25,
        "time between two objects of small writes while several writers can share them, at most 500; 0 begins each as "
        "soon as it may",
    )
    cluster_log_seconds: int = _setting(
        "TOPICS_CLUSTER_LOG_SECONDS",
        3600,
        "time for which any moment of a cluster can be restored: its log and checkpoints are kept, an hour at least",
    )
    cluster_zone: str = _setting("TOPICS_CLUSTER_ZONE", "", "zone of this node; a shard is followed in another one")
    cluster_capacity: int = _setting("TOPICS_CLUSTER_CAPACITY", 1, "weight of this node, at most 1000", maximum=1000)
    cluster_followers: int = _setting("TOPICS_CLUSTER_FOLLOWERS", 1, "followers of each shard, at most 16", maximum=16)
    log_level: str = _setting(
        "TOPICS_LOG_LEVEL", "info", "debug, info, warning or error; logs go to stderr", read=one_of(*_LEVELS)
    )
    log_format: str = _setting("TOPICS_LOG_FORMAT", "text", "format of log lines: text or json", read=one_of(*FORMATS))
    tracing: bool = _setting(
        "TOPICS_TRACING", False, "export OpenTelemetry traces, configured by the variables OTEL_*; see tracing.md"
    )
    bulk_readers: int = _setting(
        "TOPICS_BULK_READERS",
        0,
        "number of extra processes that serve BulkDiff to long reads, at most 64",
        maximum=_MAX_BULK_READERS,
    )
    processes: int = _setting(
        "TOPICS_PROCESSES",
        0,
        "number of processes that share the shards of the data directory, at most 64, see processes.md; 0 is a server "
        "without shards",
        maximum=MOST_SHARDS,
    )
    shards: int = _setting(
        "TOPICS_SHARDS", 8, "number of shards of a new data directory with TOPICS_PROCESSES", maximum=MOST_SHARDS
    )
    drain_seconds: int = _setting("TOPICS_DRAIN_SECONDS", 10, "time that a stop waits for running requests")
    header_timeout_seconds: int = _setting(
        "TOPICS_HEADER_TIMEOUT_SECONDS", 60, "time for an HTTP connection to send a request head"
    )
    body_timeout_seconds: int = _setting(
        "TOPICS_BODY_TIMEOUT_SECONDS", 60, "longest pause of an HTTP request while it sends its body"
    )
    memory_bytes: int = _setting(
        "TOPICS_MEMORY_BYTES", 1 << 30, "memory for caches, write buffers and ephemeral topics together"
    )
    min_free_bytes: int = _setting(
        "TOPICS_MIN_FREE_BYTES", 256 << 20, "writes are throttled while the disk has less free space; 0 disables"
    )
    wal_archive_seconds: int = _setting(
        "TOPICS_WAL_ARCHIVE_SECONDS",
        0,
        "retention of the write-ahead log for topics backup archive, see backup.md; 0 disables",
    )
    wal_archive_bytes: int = _setting(
        "TOPICS_WAL_ARCHIVE_BYTES", 4 << 30, "maximum bytes of the retained log; the oldest files go first"
    )
    max_lag_ms: int = _setting(
        "TOPICS_MAX_LAG_MS", 500, "writes are throttled while the event loop lags by more; 0 disables"
    )
    max_body_bytes: int = _setting(
        "TOPICS_MAX_BODY_BYTES", 64 << 20, "maximum request body, before and after decompression"
    )
    max_batch_records: int = _setting("TOPICS_MAX_BATCH_RECORDS", 10_000, "maximum records in one write")
    max_record_bytes: int = _setting("TOPICS_MAX_RECORD_BYTES", 1 << 20, "maximum data + meta of one record")
    max_meta_bytes: int = _setting("TOPICS_MAX_META_BYTES", 16 << 10, "maximum meta of one record")
    max_tag_bytes: int = _setting("TOPICS_MAX_TAG_BYTES", 256, "maximum length of a tag, in UTF-8 bytes")
    max_node_bytes: int = _setting("TOPICS_MAX_NODE_BYTES", 128, "maximum length of a node, in UTF-8 bytes")
    max_limit: int = _setting(
        "TOPICS_MAX_LIMIT", 1000, "maximum records examined by one diff; larger limits are clamped"
    )
    max_watch_topics: int = _setting("TOPICS_MAX_WATCH_TOPICS", 256, "maximum topics in one watch")
    max_claim: int = _setting("TOPICS_MAX_CLAIM", 1000, "maximum jobs in one claim, ack, nack or extend")
    sql_statement_timeout: int = _setting(
        "TOPICS_SQL_STATEMENT_TIMEOUT", 30, "maximum time of one SQL statement, without its wait for durability"
    )
    sql_cache_bytes: int = _setting(
        "TOPICS_SQL_CACHE_BYTES", 256 << 20, "maximum memory of tables that are kept for analytical queries"
    )
    sql_memory_bytes: int = _setting(
        "TOPICS_SQL_MEMORY_BYTES", 512 << 20, "maximum memory in which analytical queries compute"
    )
    sql_max_live_queries: int = _setting(
        "TOPICS_SQL_MAX_LIVE_QUERIES", 10_000, "maximum live queries that are followed; 0 is unlimited"
    )
    sql_changes_bytes: int = _setting(
        "TOPICS_SQL_CHANGES_BYTES", 64 << 20, "maximum size of the log of changes of one table"
    )
    sql_changes_idle_seconds: int = _setting(
        "TOPICS_SQL_CHANGES_IDLE_SECONDS", 3600, "lifetime of a log of changes without live queries"
    )
    max_topics: int = _setting("TOPICS_MAX_TOPICS", 100_000, "maximum topics, counted by partitions; 0 is unlimited")
    max_partitions: int = _setting("TOPICS_MAX_PARTITIONS", 1000, "maximum partitions of one topic")
    max_routers: int = _setting("TOPICS_MAX_ROUTERS", 10_000, "maximum routers; 0 is unlimited")
    max_groups: int = _setting("TOPICS_MAX_GROUPS", 10_000, "maximum consumer groups; 0 is unlimited")
    max_open_claims: int = _setting(
        "TOPICS_MAX_OPEN_CLAIMS", 1000, "maximum open claims of a consumer group in one partition"
    )
    max_tables: int = _setting("TOPICS_MAX_TABLES", 10_000, "maximum tables of SQL; 0 is unlimited")
    group_retention_ms: int = _setting(
        "TOPICS_GROUP_RETENTION_MS", 604_800_000, "lifetime of an unused consumer group; 0 is unlimited"
    )
    max_connections: int = _setting(
        "TOPICS_MAX_CONNECTIONS", 20_000, "maximum open HTTP connections, including WebSockets; 0 is unlimited"
    )
    grpc_max_connections: int = _setting(
        "TOPICS_GRPC_MAX_CONNECTIONS", 10_000, "maximum open gRPC connections; 0 is unlimited"
    )
    max_watch_sessions: int = _setting("TOPICS_MAX_WATCH_SESSIONS", 10_000, "maximum watch sessions; 0 is unlimited")
    max_sse_connections: int = _setting(
        "TOPICS_MAX_SSE_CONNECTIONS", 10_000, "maximum open streams, SSE, WebSocket and gRPC together; 0 is unlimited"
    )
    max_sse_connections_per_key: int = _setting(
        "TOPICS_MAX_SSE_CONNECTIONS_PER_KEY", 1000, "maximum open streams per API key; 0 is unlimited"
    )
    test_min_heartbeat_ms: int = _setting(
        "TOPICS_TEST_MIN_HEARTBEAT_MS", 1000, "minimum heartbeat interval of a watch; 1 to 999 are for tests"
    )
    max_total_bytes: int = _setting(
        "TOPICS_MAX_TOTAL_BYTES", 0, "maximum live record bytes of all topics; 0 is unlimited"
    )
    max_inflight_per_key: int = _setting(
        "TOPICS_MAX_INFLIGHT_PER_KEY",
        1000,
        "maximum concurrent requests per API key, including long polls; 0 is unlimited",
    )
    max_connections_per_key: int = _setting(
        "TOPICS_MAX_CONNECTIONS_PER_KEY",
        1500,
        "maximum open connections per API key, HTTP, Kafka and PostgreSQL; 0 is unlimited",
    )
    max_bytes_in_flight_per_key: int = _setting(
        "TOPICS_MAX_BYTES_IN_FLIGHT_PER_KEY",
        256 << 20,
        "maximum bytes held by concurrent requests per API key, counting those above 64 KiB; 0 is unlimited",
    )
    kafka_max_connections: int = _setting(
        "TOPICS_KAFKA_MAX_CONNECTIONS", 2000, "maximum open Kafka connections; 0 is unlimited"
    )
    pg_max_connections: int = _setting(
        "TOPICS_PG_MAX_CONNECTIONS", 1000, "maximum open PostgreSQL connections; 0 is unlimited"
    )
    kafka_max_batch_bytes: int = _setting(
        "TOPICS_KAFKA_MAX_BATCH_BYTES", 1_048_588, "maximum record batch of a topic without its own max.message.bytes"
    )
    kafka_auto_create: int = _setting(
        "TOPICS_KAFKA_AUTO_CREATE",
        1,
        "1 lets Metadata requests of Kafka clients create topics, 0 does not",
        maximum=1,
    )
    kafka_num_partitions: int = _setting(
        "TOPICS_KAFKA_NUM_PARTITIONS", 1, "partitions of a topic created by a Kafka client that gives no number"
    )
    kafka_node_id: int = _setting(
        "TOPICS_KAFKA_NODE_ID",
        1,
        "broker id of this server; a node of a cluster makes one of its name unless it is set",
    )
    kafka_initial_rebalance_ms: int = _setting(
        "TOPICS_KAFKA_INITIAL_REBALANCE_MS", 3000, "time that an empty classic group waits for more members to join"
    )
    kafka_min_session_timeout_ms: int = _setting(
        "TOPICS_KAFKA_MIN_SESSION_TIMEOUT_MS", 6000, "minimum session timeout of members of classic groups"
    )
    kafka_max_session_timeout_ms: int = _setting(
        "TOPICS_KAFKA_MAX_SESSION_TIMEOUT_MS", 1_800_000, "maximum session timeout of members of classic groups"
    )
    kafka_consumer_session_timeout_ms: int = _setting(
        "TOPICS_KAFKA_CONSUMER_SESSION_TIMEOUT_MS", 45_000, "session timeout of members of KIP-848 consumer groups"
    )
    kafka_consumer_heartbeat_ms: int = _setting(
        "TOPICS_KAFKA_CONSUMER_HEARTBEAT_MS", 1000, "heartbeat interval of members of KIP-848 consumer groups"
    )

    @property
    def memory(self) -> "MemoryShares":
        """Shares of `memory_bytes`."""
        eighth = self.memory_bytes // 8
        return MemoryShares(
            write_buffers=2 * eighth, store_cache=eighth, blocks=eighth, renderings=eighth, ephemeral=3 * eighth
        )

    @property
    def limits(self) -> "Limits":
        """The engine's limits."""
        from topics_service.engine.limits import Limits

        return Limits(
            max_batch_records=self.max_batch_records,
            max_record_bytes=self.max_record_bytes,
            max_meta_bytes=self.max_meta_bytes,
            max_tag_bytes=self.max_tag_bytes,
            max_node_bytes=self.max_node_bytes,
            max_limit=max(1, self.max_limit),
            default_limit=min(Limits().default_limit, max(1, self.max_limit)),
            max_watch_topics=max(1, self.max_watch_topics),
            max_claim=max(1, self.max_claim),
            max_routers=self.max_routers,
            max_groups=self.max_groups,
            max_open_claims=max(1, self.max_open_claims),
            max_tables=self.max_tables,
            group_retention_ms=self.group_retention_ms,
            max_topics=self.max_topics,
            max_partitions=max(1, self.max_partitions),
            max_total_bytes=self.max_total_bytes,
            max_ephemeral_bytes=self.memory.ephemeral,
        )

    @property
    def watch_caps(self) -> "WatchCaps":
        """The bounds of sessions and streams."""
        from topics_service.api.watch import WatchCaps

        return WatchCaps(
            max_sessions=self.max_watch_sessions,
            max_connections=self.max_sse_connections,
            max_connections_per_key=self.max_sse_connections_per_key,
            journal_bytes=self.memory_bytes // 16,
            min_heartbeat_ms=min(max(1, self.test_min_heartbeat_ms), WatchCaps().min_heartbeat_ms),
        )

    @property
    def key_limits(self) -> "KeyLimits":
        """Limits of one API key, unless its entry says otherwise."""
        from topics_service.api.access.quota import KeyLimits

        return KeyLimits(
            connections=self.max_connections_per_key,
            streams=self.max_sse_connections_per_key,
            in_flight=self.max_inflight_per_key,
            nbytes=self.max_bytes_in_flight_per_key,
        )

    def authorizer(self) -> "Authorizer":
        """Make an authorizer of all credentials."""
        from topics_service.api.access.authorizer import Authorizer
        from topics_service.api.access.users import Users

        users = Users(self.sql_users or (), user_consumes=self.allow_user_role_consume)
        return Authorizer(
            self.api_keys, users=users, tokens=self.tokens(), probe_auth=self.probe_auth, quotas=self.quotas
        )

    def tokens(self) -> "Tokens | None":
        """Make a verifier of tokens; None if they are not configured."""
        if self.jwt_secret is None:
            return None
        from topics_service.api.access.tokens import Tokens

        consumes = self.allow_user_role_consume
        return Tokens(self.jwt_secret, issuer=self.jwt_issuer, audience=self.jwt_audience, user_consumes=consumes)

    @property
    def has_authentication(self) -> bool:
        """True if every call needs a credential."""
        return self.api_keys is not None or self.sql_users is not None or self.jwt_secret is not None

    @property
    def quotas(self) -> "Quotas":
        """New ones, with nothing held."""
        from topics_service.api.access.quota import Quotas
        from topics_service.api.budget import MemoryBudget

        own = self.api_keys.limits if self.api_keys is not None else None
        return Quotas(self.key_limits, own, MemoryBudget(self.memory_bytes // 4))

    @property
    def postgres(self) -> PostgresSettings:
        """Settings of the PostgreSQL listener."""
        return PostgresSettings(max_connections=self.pg_max_connections, receive_bytes=self.memory_bytes // 4)

    @property
    def kafka(self) -> KafkaSettings:
        """Settings of the Kafka listener."""
        return KafkaSettings(
            max_batch_bytes=self.kafka_max_batch_bytes,
            auto_create=bool(self.kafka_auto_create),
            num_partitions=max(1, self.kafka_num_partitions),
            node_id=min(self.kafka_node_id, _MAX_I32),
            max_connections=self.kafka_max_connections,
            initial_rebalance_ms=self.kafka_initial_rebalance_ms,
            min_session_timeout_ms=self.kafka_min_session_timeout_ms,
            max_session_timeout_ms=self.kafka_max_session_timeout_ms,
            consumer_session_timeout_ms=max(1, self.kafka_consumer_session_timeout_ms),
            consumer_heartbeat_ms=max(1, self.kafka_consumer_heartbeat_ms),
            frame_bytes=self.memory_bytes // 4,
            render_cache_bytes=self.memory.renderings // 2,
        )

    @property
    def hosts(self) -> Hosts:
        """The hosts that HTTP is served for while there are no keys."""
        own = parse_authority(self.host.encode(errors="replace"))
        return Hosts(read_names(self.allowed_hosts) | ({own.host} if own is not None else set()))

    @property
    def origins(self) -> frozenset[bytes]:
        """The origins whose pages may use the HTTP API, as in the header `Origin`."""
        return read_origins(self.cors_origins)

    @property
    def resource_prefix(self) -> "ResourcePrefix":
        """Prefix of the rrl."""
        from topics_service.engine.names import ResourcePrefix

        return ResourcePrefix(org=self.org, env=self.env, cluster=self.cluster)

    @property
    def node_name(self) -> str:
        """The name of this node."""
        return self.cluster_node or socket.gethostname()

    @property
    def node_host(self) -> str:
        """The host at which other nodes reach this one."""
        return self.cluster_advertised or self.host

    @property
    def data_path(self) -> Path:
        """The data directory."""
        return Path(self.data_dir)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryShares:
    """Bytes for each user of memory: RocksDB's write buffers and block cache, decoded blocks, rendered pages, and the
    records of `ephemeral` topics."""

    write_buffers: int
    store_cache: int
    blocks: int
    renderings: int
    ephemeral: int


def load(environ: Mapping[str, str], flags: Mapping[str, Any], memory: int | None = None) -> Settings:
    """Settings from flags (which win, and are values already), then the environment, then the defaults.

    `memory` is the memory of the process in bytes: if it is small, so are `memory_bytes` and `max_body_bytes` unless
    they are set.

    An empty variable counts as unset, and so does a port that Kubernetes has set (see `ignored_variables`). Raises
    SettingsError for unreadable values, with the setting, its value and the expected form, and for unsafe ones:
    unreadable keys, a public address without authentication.
    """
    values: dict[str, Any] = {}
    for setting in fields(Settings):
        if setting.name in secret_settings.NAMES:
            continue
        env = setting.metadata["env"]
        if flags.get(setting.name) is not None:
            values[setting.name] = flags[setting.name]
        elif (text := environ.get(env, "")) and not is_service_link(env, text):
            values[setting.name] = _value(setting, text)
    try:
        values |= secret_settings.read(environ, values)
    except secret_settings.SecretsError as error:
        raise SettingsError(str(error)) from None
    host, port = split_host(values.get("host", default("host")))
    values["host"] = host
    if port:
        values["port"] = int(port)
    if memory is not None:
        fitting = plan(memory, Plan(default("memory_bytes"), default("max_body_bytes")))
        values = {"memory_bytes": fitting.memory, "max_body_bytes": fitting.body} | values
    settings = Settings(**values)
    check(settings)
    return settings


def default(name: str) -> Any:
    """The default of a setting."""
    return Settings.__dataclass_fields__[name].default


def ignored_variables(environ: Mapping[str, str]) -> list[str]:
    """Return the warnings: a line for each variable TOPICS_* that has no effect."""
    own = {setting.metadata["env"] for setting in fields(Settings)}
    known = {name.removeprefix("TOPICS_") for name in own | VARIABLES.keys()}
    lines = []
    for name in sorted(environ):
        if not name.startswith("TOPICS_") or name in VARIABLES or name in UNUSED:
            continue
        if is_service_link(name, environ[name]):
            if name in own:
                service = name.removesuffix("_PORT").lower().replace("_", "-")
                lines.append(
                    f"{name}={environ[name][:_MAX_SHOWN]} is ignored: Kubernetes sets it in pods beside a service "
                    f"named {service}; enableServiceLinks: false in the pod's spec switches that off"
                )
        elif name not in own:
            near = get_close_matches(name.removeprefix("TOPICS_"), known, 1)
            hint = f"did you mean TOPICS_{near[0]}?" if near else "topics serve --help lists all settings"
            lines.append(f"{name} is no setting and is ignored: {hint}")
    return lines


def _value(setting: Field[Any], text: str) -> Any:
    read: Read = setting.metadata["read"]
    try:
        return read(text if read is str else text.strip())
    except ValueError as error:
        shown = text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
        raise SettingsError(f"{setting.metadata['env']}={shown!r} is not {error}") from None
