"""Routers that get a destination in another shard: the same as on one engine, whatever ends or is lost in between."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest
from shards.lives import World, names, open_world
from shards.test_routers import ends, history, put, refusal

from support.audit import audit
from support.waiting import until
from topics_service.api.access.auth import UNRESTRICTED
from topics_service.api.routers import RoutersApi
from topics_service.engine.clock import SystemClock
from topics_service.engine.engine import Engine
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.limits import Limits
from topics_service.engine.model import AppendRequest, Batch, ConfigInput, TagMatch
from topics_service.engine.placement import home_of
from topics_service.engine.router.router import Guarantee, ListRoutersRequest, PutRouterRequest, RouterConfig
from topics_service.storage.memory import MemoryStore
from topics_shards.moving import RouterMoves
from topics_shards.shards import LostCallError

_STEPS = ("depart", "arrive", "set_place", "activate", "leave")


class Lost:
    """Loses the next call of one method on routers, or its answer."""

    def __init__(self, world: World, step: str, *, answer: bool, then: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.happened = False
        call = world.shards.call

        async def run(shard: int, method: Any, /, *args: Any, **kwargs: Any) -> Any:
            is_it = not self.happened and method is getattr(RoutersApi, step)
            self.happened = self.happened or is_it
            if is_it and not answer:
                await then()
                raise LostCallError
            result = await call(shard, method, *args, **kwargs)
            if is_it:
                await then()
                raise LostCallError
            return result

        world.shards.call = run  # type: ignore[assignment,method-assign]


async def nothing() -> None:
    """Do nothing more."""


def living(world: World) -> int:
    """The number of routers that forward, or will."""
    routers = [world.engine(number).routers for number in range(3)]
    assert not any(each.moves.routers for each in routers)
    return sum(map(len, routers))


async def settled(world: World) -> None:
    """All moves have ended by themselves."""
    for _ in range(2):
        for life in world.shards.lives.values():
            await life.work.mover.look()
    assert living(world) == 1


async def read(world: World, topic: str) -> list[bytes]:
    """The records of a topic; none if it does not exist."""
    return await world.read(topic) if world.engine_of(topic).has_topic(topic) else []


async def state(world: World, name: str = "r") -> tuple[str, str, int, int]:
    """Ends, copies and lag of a router."""
    found = await world.api.routers.get(name, principal=UNRESTRICTED)
    return found.config.source, found.config.dest, found.forwarded_total, found.lag_records


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
async def test_a_router_gets_other_ends_in_any_shards(guarantee: Guarantee) -> None:
    a, b, c, d, e = names(3, 0, 1, 2, 0, 0)
    async with open_world() as world:
        assert (await put(world, "r", a, b, guarantee=guarantee)).created
        await world.append(a, b"1")
        moved = await put(world, "r", a, c, guarantee=guarantee)
        assert (moved.created, moved.config.dest) == (False, c)
        assert await state(world) == (a, c, 1, 0)
        await world.append(a, b"2", b"3")
        assert (await world.read(b), await world.read(c)) == ([b"1"], [b"2", b"3"])
        await world.append(b, b"not this")
        await put(world, "r", b, d, guarantee=guarantee)  # another source, too
        await world.append(a, b"nor that")
        await world.append(b, b"4")
        assert (await world.read(c), await world.read(d)) == ([b"2", b"3"], [b"4"])
        await put(world, "r", a, b, guarantee=guarantee)
        await world.append(a, b"5")
        assert await world.read(b) == [b"1", b"not this", b"4", b"5"]
        await put(world, "r", a, e, guarantee=guarantee)  # to the shard of its source
        await world.append(a, b"6")
        assert await world.read(e) == [b"6"]
        await put(world, "r", a, b, guarantee=guarantee, filter=TagMatch(op="Eq", value=b"x"))  # and away from there
        await world.append(a, b"7")
        await world.append(a, b"8", tag=b"x")
        assert await world.read(b) == [b"1", b"not this", b"4", b"5", b"8"]
        assert await state(world) == (a, b, 7, 0)
        assert living(world) == 1
        page = await world.api.routers.page(ListRoutersRequest(), principal=UNRESTRICTED)
        assert [(each.router, each.config.dest) for each in page.routers] == [("r", b)]
        assert (await world.api.routers.delete("r", principal=UNRESTRICTED)).deleted
        assert living(world) == 0
        stores = world.stores
    assert [audit(store) for store in stores] == [[], [], []]


async def test_a_refused_move_leaves_the_router_as_it_is() -> None:
    a, b, c, d, e = names(3, 0, 1, 2, 2, 0)
    async with open_world(limits=Limits(max_routers=3, max_topics=20)) as world:
        await put(world, "r", a, b)
        await put(world, "other", d, c)
        await world.append(a, b"1")
        fan_in = await refusal(world, "r", a, c)
        assert (fan_in.detail or {})["reason"] == "router_dest_fan_in"
        await put(world, "r2", c, e)
        cycle = await refusal(world, "r", e, d)
        assert (cycle.reason, (cycle.detail or {})["cycle"]) == (Reason.ROUTER_CYCLE, [e, d, c, e])
        missing = await refusal(world, "r", a, names(3, 2, prefix="missing")[0], create_dest=False)
        assert missing.reason is Reason.TOPIC_NOT_FOUND
        await world.end(2)
        away = await refusal(world, "r", a, names(3, 2, prefix="away")[0])
        assert away.reason is Reason.NOT_READY
        world.begin(2)
        await world.append(a, b"2")
        assert await world.read(b) == [b"1", b"2"]
        assert await state(world) == (a, b, 2, 0)
        assert living(world) == 3
        await put(world, "r", a, names(3, 2, prefix="new")[0])  # as many routers as before
        assert living(world) == 3


async def test_the_rest_of_a_source_goes_to_the_new_destination_or_the_move_is_refused() -> None:
    a, b, c, d = names(3, 0, 1, 2, 0)
    async with open_world() as world:
        await world.api.put_topic(b, ConfigInput(discard="reject", cap_records=2), principal=UNRESTRICTED)
        await put(world, "r", a, b)
        await world.append(a, b"1", b"2", b"3", b"4")
        assert await world.read(b) == [b"1", b"2"]
        assert (await refusal(world, "r", d, c)).reason is Reason.TOPIC_FULL
        assert await state(world) == (a, b, 2, 2)
        await put(world, "r", a, c)
        assert (await world.read(b), await world.read(c)) == ([b"1", b"2"], [b"3", b"4"])
        assert await state(world) == (a, c, 4, 0)


@pytest.mark.parametrize("step", _STEPS)
@pytest.mark.parametrize("answer", [False, True], ids=["call", "answer"])
@pytest.mark.parametrize("dying", [None, 0, 1, 2])
@pytest.mark.parametrize("later", ["put", "get", "delete", "nothing"])
async def test_a_step_is_lost(step: str, answer: bool, dying: int | None, later: str) -> None:
    """The name's home is shard 0 as the source's is; the router goes from shard 1 to 2."""
    a, b, c = names(3, 0, 1, 2)
    router = names(3, 0, prefix="r")[0]
    async with open_world() as world:
        await put(world, router, a, b)
        await world.append(a, b"1", b"2")

        async def die() -> None:
            if dying is not None:
                await world.crash(dying)

        lost = Lost(world, step, answer=answer, then=die)
        refused = False
        try:
            await put(world, router, a, c)
        except (TopicsError, LostCallError):
            refused = True
        assert lost.happened
        await world.append(a, b"3")
        if later == "put":
            await put(world, router, a, c)
        elif later == "get":
            await state(world, router)
        elif later == "delete":
            assert (await world.api.routers.delete(router, principal=UNRESTRICTED)).deleted
            for _ in range(2):
                for life in world.shards.lives.values():
                    await life.work.mover.look()
            assert living(world) == 0
            await world.append(a, b"not this")
            assert await read(world, b) + await read(world, c) in ([b"1", b"2"], [b"1", b"2", b"3"])
            return
        await settled(world)
        await world.append(a, b"4")
        copies = await read(world, b), await read(world, c)
        assert copies[0] + copies[1] == [b"1", b"2", b"3", b"4"]
        source, dest, forwarded, lag = await state(world, router)
        assert (source, forwarded, lag) == (a, 4, 0)
        if later == "put" or not refused:
            assert dest == c
            assert copies[1][-1:] == [b"4"]
        assert (await put(world, router, a, b)).config.dest == b
        await world.append(a, b"5")
        assert (await world.read(b))[-1] == b"5"
        assert living(world) == 1


@pytest.mark.parametrize("dying", [0, 1, 2])
async def test_a_shard_ends_at_each_turn_of_a_move(dying: int) -> None:
    a, b, c = names(3, 0, 1, 2)
    router = names(3, 0, prefix="r")[0]
    for turns in range(0, 120, 3):
        async with open_world() as world:
            await put(world, router, a, b)
            await world.append(a, b"1")
            with suppress(TopicsError, LostCallError):
                await ends(world, dying, turns, put(world, router, a, c))
            await world.append(a, b"2")
            await settled(world)
            assert await read(world, b) + await read(world, c) == [b"1", b"2"], turns
            await put(world, router, a, c)
            await world.append(a, b"3")
            assert (await world.read(c))[-1] == b"3", turns
            assert await read(world, b) + await read(world, c) == [b"1", b"2", b"3"], turns
            assert living(world) == 1


async def test_calls_that_move_a_router_at_the_same_time() -> None:
    a, *dests = names(3, 0, 1, 2, 0, 1)
    async with open_world() as world:
        await put(world, "r", a, dests[0])
        written: list[bytes] = []
        for turn in range(20):
            both = await asyncio.gather(
                *(put(world, "r", a, dest) for dest in random.Random(turn).sample(dests, 3)), return_exceptions=True
            )
            for each in both:
                assert not isinstance(each, BaseException) or (
                    isinstance(each, TopicsError) and each.reason is Reason.THROTTLED
                ), both
            written.append(b"%d" % turn)
            await world.append(a, written[-1])
            await settled(world)
            copies = [
                data for dest in dests if world.engine_of(dest).has_topic(dest) for data in await world.read(dest)
            ]
            assert sorted(copies, key=int) == written


@pytest.mark.parametrize("seed", range(8))
async def test_whatever_ends_while_a_router_moves_about(seed: int) -> None:
    rng = random.Random(seed)
    source, *dests = names(3, 0, 1, 2, 0)
    guarantee: Guarantee = rng.choice(("at_least_once", "exactly_once"))
    async with open_world() as world:
        await put(world, "r", source, dests[0], guarantee=guarantee)
        number = 0
        for _ in range(40):
            put_again = asyncio.create_task(put(world, "r", source, rng.choice(dests), guarantee=guarantee))
            for _ in range(rng.randrange(3)):
                datas = [b"%d" % (number + i) for i in range(rng.choice((1, 3, 300)))]
                number += len(datas)
                while True:
                    with suppress(LostCallError):
                        await world.append(source, *datas)
                        break
            if rng.random() < 0.4:
                for _ in range(rng.randrange(60)):
                    await asyncio.sleep(0)
                await world.crash(rng.randrange(3))
            with suppress(TopicsError, LostCallError):
                await put_again
        await settled(world)
        copies = [int(data) for dest in dests for data in await read(world, dest)]
        assert sorted(copies) == list(range(number))
        for dest in dests:
            found = [int(data) for data in await read(world, dest)]
            assert found == sorted(found), "the order of the source"
        assert (await state(world))[2:] == (number, 0)


@pytest.mark.parametrize("seed", range(8))
async def test_copies_are_those_of_one_engine(seed: int) -> None:
    rng = random.Random(seed)
    ends_ = names(3, 0, 1, prefix="s"), names(3, 1, 2, 0, 1, prefix="d")
    one = Engine(MemoryStore(), SystemClock(), boot_id="boot")
    async with open_world() as world:
        for source in ends_[0]:
            config = ConfigInput(cap_records=rng.choice((0, 30)))
            await world.api.put_topic(source, config, principal=UNRESTRICTED)
            one.put_topic(source, config)
        number = 0
        for _ in range(25):
            for _ in range(rng.randrange(4)):
                datas = [b"%d" % (number + i) for i in range(rng.choice((1, 4, 25)))]
                number += len(datas)
                append = AppendRequest(topic=rng.choice(ends_[0]), batch=Batch(datas, tags=[b"x"] * len(datas)))
                await world.api.append(append, principal=UNRESTRICTED)
                one.append(append)
                one.sync()
                while one.routers.forward():
                    pass
                await asyncio.gather(*(read(world, dest) for dest in ends_[1]))
            match = rng.choice((None, TagMatch(op="Eq", value=b"x"), TagMatch(op="Eq", value=b"y")))
            config_ = RouterConfig(source=rng.choice(ends_[0]), dest=rng.choice(ends_[1]), filter=match)
            request = PutRouterRequest(router="r", config=config_)
            reply = await world.api.routers.put(request, principal=UNRESTRICTED)
            assert reply == one.routers.put(request)[0]
            one.sync()
            while one.routers.forward():
                pass
            one.sync()
            for dest in ends_[1]:
                await read(world, dest)
                assert history(world.engine_of(dest), dest) == history(one, dest), (seed, dest)
            assert await world.api.routers.get("r", principal=UNRESTRICTED) == one.routers.get("r")


async def test_what_came_too_late_is_removed() -> None:
    a, b, c = names(3, 0, 1, 2)
    async with open_world() as world:
        await put(world, "r", a, b)
        arrivals: list[Any] = []
        call = world.shards.call

        async def run(shard: int, method: Any, /, *args: Any, **kwargs: Any) -> Any:
            if method is RoutersApi.arrive:
                arrivals.append(args[0])
                raise TopicsError(Reason.TOPIC_FULL, "full")
            return await call(shard, method, *args, **kwargs)

        world.shards.call = run  # type: ignore[assignment,method-assign]
        assert (await refusal(world, "r", a, c)).reason is Reason.TOPIC_FULL
        world.shards.call = call  # type: ignore[method-assign]
        late = world.shards.lives[2].api.routers
        await late.arrive(arrivals[0])
        assert len(world.engine(2).routers) == 1
        await world.append(a, b"1")
        assert (await world.read(b), await world.read(c)) == ([b"1"], [])
        page = await world.api.routers.page(ListRoutersRequest(), principal=UNRESTRICTED)
        assert [each.config.dest for each in page.routers] == [b]
        await settled(world)
        assert len(world.engine(2).routers) == 0
        await late.arrive(arrivals[0])
        await put(world, "r", a, c)  # and what is in the way, too
        await world.append(a, b"2")
        assert (await world.read(b), await world.read(c)) == ([b"1"], [b"2"])
        await until(lambda: living(world) == 1)
        assert world.engine(2).routers.find("r") is not None
        assert home_of(c, 3) == 2


async def test_what_has_arrived_is_left_alone_while_its_move_is_under_way() -> None:
    a, b, c = names(3, 0, 1, 2)
    async with open_world() as world:
        await put(world, "r", a, b)
        call, looks = world.shards.call, 0

        async def run(shard: int, method: Any, /, *args: Any, **kwargs: Any) -> Any:
            nonlocal looks
            result = await call(shard, method, *args, **kwargs)
            if method is RoutersApi.arrive and not looks:
                looks = 1
                assert len(world.engine(2).routers) == 1
                await RouterMoves(world.located).settle_at(2, "r")  # it ends the move before its caller does
            return result

        world.shards.call = run  # type: ignore[assignment,method-assign]
        assert (await put(world, "r", a, c)).config.dest == c
        assert looks == 1
        await world.append(a, b"1")
        assert await world.read(c) == [b"1"]
        assert living(world) == 1


async def test_nothing_is_pulled_for_a_router_that_has_departed() -> None:
    a, b, c = names(3, 0, 1, 2)
    async with open_world() as world:
        await put(world, "r", a, b)
        pulled = world.engine(1).routers.foreign
        assert len(list(pulled)) == 1
        Lost(world, "depart", answer=True, then=nothing)
        with pytest.raises(LostCallError):
            await put(world, "r", a, c)
        assert not list(pulled)
        await world.crash(1)
        assert not list(world.engine(1).routers.foreign)
        await world.append(a, b"1")
        await settled(world)
        assert (await world.read(c), await state(world)) == ([b"1"], (a, c, 1, 0))


async def test_each_place_is_another_one_and_remembers_the_newest_move() -> None:
    async with open_world() as world:
        places = world.engine(0).routers.places
        first, _ = places.put("r", 1, None)
        moved, _ = places.put("r", 2, first, "token")
        assert (moved.shard, moved.token) == (2, "token")
        assert places.put("r", 1, first, "other")[0] == moved, "it was another one meanwhile"
        again, _ = places.put("r", 2, moved)
        assert (again.shard, again.token) == (2, "token")
        assert again.ts > moved.ts > first.ts
        assert places.find("r") == again
