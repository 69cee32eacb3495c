"""The topics of one shard as other processes follow them."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Final, NamedTuple

from msgspec import Struct

from topics_service.engine.engine import Engine
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.model import TopicConfig
from topics_service.engine.topic import Topic

_SLICE: Final = 200  # some 3 ms


class CopiedTopic(Struct, kw_only=True):
    """A topic as its home has it. One with a `placement` has all its partitions there."""

    name: str
    topic_id: str
    epoch: int
    partition_count: int
    config: TopicConfig
    kafka_configs: dict[str, str] = {}
    placement: str = ""


class CatalogSlice(Struct, kw_only=True):
    """Topics as they are now, and names of topics that are gone. `is_whole` once all topics have come."""

    topics: list[CopiedTopic] = []
    gone: list[str] = []
    is_whole: bool = False


class FoundTopic(NamedTuple):
    """The topic of a name, None if it is not here; `shard` is where the name leads to, -1 if it leads nowhere."""

    topic: CopiedTopic | None
    shard: int = -1


class CatalogApi:
    """The topics of one shard, for other processes. Belongs to the event loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._catalog = engine.catalog
        self._followers: set[_Follower] = set()

    async def follow(self) -> AsyncGenerator[CatalogSlice, None]:
        """Tell all topics whose home is here, then each change, in slices.

        A follower that is slow gets only the last of several changes of a topic. Raises `shutting_down` when the server
        drains.
        """
        self._check()
        follower = _Follower()
        self._followers.add(follower)
        self._catalog.on_news.append(follower.note)
        try:
            while True:
                if follower.is_whole and not follower.changed:
                    follower.woken.clear()
                    await follower.woken.wait()
                    self._check()
                yield self._slice(follower)
        finally:
            self._catalog.on_news.remove(follower.note)
            self._followers.remove(follower)

    def drain(self) -> None:
        """End what follows."""
        for follower in self._followers:
            follower.woken.set()

    async def find(self, names: Sequence[str], ids: Sequence[str]) -> list[FoundTopic]:
        """The topics with these names, then those with these ids, as they are now."""
        self._check()
        found = [self._found(name, self._catalog.find(name)) for name in names]
        return found + [self._found("", self._catalog.by_id.get(each)) for each in ids]

    def _check(self) -> None:
        if self._engine.draining:
            raise TopicsError(Reason.SHUTTING_DOWN, "the server is shutting down")
        if self._engine.recovered < 1.0:
            raise TopicsError(Reason.NOT_READY, "the server is starting")

    def _found(self, name: str, topic: Topic | None) -> FoundTopic:
        copied = None if topic is None else self._copied(topic)
        redirect = None if copied is not None or not name else self._catalog.redirects.find(name)
        return FoundTopic(copied) if redirect is None else FoundTopic(None, redirect.shard)

    def _slice(self, follower: "_Follower") -> CatalogSlice:
        names = list(follower.changed)[:_SLICE]
        for name in names:
            del follower.changed[name]
        if not follower.is_whole:
            begun = len(names)
            for name in self._catalog.under([""], follower.after):
                if len(names) == begun + _SLICE:
                    break
                names.append(name)
                follower.after = name
            else:
                follower.is_whole = True
        told = CatalogSlice(is_whole=follower.is_whole)
        for name in names:
            topic = self._catalog.find(name)
            copied = None if topic is None else self._copied(topic)
            if copied is None:
                told.gone.append(name)
            else:
                told.topics.append(copied)
        return told

    def _copied(self, topic: Topic) -> CopiedTopic | None:
        """The topic as readers see it; None for one whose creation is not durable yet, or whose home is elsewhere."""
        if topic.is_part or self._catalog.unsynced(topic):
            return None
        row = topic.peek()
        return CopiedTopic(
            name=topic.name,
            topic_id=row.topic_id,
            epoch=row.epoch(topic.number),
            partition_count=topic.partition_count,
            config=topic.config,
            kafka_configs=row.kafka_configs,
            placement=row.placement,
        )


class _Follower:
    """The state of one follower: the last name of those that it got in order, and the later changes before it."""

    def __init__(self) -> None:
        self.after: str | None = None
        self.is_whole = False
        self.changed: dict[str, None] = {}
        self.woken = asyncio.Event()

    def note(self, topic: Topic) -> None:
        """Note a change, unless the topic comes later anyway."""
        if self.is_whole or (self.after is not None and topic.name <= self.after):
            self.changed[topic.name] = None
            self.woken.set()
