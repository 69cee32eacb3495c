"""The shard that a call on a topic goes to."""

from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Final

from topics_service.api.parts import PartsApi
from topics_service.api.placements import PlacementsApi, is_unmade
from topics_service.engine.errors import Reason, TopicsError, is_in_another_shard, partition_not_found
from topics_service.engine.parts import TopicDefinition
from topics_service.engine.placement import home_of, shard_of, shards_of, zone_of
from topics_service.engine.redirects import ElsewhereError, Redirect
from topics_shards.shards import LostCallError, Method, P, R, Shards, StreamMethod

_MAX_PLACED: Final = 65_536
_TRIES: Final = 4


class Located:
    """Calls on topics, run where their partition is.

    That is a function of the name, but for topics that were made for a placement group, or a zone. Their placement is
    remembered once a call was led there.
    """

    def __init__(self, shards: Shards) -> None:
        self.shards = shards
        self._placed: OrderedDict[str, Sequence[int]] = OrderedDict()  # the shards of the partitions in turn, by name

    def home(self, name: str) -> int:
        """The shard that decides on the life of a topic, as far as this process knows."""
        return self.shard(name, 0)

    def shard(self, name: str, partition: int) -> int:
        """The shard of a partition, as far as this process knows."""
        placed = self._placed.get(name) if self._placed else None
        return shard_of(name, partition, self.shards.count) if placed is None else placed[partition % len(placed)]

    async def call(self, name: str, partition: int, method: Method[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a method on the shard of a partition; as `Shards.call` does.

        A shard that does not know the topic yet gets its part of it first. If there is no such topic, its home answers.
        """
        for _ in range(_TRIES):
            shard = self.shard(name, partition)
            try:
                return await self.shards.call(shard, method, *args, **kwargs)
            except TopicsError as error:
                if not is_unknown(error, name) and not is_in_another_shard(error, name):
                    raise
                is_elsewhere = await self._is_elsewhere(name, partition, shard, error)
                if not is_elsewhere and shard == self.home(name):
                    raise
            if not is_elsewhere and not await self._extended(name, partition, shard):
                break
        return await self.shards.call(self.home(name), method, *args, **kwargs)

    async def stream(
        self, name: str, method: StreamMethod[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncGenerator[R, None]:
        """Run a generator on the shard of a topic's partition 0; as `Shards.stream` does."""
        for _ in range(_TRIES):
            shard, is_open = self.shard(name, 0), False
            async with aclosing(self.shards.stream(shard, method, *args, **kwargs)) as items:
                try:
                    async for item in items:
                        is_open = True
                        yield item
                except TopicsError as error:
                    if is_open or not await self.has_moved(name, shard, error):
                        raise
                else:
                    return
        raise TopicsError(Reason.NOT_READY, f'topic "{name}" moves between shards')

    async def has_moved(self, name: str, shard: int, error: TopicsError) -> bool:
        """Return whether the error of a call says that the topic is in another shard, where calls go from now on."""
        if not is_unknown(error, name) and not is_in_another_shard(error, name):
            return False
        return await self._is_elsewhere(name, 0, shard, error)

    # ------------------------------------------------------------------- parts

    async def extend(self, name: str, shard: int) -> bool:
        """Have a part of the topic in a shard; return False if there is no such topic."""
        try:
            await self._at_home(name, PartsApi.extend, name, shard)
        except TopicsError as error:
            if not is_unknown(error, name):
                raise
            return False
        return True

    async def describe(self, name: str) -> TopicDefinition:
        """A topic as its home has it. Raises `topic_not_found`."""
        return await self._at_home(name, PartsApi.describe, name)

    async def _at_home(self, name: str, method: Method[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a method that may be repeated at the home of a topic."""
        for _ in range(_TRIES):
            home = self.home(name)
            try:
                return await self.shards.call(home, method, *args, **kwargs)
            except TopicsError as error:
                if not await self.has_moved(name, home, error):
                    raise
            except LostCallError:
                continue
        raise TopicsError(Reason.NOT_READY, f'the home of topic "{name}" does not answer')

    async def _extended(self, name: str, partition: int, shard: int) -> bool:
        """As `extend`, for a partition. Raises `partition_not_found`."""
        try:
            found = await self.describe(name)
        except TopicsError as error:
            if not is_unknown(error, name):
                raise
            return False
        if found.placement:
            self._learn(name, found.placement)  # there is no redirect to a home that is the name's
        else:
            self.forget(name)
        if not 0 <= partition < found.partition_count:
            raise partition_not_found(name, partition, found.partition_count)
        return self.shard(name, partition) != shard or await self.extend(name, shard)

    # --------------------------------------------------------- placement groups

    @asynccontextmanager
    async def placed(self, name: str, placement: str) -> AsyncIterator[int]:
        """Let the name lead to the shard of a placement, and create the topic there in this context.

        Raises `topic_exists_incompatible` for a topic that is elsewhere.
        """
        home, shard = home_of(name, self.shards.count), shard_of(name, 0, self.shards.count, placement)
        if shard == home:
            yield shard
            return
        redirect = await self.shards.call(home, PlacementsApi.reserve, name, shard, placement)
        self._learn(name, redirect.placement)
        try:
            yield shard
        except TopicsError as error:
            if is_unmade(redirect.token, error):
                self.forget(name)
                await self._release(name, redirect)
            raise
        if await self.find(name) is None:  # another call took the topic for one that is not being made
            await self.shards.call(home, PlacementsApi.reserve, name, shard, placement)

    async def release(self, name: str) -> None:
        """Let the name of a topic that was deleted be used in any shard."""
        if name in self._placed:
            redirect = await self.find(name)
            if redirect is not None:
                await self._release(name, redirect)
            self.forget(name)

    async def find(self, name: str) -> Redirect | None:
        """The redirect of a name, as the shard of the name knows it now."""
        return await self.shards.call(home_of(name, self.shards.count), PlacementsApi.find, name)

    def forget(self, name: str) -> None:
        """Forget the place of a topic that was deleted."""
        self._placed.pop(name, None)

    async def placement(self, name: str, zone: str) -> str | None:
        """The placement of a topic, or one in the zone that is reserved for it; None if there is neither."""
        try:
            return (await self.describe(name)).placement
        except TopicsError as error:
            if not is_unknown(error, name):
                raise
        redirect = await self.find(name)
        return redirect.placement if redirect is not None and zone_of(redirect.placement) == zone else None

    def _learn(self, name: str, placement: str) -> None:
        self._placed[name] = shards_of(name, self.shards.count, placement)
        self._placed.move_to_end(name)
        if len(self._placed) > _MAX_PLACED:
            self._placed.popitem(last=False)

    async def _release(self, name: str, redirect: Redirect) -> None:
        await self.shards.call(home_of(name, self.shards.count), PlacementsApi.release, name, redirect.token)

    async def _is_elsewhere(self, name: str, partition: int, shard: int, error: TopicsError) -> bool:
        """Return whether a partition that was not found in a shard may be in another one, where calls go now."""
        if isinstance(error, ElsewhereError) and error.name == name:
            self._learn(name, error.redirect.placement)
            return self.shard(name, partition) != shard
        was_placed = name in self._placed
        redirect = await self.find(name)
        if redirect is None:
            if was_placed and self.home(name) == home_of(name, self.shards.count):
                return False  # no redirect leads there, and its home knows
            self.forget(name)
            return was_placed
        self._learn(name, redirect.placement)
        if redirect.shard == shard and partition == 0:  # the topic was not made
            self.forget(name)
            await self._release(name, redirect)
            return True
        return self.shard(name, partition) != shard


def is_unknown(error: TopicsError, name: str) -> bool:
    """Return whether the error says that there is no such topic, or none that its shard knows."""
    return error.reason is Reason.TOPIC_NOT_FOUND and (error.detail or {}).get("topic") == name
