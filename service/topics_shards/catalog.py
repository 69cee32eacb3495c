"""The topics of all shards: those of this process as they are, and a copy of the others'."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from heapq import merge
from itertools import islice
from operator import attrgetter
from typing import Final
from uuid import UUID

from sortedcontainers import SortedDict

from topics_net import background
from topics_net.rate_limited_logger import RateLimitedLogger
from topics_service.api.catalog import CatalogView, TopicView, topic_id_of
from topics_service.api.catalog_copy import CatalogApi, CatalogSlice, CopiedTopic, FoundTopic
from topics_service.engine import names as prefixed
from topics_service.engine.errors import TopicsError
from topics_service.engine.model import Identity, TopicConfig
from topics_service.engine.placement import home_of, shard_of
from topics_shards.shards import LostCallError, Shard, Shards

_FIRST_BACKOFF: Final = 0.05
_MAX_BACKOFF: Final = 1.0
_MAX_CONFIGS: Final = 1024
_SWEPT: Final = 5000
_NO_CONFIGS: Final[Mapping[str, str]] = {}


class TopicCopy:
    """A topic of another process; see TopicView."""

    __slots__ = ("config", "identity", "kafka_configs", "name", "shard", "told")

    def __init__(self, name: str, shard: int) -> None:
        self.name = name
        self.shard = shard
        """Its home."""
        self.told = 0
        """The number of the following in which it came last."""
        self.identity: Identity
        self.config: TopicConfig
        self.kafka_configs: Mapping[str, str]

    @property
    def is_part(self) -> bool:
        """See TopicView."""
        return False

    def partition_bytes(self, _number: int) -> int:
        """Nothing is here."""
        return 0


class ShardedCatalog:
    """The topics of all shards; see `Catalog`. Belongs to the event loop.

    Each other shard is followed, so a change there is seen here some milliseconds later; `refresh` asks where a topic
    is. While a shard can't be reached its topics stay as they were.
    """

    def __init__(self, shards: Shards) -> None:
        self.on_changed: list[Callable[[], None]] = []
        self._shards = shards
        self._views: dict[int, CatalogView] = {}
        self._copies: SortedDict[str, TopicCopy] = SortedDict()
        self._by_id: dict[str, TopicCopy] = {}
        self._configs: dict[TopicConfig, TopicConfig] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._whole: dict[int, asyncio.Event] = {}
        self._log = RateLimitedLogger(logging.getLogger("topics.shards"))

    # ------------------------------------------------------------------ following

    def start(self) -> None:
        """Follow the other shards, and see the topics of those of this process. Call it once these have recovered."""
        for number in range(self._shards.count):
            shard = self._shards.direct(number)
            if shard is not None:
                self._see(number, shard)
            else:
                self._whole[number] = asyncio.Event()
                self._tasks.append(background.start(self._follow(number)))

    async def whole(self) -> None:
        """Return once the topics of all shards are known."""
        for event in self._whole.values():
            await event.wait()

    async def stop(self) -> None:
        """Follow no more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _see(self, number: int, shard: Shard) -> None:
        view = self._views[number] = shard.api.catalog
        view.on_changed.append(self._changed)

    async def _follow(self, shard: int) -> None:
        number, backoff = 0, _FIRST_BACKOFF
        while True:
            number += 1
            is_whole = False
            try:
                async with aclosing(self._shards.stream(shard, CatalogApi.follow)) as slices:
                    async for told in slices:
                        self._take(shard, number, told)
                        if told.is_whole and not is_whole:
                            is_whole, backoff = True, _FIRST_BACKOFF
                            await self._sweep(shard, number)
                            self._whole[shard].set()
                        await asyncio.sleep(0)  # a shard of this process tells all of them without waiting
            except (TopicsError, LostCallError) as error:
                if backoff > _FIRST_BACKOFF:  # not one that moves
                    self._log.warning("the topics of shard %d are not followed: %s", shard, error)
            except Exception as error:
                self._log.error("the topics of shard %d are not followed: %r", shard, error)
            await asyncio.sleep(backoff)
            backoff = min(2 * backoff, _MAX_BACKOFF)

    def _take(self, shard: int, number: int, told: CatalogSlice) -> None:
        """Take over a slice of what a shard tells."""
        changed = False
        for topic in told.topics:
            changed |= self._put(shard, number, topic)
        for name in told.gone:
            changed |= self._drop(shard, name)
        if changed:
            self._changed()

    def _put(self, shard: int, number: int, topic: CopiedTopic) -> bool:
        """Take over a topic; return whether it is new or has more partitions."""
        copy = self._copies.get(topic.name)
        if copy is None or copy.identity.topic_id != topic.topic_id:
            self._forget(copy)
            copy = self._copies[topic.name] = self._by_id[topic.topic_id] = TopicCopy(topic.name, shard)
            before = 0
        else:
            before = copy.identity.partition_count
        copy.told = number or copy.told
        if before != topic.partition_count:
            copy.identity = Identity(
                topic_id=topic.topic_id,
                slug="",
                rrl="",
                epoch=topic.epoch,
                partition_count=topic.partition_count,
                placement=topic.placement,
            )
        if len(self._configs) >= _MAX_CONFIGS:
            self._configs.clear()
        copy.config = self._configs.setdefault(topic.config, topic.config)
        copy.kafka_configs = topic.kafka_configs or _NO_CONFIGS
        return before != topic.partition_count

    def _drop(self, shard: int, name: str) -> bool:
        copy = self._copies.get(name)
        if copy is None or copy.shard != shard:
            return False
        del self._copies[name]
        self._forget(copy)
        return True

    def _forget(self, copy: TopicCopy | None) -> None:
        if copy is not None:
            self._by_id.pop(copy.identity.topic_id, None)

    async def _sweep(self, shard: int, number: int) -> None:
        """Drop the topics of a shard that it did not tell this time. Looks at all topics, slice by slice."""
        copies, names = self._copies, [""]
        while names:
            names = list(islice(copies.irange(minimum=names[-1], inclusive=(False, True)), _SWEPT))
            gone = [name for name in names if copies[name].shard == shard and copies[name].told != number]
            if gone:
                self._take(shard, number, CatalogSlice(gone=gone))
            await asyncio.sleep(0)

    def _changed(self) -> None:
        for callback in self.on_changed:
            callback()

    # ------------------------------------------------------------------ the surface of Catalog

    def find(self, name: str | None, topic_id: UUID | None = None) -> TopicView | None:
        """See Catalog."""
        if name:
            view = self._views.get(home_of(name, self._shards.count))
            topic = None if view is None else view.home(name)
            if topic is not None:
                return topic
            copy: TopicCopy | None = self._copies.get(name)
        else:
            copy = None if topic_id is None else self._by_id.get(topic_id_of(topic_id))
        if copy is not None:
            return copy
        for view in self._views.values():  # it may be placed by its creator
            topic = view.home(name, topic_id)
            if topic is not None:
                return topic
        return None

    def shard(self, name: str, partition: int) -> int:
        """The shard of a partition."""
        copy = self._copies.get(name)
        if copy is not None:
            return shard_of(name, partition, self._shards.count, copy.identity.placement)
        for view in self._views.values():
            topic = view.home(name)
            if topic is not None and topic.identity.placement:
                return shard_of(name, partition, self._shards.count, topic.identity.placement)
        return shard_of(name, partition, self._shards.count)

    def within(self, prefixes: tuple[str, ...] | None, after: str | None = None) -> Iterator[TopicView]:
        """See Catalog."""
        ranges = [view.within(prefixes, after) for view in self._views.values()]
        return merge(*ranges, self._copied_within(prefixes, after or ""), key=attrgetter("name"))

    def _copied_within(self, prefixes: tuple[str, ...] | None, after: str) -> Iterator[TopicView]:
        for prefix in prefixed.narrow("", prefixes):
            for name in self._copies.irange(minimum=max(prefix, after)):
                if not name.startswith(prefix):
                    break
                if name != after:
                    yield self._copies[name]

    def exists(self, name: str) -> bool:
        """See Catalog."""
        view = self._views.get(home_of(name, self._shards.count))
        return (view is not None and view.exists(name)) or self.find(name) is not None

    def check_capacity(self, partitions: int) -> None:
        """Nothing: the homes of topics have their limits."""

    def is_routed(self, name: str) -> bool:
        """See Catalog, as far as this process knows: the home of a topic refuses what a router forbids."""
        view = self._views.get(self.shard(name, 0))
        return view is not None and view.is_routed(name)

    def is_behind(self, name: str) -> bool:
        """See Catalog; for topics of this process: other ones wait themselves."""
        view = self._views.get(self.shard(name, 0))
        return view is not None and view.is_behind(name)

    def refresh(self, names: Iterable[str], ids: Iterable[UUID] = ()) -> Awaitable[None] | None:
        """See Catalog."""
        asked: dict[int, tuple[list[str], list[str]]] = {}
        for name in dict.fromkeys(names):
            copy = self._copies.get(name)
            shard = home_of(name, self._shards.count) if copy is None else copy.shard
            view = self._views.get(shard)
            if view is None or view.home(name) is None:
                asked.setdefault(shard, ([], []))[0].append(name)
        unknown = [topic_id_of(each) for each in dict.fromkeys(ids) if self.find(None, each) is None]
        if unknown:
            for shard in self._whole:
                asked.setdefault(shard, ([], []))[1].extend(unknown)
        return self._refreshed(asked) if asked else None

    async def _refreshed(self, asked: Mapping[int, tuple[list[str], list[str]]]) -> None:
        led: dict[int, tuple[list[str], list[str]]] = {}
        told = await asyncio.gather(*(self._told(shard, names, ids) for shard, (names, ids) in asked.items()))
        for (names, _), found in zip(asked.values(), told, strict=True):
            for name, each in zip(names, found, strict=False):
                if each.shard >= 0:
                    led.setdefault(each.shard, ([], []))[0].append(name)
        if led:
            await asyncio.gather(*(self._told(shard, names, ids) for shard, (names, ids) in led.items()))

    async def _told(self, shard: int, names: Sequence[str], ids: Sequence[str]) -> list[FoundTopic]:
        """Take over what a shard says of some topics; nothing if it does not answer."""
        try:
            found = await self._shards.call(shard, CatalogApi.find, list(names), list(ids))
        except (TopicsError, LostCallError) as error:
            self._log.warning("shard %d was not asked for topics: %s", shard, error)
            return []
        if shard not in self._views:
            topics = [each.topic for each in found if each.topic is not None]
            gone = [name for name, each in zip(names, found, strict=False) if each.topic is None]
            self._take(shard, 0, CatalogSlice(topics=topics, gone=gone))
        return found
