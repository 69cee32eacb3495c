"""The state of a log at one moment. Immutable once published: readers and pending commits keep references to it."""

import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Any, Final, get_args

from msgspec import Struct

from topics_service.engine.deletes import Deletes
from topics_service.engine.model import GapReason
from topics_service.storage import keys

_ROW = struct.Struct("<B11Qqq")
_VERSION = 2
_FIGURES = struct.Struct("<BQ32xQQ24xQ16x")  # of _ROW
_ROW_1 = struct.Struct("<B11Qq")  # without `max_ts`
_REASONS: Final[dict[bytes, GapReason]] = {reason.encode(): reason for reason in get_args(GapReason)}
_start_of = attrgetter("start")
_stop_of = attrgetter("stop")


class Gap(Struct, frozen=True):
    """An interior range of lost seqs, `start..stop` inclusive (docs/contract.md, 5.3)."""

    start: int
    stop: int
    reason: GapReason

    @classmethod
    def of_row(cls, start: int, value: bytes) -> "Gap":
        """The gap at `start` from its row. Raises struct.error or ValueError if the value is damaged."""
        stop, reason = keys.read_u64(value), _REASONS.get(value[8:])
        if reason is None:
            raise ValueError(f"a gap with the reason {value[8:]!r}")
        return cls(start, stop, reason)

    def row(self, log_id: int) -> tuple[bytes, bytes]:
        """Key and value of its row in Family.GAPS."""
        return keys.pair(log_id, self.start), keys.u64(self.stop) + self.reason.encode()


