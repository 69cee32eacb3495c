"""Effective priority: manual or recency, plus age (docs/contract.md, 3.7)."""

import pytest
from engine_support import World

from topics_service.engine.topic import Topic
from topics_service.engine.watch.priority import age_boost, effective


def topic_of(world: World, name: str = "t") -> Topic:
    return world.engine.catalog.visible(name)


@pytest.mark.parametrize(
    ("waited", "boost"), [(-5, 0), (0, 0), (9, 0), (10, 1), (999, 99), (1000, 100), (10_000, 1000), (10**9, 1000)]
)
def test_age_climbs_by_100_a_second_up_to_1000(waited: int, boost: int) -> None:
    assert age_boost(waited) == boost


def test_a_manual_priority_overrides_recency(world: World) -> None:
    world.put(priority=-40)
    topic = topic_of(world)
    topic.touch(world.clock.now)
    assert effective(topic, world.clock.now, world.clock.now) == -40
    assert effective(topic, world.clock.now, world.clock.now - 1500) == 110


def test_manual_priorities_are_clamped(world: World) -> None:
    world.put(priority=5000)
    assert effective(topic_of(world), 0, 0) == 1000


@pytest.mark.parametrize(("idle", "points"), [(0, 500), (15_000, 354), (30_000, 250), (120_000, 31), (300_000, 0)])
def test_recency_halves_every_30_seconds(world: World, idle: int, points: int) -> None:
    world.put()
    topic, now = topic_of(world), world.clock.now
    assert effective(topic, now, now) == 0
    topic.touch(now)
    assert effective(topic, now + idle, now + idle) == points


def test_no_topic_starves_for_long_at_equal_demand(world: World) -> None:
    """Whoever has waited for 10 s goes before what is as good and came later."""
    world.put("hot")
    world.put("cold")
    hot, cold, now = topic_of(world, "hot"), topic_of(world, "cold"), world.clock.now
    hot.touch(now + 10_000)
    assert effective(cold, now + 10_000, now) > effective(hot, now + 10_000, now + 10_000)
