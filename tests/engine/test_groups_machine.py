"""Groups against a model, over a store that crashes at any moment: positions as a write left them, nothing lost."""

import os
import time
from collections.abc import Callable

import pytest
from engine_support import CrashStore, run_machine
from group_support import GroupWorld
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from topics_service.engine.errors import TopicsError
from topics_service.engine.limits import Limits
from topics_service.engine.offsets.positions import CommitItem, Target

Positions = dict[tuple[str, str, int], int]  # by group, topic and epoch

GROUPS = ("g", "h", "other")
groups = st.sampled_from(GROUPS)
topics = st.sampled_from(("t", "t", "u"))
configs = st.fixed_dictionaries(
    {
        "durability": st.sampled_from(("disk", "disk", "fsync")),
        "ttl_ms": st.sampled_from((0, 0, 100)),
        "cap_records": st.sampled_from((0, 2, 4)),
        "retain_until_acked_by": st.sampled_from(((), ("g",), ("g", "h"))),
    }
)


class GroupsMachine(RuleBasedStateMachine):
    """`positions` is what was written last, `history` what a crash after each write would leave."""

    def __init__(self) -> None:
        super().__init__()
        self.world = GroupWorld(CrashStore(), limits=Limits(group_retention_ms=5000))
        self.positions: Positions = {}
        self.names: set[str] = set()
        self.history: list[tuple[int, Positions, set[str]]] = []
        self.records: dict[int, dict[int, int]] = {}  # epoch: seq: the number of the write that brought it
        self.released: dict[int, int] = {}  # epoch: up to here records may have left
        self._remember()

    # ------------------------------------------------------------ bookkeeping

    @property
    def store(self) -> CrashStore:
        assert isinstance(self.world.store, CrashStore)
        return self.world.store

    def _epoch(self, topic: str) -> int | None:
        found = self.world.engine.catalog.find(topic)
        return None if found is None else found.number

    def _remember(self) -> None:
        self.history.append((self.store.writes, dict(self.positions), set(self.names)))
        for name, topic in self.world.engine.catalog.topics.items():
            hold = self.world.hold(name)
            head = topic.log.state.head
            now = head if hold is None else min(hold, head)
            self.released[topic.number] = max(self.released.get(topic.number, 0), now)

    def _try(self, call: Callable[[], object], *codes: str) -> bool:
        try:
            call()
        except TopicsError as error:
            if error.reason.code not in codes:
                raise
            return False
        return True

    def _head(self, topic: str) -> int:
        found = self.world.engine.catalog.find(topic)
        return 0 if found is None else found.log.view.head

    # ----------------------------------------------------------------- topics

    @rule(topic=topics, config=configs)
    def put(self, topic: str, config: dict[str, object]) -> None:
        self.world.put(topic, sync=True, **config)
        self._remember()

    @rule(topic=topics, count=st.integers(1, 3), sync=st.booleans())
    def append(self, topic: str, count: int, sync: bool) -> None:
        if not self._try(
            lambda: self.world.append(*[b"x"] * count, topic=topic, sync=sync), "topic_full", "record_too_large"
        ):
            found = self.world.engine.catalog.topics[topic]
            hold = self.world.hold(topic)
            assert hold is not None
            held = found.log.state.live_between(hold + 1, found.log.state.head + 1)
            assert held + count > found.config.cap_records > 0, "refused only when nothing else would do"
            return
        found = self.world.engine.catalog.topics[topic]
        head, cap = found.log.state.head, found.config.cap_records
        assert not cap or found.log.state.count <= cap
        kept = self.records.setdefault(found.number, {})
        kept.update(dict.fromkeys(range(head - count + 1, head + 1), self.store.writes))
        self._remember()

    @rule(topic=topics)
    def delete_topic(self, topic: str) -> None:
        epoch = self._epoch(topic)
        self.world.engine.delete_topic(topic)
        self.positions = {place: seq for place, seq in self.positions.items() if place[2] != epoch}
        self._remember()

    @rule(ms=st.sampled_from((1, 60, 101)))
    def wait(self, ms: int) -> None:
        self.world.clock.advance(ms)
        self.world.engine.sweep()
        self.world.maintain()
        self._remember()

    # ----------------------------------------------------------------- groups

    @rule(group=groups, topic=topics, back=st.integers(-3, 4), kafka=st.booleans(), sync=st.booleans())
    def commit(self, group: str, topic: str, back: int, kafka: bool, sync: bool) -> None:
        seq, epoch = self._head(topic) - back, self._epoch(topic)
        wanted, catalog = "", self.world.engine.catalog
        if epoch is None or catalog.unsynced(catalog.topics[topic]):
            wanted = "topic_not_found"
        elif seq < 0 or (back < 0 and not kafka):
            wanted = "invalid_request"
        assert self.world.outcomes(group, CommitItem(topic, 0, seq), kafka=kafka) == [wanted]
        if not wanted:
            assert epoch is not None
            self.positions[group, topic, epoch] = seq
            self.names.add(group)
        if sync:
            self.world.engine.sync()
        self._remember()

    @rule(group=groups, to=st.sampled_from(("earliest", "latest", 0)))
    def reset(self, group: str, to: str | int) -> None:
        moved = {}
        for name, topic, epoch in self.positions:
            if name == group:  # as readers see the log before the fsync that the reset ends with
                view = self.world.engine.catalog.topics[topic].log.view
                moved[name, topic, epoch] = {"earliest": view.earliest - 1, "latest": view.head}.get(str(to), 0)
        if self._try(lambda: self.world.reset(group, to=to), "group_not_found"):
            self.positions |= moved
        self._remember()

    @rule(group=groups, topic=topics)
    def delete_position(self, group: str, topic: str) -> None:
        call = self.world.engine.groups.delete_positions
        if self._try(lambda: call(group, [Target(topic)]), "group_not_found", "topic_not_found"):  # or unsynced
            self.positions.pop((group, topic, self._epoch(topic) or 0), None)
        self._remember()

    @rule(group=groups)
    def delete_group(self, group: str) -> None:
        assert self.world.engine.groups.delete(group)[0].deleted == (group in self.names)
        self.names.discard(group)
        self.positions = {place: seq for place, seq in self.positions.items() if place[0] != group}
        self._remember()

    # ---------------------------------------------------------------- crashes

    @rule(end=st.sampled_from(("restart", "kill")))
    def stop(self, end: str) -> None:
        getattr(self.world, end)()
        self.history = []
        self._remember()

    @rule(data=st.data())
    def cut_power(self, data: st.DataObject) -> None:
        cut = data.draw(st.integers(self.store.synced, self.store.writes))
        _, self.positions, self.names = next(each for each in reversed(self.history) if each[0] <= cut)
        self.records = {
            epoch: {seq: write for seq, write in kept.items() if write <= cut} for epoch, kept in self.records.items()
        }
        self.world.cut_power(cut)
        self.positions, self.names = dict(self.positions), set(self.names)
        self.history = []
        self._remember()

    # ------------------------------------------------------------- invariants

    @invariant()
    def positions_are_those_of_the_model(self) -> None:
        found: Positions = {}
        engine = self.world.engine
        for name in self.world.names():
            for (topic, _), seq in self.world.positions(name).items():
                found[name, topic, self._epoch(topic) or 0] = seq
        assert found == self.positions
        assert set(self.world.names()) == self.names
        assert engine.groups.index.positions == len(found)
        assert all(lag >= 0 for *_, lag in engine.groups.index.lags(len(found)))
        for topic in engine.catalog.topics.values():
            held = [self.positions.get((name, topic.name, topic.number), 0) for name in topic.config.retaining]
            assert topic.log.hold == min(held, default=None)

    @invariant()
    def nothing_held_is_lost(self) -> None:
        for topic in self.world.engine.catalog.topics.values():
            s = topic.log.visible(topic.config, self.world.clock.now)
            for seq in self.records.get(topic.number, {}):
                if self.released.get(topic.number, 0) < seq <= s.head:
                    assert s.is_live(seq), (topic.name, seq)


@pytest.mark.parametrize("seconds", [float(os.environ.get("TOPICS_SOAK_SECONDS", "0"))])
def test_groups_over_crashes(seconds: float) -> None:
    until = time.monotonic() + seconds
    while True:
        run_machine(GroupsMachine, 60, 40, derandomize=not seconds)
        if time.monotonic() >= until:
            return
