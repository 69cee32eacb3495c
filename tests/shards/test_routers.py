"""Routers whose ends lie in different shards: the same as on one engine, whatever ends in between."""

import asyncio
import copy
import random
from collections.abc import Coroutine
from contextlib import suppress
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from corruption.repairs import repaired
from shards.lives import World, names, open_world

from support.audit import audit
from support.waiting import until
from topics_service.api.access.auth import UNRESTRICTED
from topics_service.engine.clock import SystemClock
from topics_service.engine.engine import Engine
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.model import AppendRequest, Batch, ConfigInput, DeleteRequest, DiffRequest, TagMatch
from topics_service.engine.placement import Place, home_of, shard_of_placement
from topics_service.engine.router.places import RouterPlace
from topics_service.engine.router.router import (
    Guarantee,
    ListRoutersRequest,
    PutRouterReply,
    PutRouterRequest,
    RouterConfig,
)
from topics_service.engine.router.stretch import BYTES
from topics_service.storage.memory import MemoryStore
from topics_service.storage.store import Family
from topics_shards.shards import LostCallError


async def put(
    world: World, name: str, source: str, dest: str, *, backfill: bool = False, create_dest: bool = True, **more: object
) -> PutRouterReply:
    """Create or change a router."""
    config = RouterConfig(source=source, dest=dest, **more)  # type: ignore[arg-type]
    request = PutRouterRequest(router=name, config=config, backfill=backfill, create_dest=create_dest)
    return await world.api.routers.put(request, principal=UNRESTRICTED)


async def refusal(world: World, name: str, source: str, dest: str, **more: bool) -> TopicsError:
    """The error of a PUT."""
    with pytest.raises(TopicsError) as refused:
        await put(world, name, source, dest, **more)
    return refused.value


async def test_a_router_copies_from_another_shard() -> None:
    a, b = names(3, 0, 1)
    async with open_world() as world:
        await world.append(a, b"before")
        reply = await put(world, "r", a, b)
        assert reply.created
        await world.append(a, b"1", b"2", tag=b"x")
        assert await world.read(b) == [b"1", b"2"], "readers read their writes"
        state = await world.api.routers.get("r", principal=UNRESTRICTED)
        assert (state.forwarded_total, state.lag_records, state.last_error) == (2, 0, None)
        assert not (await put(world, "r", a, b)).created
        assert (await world.api.routers.delete("r", principal=UNRESTRICTED)).deleted
        assert not (await world.api.routers.delete("r", principal=UNRESTRICTED)).deleted
        await world.append(a, b"3")
        assert await world.read(b) == [b"1", b"2"]
        with pytest.raises(TopicsError) as missing:
            await world.api.routers.get("r", principal=UNRESTRICTED)
        assert missing.value.reason is Reason.ROUTER_NOT_FOUND


async def test_filters_losses_and_deletions() -> None:
    a, b, c = names(3, 0, 1, 2)
    async with open_world() as world:
        await world.api.put_topic(a, ConfigInput(cap_records=4), principal=UNRESTRICTED)
        await put(world, "all", a, b)
        await put(world, "some", a, c, filter=TagMatch(op="Eq", value=b"x"), guarantee="exactly_once")
        await world.end(1)
        await world.append(a, b"1", b"2", b"3", b"4")
        await world.append(a, b"5", tag=b"x")
        await world.append(a, b"6", tag=b"y")
        await world.api.delete_records(DeleteRequest(topic=a, match=TagMatch(op="Eq", value=b"y")))
        await world.append(a, b"7")
        world.begin(1)
        assert await world.read(c) == [b"5"]
        assert await world.read(b) == [b"-", b"3", b"4", b"5", b"7"], "lost records are a gap, deleted ones are none"


async def test_routers_of_one_source_share_a_stream_and_a_stuck_one_holds_up_no_other() -> None:
    a, b, c = names(3, 0, 1, 1)
    async with open_world() as world:
        full = ConfigInput(discard="reject", cap_records=2)
        await world.api.put_topic(b, full, principal=UNRESTRICTED)
        await put(world, "stuck", a, b)
        await put(world, "other", a, c)
        foreign = world.engine(1).routers.foreign
        assert len(list(foreign)) == 1
        for number in range(40):
            await world.append(a, b"%d" % number)
        every = [b"%d" % number for number in range(40)]
        assert await world.read(c) == every
        assert await world.read(b) == every[:2]
        state = await world.api.routers.get("stuck", principal=UNRESTRICTED)
        assert (state.forwarded_total, state.lag_records) == (2, 38)
        assert state.last_error is not None
        assert len(list(foreign)) == 2
        await world.api.put_topic(b, ConfigInput(discard="reject"), principal=UNRESTRICTED)
        await until(lambda: world.engine(1).routers.blocked == 0)
        assert await world.read(b) == every
        await world.append(a, b"last")
        assert (await world.read(b), await world.read(c)) == ([*every, b"last"], [*every, b"last"])
        await until(lambda: len(list(foreign)) == 1)


