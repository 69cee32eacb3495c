"""The machine that runs the engine against a small model, over a store that crashes. See `test_machine`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product

import pytest
from engine_support import CrashStore, World, any_of, gap
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from simulation.oracle.reading import records
from simulation.oracle.topics import lose

from support.log_model import Key, LogState, Rec, matches
from topics_service.engine import config as engine_config
from topics_service.engine.errors import TopicsError
from topics_service.engine.model import (
    AppendRequest,
    Batch,
    ConfigInput,
    DeleteRequest,
    DiffRequest,
    TagMatch,
    TopicConfig,
)

STEP = 8
TAGS = (None, b"", b"a", b"a\x00", b"ab", b"b\xff")
NODES = (None, b"n1", b"n2")
names = st.sampled_from(("a", "a", "a", "b"))
configs = any_of(
    durability=("ephemeral", "ephemeral", "disk", "memory", "fsync"),
    ttl_ms=(0, 0, 100),
    cap_records=(0, 0, 3, 8),
    cap_bytes=(0, 0, 0, 60),
    discard=("old", "old", "reject"),
    idempotency_window_ms=(0, 100, 120_000),
    dedupe_node=(True, True, False),
)
one_record = st.sampled_from(list(product(range(1, 13), TAGS, NODES, (None, None, b"{}", b'{"a":1}'))))
filters = st.sampled_from(
    [None, *(TagMatch("Eq", tag) for tag in TAGS if tag is not None)]
    + [TagMatch("Glob", tag) for tag in (b"", b"a", b"a\x00", b"b")]
)


@dataclass
class Topic:
    """The model of one topic: what was written last, what readers see, and what waits for an fsync in between."""

    topic_id: str
    config: TopicConfig
    created_ticket: int
    written: LogState = field(default_factory=LogState)
    view: LogState = field(default_factory=LogState)
    pending: list[tuple[int, LogState]] = field(default_factory=list)


class EngineMachine(RuleBasedStateMachine):
    """Every rule does one call on both and compares the outcome; the invariant compares what readers see."""

    def __init__(self) -> None:
        super().__init__()
        self.store = CrashStore()
        self.world = World(self.store, cache_bytes=2000)
        self.topics: dict[str, Topic] = {}
        self.acked: dict[str, int] = {}  # topic id -> highest acked seq: never given out again
        self.unacked: list[tuple[int, str, int]] = []
        self.base = self.store.writes  # batches written before the first ticket of this engine
        self.latest = self.world.clock.now
        self.history: list[tuple[int, dict[str, Topic]]] = []
        self.serial = 0
        self._started()

    # ------------------------------------------------------------ bookkeeping

    @property
    def now(self) -> int:
        return self.world.clock.now

    @property
    def synced(self) -> int:
        return self.world.engine.writer.synced

    def _started(self) -> None:
        self.base = self.store.writes - self.world.engine.writer.written
        self.history = [(self.store.synced, self._kept())]  # looking may have written, but nothing that shows

    def _kept(self) -> dict[str, Topic]:
        return {n: Topic(t.topic_id, t.config, 0, t.written) for n, t in self.topics.items()}

    def _remember(self) -> None:
        """Note the state that a crash right now would leave."""
        self.history.append((self.store.writes, self._kept()))

    def _commit(self, topic: Topic, state: LogState, ticket: int) -> None:
        """The model of Log.commit: durable for its class, then visible, then acked."""
        topic.written = state
        if ticket > self.synced:
            topic.pending.append((ticket, state))
        else:
            assert not topic.pending, "a change never overtakes one that waits"
            topic.view = state
        self._remember()

    def _published(self) -> None:
        for topic in self.topics.values():
            while topic.pending and topic.pending[0][0] <= self.synced:
                topic.view = topic.pending.pop(0)[1]
        for ticket, topic_id, seq in self.unacked:
            if ticket <= self.synced:
                self.acked[topic_id] = max(seq, self.acked.get(topic_id, 0))
        self.unacked = [entry for entry in self.unacked if entry[0] > self.synced]

    def _expire(self, topic: Topic) -> None:
        """Somebody looked: what has expired by now never comes back."""
        if topic.view.expired(topic.config.ttl_ms, self.now, None) is not topic.view:
            self._change_all(topic, lambda state: state.expired(topic.config.ttl_ms, self.now, None))

    def _change_all(self, topic: Topic, change: Callable[[LogState], LogState]) -> None:
        topic.view = change(topic.view)
        topic.pending = [(ticket, change(state)) for ticket, state in topic.pending]
        topic.written = topic.pending[-1][1] if topic.pending else topic.view

    def _unexpired(self, topic: Topic) -> LogState:
        return topic.written.expired(topic.config.ttl_ms, self.now, None)

    def _visible(self, name: str) -> Topic | None:
        topic = self.topics.get(name)
        return None if topic is None or topic.created_ticket > self.synced else topic

    @contextmanager
    def _refused(self, code: str) -> Iterator[None]:
        with pytest.raises(TopicsError) as error:
            yield
        assert error.value.reason.code == code

    # ------------------------------------------------------------------ rules

    @initialize(config=configs)
    def first_topic(self, config: dict[str, object]) -> None:
        self.put("a", config)

    @rule(name=names, config=configs)
    def put(self, name: str, config: dict[str, object]) -> None:
        topic = self.topics.get(name)
        reply, ticket = self.world.engine.put_topic(name, ConfigInput(**config))  # type: ignore[arg-type]
        assert reply.created == (topic is None)
        if topic is None:
            assert ticket > self.synced
            self.topics[name] = Topic(reply.identity.topic_id, reply.config, ticket)
            self._remember()
            return
        resolved = engine_config.resolve(name, ConfigInput(**config), topic.config)  # type: ignore[arg-type]
        assert reply.config == resolved
        if resolved == topic.config:
            assert not topic.pending or ticket >= topic.pending[-1][0], "acked before what it repeats is durable"
            return
        state = self._unexpired(topic).expired(resolved.ttl_ms, self.now, None)
        if resolved.discard == "old":
            state = state.evicted(resolved, None)
        if resolved.durability != "ephemeral":
            state = state.materialized()
        topic.config = resolved
        assert ticket > self.synced
        self._commit(topic, state, ticket)

    @rule(durability=st.sampled_from(("ephemeral", "ephemeral", "disk", "fsync")))
    def change_class(self, durability: str) -> None:
        topic = self.topics.get("a")
        if topic is not None:
            kept = ("ttl_ms", "cap_records", "cap_bytes", "discard", "idempotency_window_ms", "dedupe_node")
            self.put("a", {"durability": durability, **{field: getattr(topic.config, field) for field in kept}})

    @rule(tags=st.lists(st.sampled_from((None, b"a", b"ab")), min_size=2, max_size=5), synced=st.booleans())
    def append_one_by_one(self, tags: list[bytes | None], synced: bool) -> None:
        for tag in tags:
            self.append("a", [(2, tag, None, None)], None)
        if synced:
            self.sync()

    @rule(keep=st.integers(0, 3))
    def delete_most(self, keep: int) -> None:
        topic = self._visible("a")
        if topic is not None:
            self._delete("a", DeleteRequest(topic="a", before_seq=topic.view.head + 1 - keep))

    @rule(name=names, batch=st.lists(one_record, min_size=1, max_size=5), key=st.sampled_from((None, None, "k1", "k2")))
    def append(
        self, name: str, batch: list[tuple[int, bytes | None, bytes | None, bytes | None]], key: str | None
    ) -> None:
        engine, topic = self.world.engine, self.topics.get(name)
        datas = []
        for size, *_ in batch:
            self.serial += 1
            datas.append(str(self.serial).encode().rjust(size, b"."))
        tags, nodes, metas = (list(column) for column in zip(*(each[1:] for each in batch), strict=True))
        columns = Batch(
            datas=datas,
            tags=tags if any(tag is not None for tag in tags) else None,
            nodes=nodes if any(node is not None for node in nodes) else None,
            metas=metas if any(meta is not None for meta in metas) else None,
        )
        request = AppendRequest(topic=name, batch=columns, idempotency_key=key)
        if topic is None:
            writes = self.store.writes
            reply, ticket = engine.append(request)
            assert reply.created
            identity = engine.catalog.topics[name].identity
            topic = self.topics[name] = Topic(identity.topic_id, TopicConfig(), writes + 1 - self.base)
            assert ticket == topic.created_ticket == self.store.writes - self.base, "one write makes it and fills it"
        else:
            known = None if key is None else topic.written.keys.get(key)
            if known is not None and self.now - known.created <= topic.config.idempotency_window_ms:
                reply, ticket = engine.append(request)
                assert (reply.first_seq, reply.count, reply.head_seq) == (known.first, known.count, known.head)
                assert reply.deduped
                waits = [t for t, state in topic.pending if state.head >= reply.last_seq] or [0]
                first = waits[0] if reply.last_seq > topic.view.head else 0
                assert ticket == max(first, topic.created_ticket if topic.created_ticket > self.synced else 0)
                return
            state = self._unexpired(topic)
            nbytes = sum(len(data) + len(meta or b"") for data, meta in zip(datas, metas, strict=True))
            cap = topic.config
            if cap.discard == "reject":
                if (cap.cap_records and len(datas) > cap.cap_records) or (cap.cap_bytes and nbytes > cap.cap_bytes):
                    with self._refused("record_too_large"):
                        engine.append(request)
                    return
                full = cap.cap_records and state.count + len(datas) > cap.cap_records
                if full or (cap.cap_bytes and state.nbytes + nbytes > cap.cap_bytes):
                    with self._refused("topic_full"):
                        engine.append(request)
                    return
            reply, ticket = engine.append(request)
            assert not reply.created
        assert not reply.deduped
        config = topic.config
        state = self._unexpired(topic)
        assert reply.first_seq == state.head + 1, "seqs are dense"
        assert reply.first_seq > self.acked.get(topic.topic_id, 0), "an acked seq is never given out again"
        assert reply.fsync_gated == (config.durability == "fsync")
        assert ticket > self.synced or config.durability != "fsync"
        ts = max(self.now, state.last_ts)
        columns_of = zip(datas, metas, tags, nodes, strict=True)
        recs = [Rec(seq, ts, *fields) for seq, fields in enumerate(columns_of, reply.first_seq)]
        assert reply.head_seq == recs[-1].seq
        state = state.appended(recs, config, None)
        if key is not None:
            end = self.now + config.idempotency_window_ms + 1
            made = Key(reply.first_seq, len(datas), state.head, self.now, end, None)
            state = replace(state, keys={**state.keys, key: made})
        # A write may wait only for its topic's creation.
        own = ticket if reply.created or ticket > topic.created_ticket else 0
        if own > self.synced or ticket <= self.synced:
            self._commit(topic, state, own)
        else:
            raise AssertionError("the first write of a log waits for its ceiling or its fsync")
        if ticket > self.synced:
            self.unacked.append((ticket, topic.topic_id, reply.head_seq))
        else:
            self.acked[topic.topic_id] = reply.head_seq

    @rule(name=names, before=st.none() | st.integers(0, 40), match=filters)
    def delete(self, name: str, before: int | None, match: TagMatch | None) -> None:
        topic = self._visible(name)
        if before is not None and topic is not None:
            before += max(0, topic.view.head - 30)
        self._delete(name, DeleteRequest(topic=name, before_seq=before, match=match))

    def _delete(self, name: str, request: DeleteRequest) -> None:
        engine, topic = self.world.engine, self._visible(name)
        before, match = request.before_seq, request.match
        if before is None and match is None:
            with self._refused("invalid_request"):
                engine.delete_records(request)
            return
        if topic is None:
            with self._refused("topic_not_found"):
                engine.delete_records(request)
            return
        bound = topic.view.head + 1 if before is None else min(before, topic.view.head + 1)
        state = self._unexpired(topic)
        doomed = [rec.seq for rec in state.between(0, bound - 1) if matches(match, rec.tag)]
        reply, ticket = engine.delete_records(request)
        assert reply.deleted == len(doomed)
        if doomed:
            state = state.without(doomed)
            self._commit(topic, state, ticket)
        else:
            assert ticket in (0, engine.expiry_ticket(name)), "only for what has just expired"
            self._expire(topic)
            state = topic.view
        found = (reply.earliest_seq, reply.head_seq, reply.count, reply.bytes)
        assert found == (state.earliest, state.head, state.count, state.nbytes)

    @rule(name=names, really=st.sampled_from((False, False, False, True)))
    def delete_topic(self, name: str, really: bool) -> None:
        if not really:
            return
        reply, _ = self.world.engine.delete_topic(name)
        assert reply.deleted == (name in self.topics)
        if self.topics.pop(name, None) is not None:
            self._remember()

    @rule(
        name=names,
        cursor=st.integers(0, 60),
        limit=st.integers(1, 6),
        max_bytes=st.sampled_from((1, 20, 1 << 20)),
        nodes=st.sampled_from(((), (b"n1",), (b"n1", b"n2"))),
    )
    def read(self, name: str, cursor: int, limit: int, max_bytes: int, nodes: tuple[bytes, ...]) -> None:
        topic = self._visible(name)
        request = DiffRequest(topic=name, from_seq=cursor, limit=limit, max_batch_bytes=max_bytes, nodes=nodes)
        if topic is None:
            with self._refused("topic_not_found"):
                self.world.engine.diff(request)
            return
        self._expire(topic)
        self._same_page(topic, request)

    @rule(ms=st.sampled_from((1, 51, 60, 101, -20, -90)))
    def pass_time(self, ms: int) -> None:
        self.world.clock.advance(ms)
        self.latest = max(self.latest, self.now)

    @rule()
    def sync(self) -> None:
        self.world.engine.sync()
        self.history = self.history[-1:]
        self._published()

    @precondition(lambda self: any(topic.pending for topic in self.topics.values()))
    @rule(data=st.data())
    def finish_an_earlier_fsync(self, data: st.DataObject) -> None:
        tickets = sorted({ticket for topic in self.topics.values() for ticket, _ in topic.pending})
        ticket = data.draw(st.sampled_from(tickets))
        self.store.sync_to(self.base + ticket)
        self.world.engine.synced(ticket)
        self._published()

    @rule(slices=st.integers(1, 3))
    def maintain(self, slices: int) -> None:
        for _ in range(slices):
            self.world.engine.maintain()

    @rule()
    def sweep(self) -> None:
        self.world.engine.sweep()
        for topic in self.topics.values():
            if topic.config.ttl_ms:
                self._expire(topic)
            due = [key for key, value in topic.written.keys.items() if value.expires < self.now]
            self._change_all(topic, partial(_without_keys, due))
        self._remember()

    @rule(how=st.sampled_from(("close", "kill", "kill", "power", "power")), data=st.data())
    def restart(self, how: str, data: st.DataObject) -> None:
        self._crash()
        if how == "close":
            self.world.restart()
        elif how == "kill":
            self.world.kill()
        else:
            writes = data.draw(st.integers(self.store.synced, self.store.writes))
            self.topics = [kept for at, kept in self.history if at <= writes][-1]
            self.world.cut_power(writes)
        self._recover(how)

    # ------------------------------------------------------------- recovery

    def _crash(self) -> None:
        """An old clock after a crash would make expired records young again: out of scope."""
        self.world.clock.now = self.latest
        self.unacked.clear()

    def _recover(self, how: str) -> None:
        engine = self.world.engine
        assert sorted(engine.catalog.topics) == sorted(self.topics), "the catalog"
        recovered: dict[str, Topic] = {}
        for name, topic in self.topics.items():
            actual = engine.get_topic(name, touch=False)
            assert actual.identity.topic_id == topic.topic_id
            assert actual.config == topic.config
            log, slack = engine.catalog.topics[name].log, 2 * STEP + 5
            state, lost = lose(
                topic.written, topic.config, log, self.acked.get(topic.topic_id, 0), slack, how=how,
                power=how == "power", now=self.now, hold=None,
            )  # fmt: skip
            if lost:
                gaps = [gap(self.world.diff(at, topic=name)) for at in range(state.head)]
                assert gaps == [state.lost_at(at) for at in range(state.head)]
            found = (actual.earliest_seq, actual.count, actual.bytes)
            assert found == (state.earliest, state.count, state.nbytes), how
            state = replace(state, last_ts=actual.last_write_ts or 0)
            assert state.last_ts >= max((rec.ts for rec in state.live.values()), default=0)
            recovered[name] = Topic(topic.topic_id, topic.config, 0, state, state)
        self.topics = recovered
        self._started()

    # ----------------------------------------------------------- comparisons

    def _same_page(self, topic: Topic, request: DiffRequest) -> int:
        """Read a page; return its cursor."""
        view, cursor, found = topic.view, request.from_seq, self.world.engine.diff(request)
        lost = view.lost_at(cursor)
        if lost is not None:
            cursor = view.earliest - 1 if lost[2] == "recreated" else lost[1]
        nodes = request.nodes if topic.config.dedupe_node else ()
        page = view.page(cursor, view.head, request.limit, request.max_batch_bytes or 1 << 20, nodes)
        assert [rec for part in found.slices for rec in records(part)] == list(page.taken)
        assert (found.next_from_seq, gap(found)) == (page.next, lost)
        assert found.caught_up == (page.next == view.head)
        assert (found.head_seq, found.earliest_seq) == (view.head, view.earliest)
        return page.next

    @invariant()
    def readers_see_the_model(self) -> None:
        for name in ("a", "b"):
            topic = self._visible(name)
            if topic is None:
                with self._refused("topic_not_found"):
                    self.world.engine.get_topic(name, touch=False)
                continue
            self._expire(topic)
            found, view = self.world.state(name), topic.view
            assert (found.head_seq, found.earliest_seq, found.count, found.bytes) == (
                view.head,
                view.earliest,
                view.count,
                view.nbytes,
            )
            assert found.last_write_ts == (view.last_ts or None)
            cursor = 0
            while cursor < view.head:  # every loss on the way shows as one tombstone
                following = self._same_page(topic, DiffRequest(topic=name, from_seq=cursor, limit=4))
                assert following > cursor
                cursor = following
        total = sum(topic.written.nbytes for topic in self.topics.values() if topic.created_ticket <= self.synced)
        assert self.world.engine.writer.total_bytes >= total


def _without_keys(gone: list[str], state: LogState) -> LogState:
    return replace(state, keys={key: value for key, value in state.keys.items() if key not in gone})
