"""What the topics of a server hold, version by version, the slow and obvious way: what watchers are measured by."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from support.log_model import LogState, Lost, Page, Rec, matches
from topics_service.engine.model import TagMatch, TopicConfig

DEFAULTS = TopicConfig()


class Reading(NamedTuple):
    """How a reader reads."""

    limit: int
    max_bytes: int
    nodes: frozenset[bytes] = frozenset()
    match: TagMatch | None = None
    strong: bool = False

    @property
    def node_names(self) -> list[str]:
        """As requests have them."""
        return [node.decode() for node in sorted(self.nodes)]


def tag_json(match: TagMatch) -> list[str]:
    """A condition on tags as JSON has it."""
    return ["tag", match.op, match.value.decode() + ("*" if match.op == "Glob" else "")]


@dataclass(frozen=True, eq=False)
class Version(LogState):
    """One state of a topic with its configuration, never changed."""

    config: TopicConfig = DEFAULTS
    _pages: dict[tuple[int, int, Reading], Page] = field(default_factory=dict, init=False, repr=False)

    def shows_as(self, other: "Version") -> bool:
        """Whether no reader can tell the two apart."""
        return all(getattr(self, name) == getattr(other, name)
                   for name in ("config", "head", "live", "cap", "ttl", "trim", "gaps"))  # fmt: skip

    # -------------------------------------------------------- changes, each a new version

    def at(self, now: int) -> "Version":
        """Without what is too old then."""
        return self.expired(self.config.ttl_ms, now, None)

    def written(self, records: list[Rec], now: int) -> "Version":
        """With these on top, which get seqs and times of their own."""
        s = self.at(now)
        ts = max(now, s.last_ts)
        return s.appended([replace(rec, seq=seq, ts=ts) for seq, rec in enumerate(records, s.head + 1)], s.config, None)

    def deleted(self, before: int | None, match: TagMatch | None, now: int) -> "Version":
        s = self.at(now)
        gone = [rec.seq for rec in s.live.values() if (before is None or rec.seq < before) and matches(match, rec.tag)]
        return s.without(gone) if gone else s

    def reconfigured(self, config: TopicConfig, now: int) -> "list[Version]":
        """While the new config holds and its write is on its way, and after it."""
        between = replace(self.at(now), config=config).at(now)
        return [between, between.evicted(config, None)]

    # ------------------------------------------------------------------------------ reads

    def lost(self, cursor: int, end: int) -> Lost | None:
        """The gap that a reader at `cursor` meets, cut at `end`."""
        found = self.lost_at(cursor)
        if found is None or cursor > self.head:
            return found
        return None if cursor >= end else found._replace(last=min(found.last, end))

    def read(self, cursor: int, end: int, reading: Reading) -> Page:
        """The records after `cursor`, where nothing is lost, up to `end` and before the next gap."""
        key = cursor, end, reading
        found = self._pages.get(key)
        if found is None:
            nodes = reading.nodes if self.config.dedupe_node else ()
            found = self.page(cursor, end, reading.limit, reading.max_bytes, nodes, reading.match)
            self._pages[key] = found
        return found


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
        self._change(lambda version: version.at(self.now))

    def _change(self, change: Callable[[Version], Version]) -> None:
        for subject in self.subjects.values():
            if (life := subject.alive) is not None:
                life.push(change(life.now))
                life.settle()