async def test_a_backlog_larger_than_the_buffer() -> None:
    a, b = names(3, 2, 0)
    async with open_world() as world:
        datas = [b"%06d" % number + b"." * 5000 for number in range(400)]
        for at in range(0, 400, 50):
            await world.append(a, *datas[at : at + 50])
        await put(world, "r", a, b, backfill=True)
        source = next(iter(world.engine(0).routers.foreign))
        assert source.log.nbytes <= 2 * BYTES + 5006
        assert await world.read(b) == datas
        assert (source.log.nbytes, source.log.view.head) == (0, 400)


async def test_rules_are_those_of_one_engine() -> None:
    a, b, c, d = names(3, 0, 1, 2, 1)
    async with open_world() as world:
        assert (await refusal(world, "r", a, b, create_dest=False)).reason is Reason.TOPIC_NOT_FOUND
        assert not world.engine_of(a).has_topic(a), "a refused PUT makes no topic"
        await put(world, "ab", a, b)
        await put(world, "bc", b, c)
        fan_in = await refusal(world, "db", d, b)
        assert (fan_in.detail or {})["reason"] == "router_dest_fan_in"
        cycle = await refusal(world, "ca", c, a)
        assert (cycle.reason, (cycle.detail or {})["cycle"]) == (Reason.ROUTER_CYCLE, [c, a, b, c])
        assert await world.api.routers.page(ListRoutersRequest(), principal=UNRESTRICTED) is not None
        moved = await refusal(world, "ab", a, c)
        assert (moved.detail or {})["reason"] == "router_dest_fan_in"
        await world.api.put_topic(d, ConfigInput(), partition_count=2, principal=UNRESTRICTED)
        assert (await refusal(world, "da", d, a)).reason is Reason.INVALID_REQUEST
        with pytest.raises(TopicsError) as grown:
            await world.api.put_topic(a, ConfigInput(), partition_count=2, principal=UNRESTRICTED)
        assert grown.value.reason is Reason.INVALID_REQUEST
        found = await world.api.routers.page(ListRoutersRequest(page_size=1), principal=UNRESTRICTED)
        assert ([state.router for state in found.routers], found.next_after) == (["ab"], "ab")
        rest = await world.api.routers.page(ListRoutersRequest(after="ab"), principal=UNRESTRICTED)
        assert ([state.router for state in rest.routers], rest.next_after) == (["bc"], None)


async def test_a_cycle_is_found_through_a_topic_of_a_placement_group() -> None:
    a, b, c = names(3, 0, 1, 2)
    placement = next(f"g{number}" for number in range(99) if shard_of_placement(f"g{number}", 3) == 0)
    async with open_world() as world:
        await world.api.put_topic(c, ConfigInput(), principal=UNRESTRICTED, placement=placement)
        await put(world, "r1", a, c)
        await put(world, "r2", c, b)
        world.located.forget(c)  # as in a process that had no part in it
        error = await refusal(world, "r3", b, a)
        assert (error.reason, error.detail) == (Reason.ROUTER_CYCLE, {"cycle": [b, a, c, b]})


async def test_two_calls_that_close_a_cycle_do_not_both_succeed() -> None:
    a, b = names(3, 0, 1)
    async with open_world() as world:
        for _ in range(10):
            both = await asyncio.gather(put(world, "ab", a, b), put(world, "ba", b, a), return_exceptions=True)
            refused = [each for each in both if isinstance(each, TopicsError)]
            assert refused
            assert {each.reason for each in refused} == {Reason.ROUTER_CYCLE}
            for name in ("ab", "ba"):
                await world.api.routers.delete(name, principal=UNRESTRICTED)


async def test_names_are_unique_over_shards() -> None:
    a, b, c = names(3, 0, 1, 2)
    async with open_world() as world:
        both = await asyncio.gather(put(world, "r", a, b), put(world, "r", a, c), return_exceptions=True)
        made = [each for each in both if isinstance(each, PutRouterReply)]
        assert len(made) == 1
        assert sum(len(world.engine(number).routers) for number in range(3)) == 1
        other = c if made[0].config.dest == b else b
        assert not (await put(world, "r", a, other)).created
        assert sum(len(world.engine(number).routers) for number in range(3)) == 1


