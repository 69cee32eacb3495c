"""A model of the coordinator: leases by a clock of its own, and who claims the shard under which of them."""

import asyncio
from collections.abc import Callable
from random import Random
from typing import Protocol

TTL = 2.0


class Process(Protocol):
    """A life of a node's process."""

    is_alone: bool
    """The coordinator can't be reached."""

    @property
    def now(self) -> float:
        """Its CLOCK_BOOTTIME."""
        ...

    async def awake(self) -> None:
        """Wait until it runs."""
        ...


class Coordinator:
    """The claim of one shard. `is_away` is for everybody."""

    def __init__(self, clock: Callable[[], float], dice: Random) -> None:
        self.is_away = False
        self.dice = dice
        self.claim: tuple[Session, int] | None = None
        self._clock = clock
        self._drift = dice.uniform(0.98, 1.02)

    @property
    def now(self) -> float:
        """Its own clock."""
        return self._clock() * self._drift

    def is_claimed(self) -> bool:
        """Return whether the lease of the claim holds."""
        return self.claim is not None and self.claim[0].lease == self.claim[1] and self.now < self.claim[0].ends


class Session:
    """The lease of one life of a node; where it ends, another begins, without the claim."""

    def __init__(self, coordinator: Coordinator, process: Process) -> None:
        self.lease = 0
        self.ends = 0.0
        self.is_dead = False
        """The process was killed: its port refuses."""
        self._coordinator = coordinator
        self._process = process
        self._until = 0.0
        self._claimed = -1

    @property
    def valid_until(self) -> float:
        """See Session."""
        return self._until if self._claimed == self.lease else 0.0

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

    async def claim(self) -> bool:
        """Claim the shard, unless it is claimed by one that lives; whether it is ours."""
        coordinator = self._coordinator
        if not await self._reach() or coordinator.now >= self.ends:
            return False
        if coordinator.is_claimed():
            assert coordinator.claim is not None
            if coordinator.claim[0] is not self and not coordinator.claim[0].is_dead:
                return False
        coordinator.claim = self, self.lease
        if await self._reach():
            self._claimed = self.lease
        return True

    async def keeps(self) -> bool:
        """Return whether the claim has been ours ever since it was made."""
        return await self._reach() and self._claimed == self.lease and self._coordinator.claim == (self, self.lease)

    async def sees_another(self) -> bool:
        """Return whether another node has the claim."""
        claim = self._coordinator.claim
        return await self._reach() and self._coordinator.is_claimed() and claim is not None and claim[0] is not self

    def give_up(self) -> None:
        """Let others claim."""
        if self._coordinator.claim is not None and self._coordinator.claim[0] is self and not self._is_cut:
            self._coordinator.claim = None

    @property
    def _is_cut(self) -> bool:
        return self._coordinator.is_away or self._process.is_alone

    async def _reach(self) -> bool:
        """A message there, or back."""
        await self._process.awake()
        await asyncio.sleep(self._coordinator.dice.uniform(0.001, 0.01))
        await self._process.awake()
        return not self._is_cut
