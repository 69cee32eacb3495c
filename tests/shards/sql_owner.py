"""SQL's shard that moves between owners and loses calls, in the process of a test; calls pass through their bytes."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from topics_service.api.access.passwords import Passwords
from topics_service.api.access.users import Users
from topics_service.api.running import LostCallError
from topics_service.api.scheduling.commit import GroupCommit
from topics_service.api.sql.held import HeldSessions
from topics_service.api.topics import TopicsApi
from topics_service.engine.clock import SystemClock
from topics_service.engine.engine import Engine
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.placement import SQL_SHARD
from topics_service.storage.memory import MemoryStore
from topics_shards.remote import remote_methods
from topics_shards.sessions import RelayedSessions
from topics_shards.shards import Method, P, R, Shard, Shards, StreamMethod
from topics_sql.reader import Reader


class SqlOwner(Shards):
    """The shard, as a node without it reaches it."""

    def __init__(self, limit_seconds: float = 20.0) -> None:
        self.count = 1
        self.local = {}
        self.calls: Counter[str] = Counter()
        self.before: Callable[[str], None] = lambda name: None
        """Called with the name of a method before a call is sent; may raise."""
        self.after: Callable[[str], None] = lambda name: None
        """The same for one that has run: its answer is lost then."""
        self.lost: Counter[str] = Counter()
        self.sessions = RelayedSessions(self, limit_seconds, self.lost)
        self._methods = {method.method: method for method in remote_methods()}
        self._users = Users()
        self._passwords = Passwords(self._users)
        self._store = MemoryStore()
        self._streams: set[asyncio.Task[Any]] = set()
        self.begin()

    def begin(self) -> None:
        """Own the shard."""
        self.engine = Engine(self._store, SystemClock(), boot_id="boot")
        self._commit = GroupCommit.for_engine(self.engine)
        self.api = TopicsApi(self.engine, self._commit)
        self.api.serve_sql(Reader(), self._users, self._passwords)
        self.shard = Shard(self.api)
        self.is_there = True

    def lose(self) -> None:
        """Let the shard have no owner: streams of the former one end."""
        self.is_there = False
        self.api.drain()
        self._commit.stop()

    def move(self) -> None:
        """Let another node own the shard."""
        self.lose()
        self.begin()

    @property
    def held(self) -> int:
        """The sessions that the owner has."""
        return self.api.metrics.sql.sessions

    async def call(self, shard: int, method: Method[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """See Shards."""
        assert shard == SQL_SHARD
        remote = self._methods[method]
        body = remote.encode_call(None, args, kwargs)
        while True:
            name = remote.name.partition(".")[2]
            self.calls[name] += 1
            try:
                self.before(name)
                if not self.is_there:
                    raise TopicsError(Reason.NOT_READY, "the shard is away")
                call = remote.decode_call(body)
                result = await self.shard.run(method, *call.positional, **call.named)
                self.after(name)
                return remote.decode_result(remote.encode_result(result))  # type: ignore[no-any-return]
            except LostCallError:
                if not remote.is_read:
                    raise

    async def stream(
        self, shard: int, method: StreamMethod[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncGenerator[R, None]:
        """See Shards."""
        self.before("attach")
        if not self.is_there:
            raise TopicsError(Reason.NOT_READY, "the shard is away")
        items = self.shard.stream(method, *args, **kwargs)
        try:
            async for item in items:
                yield item
        finally:
            await items.aclose()

    async def close(self) -> None:
        """End it."""
        await self.sessions.close()
        self._passwords.close()
        with suppress(RuntimeError):
            self._commit.stop()


@asynccontextmanager
async def sql_owner(**facts: Any) -> AsyncGenerator[SqlOwner, None]:
    """An owner with a table `t`."""
    owner = SqlOwner(**facts)
    try:
        yield owner
    finally:
        await owner.close()


def once(name: str, error: BaseException) -> Callable[[str], None]:
    """A hook of SqlOwner that raises the error at the next call of a method."""
    errors = [error]

    def hook(called: str) -> None:
        if called == name and errors:
            raise errors.pop()

    return hook


assert HeldSessions.attach.__name__ == "attach", "the hooks know it by this name"
