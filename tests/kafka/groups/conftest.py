"""Brokers that serve groups."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from support.kafka_groups import Broker


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    broker = Broker()
    yield broker
    broker.coordination.close()
    for commit in broker.commits:
        await asyncio.to_thread(commit.stop)


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], Awaitable[None]]:
    """Waits until something is so."""

    async def wait(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0.01)

    return wait
