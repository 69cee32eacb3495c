"""The promises of every Coordinator, kept by etcd and by the one in memory."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable

import pytest
from cluster.entries import ONE, TWO, owner

from topics_cluster.coordinator import Coordinator, View, boottime
from topics_cluster.etcd import EtcdCoordinator
from topics_cluster.memory import MemoryCoordinator, MemoryEntries


@pytest.fixture(params=["memory", "etcd"])
async def both(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Coordinator, Coordinator]]:
    """The coordinators of two nodes of a cluster."""
    made: tuple[Coordinator, Coordinator]
    if request.param == "memory":
        entries = MemoryEntries()
        made = MemoryCoordinator(entries), MemoryCoordinator(entries)
    else:
        address, cluster = request.getfixturevalue("etcd").address, uuid.uuid4().hex
        made = EtcdCoordinator([address], cluster), EtcdCoordinator([address], cluster)
    yield made
    for each in made:
        await each.close()


Both = tuple[Coordinator, Coordinator]


async def test_one_of_two_owns_the_shard(both: Both) -> None:
    first, second = [await each.session(2) for each in both]
    claims = await asyncio.gather(first.claim(0, None, owner("one", 0)), second.claim(0, None, owner("two", 0)))
    assert sorted(claims) == [False, True]
    winner, loser = (first, second) if claims[0] else (second, first)
    name, other = ("one", "two") if claims[0] else ("two", "one")
    assert await winner.claim(0, None, owner(name, 0))  # again: it is ours
    assert await winner.claim(0, owner(name, 0), owner(name, 7))
    assert (await both[0].view()).owners == {0: owner(name, 7)}
    assert not await loser.claim(0, None, owner(other, 0))
    assert not await loser.claim(0, owner(name, 0), owner(other, 0))
    assert await loser.claim(0, owner(name, 7), owner(other, 0))  # who was found dead
    assert not await winner.claim(0, owner(name, 7), owner(name, 8))
    await winner.give_up(0, owner(name, 7))  # which it has lost
    assert (await both[0].view()).owners == {0: owner(other, 0)}
    await loser.give_up(0, owner(other, 0))
    assert (await both[0].view()).owners == {}


async def test_a_node_lives_until_its_session_ends(both: Both) -> None:
    first, second = [await each.session(2) for each in both]
    await first.register(ONE)
    await second.register(TWO)
    await first.claim(0, None, owner("one", 1))
    assert (await both[1].view()).nodes == {"one": ONE, "two": TWO}
    await first.close()
    view = await both[1].view()
    assert (view.nodes, view.owners) == ({"two": TWO}, {})


async def test_a_lease_that_is_renewed_outlives_its_seconds(both: Both) -> None:
    session = await both[0].session(2)
    await session.register(ONE)
    await session.claim(0, None, owner("one", 1))
    begun, ends = boottime(), []
    while boottime() < begun + 2.6:
        ends.append(session.valid_until)
        assert boottime() < ends[-1] < boottime() + 2.1
        await asyncio.sleep(0.05)
    assert ends == sorted(ends)
    assert (await both[1].view()).owners == {0: owner("one", 1)}


async def test_the_watch_shows_every_kind_of_change(both: Both) -> None:
    views: list[View] = []
    changed = asyncio.Event()

    async def follow() -> None:
        async for view in both[1].watch():
            views.append(view)
            changed.set()

    async def seen(condition: Callable[[View], bool]) -> None:
        async with asyncio.timeout(20):
            while not (views and condition(views[-1])):
                changed.clear()
                await changed.wait()

    following = asyncio.create_task(follow())
    await seen(lambda view: not view.nodes)
    session = await both[0].session(2)
    await session.register(ONE)
    await seen(lambda view: view.nodes == {"one": ONE})
    await session.claim(0, None, owner("one", 0))
    await seen(lambda view: view.owners == {0: owner("one", 0)})
    await session.claim(0, owner("one", 0), owner("one", 1))
    await seen(lambda view: view.owners == {0: owner("one", 1)})
    await both[0].want(0, "two")
    await both[0].want(1, "one")
    await seen(lambda view: view.wanted == {0: "two", 1: "one"})
    await both[0].want(0, None)
    await seen(lambda view: view.wanted == {1: "one"})
    await both[1].prefer(0, "west")
    await both[0].prefer(3, "east")
    await seen(lambda view: view.zones == {0: "west", 3: "east"})
    await both[0].prefer(0, None)
    await seen(lambda view: view.zones == {3: "east"})
    await session.give_up(0, owner("one", 1))
    await seen(lambda view: not view.owners)
    await session.close()
    await seen(lambda view: not view.nodes)
    assert [view.revision for view in views] == sorted({view.revision for view in views})
    following.cancel()
