"""Creations of topics that meet: what one caller is told about another's topic holds for all."""

import asyncio

import pytest

from topics_service.api.access.auth import UNRESTRICTED
from topics_service.api.scheduling.commit import GroupCommit
from topics_service.api.topics import TopicsApi
from topics_service.engine.clock import SystemClock
from topics_service.engine.engine import Engine
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.model import ConfigInput
from topics_service.storage.memory import MemoryStore


async def test_a_topic_that_a_creation_conflicts_with_is_found_at_once() -> None:
    """A writer that is refused because the topic is there, with more partitions, goes on with that one."""
    engine = Engine(MemoryStore(), SystemClock())
    commit = GroupCommit.for_engine(engine)
    try:
        api = TopicsApi(engine, commit)
        first = asyncio.ensure_future(api.put_topic("t", ConfigInput(), principal=UNRESTRICTED, partition_count=4))
        await asyncio.sleep(0)  # it is written, and waits for its fsync
        with pytest.raises(TopicsError) as refused:
            await api.put_topic("t", ConfigInput(), principal=UNRESTRICTED, partition_count=1)
        assert refused.value.reason is Reason.TOPIC_EXISTS_INCOMPATIBLE
        assert (await api.get_topic("t")).identity.partition_count == 4
        assert (await first).created
    finally:
        commit.stop()
