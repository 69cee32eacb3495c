"""What the topics of a server hold, version by version, the slow and obvious way: what watchers are measured by."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple


class Rec(NamedTuple):
    """One record, as it was sent."""

    seq: int
    ts: int
    data: bytes
    meta: bytes | None
    tag: str | None
    node: str | None

    @property
    def size(self) -> int:
        return len(self.data) + len(self.meta or b"")


class Match(NamedTuple):
    """A tag filter: Eq, or Glob with its prefix."""

    op: str
    value: str

    def holds(self, tag: str | None) -> bool:
        return tag is not None and (tag == self.value if self.op == "Eq" else tag.startswith(self.value))

    @property
    def json(self) -> list[str]:
        return ["tag", self.op, self.value + ("*" if self.op == "Glob" else "")]


class Reading(NamedTuple):
    """How a reader reads."""

    limit: int
    max_bytes: int
    nodes: frozenset[str] = frozenset()
    match: Match | None = None
    strong: bool = False


class Config(NamedTuple):
    """The configuration of a topic, as far as readers notice it."""

    durability: str = "disk"
    ttl_ms: int = 0
    cap_records: int = 0
    cap_bytes: int = 0
    dedupe_node: bool = True


DEFAULTS = Config()


class Lost(NamedTuple):
    """An explicit gap."""

    first: int
    last: int
    reason: str


class Page(NamedTuple):
    """The records of one read. Its cursor is `next`, or (with a tag filter) a lower one down to `least`."""

    taken: tuple[Rec, ...]
    minimum: int
    next: int


@dataclass(eq=False)
class Version:
    """One state of a topic, never changed. `cap`, `ttl` and `trim` are the highest seqs lost to each cause."""

    config: Config = DEFAULTS
    head: int = 0
    live: dict[int, Rec] = field(default_factory=dict)
    cap: int = 0
    ttl: int = 0
    trim: int = 0
    gaps: tuple[tuple[int, int], ...] = ()
    last_ts: int = 0
    _pages: dict[tuple[int, int, Reading], Page] = field(default_factory=dict, repr=False)

    @property
    def earliest(self) -> int:
        return next(iter(self.live), self.head + 1)

    def shows_as(self, other: "Version") -> bool:
        """Whether no reader can tell the two apart."""
        return all(getattr(self, name) == getattr(other, name)
                   for name in ("config", "head", "live", "cap", "ttl", "trim", "gaps"))  # fmt: skip

    # -------------------------------------------------------- changes, each a new version

    def expired(self, now: int) -> "Version":
        ttl = self.config.ttl_ms
        gone = [rec.seq for rec in self.live.values() if ttl and now - rec.ts > ttl]
        return self._without(gone, ttl=gone[-1]) if gone else self

    def evicted(self) -> "Version":
        config, gone = self.config, []
        count, nbytes = len(self.live), sum(rec.size for rec in self.live.values())
        for rec in self.live.values():
            many = config.cap_records and count > config.cap_records
            if not many and not (config.cap_bytes and nbytes > config.cap_bytes):
                break
            count, nbytes = count - 1, nbytes - rec.size
            gone.append(rec.seq)
        return self._without(gone, cap=gone[-1]) if gone else self

    def appended(self, records: list[Rec], now: int) -> "Version":
        """The records with seqs and times of their own."""
        s = self.expired(now)
        ts = max(now, s.last_ts)
        new = {seq: rec._replace(seq=seq, ts=ts) for seq, rec in enumerate(records, s.head + 1)}
        return replace(s, head=s.head + len(new), live=s.live | new, last_ts=ts, _pages={}).evicted()

    def deleted(self, before: int | None, match: Match | None, now: int) -> "Version":
        s = self.expired(now)
        gone = [
            rec.seq
            for rec in s.live.values()
            if (before is None or rec.seq < before) and (match is None or match.holds(rec.tag))
        ]
        return s._without(gone) if gone else s

    def reconfigured(self, config: Config, now: int) -> "list[Version]":
        """While the new config holds and its write is on its way, and after it."""
        between = replace(self.expired(now), config=config, _pages={}).expired(now)
        return [between, between.evicted()]

    def burned(self, count: int, now: int) -> "Version":
        """The given number of seqs without a record were lost at the source."""
        s = self.expired(now)
        start, head = s.head + 1, s.head + count
        if not s.live:
            return replace(s, head=head, trim=head, _pages={})
        gaps = s.gaps
        if gaps and gaps[-1][1] == s.head:
            start, gaps = gaps[-1][0], gaps[:-1]
        return replace(s, head=head, gaps=(*gaps, (start, head)), _pages={})

    def _without(self, gone: list[int], **floors: int) -> "Version":
        dead = set(gone)
        live = {seq: rec for seq, rec in self.live.items() if seq not in dead}
        return replace(self, live=live, _pages={}, **floors)

    # ------------------------------------------------------------------------------ reads

    def lost(self, cursor: int, end: int) -> Lost | None:
        """The gap that a reader at `cursor` meets, cut at `end`."""
        at = cursor + 1
        if cursor > self.head:
            return Lost(1, self.head, "recreated")
        if cursor >= end:
            return None
        if at <= max(self.cap, self.ttl, self.trim):
            causes = [why for why, floor in (("cap", self.cap), ("ttl", self.ttl)) if floor >= at]
            why = "source_trim" if not causes else causes[0] if len(causes) == 1 else "mixed"
            return Lost(at, min(self.earliest - 1, end), why)
        for start, stop in self.gaps:
            if start <= at <= stop:
                return Lost(at, min(stop, end), "source_trim")
        return None

    def page(self, cursor: int, end: int, reading: Reading) -> Page:
        """The records after `cursor`, where nothing is lost, up to `end` and before the next gap."""
        key = cursor, end, reading
        found = self._pages.get(key)
        if found is None:
            found = self._pages[key] = self._page(cursor, end, reading)
        return found

    def _page(self, cursor: int, end: int, reading: Reading) -> Page:
        end = min([end, *(start - 1 for start, _ in self.gaps if start > cursor)])
        nodes = reading.nodes if self.config.dedupe_node else frozenset()
        taken: list[Rec] = []
        examined = nbytes = 0
        last = cursor
        for rec in self.live.values():
            if not cursor < rec.seq <= end or (reading.match is not None and not reading.match.holds(rec.tag)):
                continue
            wanted = rec.node is None or rec.node not in nodes
            if examined == reading.limit or (wanted and taken and nbytes + rec.size > reading.max_bytes):
                return Page(tuple(taken), last, last if reading.match is None else rec.seq - 1)
            if wanted:
                taken.append(rec)
                nbytes += rec.size
            examined, last = examined + 1, rec.seq
        if examined < reading.limit:
            return Page(tuple(taken), end, end)
        return Page(tuple(taken), last, last if reading.match is None else end)


@dataclass(eq=False)
class Life:
    """A topic from its creation to its deletion. The server is at least at version `low`, at most at the last."""

    versions: list[Version]
    low: int = 0
    created: bool = False  # acknowledged
    ending: bool = False  # a delete was sent
    ended: bool = False  # and acknowledged

    @property
    def now(self) -> Version:
        return self.versions[-1]

    def push(self, *versions: Version) -> None:
        """What the server may be at from now on."""
        for version in versions:
            if not version.shows_as(self.now):
                self.versions.append(version)

    def settle(self) -> None:
        """The server is at the last version."""
        self.low = len(self.versions) - 1


class Mark(NamedTuple):
    """What was certain of a name at some moment: earlier lives had ended, these had come so far."""

    first: int
    low: int
    sure: bool
    """The life `first` was there."""


@dataclass(eq=False)
class Subject:
    """A name and all its lives."""

    name: str
    lives: list[Life] = field(default_factory=list)

    @property
    def alive(self) -> Life | None:
        """The life that the next operation meets."""
        return self.lives[-1] if self.lives and not self.lives[-1].ending else None

    def mark(self) -> Mark:
        first = next((i for i, life in enumerate(self.lives) if not life.ended), len(self.lives))
        here = first < len(self.lives)
        return Mark(first, self.lives[first].low if here else 0, here and self.lives[first].created)

    def since(self, mark: Mark) -> Iterator[tuple[int, int]]:
        """The lives that can have been seen since then, each with the first version that can."""
        for i in range(mark.first, len(self.lives)):
            yield i, mark.low if i == mark.first else 0

    def may_be_absent(self, mark: Mark) -> bool:
        """Whether there was a moment since then without the topic."""
        return not mark.sure or self.lives[mark.first].ending


class Model:
    """All subjects, and the time. `now` moves only by `tick`."""

    def __init__(self, names: tuple[str, ...], now: int = 1_000_000) -> None:
        self.now = now
        self.subjects = {name: Subject(name) for name in names}

        self.stirs = 0
        self._stirred = asyncio.Event()

    def now_ms(self) -> int:
        """The clock of the server."""
        return self.now

    def stir(self) -> None:
        """Wake followers without a topic: there may be one."""
        self.stirs += 1
        self._stirred.set()
        self._stirred = asyncio.Event()

    async def stirred(self, stirs: int) -> None:
        """Wait for a `stir` after the given number."""
        if self.stirs == stirs:
            await self._stirred.wait()

    def tick(self, ms: int) -> None:
        """Time passes at once; no operation may be under way."""
        self.now += ms
        self._change(lambda version: version.expired(self.now))

    def _change(self, change: Callable[[Version], Version]) -> None:
        for subject in self.subjects.values():
            if (life := subject.alive) is not None:
                life.push(change(life.now))
                life.settle()
