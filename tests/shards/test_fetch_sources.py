"""Partitions of a fetch that other processes have: no outcome of a call is left out, however it ends."""

import asyncio
from typing import Any

import pytest

from topics_kafka.handlers.fetch_sources import Source, outcomes_of
from topics_kafka.handlers.fetch_targets import Target
from topics_service.api.kafka_logs import FetchOutcome
from topics_service.engine.errors import Reason, TopicsError

PARTITION = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 100}


class Shards:
    """Calls on one shard that end as the test wants."""

    def __init__(self) -> None:
        self.end: asyncio.Future[list[FetchOutcome]] = asyncio.get_running_loop().create_future()

    async def fetch(self, *_: Any, **__: Any) -> list[FetchOutcome]:
        return await self.end


@pytest.fixture
async def asked() -> tuple[Source, Shards, list[Source]]:
    """A source with a call under way, and what it has told of."""
    shards, arrived = Shards(), list[Source]()
    source = Source(shards, 0, 100, arrived.append)  # type: ignore[arg-type]
    source.targets.append(Target("t", "", PARTITION, None, by_id=False))
    source.ask()
    await asyncio.sleep(0)
    return source, shards, arrived


async def test_a_call_is_waited_for_until_its_outcomes_are_told(asked: tuple[Source, Shards, list[Source]]) -> None:
    """Also in the turn of the event loop between its end and the callback."""
    source, shards, arrived = asked
    outcomes = [FetchOutcome(error=TopicsError(Reason.TOPIC_NOT_FOUND, "t"))]
    shards.end.set_result(outcomes)
    turns = 0
    while not arrived:
        assert source.is_asked, "its outcomes would be left out"
        await asyncio.sleep(0)
        turns += 1
    assert turns > 1
    assert outcomes_of(source) == outcomes
    assert not source.is_asked


async def test_a_call_that_is_cancelled_by_its_shard_has_an_outcome(asked: tuple[Source, Shards, list[Source]]) -> None:
    source, shards, arrived = asked
    shards.end.cancel()
    async with asyncio.timeout(5):
        while not arrived:
            await asyncio.sleep(0)
    [outcome] = outcomes_of(source)
    assert outcome.error is not None
    assert outcome.error.reason is Reason.NOT_READY


async def test_a_call_that_is_left_tells_nothing(asked: tuple[Source, Shards, list[Source]]) -> None:
    source, shards, arrived = asked
    shards.end.set_result([])
    source.leave()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not arrived
    assert not source.is_asked
