"""Consumer groups over shards: the answers of one server, whichever shards a group and its topics are in."""

from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import chain
from random import Random
from typing import Any, Final

import msgspec
import pytest
from engine_support import FakeClock
from shards.faults import Faults
from shards.world import open_shards

from support.waiting import until
from topics_service.api.access.auth import UNRESTRICTED, Principal, Scope
from topics_service.api.groups import ConsumeReply, ConsumeRequest
from topics_service.api.interfaces import Topics
from topics_service.api.scheduling.commit import GroupCommit
from topics_service.api.topics import TopicsApi
from topics_service.engine.engine import Engine
from topics_service.engine.errors import TopicsError
from topics_service.engine.limits import Limits
from topics_service.engine.model import AppendRequest, Batch, ConfigInput, DeleteRequest, DiffRequest
from topics_service.engine.offsets.positions import CommitItem, ListGroupsRequest, ResetRequest, Target
from topics_service.engine.placement import home_of, shard_of
from topics_service.storage.memory import MemoryStore

SHARDS = 3
Call = Callable[[Topics], Awaitable[Any]]


async def outcome(call: Awaitable[Any]) -> object:
    """The result of a call, or its error in full, in a form that can be compared."""
    try:
        result = await call
    except TopicsError as error:
        return error.reason.code, error.message, error.detail
    if isinstance(result, ConsumeReply):
        page = result.page
        datas = [piece.block.record_data(i) for piece in page.slices for i in range(piece.start, piece.stop)]
        places = page.topic, page.partition, page.partition_count
        return result.committed, places, datas, page.next_from_seq, page.head_seq, page.earliest_seq, page.tombstone
    return msgspec.json.encode(result)


def away_from(topic: str, partition: int = 0) -> str:
    """The name of a group whose shard is not that of the partition."""
    return next(
        name for name in map("g{}".format, range(99)) if home_of(name, SHARDS) != shard_of(topic, partition, SHARDS)
    )


async def append(api: Topics, topic: str = "t", partition: int = 0, count: int = 1, **config: Any) -> int:
    request = AppendRequest(
        topic=topic, partition=partition, batch=Batch([b"x"] * count), config=ConfigInput(**config) if config else None
    )
    return (await api.append(request, principal=UNRESTRICTED)).last_seq


async def put(api: Topics, count: int, name: str = "t", **config: Any) -> None:
    await api.put_topic(name, ConfigInput(**config), principal=UNRESTRICTED, partition_count=count)


async def commit(api: Topics, group: str, *items: tuple[str, int, int]) -> Any:
    return await api.groups.commit(group, [CommitItem(*item) for item in items], principal=UNRESTRICTED)


async def positions(api: Topics, group: str) -> dict[tuple[str, int], int]:
    found = await api.groups.positions(group, None, principal=UNRESTRICTED)
    return {(each.topic, each.partition): each.from_seq for each in found}


# ------------------------------------------------------------------- the same as one server

TOPICS = ("a", "b", "own:c")
GROUPS = ("g1", "g2", "own:g", "grp", "Ω")
_RETAINED: Final[dict[str, dict[str, Any]]] = {
    "a": {},
    "b": {"retain_until_acked_by": ("g1",), "cap_records": 3},
    "own:c": {"retain_until_acked_by": ("g1", "own:g"), "cap_records": 5},
}
LIMITED = Principal("k", frozenset(Scope), prefixes=("own:", "g", "a"))


