"""Whether a write has room: caps of a `reject` topic, the total quota, memory of ephemeral topics."""

from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.limits import Limits
from topics_service.engine.snapshot import Snapshot
from topics_service.engine.topic import Topic
from topics_service.engine.writer import Writer
from topics_service.storage.memory import MemoryStore


class Room:
    """The resources that all topics share, and how much of them may be used."""

    def __init__(self, writer: Writer, memory: MemoryStore, limits: Limits) -> None:
        self._writer = writer
        self._memory = memory
        self._limits = limits

    def is_checked(self, topic: Topic) -> bool:
        """Whether a write to the topic can be refused for room at all; if not, its size need not be known."""
        cfg = topic.config
        return cfg.discard == "reject" or cfg.durability == "ephemeral" or bool(self._limits.max_total_bytes)

    def check(self, topic: Topic, s: Snapshot, count: int, nbytes: int, freed: int = 0) -> None:
        """Refuse `count` records of `nbytes` in all on top of `s` (SPEC DESIGN 5.3, API 11).

        `freed` bytes leave another topic in the same write. Raises `topic_full`, `record_too_large` (larger than the
        whole cap) or `throttled`.
        """
        cfg, quota = topic.config, self._limits.max_total_bytes
        if cfg.durability == "ephemeral" and self._memory.nbytes > (most := self._limits.max_ephemeral_bytes) > 0:
            raise TopicsError(
                Reason.THROTTLED,
                "ephemeral topics take as much memory as they may",
                {"limit": "max_ephemeral_bytes", "max": most},
            )
        if cfg.discard == "reject":
            if (cfg.cap_records and count > cfg.cap_records) or (cfg.cap_bytes and nbytes > cfg.cap_bytes):
                raise TopicsError(Reason.RECORD_TOO_LARGE, "the write is larger than the topic's whole cap")
            full = cfg.cap_records and s.count + count > cfg.cap_records
            if full or (cfg.cap_bytes and s.bytes + nbytes > cfg.cap_bytes):
                detail = {
                    "topic": topic.name, "cap_records": cfg.cap_records, "cap_bytes": cfg.cap_bytes,
                    "head_seq": s.head, "earliest_seq": s.earliest,
                }  # fmt: skip
                raise TopicsError(Reason.TOPIC_FULL, f'topic "{topic.name}" is full', detail)
        expired = topic.log.state.bytes - s.bytes
        if quota and self._writer.total_bytes - expired - freed + nbytes > quota:
            raise TopicsError(
                Reason.THROTTLED, "the server holds as many bytes as it may",
                {"limit": "max_total_bytes", "max": quota},
            )  # fmt: skip
