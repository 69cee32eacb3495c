"""Parts of topics that shards are known to have, so that calls on several topics can go there at once."""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from topics_shards.catalog import ShardedCatalog
from topics_shards.locating import Located

_MAX_KNOWN: Final = 65_536


class KnownParts:
    """The parts that this process had made: a shard gets its part of a topic with the first use."""

    def __init__(self, located: Located, catalog: ShardedCatalog) -> None:
        self._located = located
        self._catalog = catalog
        self._known: OrderedDict[tuple[int, str], None] = OrderedDict()

    def lacking(self, shard: int, names: Iterable[str]) -> list[tuple[str, str]]:
        """The existing topics among these, with their ids, that the shard may not know."""
        found: list[tuple[str, str]] = []
        for name in dict.fromkeys(names):
            topic = self._catalog.find(name)
            if topic is None or self._catalog.shard(name, 0) == shard:
                continue
            key = shard, topic.identity.topic_id
            if key not in self._known:
                found.append((name, topic.identity.topic_id))
        return found

    async def make(self, shard: int, topics: Iterable[tuple[str, str]]) -> None:
        """Have the parts made. Raises TopicsError if a home or the shard does not answer."""
        await asyncio.gather(*(self._make(shard, name, topic_id) for name, topic_id in topics))

    async def have(self, shard: int, names: Iterable[str]) -> None:
        """Have the shard know the topics."""
        lacking = self.lacking(shard, names)
        if lacking:
            await self.make(shard, lacking)

    async def _make(self, shard: int, name: str, topic_id: str) -> None:
        if await self._located.extend(name, shard):
            self._known[shard, topic_id] = None
            if len(self._known) > _MAX_KNOWN:
                self._known.popitem(last=False)
