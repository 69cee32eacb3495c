"""Whose turn it is: rounds, priority, ageing, no starvation."""

from collections.abc import Iterator

import pytest
from engine_support import World

from topics_service.engine.watch.topic_scheduler import ScheduledLog, TopicScheduler


class Order:
    """Topics that take turns."""

    def __init__(self, world: World, **priorities: int | None) -> None:
        self.clock = world.clock
        self.turns = {}
        for name, priority in priorities.items():
            world.put(name, priority=priority)
            self.turns[name] = ScheduledLog(topic := world.engine.catalog.visible(name), topic.log, self.clock.now)
        self.order = TopicScheduler(list(self.turns.values()), self.clock.now)

    def due(self, *names: str) -> None:
        for name in names:
            turn = self.turns[name]
            turn.due, turn.due_ts = True, self.clock.now
            self.order.add(turn)

    def served(self, maximum: int = 100) -> Iterator[str]:
        """Whoever comes next, with nothing left to serve afterwards."""
        for _ in range(maximum):
            turn = self.order.next(self.clock.now)
            if turn is None:
                return
            turn.due = False
            yield turn.topic.name


def test_the_first_round_is_in_name_order(world: World) -> None:
    order = Order(world, c=1000, a=-1000, b=0)
    assert list(order.served(1)) == ["a"]
    world.clock.advance(100)  # the ranks of the first round never grow old
    assert list(order.served()) == ["b", "c"]


def test_later_the_highest_priority_goes_first_and_ties_go_by_name(world: World) -> None:
    order = Order(world, a=-5, b=7, c=0, d=7)
    assert len(list(order.served())) == 4
    order.due("a", "d", "c", "b")
    assert list(order.served()) == ["b", "d", "c", "a"]


def test_recency_counts(world: World) -> None:
    order = Order(world, a=None, b=None, c=400)
    list(order.served())
    order.turns["b"].topic.touch(world.clock.now)
    order.due("a", "b", "c")
    assert list(order.served()) == ["b", "c", "a"]


def test_waiting_adds_up(world: World) -> None:
    order = Order(world, a=0, b=150)
    list(order.served())
    order.due("a")
    world.clock.advance(2000)
    order.due("b")
    assert list(order.served()) == ["a", "b"]


@pytest.mark.parametrize(("waited", "rest"), [(49, ["d", "a"]), (50, ["a", "d"])])
def test_ranks_grow_old_within_a_round(world: World, waited: int, rest: list[str]) -> None:
    order = Order(world, a=0, b=300, c=200, d=100)
    list(order.served())
    order.due("a", "b", "c", "d")
    assert list(order.served(1)) == ["b"]
    world.put("a", priority=900)
    assert list(order.served(1)) == ["c"]
    world.clock.advance(waited)
    assert list(order.served()) == rest


def test_the_clock_may_step_back(world: World) -> None:
    order = Order(world, a=0, b=1)
    list(order.served())
    order.due("a", "b")
    world.clock.advance(-10_000)
    assert list(order.served()) == ["b", "a"]


def test_one_with_much_to_serve_takes_one_turn_a_round(world: World) -> None:
    order = Order(world, a=-1000, b=1000, c=0)
    list(order.served())
    order.due("a", "b", "c")
    found = []
    for _ in range(9):
        turn = order.order.next(world.clock.now)
        assert turn is not None
        found.append(turn.topic.name)
        order.due(turn.topic.name)
    assert found == ["b", "c", "a"] * 3


def test_what_becomes_due_meanwhile_joins_the_round_by_priority(world: World) -> None:
    order = Order(world, a=0, b=5, c=9, d=7)
    list(order.served())
    order.due("a", "b")
    assert list(order.served(1)) == ["b"]
    order.due("d", "c", "b")  # but b had its turn
    assert list(order.served()) == ["c", "d", "a", "b"]


def test_who_is_new_waits_for_the_next_round(world: World) -> None:
    order = Order(world, a=0, b=0, c=0)
    list(order.served())
    order.due("a", "b", "c")
    assert list(order.served(1)) == ["a"]
    world.put("new", priority=1000)
    turn = ScheduledLog(topic := world.engine.catalog.visible("new"), topic.log, world.clock.now)
    order.order.join(turn)
    assert list(order.served()) == ["b", "c", "new"]


def test_who_was_taken_out_gets_no_turn(world: World) -> None:
    order = Order(world, a=0, b=1, c=2)
    order.turns["b"].due = False
    assert list(order.served()) == ["a", "c"]
    order.due("a", "b", "c")
    order.turns["c"].due = False
    assert list(order.served()) == ["b", "a"]
    order.due("a")
    order.turns["a"].due = False
    assert list(order.served()) == []


def test_two_instances_of_a_name_can_be_due(world: World) -> None:
    order = Order(world, a=0, b=0)
    list(order.served())
    old = order.turns["a"]
    order.due("a", "b")
    world.engine.delete_topic("a")
    world.put("a")
    order.turns["a"] = ScheduledLog(topic := world.engine.catalog.visible("a"), topic.log, world.clock.now)
    order.order.add(order.turns["a"])
    old.due = False
    assert list(order.served()) == ["a", "b"]


@pytest.mark.parametrize("gap_ms", [0, 1, 60, 5000])
def test_nobody_waits_longer_than_a_round(world: World, gap_ms: int) -> None:
    names = [f"t{i}" for i in range(10)]
    order = Order(world, **{name: i * 200 - 1000 for i, name in enumerate(names)})
    list(order.served())
    order.due(*names)
    last = dict.fromkeys(names, 0)
    for step in range(1, 200):
        turn = order.order.next(world.clock.now)
        assert turn is not None
        name = turn.topic.name
        assert step - last[name] <= 2 * len(names)
        last[name] = step
        order.due(name)
        world.clock.advance(gap_ms)
    assert min(last.values()) > 170
