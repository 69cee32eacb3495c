"""Claims on a shard by a node that has an older one."""

import asyncio

from cluster.entries import ONE, owner

from topics_cluster.coordinator import Coordinator, Session
from topics_cluster.memory import MemoryCoordinator, MemoryEntries
from topics_server.node.claims import Claims
from topics_server.node.views import Views


class _Gate:
    """A gate whose looks find no fence."""

    is_trusted = False

    def doubt(self) -> None:
        self.is_trusted = False

    async def trust(self) -> None:
        self.is_trusted = True


async def _claims(coordinator: Coordinator) -> tuple[Claims, Session]:
    session = await coordinator.session(60)
    await session.register(ONE)
    return Claims(0, ONE, coordinator=coordinator, session=session, views=Views()), session


async def test_an_older_claim_does_not_keep_a_node_from_announcing_itself() -> None:
    """The node saw the fence that an owner had put for it, and claimed the shard with that epoch, when another node had
    fenced the log already: it owns the shard in a later epoch."""
    coordinator = MemoryCoordinator(MemoryEntries())
    claims, session = await _claims(coordinator)
    assert await session.claim(0, None, owner("one", 3))
    gate = _Gate()
    async with asyncio.timeout(10):
        assert await claims.announce(claims.mine(5), gate, claims.mine())  # type: ignore[arg-type]
    assert (await coordinator.view()).owners == {0: claims.mine(5)}
    assert gate.is_trusted, "another node may have owned the shard in between"
