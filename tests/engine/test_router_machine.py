"""Routers against the model of the simulation, over a disk that crashes at any moment, as Hypothesis chooses."""

import os
import time
from contextlib import suppress
from typing import Any

import pytest
from engine_support import any_of, run_machine
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from simulation.oracle import calls, reading
from simulation.scenario import small_engine
from simulation.world import RefusedError, World

from support.log_model import Rec
from support.trace import Trace
from topics_service.engine.model import TagMatch
from topics_service.engine.router.router import PutRouterRequest, RouterConfig

TOPICS = "abcd"
TAGS = (None, b"x", b"xy", b"z")
ROUTERS = ("r1", "r2", "r3", "r4")
topics = st.sampled_from(TOPICS)
configs = any_of(
    durability=("disk", "disk", "fsync", "ephemeral", "memory"),
    cap_records=(0, 0, 0, 2, 5),
    cap_bytes=(0, 0, 0, 40),
    discard=("old", "reject"),
    ttl_ms=(0, 0, 0, 100),
)
router_configs = any_of(
    filter=(None, None, None, TagMatch("Eq", b"x"), TagMatch("Glob", b"x")),
    preserve_tag=(True, True, False),
    guarantee=("at_least_once", "exactly_once"),
)


class RouterMachine(RuleBasedStateMachine):
    """Every rule does one call, and the simulation's oracle checks it and each slice, whoever asks for the slice."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World("routers", Trace())
        self.serial = 0

    # ------------------------------------------------------------------ rules

    @initialize(source=configs, dest=configs, config=router_configs)
    def first(self, source: dict[str, Any], dest: dict[str, Any], config: dict[str, Any]) -> None:
        self.put("a", {**source, "discard": "old"})
        self.put("b", dest)
        self.route("r1", "a", "b", config, backfill=False, allow_cycle=False)

    @rule(topic=topics, config=configs)
    def put(self, topic: str, config: dict[str, Any]) -> None:
        calls.put(self.world, topic, config)

    @rule(topic=topics, tags=st.lists(st.sampled_from(TAGS), min_size=1, max_size=5))
    def append(self, topic: str, tags: list[bytes | None]) -> None:
        recs = []
        for tag in tags:
            self.serial += 1
            meta, node = (b'{"m":1}', b"n1") if self.serial % 4 == 0 else (None, None)
            recs.append(Rec(0, 0, b"%d" % self.serial, meta, tag, node))
        with suppress(RefusedError):  # it is full
            calls.append(self.world, topic, recs)

    @rule(topic=topics, tag=st.sampled_from((b"x", b"z")))
    def delete_tag(self, topic: str, tag: bytes) -> None:
        found = self.world.topics.find(topic)
        if found is not None and self.world.is_visible(found):
            calls.delete(self.world, found, 0, None, TagMatch("Eq", tag))

    @rule(topic=topics, keep=st.integers(0, 3))
    def delete_before(self, topic: str, keep: int) -> None:
        found = self.world.topics.find(topic)
        if found is not None and self.world.is_visible(found):
            calls.delete(self.world, found, 0, max(0, found.log.view.head + 1 - keep), None)

    @rule(topic=topics)
    def delete_topic(self, topic: str) -> None:
        calls.delete_topic(self.world, topic)
        assert not self.world.engine.routers.touching(topic)

    @rule(
        name=st.sampled_from(ROUTERS),
        source=topics,
        dest=topics,
        config=router_configs,
        backfill=st.booleans(),
        allow_cycle=st.sampled_from((False, False, False, True)),
    )
    def route(
        self, name: str, source: str, dest: str, config: dict[str, Any], *, backfill: bool, allow_cycle: bool
    ) -> None:
        given = RouterConfig(source=source, dest=dest, allow_cycle=allow_cycle, **config)
        with suppress(RefusedError):
            self.world.routers.put(PutRouterRequest(router=name, config=given, backfill=backfill))

    @rule(name=st.sampled_from(ROUTERS))
    def unroute(self, name: str) -> None:
        self.world.routers.delete(name)

    @precondition(lambda self: self.world.routers.standing)
    @rule(data=st.data(), worked=st.booleans())
    def make_again(self, data: st.DataObject, *, worked: bool) -> None:
        """The same router, from the beginning of its source, of which it may have forwarded all."""
        name = data.draw(st.sampled_from(sorted(self.world.routers.standing)))
        config = self.world.routers.standing[name][0]
        if worked:
            self.world.sync()
            self.forward(10)
        self.unroute(name)
        with suppress(RefusedError):
            self.world.routers.put(PutRouterRequest(router=name, config=config, backfill=True))

    @rule()
    def append_to_the_first(self) -> None:
        self.append("a", [b"x", None, b"x", None])

    @rule(slices=st.integers(1, 4))
    def forward(self, slices: int) -> None:
        for _ in range(slices):
            self.world.engine.routers.forward()

    @rule(topic=topics)
    def read_your_writes(self, topic: str) -> None:
        routers = self.world.engine.routers
        for catch_up in routers.behind(topic):
            while routers.advance(catch_up):
                pass
            assert catch_up.is_over or catch_up.router.fault is not None

    @rule()
    def maintain(self) -> None:
        self.world.engine.maintain()

    @rule()
    def sync(self) -> None:
        self.world.sync()

    @rule(ms=st.sampled_from((1, 60, 3000)))
    def wait(self, ms: int) -> None:
        self.world.clock.advance(ms)
        self.world.latest = self.world.now

    # ---------------------------------------------------------------- crashes

    @rule()
    def kill(self) -> None:
        self.world.crash(power=False)

    @rule()
    def restart(self) -> None:
        self.world.close()

    @precondition(lambda self: self.world.w > self.world.disk.synced)
    @rule(data=st.data())
    def cut_power(self, data: st.DataObject) -> None:
        self.world.crash(power=True, left=data.draw(st.integers(self.world.disk.synced, self.world.w)))

    # -------------------------------------------------------------- comparisons

    @invariant()
    def routers_and_topics_are_the_model(self) -> None:
        world = self.world
        world.look()
        world.routers.check()
        for topic in world.visible():
            cursor = 0
            while cursor < topic.log.view.head:
                cursor = reading.diff(world, topic, 0, cursor, limit=1000).next_from_seq

    def teardown(self) -> None:
        """In the end everything is forwarded, or a full destination says so."""
        world = self.world
        routers = world.engine.routers
        for _ in range(100):
            world.sync()
            self.wait(2001)
            world.look()
            world.engine.maintain()
            calls.sweep(world)
            for _ in range(50):
                if not routers.forward():
                    break
            world.sync()
        for router in routers._routers.values():
            assert router.lag == 0 or router.fault is not None


def run(examples: int, steps: int, *, derandomize: bool) -> None:
    with small_engine():
        run_machine(RouterMachine, examples, steps, derandomize=derandomize)


@pytest.mark.timeout(180)
def test_routers_are_the_model() -> None:
    run(examples=200, steps=50, derandomize=True)


@pytest.mark.soak
@pytest.mark.skipif("TOPICS_SOAK_SECONDS" not in os.environ, reason="a soak: set TOPICS_SOAK_SECONDS")
@pytest.mark.timeout(0)
def test_routers_are_the_model_for_long() -> None:
    end = time.monotonic() + float(os.environ["TOPICS_SOAK_SECONDS"])
    while time.monotonic() < end:
        run(examples=100, steps=80, derandomize=False)
