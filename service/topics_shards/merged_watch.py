"""Watch of several shards: one watch of each, and their frames in turn."""

from collections.abc import Callable, Mapping

from topics_service.api.watch_stream import Watch
from topics_service.engine.errors import Reason
from topics_service.engine.watch.core import refusal
from topics_service.engine.watch.frames import ErrorFrame, Position, TopicDeletedFrame, WatchFrame


class MergedWatch:
    """The same as an engine's watch, over several of them. Each topic partition is in one of them.

    The shards that have something take turns, one frame each. Within a shard the engine decides the order.
    """

    def __init__(self, wake: Callable[[str], None], max_topics: int) -> None:
        """`wake` is that of an engine's watch."""
        self.positions: dict[str, Position] = {}
        self.cursors: dict[str, int] = {}
        self.epochs: dict[str, int] = {}
        self._wake = wake
        self._max_topics = max_topics
        self._watches: dict[int, Watch] = {}
        self._due: dict[int, None] = {}  # the next to have its turn first
        self._followed: set[str] = set()
        self._refused: list[str] = []

    def waker(self, shard: int) -> Callable[[str], None]:
        """Return what the watch of a shard calls when it has something."""

        def wake(topic: str) -> None:
            self._due[shard] = None
            self._wake(topic)

        return wake

    def begin(self, watches: Mapping[int, Watch], known: Mapping[str, object]) -> None:
        """Follow with these watches, by shard. Of topics that are not `known`, those that are too many are refused."""
        shards: dict[str, int] = {}
        for shard, watch in watches.items():
            self._watches[shard] = watch
            self._due[shard] = None
            self.positions |= watch.positions
            shards |= dict.fromkeys(watch.positions, shard)
            watch.share(self.cursors, self.epochs)
        self.positions = dict(sorted(self.positions.items()))
        surplus = len(self.positions) - self._max_topics
        for name in [name for name in self.positions if name not in known][-surplus:] if surplus > 0 else ():
            self._refuse(shards[name], name)
            del self.positions[name]
        self._followed = set(self.positions)

    def share(self, cursors: dict[str, int], epochs: dict[str, int]) -> None:
        """See `engine.watch.core.Watch`."""
        for watch in self._watches.values():
            watch.share(cursors, epochs)
        self.cursors, self.epochs = cursors, epochs

    @property
    def finished(self) -> bool:
        """See `engine.watch.core.Watch`."""
        return not self._refused and all(watch.finished for watch in self._watches.values())

    @property
    def heads(self) -> dict[str, int]:
        """See `engine.watch.core.Watch`."""
        heads: dict[str, int] = {}
        for watch in self._watches.values():
            heads |= watch.heads
        return heads

    @property
    def lag(self) -> int:
        """See `engine.watch.core.Watch`."""
        return sum(watch.lag for watch in self._watches.values())

    def next(self) -> WatchFrame | ErrorFrame | None:
        """See `engine.watch.core.Watch`."""
        for _ in range(len(self._due)):
            shard = next(iter(self._due))
            del self._due[shard]  # the watch may call for another turn while it has this one
            frame = self._watches[shard].next()
            if frame is None:
                continue
            self._due[shard] = None
            if isinstance(frame, ErrorFrame):
                if frame.reason is not Reason.THROTTLED:
                    self._followed.difference_update(frame.topics)
                return frame
            name = frame.topic_partition
            if name not in self._followed and not isinstance(frame, TopicDeletedFrame):
                if len(self._followed) >= self._max_topics:
                    self._refuse(shard, name)
                    continue
                self._followed.add(name)
            if isinstance(frame, TopicDeletedFrame):
                self._followed.discard(name)
            return frame
        if self._refused:
            refused, self._refused = tuple(self._refused), []
            return refusal(refused, self._max_topics)
        return None

    def drop(self, topic: str) -> bool:
        """See `engine.watch.core.Watch`."""
        dropped = [watch.drop(topic) for watch in self._watches.values()]
        self._followed &= self.cursors.keys()
        return any(dropped)

    def close(self) -> None:
        """See `engine.watch.core.Watch`."""
        for watch in self._watches.values():
            watch.close()
        self._refused = []

    def _refuse(self, shard: int, topic: str) -> None:
        """Stop following a topic that a pattern matches, since there are as many as there may be."""
        self._watches[shard].drop(topic)
        if len(self._refused) < self._max_topics:
            self._refused.append(topic)
