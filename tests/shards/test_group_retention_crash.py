"""Retention that waits for groups of other shards, over crashes and power cuts of either side."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any, ClassVar

import pytest
from corruption.repairs import repaired
from engine_support import CrashStore
from shards import world as shards_world
from shards.faults import Faults
from shards.retention import GROUP, HERE, OTHER, SHARDS, Retention

from support.audit import audit
from support.waiting import until
from topics_service.api.access.auth import UNRESTRICTED
from topics_service.engine.errors import TopicsError
from topics_service.engine.offsets.mirrors import Told
from topics_service.engine.offsets.positions import Place, ResetRequest, Target
from topics_service.engine.placement import home_of, shard_of
from topics_service.storage.store import Family


@asynccontextmanager
async def retained() -> AsyncIterator[Retention]:
    stores = [CrashStore() for _ in range(SHARDS)]
    async with shards_world.open_shards(SHARDS, wired=False, stores=stores) as world:
        yield Retention(world)


@pytest.mark.parametrize("power", [False, True], ids=["killed", "power cut"])
@pytest.mark.parametrize("method", ["begin", "tell", "complete"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("who", ["groups", "records", "both"])
async def test_a_crash_at_each_step(who: str, when: str, method: str, power: bool) -> None:
    async with retained() as at:
        await at.put(cap_records=4)
        await at.append(4)
        await at.commit(1)
        await at.told()
        faults = Faults(at.world)

        async def crash() -> None:
            crashed.set()
            raise ConnectionError("gone")

        crashed = asyncio.Event()
        around = faults.before if when == "before" else faults.after
        with around(f"MirrorsApi.{method}", crash):
            if method != "tell":
                await faults.kill(home_of(GROUP, SHARDS))
            await at.commit(3)
            await crashed.wait()
            for shard in {"groups": (home_of(GROUP, SHARDS),), "records": (HERE,), "both": range(SHARDS)}[who]:
                await faults.kill(shard, power=power)
        position = at.world.engines[home_of(GROUP, SHARDS)].groups.position(GROUP, "t", 0)
        assert position is not None
        hold = at.hold()
        assert hold is not None
        assert hold <= position.from_seq
        await at.told()
        assert at.hold() == position.from_seq
        await at.commit(3)
        await at.told()
        assert at.hold() == 3


async def test_a_shard_that_starts_is_told_everything_again() -> None:
    """It may have been put back to a backup, in which a group has acknowledged more than it has now."""
    async with retained() as at:
        await at.put(cap_records=4)
        await at.append(4)
        await at.commit(2)
        await at.told()
        engine = at.world.engines[HERE]
        place = Place("t", engine.catalog.topics["t"].topic_id, 0)
        engine.groups.mirrors.tell([Told(GROUP, place, 0, 4), Told(OTHER, place, 0, 4)])
        assert at.hold() == 4
        await Faults(at.world).kill(HERE)
        await until(lambda: at.hold() == 2)
        await at.told()
        assert at.hold() == 2


async def test_a_repair_leaves_out_what_is_told_again() -> None:
    async with retained() as at:
        await at.put(cap_records=4)
        await at.append(4)
        await at.commit(2)
        await at.told()
        store = at.world.engines[HERE].writer.store
        assert isinstance(store, CrashStore)
        assert at.mirror_rows(HERE) == 1
        done = repaired(store)
        assert not list(done.store.scan(Family.GROUPS, b"", b"\xff" * 9))
        assert not list(done.store.scan(Family.POSITIONS, b"", b"\xff" * 32))
        assert done.actions == []


@pytest.mark.parametrize("seed", range(15))
async def test_nothing_that_is_not_acked_is_let_go_in_a_random_life(seed: int) -> None:
    await Life(seed).run()


class Life:
    """Random calls and faults. `allowed` is the highest position that each group may be taken to have by retention."""

    GROUPS = ("g0", "g1", "own:g", "grp")
    PARTITIONS = 3

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.allowed: dict[tuple[str, int], int] = {}
        self.unsure: set[tuple[str, int]] = set()
        self.config: tuple[str, ...] = ()
        self.heads = [0] * self.PARTITIONS
        self.stores: list[Any] = []

    async def run(self) -> None:
        assert {home_of(group, SHARDS) for group in self.GROUPS} == {0, 1, 2}
        async with retained() as at:
            self.stores = [engine.writer.store for engine in at.world.engines]
            self.faults = Faults(at.world)
            self.at = at
            for sender in at.world.senders:
                sender.patience_seconds = 0.02
            await self._configure()
            for number in range(80):
                kind = self.random.choice(list(self._kinds))
                await self._kinds[kind](self)
                for partition in range(self.PARTITIONS):
                    hold = at.hold(partition=partition)
                    bound = min(self.allowed.get((group, partition), 0) for group in self.config)
                    assert hold is not None
                    assert hold <= bound, f"{number} {kind}: partition {partition} is held from {hold}, not {bound}"

    async def _configure(self) -> None:
        self.config = tuple(self.random.sample(self.GROUPS, self.random.randint(1, 3)))
        await self.at.put(*self.config, count=self.PARTITIONS, cap_records=1000)

    async def _append(self) -> None:
        partition = self.random.randrange(self.PARTITIONS)
        self.heads[partition] = await self.at.append(self.random.randint(1, 4), partition=partition)

    async def _commit(self) -> None:
        group, partition = self.random.choice(self.GROUPS), self.random.randrange(self.PARTITIONS)
        from_seq = self.random.randint(0, self.heads[partition])
        await self._moves({(group, partition): from_seq}, self.at.commit(from_seq, group, partition=partition))

    async def _reset(self) -> None:
        group = self.random.choice(self.GROUPS)
        moved = {key: 0 for key in self.allowed if key[0] == group}
        request = ResetRequest(group=group, to=0)
        await self._moves(moved, self.at.world.api.groups.reset(request, principal=UNRESTRICTED))

    async def _delete(self) -> None:
        group = self.random.choice(self.GROUPS)
        moved = {key: 0 for key in self.allowed if key[0] == group}
        await self._moves(moved, self.at.world.api.groups.delete(group, principal=UNRESTRICTED))

    async def _delete_positions(self) -> None:
        group, partition = self.random.choice(self.GROUPS), self.random.randrange(self.PARTITIONS)
        call = self.at.world.api.groups.delete_positions(group, [Target("t", (partition,))], principal=UNRESTRICTED)
        await self._moves({(group, partition): 0}, call)

    async def _moves(self, moved: dict[tuple[str, int], int], call: Awaitable[object]) -> None:
        before = {key: self.allowed.get(key, 0) for key in moved}
        for key, from_seq in moved.items():
            self.allowed[key] = max(before[key], from_seq)
        try:
            await call
        except TopicsError as error:
            match error.reason.code:
                case "group_not_found":
                    pass
                case "not_ready":
                    self.unsure.update(moved)
                case _:
                    raise
        else:
            self.allowed.update(moved)
            self.unsure.difference_update(moved)

    async def _kill(self) -> None:
        await self.faults.kill(self.random.randrange(SHARDS))
        self._impatient()

    async def _cut_power(self) -> None:
        """Positions that were not durable are lost, and those of the shard count from now on."""
        shard = self.random.randrange(SHARDS)
        await self.faults.kill(shard, power=True)
        self._impatient()
        groups = self.at.world.engines[shard].groups
        for key in self.allowed:
            if home_of(key[0], SHARDS) == shard:
                position = groups.position(key[0], "t", key[1])
                now = 0 if position is None else position.from_seq
                self.allowed[key] = max(now, self.allowed[key]) if key in self.unsure else now
        for partition in range(self.PARTITIONS):
            if shard_of("t", partition, SHARDS) == shard:
                self.heads[partition] = (await self.at.world.api.get_topic("t", partition=partition)).head_seq

    async def _cut_off(self) -> None:
        self.faults.cut_off({"MirrorsApi"})

    async def _connect(self) -> None:
        """Wait until all that was acked is let go of; the rows are sound."""
        for store in self.stores:
            assert audit(store) == []
        self.faults.cut_off(set())
        await self.at.told()
        self.unsure.clear()
        for partition in range(self.PARTITIONS):
            lowest = []
            for group in self.config:
                engine = self.at.world.engines[home_of(group, SHARDS)]
                position = engine.groups.position(group, "t", partition)
                lowest.append(0 if position is None else position.from_seq)
            assert self.at.hold(partition=partition) == min(lowest)

    def _impatient(self) -> None:
        for sender in self.at.world.senders:
            sender.patience_seconds = 0.02

    _kinds: ClassVar[dict[str, Callable[["Life"], Awaitable[None]]]] = {
        "append": _append,
        "append more": _append,
        "commit": _commit,
        "commit more": _commit,
        "commit still more": _commit,
        "reset": _reset,
        "delete positions": _delete_positions,
        "delete": _delete,
        "configure": _configure,
        "kill": _kill,
        "cut power": _cut_power,
        "cut off": _cut_off,
        "connect": _connect,
    }
