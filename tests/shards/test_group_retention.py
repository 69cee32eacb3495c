"""Retention that waits for groups of other shards: what one has not acked stays, what all have acked goes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from engine_support import FakeClock
from shards.faults import Faults
from shards.retention import GROUP, HERE, OTHER, SHARDS, Retention, away_from
from shards.world import open_shards

from topics_service.api.access.auth import UNRESTRICTED
from topics_service.engine.errors import TopicsError
from topics_service.engine.limits import Limits
from topics_service.engine.offsets.mirrors import Told
from topics_service.engine.offsets.positions import Place, ResetRequest, Target
from topics_service.engine.placement import home_of
from topics_shards import holds


@asynccontextmanager
async def retained(**options: Any) -> AsyncIterator[Retention]:
    async with open_shards(SHARDS, **options) as world:
        yield Retention(world)


async def refused(call: Awaitable[object]) -> str:
    with pytest.raises(TopicsError) as error:
        await call
    return error.value.reason.code


# -------------------------------------------------------------------- what is kept and let go


async def test_records_stay_until_a_group_of_another_shard_has_acked_them() -> None:
    async with retained() as at:
        await at.put()
        await at.append(2)
        assert await at.is_full()
        await at.commit(1)
        await at.told()
        assert not await at.is_full()
        assert await at.is_full()
        assert at.hold() == 1


async def test_the_lowest_position_counts_wherever_the_groups_are() -> None:
    here = next(name for name in map("h{}".format, range(99)) if home_of(name, SHARDS) == HERE)
    async with retained() as at:
        await at.put(GROUP, OTHER, here, cap_records=4)
        await at.append(4)
        for group, expected in ((GROUP, 0), (here, 0), (OTHER, 2)):
            await at.commit(3 if group == here else 2, group)
            await at.told()
            assert at.hold() == expected
        await at.commit(4, GROUP)
        await at.commit(4, OTHER)
        await at.told()
        assert at.hold() == 3


async def test_each_partition_waits_for_its_own_position() -> None:
    async with retained() as at:
        await at.put(GROUP, count=4)
        for partition in range(4):
            await at.append(2, partition=partition)
            await at.commit(partition % 3, partition=partition)
        await at.told()
        assert [at.hold(partition=partition) for partition in range(4)] == [0, 1, 2, 0]
        await at.put(GROUP, count=6)
        await at.append(2, partition=5)
        assert await at.is_full(partition=5)
        await at.commit(2, partition=5)
        await at.told()
        assert not await at.is_full(partition=5)


async def test_a_placed_topic_waits_too() -> None:
    async with retained() as at:
        name, placement = next(
            (name, "p") for name in map("placed{}".format, range(99)) if home_of(name, SHARDS) != home_of("p", SHARDS)
        )
        group = next(g for g in map("g{}".format, range(99)) if home_of(g, SHARDS) != home_of("p", SHARDS))
        await at.put(group, name=name, placement=placement)
        await at.append(2, name)
        await at.commit(1, group, name)
        await at.told()
        assert at.hold(name) == 1
        await at.commit(0, group, name)
        assert at.hold(name) == 0


async def test_a_config_that_names_a_group_later_waits_for_where_it_is() -> None:
    async with retained() as at:
        await at.append(3)
        await at.commit(2)
        await at.put(GROUP, cap_records=3)
        await at.told()
        assert at.hold() == 2
        await at.put(OTHER, cap_records=3)
        assert at.hold() == 0


# ----------------------------------------------------------------------------- moves back


async def reset(at: Retention) -> None:
    await at.world.api.groups.reset(ResetRequest(group=GROUP, to="earliest"), principal=UNRESTRICTED)


async def delete_positions(at: Retention) -> None:
    await at.world.api.groups.delete_positions(GROUP, [Target("t")], principal=UNRESTRICTED)


async def delete_group(at: Retention) -> None:
    await at.world.api.groups.delete(GROUP, principal=UNRESTRICTED)


async def commit_back(at: Retention) -> None:
    await at.commit(0)


BACK = (commit_back, reset, delete_positions, delete_group)


@pytest.mark.parametrize("back", BACK)
async def test_a_position_that_goes_back_holds_again_before_that_is_acknowledged(
    back: Callable[[Retention], Awaitable[None]],
) -> None:
    async with retained() as at:
        await at.put()
        await at.append(2)
        await at.commit(2)
        await at.told()
        assert at.hold() == 2
        await back(at)
        assert at.hold() == 0
        assert await at.is_full()


@pytest.mark.parametrize("back", BACK)
async def test_it_is_not_acknowledged_while_the_shard_of_the_records_is_away(
    back: Callable[[Retention], Awaitable[None]],
) -> None:
    async with retained() as at:
        await at.put()
        await at.append(2)
        await at.commit(2)
        await at.told()
        faults = Faults(at.world)
        for sender in at.world.senders:
            sender.patience_seconds = 0.05
        faults.cut_off({"MirrorsApi"})
        assert await refused(back(at)) == "not_ready"
        assert at.hold() == 2
        faults.cut_off(set())
        await at.told()
        assert at.hold() == 0


async def test_commits_go_on_while_the_shard_of_the_records_is_away() -> None:
    async with retained() as at:
        await at.put()
        await at.append(2)
        faults = Faults(at.world)
        faults.cut_off({"MirrorsApi"})
        await at.commit(1)
        await at.commit(2)
        assert at.hold() == 0
        faults.cut_off(set())
        await at.told()
        assert at.hold() == 2


async def test_a_config_that_forgets_a_group_forgets_what_it_acked() -> None:
    async with retained() as at:
        await at.put()
        await at.append(2)
        await at.commit(2)
        await at.told()
        await at.put(OTHER)
        await commit_back(at)
        with Faults(at.world).before("MirrorsApi.tell", lambda: asyncio.sleep(0.01)):
            await at.put(GROUP)
            assert at.hold() == 0
            await at.told()
        assert at.hold() == 0


# ------------------------------------------------------------------------------ lives


async def test_a_topic_that_was_made_again_begins_at_nothing() -> None:
    async with retained() as at:
        for _ in range(3):
            await at.put()
            await at.append(2)
            assert at.hold() == 0
            await at.commit(2)
            await at.told()
            assert at.hold() == 2
            assert at.mirror_rows(HERE) == 1
            await at.world.api.delete_topic("t")
            assert at.mirror_rows(HERE) == 0


async def test_a_group_that_is_waited_for_elsewhere_does_not_expire() -> None:
    clock = FakeClock()
    async with retained(clock=clock, limits=Limits(group_retention_ms=10)) as at:
        await at.put()
        await at.append(2)
        await at.commit(1)
        await at.told()
        clock.advance(11)
        for engine in at.world.engines:
            engine.sweep()
        assert at.world.engines[home_of(GROUP, SHARDS)].groups.find(GROUP) is not None
        await at.put(OTHER)
        for engine in at.world.engines:
            engine.sweep()
        assert at.world.engines[home_of(GROUP, SHARDS)].groups.find(GROUP) is None
        assert at.hold() == 0


async def test_a_mirror_is_no_group_to_anyone() -> None:
    async with retained() as at:
        await at.put()
        await at.append(2)
        await at.commit(1)
        await at.told()
        engine = at.world.engines[HERE]
        assert (len(engine.groups), engine.groups.index.positions) == (0, 0)
        assert not list(engine.groups.index.lags(9))
        assert engine.groups.find(GROUP) is None


# ------------------------------------------------------------------------------ sessions


async def test_a_call_of_an_earlier_session_has_no_effect() -> None:
    async with retained() as at:
        await at.put()
        await at.append(2)
        await at.commit(1)
        await at.told()
        mirrors = at.world.apis[HERE].mirrors
        place = Place("t", at.world.engines[HERE].catalog.topics["t"].topic_id, 0)
        sender = home_of(GROUP, SHARDS)
        old = await mirrors.begin(sender)
        new = await mirrors.begin(sender)
        told = [Told(GROUP, place, 0, 2)]
        assert await mirrors.tell(sender, old, told) is None
        assert not await mirrors.complete(sender, old, SHARDS)
        assert at.hold() == 1
        assert await mirrors.tell(sender, new, told) == []
        assert at.hold() == 2
        assert await mirrors.complete(sender, new, SHARDS)
        assert at.hold() == 2
        last = await mirrors.begin(sender)
        assert await mirrors.complete(sender, last, SHARDS)
        assert at.hold() == 0, "what the group is not told to have"


async def test_what_comes_with_another_config_is_refused_unless_it_goes_back() -> None:
    async with retained() as at:
        await at.put(cap_records=9)
        await at.append(3)
        engine = at.world.engines[HERE]
        place = Place("t", engine.catalog.topics["t"].topic_id, 0)
        mirrors = engine.groups.mirrors
        assert mirrors.tell([Told(GROUP, place, 0, 2)])[0] == []
        for revision, from_seq, hold in ((1, 3, 2), (1, 1, 1), (0, 2, 2), (1, 2, 2)):
            told = Told(GROUP, place, revision, from_seq)
            assert mirrors.tell([told])[0] == ([] if revision == 0 else [told])
            assert at.hold() == hold
        assert mirrors.tell([Told(OTHER, place, 0, 3)])[0], "it is not asked for"
        assert mirrors.tell([Told(GROUP, place._replace(topic_id="top_x"), 0, 3)])[0]
        assert mirrors.tell([Told(GROUP, place, 1, None)])[0] == []
        assert at.hold() == 0


async def test_more_moves_than_an_outbox_holds_are_all_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holds, "_MAX_PENDING", 3)
    monkeypatch.setattr(holds, "_A_CALL", 2)
    async with retained() as at:
        groups = away_from("t", count=9)
        for number, group in enumerate(groups):
            await at.put(group, name=f"t{number}", cap_records=9)
        faults = Faults(at.world)
        faults.cut_off({"MirrorsApi"})
        for number, group in enumerate(groups):
            await at.append(3, f"t{number}")
            await at.commit(number % 3 + 1, group, f"t{number}")
        faults.cut_off(set())
        await at.told()
        assert [at.hold(f"t{number}") for number in range(9)] == [1, 2, 3] * 3
