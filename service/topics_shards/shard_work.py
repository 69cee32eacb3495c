"""Background work of a shard with others, for its routers and its queues."""

from topics_service.api.topics import TopicsApi
from topics_service.engine.clock import Clock
from topics_service.engine.engine import Engine
from topics_shards.locating import Located
from topics_shards.moving import Mover
from topics_shards.pulling import Puller
from topics_shards.shipping import ShipmentSender


class ShardWork:
    """The work of one shard of this process."""

    def __init__(self, located: Located, api: TopicsApi, engine: Engine, clock: Clock) -> None:
        """`clock` is the engine's, whose times are in its rows."""
        self.puller = Puller(located, api.routers, engine.routers, clock)
        self.sender = ShipmentSender(located, api, engine.queues, clock)
        self.mover = Mover(located, engine.parts.place.shard, engine.routers)

    def start(self) -> None:
        """Begin. Call it once, when the engine has recovered and before the first call of a client."""
        self.puller.start()
        self.sender.start()
        self.mover.start()

    async def stop(self) -> None:
        """End what is under way; it continues after the next start."""
        await self.puller.stop()
        await self.sender.stop()
        await self.mover.stop()
