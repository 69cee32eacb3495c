"""Watchers that wait for an fsync are woken by whatever it was that moved the durable head."""

import pytest
from engine_support import World
from watch_support import Watcher


@pytest.fixture
def world() -> World:
    """With a record, so that more of them are visible at once."""
    world = World()
    world.put(durability="disk")
    world.append(b"0")
    return world


def test_a_config_change_that_becomes_durable_with_the_records(world: World) -> None:
    strong = Watcher(world, strong=True)
    assert strong.events() == [("t", 1), ("t", "caught-up")]
    world.append(b"1", sync=False)
    assert strong.events() == [], "it has asked for an fsync"
    world.put(durability="disk", ttl_ms=1 << 40, sync=False)
    world.engine.sync()
    assert strong.wakes == ["t"]
    assert strong.events() == [("t", 2), ("t", "caught-up")]


def test_records_that_become_visible_and_durable_at_once_wake_once(world: World) -> None:
    world.put("fsync", durability="fsync")
    strong = Watcher(world, "fsync", strong=True)
    strong.events()
    world.append(b"1", topic="fsync", sync=False)
    world.engine.sync()
    assert strong.wakes == ["fsync"]
    assert strong.events() == [("fsync", 1), ("fsync", "caught-up")]


def test_who_asks_while_an_fsync_is_under_way_that_brings_nothing_is_woken_to_ask_again(world: World) -> None:
    strong = Watcher(world, strong=True)
    strong.events()
    world.append(b"1", sync=False)
    ticket = world.put(durability="disk", ttl_ms=1 << 40, sync=False)
    world.put("other", sync=False)
    assert strong.events() == [], "it asks for an fsync of all that was written"
    world.engine.synced(ticket)
    assert strong.events() == [("t", 2), ("t", "caught-up")], "that of the config has covered the record, too"
    world.append(b"2", sync=False)
    assert strong.events() == [], "there is an fsync to wait for"
    world.engine.synced(ticket + 1)
    assert strong.wakes == ["t"]
    assert strong.events() == []
    world.engine.sync()
    assert strong.events() == [("t", 3), ("t", "caught-up")]
