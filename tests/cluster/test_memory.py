"""The coordinator in memory: leases that end, by a clock that the test sets."""

import asyncio

from cluster.entries import ONE, owner

from topics_cluster.coordinator import View
from topics_cluster.memory import MemoryCoordinator, MemoryEntries


class _Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


async def test_a_new_lease_has_no_claims_of_the_one_that_ended() -> None:
    clock = _Clock()
    entries = MemoryEntries(clock)
    one, two = MemoryCoordinator(entries), MemoryCoordinator(entries)
    first, second = await one.session(2), await two.session(2)
    await first.register(ONE)
    assert await first.claim(0, None, owner("one", 1))
    assert not await second.claim(0, None, owner("two", 2))
    one.reachable = False
    clock.now += 1.5
    assert (await two.view()).owners == {0: owner("one", 1)}
    assert first.valid_until == 102.0
    clock.now += 1
    assert (await two.view()).owners == {}
    assert (await two.view()).nodes == {}
    assert await second.claim(0, None, owner("two", 2))
    two.reachable = False
    clock.now += 3  # which ends the lease of the second too
    one.reachable = True
    assert (await one.view()).owners == {}
    assert set((await one.view()).nodes) == {"one"}
    assert first.valid_until < clock.now  # the second may have acknowledged what the first has not seen
    assert await first.claim(0, None, owner("one", 1))
    assert first.valid_until == clock.now + 2


async def test_watchers_see_each_state_and_nothing_twice() -> None:
    coordinator = MemoryCoordinator(MemoryEntries())
    seen: list[View] = []
    enough = asyncio.Event()

    async def follow() -> None:
        async for view in coordinator.watch():
            seen.append(view)
            if view.wanted == {0: "two"}:
                enough.set()

    following = asyncio.create_task(follow())
    session = await coordinator.session(60)
    await session.register(ONE)
    assert await session.claim(0, None, owner("one", 0))
    assert await session.claim(0, owner("one", 0), owner("one", 1))
    await session.give_up(0, owner("one", 0))  # an older entry: nothing of it is there
    await coordinator.want(0, "two")
    await asyncio.wait_for(enough.wait(), 10)
    following.cancel()
    assert seen[-1].owners == {0: owner("one", 1)}
    assert len(seen) == len({view.revision for view in seen})
