"""The shard that a call on a topic goes to."""

from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from topics_service.api.placements import PlacementsApi
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.placement import home_of, shard_of, shard_of_placement
from topics_service.engine.redirects import ElsewhereError, Redirect
from topics_shards.shards import Method, P, R, Shards

_MAX_PLACED: Final = 65_536
_TRIES: Final = 3
_EXISTING: Final = (Reason.TOPIC_EXISTS_INCOMPATIBLE, Reason.ALREADY_EXISTS)


class Located:
    """Calls on topics, run where their partition is.

    That is a function of the name, but for topics that were made for a placement group. Their place is remembered once
    a call was led there.
    """

    def __init__(self, shards: Shards) -> None:
        self.shards = shards
        self._placed: OrderedDict[str, int] = OrderedDict()

    def home(self, name: str) -> int:
        """The shard that decides on the life of a topic without a placement, and leads to one with it."""
        return home_of(name, self.shards.count)

    def shard(self, name: str, partition: int) -> int:
        """The shard of a partition, as far as this process knows."""
        placed = self._placed.get(name) if self._placed else None
        return shard_of(name, partition, self.shards.count) if placed is None else placed

    async def call(self, name: str, partition: int, method: Method[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a method on the shard of a partition; as `Shards.call` does."""
        for _ in range(_TRIES):
            shard = self.shard(name, partition)
            try:
                return await self.shards.call(shard, method, *args, **kwargs)
            except TopicsError as error:
                if not await self._is_elsewhere(name, shard, error):
                    raise
        return await self.shards.call(self.shard(name, partition), method, *args, **kwargs)

    def learn(self, name: str, redirect: Redirect) -> None:
        """Note the place of a topic."""
        self._placed[name] = redirect.shard
        self._placed.move_to_end(name)
        if len(self._placed) > _MAX_PLACED:
            self._placed.popitem(last=False)

    def forget(self, name: str) -> None:
        """Forget the place of a topic that was deleted."""
        self._placed.pop(name, None)

    @asynccontextmanager
    async def placed(self, name: str, placement: str) -> AsyncIterator[int]:
        """Let the name lead to the shard of a placement group, and create the topic there in this context.

        Raises `topic_exists_incompatible` for a topic outside of the group.
        """
        home, shard = self.home(name), shard_of_placement(placement, self.shards.count)
        if shard == home:
            yield shard
            return
        redirect = await self.shards.call(home, PlacementsApi.reserve, name, shard, placement)
        self.learn(name, redirect)
        try:
            yield shard
        except TopicsError as error:
            if error.reason not in _EXISTING:
                self.forget(name)
                await self.shards.call(home, PlacementsApi.release, name, redirect.token)
            raise
        if await self.find(name) is None:  # another call took the topic for one that nobody makes
            await self.shards.call(home, PlacementsApi.reserve, name, shard, placement)

    async def release(self, name: str) -> None:
        """Let the name of a topic that was deleted be used in any shard."""
        if name in self._placed:
            redirect = await self.find(name)
            if redirect is not None:
                await self.shards.call(self.home(name), PlacementsApi.release, name, redirect.token)
            self.forget(name)

    async def find(self, name: str) -> Redirect | None:
        """The redirect of a name, as its home knows it now."""
        return await self.shards.call(self.home(name), PlacementsApi.find, name)

    async def _is_elsewhere(self, name: str, shard: int, error: TopicsError) -> bool:
        """Return whether a topic that was not found in a shard may be in another one, which `shard` names now."""
        if isinstance(error, ElsewhereError) and error.name == name:
            self.learn(name, error.redirect)
            return error.redirect.shard != shard
        if error.reason is not Reason.TOPIC_NOT_FOUND or (error.detail or {}).get("topic") != name:
            return False
        was_placed = name in self._placed
        redirect = await self.find(name)
        if redirect is None:
            self.forget(name)
            return was_placed
        self.learn(name, redirect)
        if redirect.shard == shard:  # nobody made the topic
            self.forget(name)
            await self.shards.call(self.home(name), PlacementsApi.release, name, redirect.token)
        return True
