"""A queue against the model of the simulation: workers, expiry, dead letters, delays, priorities, losses, and crashes
anywhere, as Hypothesis chooses them."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TypeVar

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
from simulation.oracle.queues import Claim
from simulation.oracle.topics import TopicModel
from simulation.scenario import small_engine
from simulation.world import RefusedError, World

from support.log_model import Rec
from support.queue_model import QueueModel
from support.trace import Trace
from topics_service.engine.model import TagMatch
from topics_service.engine.queue.jobs import ListJobsRequest

T = TypeVar("T")
NODES = ("w1", "w2", "w3")
nodes = st.sampled_from(NODES)
configs = any_of(
    lease_ms=(100, 1000),
    max_deliveries=(0, 1, 1, 2),
    dead_letter=(None, "dlq", "dlq"),
    leases_durable=(False, True),
    durability=("disk", "disk", "fsync"),
    cap_records=(0, 0, 0, 6),
    ttl_ms=(0, 0, 0, 3000),
)
tokens = st.sampled_from(("none", "none", "right", "stale", "unknown"))


class QueueWorld(World):
    """The world of the simulation, in which the disk can stall throughout a call."""

    stalls = False

    def call(self, what: Callable[[], T], *codes: str) -> T:
        self.disk.is_stalled = self.stalls
        try:
            return super().call(what, *codes)
        finally:
            self.disk.is_stalled = False


class QueueMachine(RuleBasedStateMachine):
    """Every rule does one call, which the simulation's oracle checks; the invariants compare the whole state."""

    def __init__(self) -> None:
        super().__init__()
        self.world = QueueWorld("queue", Trace())
        self.serial = 0
        self.is_open = True  # the dead letter topic has room
        self.stale: dict[int, str] = {}  # an older token of each seq

    @property
    def now(self) -> int:
        return self.world.now

    @property
    def topic(self) -> TopicModel:
        return self.world.topics.by_name["q"]

    @property
    def queue(self) -> QueueModel:
        return self.world.queues.of(self.topic)

    def _begin(self) -> QueueModel:
        return self.world.queues.begin(self.topic)

    # ------------------------------------------------------------------ rules

    @initialize(config=configs)
    def first(self, config: dict[str, object]) -> None:
        calls.put(self.world, "dlq", {})
        self._fill()
        self._create(config)

    def _fill(self) -> None:
        calls.append(self.world, "dlq", [Rec(0, 0, b"filler")])
        self.world.sync()

    def _create(self, config: dict[str, object]) -> None:
        calls.put(self.world, "q", {"type": "queue", **config})
        self.world.sync()
        self.stale = {}

    @rule(data=st.data(), count=st.integers(1, 4), node=nodes, ms=st.sampled_from((0, 0, 50, 101)))
    def work(self, data: st.DataObject, count: int, node: str, ms: int) -> None:
        """What workers do most of the time."""
        self.append(count, data.draw(st.sampled_from((None, b"a"))), 0, 0, stalled=False)
        self.world.sync()
        self.claim([(node, data.draw(st.integers(1, 4)), None)], stalled=False)
        self.wait(ms)
        if self.queue.leases:
            call = data.draw(st.sampled_from(("ack", "nack", "none")))
            if call != "none":
                self.settle(data, call, None, data.draw(st.sampled_from((0, 50))), False, 100, stalled=False)

    @rule(
        count=st.integers(1, 4),
        tag=st.sampled_from((None, b"a", b"b")),
        priority=st.sampled_from((0, 0, 0, 1, 9)),
        delay=st.sampled_from((0, 0, 0, 50, 500)),
        stalled=st.sampled_from((False,) * 9 + (True,)),
    )
    def append(self, count: int, tag: bytes | None, priority: int, delay: int, stalled: bool) -> None:
        recs = []
        for _ in range(count):
            self.serial += 1
            meta, node = (b'{"m":1}', b"n1") if self.serial % 4 == 0 else (None, None)
            recs.append(Rec(0, 0, b"job%d" % self.serial, meta, tag, node))
        with self._refused(stalled):
            calls.append(self.world, "q", recs, priority=priority, delay_ms=delay)

    @contextmanager
    def _refused(self, is_refused: bool, *, stalls: bool | None = None) -> Iterator[None]:
        """Expect a refusal of the call, or none, for a disk that stalls."""
        self.world.stalls = is_refused if stalls is None else stalls
        try:
            with pytest.raises(RefusedError, match="throttled") if is_refused else nullcontext():
                yield
        finally:
            self.world.stalls = False

    @precondition(lambda self: self.topic.log.written.live)
    @rule(
        claims=st.lists(
            st.tuples(nodes, st.integers(1, 4), st.sampled_from((None, 100, 2000))), min_size=1, max_size=3
        ),
        stalled=st.sampled_from((False,) * 6 + (True,)),
    )
    def claim(self, claims: list[Claim], stalled: bool) -> None:
        queue = self._begin()
        leases = queue.deal([most for _, most, _ in claims])
        must_move = self._moves(queue.must_move(self.now), stalled)
        with self._refused(stalled and queue.topic.config.leases_durable and any(leases), stalls=stalled):
            self.world.queues.claim(self.topic, *claims)
        self._moved(must_move)

    def _moves(self, is_tried: bool, stalled: bool) -> tuple[bool | None, int]:
        """True if jobs will become dead letters, None if no move is tried; and the count of dead letters so far."""
        return (self.is_open and not stalled) if is_tried else None, self.queue.dead_lettered

    def _moved(self, expected: tuple[bool | None, int]) -> None:
        """They did, or not."""
        is_moved, before = expected
        assert (self.queue.dead_lettered > before) == bool(is_moved)
        assert is_moved is not False or self.queue.stuck_until > self.now

    def _pick(self, data: st.DataObject) -> tuple[str, list[int]]:
        """A node, and mostly jobs that it holds; also others' jobs, lost ones, unknown ones and duplicates."""
        leases = self.queue.leases
        node = data.draw(st.sampled_from([lease.node for lease in leases.values()] or NODES))
        mine = [seq for seq, lease in leases.items() if lease.node == node]
        others = [*self.topic.log.written.live, *self.queue.gone, 0, 999_999]
        some = data.draw(st.lists(st.sampled_from(mine), max_size=4, unique=True)) if mine else []
        return node, some + data.draw(st.lists(st.sampled_from(others), min_size=not some, max_size=2))

    def _tokens(self, seqs: list[int], kinds: list[str]) -> list[str]:
        found = []
        for seq, kind in zip(seqs, kinds, strict=False):
            lease = self.queue.lease(seq)
            if kind == "right" and lease is not None:
                found.append(lease.token)
            elif kind == "stale" and seq in self.stale:
                found.append(self.stale[seq])
            else:
                found.append("lease_f00d" if kind == "unknown" else "")
        return found

    @precondition(lambda self: self.queue.leases)
    @rule(
        data=st.data(),
        call=st.sampled_from(("nack", "nack", "ack", "extend")),
        kinds=st.none() | st.none() | st.lists(tokens, min_size=6, max_size=6),
        delay=st.sampled_from((0, 0, 50, 5000)),
        released=st.sampled_from((False, False, True)),
        lease_ms=st.sampled_from((100, 5000)),
        stalled=st.sampled_from((False,) * 9 + (True,)),
        reason=st.sampled_from(("", "", "boom")),
    )
    def settle(
        self,
        data: st.DataObject,
        call: str,
        kinds: list[str] | None,
        delay: int,
        released: bool,
        lease_ms: int,
        stalled: bool,
        reason: str = "",
    ) -> None:
        queue = self._begin()
        node, seqs = self._pick(data)
        sent = [] if kinds is None else self._tokens(seqs, kinds)
        pairs = zip(seqs, sent or [""] * len(seqs), strict=True)
        held = {
            seq: lease.token for seq, token in pairs if (lease := queue.lease(seq)) and queue.holds(seq, node, token)
        }
        live = [seq for seq in held if seq in queue.touched]
        is_last = call == "nack" and any(queue.is_last(queue.touched[seq].deliveries - released) for seq in live)
        is_refused = stalled and bool(live) and (call == "ack" or self.topic.config.leases_durable)
        must_move = self._moves(is_last and self.now >= queue.stuck_until and not is_refused, stalled)
        with self._refused(is_refused, stalls=stalled):
            self.world.queues.settle(
                call, self.topic, node, seqs, sent, delay_ms=delay, lease_ms=lease_ms, released=released,
                reasons=[reason] * len(seqs) if reason else [],
            )  # fmt: skip
        self._moved(must_move)
        if not is_refused:
            self.stale |= {seq: held[seq] for seq in live}

    @precondition(lambda self: self.queue.leases)
    @rule(data=st.data())
    def disconnect(self, data: st.DataObject) -> None:
        self._begin()
        seqs = set(self._pick(data)[1])
        held = dict(zip(seqs, self._tokens(list(seqs), ["right"] * len(seqs)), strict=True))
        held.update((seq, token) for seq, token in self.stale.items() if seq not in held)
        self.world.queues.release(self.topic, held)

    @rule(ms=st.sampled_from((1, 49, 50, 100, 101, 500, 1001, 5000)))
    def wait(self, ms: int) -> None:
        self.world.clock.advance(ms)

    @rule()
    def wait_until_due(self) -> None:
        due = self.world.engine.queues.next_due("q")
        if due is not None:
            assert due > self.now
            self.world.clock.now = due

    @precondition(lambda self: not self.topic.config.ttl_ms)
    @rule(ms=st.sampled_from((1, 70, 900)))
    def clock_steps_back(self, ms: int) -> None:
        self._bury()  # else it may happen now, or when the clock is here again
        self.world.clock.advance(-ms)

    @precondition(lambda self: self.topic.log.written.live)
    @rule(data=st.data(), match=st.sampled_from((None, b"a", b"b")))
    def delete(self, data: st.DataObject, match: bytes | None) -> None:
        """Delete records of the queue, past the workers: with and without leases on the jobs."""
        self._begin()
        visible = list(self.topic.log.view.live)
        before = data.draw(st.sampled_from((*visible, *visible[:1]))) if visible and match is None else None
        if match is not None or before is not None:
            calls.delete(self.world, self.topic, 0, before, None if match is None else TagMatch("Eq", match))

    @rule(config=configs)
    def reconfigure(self, config: dict[str, object]) -> None:
        self._begin()
        calls.put(self.world, "q", {"type": "queue", **config})

    @rule(is_open=st.booleans())
    def letters_have_room(self, is_open: bool) -> None:
        self.is_open = is_open
        calls.put(self.world, "dlq", {} if is_open else {"cap_records": 1, "discard": "reject"})
        if is_open:
            self._fill()

    @precondition(lambda self: len(self.world.topics.by_name["dlq"].log.written.live) > 1)
    @rule(match=st.sampled_from((None, None, b"a")), most=st.sampled_from((0, 1, 3)))
    def redrive(self, match: bytes | None, most: int) -> None:
        condition = None if match is None else TagMatch("Eq", match)
        has_letters = self.topic.config.dead_letter is not None
        with nullcontext() if has_letters else pytest.raises(RefusedError, match="invalid_request"):
            self.world.queues.redrive(self.topic, most, condition)

    @rule(upkeep=st.booleans())
    def sync(self, upkeep: bool) -> None:
        if upkeep:
            self._bury()
            for _ in range(100):
                if not self.world.engine.maintain():
                    break
        self.world.sync()

    def _bury(self) -> None:
        """Maintenance moves what is exhausted."""
        queue = self._begin()
        self.world.engine.queues.counters("q")
        must_move = self._moves(queue.must_move(self.now), False)
        while self.world.engine.queues.mover.bury_due():
            pass
        self._moved(must_move)
        assert not queue.must_move(self.now)

    @precondition(lambda self: self.serial > 20)
    @rule(config=configs)
    def recreate(self, config: dict[str, object]) -> None:
        self.serial = 0
        calls.delete_topic(self.world, "q")
        self._create(config)

    # ---------------------------------------------------------------- crashes

    @rule(how=st.sampled_from(("close", "kill", "cut", "cut")), data=st.data())
    def restart(self, how: str, data: st.DataObject) -> None:
        world = self.world
        world.engine.queues.counters("q")
        world.latest = self.now  # the clock may have been set back
        if how == "cut":
            world.crash(power=True, left=data.draw(st.integers(world.disk.synced, world.w)))
        elif how == "kill":
            world.crash(power=False)
        else:
            world.close()
        world.sync()
        # A delay that was over may last again if the clock went back: both are right.
        queue = self._begin()
        request = ListJobsRequest(topic="q", state="delayed", limit=1000)
        hidden = {job.block.base_seq + job.position for job in world.engine.queues.jobs(request).jobs}
        for seq, rec in self.topic.log.written.live.items():
            if seq not in queue.touched and rec.ready_at > self.now and seq not in hidden:
                queue.due.add(seq)
        config = world.topics.by_name["dlq"].config
        self.is_open = config.discard == "old"
        if self.is_open:
            self._fill()
        self.stale = {}

    # -------------------------------------------------------------- comparisons

    @invariant()
    def the_queue_is_the_model(self) -> None:
        if "q" not in self.world.topics.by_name:
            return  # before the first rule
        self.world.look()
        self.world.queues.check()
        for topic in self.world.visible():
            cursor = 0
            while cursor < topic.log.view.head:
                cursor = reading.diff(self.world, topic, 0, cursor, limit=1000).next_from_seq


def run(examples: int, steps: int, *, derandomize: bool) -> None:
    with small_engine():
        run_machine(QueueMachine, examples, steps, derandomize=derandomize)


@pytest.mark.timeout(180)
def test_the_queue_is_the_model() -> None:
    run(examples=300, steps=50, derandomize=True)


@pytest.mark.soak
@pytest.mark.skipif("TOPICS_SOAK_SECONDS" not in os.environ, reason="a soak: set TOPICS_SOAK_SECONDS")
@pytest.mark.timeout(0)
def test_the_queue_is_the_model_for_long() -> None:
    end = time.monotonic() + float(os.environ["TOPICS_SOAK_SECONDS"])
    while time.monotonic() < end:
        run(examples=200, steps=80, derandomize=False)
