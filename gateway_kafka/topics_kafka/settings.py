"""Settings of the Kafka listener."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSettings:
    """Settings of the Kafka listener; the defaults are those of the documented environment variables."""

    max_batch_bytes: int = 1_048_588
    """TOPICS_KAFKA_MAX_BATCH_BYTES: the largest record batch, unless the topic's `max.message.bytes` says otherwise."""
    auto_create: bool = True
    """TOPICS_KAFKA_AUTO_CREATE: whether `allow_auto_topic_creation` of Metadata is honoured."""
    num_partitions: int = 1
    """TOPICS_KAFKA_NUM_PARTITIONS: partitions of a topic that CreateTopics makes with -1."""
    node_id: int = 1
    """TOPICS_KAFKA_NODE_ID: the id of the one broker."""
    max_connections: int = 2000
    """TOPICS_KAFKA_MAX_CONNECTIONS: most open connections; 0 is unlimited."""
    initial_rebalance_ms: int = 3000
    """TOPICS_KAFKA_INITIAL_REBALANCE_MS: how long an empty classic group waits for more members."""
    min_session_timeout_ms: int = 6000
    """TOPICS_KAFKA_MIN_SESSION_TIMEOUT_MS: least session timeout of a classic group's member."""
    max_session_timeout_ms: int = 1_800_000
    """TOPICS_KAFKA_MAX_SESSION_TIMEOUT_MS: longest session timeout of a classic group's member."""
    consumer_session_timeout_ms: int = 45_000
    """TOPICS_KAFKA_CONSUMER_SESSION_TIMEOUT_MS: session timeout of members by the consumer protocol (KIP-848)."""
    consumer_heartbeat_ms: int = 1000
    """TOPICS_KAFKA_CONSUMER_HEARTBEAT_MS: the interval at which those members are told to send heartbeats."""
    frame_bytes: int = 256 << 20
    """A quarter of TOPICS_MEMORY_BYTES: requests of all connections while they are received and served."""
    idle_seconds: float = 600.0
    """A connection without a request for this long is closed, as Kafka's `connections.max.idle.ms`."""
    first_request_seconds: float = 30.0
    """How long a new connection may take to send its first request, and one request to arrive once it has begun."""
    send_seconds: float = 30.0
    """How long a response waits for a client that takes not one byte of it."""
    fetch_max_bytes: int = 16 << 20
    """The most record bytes in one fetch response, as Kafka's `fetch.max.bytes`. A slow client makes it stay."""
    render_cache_bytes: int = 32 << 20
    """Half of the share of TOPICS_MEMORY_BYTES for rendered records: batches made of records of other protocols."""
