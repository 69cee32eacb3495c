"""Sources of routers in other shards: what was pulled from there, in place of a topic and its log."""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import count
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from topics_service.engine import config
from topics_service.engine.deletes import Deletes
from topics_service.engine.errors import TopicsError
from topics_service.engine.model import ConfigInput, Slice
from topics_service.engine.router.hops import RecentHops
from topics_service.engine.router.stretch import BYTES, Range, SourceIdentity, Stretch
from topics_service.engine.snapshot import Gap, Snapshot
from topics_service.storage.block import Block

if TYPE_CHECKING:
    from topics_service.engine.router.router import Router

_MAX_BYTES: Final = 2 * BYTES  # of stretches that are kept, but always one
_MAX_STRETCHES: Final = 64
_base_seq = attrgetter("base_seq")
_ids = count(-1, -1)


class Skips(Deletes):
    """Ranges of deleted records. Blocks of stretches hold none of them, so that it looks empty."""

    __slots__ = ("_ranges", "_starts")

    def __init__(self, ranges: list[Range]) -> None:
        super().__init__()
        self._ranges = ranges
        self._starts = [first for first, _ in ranges]

    def first_unmarked(self, start: int, stop: int) -> int:
        """See Deletes."""
        at = bisect_right(self._starts, start) - 1
        while 0 <= at < len(self._ranges) and self._ranges[at][0] <= start <= self._ranges[at][1] and start < stop:
            start = self._ranges[at][1] + 1
            at += 1
        return min(start, stop) if start > stop else start


class ForeignLog:
    """The stretches that routers still have to forward, as the log of a source: see `Log` and `LogBlocks`.

    Its view has no evict floor: what was lost is in gaps.
    """

    def __init__(self, after: int) -> None:
        self.log_id = next(_ids)
        self.view = Snapshot(head=after, deletes=Skips([]))
        self.start = after
        """The last seq that is not here any more; those above are, up to `view.head`."""
        self.nbytes = 0
        self.stretches = 0
        self._blocks: list[Block] = []
        self._dead: list[Range] = []
        self._wakes: set[Callable[[], None]] = set()

    @property
    def blocks(self) -> "ForeignLog":
        """The blocks of records."""
        return self

    def visible(self, _config: object, _now: int) -> Snapshot:
        """The state of what was pulled."""
        return self.view

    def tagged(self, seq: int, *, scan: bool = False) -> Block:
        """The block that holds the live record `seq`."""
        return self._blocks[bisect_right(self._blocks, seq, key=_base_seq) - 1]

    def inflate(self, block: Block) -> None:
        """Inflate the records of a block."""
        block.inflate()

    def take(self, stretch: Stretch) -> None:
        """Add the stretch behind `view.head`."""
        assert stretch.after == self.view.head, "stretches follow each other"
        self._blocks += map(_alone, stretch.slices)
        self._dead += stretch.dead
        self.nbytes += stretch.nbytes
        self.stretches += 1
        gaps = (*self.view.gaps, *(Gap(first, last, "source_trim") for first, last in stretch.lost))
        self.view = Snapshot(head=stretch.to, gaps=gaps, deletes=Skips(list(self._dead)))
        self.wake_all()

    def forget(self) -> None:
        """Forget all that is here: every router has forwarded it."""
        self.start = self.view.head
        self.nbytes = self.stretches = 0
        self._blocks, self._dead = [], []
        self.view = Snapshot(head=self.start, deletes=Skips([]))

    def park(self, wake: Callable[[], None]) -> None:
        """Call `wake` when there is a new stretch, or an error, until `leave(wake)`."""
        self._wakes.add(wake)

    def leave(self, wake: Callable[[], None]) -> None:
        """Undo `park`."""
        self._wakes.discard(wake)

    def wake_all(self) -> None:
        """Wake all waiters."""
        for wake in list(self._wakes):
            wake()


def _alone(part: Slice) -> Block:
    """The records of a slice as a block that has no others."""
    block = part.block.picked(range(part.start, part.stop))
    if block is not part.block:
        block.base_seq = part.block.base_seq + part.start
    return block


