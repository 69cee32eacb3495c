"""Brokers with handlers of groups."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from support.kafka_groups import Broker


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    broker = Broker()
    yield broker
    broker.membership.close()
    for commit in broker.commits:
        await asyncio.to_thread(commit.stop)


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], Awaitable[None]]:
    """Wait until a condition holds."""

    async def wait(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0.01)

    return wait
