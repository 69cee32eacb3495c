"""Calls on shards: on one of this process directly, on others through what connects them."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVar

from topics_service.api.catalog_copy import CatalogApi
from topics_service.api.groups import GroupsApi
from topics_service.api.kafka_logs import KafkaApi
from topics_service.api.membership import MembershipCalls
from topics_service.api.mirrors import MirrorsApi
from topics_service.api.parts import PartsApi
from topics_service.api.placements import PlacementsApi
from topics_service.api.positions import PositionsApi
from topics_service.api.queues import QueuesApi
from topics_service.api.routers import RoutersApi
from topics_service.api.running import LostCallError as LostCallError  # for importers of both
from topics_service.api.sql.consume import ConsumeApi
from topics_service.api.sql.executor import SqlApi
from topics_service.api.sql.held import HeldSessions
from topics_service.api.sql.live import LiveApi
from topics_service.api.topics import TopicsApi
from topics_service.api.watch import WatchApi

P = ParamSpec("P")
R = TypeVar("R")
Method = Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]
"""A method of one of the classes that a Shard has an object of, such as `TopicsApi.append`."""
StreamMethod = Callable[Concatenate[Any, P], AsyncGenerator[R, None]]
"""One that is an asynchronous generator."""


class NotHereError(Exception):
    """The shard is not where it was called: nothing has happened."""


class Shard:
    """The APIs of one shard of this process."""

    is_open: bool = True
    """True while calls begin at once; see `run`."""

    def __init__(self, api: TopicsApi) -> None:
        self.api = api
        self.objects: dict[str, object] = {
            TopicsApi.__name__: api,
            PartsApi.__name__: api.parts,
            QueuesApi.__name__: api.queues,
            RoutersApi.__name__: api.routers,
            GroupsApi.__name__: api.groups,
            ConsumeApi.__name__: api.consumers,
            PlacementsApi.__name__: api.placements,
            PositionsApi.__name__: api.positions,
            MirrorsApi.__name__: api.mirrors,
            CatalogApi.__name__: api.copied,
            KafkaApi.__name__: KafkaApi(api),
            MembershipCalls.__name__: MembershipCalls(lambda: api.membership),
            WatchApi.__name__: api.watches,
        }
        if api.sql is not None:
            pages = api.sql.system.pages
            self.objects |= {
                SqlApi.__name__: api.sql,
                HeldSessions.__name__: HeldSessions(api),
                LiveApi.__name__: api.sql.live,
                type(pages).__name__: pages,
            }

    def of(self, method: Callable[..., object]) -> object:
        """The object that has the method."""
        return self.objects[method.__qualname__.partition(".")[0]]

    def run(self, method: Method[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Run a method. Of a shard that may leave the process it raises NotHereError, and LostCallError as well."""
        return method(self.of(method), *args, **kwargs)

    def stream(self, method: StreamMethod[P, R], /, *args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[R, None]:
        """Run a generator. Raises NotHereError at the first item only, LostCallError at any."""
        return method(self.of(method), *args, **kwargs)


class Shards(ABC):
    """All shards of a server, wherever they are. Belongs to the event loop."""

    count: int
    local: Mapping[int, Shard]
    """Those of this process, at present."""
    processes: int = 1
    process: int = 0
    """The number of this process among them."""
    number_bytes: int = 2
    """The bytes that such a number takes, in the ids of watch sessions."""

    @property
    def is_alone(self) -> bool:
        """True if there is no other process, and never will be."""
        return self.processes == 1

    def is_another(self, process: int) -> bool:
        """Return whether this is the number of another process, as far as is known now."""
        return process != self.process and process < self.processes

    def direct(self, shard: int) -> Shard | None:
        """The shard if its objects may be used without `call`: it is in this process, and stays there."""
        return self.local.get(shard)

    def number_of(self, process: int) -> int:
        """The number that a call on a process as a whole names in place of a shard."""
        return self.count + process

    @abstractmethod
    async def call(self, shard: int, method: Method[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a method on a shard. Raises what it raises; `not_ready` while no process serves the shard.

        A call whose outcome is unknown, since its process or node died meanwhile, raises LostCallError.
        """

    async def begin(
        self, shard: int, method: Method[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> "asyncio.Future[R]":
        """Begin a call as `call` makes it, and return once it is on its way; the future has its outcome.

        Calls to one shard arrive in the order in which these return. Raises `not_ready` if it can't be sent. One that
        did not reach the shard is not repeated, which could change the order: it ends with `not_ready`.
        """
        return asyncio.ensure_future(self.call(shard, method, *args, **kwargs))

    @abstractmethod
    def stream(
        self, shard: int, method: StreamMethod[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncGenerator[R, None]:
        """Run a generator on a shard, item by item as the caller asks for them; closing it ends it there.

        Raises as `call` does, at the first item or later.
        """

    def can_send(self, shard: int) -> bool:
        """Return whether a call on the shard, if it were made now, would be on its way before any later one."""
        return True

    def by_process(self, shards: Iterable[int]) -> dict[int, list[int]]:
        """Shards by the process that has them: by the number that a call on it as a whole names, which can be sent now.

        A shard of which that is not known is alone under its own number.
        """
        found: dict[int, list[int]] = {}
        own = self.number_of(self.process)
        for shard in shards:
            found.setdefault(own if shard in self.local else self._process_of(shard), []).append(shard)
        return found

    def _process_of(self, shard: int) -> int:
        """The number of the process that has a shard which is not here, or that of the shard."""
        return shard

    async def each(self, method: Method[P, R], /, *args: P.args, **kwargs: P.kwargs) -> list[R]:
        """Run a method on all shards at once; the results in the order of the shards. Raises the first error."""
        return await at_once(self.call(shard, method, *args, **kwargs) for shard in range(self.count))


async def at_once(calls: Iterable[Coroutine[Any, Any, R]]) -> list[R]:
    """Run calls at once; their results in their order. Raises the first error, as it is, and cancels the others."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call) for call in calls]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


class LocalShards(Shards):
    """Shards that are all in this process."""

    def __init__(self, shards: Mapping[int, Shard]) -> None:
        self.local = shards
        self.count = len(shards)

    async def call(self, shard: int, method: Method[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """See Shards."""
        return await self.local[shard].run(method, *args, **kwargs)

    def stream(
        self, shard: int, method: StreamMethod[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncGenerator[R, None]:
        """See Shards."""
        return self.local[shard].stream(method, *args, **kwargs)