async def test_records_go_round_a_cycle_eight_times() -> None:
    a, b, c = names(3, 0, 1, 2)
    async with open_world() as world:
        await put(world, "ab", a, b)
        await put(world, "bc", b, c)
        await put(world, "ca", c, a, allow_cycle=True)
        await world.append(a, b"1")
        await until(lambda: world.engine_of(c).routers.rings.of(c).runs(1, 1 << 40)[-1:] == [(3, 4, 8)])
        await asyncio.sleep(0.05)
        heads = [world.engine_of(name).catalog.visible(name).log.view.head for name in (a, b, c)]
        assert heads == [3, 3, 3], "eight copies of the one record"


async def test_a_long_chain_is_no_cycle() -> None:
    chain = names(3, *(number % 3 for number in range(12)))
    async with open_world() as world:
        for number, (source, dest) in enumerate(pairwise(chain)):
            await put(world, f"r{number}", source, dest)
        await world.append(chain[0], b"1")
        await until(lambda: world.engine_of(chain[-1]).catalog.visible(chain[-1]).log.view.head == 1)


async def test_a_router_goes_with_its_source() -> None:
    a, b = names(3, 0, 1)
    async with open_world() as world:
        await put(world, "r", a, b)
        await world.append(a, b"1")
        assert await world.read(b) == [b"1"]
        reply = await world.api.delete_topic(a)
        assert reply.routers_removed == ["r"]
        assert len(world.engine(1).routers) == 0
        assert not list(world.engine(1).routers.foreign)
        await world.append(a, b"of another life")
        assert await world.read(b) == [b"1"]
        assert (await put(world, "r", a, b)).created
        await world.append(a, b"2")
        assert await world.read(b) == [b"1", b"2"]


async def test_a_source_is_recreated_while_the_destination_is_away() -> None:
    a, b = names(3, 0, 1)
    async with open_world() as world:
        await put(world, "r", a, b)
        await world.append(a, b"1")
        assert await world.read(b) == [b"1"]
        await world.end(1)
        world.shards.lives[0].api.parts.patience_seconds = 0.01
        with suppress(TopicsError):
            await world.api.delete_topic(a)
        world.begin(1)
        await until(lambda: not len(world.engine(1).routers) and not world.engine(0).parts.pending)
        await world.append(a, *(b"%d" % number for number in range(5)))
        assert await world.read(b) == [b"1"]


async def test_another_source_and_other_terms() -> None:
    a, b, c, d = names(3, 0, 1, 2, 1)
    async with open_world() as world:
        await put(world, "r", a, b)
        await world.append(a, b"1")
        await put(world, "r", c, b)
        await world.append(c, b"2")
        await world.append(a, b"not this")
        assert await world.read(b) == [b"1", b"2"]
        await put(world, "r", d, b)  # from another shard to its own
        await world.append(d, b"3")
        assert await world.read(b) == [b"1", b"2", b"3"]
        await put(world, "r", c, b)
        await world.append(c, b"4")
        await put(world, "r", c, b, filter=TagMatch(op="Eq", value=b"x"))
        await world.append(c, b"not that")
        await world.append(c, b"5", tag=b"x")
        assert await world.read(b) == [b"1", b"2", b"3", b"4", b"5"]
        state = await world.api.routers.get("r", principal=UNRESTRICTED)
        assert (state.forwarded_total, state.config.source) == (5, c)


async def test_a_source_that_is_away_ends_the_wait_of_readers() -> None:
    a, b = names(3, 0, 1)
    async with open_world() as world:
        await put(world, "r", a, b)
        await world.append(a, b"1")
        assert await world.read(b) == [b"1"]
        await world.end(0)
        assert await world.read(b) == [b"1"]
        await until(lambda: next(iter(world.engine(1).routers.foreign)).error is not None)
        state = await world.api.routers.get("r", principal=UNRESTRICTED)
        assert state.last_error is not None
        world.begin(0)
        await world.append(a, b"2")
        await until(lambda: world.engine_of(b).catalog.visible(b).log.view.head == 2)


