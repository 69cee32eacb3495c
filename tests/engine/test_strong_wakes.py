"""Watchers that wait for an fsync are woken by whatever it was that moved the durable head."""

from engine_support import World
from watch_support import Watcher


def test_a_config_change_that_becomes_durable_with_the_records() -> None:
    world = World()
    world.put(durability="disk")
    strong = Watcher(world, strong=True)
    assert strong.events() == [("t", "caught-up")]
    world.append(b"1", sync=False)
    assert strong.events() == [], "it has asked for an fsync"
    world.put(durability="disk", ttl_ms=1 << 40, sync=False)
    world.engine.sync()
    assert strong.wakes == ["t"]
    assert strong.events() == [("t", 1), ("t", "caught-up")]


def test_records_that_become_visible_and_durable_at_once_wake_once() -> None:
    world = World()
    world.put(durability="fsync")
    strong = Watcher(world, strong=True)
    strong.events()
    world.append(b"1", sync=False)
    world.engine.sync()
    assert strong.wakes == ["t"]
    assert strong.events() == [("t", 1), ("t", "caught-up")]
