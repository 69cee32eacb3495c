"""SQL consumers over all shards: a topic is read where it is, and the positions moved where the group is."""

from collections.abc import Awaitable, Callable

from topics_service.api.access.auth import Principal
from topics_service.api.positions import PositionsApi
from topics_service.api.sql.consume import ConsumeApi
from topics_service.api.sql.requests import AckRequest, ConsumeReply, ConsumeRequest
from topics_service.engine.errors import TopicsError
from topics_service.engine.offsets.positions import HeldPosition, Place
from topics_service.engine.placement import SQL_SHARD, home_of
from topics_shards.locating import Located, is_unknown
from topics_shards.shards import Method, P, R


class ShardedConsumers:
    """See ConsumeApi."""

    def __init__(self, located: Located) -> None:
        self._located = located

    async def consume(self, request: ConsumeRequest, *, principal: Principal) -> ConsumeReply:
        """See ConsumeApi."""
        method = ConsumeApi.consume if request.visibility_seconds is None else ConsumeApi.claim
        return await self._call(request, method, request, principal=principal)

    async def ack(self, request: AckRequest, *, principal: Principal) -> int:
        """See ConsumeApi."""
        method = ConsumeApi.ack if request.claim_id is None else ConsumeApi.ack_claim
        return await self._call(request, method, request, principal=principal)

    async def _call(
        self, place: ConsumeRequest | AckRequest, method: Method[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Run a method where the topic is; one that is unknown may be an alias, which lies beside tables."""
        try:
            return await self._located.call(place.topic, place.partition, method, *args, **kwargs)
        except TopicsError as error:
            if not is_unknown(error, place.topic):
                raise
            unknown = error
        try:
            return await self._located.shards.call(SQL_SHARD, method, *args, **kwargs)
        except TopicsError as error:
            if (error.detail or {}).get("in_another_shard"):
                raise unknown from None  # no alias: the shard has a part of a topic of this name
            raise


class ShardedPositions:
    """See Positions: used where topics are read."""

    def __init__(self, located: Located) -> None:
        self._located = located
        self._shards = located.shards

    async def position(self, name: str, topic: str, partition: int) -> HeldPosition | None:
        """See Positions."""
        return await self._shards.call(self._home(name), PositionsApi.position, name, topic, partition)

    async def pin(self, name: str, place: Place, head: int) -> int | None:
        """See Positions."""
        home = self._home(name)
        return await self._with_part(
            home, place.topic, lambda: self._shards.call(home, PositionsApi.pin, name, place, head)
        )

    async def advance(self, name: str, place: Place, from_seq: int) -> int | None:
        """See Positions."""
        home = self._home(name)
        return await self._with_part(
            home, place.topic, lambda: self._shards.call(home, PositionsApi.advance, name, place, from_seq)
        )

    async def move(self, name: str, place: Place, expected: int | None, from_seq: int) -> int | None:
        """See Positions."""
        home = self._home(name)
        return await self._with_part(
            home, place.topic, lambda: self._shards.call(home, PositionsApi.move, name, place, expected, from_seq)
        )

    def _home(self, group: str) -> int:
        return home_of(group, self._shards.count)

    async def _with_part(self, shard: int, topic: str, move: Callable[[], Awaitable[int | None]]) -> int | None:
        position = await move()
        if position is None and await self._located.extend(topic, shard):
            position = await move()
        return position
