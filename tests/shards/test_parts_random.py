"""Random calls, crashes and faults of shards, against a model of one topic name."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from engine.engine_support import records
from hypothesis import given, settings
from hypothesis import strategies as st
from shards.fragile import FragileWorld, fragile_shards

from topics_service.api.access.auth import UNRESTRICTED
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.model import AppendRequest, Batch, ConfigInput, DiffRequest
from topics_shards.shards import LostCallError

SHARDS: Final = 3
MOST: Final = 7
PLACEMENTS: Final = {"t": "", "placed": "a"}
NAMES: Final = tuple(PLACEMENTS)

PARTITION: Final = st.integers(0, MOST)
SHARD: Final = st.integers(0, SHARDS - 1)
STEP: Final = st.one_of(
    st.tuples(st.just("put"), st.integers(1, MOST)),
    st.tuples(st.just("configure"), st.integers(1, 5)),
    st.tuples(st.just("append"), PARTITION),
    st.tuples(st.just("append"), PARTITION),
    st.tuples(st.just("read"), PARTITION),
    st.tuples(st.just("delete"), st.booleans()),
    st.tuples(st.just("extend"), SHARD),
    st.tuples(st.just("crash"), SHARD, st.booleans()),
    st.tuples(st.just("crash later"), st.integers(1, 4), st.integers(0, 2), st.booleans()),
    st.tuples(st.just("away"), SHARD),
    st.tuples(st.just("back")),
    st.tuples(st.just("lose"), st.sampled_from(("adopt", "drop", "extend", "describe", "append", "put_topic"))),
    st.tuples(st.just("settle")),
)


class Model:
    """A name, as its client knows it. What was not acknowledged is looked up before the next call."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.count = 0  # of partitions; 0: there is no topic
        self.topic_id = ""
        self.cap = 0
        self.written: dict[int, list[bytes]] = {}
        """The writes that were acknowledged in this life."""
        self.tried: dict[int, set[bytes]] = {}
        """The writes that may be there."""
        self.dead: set[str] = set()
        self.records = 0

    def born(self, topic_id: str, count: int) -> None:
        assert topic_id not in self.dead, "a topic that was deleted is back"
        self.topic_id, self.count, self.written, self.tried = topic_id, count, {}, {}

    def died(self) -> None:
        self.dead.add(self.topic_id)
        self.topic_id, self.count, self.cap, self.written, self.tried = "", 0, 0, {}, {}