class ForeignSource:
    """A topic in another shard, as the source of some routers: those that stand at about the same place."""

    def __init__(self, name: str, identity: SourceIdentity, after: int) -> None:
        self.name = name
        self.identity = identity
        self.config = config.resolve(name, ConfigInput())  # no rule of it holds for what was pulled
        self.log = ForeignLog(after)
        self.head = after
        """The head of the log over there, as far as it is known."""
        self.hops = RecentHops()
        self.upstream: list[str] = []
        self.error: TopicsError | None = None
        """The reason why nothing comes at the moment."""
        self.on_room: Callable[[], None] = lambda: None
        """Called when there is room for a stretch."""
        self.routers: set[Router] = set()
        self._behind: set[Router] = set()  # those that have not forwarded all that is here

    @property
    def has_room(self) -> bool:
        """Return whether to pull another stretch."""
        return self.log.nbytes <= _MAX_BYTES - BYTES and self.log.stretches < _MAX_STRETCHES

    def take(self, stretch: Stretch) -> None:
        """Add a stretch."""
        self.error = None
        self.head = max(self.head, stretch.head)
        if stretch.upstream is not None:
            self.upstream = stretch.upstream
        if stretch.to == stretch.after:
            self.log.wake_all()
            return
        for start, stop, hops in stretch.hops:
            self.hops.add(start, stop - start, hops)
        self._behind = {router for router in self.routers if router.cursor < stretch.to}
        self.log.take(stretch)
        self._trim()

    def fail(self, error: TopicsError) -> None:
        """Note that nothing comes for now; waiting readers continue without."""
        self.error = error
        self.log.wake_all()

    def add(self, router: "Router") -> None:
        """Forward from here to a router, too."""
        self.routers.add(router)
        if router.cursor < self.log.view.head:
            self._behind.add(router)

    def remove(self, router: "Router") -> None:
        """Forget a router."""
        self.routers.discard(router)
        self.passed(router)

    def passed(self, router: "Router") -> None:
        """Note that a router has forwarded all that is here, or does not any more."""
        self._behind.discard(router)
        self._trim()

    def covers(self, cursor: int) -> bool:
        """Return whether a router at this cursor can continue from here at once."""
        return self.log.start <= cursor <= self.log.view.head

    def _trim(self) -> None:
        if not self._behind and self.log.stretches:
            self.log.forget()
            self.hops.forget_below(self.log.start + 1)
            self.on_room()


class ForeignSources:
    """All sources in other shards. The routers of a topic share one, but for those that are stuck or far behind."""

    def __init__(self) -> None:
        self.on_opened: Callable[[ForeignSource], None] = lambda _source: None
        """Called with each source that is to be pulled from now on. Set by the composition root, as `on_closed`."""
        self.on_closed: Callable[[ForeignSource], None] = lambda _source: None
        self._shared: dict[str, ForeignSource] = {}
        self._open: dict[ForeignSource, None] = {}
        self._wakes: dict[str, Callable[[], None]] = {}

    def __iter__(self) -> Iterator[ForeignSource]:
        return iter(list(self._open))

    def __bool__(self) -> bool:
        return bool(self._open)

    def join(self, name: str, identity: SourceIdentity, router: "Router", wake: Callable[[], None]) -> ForeignSource:
        """The source for a router, from its cursor on; `wake` is called with its news."""
        if router.is_moving:
            return ForeignSource(name, identity, router.cursor)  # nothing is pulled
        self._wakes[name] = wake
        shared = self._shared.get(name)
        if shared is None or shared.identity != identity or not shared.covers(router.cursor):
            found = self._opened(name, identity, router.cursor)
            if shared is None or shared.identity != identity:
                self._shared[name] = found
        else:
            found = shared
        found.add(router)
        return found

    def leave(self, source: ForeignSource, router: "Router") -> None:
        """A router does not copy from the source any more."""
        source.remove(router)
        if source.routers or source not in self._open:
            return
        del self._open[source]
        self.on_closed(source)
        source.log.wake_all()
        if self._shared.get(source.name) is source:
            del self._shared[source.name]
            left = next((other for other in self._open if other.name == source.name), None)
            if left is None:
                del self._wakes[source.name]
            else:
                self._shared[source.name] = left

    def stepped(self, source: ForeignSource, router: "Router") -> ForeignSource:
        """The source of a router that has got further: its own one gives way to the shared one where they meet."""
        if router.cursor < source.log.view.head:
            return source
        source.passed(router)
        shared = self._shared[source.name]
        return source if shared is source else self._moved(source, shared, router)

    def blocked(self, source: ForeignSource, router: "Router") -> ForeignSource:
        """The source of a router that is stuck: one of its own, so that the others continue."""
        if len(source.routers) == 1:
            return source
        return self._moved(source, self._opened(source.name, source.identity, router.cursor), router)

    def _moved(self, source: ForeignSource, other: ForeignSource, router: "Router") -> ForeignSource:
        if not other.covers(router.cursor) or other.identity != source.identity:
            return source
        other.add(router)
        self.leave(source, router)
        return other

    def _opened(self, name: str, identity: SourceIdentity, after: int) -> ForeignSource:
        source = ForeignSource(name, identity, after)
        self._open[source] = None
        source.log.park(self._wakes[name])
        self.on_opened(source)
        return source
