"""Calls between the processes of a server: on a process as a whole (`Shards.number_of`)."""

from collections.abc import Callable, Mapping
from contextlib import suppress

from msgspec import Struct

from topics_service.api.access.auth import Principal
from topics_service.api.access.users import UserRow, Users
from topics_service.api.metrics.merging import Report
from topics_service.api.topics import TopicsApi
from topics_service.engine.model import ListTopicsReply, ListTopicsRequest
from topics_shards.shards import LostCallError, NotHereError, Shard


class ShardFigures(Struct, frozen=True):
    """The resources of a shard that count towards limits of all."""

    topics: int
    partitions: int
    routers: int
    groups: int
    nbytes: int


class ProcessApi:
    """The part of a process that the others ask for."""

    def __init__(
        self, local: Mapping[int, Shard], report: Callable[[tuple[str, ...] | None], Report], users: Users
    ) -> None:
        """`local` are the shards that the process has at present."""
        self._local = local
        self._report = report
        self._users = users
        self.shard_figures: Callable[[], dict[int, ShardFigures]] = dict

    async def figures(self) -> dict[int, ShardFigures]:
        """The figures of the shards that it has."""
        return self.shard_figures()

    async def report(self, allowed: tuple[str, ...] | None) -> Report:
        """The metrics of the process, with its shards."""
        return self._report(allowed)

    async def list_topics(
        self, shards: list[int], request: ListTopicsRequest, *, principal: Principal
    ) -> list[ListTopicsReply | None]:
        """A page of each of these shards, in one call for all of them; None for one that is not here."""
        pages: list[ListTopicsReply | None] = []
        for number in shards:
            shard, page = self._local.get(number), None
            if shard is not None:
                with suppress(NotHereError, LostCallError):
                    page = await shard.run(TopicsApi.list_topics, request, principal=principal)
            pages.append(page)
        return pages

    async def stored_users(self) -> list[UserRow]:
        """The users of CREATE USER; asked of the process that has the shard of SQL."""
        return self._users.stored

    async def replace_users(self, rows: list[UserRow]) -> None:
        """Take over the users of CREATE USER."""
        self._users.replace_stored(rows)


class ProcessObjects(Shard):
    """The objects of a process that others call, by the name of their class."""

    def __init__(self) -> None:
        self.objects: dict[str, object] = {}

    def add(self, *objects: object) -> None:
        """Let these be called."""
        self.objects |= {type(each).__name__: each for each in objects}
