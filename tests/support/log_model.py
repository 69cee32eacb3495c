"""One log as the contract describes it: which records are alive, and what a reader is told of those that are not.

The simulation, the engine's state machines and the tests of watches all compare with this model."""

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

from topics_service.engine.model import TagMatch, TopicConfig
from topics_service.storage.block import Block

Floors = tuple[int, int, int]  # cap, ttl, trim
Origin = tuple[str, int, int]  # router, epoch and seq of the source


class Lost(NamedTuple):
    """An explicit gap."""

    first: int
    last: int
    reason: str


class OracleError(AssertionError):
    """The engine did what it must not."""


def demand(condition: object, what: str) -> None:
    """Complain of `what` unless the condition holds."""
    if not condition:
        raise OracleError(what)


@dataclass(frozen=True, slots=True)
class Rec:
    """A record. `origin` is that of a copy which was made exactly once; `priority` and `ready_at` (ms) are of jobs;
    `stored` (bytes) and `created` (ms) are of one that came in a Kafka batch: its share of it, and its own time."""

    seq: int
    ts: int
    data: bytes
    meta: bytes | None = None
    tag: bytes | None = None
    node: bytes | None = None
    origin: Origin | None = field(default=None, compare=False)
    priority: int = field(default=0, compare=False)
    ready_at: int = field(default=0, compare=False)
    stored: int | None = field(default=None, compare=False)
    created: int | None = field(default=None, compare=False)

    @property
    def size(self) -> int:
        """What caps and counters count."""
        return self.delivered if self.stored is None else self.stored

    @property
    def delivered(self) -> int:
        """Bytes that count against the byte budget of a page."""
        return len(self.data) + len(self.meta or b"")

    @property
    def time(self) -> int:
        """As Kafka clients see it."""
        return self.ts if self.created is None else self.created