class Calls:
    """Random calls on topics and groups, most of which have an effect."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def create(self, topic: str) -> tuple[str, Call]:
        """The creation of a topic with several partitions."""
        return "put", self._put(topic, self._config(topic), 4)

    def draw(self) -> tuple[str, Call]:
        """A call, and its name."""
        pick, chance = self._random.choice, self._random.random
        topic, group = pick(TOPICS), pick(GROUPS)
        who = UNRESTRICTED if chance() < 0.8 else LIMITED
        kind = pick(tuple(_WEIGHTS.elements()))
        match kind:
            case "put":
                config, count = self._config(topic), pick((None, 4, 4, 4, 5, 7))
                return kind, self._put(topic, config, count)
            case "append":
                return kind, self._append(topic, pick((0, 0, 0, 1, 1, 2, 2, 3, 3, 4)), pick((1, 2, 3)))
            case "delete_topic":
                return kind, self._delete_topic(topic)
            case "delete_records":
                request = DeleteRequest(topic=topic, partition=pick((0, 1)), before_seq=pick((2, 3)))
                return kind, lambda api: api.delete_records(request)
            case "commit":
                name = group if chance() < 0.97 else pick(("", "x" * 256))
                items = [self._item() for _ in range(pick((1, 1, 1, 2, 3, 4)))] if chance() < 0.97 else []
                return kind, lambda api: api.groups.commit(name, items, principal=who)
            case "consume":
                page = DiffRequest(topic=topic, partition=self._partition(), limit=2)
                asked = ConsumeRequest(group=group, page=page, start=pick(("earliest", "latest", 0, 1, 9)))
                return kind, lambda api: api.groups.consume(asked, principal=who)
            case "positions":
                only = pick((None, topic))
                return kind, lambda api: api.groups.positions(group, only, principal=who)
            case "get":
                return kind, lambda api: api.groups.get(group, principal=who)
            case "page":
                page = ListGroupsRequest(
                    prefix=pick(("", "", "g", "own")), after=pick((None, group)), page_size=pick((1, 2, 3))
                )
                return kind, lambda api: api.groups.page(page, principal=who)
            case "reset":
                to, ts = pick((("earliest", None), ("latest", None), (1, None), (9, None), (None, self._ts()), (1, 1)))
                reset = ResetRequest(group=group, to=to, ts=ts, targets=self._targets())
                return kind, lambda api: api.groups.reset(reset, principal=who)
            case "delete_positions":
                targets = self._targets()
                return kind, lambda api: api.groups.delete_positions(group, targets, principal=who)
            case _:
                return kind, lambda api: api.groups.delete(group, principal=who)

    def _partition(self) -> int:
        return self._random.choice((0, 1, 2, 3) * 4 + (4, -1))

    def _item(self) -> CommitItem:
        pick = self._random.choice
        metadata = pick(("", "", "worker", "é")) if self._random.random() < 0.97 else "x" * 4097
        return CommitItem(pick(TOPICS), self._partition(), pick((0, 1, 2, 3) * 4 + (7, -1)), pick((-1, 4)), metadata)

    def _targets(self) -> list[Target]:
        pick = self._random.choice
        return [Target(pick(TOPICS), pick(((), (0,), (1, 0), (4,)))) for _ in range(pick((0, 1, 1, 2)))]

    def _ts(self) -> int:
        return 1_000_000 + self._random.randrange(6000)

    def _config(self, topic: str) -> ConfigInput:
        """A config. What a topic retains stays: shards begin to tell what is acked once the config asks for it."""
        return ConfigInput(durability=self._random.choice(("disk", "disk", "fsync")), **_RETAINED[topic])

    @staticmethod
    def _put(name: str, config: ConfigInput, count: int | None) -> Call:
        async def call(api: Topics) -> object:
            reply = await api.put_topic(name, config, principal=UNRESTRICTED, partition_count=count)
            return reply.created, reply.config, reply.identity.partition_count

        return call

    @staticmethod
    def _append(name: str, partition: int, count: int) -> Call:
        async def call(api: Topics) -> object:
            request = AppendRequest(
                topic=name, partition=partition, batch=Batch([b"x"] * count), config=ConfigInput(**_RETAINED[name])
            )
            reply = await api.append(request, principal=UNRESTRICTED)
            return reply.first_seq, reply.head_seq, reply.partition_count

        return call

    @staticmethod
    def _delete_topic(name: str) -> Call:
        async def call(api: Topics) -> object:
            return (await api.delete_topic(name)).deleted

        return call


_WEIGHTS: Final = Counter(
    put=9, append=20, delete_topic=1, delete_records=3, commit=24, consume=10, positions=8, get=4, page=5, reset=9,
    delete_positions=4, delete=2,
)  # fmt: skip


@pytest.mark.parametrize("seed", range(10))
async def test_every_call_is_answered_as_by_one_server(seed: int) -> None:
    clock, limits, calls = FakeClock(), Limits(max_batch_records=3), Calls(seed)
    engine = Engine(MemoryStore(), clock, limits=limits)
    commits = GroupCommit.for_engine(engine)
    one = TopicsApi(engine, commits)
    done: Counter[str] = Counter()
    try:
        async with open_shards(SHARDS, clock=clock, limits=limits) as world:
            drawn = chain((calls.create(topic) for topic in TOPICS), (calls.draw() for _ in range(300)))
            for number, (kind, call) in enumerate(drawn):
                expected = await outcome(call(one))
                assert await outcome(call(world.api)) == expected, f"call {number}, {kind}"
                await until(lambda: not world.untold)
                clock.advance(20)
                done[kind] += not (isinstance(expected, tuple) and isinstance(expected[0], str))
    finally:
        commits.stop()
    assert done["commit"] > 5
    assert done["reset"] > 0


# ------------------------------------------------------------------------- lives of a topic


async def test_a_topic_that_was_made_again_has_no_position_of_the_former() -> None:
    async with open_shards(SHARDS) as world:
        group = away_from("t")
        for _ in range(3):
            assert await append(world.api) == 1
            await commit(world.api, group, ("t", 0, 1))
            assert await positions(world.api, group) == {("t", 0): 1}
            await world.api.delete_topic("t")
            assert await positions(world.api, group) == {}


async def test_a_commit_to_a_life_that_has_ended_is_refused() -> None:
    """A topic is deleted and made again between the look at its end and the write at the group's shard."""
    async with open_shards(SHARDS) as world:
        group = away_from("t")
        await append(world.api)
        await commit(world.api, group, ("t", 0, 0))

        async def remake() -> None:
            await world.api.delete_topic("t")
            await append(world.api, count=2)
            await commit(world.api, "other", ("t", 0, 0))

        with Faults(world).before("PositionsApi.commit", remake), pytest.raises(TopicsError) as error:
            await commit(world.api, group, ("t", 0, 1))
        assert error.value.reason.code == "topic_not_found"
        assert await positions(world.api, group) == {}
        await commit(world.api, group, ("t", 0, 2))
        assert await positions(world.api, group) == {("t", 0): 2}


