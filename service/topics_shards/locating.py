"""The shard that a call on a topic goes to."""

from topics_service.engine.placement import home_of, shard_of
from topics_shards.shards import Method, P, R, Shards


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
        """Run a method on the shard of a partition; as `Shards.call` does."""
        return await self.shards.call(self.shard(name, partition), method, *args, **kwargs)
