"""A topic as the contract describes it, the slow and obvious way: a list of records with marks."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from topics_service.engine.model import TopicConfig


@dataclass(frozen=True)
class Rec:
    """One record. What came in a Kafka batch has a time of its own, and counts its share of the batch as `stored`."""

    seq: int
    ts: int
    data: bytes
    meta: bytes | None
    tag: bytes | None
    node: bytes | None
    stored: int | None = None
    created: int | None = None

    @property
    def size(self) -> int:
        """For counters and caps."""
        return self.delivered if self.stored is None else self.stored

    @property
    def delivered(self) -> int:
        """For the byte budget of a page."""
        return len(self.data) + len(self.meta or b"")

    @property
    def time(self) -> int:
        """As Kafka clients see it."""
        return self.ts if self.created is None else self.created


@dataclass(frozen=True)
class Key:
    """What is remembered of an idempotent append."""

    first: int
    count: int
    head: int
    created: int
    expires: int


@dataclass(frozen=True)
class Page:
    """What a read should give."""

    seqs: list[int]
    next_from: int
    tombstone: tuple[int, int, str] | None


@dataclass
class State:
    """One version of a topic. `dead` says why a record is gone: cap, ttl or del. Treated as immutable."""

    head: int = 0
    records: dict[int, Rec] = field(default_factory=dict)
    dead: dict[int, str] = field(default_factory=dict)
    gaps: tuple[tuple[int, int], ...] = ()
    crash_floor: int = 0  # seqs up to here were lost to a crash that left nothing live
    last_ts: int = 0
    volatile_from: int = 0
    keys: dict[str, Key] = field(default_factory=dict)

    def copy(self) -> "State":
        return replace(self, records=dict(self.records), dead=dict(self.dead), keys=dict(self.keys))

    def live(self) -> list[Rec]:
        return [record for seq, record in self.records.items() if seq not in self.dead]

    @property
    def earliest(self) -> int:
        live = self.live()
        return live[0].seq if live else self.head + 1

    @property
    def count(self) -> int:
        return len(self.live())

    @property
    def nbytes(self) -> int:
        return sum(record.size for record in self.live())

    def floor(self, why: str) -> int:
        """The highest seq lost to this cause."""
        lost = max((seq for seq, reason in self.dead.items() if reason == why), default=0)
        return max(lost, self.crash_floor) if why == "cap" else lost

    def gap_at(self, seq: int) -> tuple[int, int] | None:
        return next((gap for gap in self.gaps if gap[0] <= seq <= gap[1]), None)

    # -------------------------------------------------------------- changes (each gives a new version)

    def expired(self, ttl_ms: int, now: int) -> "State":
        gone = [r.seq for r in self.live() if ttl_ms and now - r.ts > ttl_ms]
        return self._without(gone, "ttl")

    def evicted(self, config: TopicConfig) -> "State":
        live, nbytes = self.live(), self.nbytes
        gone = []
        while live and (
            (config.cap_records and len(live) > config.cap_records) or (config.cap_bytes and nbytes > config.cap_bytes)
        ):
            first = live.pop(0)
            nbytes -= first.size
            gone.append(first.seq)
        return self._without(gone, "cap")

    def deleted(self, seqs: Iterable[int]) -> "State":
        return self._without(seqs, "del")

    def _without(self, seqs: Iterable[int], why: str) -> "State":
        changed = {seq: why for seq in seqs if seq not in self.dead}
        return replace(self, dead={**self.dead, **changed}) if changed else self

    def lost(self, start: int, head: int, *, as_floor: bool, forget_from: int) -> "State":
        """The records from `start` on did not survive (nor how those from `forget_from` on were gone already); the log
        goes on above `head`."""
        state = replace(
            self,
            head=head,
            records={seq: r for seq, r in self.records.items() if seq < start},
            dead={seq: why for seq, why in self.dead.items() if seq < max(start, forget_from)},
            keys={key: value for key, value in self.keys.items() if value.first < start},
            volatile_from=0,
        )
        if start > head:
            return state
        if as_floor:
            return replace(state, crash_floor=head, gaps=())
        return replace(state, gaps=(*self.gaps, (start, head)))

    # ---------------------------------------------------------------- reads

    def page(self, from_seq: int, limit: int, max_bytes: int, nodes: frozenset[bytes]) -> Page:
        """One read, seq by seq."""
        at = from_seq + 1
        tombstone = None
        if from_seq > self.head:
            tombstone, at = (1, self.head, "recreated"), self.earliest
        elif at <= max(self.floor("cap"), self.floor("ttl")):
            causes = [why for why in ("cap", "ttl") if self.floor(why) >= at]
            tombstone = (at, self.earliest - 1, causes[0] if len(causes) == 1 else "mixed")
            at = self.earliest
        elif (gap := self.gap_at(at)) is not None:
            tombstone, at = (at, gap[1], "cap"), gap[1] + 1
        taken: list[int] = []
        examined = nbytes = 0
        last = at - 1
        for seq in range(at, self.head + 1):
            if self.gap_at(seq) is not None:
                return Page(taken, seq - 1 if examined < limit else last, tombstone)
            if seq in self.dead or seq not in self.records:
                continue
            record = self.records[seq]
            if examined == limit:
                return Page(taken, last, tombstone)
            if record.node is None or record.node not in nodes:
                if taken and nbytes + record.delivered > max_bytes:
                    return Page(taken, last, tombstone)
                nbytes += record.delivered
                taken.append(seq)
            examined += 1
            last = seq
        return Page(taken, self.head if examined < limit else last, tombstone)