async def test_a_read_of_a_life_that_has_ended_does_not_begin_in_the_next_one() -> None:
    async with open_shards(SHARDS) as world:
        group = away_from("t")
        await append(world.api, count=3)
        await commit(world.api, group, ("t", 0, 3))

        async def remake() -> None:
            await world.api.delete_topic("t")
            await append(world.api, count=4)

        request = ConsumeRequest(group=group, page=DiffRequest(topic="t"))
        with Faults(world).before("TopicsApi.diff", remake), pytest.raises(TopicsError) as error:
            await world.api.groups.consume(request, principal=UNRESTRICTED)
        assert error.value.reason.code == "topic_not_found"
        reply = await world.api.groups.consume(request, principal=UNRESTRICTED)
        assert (reply.committed, reply.page.next_from_seq) == (None, 4)


async def test_new_partitions_have_positions() -> None:
    async with open_shards(SHARDS) as world:
        group = away_from("t")
        await append(world.api)
        await commit(world.api, group, ("t", 0, 1))
        for count in (2, 4, 7):
            await put(world.api, count)
            await append(world.api, partition=count - 1)
            await commit(world.api, group, ("t", count - 1, 1))
        assert await positions(world.api, group) == {("t", n): 1 for n in (0, 1, 3, 6)}


async def test_positions_of_many_topics_are_one_write() -> None:
    async with open_shards(SHARDS) as world:
        names = [f"t{n}" for n in range(6)]
        for name in names:
            await append(world.api, name)
        with pytest.raises(TopicsError):
            await commit(world.api, "g", *((name, 0, 1) for name in names), ("t0", 0, 2))
        with pytest.raises(TopicsError):
            await positions(world.api, "g")
        engine = world.engines[home_of("g", SHARDS)]
        for name in names:
            await world.located.extend(name, home_of("g", SHARDS))
        before = engine.writer.written
        await commit(world.api, "g", *((name, 0, 1) for name in names))
        assert engine.writer.written == before + 1
        assert await positions(world.api, "g") == {(name, 0): 1 for name in names}


async def test_groups_are_where_their_name_says_over_restarts() -> None:
    async with open_shards(SHARDS, wired=False) as world:
        await put(world.api, 3)
        for n in range(9):
            await append(world.api, partition=n % 3)
            await commit(world.api, f"g{n}", ("t", n % 3, 1))
        faults = Faults(world)
        for shard in range(SHARDS):
            await faults.kill(shard)
        for n in range(9):
            assert await positions(world.api, f"g{n}") == {("t", n % 3): 1}
        held = [list(engine.groups.index.by_name) for engine in world.engines]
        assert held == [[f"g{n}" for n in range(9) if home_of(f"g{n}", SHARDS) == shard] for shard in range(SHARDS)]


async def test_a_reset_goes_to_a_time_in_each_partition() -> None:
    clock = FakeClock()
    async with open_shards(SHARDS, clock=clock) as world:
        await put(world.api, 3)
        for partition in range(3):
            for _ in range(partition + 1):
                await append(world.api, partition=partition)
        clock.advance(100)
        for partition in range(3):
            await append(world.api, partition=partition)
            await commit(world.api, "g", ("t", partition, 0))
        moved = await world.api.groups.reset(ResetRequest(group="g", ts=clock.now_ms()), principal=UNRESTRICTED)
        assert [(each.partition, each.from_seq, each.lag) for each in moved] == [(0, 1, 1), (1, 2, 1), (2, 3, 1)]


def test_shards_of_the_tests_differ() -> None:
    assert len({home_of(name, SHARDS) for name in TOPICS}) > 1
    assert len({home_of(name, SHARDS) for name in GROUPS}) == SHARDS