class Snapshot(Struct):
    """Everything that determines a reader's view of the log, except the records themselves.

    `head` is the highest assigned seq, `earliest` the first live one (head + 1 if none). The `evict_*` fields are the
    highest seqs lost to each cause; their maximum + 1 is the evict floor. `count` and `bytes` are of live records,
    `cum_bytes` of all records ever. Blocks up to `sealed_to` are merged and tag-indexed; rows below `reclaimed_to`
    are dropped. Records from `volatile_from` on (0: none) are in memory only. `gaps` are disjoint and in order; a topic
    that routers write into can have many. `last_ts` is the newest commit time, `max_ts` the highest time that any
    record ever had (see `StoredBlock`).
    """

    head: int = 0
    earliest: int = 1
    evict_cap: int = 0
    evict_ttl: int = 0
    evict_trim: int = 0
    count: int = 0
    bytes: int = 0
    cum_bytes: int = 0
    sealed_to: int = 0
    reclaimed_to: int = 1
    volatile_from: int = 0
    last_ts: int = 0
    max_ts: int = 0
    deletes: Deletes = Deletes()
    gaps: tuple[Gap, ...] = ()

    @property
    def evict_floor(self) -> int:
        """Cursors with a next seq below this one have lost live records (docs/contract.md, 5.4)."""
        return max(self.evict_cap, self.evict_ttl, self.evict_trim) + 1

    def eviction_reason(self, seq: int) -> GapReason:
        """The cause of the loss of live records from `seq`, below the evict floor, on."""
        causes: list[GapReason] = []
        if self.evict_cap >= seq:
            causes.append("cap")
        if self.evict_ttl >= seq:
            causes.append("ttl")
        return "source_trim" if not causes else causes[0] if len(causes) == 1 else "mixed"

    def skip_seqs(self, count: int) -> Gap | None:
        """Let `count` seqs after the head never hold a record: an explicit loss, reason `source_trim`.

        Returns the gap, None if no live record is in front of it. Consecutive losses are one gap.
        """
        start = self.head + 1
        self.head += count
        if not self.count:
            self.earliest, self.evict_trim = self.head + 1, self.head
            return None
        if self.gaps and self.gaps[-1].stop == start - 1 and self.gaps[-1].reason == "source_trim":
            start = self.gaps[-1].start
            self.gaps = self.gaps[:-1]
        gap = Gap(start, self.head, "source_trim")
        self.gaps = (*self.gaps, gap)
        return gap

    def gap_at(self, seq: int) -> Gap | None:
        """The interior gap that holds `seq`."""
        gaps = self.gaps
        if not gaps:
            return None
        i = bisect_left(gaps, seq, key=_stop_of)
        return gaps[i] if i < len(gaps) and gaps[i].start <= seq else None

    def next_gap(self, seq: int) -> Gap | None:
        """The first interior gap that begins at or after `seq`."""
        i = bisect_left(self.gaps, seq, key=_start_of)
        return self.gaps[i] if i < len(self.gaps) else None

    def gaps_around(self, seq: int) -> tuple[tuple[Gap, ...], tuple[Gap, ...]]:
        """The interior gaps that end below `seq`, and the others."""
        i = bisect_left(self.gaps, seq, key=_stop_of)
        return self.gaps[:i], self.gaps[i:]

    def is_live(self, seq: int) -> bool:
        """Return whether the record with this seq is live, regardless of its age."""
        return self.earliest <= seq <= self.head and seq not in self.deletes and self.gap_at(seq) is None

    def live_among(self, seqs: Iterable[int]) -> list[int]:
        """Return the live ones among the seqs, in order."""
        earliest, head = self.earliest, self.head
        found = self.deletes.unmarked([seq for seq in seqs if earliest <= seq <= head])
        return [seq for seq in found if self.gap_at(seq) is None] if self.gaps else found

    def live_between(self, start: int, stop: int) -> int:
        """Return the number of live records with seqs in [start, stop)."""
        start, stop = max(start, self.earliest), min(stop, self.head + 1)
        if start >= stop:
            return 0
        return stop - start - self.lost_between(start, stop) - self.deletes.count(start, stop)

    def lost_between(self, start: int, stop: int) -> int:
        """Return the number of seqs in [start, stop) that lie in interior gaps."""
        if not self.gaps:
            return 0
        first, last = bisect_left(self.gaps, start, key=_stop_of), bisect_left(self.gaps, stop, key=_start_of)
        return sum(min(gap.stop + 1, stop) - max(gap.start, start) for gap in self.gaps[first:last])

    def between_gaps(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """The ranges of [start, stop) outside interior gaps, as their first and last seq."""
        while start < stop:
            gap = self.gap_at(start)
            if gap is not None:
                start = gap.stop + 1
                continue
            gap = self.next_gap(start)
            end = stop if gap is None else min(stop, gap.start)
            yield start, end - 1
            start = end

    def first_live(self, seq: int) -> int:
        """The first live seq at or above `seq`; head + 1 if there is none."""
        end = self.head + 1
        while seq < end:
            seq = self.deletes.first_unmarked(seq, end)
            gap = self.gap_at(seq)
            if gap is None:
                break
            seq = gap.stop + 1
        return min(seq, end)

    def nth_live(self, n: int) -> int:
        """One past the n-th live seq, counted from `earliest` (n >= 1, at most `count`)."""
        at, missing = self.earliest, n
        while missing:
            stop = at + missing
            missing -= self.live_between(at, stop)
            at = stop
        return at

    def last_live_below(self, seq: int) -> int:
        """The highest live seq below `seq`, which must be above `earliest`."""
        low, high = self.earliest, seq  # there is a live one in [low, high)
        while high - low > 1:
            middle = (low + high) // 2
            if self.live_between(middle, seq):
                low = middle
            else:
                high = middle
        return low


def encode(s: Snapshot) -> bytes:
    """The stored row of a snapshot (deletes and gaps have separate rows)."""
    return _ROW.pack(
        _VERSION, s.head, s.earliest, s.evict_cap, s.evict_ttl, s.evict_trim, s.count, s.bytes, s.cum_bytes,
        s.sealed_to, s.reclaimed_to, s.volatile_from, s.last_ts, s.max_ts,
    )  # fmt: skip


def decode(row: bytes) -> Snapshot:
    """A snapshot from its stored row. Raises ValueError for a row of another version or length."""
    return Snapshot(*_fields(row))


def figures(row: bytes) -> tuple[int, int, int, int]:
    """The `head`, `count`, `bytes` and `volatile_from` of a stored row: cheaper than `decode`, which see for errors."""
    if len(row) == _FIGURES.size and row[0] == _VERSION:
        _, head, count, nbytes, volatile_from = _FIGURES.unpack(row)
        return head, count, nbytes, volatile_from
    fields = _fields(row)
    return fields[0], fields[5], fields[6], fields[10]


def _fields(row: bytes) -> list[Any]:
    """The integers of a stored row, which begin those of Snapshot."""
    try:
        version, *fields = (_ROW_1 if row[:1] == b"\x01" else _ROW).unpack(row)
    except struct.error as error:
        raise ValueError(f"log row of {len(row)} bytes") from error
    if version == 1:
        fields.append(fields[-1])
    elif version != _VERSION:
        raise ValueError(f"log row of version {version}")
    return fields