class Run:
    """The steps of one example."""

    def __init__(self, world: FragileWorld) -> None:
        self.world = world
        self.models = {name: Model(name) for name in NAMES}

    async def step(self, name: str, step: tuple[Any, ...]) -> None:
        kind, *given = step
        shards, model = self.world.shards, self.models[name]
        if kind == "crash":
            shards.crash(given[0], keep=given[1])
        elif kind == "crash later":
            shards.crash_at = (shards.writes + given[0], given[1], given[2])
        elif kind == "away":
            shards.away.add(given[0])
        elif kind == "back":
            shards.away.clear()
        elif kind == "lose":
            shards.lost.add(given[0])
        elif kind == "settle":
            await self.look(model)
        elif kind == "put":
            await self.change(model, max(model.count, given[0]), model.cap)
        elif kind == "configure":
            await self.change(model, None, given[0] * 100)
        elif kind == "append":
            await self.append(model, given[0])
        elif kind == "read":
            await self.read(model, given[0])
        elif kind == "delete":
            await self.delete(model, if_empty=given[0])
        else:
            await self.attempt(model, lambda: self.world.located.extend(name, given[0]))

    async def attempt(self, model: Model, call: Callable[[], Awaitable[Any]]) -> tuple[bool, Any]:
        """Run it; return whether it was acknowledged. Raises errors that are the answer."""
        try:
            return True, await call()
        except LostCallError:
            pass
        except TopicsError as error:
            if error.reason not in (Reason.NOT_READY, Reason.THROTTLED):
                raise
        await self.look(model)
        return False, None

    async def change(self, model: Model, count: int | None, cap: int) -> None:
        config = ConfigInput(durability="fsync", cap_records=cap)
        call = self.world.api.put_topic
        done, reply = await self.attempt(
            model,
            lambda: call(
                model.name,
                config,
                principal=UNRESTRICTED,
                partition_count=count,
                placement=PLACEMENTS[model.name],
            ),
        )
        if not done:
            return
        assert reply.created == (model.count == 0)
        if reply.created:
            model.born(reply.identity.topic_id, reply.identity.partition_count)
        model.count, model.cap = max(model.count, count or 1), cap
        assert (reply.identity.partition_count, reply.identity.topic_id) == (model.count, model.topic_id)

    async def append(self, model: Model, partition: int) -> None:
        model.records += 1
        data = b"%d" % model.records
        request = AppendRequest(topic=model.name, partition=partition, batch=Batch([data]), create=False)
        if partition < model.count:
            model.tried.setdefault(partition, set()).add(data)
        try:
            done, reply = await self.attempt(model, lambda: self.world.api.append(request, principal=UNRESTRICTED))
        except TopicsError as error:
            self.check_error(model, partition, error)
            return
        if done:
            assert partition < model.count
            assert reply.partition_count == model.count
            model.written.setdefault(partition, []).append(data)

    async def read(self, model: Model, partition: int) -> None:
        request = DiffRequest(topic=model.name, partition=partition, limit=1000)
        try:
            done, page = await self.attempt(model, lambda: self.world.api.diff(request))
        except TopicsError as error:
            self.check_error(model, partition, error)
            return
        if done:
            assert partition < model.count
            found = [data for _, data in records(page)]
            written = model.written.get(partition, [])
            assert [data for data in found if data in written] == written, "what was acknowledged is there, in order"
            assert set(found) <= model.tried.get(partition, set()), "nothing of another life or partition is"

    async def delete(self, model: Model, *, if_empty: bool) -> None:
        call = self.world.api.delete_topic
        try:
            done, reply = await self.attempt(model, lambda: call(model.name, if_empty=if_empty))
        except TopicsError as error:
            self.check_not_empty(model, error)
            return
        if done:
            assert reply.deleted == (model.count > 0)
            assert not (if_empty and any(model.written.values()))
            model.died()

    async def look(self, model: Model) -> None:
        """All shards answer again: see what became of calls without an answer."""
        self.world.shards.crash_at = None
        await self.world.settle()
        self.world.check()
        try:
            state = await self.world.api.get_topic(model.name)
        except TopicsError as error:
            self.check_error(model, 0, error, gone=True)
            return
        if state.identity.topic_id != model.topic_id:
            if model.count:
                model.died()
            model.born(state.identity.topic_id, state.identity.partition_count)
        assert state.identity.partition_count >= model.count
        model.count, model.cap = state.identity.partition_count, state.config.cap_records

    def check_not_empty(self, model: Model, error: TopicsError) -> None:
        assert error.reason is Reason.TOPIC_NOT_EMPTY, error
        assert any(model.tried.values())

    def check_error(self, model: Model, partition: int, error: TopicsError, *, gone: bool = False) -> None:
        if gone and model.count:
            model.died()
        if error.reason is Reason.TOPIC_NOT_FOUND:
            assert not model.count
        else:
            assert error.reason is Reason.PARTITION_NOT_FOUND, error
            assert partition >= max(1, model.count)

    async def end(self) -> None:
        for model in self.models.values():
            await self.look(model)
            for partition in range(model.count):
                await self.read(model, partition)
        self.world.check()


async def run(steps: list[tuple[str, tuple[Any, ...]]]) -> None:
    async with fragile_shards(SHARDS) as world:
        one = Run(world)
        for name, step in steps:
            await one.step(name, step)
        await one.end()


@settings(max_examples=150)
@given(st.lists(st.tuples(st.sampled_from(NAMES), STEP), min_size=5, max_size=40))
def test_random_calls_and_crashes(steps: list[tuple[str, tuple[Any, ...]]]) -> None:
    asyncio.run(run(steps))
