"""Claims on a shard, as the coordinator has them: this node's, and those of others."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

from topics_cluster.coordinator import Coordinator, CoordinatorError, Node, Owner, Session, View, boottime
from topics_server.node.gate import LostShardError, ReadGate
from topics_server.node.views import Views
from topics_service.engine.errors import TopicsError

log: Final = logging.getLogger("topics.cluster")

_RETRY_SECONDS: Final = 0.25
_REPLACED_SECONDS: Final = 1.0  # for the claim of a node that was given the shard
_WISH_SECONDS: Final = 1.0
_SUCCESSOR_SECONDS: Final = 5.0


class Claims:
    """Claims on one shard. Where the coordinator does not answer, that is logged, and the claim is as before."""

    def __init__(self, shard: int, me: Node, *, coordinator: Coordinator, session: Session, views: Views) -> None:
        self._shard = shard
        self._me = me
        self._coordinator = coordinator
        self._session = session
        self._views = views

    @property
    def owner(self) -> Owner | None:
        """The node that has claimed the shard."""
        return self._views.view.owners.get(self._shard)

    @property
    def wanted(self) -> str | None:
        """The name of the node that is to own the shard."""
        return self._views.view.wanted.get(self._shard)

    @property
    def is_certain(self) -> bool:
        """True while the lease under which this node has claimed the shard holds."""
        return self._session.holds_until(self._shard) > boottime()

    def mine(self, epoch: int = 0) -> Owner:
        """The claim of this node; without an epoch while it has no fence in the log."""
        return Owner(node=self._me.name, addresses=self._me.addresses, epoch=epoch)

    async def make(self, instead_of: Owner | None, epoch: int = 0) -> Owner | None:
        """Claim the shard, if it has that claim or none. Return the claim; None if it is another node's."""
        claim = self.mine(epoch)
        try:
            if await self._session.claim(self._shard, instead_of, claim):
                return claim
        except CoordinatorError as error:
            log.warning("can't claim shard %d: %s", self._shard, error)
        return None

    async def announce(self, owner: Owner, gate: ReadGate, instead_of: Owner | None) -> bool:
        """Tell who owns the shard, for the first time `instead_of` a claim. Return False if the coordinator does not
        answer.

        After the end of a lease that is not enough: another node may have owned the shard in between. Raises
        LostShardError.
        """
        try:
            if instead_of is not None and await self._session.claim(self._shard, instead_of, owner):
                return True
            gate.doubt()
            if not await self._session.claim(self._shard, None, owner):
                found = (await self._coordinator.view()).owners.get(self._shard)
                if found is None or found.node != self._me.name:
                    raise LostShardError(f"the node {found.node if found else '?'} has claimed it")
                # An older claim of this node: it was given the shard, and another one had fenced it before it saw that.
                if not await self._session.claim(self._shard, found, owner):
                    return False
            await gate.trust()
        except (CoordinatorError, TopicsError) as error:
            log.warning("can't renew the claim of shard %d, trying again: %s", self._shard, error)
            await asyncio.sleep(_RETRY_SECONDS)
            return False
        log.info("renewed the claim of shard %d, whose lease had ended", self._shard)
        await asyncio.sleep(_RETRY_SECONDS)  # the session may not know how long its new lease holds yet
        return True

    async def announce_first(
        self, owner: Owner, gate: ReadGate, instead_of: Owner | None, *, is_over: Callable[[], bool]
    ) -> bool:
        """Announce an owner that does not serve yet, until that has happened. Return False if it `is_over` before.

        Another node may have claimed the shard between the claim of this one and its fence, and trusts its lease: it
        would not show what is acknowledged here. Raises LostShardError.
        """
        while not is_over():
            if await self.announce(owner, gate, instead_of):
                return True
        return False

    async def give_up(self, owner: Owner) -> None:
        """Remove a claim of this node, if it is there."""
        try:
            await self._session.give_up(self._shard, owner)
        except CoordinatorError as error:
            log.warning("can't give up shard %d, its lease will end: %s", self._shard, error)

    async def prefer(self, target: str) -> bool:
        """Let other nodes wait for the target to claim the shard; "" for none. Return False if the coordinator does not
        answer in time: the target could not claim the shard either."""
        try:
            async with asyncio.timeout(_WISH_SECONDS):
                await self._coordinator.want(self._shard, target or None)
        except (CoordinatorError, TimeoutError) as error:
            log.warning("can't name the next owner of shard %d: %s", self._shard, str(error) or "no answer")
            return False
        return True

    async def until_replaced(self, owner: Owner) -> None:
        """Wait a while until another claim is in the place of this one."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REPLACED_SECONDS):
                await self._views.until(lambda view: view.owners.get(self._shard) != owner)

    async def until_succeeded(self) -> None:
        """Wait a while until another node owns the shard, for the calls that are held."""

        def is_there(view: View) -> bool:
            owner = view.owners.get(self._shard)
            alone = not view.nodes.keys() - {self._me.name}
            return alone or (owner is not None and owner.epoch > 0 and owner.node != self._me.name)

        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SUCCESSOR_SECONDS):
                await self._views.until(is_there)
