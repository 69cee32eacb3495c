"""Moves of shards: what could keep a shard from acknowledging for longer than it has to."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cluster.test_every_node import append, owners
from cluster.world import World, client, world_of

from support.waiting import until
from topics_cluster.follower import Follower
from topics_cluster.memory import MemorySession
from topics_cluster.store import ShardStore
from topics_server import collector
from topics_server.node import shards as shards_module
from topics_server.node import successors as successors_module
from topics_server.node.directory import Directory
from topics_server.node.place import Place
from topics_server.node.shard_term import ComingShard, ShardTerm
from topics_server.node.shards import Shards
from topics_server.node.term import Term
from topics_service.engine.placement import home_of
from topics_shards.remote import RemoteShards
from topics_shards.shards import NotHereError

SHARDS = 2


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return await world_of(SHARDS, tmp_path, monkeypatch)


def topic_of(shard: int) -> str:
    return next(name for name in (f"t{number}" for number in range(100)) if home_of(name, SHARDS) == shard)


async def settled(world: World) -> int:
    """Return the shard of a once a and b own one each, and follow the other."""
    view = world.entries.view
    await until(lambda: {*owners(world).values()} == {"a", "b"} and not view().wanted, seconds=60)
    await until(lambda: all(len(node.warm) == SHARDS for node in view().nodes.values()), seconds=60)
    return next(shard for shard, name in owners(world).items() if name == "a")


async def test_a_move_claims_once_and_calls_wait_at_the_next_owner(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, claims, asked, uploads = asyncio.Event(), list[Any](), list[int](), list[str]()
    start, claim, ask, upload = Term.start, MemorySession.claim, RemoteShards._asked_again, ShardStore.upload

    async def held(self: Term, set_serving: Callable[[bool], None]) -> None:
        await started.wait()
        await start(self, set_serving)

    async def counted(self: MemorySession, shard: int, seen: Any, mine: Any) -> bool:
        claims.append((shard, mine.node, mine.epoch))
        return await claim(self, shard, seen, mine)

    async def noted(self: RemoteShards, shard: int, deadline: float) -> None:
        asked.append(shard)
        await ask(self, shard, deadline)

    def uploaded(self: ShardStore) -> None:
        uploads.append(threading.current_thread().name)
        upload(self)

    async with world.node("a") as a, world.node("b"), client(a) as at_a:
        shard = await settled(world)
        await append(at_a, topic_of(shard), "one")
        monkeypatch.setattr(Term, "start", held)
        monkeypatch.setattr(MemorySession, "claim", counted)
        monkeypatch.setattr(ShardStore, "upload", uploaded)
        await world.coordinators["a"].want(shard, "b")
        place = a.statistics.shards[shard]
        await until(lambda: owners(world)[shard] == "b" and place.role == "following")
        monkeypatch.setattr(RemoteShards, "_asked_again", noted)
        appending = asyncio.create_task(append(at_a, topic_of(shard), "two"))
        done, _ = await asyncio.wait((appending,), timeout=0.3)
        assert not done, "b does not serve it yet"
        started.set()
        assert await appending == 2
        assert shard not in asked, "b holds the call, and is not asked again"
        assert claims == [(shard, "b", 2)]
        assert threading.main_thread().name not in uploads, "the loop does not wait for the object store"


async def test_an_owner_waits_for_the_next_one_to_come_near(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(successors_module, "_NEAR_SECONDS", 60.0)
    async with world.node("a") as a, world.node("b"), client(a) as at_a:
        shard = await settled(world)
        applies, catch_up = asyncio.Event(), Follower.catch_up

        async def late(self: Follower) -> int:
            await applies.wait()
            return await catch_up(self)

        monkeypatch.setattr(Follower, "catch_up", late)
        for number in range(4):
            body = {"records": [{"data": number}], "config": {"durability": "fsync"}}
            assert (await at_a.post(f"/v0/topics/{topic_of(shard)}", json=body)).status_code in (200, 201)
        looked, target = 0, Shards.target

        def counted(self: Shards, number: int) -> str | None:
            nonlocal looked
            looked += number == shard and target(self, number) == "b"
            return target(self, number)

        monkeypatch.setattr(Shards, "target", counted)
        await world.coordinators["a"].want(shard, "b")
        await until(lambda: looked > 3)
        assert a.statistics.shards[shard].role == "owning", "b would have to read four objects first"
        applies.set()
        await until(lambda: owners(world)[shard] == "b")


async def test_a_move_begins_a_pause_after_the_one_before(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world.node("a") as a, world.node("b"):
        shard = await settled(world)
        monkeypatch.setattr(shards_module, "PAUSE_SECONDS", 3600.0)
        looks, lay_out = 0, Shards._lay_out

        def counted(self: Shards, view: Any) -> None:
            nonlocal looks
            looks += 1
            lay_out(self, view)

        monkeypatch.setattr(Shards, "_lay_out", counted)
        await world.coordinators["a"].want(shard, "b")
        await until(lambda: looks > 8)
        assert a.statistics.shards[shard].role == "owning"
        monkeypatch.setattr(shards_module, "PAUSE_SECONDS", 0.1)
        await until(lambda: owners(world)[shard] == "b")


async def test_a_replica_that_goes_is_not_written_out_first(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards_module, "SPARED_SECONDS", 0.2)
    closed, close = list[Path](), Directory.close

    async def noted(self: Directory, store: ShardStore) -> None:
        closed.append(store.path)
        await close(self, store)

    monkeypatch.setattr(Directory, "close", noted)
    async with world.node("a"), world.node("b"):
        await settled(world)
        await world.coordinators["a"].drain("b", is_drained=True)
        async with world.node("c"):
            folder = world.folder / "b" / "shards"
            await until(lambda: not any(folder.glob("*/CURRENT")), seconds=30)
            assert not [path for path in closed if path.is_relative_to(folder)]


async def test_calls_on_a_shard_that_does_not_come_have_not_happened() -> None:
    place = Place()
    seen: list[bool] = []
    place.on_change = lambda: seen.append(place.is_coming)
    place.coming()
    place.coming()
    assert seen == [True], "the doors hear of it, once"
    coming: Any = ComingShard(place)
    calls = [asyncio.create_task(coming.run(None)) for _ in range(2)]
    await asyncio.sleep(0)
    place.elsewhere(None)
    for call in calls:
        with pytest.raises(NotHereError):
            await call
    place.coming()

    class Here:
        async def run(self, method: object, *values: int) -> tuple[object, ...]:
            return method, *values

    term: Any = ShardTerm.__new__(ShardTerm)
    term.shard = Here()
    call = asyncio.create_task(coming.run("append", 1))
    await asyncio.sleep(0)
    place.here(term, None)  # type: ignore[arg-type]
    assert await call == ("append", 1)


async def test_what_shards_have_left_is_collected_once_in_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    class Timer:
        def __init__(self, when: float, callback: Callable[[], None]) -> None:
            self.when, self.callback, self.is_cancelled = when, callback, False

        def cancel(self) -> None:
            self.is_cancelled = True

    timers: list[Timer] = []
    collected: list[int] = []
    monkeypatch.setattr(collector.background, "call_at", lambda when, call: timers.append(Timer(when, call)))
    monkeypatch.setattr(collector, "collect", lambda: collected.append(1))
    leftovers = collector.Leftovers()
    leftovers.postpone()
    assert not timers, "there is nothing to collect"

    def at(when: float, callback: Callable[[], None]) -> Timer:
        timers.append(Timer(when, callback))
        return timers[-1]

    monkeypatch.setattr(collector.background, "call_at", at)
    now = asyncio.get_running_loop().time()
    for _ in range(3):
        leftovers.left()
        leftovers.postpone()
    *replaced, last = timers
    assert all(timer.is_cancelled for timer in replaced)
    assert not last.is_cancelled
    assert last.when >= now + collector.QUIET_SECONDS
    assert not collected
    monkeypatch.setattr(collector, "QUIET_SECONDS", 3600.0)
    leftovers.postpone()
    assert timers[-1].when < now + 70, "moves without a pause do not keep it from ever happening"
    timers[-1].callback()
    assert collected == [1]
    leftovers.postpone()
    assert len(timers) == 7
