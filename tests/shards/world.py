"""Several shards in the process of a test, with one API over them."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from topics_shards.groups import ShardedGroups
from topics_shards.holds import HoldTeller
from topics_shards.locating import Located
from topics_shards.shards import LocalShards, Method, P, R, Shard
from topics_shards.sql import ShardedSql, SqlPlacements
from topics_shards.topics import ShardedTopics

from topics_service.api.access.auth import UNRESTRICTED
from topics_service.api.access.passwords import Passwords
from topics_service.api.access.users import Users
from topics_service.api.metrics.collector import Metrics
from topics_service.api.observers import NO_OBSERVERS
from topics_service.api.scheduling.commit import CommitStatistics, GroupCommit
from topics_service.api.sql.requests import SqlRequest
from topics_service.api.topics import TopicsApi
from topics_service.engine.clock import Clock, SystemClock
from topics_service.engine.engine import Engine
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.limits import Limits
from topics_service.engine.placement import Place
from topics_service.storage.memory import MemoryStore
from topics_sql.reader import Reader


class Connections(LocalShards):
    """Shards that may be away, and calls that a test has something happen before or after."""

    def __init__(self, shards: Mapping[int, Shard]) -> None:
        super().__init__(shards)
        self.away: set[int] = set()
        self.before: dict[str, Callable[[], Awaitable[None]]] = {}
        self.after: dict[str, Callable[[], Awaitable[None]]] = {}

    async def call(self, shard: int, method: Method[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """See Shards."""
        await self._happens(self.before, method)
        if shard in self.away:
            raise TopicsError(Reason.NOT_READY, f"shard {shard} is away")
        result = await super().call(shard, method, *args, **kwargs)
        await self._happens(self.after, method)
        return result

    async def _happens(self, events: dict[str, Callable[[], Awaitable[None]]], method: Callable[..., object]) -> None:
        event = events.pop(method.__qualname__, None)
        if event is not None:
            await event()


class ShardsWorld:
    """The API over `engines`, one for each shard."""

    def __init__(self, stores: Sequence[MemoryStore], clock: Clock, limits: Limits | None) -> None:
        self.stores = stores
        self.clock = clock
        self._limits = limits
        self.engines: list[Engine] = []
        self.apis: list[TopicsApi] = []
        self.tellers: list[HoldTeller] = []
        self._commits: list[GroupCommit] = []
        shards: dict[int, Shard] = {}
        self._shards = shards
        self.shards = Connections(shards)
        self.shards.count = len(stores)
        self.located = located = Located(self.shards)
        for number in range(len(stores)):
            self._open(number, "boot-1")
        for number in range(len(stores)):
            self._serve(number)
        engine = self.engines[0]
        self.api = ShardedTopics(located, engine.limits, Metrics(engine, CommitStatistics()), NO_OBSERVERS)
        self._sql = ShardedSql(located, self.api.consumers)

    @property
    def groups(self) -> ShardedGroups:
        """The calls on groups, with those of Kafka."""
        assert isinstance(self.api.groups, ShardedGroups)
        return self.api.groups

    @property
    def untold(self) -> int:
        """The number of positions that shards do not know of each other yet, for retention."""
        return sum(teller.untold for teller in self.tellers)

    @contextmanager
    def before(self, method: str, event: Callable[[], Awaitable[None]]) -> Iterator[None]:
        """Have something happen before the next call of a method, which must be made."""
        self.shards.before[method] = event
        yield
        assert method not in self.shards.before, f"{method} was not called"

    async def kill(self, shard: int, *, power: bool = False) -> None:
        """End a shard as SIGKILL does, or a power cut with a store that knows what it leaves; and start it again."""
        await self.tellers[shard].stop()
        self.apis[shard].parts.stop()
        self._commits[shard].stop()
        store, boot = self.stores[shard], "boot-1"
        if power:
            store.cut_power(store.synced)  # type: ignore[attr-defined]  # a CrashStore
            boot = f"boot-{store.synced}"  # type: ignore[attr-defined]
        self._open(shard, boot)
        self._serve(shard)

    async def stop(self) -> None:
        """End all shards."""
        for teller in self.tellers:
            await teller.stop()
        for api in self.apis:
            api.parts.stop()
        for commit in self._commits:
            commit.stop()

    def _open(self, number: int, boot_id: str) -> None:
        place = Place(number, len(self.stores))
        engine = Engine(self.stores[number], self.clock, limits=self._limits, place=place, boot_id=boot_id)
        commit = GroupCommit.for_engine(engine)
        api = TopicsApi(engine, commit)
        users = Users()
        api.serve_sql(Reader(), users, Passwords(users)).placements = SqlPlacements(self.located)
        self._shards[number] = Shard(api)
        for known, new in ((self.engines, engine), (self.apis, api), (self._commits, commit)):
            known[number:] = [new, *known[number + 1 :]]  # type: ignore[assignment,list-item]

    def _serve(self, number: int) -> None:
        api = self.apis[number]
        api.parts.connect(self.shards)
        api.parts.resume()
        teller = HoldTeller.serve(number, self.engines[number], api, self.located)
        self.tellers[number:] = [teller, *self.tellers[number + 1 :]]

    async def sql(self, text: str, *params: Any) -> list[list[Any]]:
        """The rows of the last statement. Raises TopicsError."""
        reply = await self._sql.execute(SqlRequest(sql=text, params=params or None), principal=UNRESTRICTED)
        if reply.error is not None:
            raise reply.error
        return [list(row) for row in reply.results[-1].rows]


@asynccontextmanager
async def open_shards(
    count: int = 3,
    *,
    clock: Clock | None = None,
    limits: Limits | None = None,
    stores: Sequence[MemoryStore] | None = None,
) -> AsyncIterator[ShardsWorld]:
    """Shards, on memory stores unless others are given."""
    world = ShardsWorld(stores or [MemoryStore() for _ in range(count)], clock or SystemClock(), limits)
    try:
        yield world
    finally:
        await world.stop()
