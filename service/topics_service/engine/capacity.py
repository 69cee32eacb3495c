"""Admission of writes: caps that nothing may be evicted for, the total quota, memory of ephemeral topics."""

from typing import Protocol

from topics_service.engine import retention
from topics_service.engine.clock import Clock
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.limits import Limits
from topics_service.engine.log import Log
from topics_service.engine.model import TopicConfig
from topics_service.engine.snapshot import Snapshot
from topics_service.engine.topic import Topic
from topics_service.engine.writer import Writer
from topics_service.storage.memory import MemoryStore


class Space(Protocol):
    """Space on the disk. Changes that only free space, or are as small as a config, do not ask."""

    def is_scarce(self) -> bool:
        """Return whether the disk may lack space for a large write."""
        ...

    def check(self, nbytes: int) -> None:
        """Raise `throttled` unless the disk has space for this many record bytes more."""
        ...


class Capacity:
    """The resources that all topics share, and how much of them may be used."""

    def __init__(self, writer: Writer, memory: MemoryStore, clock: Clock, limits: Limits) -> None:
        self._writer = writer
        self._clock = clock
        self._memory = memory
        self._limits = limits
        self.disk: Space | None = None
        """Set by the composition root; unbounded if None."""

    def is_checked(self, topic: Topic) -> bool:
        """Return whether a write to the topic can be refused for lack of capacity; if not, its size is not needed."""
        cfg = topic.config
        if cfg.discard == "reject" or cfg.durability == "ephemeral" or cfg.retain_until_acked_by:
            return True
        return bool(self._limits.max_total_bytes) or (self.disk is not None and self.disk.is_scarce())

    def check(
        self, topic: Topic, s: Snapshot, count: int, nbytes: int, freed: int = 0, *, log: Log | None = None
    ) -> None:
        """Refuse `count` records of `nbytes` in all on top of `s` (docs/contract.md, 4.5 and 12).

        `freed` bytes leave another topic in the same write. `s` is of `log`, that of partition 0 if not given.

        Raises `topic_full`, `record_too_large` (larger than the whole cap) or `throttled`.
        """
        cfg, quota = topic.config, self._limits.max_total_bytes
        if self.disk is not None and cfg.durability != "ephemeral":
            self.disk.check(nbytes)
        if cfg.durability == "ephemeral" and self._memory.nbytes > (limit := self._limits.max_ephemeral_bytes) > 0:
            raise TopicsError(
                Reason.THROTTLED,
                "ephemeral topics have reached their memory limit",
                {"limit": "max_ephemeral_bytes", "max": limit},
            )
        log = log or topic.log
        if cfg.discard == "reject" or log.hold is not None:
            if (cfg.cap_records and count > cfg.cap_records) or (cfg.cap_bytes and nbytes > cfg.cap_bytes):
                raise TopicsError(Reason.RECORD_TOO_LARGE, "the write is larger than the topic's whole cap")
            records, size = (s.count, s.bytes) if cfg.discard == "reject" else _held(s, log, cfg)
            full = cfg.cap_records and records + count > cfg.cap_records
            if full or (cfg.cap_bytes and size + nbytes > cfg.cap_bytes):
                log.visible(cfg, self._clock.now_ms())  # the error reflects expiry
                detail = {
                    "topic": topic.name, "cap_records": cfg.cap_records, "cap_bytes": cfg.cap_bytes,
                    "head_seq": s.head, "earliest_seq": log.state.earliest,
                }  # fmt: skip
                raise TopicsError(Reason.TOPIC_FULL, f'topic "{topic.name}" is full', detail)
        expired = log.state.bytes - s.bytes
        if quota and self._writer.total_bytes + self._limits.elsewhere.nbytes - expired - freed + nbytes > quota:
            raise TopicsError(
                Reason.THROTTLED, "the server has reached its limit of stored bytes",
                {"limit": "max_total_bytes", "max": quota},
            )  # fmt: skip


def _held(s: Snapshot, log: Log, config: TopicConfig) -> tuple[int, int]:
    """Return the records that must stay for groups that have not acked, and their bytes if there is a byte cap."""
    first = max((log.hold or 0) + 1, s.earliest)
    size = retention.live_bytes(s, log.blocks, first, s.head + 1) if config.cap_bytes else 0
    return s.live_between(first, s.head + 1), size
