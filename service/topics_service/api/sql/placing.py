"""Definitions of topics where other shards have topics too: their names lead to the shard of SQL, or are refused."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from topics_service.api.placements import Placements, is_unmade
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.tables import plans
from topics_service.engine.tables.errors import sql_error

_OBJECT_EXISTS: Final = "42710"


@asynccontextmanager
async def placing(placements: Placements | None, action: Any) -> AsyncIterator[None]:
    """Run a definition in this context. Raises `already_exists` for a new topic whose name another shard has."""
    if placements is None:
        yield
    elif isinstance(action, plans.CreateTopic):
        async with _reserved(placements, action):
            yield
    else:
        yield
        if isinstance(action, plans.DropTopic):
            await placements.release(action.name)


@asynccontextmanager
async def _reserved(placements: Placements, action: plans.CreateTopic) -> AsyncIterator[None]:
    name = action.name
    try:
        token = await placements.reserve(name)
    except TopicsError as error:
        if error.reason is not Reason.TOPIC_EXISTS_INCOMPATIBLE:
            raise
        what = f'topic "{name}" exists, in another shard than tables'
        if action.if_not_exists:
            raise sql_error(Reason.CROSS_SHARD, what, topic=name) from error
        raise sql_error(Reason.ALREADY_EXISTS, what, sqlstate=_OBJECT_EXISTS, topic=name) from error
    try:
        yield
    except TopicsError as error:
        if is_unmade(token, error):
            await placements.release(name, token)
        raise


async def explained_place(placements: Placements | None, error: TopicsError) -> TopicsError:
    """The error of a statement; `cross_shard` if a topic that was not found is in another shard."""
    if placements is None or error.reason is not Reason.TOPIC_NOT_FOUND:
        return error
    name = (error.detail or {}).get("topic", "")
    if not name or not await placements.exists(name):
        return error
    return sql_error(
        Reason.CROSS_SHARD, f'topic "{name}" is in another shard than tables: make it with CREATE TOPIC', topic=name
    )
