"""SQL over shards: all tables, and the topics that SQL makes, are in one shard."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager, aclosing

from topics_service.api.access.auth import Principal
from topics_service.api.interfaces import Consumers
from topics_service.api.placements import PlacementsApi
from topics_service.api.sql.executor import SqlApi
from topics_service.api.sql.live import LiveApi, LiveFrame, LiveRequest
from topics_service.api.sql.requests import SqlReply, SqlRequest
from topics_service.api.topics import TopicsApi
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.names import is_topic_name
from topics_service.engine.placement import SQL_SHARD, home_of
from topics_service.engine.tables.model import DEFAULT_PLACEMENT
from topics_shards.locating import Located
from topics_shards.shards import LostCallError


class ShardedLive:
    """See LiveApi: a live query runs where the tables are, and takes a connection slot here."""

    def __init__(self, located: Located, connection: Callable[[Principal], AbstractContextManager[None]]) -> None:
        self._shards = located.shards
        self._connection = connection

    async def follow(self, request: LiveRequest, *, principal: Principal) -> AsyncGenerator[LiveFrame, None]:
        """See LiveApi. Raises `not_ready` when its process is gone."""
        frames = self._shards.stream(SQL_SHARD, LiveApi.follow, request, principal=principal, slot=False)
        async with aclosing(frames):
            with self._connection(principal):
                try:
                    async for frame in frames:
                        yield frame
                except LostCallError:  # nothing is lost but the stream
                    message = "the process of the tables is gone: continue behind the last position"
                    raise TopicsError(Reason.NOT_READY, message) from None


class ShardedSql:
    """See SqlApi."""

    def __init__(self, located: Located, consumers: Consumers, live: ShardedLive) -> None:
        self.consumers = consumers
        self.live = live
        self._shards = located.shards

    async def execute(self, request: SqlRequest, *, principal: Principal) -> SqlReply:
        """See SqlApi."""
        return await self._shards.call(SQL_SHARD, SqlApi.execute, request, principal=principal)


class SqlPlacements:
    """See Placements: used where SQL runs."""

    def __init__(self, located: Located) -> None:
        self._located = located

    async def reserve(self, name: str) -> int:
        """See Placements."""
        shards = self._located.shards
        home = home_of(name, shards.count)
        if home == SQL_SHARD or not is_topic_name(name):
            return 0
        redirect = await shards.call(home, PlacementsApi.reserve, name, SQL_SHARD, DEFAULT_PLACEMENT)
        return redirect.token

    async def release(self, name: str, token: int | None = None) -> None:
        """See Placements."""
        home = home_of(name, self._located.shards.count)
        if home == SQL_SHARD:
            return
        if token is None:
            redirect = await self._located.find(name)
            token = 0 if redirect is None or redirect.shard != SQL_SHARD else redirect.token
        if token:
            await self._located.shards.call(home, PlacementsApi.release, name, token)
            self._located.forget(name)

    async def exists(self, name: str) -> bool:
        """See Placements."""
        try:
            await self._located.call(name, 0, TopicsApi.get_topic, name, touch=False)
        except TopicsError as error:
            if error.reason is Reason.TOPIC_NOT_FOUND:
                return False
            raise
        return True
