"""Routers against a slow model, one slice at a time, over a store that crashes at any moment.

Every slice is compared with what a reader of the source sees when it begins: what is copied, in which order, what is
passed over, what becomes a gap, and what stops it. After a crash, configs, cursors, totals and destinations must be as
some write left them, all together.
"""

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import pytest
from engine_support import CrashStore, any_of, run_machine
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from router_support import RouterWorld

from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.log import Log
from topics_service.engine.model import TagMatch
from topics_service.engine.router.hops import MAX_HOPS, Hops
from topics_service.engine.router.router import Router, RouterConfig
from topics_service.engine.snapshot import Snapshot

TOPICS = "abcd"
TAGS = (None, b"x", b"xy", b"z")
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


@dataclass
class Written:
    """What the store holds after some write."""

    routers: dict[str, tuple[RouterConfig, int, int]] = field(default_factory=dict)
    logs: dict[int, Snapshot] = field(default_factory=dict)


class RouterMachine(RuleBasedStateMachine):
    """Calls and slices in any order; `_checked_step` stands in for every slice, whoever asks for it."""

    def __init__(self) -> None:
        super().__init__()
        self.store = CrashStore()
        self.world = RouterWorld(self.store, cache_bytes=2000)
        self.serial = 0
        self.datas: dict[int, dict[int, bytes]] = {}  # by log id: every record ever written
        self.history: list[tuple[int, Written]] = []
        self.made: dict[str, int] = {}
        self._started()

    # ------------------------------------------------------------ bookkeeping

    def _started(self) -> None:
        forwarding = self.world.engine.routers.forwarding
        step = forwarding.step

        def checked(router: Router, source_hops: Hops | None = None, dest_hops: Hops | None = None) -> bool:
            return self._checked_step(step, router, source_hops, dest_hops)

        forwarding.step = checked  # type: ignore[method-assign]
        self.history = []
        self._remember()

    def _written(self) -> Written:
        engine = self.world.engine
        return Written(
            {r.name: (r.config, r.cursor, r.forwarded) for r in engine.routers._routers.values()},
            {t.log.log_id: copy(t.log.state) for t in engine.catalog.topics.values()},
        )

    def _remember(self) -> None:
        self.history.append((self.store.writes, self._written()))

    def _log(self, topic: str) -> Log | None:
        found = self.world.engine.catalog.find(topic)
        return None if found is None else found.log

    def _upstream(self, topic: str, left_out: str | None) -> list[str]:
        """The chain of sources above a topic, without one router."""
        path: list[str] = []
        at: str | None = topic
        while at is not None and at not in path:
            path.append(at)
            above = [
                router.config.source
                for router in self.world.engine.routers._routers.values()
                if router.config.dest == at and router.name != left_out
            ]
            at = above[0] if above else None
        return path

    # ------------------------------------------------------------- one slice

    def _checked_step(
        self, step: Callable[..., bool], router: Router, source_hops: Hops | None, dest_hops: Hops | None
    ) -> bool:
        source, dest = router.source, router.dest
        for topic in (source, dest):
            topic.log.visible(topic.config, self.world.clock.now)
        s = source.log.view
        before, head, forwarded = router.cursor, dest.log.state.head, router.forwarded
        hops = 0 if source_hops is None else source_hops.at(before + 1)[0]
        error: TopicsError | None = None
        more = False
        evidence = self._live_stamps(router) if router.config.guarantee == "exactly_once" else set()
        try:
            more = step(router, source_hops, dest_hops)
        except TopicsError as refused:
            error = refused
        self._remember()
        cursor, gained = router.cursor, dest.log.state.head - head
        assert before <= cursor <= s.head
        lost = self._lost(s, before, cursor)
        if hops >= MAX_HOPS:
            assert (gained, error) == (0, None), "nothing goes round for ever"
            assert cursor > before
        elif lost:
            assert cursor == before + lost, "a slice deals with a loss or with records"
            assert gained == lost
            state = dest.log.state
            assert state.gap_at(head + 1) is not None or state.evict_floor > head + 1
        else:
            copied = [
                self.datas[source.log.log_id][seq]
                for seq in range(before + 1, cursor + 1)
                if s.is_live(seq) and self._passes(router, seq) and seq not in evidence
            ]
            assert gained == len(copied)
            assert not any(s.gap_at(seq) or seq < s.evict_floor for seq in range(before + 1, cursor + 1))
            for i, data in enumerate(copied):
                block = dest.log.blocks.find(head + 1 + i)
                assert block.record_data(head + 1 + i - block.base_seq) == data
                self.datas.setdefault(dest.log.log_id, {})[head + 1 + i] = data
            if not copied and error is None and before < s.head:
                assert cursor > before
        assert router.forwarded == forwarded + gained
        if error is not None:
            if error.reason is Reason.THROTTLED:
                assert not hops
                assert dest_hops is not None
                assert dest_hops.is_full
            else:
                self._check_refusal(router, s, error)
        else:
            assert more == (cursor < s.head)
        return more if error is None else self._raise(error)

    def _raise(self, error: TopicsError) -> bool:
        raise error

    def _lost(self, s: Snapshot, cursor: int, end: int) -> int:
        """How many seqs after the cursor, one by one, are neither there nor deleted by a client."""
        lost = 0
        while cursor + 1 + lost <= end and (
            cursor + 1 + lost < s.evict_floor or s.gap_at(cursor + 1 + lost) is not None
        ):
            lost += 1
        return lost

    def _passes(self, router: Router, seq: int) -> bool:
        match = router.config.filter
        if match is None:
            return True
        block = router.source.log.blocks.find(seq)
        tag = None if block.tags is None else block.tags[seq - block.base_seq]
        return tag is not None and (tag == match.value if match.op == "Eq" else tag.startswith(match.value))

    def _live_stamps(self, router: Router) -> set[int]:
        """The source seqs that the destination holds copies of, under this router's name."""
        source = (router.name, router.source.identity.epoch)
        stamps = self._stamps(router.dest.log, router.dest.log.begin(router.dest.config, self.world.clock.now))
        return {stamp["source_seq"] for stamp in stamps if (stamp["router"], stamp["source_epoch"]) == source}

    @staticmethod
    def _stamps(log: Log, s: Snapshot | None = None) -> Iterator[dict[str, Any]]:
        """The stamps of the copies alive, block by block."""
        s = s or log.state
        seq = s.first_live(s.earliest)
        while seq <= s.head:
            block = log.blocks.find(seq)
            stop = block.base_seq + block.count
            metas = block.metas or ()
            while seq <= s.head and seq < stop:
                meta = metas[seq - block.base_seq] if metas else None
                if meta is not None and b"_topics_router" in meta:
                    yield json.loads(meta)["_topics_router"]
                seq = s.first_live(seq + 1)

    def _check_refusal(self, router: Router, s: Snapshot, error: TopicsError) -> None:
        """It stands just before a record, live and wanted, that the destination has no room for."""
        config, state = router.dest.config, router.dest.log.state
        assert error.reason.code in ("topic_full", "record_too_large")
        assert config.discard == "reject"
        seq = router.cursor + 1
        assert s.is_live(seq)
        assert self._passes(router, seq)
        size = len(self.datas[router.source.log.log_id][seq])
        full = config.cap_records and state.count + 1 > config.cap_records
        stamped = router.config.guarantee == "exactly_once" or config.cap_bytes < 500  # a stamp is larger than any cap
        assert full or (config.cap_bytes and (stamped or state.bytes + size > config.cap_bytes))

    # ------------------------------------------------------------------ rules

    @initialize(source=configs, dest=configs, config=router_configs)
    def first(self, source: dict[str, Any], dest: dict[str, Any], config: dict[str, Any]) -> None:
        self.put("a", {**source, "discard": "old"})
        self.put("b", dest)
        self.route("r1", "a", "b", config, backfill=False, allow_cycle=False)

    @rule(topic=topics, config=configs)
    def put(self, topic: str, config: dict[str, Any]) -> None:
        self.world.put(topic, sync=False, **config)
        self._remember()

    @rule(topic=topics, tags=st.lists(st.sampled_from(TAGS), min_size=1, max_size=5))
    def append(self, topic: str, tags: list[bytes | None]) -> None:
        datas = []
        for _ in tags:
            self.serial += 1
            datas.append(b"%d" % self.serial)
        with suppress(TopicsError):  # it is full
            reply, _ = self.world.try_append(*datas, topic=topic, tags=tags)
            log = self._log(topic)
            assert log is not None
            self.datas.setdefault(log.log_id, {}).update(enumerate(datas, reply.first_seq))
        self._remember()

    @rule(topic=topics, tag=st.sampled_from((b"x", b"z")))
    def delete_tag(self, topic: str, tag: bytes) -> None:
        if self._is_visible(topic):
            self.world.delete(eq=tag, topic=topic)
            self._remember()

    @rule(topic=topics, keep=st.integers(0, 3))
    def delete_before(self, topic: str, keep: int) -> None:
        if self._is_visible(topic):
            self.world.delete(max(0, self.world.state(topic).head_seq + 1 - keep), topic=topic)
            self._remember()

    def _is_visible(self, topic: str) -> bool:
        found = self.world.engine.catalog.find(topic)
        return found is not None and not self.world.engine.catalog.unsynced(found)

    @rule(topic=topics)
    def delete_topic(self, topic: str) -> None:
        touching = sorted(
            router.name
            for router in self.world.engine.routers._routers.values()
            if topic in (router.config.source, router.config.dest)
        )
        reply, _ = self.world.engine.delete_topic(topic)
        assert reply.routers_removed == (touching if reply.deleted else [])
        assert not self.world.engine.routers.touching(topic)
        self._remember()

    @rule(
        name=st.sampled_from(("r1", "r2", "r3", "r4")),
        source=topics,
        dest=topics,
        config=router_configs,
        backfill=st.booleans(),
        allow_cycle=st.sampled_from((False, False, False, True)),
    )
    def route(
        self, name: str, source: str, dest: str, config: dict[str, Any], *, backfill: bool, allow_cycle: bool
    ) -> None:
        routers = self.world.engine.routers
        old = routers.find(name)
        expected = None
        if source == dest:
            expected = "invalid_request"
        elif any(
            r.config.dest == dest and r.config.source != source and r.name != name for r in routers._routers.values()
        ):
            expected = "topic_exists_incompatible"
        elif not allow_cycle and dest in self._upstream(source, name):
            unchanged = old is not None and (old.config.source, old.config.dest) == (source, dest)
            if not (unchanged and old is not None and not old.config.allow_cycle):
                expected = "router_cycle"
        total = 0 if old is None else old.forwarded
        try:
            reply = self.world.route(
                source, dest, name, backfill=backfill, sync=False, allow_cycle=allow_cycle, **config
            )
        except TopicsError as error:
            code = error.reason.code
            if expected is None:
                assert old is not None
                assert old.config.source != source, "else the rest goes to the new destination"
                assert old.fault is not None
                assert code == old.fault.error.reason.code
            else:
                assert code == expected
            self._remember()
            return
        assert expected is None
        assert reply.created == (old is None)
        router = routers.find(name)
        assert router is not None
        s = router.source.log.view
        if old is None:
            earliest = router.source.log.visible(router.source.config, self.world.clock.now).earliest
            assert router.cursor == (earliest - 1 if backfill else s.head)
        assert router.forwarded >= total
        self._remember()

    @rule(name=st.sampled_from(("r1", "r2", "r3", "r4")))
    def unroute(self, name: str) -> None:
        there = self.world.engine.routers.find(name) is not None
        reply, _ = self.world.engine.routers.delete(name)
        assert reply.deleted == there
        self._remember()

    @rule(name=st.sampled_from(("r1", "r1", "r2", "r3")), synced=st.booleans())
    def make_again(self, name: str, *, synced: bool) -> None:
        """The same router, from the beginning of its source."""
        router = self.world.engine.routers.find(name)
        if router is None:
            return
        if synced:
            self.world.engine.sync()
        self.unroute(name)
        fields = ("filter", "preserve_tag", "guarantee")
        config = {field: getattr(router.config, field) for field in fields}
        ends = (router.config.source, router.config.dest)
        self.route(name, *ends, config, backfill=True, allow_cycle=router.config.allow_cycle)

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
        self._remember()

    @rule()
    def sync(self) -> None:
        self.world.engine.sync()

    @rule(ms=st.sampled_from((1, 60, 3000)))
    def wait(self, ms: int) -> None:
        self.world.clock.advance(ms)

    # ---------------------------------------------------------------- crashes

    @rule()
    def kill(self) -> None:
        self._remember()
        self.world.kill()
        self._check_recovered(self.history[-1][1])

    @rule()
    def restart(self) -> None:
        self._remember()
        self.world.restart()
        self._check_recovered(self.history[-1][1])

    @precondition(lambda self: self.store.writes > self.store.synced)
    @rule(data=st.data())
    def cut_power(self, data: st.DataObject) -> None:
        self._remember()
        writes = data.draw(st.integers(self.store.synced, self.store.writes))
        left = [written for at, written in self.history if at <= writes]
        if not left or not any(at == writes for at, _ in self.history):
            return  # in the middle of a call that writes more than once: what it leaves has no name here
        self.world.cut_power(writes)
        self._check_recovered(left[-1])

    def _check_recovered(self, written: Written) -> None:
        engine = self.world.engine
        found = {r.name: (r.config, r.cursor, r.forwarded) for r in engine.routers._routers.values()}
        assert found == written.routers
        for topic in engine.catalog.topics.values():
            s, was = topic.log.state, written.logs[topic.log.log_id]
            datas = self.datas.get(topic.log.log_id, {})
            for seq in range(1, was.head + 1):
                block = topic.log.blocks.find(seq) if s.is_live(seq) else None
                if block is not None:
                    assert block.record_data(seq - block.base_seq) == datas[seq]
                if topic.config.durability != "ephemeral" and was.is_live(seq) and not was.volatile_from:
                    assert s.is_live(seq)
            for seq in [seq for seq in datas if seq > was.head]:
                del datas[seq]  # lost with the tail
        self._started()

    # -------------------------------------------------------------- invariants

    @invariant()
    def no_copy_is_there_twice(self) -> None:
        for topic in self.world.engine.catalog.topics.values():
            feeders = [r for r in self.world.engine.routers._routers.values() if r.dest is topic]
            exact = {router.name for router in feeders if router.config.guarantee == "exactly_once"}
            if not exact:
                continue
            keys = Counter(stamp["idempotency_key"] for stamp in self._stamps(topic.log) if stamp["router"] in exact)
            # A copy that goes on through a router of another kind keeps its stamp: only direct copies count.
            assert all(count == 1 for count in keys.values()), keys

    @invariant()
    def bounds_hold(self) -> None:
        for topic in self.world.engine.catalog.topics.values():
            config, state = topic.config, topic.log.state
            if config.cap_records and config.discard == "old":
                assert state.count <= config.cap_records
        for router in self.world.engine.routers._routers.values():
            assert 0 <= router.lag <= router.source.log.view.head

    def teardown(self) -> None:
        """In the end everything is forwarded, or a full destination says so."""
        world = self.world
        for _ in range(100):
            world.engine.sync()
            world.clock.advance(2001)
            world.engine.maintain()
            world.engine.sweep()
            for _ in range(50):
                if not world.engine.routers.forward():
                    break
            world.engine.sync()
        for router in world.engine.routers._routers.values():
            assert router.lag == 0 or router.fault is not None


def run(examples: int, steps: int, *, derandomize: bool) -> None:
    with (
        patch("topics_service.engine.router.copies.RECORDS", 3),
        patch("topics_service.engine.maintenance.SEAL_BLOCKS", 3),
        patch("topics_service.engine.maintenance._RECLAIM_SEQS", 2),
        patch("topics_service.engine.log.CEILING_STEP", 8),
    ):
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
