"""The graph of routers. A topic has at most one source (fan-in is refused), so each has a single way upstream."""

from collections.abc import Iterator

Edge = tuple[str, str]


class RouterGraph:
    """Edges from source to destination, counted: several routers may have the same two ends."""

    def __init__(self) -> None:
        self._feeders: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def add(self, source: str, dest: str) -> None:
        """Add an edge."""
        self._feeders[dest] = source
        self._counts[dest] = self._counts.get(dest, 0) + 1

    def remove(self, source: str, dest: str) -> None:
        """Remove an edge."""
        self._counts[dest] -= 1
        if not self._counts[dest]:
            del self._counts[dest], self._feeders[dest]

    def feeder(self, dest: str) -> str | None:
        """The source of a destination."""
        return self._feeders.get(dest)

    def cycle(self, source: str, dest: str, without: Edge | None = None) -> list[str] | None:
        """Return the cycle that an edge closes, from its source back to it; None if it closes none.

        One router with the ends `without` is ignored.
        """
        path = [source]
        for at in self._upstream(source, without):
            path.append(at)
            if at == dest:
                return [source, *reversed(path)]
        return None

    def rings(self) -> set[str]:
        """Return the topics on a cycle. O(topics with routers)."""
        done: set[str] = set()
        rings: set[str] = set()
        for start in self._feeders:
            path: dict[str, None] = {}
            at: str | None = start
            while at is not None and at not in done and at not in path:
                path[at] = None
                at = self._feeders.get(at)
            if at in path:
                names = list(path)
                rings.update(names[names.index(at) :])
            done.update(path)
        return rings

    def _upstream(self, topic: str, without: Edge | None) -> Iterator[str]:
        """Yield the direct and indirect sources of `topic`, until one repeats."""
        seen = {topic}
        at = topic
        while (feeder := self._feeders.get(at)) is not None and feeder not in seen:
            if (feeder, at) == without and self._counts[at] == 1:
                return
            yield feeder
            seen.add(feeder)
            at = feeder
