"""Watch of several shards: one watch of each, and their frames in turn."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from topics_net import background
from topics_service.api.watch_stream import Watch
from topics_service.engine.errors import Reason
from topics_service.engine.watch.core import refusal
from topics_service.engine.watch.frames import ErrorFrame, Position, TopicDeletedFrame, WatchFrame

_SILENT_SECONDS: Final = 0.25  # that the first round waits for one shard
_ORDERED_SECONDS: Final = 5.0  # in all
_TIMER_SECONDS: Final = 0.001  # by which timers may fire early
_NO_TOPIC: Final = "*"


class MergedWatch:
    """The same as an engine's watch, over several of them. Each topic partition is in one of them.

    The first round is in order of names, as far as shards of other processes answer in time. Then the shards that have
    something take turns, one frame each; within a shard the engine decides the order.
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
        self._is_ordered = True
        self._began = self._told = 0.0  # the first round, and its last frame
        self._timer: asyncio.TimerHandle | None = None

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
        if any(watch.upcoming == "" for watch in watches.values()):
            self._began = self._told = asyncio.get_running_loop().time()
            self._timer = background.call_later(_SILENT_SECONDS, self._check_order)

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

    @property
    def upcoming(self) -> str | None:
        """See `Watch`."""
        return min((name for watch in self._watches.values() if (name := watch.upcoming) is not None), default=None)

    def next(self) -> WatchFrame | ErrorFrame | None:
        """See `engine.watch.core.Watch`."""
        if self._is_ordered:
            frame = self._in_order()
            if frame is not None or self._is_ordered:
                return frame
        for _ in range(len(self._due)):
            shard = next(iter(self._due))
            del self._due[shard]  # the watch may call for another turn while it has this one
            frame = self._watches[shard].next()
            if frame is not None:
                self._due[shard] = None
                if self._takes(shard, frame):
                    return frame
        if self._refused:
            refused, self._refused = tuple(self._refused), []
            return refusal(refused, self._max_topics)
        return None

    def _in_order(self) -> WatchFrame | ErrorFrame | None:
        """Return the next frame of the first round; None if there is none yet, or that round is over."""
        for _ in range(len(self.positions) + len(self._watches)):
            ranked = [(name, shard) for shard, watch in self._watches.items() if (name := watch.upcoming) is not None]
            if not ranked:
                break
            name, shard = min(ranked)
            frame = self._watches[shard].next()
            if frame is None and not name:
                return None  # its shard has not answered yet
            if frame is not None and self._takes(shard, frame):
                if self._timer is not None:
                    self._told = asyncio.get_running_loop().time()
                return frame
        self._is_ordered = False
        return None

    def _check_order(self) -> None:
        """Wait no longer for shards of other processes if they are silent, or all takes too long."""
        self._timer = None
        if not self._is_ordered:
            return
        now = asyncio.get_running_loop().time()
        until = min(self._told + _SILENT_SECONDS, self._began + _ORDERED_SECONDS)
        if now < until - _TIMER_SECONDS:
            self._timer = background.call_at(until, self._check_order)
        else:
            self._is_ordered = False
            self._wake(_NO_TOPIC)

    def _takes(self, shard: int, frame: WatchFrame | ErrorFrame) -> bool:
        """Note what a frame says of the topics that are followed; False if it is of one that is too many."""
        if isinstance(frame, ErrorFrame):
            if frame.reason is not Reason.THROTTLED:
                self._followed.difference_update(frame.topics)
            return True
        name = frame.topic_partition
        if isinstance(frame, TopicDeletedFrame):
            self._followed.discard(name)
        elif name not in self._followed:
            if len(self._followed) >= self._max_topics:
                self._refuse(shard, name)
                return False
            self._followed.add(name)
        return True

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
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self, shard: int, topic: str) -> None:
        """Stop following a topic that a pattern matches, since there are as many as there may be."""
        self._watches[shard].drop(topic)
        if len(self._refused) < self._max_topics:
            self._refused.append(topic)
