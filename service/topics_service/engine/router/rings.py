"""Cycles of routers: which topics are on one, and how often their records went round."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from topics_service.engine.router.foreign import ForeignSource
from topics_service.engine.router.graph import RouterGraph
from topics_service.engine.router.hops import Hops, RecentHops

if TYPE_CHECKING:
    from topics_service.engine.router.router import Router

_MAX_UPSTREAM: Final = 1000
_NO_HOPS: Final = Hops()  # never changed


class EndHops(NamedTuple):
    """The hop counts of a router's ends. Over shards it is on a cycle if its `dest` is upstream of itself."""

    source: Hops
    dest: Hops
    rings: "Rings | None"
    name: str

    def is_cycle(self) -> bool:
        """Return whether records that went round often enough end here."""
        return self.rings is None or self.name in self.rings.upstream(self.name)


class Rings:
    """Cycles are found in the graph of this engine's routers. Of those over several shards each has a part; there every
    copy is counted, and sources say what is upstream of them.
    """

    def __init__(self, graph: RouterGraph, sources: dict[str, dict[str, "Router"]]) -> None:
        """`sources` are the routers by source, then by name."""
        self.is_sharded = False
        """True if routers of other engines may be part of a cycle."""
        self.topics: set[str] = set()
        """Those on a cycle within this engine."""
        self._graph = graph
        self._from = sources
        self._hops: dict[str, Hops] = {}  # of the logs of those
        self._recent: dict[str, RecentHops] = {}  # of those of other destinations

    def __bool__(self) -> bool:
        return bool(self.topics)

    def find(self) -> None:
        """Look for cycles again, after a change."""
        self.topics = self._graph.rings()
        self._hops = {name: self._hops.get(name) or Hops() for name in self.topics}

    def hops(self, router: "Router") -> EndHops | None:
        """The counts for a slice of a router; None if it is on no cycle."""
        dest = router.config.dest
        if dest in self.topics:  # and then its only source is
            return EndHops(self._hops[router.config.source], self._hops[dest], None, dest)
        if not self.is_sharded:
            return None
        source = router.source.hops if isinstance(router.source, ForeignSource) else self.of(router.config.source)
        recent = self._recent.get(dest) or self._recent.setdefault(dest, RecentHops())
        return EndHops(source, recent, self, dest)

    def of(self, topic: str) -> Hops:
        """The counts of a topic's records."""
        return self._hops.get(topic) or self._recent.get(topic) or _NO_HOPS

    def stepped(self, router: "Router") -> None:
        """Forget counts that no router needs, after a slice of one."""
        if router.config.dest in self.topics:
            source = router.config.source
            ring = (other.cursor for other in self._from[source].values() if other.config.dest in self.topics)
            self._hops[source].forget_below(min(ring) + 1)

    def forget(self, dest: str) -> None:
        """Forget a topic that is no destination any more."""
        self._recent.pop(dest, None)

    def upstream(self, topic: str) -> list[str]:
        """The direct and indirect sources of a topic, as far as they are known, until one repeats."""
        found: dict[str, None] = {}
        for name in self._sources(topic):
            if name in found or len(found) == _MAX_UPSTREAM:
                break
            found[name] = None
        return list(found)

    def _sources(self, topic: str) -> Iterator[str]:
        feeder = self._graph.feeder(topic)
        while feeder is not None:
            yield feeder
            source = _source(self._from.get(feeder, {}).values())
            if isinstance(source, ForeignSource):
                yield from source.upstream
                return
            feeder = self._graph.feeder(feeder)


def _source(routers: "Iterable[Router]") -> object:
    return next((router.source for router in routers), None)
