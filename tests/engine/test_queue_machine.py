"""A queue against a small model: workers, expiry, dead letters, delays, priorities, losses, and crashes anywhere."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, get_args
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
from model_queue import Config, Job, Lease, QueueModel
from msgspec.structs import astuple
from queue_support import QueueWorld

from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.model import AppendRequest, Batch, DeleteRequest, QueueCounters, TagMatch
from topics_service.engine.queue.jobs import ClaimRequest, JobState, RedriveRequest, SettleRequest
from topics_service.storage.store import StoreStalledError, WriteBatch

NODES = ("w1", "w2", "w3")
STATES: tuple[JobState, ...] = get_args(JobState)
nodes = st.sampled_from(NODES)
configs = any_of(
    lease_ms=(100, 1000),
    max_deliveries=(0, 1, 1, 2),
    dead_letter=(None, "dlq", "dlq"),
    leases_durable=(False, True),
    durability=("disk", "disk", "fsync"),
    cap_records=(0, 0, 0, 6),
    ttl_ms=(0, 0, 0, 3000),
).map(lambda fields: Config(**fields))
tokens = st.sampled_from(("none", "none", "right", "stale", "unknown"))


class StallStore(CrashStore):
    """Stalls when told to."""

    stalled = False

    def write(self, batch: WriteBatch) -> None:
        if self.stalled:
            raise StoreStalledError("Write stall")
        super().write(batch)


class QueueMachine(RuleBasedStateMachine):
    """Every rule does one call on both and compares the outcome; the invariants compare the whole state."""

    def __init__(self) -> None:
        super().__init__()
        self.store = StallStore()
        self.world = QueueWorld(self.store, cache_bytes=2000)
        self.model = QueueModel()
        self.history: list[tuple[int, QueueModel]] = []
        self.serial = 0
        self.stale: dict[int, str] = {}  # an older token of each seq

    @property
    def now(self) -> int:
        return self.world.clock.now

    @property
    def synced(self) -> int:
        return self.world.engine.writer.synced

    def _remember(self) -> None:
        """What a crash right now would leave. Called after every write."""
        self.history.append((self.store.writes, self.model.copy()))

    @contextmanager
    def _stalling(self, stalled: bool) -> Iterator[None]:
        self.store.stalled = stalled
        try:
            yield
        finally:
            self.store.stalled = False

    # ------------------------------------------------------------------ rules

    @initialize(config=configs)
    def first(self, config: Config) -> None:
        self.world.put("dlq")
        self.world.append(b"filler", topic="dlq")  # so that letters need not wait for a ceiling
        self._create(config)

    def _create(self, config: Config) -> None:
        self.world.put("q", type="queue", **vars(config))
        kept = self.model
        self.model = QueueModel(config=config, letters=kept.letters, open=kept.open)
        self.stale = {}
        self._remember()

    @rule(data=st.data(), count=st.integers(1, 4), node=nodes, ms=st.sampled_from((0, 0, 50, 101)))
    def work(self, data: st.DataObject, count: int, node: str, ms: int) -> None:
        """What workers do most of the time."""
        self.append(count, data.draw(st.sampled_from((None, b"a"))), 0, 0, stalled=False)
        self.world.engine.sync()
        self.claim([(node, data.draw(st.integers(1, 4)), None)], stalled=False)
        self.wait(ms)
        if self._leases:
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
        datas = []
        for _ in range(count):
            self.serial += 1
            datas.append(b"job%d" % self.serial)
        batch = Batch(datas=datas, tags=None if tag is None else [tag] * count)
        request = AppendRequest(topic="q", batch=batch, priority=priority, delay_ms=delay)
        with self._stalling(stalled):
            if stalled:
                with pytest.raises(TopicsError):
                    self.world.engine.append(request)
                return
            reply, ticket = self.world.engine.append(request)
        self.model.refresh(self.now)
        ready_at = self.now + delay if delay else 0
        for i, data in enumerate(datas):
            seq = reply.first_seq + i
            assert seq not in self.model.jobs
            self.model.jobs[seq] = Job(
                seq, self.model.stamp(self.now), data, tag, ticket, priority=priority, ready_at=ready_at, due=not delay
            )
        self.model.evict()
        self._remember()

    @precondition(lambda self: self.model.jobs)
    @rule(
        claims=st.lists(
            st.tuples(nodes, st.integers(1, 4), st.sampled_from((None, 100, 2000))), min_size=1, max_size=3
        ),
        stalled=st.sampled_from((False,) * 6 + (True,)),
    )
    def claim(self, claims: list[tuple[str, int, int | None]], stalled: bool) -> None:
        model = self.model
        model.refresh(self.now)
        buried = model.bury(self.now, stalled=stalled)
        if buried:
            self.history.append((self.store.writes + 1, model.copy()))  # the first write of the claim
        hands = model.deal([most for _, most, _ in claims], self.synced)
        requests = [ClaimRequest(topic="q", node=node, max=most, lease_ms=ms) for node, most, ms in claims]
        with self._stalling(stalled):
            if stalled and model.config.leases_durable and any(hands):
                with pytest.raises(TopicsError) as error:
                    self.world.engine.queues.claim(requests)
                assert error.value.reason is Reason.THROTTLED
                return
            replies, ticket = self.world.engine.queues.claim(requests)
        gated = model.config.durability == "fsync"
        if not buried:
            # What the claim has found too old must be durable.
            expired = self.world.engine.expiry_ticket("q") > self.synced
            assert (ticket > self.synced) == (expired or (gated and model.config.leases_durable and any(hands)))
        elif gated:
            assert ticket > self.synced, "the letters are there when the claim is answered"
        for reply, hand, (node, _, ms) in zip(replies, hands, claims, strict=True):
            deadline = self.now + (ms or model.config.lease_ms)
            expected = [(job.seq, job.deliveries + 1, deadline, job.data, job.tag) for job in hand]
            found = []
            for got in reply.jobs:
                tags = got.block.tags
                tag = None if tags is None else tags[got.position]
                found.append((got.seq, got.deliveries, got.deadline, got.block.record_data(got.position), tag))
            assert found == expected
            for got, job in zip(reply.jobs, hand, strict=True):
                assert job.lease is None, "never leased twice at once"
                job.touched, job.deliveries = True, job.deliveries + 1
                job.lease = Lease(node, got.lease_id, deadline)
            model.keep_rows(job.seq for job in hand)
        self._remember()
        ready = sum(model.state_of(job) == "ready" for job in model.visible(self.synced))
        assert {reply.ready for reply in replies} == {ready}

    @property
    def _leases(self) -> dict[int, Lease]:
        return {seq: job.lease for seq, job in self.model.jobs.items() if job.lease} | self.model.gone

    def _pick(self, data: st.DataObject) -> tuple[str, list[int]]:
        """A node, and mostly jobs that it holds; also others' jobs, lost ones, unknown ones and duplicates."""
        node = data.draw(st.sampled_from([lease.node for lease in self._leases.values()] or NODES))
        mine = [seq for seq, lease in self._leases.items() if lease.node == node]
        others = [*self.model.jobs, *self.model.gone, 0, 999_999]
        some = data.draw(st.lists(st.sampled_from(mine), max_size=4, unique=True)) if mine else []
        return node, some + data.draw(st.lists(st.sampled_from(others), min_size=not some, max_size=2))

    def _tokens(self, seqs: list[int], kinds: list[str]) -> list[str]:
        found = []
        for seq, kind in zip(seqs, kinds, strict=False):
            job = self.model.jobs.get(seq)
            lease = job.lease if job is not None else self.model.gone.get(seq)
            if kind == "right" and lease is not None:
                found.append(lease.token)
            elif kind == "stale" and seq in self.stale:
                found.append(self.stale[seq])
            else:
                found.append("lease_f00d" if kind == "unknown" else "")
        return found

    @precondition(lambda self: self._leases)
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
        model = self.model
        model.refresh(self.now)
        node, seqs = self._pick(data)
        sent = [] if kinds is None else self._tokens(seqs, kinds)
        request = SettleRequest(
            topic="q", node=node, seqs=seqs, lease_ids=sent, delay_ms=delay, lease_ms=lease_ms,
            mode="release" if released else "retry", reasons=[reason] * len(seqs) if reason else [],
        )  # fmt: skip
        done: list[int] = []
        skipped = []
        for seq, token in zip(seqs, sent or [""] * len(seqs), strict=True):
            if seq not in done and model.holds(seq, node, token):
                done.append(seq)
            else:
                skipped.append(seq)
        if call == "extend":
            skipped = [seq for seq in skipped if seq not in done]
        live = [seq for seq in done if seq in model.jobs]
        with self._stalling(stalled):
            if stalled and live and (call == "ack" or model.config.leases_durable):
                with pytest.raises(TopicsError):
                    getattr(self.world.engine.queues.settlement, call)(request)
                return
            reply, ticket = getattr(self.world.engine.queues.settlement, call)(request)
        assert (reply.done, reply.skipped) == (len(done), skipped)
        for seq in done:
            job = model.jobs.get(seq)
            if job is not None and job.lease is not None:
                self.stale[seq] = job.lease.token
            if call == "ack":
                model.ack(seq)
            elif call == "nack":
                ready_at = self.now + delay if delay else 0
                model.give_back(seq, ready_at, released=released, now=self.now, reason=reason, is_told=reason != "")
            else:
                model.extend(seq, self.now + lease_ms)
        if call == "nack":
            moved = model.bury(self.now, stalled=stalled, only=live)
            assert sorted(reply.dead_lettered) == moved
            left = [seq for seq in done if seq in model.jobs]
            assert reply.exhausted == [seq for seq in left if model.is_exhausted(model.jobs[seq])]
            assert not (moved and model.config.durability == "fsync") or ticket > self.synced
        model.keep_rows(live)
        self._remember()
        if call == "extend":
            assert reply.deadlines == dict.fromkeys(done, self.now + lease_ms)
        gated = model.config.durability == "fsync" and (call == "ack" or model.config.leases_durable)
        if live and gated:
            assert ticket > self.synced
        counts = [model.state_of(job) for job in model.visible(self.synced)]
        assert (reply.ready, reply.in_flight) == (counts.count("ready"), counts.count("in_flight"))

    @precondition(lambda self: self._leases)
    @rule(data=st.data())
    def disconnect(self, data: st.DataObject) -> None:
        self.model.refresh(self.now)
        seqs = set(self._pick(data)[1])
        held = dict(zip(seqs, self._tokens(list(seqs), ["right"] * len(seqs)), strict=True))
        held.update((seq, token) for seq, token in self.stale.items() if seq not in held)
        valid = [seq for seq, token in held.items() if token and self.model.holds(seq, None, token)]
        queues = self.world.engine.queues
        assert len(queues.settlement.held("q", held)) == len(valid)
        live = [seq for seq in valid if seq in self.model.jobs]
        assert queues.settlement.release("q", held) == len(valid)
        for seq in valid:
            self.model.give_back(seq, 0, released=False, now=self.now, reason="connection ended")
        self.model.bury(self.now, stalled=False, only=live)
        self.model.keep_rows(live)
        self._remember()

    @rule(ms=st.sampled_from((1, 49, 50, 100, 101, 500, 1001, 5000)))
    def wait(self, ms: int) -> None:
        self.world.clock.advance(ms)

    @rule()
    def wait_until_due(self) -> None:
        due = self.world.engine.queues.next_due("q")
        if due is not None:
            assert due > self.now
            self.world.clock.now = due

    @precondition(lambda self: not self.model.config.ttl_ms)
    @rule(ms=st.sampled_from((1, 70, 900)))
    def clock_steps_back(self, ms: int) -> None:
        self._bury()  # else it may happen now, or when the clock is here again
        self.world.clock.advance(-ms)

    @precondition(lambda self: self.model.jobs)
    @rule(data=st.data(), match=st.sampled_from((None, b"a", b"b")))
    def delete(self, data: st.DataObject, match: bytes | None) -> None:
        """Delete records of the queue, past the workers: with and without leases on the jobs."""
        self.model.refresh(self.now)
        visible = [job.seq for job in self.model.visible(self.synced)]
        before = data.draw(st.sampled_from((*visible, *visible[:1]))) if visible and match is None else None
        if match is None and before is None:
            return
        condition = None if match is None else TagMatch("Eq", match)
        reply, _ = self.world.engine.delete_records(DeleteRequest(topic="q", before_seq=before, match=condition))
        doomed = [
            job.seq
            for job in self.model.visible(self.synced)
            if (before is None or job.seq < before) and (match is None or job.tag == match)
        ]
        assert reply.deleted == len(doomed)
        self.model.lose(doomed)
        self._remember()

    @rule(config=configs)
    def reconfigure(self, config: Config) -> None:
        model = self.model
        model.refresh(self.now)
        was_durable, changed = model.config.leases_durable, model.config != config
        if changed:
            model.config = config
            model.refresh(self.now)
            model.evict()
            if config.leases_durable and not was_durable:
                model.keep_rows(seq for seq, job in model.jobs.items() if job.touched)
            elif not config.leases_durable:
                for job in model.jobs.values():
                    job.row = None
        self.world.put("q", sync=False, type="queue", **vars(config))
        self._remember()

    @rule(is_open=st.booleans())
    def letters_have_room(self, is_open: bool) -> None:
        self.model.open = is_open
        self.world.put("dlq", **({} if is_open else {"cap_records": 1, "discard": "reject"}))
        if is_open:
            self.world.append(b"filler", topic="dlq")
        self._remember()

    @precondition(lambda self: self.model.letters)
    @rule(match=st.sampled_from((None, None, b"a")), most=st.sampled_from((0, 1, 3)))
    def redrive(self, match: bytes | None, most: int) -> None:
        model = self.model
        if self._waiting_letters:
            self.world.engine.sync()
        model.refresh(self.now)
        request = RedriveRequest(topic="q", match=None if match is None else TagMatch("Eq", match), max=most)
        if model.config.dead_letter is None:
            with pytest.raises(TopicsError):
                self.world.engine.queues.mover.redrive(request)
            return
        chosen = [i for i, (_, tag, _) in enumerate(model.letters) if match is None or tag == match]
        chosen = chosen[: most or len(chosen)]
        head = self.world.engine.catalog.topics["q"].log.state.head
        reply, ticket = self.world.engine.queues.mover.redrive(request)
        assert reply.redriven == len(chosen)
        for offset, i in enumerate(chosen, 1):
            data, tag, _ = model.letters[i]
            model.jobs[head + offset] = Job(head + offset, model.stamp(self.now), data, tag, ticket)
        model.letters = [letter for i, letter in enumerate(model.letters) if i not in chosen]
        model.evict()
        self._remember()

    @rule(upkeep=st.booleans())
    def sync(self, upkeep: bool) -> None:
        if upkeep:
            self._bury()
            self.world.maintain()
            self._remember()
        self.world.engine.sync()

    def _bury(self) -> None:
        """Maintenance moves what is exhausted."""
        self.model.refresh(self.now)
        self.world.engine.queues.counters("q")
        while self.world.engine.queues.mover.bury_due():
            pass
        self.model.bury(self.now, stalled=False)
        self._remember()

    @precondition(lambda self: self.serial > 20)
    @rule(config=configs)
    def recreate(self, config: Config) -> None:
        self.serial = 0
        self.world.engine.delete_topic("q")
        self._create(config)

    # ---------------------------------------------------------------- crashes

    @rule(how=st.sampled_from(("close", "kill", "cut", "cut")), data=st.data())
    def restart(self, how: str, data: st.DataObject) -> None:
        self.world.engine.queues.counters("q")
        if how == "cut":
            writes = data.draw(st.integers(self.store.synced, self.store.writes))
            self.model = [model for at, model in self.history if at <= writes][-1].copy()
            self.world.cut_power(writes)
        elif how == "kill":
            self.world.kill()
        else:
            self.world.restart()
        self.world.engine.sync()
        if self.model.open:
            self.world.append(b"filler", topic="dlq")
        self.model.restarted()
        self.model.refresh(self.now)
        # A delay that was over may last again if the clock went back: both are right.
        hidden = set(self.world.listed("delayed"))
        for job in self.model.jobs.values():
            if not job.touched and not job.due:
                assert self.now < job.ready_at
                job.due = job.seq not in hidden
        self.stale = {}
        self.history = [(self.store.synced, self.model.copy())]  # looking may have written, but nothing that shows

    # -------------------------------------------------------------- comparisons

    @property
    def _waiting_letters(self) -> int:
        """The letters that nobody sees before the next fsync: they are above the log's ceiling on the disk."""
        log = self.world.engine.catalog.topics["dlq"].log
        return log.state.head - log.view.head

    def _told(self, seq: int) -> list[dict[str, Any]]:
        """The attempts that a dead letter tells of."""
        block = self.world.engine.catalog.topics["dlq"].log.blocks.records(seq)
        meta = None if block.metas is None else block.metas[seq - block.base_seq]
        found: list[dict[str, Any]] = json.loads(meta or b"{}").get("$dead_letter_attempts", [])
        return found

    @invariant()
    def the_queue_is_the_model(self) -> None:
        if "q" not in self.world.engine.catalog.topics:
            return  # before the first rule
        model = self.model
        model.refresh(self.now)
        visible = model.visible(self.synced)
        states: dict[JobState, list[int]] = {state: [] for state in STATES}
        for job in visible:
            states[model.state_of(job)].append(job.seq)
        assert self.world.engine.queues.counters("q") == QueueCounters(
            **{state: len(seqs) for state, seqs in states.items()},
            dead_lettered=model.dead_lettered,
            retrying=sum(model.jobs[seq].touched for seq in states["delayed"]),
        )
        for state, expected in states.items():
            assert self.world.listed(state) == expected
        log = self.world.engine.catalog.topics["q"].log
        seqs = {job.seq for job in visible}
        assert {seq for seq in seqs if log.state.is_live(seq)} == seqs, "no job is lost"
        if log.state.head == log.view.head:  # expiry looks at others when somebody can see them
            assert log.state.count == len(seqs), "none is back"
        for state in STATES:
            for view in self.world.jobs(state, limit=1000):
                job = model.jobs[view.block.base_seq + view.position]
                assert view.block.record_data(view.position) == job.data
                assert (view.deliveries, view.priority) == (job.deliveries, job.priority)
                lease = (job.lease.node, job.lease.deadline) if job.lease else (None, None)
                assert (view.node, view.deadline) == lease
                assert tuple(map(astuple, view.attempts)) == job.told
                if state == "delayed":
                    assert view.ready_at == (job.free_at if job.touched else job.ready_at)
        letters = self.world.walk("dlq")
        shown = model.letters[: len(model.letters) - self._waiting_letters]
        assert [data for _, data in letters if data != b"filler"] == [data for data, *_ in shown]
        told = [self._told(seq) for seq, data in letters if data != b"filler"]
        expected = [[attempt[:4] for attempt in attempts] for *_, attempts in shown]
        assert [[tuple(attempt.values()) for attempt in each] for each in told] == expected
        assert self.world.engine.queues.leases_in_flight == len(states["in_flight"])


def run(examples: int, steps: int, *, derandomize: bool) -> None:
    with (
        patch("topics_service.engine.maintenance.SEAL_BLOCKS", 3),
        patch("topics_service.engine.maintenance._RECLAIM_SEQS", 2),
        patch("topics_service.engine.queue.schedule.FOLD_ROWS", 3),
        patch("topics_service.engine.queue.alarms._SLACK", 4),
    ):
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
