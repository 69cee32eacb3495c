"""One log as the contract describes it: which records are alive, and what a reader is told of those that are not."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from topics_service.engine.model import TopicConfig

Lost = tuple[int, int, str]  # first and last seq, reason
Origin = tuple[str, int, int]  # router, epoch and seq of the source


class OracleError(AssertionError):
    """The engine did what it must not."""


def demand(condition: object, what: str) -> None:
    """Complain of `what` unless the condition holds."""
    if not condition:
        raise OracleError(what)


@dataclass(frozen=True, slots=True)
class Rec:
    """A record. `origin` is that of a copy which was made exactly once; `priority` and `ready_at` (ms) are of jobs."""

    seq: int
    ts: int
    data: bytes
    meta: bytes | None = None
    tag: bytes | None = None
    node: bytes | None = None
    origin: Origin | None = field(default=None, compare=False)
    priority: int = field(default=0, compare=False)
    ready_at: int = field(default=0, compare=False)

    @property
    def size(self) -> int:
        """What caps and counters count."""
        return len(self.data) + len(self.meta or b"")


@dataclass(frozen=True, slots=True)
class Key:
    """What is remembered of a write with an idempotency key; `promised` is the write to the disk that brought it, where
    that waited for an fsync."""

    first: int
    count: int
    head: int
    created: int
    expires: int
    promised: int | None


@dataclass(frozen=True)
class LogState:
    """A version of a log, never changed. `live` is in the order of seqs; the floors are the last seqs lost to each
    cause; from `volatile_from` on (0: none) records are in memory only."""

    head: int = 0
    live: dict[int, Rec] = field(default_factory=dict)
    cap: int = 0
    ttl: int = 0
    trim: int = 0
    gaps: tuple[Lost, ...] = ()
    last_ts: int = 0
    volatile_from: int = 0
    keys: dict[str, Key] = field(default_factory=dict)

    @property
    def earliest(self) -> int:
        """The first seq alive, or the next one."""
        return next(iter(self.live), self.head + 1)

    @property
    def count(self) -> int:
        """How many are alive."""
        return len(self.live)

    @property
    def nbytes(self) -> int:
        """Their bytes."""
        return sum(rec.size for rec in self.live.values())

    # ------------------------------------------------------------------ changes

    def without(self, seqs: Iterable[int]) -> "LogState":
        """These are not alive any more."""
        gone = set(seqs)
        return replace(self, live={seq: rec for seq, rec in self.live.items() if seq not in gone})

    def expired(self, ttl_ms: int, now: int, hold: int | None) -> "LogState":
        """Without what is too old, and not held back: itself if that is nothing."""
        if not ttl_ms:
            return self
        gone = []
        for seq, rec in self.live.items():
            if now - rec.ts <= ttl_ms or (hold is not None and seq > hold):
                break
            gone.append(seq)
        return replace(self.without(gone), ttl=gone[-1]) if gone else self

    def evicted(self, config: TopicConfig, hold: int | None) -> "LogState":
        """Without the oldest that the caps have no room for, and that are not held back."""
        count, nbytes = self.count, self.nbytes if config.cap_bytes else 0
        gone = []
        for seq, rec in self.live.items():
            over = (config.cap_records and count > config.cap_records) or (
                config.cap_bytes and nbytes > config.cap_bytes
            )
            if not over or (hold is not None and seq > hold):
                break
            gone.append(seq)
            count, nbytes = count - 1, nbytes - rec.size
        return replace(self.without(gone), cap=gone[-1]) if gone else self

    def appended(self, recs: list[Rec], config: TopicConfig, hold: int | None) -> "LogState":
        """With these on top, and what they push out gone."""
        s = replace(
            self,
            live={**self.live, **{rec.seq: rec for rec in recs}},
            head=recs[-1].seq,
            last_ts=recs[-1].ts,
            volatile_from=self.volatile_from or (recs[0].seq if config.durability == "ephemeral" else 0),
        )
        return s.evicted(config, hold) if config.discard == "old" else s

    def burnt(self, count: int) -> "LogState":
        """With seqs that never held a record, for what the source of a router has lost."""
        start, head = self.head + 1, self.head + count
        if not self.live:
            return replace(self, head=head, trim=head)
        gaps = self.gaps
        if gaps and gaps[-1][1] == self.head and gaps[-1][2] == "source_trim":
            start, gaps = gaps[-1][0], gaps[:-1]
        return replace(self, head=head, gaps=(*gaps, (start, head, "source_trim")))

    def cut(self, start: int, head: int, *, as_floor: bool) -> "LogState":
        """After a crash that took what is from `start` on: the log goes on above `head`."""
        kept = replace(
            self,
            head=head,
            live={seq: rec for seq, rec in self.live.items() if seq < start},
            keys={name: key for name, key in self.keys.items() if key.first < start},
            volatile_from=0,
        )
        if start > head:
            return kept
        if as_floor:
            return replace(kept, cap=head, gaps=())
        return replace(kept, gaps=(*(gap for gap in self.gaps if gap[1] < start), (start, head, "cap")))

    # -------------------------------------------------------------------- reads

    def lost_at(self, cursor: int) -> Lost | None:
        """The loss that a reader behind `cursor` meets at once."""
        at = cursor + 1
        if cursor > self.head:
            return 1, self.head, "recreated"
        if at <= max(self.cap, self.ttl, self.trim):
            causes = [why for why, floor in (("cap", self.cap), ("ttl", self.ttl)) if floor >= at]
            reason = "source_trim" if not causes else causes[0] if len(causes) == 1 else "mixed"
            return at, self.earliest - 1, reason
        found = next((gap for gap in self.gaps if gap[0] <= at <= gap[1]), None)
        return None if found is None else (at, found[1], found[2])

    def between(self, cursor: int, to: int) -> Iterator[Rec]:
        """The records alive behind `cursor`, up to `to`."""
        return (rec for seq, rec in self.live.items() if cursor < seq <= to)

    def gap_within(self, cursor: int, to: int) -> Lost | None:
        """The first gap that begins behind `cursor`, up to `to`."""
        return next((gap for gap in self.gaps if cursor < gap[0] <= to and gap[1] >= self._floor), None)

    @property
    def _floor(self) -> int:
        return max(self.cap, self.ttl, self.trim)
