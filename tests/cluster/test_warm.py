"""Followers whose catalog of topics is not ready: they follow, but are no place to go for a shard."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster.test_every_node import append, owners
from cluster.test_moves import SHARDS, topic_of
from cluster.world import World, client, world_of

from support.waiting import until
from topics_cluster.coordinator import Owner
from topics_cluster.follower import Follower
from topics_server.node import replica as replica_module
from topics_server.node import shards as shards_module
from topics_server.node.claims import Claims
from topics_server.node.server import NodeServer
from topics_server.node.successors import Successors


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return await world_of(SHARDS, tmp_path, monkeypatch)


class Held:
    """Keeps the followers of some nodes from making their catalogs ready."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *nodes: str) -> None:
        self.waiting = 0
        self._released = asyncio.Event()
        prepare = Follower._prepare

        async def held(follower: Follower) -> None:
            if not {*follower._store.path.parts}.isdisjoint(nodes):
                self.waiting += 1
                await self._released.wait()
            await prepare(follower)

        monkeypatch.setattr(Follower, "_prepare", held)

    def release(self) -> None:
        """Let them go on."""
        self._released.set()


def numbers(node: NodeServer) -> list[int]:
    """The newest object of each shard."""
    return [each.number for each in node.statistics.shards]


async def test_a_shard_moves_to_a_follower_once_its_catalog_is_ready(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch, "b")
    async with world.node("a") as a, client(a) as at_a:
        await until(lambda: {*owners(world).values()} == {"a"})
        async with world.node("b") as b:
            await until(lambda: held.waiting == SHARDS)
            for shard in range(SHARDS):
                assert await append(at_a, topic_of(shard), "one") == 1
            await until(lambda: numbers(b) == numbers(a))
            await until(lambda: world.entries.view().nodes["a"].warm == (0, 1))
            assert world.entries.view().nodes["b"].warm == ()
            assert [each.followers for each in a.statistics.shards] == [0, 0]
            await world.coordinators["a"].want(0, "b")
            looked = counted(monkeypatch, "a")
            await until(lambda: looked() > 8)
            assert {*owners(world).values()} == {"a"}
            held.release()
            await until(lambda: owners(world)[0] == "b")
            await until(lambda: world.entries.view().nodes["b"].warm == (0, 1))
            assert await append(at_a, topic_of(0), "two") == 2


async def test_a_node_that_stops_hands_over_to_a_follower_whose_catalog_is_not_ready(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch, "b")
    async with contextlib.AsyncExitStack() as stack:
        a = await stack.enter_async_context(world.node("a"))
        await until(lambda: {*owners(world).values()} == {"a"})
        async with client(a) as at_a, world.node("b") as b, client(b) as at_b:
            await until(lambda: held.waiting == SHARDS)
            assert await append(at_a, topic_of(0), "one") == 1
            await until(lambda: numbers(b) == numbers(a))
            await stack.aclose()
            assert [each.handovers for each in a.statistics.shards] == [1, 1]
            await until(lambda: owners(world) == {0: "b", 1: "b"})
            assert await append(at_b, topic_of(0), "two") == 2


async def test_a_takeover_leaves_the_way_to_a_follower_whose_catalog_is_ready(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards_module, "SETTLED_SECONDS", 3600)
    monkeypatch.setattr(replica_module, "_PATIENCE_SECONDS", 60.0)
    held = Held(monkeypatch, "b")
    make = Claims.make

    async def late(self: Claims, seen: Owner | None, epoch: int = 0) -> Owner | None:
        if self._me.name == "c":
            await asyncio.sleep(0.3)
        return await make(self, seen, epoch)

    async with world.node("a", cluster_followers=2) as a, client(a) as at_a:
        await until(lambda: {*owners(world).values()} == {"a"})
        assert await append(at_a, topic_of(1), "one") == 1
        async with world.node("b", cluster_followers=2) as b, world.node("c", cluster_followers=2):
            await until(lambda: held.waiting == SHARDS and world.entries.view().nodes["c"].warm == (0, 1))
            monkeypatch.setattr(Claims, "make", late)
            monkeypatch.setattr(replica_module, "_RECENT_SECONDS", 0.0)  # a is heard of, but might as well be dead
            world.coordinators["a"].reachable = False
            await until(lambda: owners(world) == {0: "c", 1: "c"})
            assert [each.takeovers for each in b.statistics.shards] == [0, 0]
            held.release()
            await until(lambda: world.entries.view().nodes["b"].warm == (0, 1))
            world.coordinators["a"].reachable = True


def counted(monkeypatch: pytest.MonkeyPatch, node: str) -> Callable[[], int]:
    """Count how often owners at a node look for the next owner."""
    looks, find = 0, Successors.find

    async def looked(self: Successors, *, stopping: bool) -> str | None:
        nonlocal looks
        looks += self._me == node
        return await find(self, stopping=stopping)

    monkeypatch.setattr(Successors, "find", looked)
    return lambda: looks