@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once"])
async def test_a_source_that_is_put_back_is_followed_from_there(guarantee: str) -> None:
    a, b, c = names(3, 0, 1, 1)
    async with open_world() as world:
        await put(world, "r", a, b, guarantee=guarantee)
        await put(world, "s", a, c, guarantee=guarantee)
        await world.append(a, b"1", b"2")
        assert await world.read(b) == await world.read(c) == [b"1", b"2"]
        kept = copy.deepcopy(world.stores[0])
        await world.append(a, b"3", b"4")
        assert await world.read(b) == await world.read(c) == [b"1", b"2", b"3", b"4"]
        await world.end(0)
        world.stores[0] = kept
        world.begin(0)
        await until(lambda: all(each.log.view.head == 2 for each in world.engine(1).routers.foreign))
        await world.append(a, b"5", b"6", b"7")
        assert await world.read(b) == await world.read(c) == [b"1", b"2", b"3", b"4", b"5", b"6", b"7"]


async def test_verification_and_repair_know_routers_of_other_shards() -> None:
    a, b = names(3, 0, 1)
    async with open_world() as world:
        await world.append(a, b"1", b"2")
        await put(world, "r", a, b, backfill=True, guarantee="exactly_once")
        assert await world.read(b) == [b"1", b"2"]
        stores, homes = world.stores, {1, home_of("r", 3)}
    for number in homes:
        assert audit(stores[number]) == []
        engine = Engine(repaired(stores[number]).store, SystemClock(), place=Place(number, 3))
        router = engine.routers.find("r")
        assert (router is not None) == (number == 1)
        assert router is None or (router.cursor, router.foreign is not None) == (2, True)
        assert (engine.routers.places.find("r") is not None) == (number == home_of("r", 3))


async def test_places_of_routers_that_are_gone_are_swept() -> None:
    a, b = names(3, 0, 1)
    async with open_world() as world:
        await put(world, "r", a, b)
        home = world.engine(home_of("r", 3))
        places = home.routers.places
        place = places.find("r")
        assert place is not None
        world.engine(1).routers.delete("r")  # as if its deletion had died before the place was removed
        puller = world.shards.lives[home_of("r", 3)].work.puller
        await puller.sweep_once()
        assert places.find("r") == place, "it may be under way"
        old = RouterPlace(place.shard, place.ts - 20_000)
        places.remove("r", place)
        batch = home.writer.begin()
        batch.put(Family.ROUTERS, b"\0" * 8 + b"\2r", msgspec.msgpack.encode(old))
        home.writer.commit(batch)
        await puller.sweep_once()
        assert places.find("r") is None


@pytest.mark.parametrize("seed", range(12))
async def test_whatever_ends_nothing_is_left_out_or_there_twice(seed: int) -> None:
    """Against the list of what was written: the order of one source is kept, in every destination."""
    rng = random.Random(seed)
    sources, dests = names(3, 0, 1, prefix="s"), names(3, 1, 2, 0, prefix="d")
    ends = {"r0": (sources[0], dests[0]), "r1": (sources[0], dests[1]), "r2": (sources[1], dests[2])}
    async with open_world() as world:
        expected: dict[str, list[bytes]] = {name: [] for name in ends}
        for name, (source, dest) in ends.items():
            await put(world, name, source, dest, guarantee=rng.choice(["at_least_once", "exactly_once"]))
        number = 0
        for _ in range(60):
            if rng.random() < 0.2:
                await world.crash(rng.randrange(3))
            source = rng.choice(sources)
            datas = [b"%d" % (number + i) for i in range(rng.choice((1, 1, 3, 1200)))]
            number += len(datas)
            await world.append(source, *datas)
            for name, end in ends.items():
                if end[0] == source:
                    expected[name] += datas
            if rng.random() < 0.3:
                await asyncio.sleep(rng.random() * 0.01)
        for name, (_, dest) in ends.items():
            head = len(expected[name])
            log = world.engine_of(dest).catalog.visible(dest).log
            async with asyncio.timeout(20):
                while log.view.head < head:
                    await asyncio.sleep(0.001)
            assert await world.read(dest) == expected[name]
            state = await world.api.routers.get(name, principal=UNRESTRICTED)
            assert (state.forwarded_total, state.lag_records) == (head, 0)


