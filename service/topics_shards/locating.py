"""The shard that a call on a topic goes to."""

from typing import Final

from topics_service.api.parts import PartsApi
from topics_service.engine.errors import Reason, TopicsError, partition_not_found
from topics_service.engine.placement import home_of, shard_of
from topics_shards.shards import LostCallError, Method, P, R, Shards

_TRIES: Final = 3


class Located:
    """Calls on topics, run where their partition is."""

    def __init__(self, shards: Shards) -> None:
        self.shards = shards

    def home(self, name: str) -> int:
        """The shard that decides on the config and the life of a topic."""
        return home_of(name, self.shards.count)

    def shard(self, name: str, partition: int) -> int:
        """The shard of a partition, as far as this process knows."""
        return shard_of(name, partition, self.shards.count)

    async def call(self, name: str, partition: int, method: Method[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a method on the shard of a partition; as `Shards.call` does.

        A shard that does not know the topic yet gets its part of it first. If there is no such topic, its home answers.
        """
        shard, home = self.shard(name, partition), self.home(name)
        for _ in range(_TRIES):
            try:
                return await self.shards.call(shard, method, *args, **kwargs)
            except TopicsError as error:
                if shard == home or not is_unknown(error, name):
                    raise
            if not await self._extended(name, partition, shard):
                return await self.shards.call(home, method, *args, **kwargs)
        return await self.shards.call(shard, method, *args, **kwargs)

    async def extend(self, name: str, shard: int) -> bool:
        """Have a part of the topic in a shard; return False if there is no such topic."""
        for left in reversed(range(_TRIES)):
            try:
                await self.shards.call(self.home(name), PartsApi.extend, name, shard)
            except LostCallError as error:
                if not left:
                    raise TopicsError(Reason.NOT_READY, f'the home of topic "{name}" does not answer') from error
            except TopicsError as error:
                if not is_unknown(error, name):
                    raise
                return False
            else:
                return True
        raise AssertionError("the last try returns or raises")

    async def _extended(self, name: str, partition: int, shard: int) -> bool:
        """As `extend`, for a partition. Raises `partition_not_found`."""
        try:
            found = await self.shards.call(self.home(name), PartsApi.describe, name)
        except TopicsError as error:
            if not is_unknown(error, name):
                raise
            return False
        if not 0 <= partition < found.partition_count:
            raise partition_not_found(name, partition, found.partition_count)
        return await self.extend(name, shard)


def is_unknown(error: TopicsError, name: str) -> bool:
    """Return whether the error says that there is no such topic, or none that its shard knows."""
    return error.reason is Reason.TOPIC_NOT_FOUND and (error.detail or {}).get("topic") == name