class Page(NamedTuple):
    """The records of one read. Its cursor is `next`, or (with a tag filter) a lower one down to `minimum`."""

    taken: tuple[Rec, ...]
    minimum: int
    next: int


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
    cause; from `volatile_from` on (0: none) records are in memory only, and `forgettable` has the floors before each
    of their changes since then: a crash may bring back any of them."""

    head: int = 0
    live: dict[int, Rec] = field(default_factory=dict)
    cap: int = 0
    ttl: int = 0
    trim: int = 0
    gaps: tuple[Lost, ...] = ()
    last_ts: int = 0
    volatile_from: int = 0
    forgettable: tuple[Floors, ...] = ()
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

    @property
    def floors(self) -> Floors:
        """The last seqs lost to each cause."""
        return self.cap, self.ttl, self.trim

    # ------------------------------------------------------------------ changes

    def without(self, seqs: Iterable[int]) -> Self:
        """These are not alive any more."""
        gone = set(seqs)
        return replace(self, live={seq: rec for seq, rec in self.live.items() if seq not in gone})

    def expired(self, ttl_ms: int, now: int, hold: int | None) -> Self:
        """Without what is too old, and not held back: itself if that is nothing."""
        if not ttl_ms:
            return self
        gone = []
        for seq, rec in self.live.items():
            if now - rec.ts <= ttl_ms or (hold is not None and seq > hold):
                break
            gone.append(seq)
        return replace(self.without(gone)._forgettable(), ttl=gone[-1]) if gone else self

    def evicted(self, config: TopicConfig, hold: int | None) -> Self:
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
        return replace(self.without(gone)._forgettable(), cap=gone[-1]) if gone else self

    def appended(self, recs: list[Rec], config: TopicConfig, hold: int | None) -> Self:
        """With these on top, and what they push out gone."""
        s = replace(
            self,
            live={**self.live, **{rec.seq: rec for rec in recs}},
            head=recs[-1].seq,
            last_ts=recs[-1].ts,
            volatile_from=self.volatile_from or (recs[0].seq if config.durability == "ephemeral" else 0),
        )
        return s.evicted(config, hold) if config.discard == "old" else s

    def materialized(self) -> Self:
        """With all of it on the disk."""
        return replace(self, volatile_from=0, forgettable=())

    def _forgettable(self) -> Self:
        """The same, whose floors are about to change."""
        return replace(self, forgettable=(*self.forgettable, self.floors)) if self.volatile_from else self

    def burnt(self, count: int) -> Self:
        """With seqs that never held a record, for what the source of a router has lost."""
        start, head = self.head + 1, self.head + count
        if not self.live:
            return replace(self._forgettable(), head=head, trim=head)
        gaps = self.gaps
        if gaps and gaps[-1][1] == self.head and gaps[-1][2] == "source_trim":
            start, gaps = gaps[-1][0], gaps[:-1]
        return replace(self, head=head, gaps=(*gaps, Lost(start, head, "source_trim")))

    def cut(self, start: int, head: int, *, as_floor: bool) -> Self:
        """After a crash that took what is from `start` on: the log goes on above `head`."""
        kept = replace(
            self,
            head=head,
            live={seq: rec for seq, rec in self.live.items() if seq < start},
            keys={name: key for name, key in self.keys.items() if key.first < start},
            volatile_from=0,
            forgettable=(),
        )
        if start > head:
            return kept
        if as_floor:
            return replace(kept, cap=head, gaps=())
        return replace(kept, gaps=(*(gap for gap in self.gaps if gap[1] < start), Lost(start, head, "cap")))

    # -------------------------------------------------------------------- reads

    def lost_at(self, cursor: int) -> Lost | None:
        """The loss that a reader behind `cursor` meets at once."""
        at = cursor + 1
        if cursor > self.head:
            return Lost(1, self.head, "recreated")
        if at <= max(self.cap, self.ttl, self.trim):
            causes = [why for why, floor in (("cap", self.cap), ("ttl", self.ttl)) if floor >= at]
            reason = "source_trim" if not causes else causes[0] if len(causes) == 1 else "mixed"
            return Lost(at, self.earliest - 1, reason)
        found = next((gap for gap in self.gaps if gap[0] <= at <= gap[1]), None)
        return None if found is None else found._replace(first=at)

    def between(self, cursor: int, to: int) -> Iterator[Rec]:
        """The records alive behind `cursor`, up to `to`."""
        return (rec for seq, rec in self.live.items() if cursor < seq <= to)

    def gap_within(self, cursor: int, to: int) -> Lost | None:
        """The first gap that begins behind `cursor`, up to `to`."""
        return next((gap for gap in self.gaps if cursor < gap[0] <= to and gap[1] >= self._floor), None)

    def page(
        self, cursor: int, end: int, limit: int, max_bytes: int, nodes: Container[bytes] = (),
        match: TagMatch | None = None,
    ) -> Page:  # fmt: skip
        """The records behind `cursor`, where nothing is lost, up to `end` and before the next gap."""
        end = min([end, *(first - 1 for first, _, _ in self.gaps if first > cursor)])
        taken: list[Rec] = []
        examined = nbytes = 0
        last = cursor
        for rec in self.between(cursor, end):
            if not matches(match, rec.tag):
                continue
            wanted = rec.node is None or rec.node not in nodes
            if examined == limit or (wanted and taken and nbytes + rec.delivered > max_bytes):
                return Page(tuple(taken), last, last if match is None else rec.seq - 1)
            if wanted:
                taken.append(rec)
                nbytes += rec.delivered
            examined, last = examined + 1, rec.seq
        if examined < limit:
            return Page(tuple(taken), end, end)
        return Page(tuple(taken), last, last if match is None else end)

    @property
    def _floor(self) -> int:
        return max(self.cap, self.ttl, self.trim)


def matches(match: TagMatch | None, tag: bytes | None) -> bool:
    """Return whether a record with this tag matches."""
    if match is None or tag is None:
        return match is None
    return tag == match.value if match.op == "Eq" else tag.startswith(match.value)


def read(block: Block, i: int) -> Rec:
    """Return the record at a position of a block."""
    meta, tag, node = (None if column is None else column[i] for column in (block.metas, block.tags, block.nodes))
    return Rec(block.base_seq + i, block.ts_at(i), block.record_data(i), meta, tag, node)
