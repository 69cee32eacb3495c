"""Settings of the PostgreSQL listener."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresSettings:
    """Settings of the PostgreSQL listener; the defaults are those of the documented environment variables."""

    max_connections: int = 1000
    """TOPICS_PG_MAX_CONNECTIONS: maximum number of open connections; 0 is unlimited."""
    max_message_bytes: int = 64 << 20
    """The largest message of a client that is authenticated."""
    receive_bytes: int = 256 << 20
    """Memory for messages of all connections while they arrive: a quarter of TOPICS_MEMORY_BYTES."""
    startup_seconds: float = 30.0
    """Timeout for authentication, and for a message to arrive once it has begun."""
    transaction_idle_seconds: float = 60.0
    """Time that a transaction may wait for its next statement."""
    idle_seconds: float = 28_800.0
    """Idle timeout of a session without a transaction."""
    send_seconds: float = 30.0
    """Send timeout: time in which the client must read at least one byte."""
