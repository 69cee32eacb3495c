"""A model of the coordinator: leases by a clock of its own, and who claims which shard under which of them."""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Protocol

from topics_cluster.coordinator import Addresses, Node, Owner, View

TTL = 2.0


ADDRESSES = Addresses(http="", grpc="")


class Process(Protocol):
    """A life of a node's process."""

    name: str
    is_alone: bool
    """The coordinator can't be reached."""

    @property
    def now(self) -> float:
        """Its CLOCK_BOOTTIME."""
        ...

    async def awake(self) -> None:
        """Wait until it runs."""
        ...

    def owns(self, shard: int) -> bool:
        """Return whether it serves a shard."""
        ...


class Coordinator:
    """The claims of shards. `is_away` is for everybody."""

    def __init__(self, clock: Callable[[], float], dice: Random) -> None:
        self.is_away = False
        self.dice = dice
        self.claims: dict[int, tuple[Session, int]] = {}
        self.members: dict[str, Session] = {}
        self.wanted: dict[int, str] = {}
        self._clock = clock
        self._drift = dice.uniform(0.98, 1.02)

    @property
    def now(self) -> float:
        """Its own clock."""
        return self._clock() * self._drift

    def claimed(self, shard: int) -> "Session | None":
        """The session whose claim of a shard holds with its lease."""
        session, lease = self.claims.get(shard, (None, 0))
        return session if session is not None and session.lease == lease and self.now < session.ends else None

    def view(self) -> View:
        """All of it, as nodes read it."""
        nodes = {
            name: Node(name=name, addresses=ADDRESSES, warm=session.warm)
            for name, session in self.members.items()
            if self.now < session.ends
        }
        owners = {
            shard: Owner(node=session.name, addresses=ADDRESSES, epoch=int(session.owns(shard)))
            for shard in self.claims
            if (session := self.claimed(shard)) is not None
        }
        return View(revision=1, nodes=nodes, owners=owners, wanted=dict(self.wanted))


class Session:
    """The lease of one life of a node; where it ends, another begins, without the claims."""

    def __init__(self, coordinator: Coordinator, process: Process) -> None:
        self.lease = 0
        self.ends = 0.0
        self.is_dead = False
        """The process was killed: its port refuses."""
        self.warm: tuple[int, ...] = ()
        self._coordinator = coordinator
        self._process = process
        self._until = 0.0
        self._claimed: dict[int, int] = {}

    @property
    def name(self) -> str:
        """The node's."""
        return self._process.name

    def owns(self, shard: int) -> bool:
        """Return whether the node serves a shard."""
        return self._process.owns(shard)

    def holds_until(self, shard: int) -> float:
        """See Session."""
        return self._until if self._claimed.get(shard) == self.lease else 0.0

    async def look(self, warm: tuple[int, ...]) -> View | None:
        """Tell which shards are warm here, and read the entries. None: they can't be reached."""
        if not await self._reach():
            return None
        self.warm = warm
        self._coordinator.members[self.name] = self
        return self._coordinator.view()

    async def run(self) -> None:
        """Renew it for ever."""
        while True:
            sent = self._process.now
            if await self._reach():
                if self._coordinator.now >= self.ends:
                    self.lease += 1
                self.ends = self._coordinator.now + TTL
                if await self._reach():
                    self._until = sent + TTL
            await asyncio.sleep(TTL / 3)
            await self._process.awake()

    async def claim(self, shard: int) -> bool:
        """Claim a shard, unless it is claimed by one that lives; whether it is ours."""
        coordinator = self._coordinator
        if not await self._reach() or coordinator.now >= self.ends:
            return False
        holder = coordinator.claimed(shard)
        if holder is not None and holder is not self and not holder.is_dead:
            return False
        coordinator.claims[shard] = self, self.lease
        if await self._reach():
            self._claimed[shard] = self.lease
        return True

    async def keeps(self, shard: int) -> bool:
        """Return whether the claim has been ours ever since it was made."""
        is_there = await self._reach() and self._claimed.get(shard) == self.lease
        return is_there and self._coordinator.claims.get(shard) == (self, self.lease)

    async def sees_another(self, shard: int) -> bool:
        """Return whether another node has the claim."""
        return await self._reach() and self._coordinator.claimed(shard) not in (None, self)

    def give_up(self, shard: int) -> None:
        """Let others claim."""
        if self._coordinator.claims.get(shard, (None, 0))[0] is self and not self._is_cut:
            del self._coordinator.claims[shard]

    @property
    def _is_cut(self) -> bool:
        return self._coordinator.is_away or self._process.is_alone

    async def _reach(self) -> bool:
        """A message there, or back."""
        await self._process.awake()
        await asyncio.sleep(self._coordinator.dice.uniform(0.001, 0.01))
        await self._process.awake()
        return not self._is_cut
