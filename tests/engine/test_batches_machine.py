"""The engine's machine with record batches of Kafka clients among the other writes: what is kept as it came is read,
counted, evicted, deleted by tag, sealed, indexed and recovered like everything else.

Idempotent producers are part of the model: their state survives what their records survive.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Self
from unittest.mock import patch

import pytest
from batch_support import make
from engine_machine import STEP, EngineMachine, Topic, names
from engine_support import any_of, run_machine
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from support.log_model import LogState, Rec, matches
from topics_service.engine.batches import BatchRequest, FetchRequest
from topics_service.engine.model import DeleteRequest, DiffRequest, TagMatch
from topics_service.engine.producers import SequenceError
from topics_service.storage import keys, recordbatch
from topics_service.storage.store import Family

KEYS = (None, b"", b"a", b"a\x00", b"ab", b"b", b"\xff")  # the last is not text, so no tag
configs = any_of(
    durability=("ephemeral", "ephemeral", "disk", "disk", "fsync"),
    ttl_ms=(0, 0, 100),
    cap_records=(0, 0, 0, 0, 6, 12),
    cap_bytes=(0, 0, 0, 0, 300, 900),
    discard=("old", "old", "old", "reject"),
    idempotency_window_ms=(0, 100, 120_000),
    dedupe_node=(True,),
)
record = st.sampled_from(list(product(KEYS, (b"1", b'"xy"', b"\x80raw", None, b"." * 40))))
filters = st.sampled_from(
    [TagMatch("Eq", tag) for tag in (b"", b"a", b"a\x00", b"ab", b"b")]
    + [TagMatch("Glob", tag) for tag in (b"", b"a", b"a\x00", b"b")]
)


@dataclass
class Sent:
    """What is known of a producer: its epoch and newest batches (first sequence, records, first seq)."""

    epoch: int
    batches: list[tuple[int, int, int]]


@dataclass(frozen=True)
class BatchState(LogState):
    """A state with producers: on disk, and of an ephemeral topic in memory."""

    on_disk: dict[int, Sent] = field(default_factory=dict)
    in_memory: dict[int, Sent] = field(default_factory=dict)

    def materialized(self) -> Self:
        return replace(super().materialized(), on_disk=self.on_disk | self.in_memory, in_memory={})

    def cut(self, start: int, head: int, *, as_floor: bool) -> Self:
        return replace(super().cut(start, head, as_floor=as_floor), in_memory={})

    def known(self, producer_id: int) -> Sent | None:
        return self.in_memory.get(producer_id) or self.on_disk.get(producer_id)


@dataclass
class BatchTopic(Topic):
    """A topic of such states."""

    written: LogState = field(default_factory=BatchState)
    view: LogState = field(default_factory=BatchState)


class BatchMachine(EngineMachine):
    """Adds what Kafka clients do, and reads by tag."""

    @initialize(config=configs)
    def first_topic(self, config: dict[str, object]) -> None:
        self.put("a", config)

    @rule(name=names, config=configs)
    def put(self, name: str, config: dict[str, object]) -> None:
        super().put(name, config)

    @rule(
        name=names,
        batch=st.lists(record, min_size=1, max_size=5),
        codec=st.sampled_from((0, 0, 1)),
        producer=st.sampled_from((-1, -1, 7, 8)),
        odd=st.sampled_from(("", "", "", "retry", "skip", "epoch")),
        early=st.sampled_from((0, 0, -5000, 7000)),
    )
    def produce(
        self,
        name: str,
        batch: list[tuple[bytes | None, bytes | None]],
        codec: int,
        producer: int,
        odd: str,
        early: int,
    ) -> None:
        engine, topic = self.world.engine, self.topics.get(name)
        sent = None if topic is None or producer < 0 else _of(topic).known(producer)
        epoch = sequence = -1
        if producer >= 0:
            epoch, sequence = (0, 0) if sent is None else (sent.epoch, sum(sent.batches[-1][:2]))
        wrong, again = None, None
        if sent is not None and odd == "skip":
            sequence, wrong = sequence + 3, "out_of_order"
        elif sent is not None and odd == "epoch":
            epoch, sequence = epoch + 1, 0
        elif sent is not None and odd == "retry":
            again = sent.batches[len(sent.batches) // 2]
            sequence, batch = again[0], [(None, b"again")] * again[1]
        times = [self.now + early + i for i in range(len(batch))]
        body = make([(key, value) for key, value in batch], ts=times, codec=codec, producer=(producer, epoch, sequence))
        header = recordbatch.check(body, max_bytes=1 << 20)
        request = BatchRequest(topic=name, partition=0, header=header, body=body)
        if topic is None:
            with self._refused("topic_not_found"):
                engine.batches.append(request)
            return
        if wrong is not None:
            with pytest.raises(SequenceError) as error:
                engine.batches.append(request)
            assert error.value.kind == wrong
            return
        if again is not None:
            reply, ticket = engine.batches.append(request)
            assert (reply.deduped, reply.first_seq, reply.count) == (True, again[2], again[1])
            last = reply.first_seq + reply.count - 1
            waits = [t for t, state in topic.pending if state.head >= last] if last > topic.view.head else []
            assert ticket == max([*waits[:1], topic.created_ticket if topic.created_ticket > self.synced else 0])
            return
        state, cap, count = self._unexpired(topic), topic.config, len(batch)
        if cap.discard == "reject":
            if (cap.cap_records and count > cap.cap_records) or (cap.cap_bytes and len(body) > cap.cap_bytes):
                with self._refused("record_too_large"):
                    engine.batches.append(request)
                return
            full = cap.cap_records and state.count + count > cap.cap_records
            if full or (cap.cap_bytes and state.nbytes + len(body) > cap.cap_bytes):
                with self._refused("topic_full"):
                    engine.batches.append(request)
                return
        reply, ticket = engine.batches.append(request)
        assert (reply.first_seq, reply.count, reply.deduped) == (state.head + 1, count, False)
        assert reply.first_seq > self.acked.get(topic.topic_id, 0), "an acked seq is never given out again"
        ts = max(self.now, state.last_ts)
        columns = recordbatch.columns(body)
        recs = []
        for i in range(count):
            share = (i + 1) * len(body) // count - i * len(body) // count
            tag = None if columns.tags is None else columns.tags[i]
            meta = None if columns.metas is None else columns.metas[i]
            seq, data = reply.first_seq + i, columns.datas[i]
            recs.append(Rec(seq, ts, data, meta, tag, stored=share, created=times[i]))
        state = state.appended(recs, cap, None)
        assert isinstance(state, BatchState)
        if producer >= 0:
            kept = sent.batches[-4:] if sent is not None and sent.epoch == epoch else []
            known = Sent(epoch, [*kept, (sequence, count, reply.first_seq)])
            if cap.durability == "ephemeral":
                state = replace(state, in_memory=state.in_memory | {producer: known})
            else:
                state = replace(state, on_disk=state.on_disk | {producer: known})
        own = ticket if ticket > topic.created_ticket else 0
        assert own > self.synced or ticket <= self.synced, "the first write of a log waits"
        self._commit(topic, state, own)
        if ticket > self.synced:
            self.unacked.append((ticket, topic.topic_id, state.head))
        else:
            self.acked[topic.topic_id] = state.head

    @rule(
        batches=st.lists(st.lists(record, min_size=1, max_size=4), min_size=2, max_size=5),
        producer=st.sampled_from((-1, 7, 7)),
        slices=st.integers(0, 3),
    )
    def produce_and_seal(
        self, batches: list[list[tuple[bytes | None, bytes | None]]], producer: int, slices: int
    ) -> None:
        for batch in batches:
            self.produce("a", batch, 0, producer, "", 0)
        self.sync()
        self.maintain(slices)

    @rule(match=filters, indexed=st.booleans())
    def delete_by_tag(self, match: TagMatch, indexed: bool) -> None:
        if indexed:
            self.index("a", 99)
        self.delete("a", None, match)

    @rule(before=st.integers(1, 12), slices=st.integers(0, 2))
    def delete_some(self, before: int, slices: int) -> None:
        topic = self._visible("a")
        if topic is not None:
            self._delete("a", DeleteRequest(topic="a", before_seq=topic.view.earliest + before))
        self.maintain(slices)

    @rule(name=names, slices=st.integers(1, 4))
    def index(self, name: str, slices: int) -> None:
        if self._visible(name) is None:
            return
        for _ in range(slices):
            if not self.world.engine.index(name):
                return

    @rule(
        match=filters, cursor=st.integers(0, 40), limit=st.integers(1, 5), indexed=st.sampled_from((True, False, False))
    )
    def read_by_tag(self, match: TagMatch, cursor: int, limit: int, indexed: bool) -> None:
        name, topic = "a", self._visible("a")
        if topic is None:
            return
        if indexed:
            self.index(name, 99)
        self._expire(topic)
        cursor += max(0, topic.view.head - 40)
        cursor = min(cursor, topic.view.head)
        wanted = [rec.seq for rec in topic.view.between(cursor, topic.view.head) if matches(match, rec.tag)]
        found: list[int] = []
        while cursor < topic.view.head:
            page = self.world.engine.diff(DiffRequest(topic=name, from_seq=cursor, limit=limit, filter=match))
            found += [part.block.base_seq + i for part in page.slices for i in range(part.start, part.stop)]
            assert page.next_from_seq > cursor
            cursor = page.next_from_seq
        assert found == wanted

    @rule(name=names, max_bytes=st.sampled_from((1, 200, 1 << 20)), ts=st.integers(-6000, 8000))
    def fetch(self, name: str, max_bytes: int, ts: int) -> None:
        topic = self._visible(name)
        if topic is None:
            return
        self._expire(topic)
        view, batches = topic.view, self.world.engine.batches
        cursor, found = view.earliest - 1, list[int]()
        while cursor < view.head:
            reply = batches.fetch(FetchRequest(topic=name, partition=0, from_seq=cursor, max_bytes=max_bytes))
            assert not reply.lost
            for part in reply.parts:
                live = (part.block.base_seq + i for i in range(part.start, part.stop) if i not in part.dead)
                found += [seq for seq in live if cursor < seq]
            assert reply.next_from_seq > cursor
            cursor = reply.next_from_seq
        assert found == list(view.live)
        since = next(((r.seq, r.time) for r in view.live.values() if r.time >= self.now + ts), None)
        assert batches.offset_at(name, 0, self.now + ts) == since
        newest = max((r.time for r in view.live.values()), default=None)
        expected = next(((r.seq, r.time) for r in view.live.values() if r.time == newest), None)
        assert batches.newest_time(name, 0) == expected

    @invariant()
    def the_cache_weighs_what_it_holds(self) -> None:
        cache = self.world.engine.blocks
        assert cache.size == sum(block.weight for block in cache._blocks.values())

    @invariant()
    def every_mark_has_its_block(self) -> None:
        engine = self.world.engine
        for topic in engine.catalog.topics.values():
            start, stop = keys.unindexed_range(topic.log.log_id)
            for store in (engine._memory, engine.writer.store):
                for key, _ in store.scan(Family.TAGS, start, stop):
                    assert topic.log.blocks.marked is not False
                    where = keys.pair(topic.log.log_id, keys.tag_run(key))
                    assert store.get(Family.BLOCKS, where) is not None


def _of(topic: Topic) -> BatchState:
    assert isinstance(topic.written, BatchState)
    return topic.written


@contextmanager
def small() -> Iterator[None]:
    """Everything that is bounded by size is so soon."""
    with (
        patch("engine_machine.Topic", BatchTopic),
        patch("topics_service.engine.maintenance.SEAL_BLOCKS", 3),
        patch("topics_service.engine.maintenance._SMALL_RECORDS", 5),
        patch("topics_service.engine.maintenance._FULL_RECORDS", 9),
        patch("topics_service.engine.maintenance._RECLAIM_SEQS", 2),
        patch("topics_service.engine.reader.NEAR", 3),
        patch("topics_service.engine.reader.WORK", 400),
        patch("topics_service.engine.log.CEILING_STEP", STEP),
    ):
        yield


def run(examples: int, steps: int, *, derandomize: bool) -> None:
    with small():
        run_machine(BatchMachine, examples, steps, derandomize=derandomize)


@pytest.mark.timeout(180)
def test_batches_are_the_model() -> None:
    run(examples=200, steps=60, derandomize=True)


@pytest.mark.soak
@pytest.mark.skipif("TOPICS_SOAK_SECONDS" not in os.environ, reason="a soak: set TOPICS_SOAK_SECONDS")
@pytest.mark.timeout(0)
def test_batches_are_the_model_for_long() -> None:
    end = time.monotonic() + float(os.environ["TOPICS_SOAK_SECONDS"])
    while time.monotonic() < end:
        run(examples=200, steps=80, derandomize=False)
