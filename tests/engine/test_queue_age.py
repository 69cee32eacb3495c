"""How long the oldest job waits that a claim could get, and how far a watch is behind: what the metrics tell."""

import random

import pytest
from engine_support import World
from queue_support import LEASE, QueueWorld
from watch_support import Watcher


@pytest.fixture
def world() -> QueueWorld:
    world = QueueWorld()
    world.queue()
    return world


def age(world: QueueWorld) -> int:
    topic = world.engine.catalog.find("q")
    assert topic is not None
    world.engine.queues.state(topic)
    return world.engine.queues.oldest_ready_ms(topic)


def test_the_age_is_that_of_the_first_job_that_waits(world: QueueWorld) -> None:
    assert age(world) == 0
    world.work(1)
    world.clock.advance(100)
    world.work(2)
    world.clock.advance(50)
    assert age(world) == 150
    assert world.take() == [1]
    assert age(world) == 50
    assert world.take() == [2]
    assert age(world) == 0
    world.clock.advance(LEASE + 1)  # both leases expire: they are as old as they were
    assert age(world) == LEASE + 151
    assert world.take() == [1]
    world.ack(1)
    assert age(world) == LEASE + 51


def test_a_delayed_job_counts_from_its_append_once_it_is_ready(world: QueueWorld) -> None:
    world.work(1, delay_ms=500)
    world.clock.advance(499)
    assert age(world) == 0
    world.clock.advance(1)
    assert age(world) == 500
    world.clock.advance(10)
    world.work(2, priority=9)
    assert age(world) == 510  # though the other one is served first


def test_deleted_jobs_do_not_count(world: QueueWorld) -> None:
    world.work(1, 2, 3, priority=3)
    world.clock.advance(10)
    world.work(4)
    world.delete(4, topic="q")
    assert age(world) == 0
    world.clock.advance(7)
    assert age(world) == 7


def test_the_clock_may_step_back(world: QueueWorld) -> None:
    world.work(1)
    world.clock.advance(-10_000)
    assert age(world) == 0


@pytest.mark.parametrize("seed", range(20))
def test_it_is_always_the_lowest_seq_that_claims_would_get(seed: int) -> None:
    rng, world = random.Random(seed), QueueWorld()
    world.queue()
    times: dict[int, int] = {}
    for _ in range(60):
        step = rng.randrange(6)
        if step <= 1:
            count = rng.randrange(1, 4)
            tags = [rng.choice((b"a", b"b", b"c", None)) for _ in range(count)]
            delay_ms, priority = rng.choice((0, 0, 300)), rng.choice((0, 0, 4))
            for seq in world.work(*[1] * count, tags=tags, delay_ms=delay_ms, priority=priority):
                times[seq] = world.clock.now
        elif step == 2:
            held = world.take(max_jobs=rng.randrange(1, 6))
            done = [seq for seq in held if rng.random() < 0.5]
            if done:
                world.ack(*done)
        elif step == 3:
            world.delete(rng.choice((None, max(times, default=1))), eq=rng.choice((b"a", b"b", b"c")), topic="q")
        else:
            world.clock.advance(rng.randrange(LEASE))
        told = age(world)
        claimable = world.take(max_jobs=1000)
        oldest = world.clock.now - times[min(claimable)] if claimable else 0
        assert told == oldest
        if claimable:
            world.nack(*claimable)


def test_a_watch_is_behind_by_what_it_was_not_given() -> None:
    world = World()
    world.append(1, 1, 1)
    world.append(1, topic="u")
    watcher = Watcher(world, {"t": 0, "u": None}, limit=2)
    assert watcher.watch.lag == 3  # of the tail there is nothing to get
    watcher.next()
    assert watcher.watch.lag == 1
    watcher.frames()
    assert watcher.watch.lag == 0
    world.append(1, 1, topic="u")
    assert watcher.watch.lag == 2
    world.engine.delete_topic("u")
    watcher.frames()
    assert watcher.watch.lag == 0
