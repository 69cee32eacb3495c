"""Whose turn it is: few at a time, by priority and age, first come first served, and paced under overload."""

import asyncio
import random
from collections import Counter

import pytest

from support.fake_time import FakeTimeLoop, in_fake_time, steps
from topics_service.api.scheduling.dispatch import _TURNS, Dispatcher, Waiter


def fake_loop() -> FakeTimeLoop:
    """The running loop."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, FakeTimeLoop)
    return loop


class Stream(Waiter):
    """Records its turns and the calls it gets."""

    def __init__(self, world: "World", name: str = "") -> None:
        super().__init__()
        self.world = world
        self.name = name
        self.told: list[tuple[str, int]] = []

    def turn(self) -> None:
        self.world.turns.append(self.name)

    def pace(self, topic: str, retry_after_ms: int) -> None:
        self.told.append((topic, retry_after_ms))


class World:
    """A dispatcher, the priorities of topics (0 if not set), and whether the loop is overloaded."""

    def __init__(self) -> None:
        self.priorities: dict[str, int] = {}
        self.overload_ms = 0
        self.turns: list[str] = []
        self.dispatcher = Dispatcher(lambda topic: self.priorities.get(topic, 0), lambda: self.overload_ms)

    def streams(self, topic: str, count: int, *, ask: bool = True) -> list[Stream]:
        """Streams `topic0`, `topic1`, ... that all become due."""
        made = [Stream(self, f"{topic}{i}") for i in range(count)]
        if ask:
            for stream in made:
                self.dispatcher.ask(topic, stream)
        return made

    async def step(self) -> list[str]:
        """The turns of one step of the loop."""
        self.turns.clear()
        await steps()
        return self.turns.copy()

    async def rest(self) -> list[str]:
        """All turns until there is nothing to do."""
        self.turns.clear()
        while not self.dispatcher.is_idle:
            await asyncio.sleep(0 if any(self.dispatcher._queues.values()) else 0.5)
        return self.turns.copy()


@in_fake_time
async def test_a_lone_stream_gets_its_turn_at_once() -> None:
    world = World()
    world.streams("t", 1)
    assert world.turns == ["t0"]
    assert world.dispatcher.is_idle


@in_fake_time
async def test_a_crowd_is_served_a_few_in_a_step_and_others_run_in_between() -> None:
    world = World()
    world.streams("t", 1000)
    assert len(world.turns) == _TURNS
    served = list(world.turns)
    while not world.dispatcher.is_idle:
        turns = await world.step()  # this task runs in every step, as a request would
        assert len(turns) <= _TURNS
        served += turns
    assert served == [f"t{i}" for i in range(1000)]


@in_fake_time
async def test_the_highest_priority_goes_first_also_if_it_comes_later() -> None:
    world = World()
    world.priorities = {"low": -10, "high": 10}
    world.streams("t", _TURNS)
    world.streams("low", _TURNS)
    world.streams("mid", _TURNS)
    assert set(await world.step()) == {f"mid{i}" for i in range(_TURNS)}
    world.streams("high", 1)
    assert (await world.step())[0] == "high0"


@in_fake_time
async def test_age_outweighs_priority_in_the_end() -> None:
    """A topic of the lowest priority is served though the highest takes all there is, and not before it should be."""
    world, loop = World(), fake_loop()
    world.priorities = {"low": -1000, "high": 1000}
    high = world.streams("high", _TURNS * 4)
    world.streams("low", 1)
    began = loop.now
    while "low0" not in await world.step():
        for stream in high:  # all of them are due again at any time
            world.dispatcher.ask("high", stream)
        loop.now += 0.1
        assert loop.now < began + 22
    assert loop.now > began + 19


@in_fake_time
async def test_who_has_used_up_a_turn_lets_everything_else_go_first() -> None:
    world = World()
    stream = Stream(world, "greedy")
    world.dispatcher.ask("t", stream, again=True)
    assert not world.turns
    world.streams("t", 2)
    assert await world.step() == ["greedy", "t0", "t1"]


@in_fake_time
async def test_a_stream_that_is_due_in_many_topics_takes_one_turn() -> None:
    world = World()
    world.streams("t", _TURNS)
    stream = Stream(world, "multi")
    for topic in ("a", "b", "c", "a"):
        world.dispatcher.ask(topic, stream)
    assert stream.due == {"a", "b", "c"}
    assert await world.rest() == ["multi"]
    assert not stream.due


@in_fake_time
async def test_its_best_topic_decides() -> None:
    world = World()
    world.priorities = {"high": 10}
    world.streams("t", _TURNS)
    stream = Stream(world, "multi")
    world.streams("u", 1)
    world.dispatcher.ask("u", stream)
    world.dispatcher.ask("high", stream)
    assert await world.step() == ["multi", "u0"]


@in_fake_time
async def test_who_leaves_gets_no_turn_and_leaves_nothing_behind() -> None:
    world = World()
    streams = world.streams("t", 100)
    for stream in streams[_TURNS:]:
        world.dispatcher.ask("u", stream)
    world.dispatcher.drop("t", streams[99])
    assert streams[99].due == {"u"}
    for stream in streams[_TURNS:]:
        world.dispatcher.leave(stream)
    assert not await world.rest()
    await steps(2)
    assert not world.dispatcher._queues
    assert not world.dispatcher._order


@in_fake_time
async def test_overload_holds_back_the_lowest_and_tells_them_once() -> None:
    world = World()
    world.overload_ms = 1200
    world.priorities = {"high": 10}
    low = world.streams("low", 60)
    high = world.streams("high", 20)
    began = asyncio.get_running_loop().time()
    assert await world.step() == [f"high{i}" for i in range(_TURNS)]
    await steps(3)
    assert not any(stream.told for stream in high)
    told = [stream for stream in low if stream.told]
    assert len(told) > 40
    assert all(stream.told == [("low", 1200)] for stream in told)
    world.turns.clear()
    await world.rest()
    assert Counter(world.turns) == Counter(stream.name for stream in told)  # each is asked exactly once
    assert asyncio.get_running_loop().time() - began >= 1.2
    assert all(len(stream.told) == 1 for stream in told)


@in_fake_time
async def test_a_paced_stream_gets_its_turns_at_most_every_retry_after_ms() -> None:
    world, loop = World(), fake_loop()
    world.overload_ms = 1000
    others = world.streams("high", 32)
    world.priorities = {"high": 1000}
    stream = Stream(world, "low")
    world.dispatcher.ask("low", stream)
    last, gaps = loop.now, []
    while len(gaps) < 5:
        for other in others:
            world.dispatcher.ask("high", other)
        if "low" in await world.step():
            gaps.append(loop.now - last)
            last = loop.now
            world.dispatcher.ask("low", stream)
        loop.now += 0.01
    assert min(gaps) >= 1
    assert max(gaps) < 16  # its age beats 1000 points of priority
    assert stream.told == [("low", 1000)]


@in_fake_time
async def test_a_topic_above_them_wakes_a_stream_that_is_held_back() -> None:
    world = World()
    world.overload_ms = 1000
    world.priorities = {"high": 10}
    streams = world.streams("t", 40)
    await steps(2)
    held = next(stream for stream in streams if stream.told)
    world.turns.clear()
    world.dispatcher.ask("high", held)
    await steps()
    assert world.turns[0] == held.name
    assert not held.due


@in_fake_time
async def test_the_end_of_overload_frees_everyone_in_the_order_they_came() -> None:
    world = World()
    world.overload_ms = 5000
    world.streams("t", 100)
    first = await world.step()
    world.overload_ms = 0
    world.turns.clear()
    began = asyncio.get_running_loop().time()
    rest = await world.rest()
    assert asyncio.get_running_loop().time() == began
    assert first + rest == [f"t{i}" for i in range(100)]


@in_fake_time
async def test_a_new_overload_is_told_again() -> None:
    world = World()
    world.overload_ms = 1000
    streams = world.streams("t", 100)
    await world.rest()
    world.overload_ms = 0
    for stream in streams:
        world.dispatcher.ask("t", stream)
    await world.rest()
    world.overload_ms = 1000
    for stream in streams:
        world.dispatcher.ask("t", stream)
    await world.rest()
    assert {len(stream.told) for stream in streams} <= {0, 1, 2}
    assert any(len(stream.told) == 2 for stream in streams)


@in_fake_time
async def test_who_leaves_while_held_back_leaves_no_timer() -> None:
    world = World()
    world.overload_ms = 1000
    streams = world.streams("t", 100)
    await steps(2)
    assert world.dispatcher._timer is not None
    for stream in streams:
        world.dispatcher.leave(stream)
    assert world.dispatcher.is_idle
    assert world.dispatcher._timer is None


@pytest.mark.parametrize("seed", range(30))
@in_fake_time
async def test_at_random_nobody_is_lost_or_served_twice(seed: int) -> None:
    rng, world = random.Random(seed), World()
    world.priorities = {f"t{i}": rng.randrange(-1000, 1000) for i in range(8)}
    streams = [Stream(world, str(i)) for i in range(150)]
    owed: set[str] = set()

    def settle() -> None:
        for name in world.turns:
            owed.remove(name)
        world.turns.clear()

    for _ in range(300):
        stream, topic = rng.choice(streams), f"t{rng.randrange(8)}"
        settle()
        match rng.randrange(12):
            case 0:
                world.overload_ms = rng.choice((0, 0, 1000, 3000))
            case 1:
                world.dispatcher.leave(stream)
                owed.discard(stream.name)
            case 2:
                world.dispatcher.drop(topic, stream)
                if not stream.due:
                    owed.discard(stream.name)
            case 3:
                await asyncio.sleep(rng.choice((0, 0, 0.3, 2)))
            case _:
                for other in rng.sample(streams, rng.choice((1, 3, 90))):
                    owed.add(other.name)
                    world.dispatcher.ask(topic, other, again=rng.random() < 0.2)
                    settle()
    await until_idle(world)
    settle()
    assert not owed
    assert not any(stream.due for stream in streams)
    await steps(2)
    assert not world.dispatcher._queues
    assert not world.dispatcher._order
    assert not world.dispatcher._held


async def until_idle(world: World) -> None:
    while not world.dispatcher.is_idle:
        await asyncio.sleep(0.1)
