"""Settings of the Kafka listener."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from topics_service.engine.membership.members import GroupSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSettings:
    """Settings of the Kafka listener; the defaults are those of the documented environment variables."""

    max_batch_bytes: int = 1_048_588
    """TOPICS_KAFKA_MAX_BATCH_BYTES: the largest record batch, unless the topic's `max.message.bytes` says otherwise."""
    auto_create: bool = True
    """TOPICS_KAFKA_AUTO_CREATE: honour `allow_auto_topic_creation` of Metadata."""
    num_partitions: int = 1
    """TOPICS_KAFKA_NUM_PARTITIONS: partitions of a topic that CreateTopics creates with -1."""
    node_id: int = 1
    """TOPICS_KAFKA_NODE_ID: the id of the one broker."""
    max_connections: int = 2000
    """TOPICS_KAFKA_MAX_CONNECTIONS: maximum number of open connections; 0 is unlimited."""
    initial_rebalance_ms: int = 3000
    """TOPICS_KAFKA_INITIAL_REBALANCE_MS: time that an empty classic group waits for more members."""
    min_session_timeout_ms: int = 6000
    """TOPICS_KAFKA_MIN_SESSION_TIMEOUT_MS: minimum session timeout of a member of a classic group."""
    max_session_timeout_ms: int = 1_800_000
    """TOPICS_KAFKA_MAX_SESSION_TIMEOUT_MS: maximum session timeout of a member of a classic group."""
    consumer_session_timeout_ms: int = 45_000
    """TOPICS_KAFKA_CONSUMER_SESSION_TIMEOUT_MS: session timeout of members of KIP-848 consumer groups."""
    consumer_heartbeat_ms: int = 1000
    """TOPICS_KAFKA_CONSUMER_HEARTBEAT_MS: heartbeat interval for members of KIP-848 consumer groups."""
    frame_bytes: int = 256 << 20
    """Memory for requests while they are received and served: a quarter of TOPICS_MEMORY_BYTES."""
    idle_seconds: float = 600.0
    """Idle timeout of a connection, like Kafka's `connections.max.idle.ms`."""
    first_request_seconds: float = 30.0
    """Timeout for the first request of a connection, and for a request to arrive once it has begun."""
    send_seconds: float = 30.0
    """Send timeout: time in which the client must read at least one byte."""
    fetch_max_bytes: int = 16 << 20
    """Maximum record bytes in a fetch response, like Kafka's `fetch.max.bytes`. A slow client keeps them in memory."""
    render_cache_bytes: int = 32 << 20
    """Cache of batches rendered from records of other protocols: half of the TOPICS_MEMORY_BYTES for rendering."""

    @property
    def groups(self) -> GroupSettings:
        """The settings of the coordinator of groups."""
        from topics_service.engine.membership.members import GroupSettings  # `serve --help` runs without msgspec

        return GroupSettings(
            initial_delay_ms=self.initial_rebalance_ms,
            min_session_ms=self.min_session_timeout_ms,
            max_session_ms=self.max_session_timeout_ms,
            session_ms=self.consumer_session_timeout_ms,
            heartbeat_ms=self.consumer_heartbeat_ms,
        )