@pytest.mark.parametrize("dying", ["name", "source", "dest"])
async def test_a_shard_ends_at_each_step_of_a_put_and_a_delete(dying: str) -> None:
    a, b = names(3, 0, 1)
    router = names(3, 2, prefix="r")[0]
    shard = {"name": 2, "source": 0, "dest": 1}[dying]
    for turns in range(0, 50, 2):
        async with open_world() as world:
            with suppress(TopicsError, LostCallError):
                await ends(world, shard, turns, put(world, router, a, b))
            await put(world, router, a, b)
            assert sum(len(world.engine(number).routers) for number in range(3)) == 1
            await world.append(a, b"1")
            assert await world.read(b) == [b"1"], turns
            with suppress(TopicsError, LostCallError):
                await ends(world, shard, turns, world.api.routers.delete(router, principal=UNRESTRICTED))
            await world.api.routers.delete(router, principal=UNRESTRICTED)
            assert sum(len(world.engine(number).routers) for number in range(3)) == 0
            with pytest.raises(TopicsError):
                await world.api.routers.get(router, principal=UNRESTRICTED)


async def ends(world: World, dying: int, turns: int, work: Coroutine[Any, Any, object]) -> None:
    """End a shard when a call has had so many turns of the loop."""
    call = asyncio.create_task(work)
    for _ in range(turns):
        await asyncio.sleep(0)
    await world.crash(dying)
    await call


@pytest.mark.parametrize("seed", range(10))
async def test_copies_are_those_of_one_engine(seed: int) -> None:
    """Records, seqs and gaps, whatever became of the source's records before their turn, and of routers."""
    rng = random.Random(seed)
    a, b, c = names(3, 0, 1, 1)
    one = Engine(MemoryStore(), SystemClock(), boot_id="boot")
    configs: dict[str, RouterConfig] = {}
    async with open_world() as world:

        async def both_put(config: ConfigInput) -> None:
            await world.api.put_topic(a, config, principal=UNRESTRICTED)
            one.put_topic(a, config)
            one.sync()

        async def settle() -> None:
            for dest in (b, c):
                if world.engine_of(dest).has_topic(dest):
                    await world.read(dest)
            while one.routers.forward():
                pass
            one.sync()

        def differ() -> None:
            for dest in (b, c):
                assert history(world.engine_of(dest), dest) == history(one, dest), (seed, dest)

        await both_put(ConfigInput(cap_records=rng.choice((0, 30))))
        number = 0
        for _ in range(12):
            await settle()
            differ()
            name = rng.choice(("r", "s"))
            if rng.random() < 0.3 and name in configs:
                await world.api.routers.delete(name, principal=UNRESTRICTED)
                one.routers.delete(name)
                del configs[name]
            elif rng.random() < 0.7:
                match = rng.choice((None, TagMatch(op="Eq", value=b"x"), TagMatch(op="Glob", value=b"")))
                guarantee: Guarantee = rng.choice(("at_least_once", "exactly_once"))
                config = configs[name] = RouterConfig(
                    source=a, dest={"r": b, "s": c}[name], filter=match, guarantee=guarantee
                )
                request = PutRouterRequest(router=name, config=config, backfill=rng.random() < 0.5)
                await world.api.routers.put(request, principal=UNRESTRICTED)
                one.routers.put(request)
                one.sync()
            await settle()
            await world.end(1)
            for _ in range(rng.randrange(6)):
                action, tag = rng.random(), rng.choice((b"x", b"y", b"xy"))
                if action < 0.7:
                    datas = [b"%d" % (number + i) for i in range(rng.choice((1, 4, 25)))]
                    number += len(datas)
                    tags: list[bytes | None] = [rng.choice((b"x", b"y", b"xy", None)) for _ in datas]
                    append = AppendRequest(topic=a, batch=Batch(datas, tags=tags))
                    await world.api.append(append, principal=UNRESTRICTED)
                    one.append(append)
                else:
                    before = rng.randrange(number + 2) if rng.random() < 0.3 else None
                    delete = DeleteRequest(topic=a, match=TagMatch(op="Eq", value=tag), before_seq=before)
                    await world.api.delete_records(delete)
                    one.delete_records(delete)
                one.sync()
            if rng.random() < 0.3:
                await world.crash(0)
            world.begin(1)
        await settle()
        differ()


def history(engine: Engine, topic: str) -> list[tuple[object, ...]]:
    """Every record with its seq, and every gap, as a reader sees them."""
    found: list[tuple[object, ...]] = []
    if not engine.has_topic(topic):
        return found
    after, head = 0, 1
    while after < head:
        reply = engine.diff(DiffRequest(topic=topic, from_seq=after))
        gap = reply.tombstone
        found += [] if gap is None else [(gap.gap_from, gap.gap_to, gap.reason)]
        for part in reply.slices:
            tags = part.block.tags
            found += [
                (part.block.base_seq + i, part.block.record_data(i), tags[i] if tags else None)
                for i in range(part.start, part.stop)
            ]
        after, head = reply.next_from_seq, reply.head_seq
    return found
