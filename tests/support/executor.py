"""SQL on an engine in memory, without a server."""

import asyncio
from typing import Any, Self

from topics_service.api.access.auth import UNRESTRICTED, Principal
from topics_service.api.access.passwords import Passwords
from topics_service.api.access.users import Users
from topics_service.api.scheduling.commit import GroupCommit
from topics_service.api.scheduling.pressure import Pressure
from topics_service.api.sql.analysis.api import Analyses
from topics_service.api.sql.executor import SqlApi
from topics_service.api.sql.requests import SqlReply, SqlRequest
from topics_service.api.topics import TopicsApi
from topics_service.engine.clock import SystemClock
from topics_service.engine.engine import Engine
from topics_service.engine.errors import Reason, TopicsError
from topics_service.storage.memory import MemoryStore
from topics_service.storage.store import Store
from topics_sql.reader import Reader


class Executor:
    """SQL on an engine of its own."""

    def __init__(
        self,
        timeout_seconds: float = 30.0,
        pressure: Pressure | None = None,
        *,
        reader: Reader | None = None,
        analyses: Analyses | None = None,
        store: Store | None = None,
    ) -> None:
        self.engine = Engine(store or MemoryStore(), SystemClock())
        self.commit = GroupCommit.for_engine(self.engine)
        api = TopicsApi(self.engine, self.commit, pressure)
        users = Users()
        self.sql: SqlApi = api.serve_sql(
            reader or Reader(), users, Passwords(users), timeout_seconds=timeout_seconds, analyses=analyses
        )

    async def reply(self, text: str, *params: Any, principal: Principal = UNRESTRICTED, **members: Any) -> SqlReply:
        request = SqlRequest(sql=text, params=params or None, **members)
        return await self.sql.execute(request, principal=principal)

    async def run(self, text: str, *params: Any, **members: Any) -> Any:
        """The rows of the last result."""
        reply = await self.reply(text, *params, **members)
        if reply.error is not None:
            raise reply.error
        return [list(row) for row in reply.results[-1].rows]

    async def refused(self, reason: Reason, text: str, *params: Any, **members: Any) -> TopicsError:
        reply = await self.reply(text, *params, **members)
        assert reply.error is not None
        assert reply.error.reason is reason, reply.error
        return reply.error

    async def __aenter__(self) -> Self:
        await self.run("CREATE TABLE t (id INT PRIMARY KEY, n INT)")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.sql.analyses.close()
        await asyncio.to_thread(self.commit.stop)
