"""Watchers against `diff`: every frame is what `diff` gives from the watcher's cursor, whatever happens in between."""

import os
import sys
import time
from dataclasses import dataclass, field
from itertools import product
from unittest.mock import patch

import pytest
from engine_support import CrashStore, World, any_of, records, run_machine
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from topics_service.engine.model import ConfigInput, DeleteRequest, DiffReply, DiffRequest, TagMatch, Tombstone
from topics_service.engine.topic import Topic
from topics_service.engine.transaction import Transaction
from topics_service.engine.watch.core import Watch
from topics_service.engine.watch.frames import (
    CaughtUpFrame,
    RecordsFrame,
    TombstoneFrame,
    TopicDeletedFrame,
    WatchFrame,
    WatchRequest,
    WatchTopic,
)

NAMES = ("a", "a1", "b")
names = st.sampled_from(NAMES)
configs = any_of(
    durability=("ephemeral", "disk", "disk", "memory", "fsync"),
    ttl_ms=(0, 0, 100),
    cap_records=(0, 0, 3, 8),
    cap_bytes=(0, 0, 0, 40),
    dedupe_node=(True, True, False),
    priority=(None, None, -500, 700),
)
one_record = st.sampled_from(list(product(range(1, 13), (None, b"a", b"ab", b"b"), (None, b"n1", b"n2"))))
matches = st.sampled_from((TagMatch("Eq", b"a"), TagMatch("Glob", b"a"), TagMatch("Glob", b""), TagMatch("Eq", b"z")))
starts = st.sampled_from((0, 0, 0, 1, 5, 40)).map(lambda seq: WatchTopic(from_seq=seq)) | st.just(WatchTopic(tail=True))
requests = st.fixed_dictionaries(
    {
        "topics": st.dictionaries(st.sampled_from((*NAMES, "a*", "*")), starts, min_size=1, max_size=4),
        "nodes": st.sampled_from(((), (), (b"n1",), (b"n1", b"n2"))),
        "filter": st.none() | st.none() | matches,
        "limit": st.sampled_from((1, 2, 3, 256)),
        "max_batch_bytes": st.sampled_from((1, 20, None)),
        "strong": st.booleans(),
    }
)


@dataclass
class Place:
    """The model of one topic that a watcher follows. `old` means that the cursor is one of an earlier instance, whose
    number is `epoch`."""

    number: int
    cursor: int
    epoch: int = 0
    old: bool = False
    live: bool = False
    opening: bool = True
    stale: int | None = None

    def __post_init__(self) -> None:
        self.epoch = self.epoch or self.number

    def pass_silently(self, cursor: int) -> None:
        """The watcher reads a page that gives nothing."""
        self.cursor, self.stale, self.opening = cursor, None, False


@dataclass
class Session:
    """What the API keeps between two streams, as it was after some frame."""

    cursors: dict[str, int]
    epochs: dict[str, int]
    heads: dict[str, int]


@dataclass
class Subscriber:
    """A watcher and its model. `gone` are topics whose end must be told first, with their heads; `ended` those whose
    end was told, of which only named ones are remembered after the next frame."""

    request: WatchRequest
    watch: Watch
    wakes: list[str]
    places: dict[str, Place] = field(default_factory=dict)
    gone: dict[str, int] = field(default_factory=dict)
    ended: dict[str, int] = field(default_factory=dict)
    resting: bool = False
    history: list[Session] = field(default_factory=list)

    @property
    def prefixes(self) -> tuple[str, ...]:
        return tuple(key[:-1] for key in self.request.topics if key.endswith("*"))


class WatchMachine(RuleBasedStateMachine):
    """Every frame is checked at the moment it is given, and every wait against what could be told."""

    def __init__(self) -> None:
        super().__init__()
        self.store = CrashStore()
        self.world = World(self.store, cache_bytes=2000)
        self.engine = self.world.engine
        self.subscribers: list[Subscriber] = []
        self.last_heads: dict[int, int] = {}  # instance -> visible head when it was deleted
        self.writes: list[tuple[int, int, int]] = []  # ticket, instance, head
        self.durable: dict[int, int] = {}  # instance -> head that an fsync has covered
        self.base = self.store.writes - self.engine.writer.written

    # ---------------------------------------------------------------- the log

    @initialize(config=configs)
    def first_topic(self, config: dict[str, object]) -> None:
        self.put("a", config)
        self.sync(0)

    @rule(name=names, config=configs)
    def put(self, name: str, config: dict[str, object]) -> None:
        self.engine.put_topic(name, ConfigInput(**config))  # type: ignore[arg-type]
        self._wrote(name)

    @rule(name=names, batch=st.lists(one_record, min_size=1, max_size=5))
    def append(self, name: str, batch: list[tuple[int, bytes | None, bytes | None]]) -> None:
        sizes, tags, nodes = zip(*batch, strict=True)
        self.world.try_append(*sizes, topic=name, tags=tags, nodes=nodes)
        self._wrote(name)

    @rule(name=names, times=st.integers(2, 6))
    def append_one_by_one(self, name: str, times: int) -> None:
        for _ in range(times):
            self.append(name, [(2, b"a", None)])

    @rule(name=names, before=st.none() | st.integers(0, 12), match=st.none() | matches)
    def delete(self, name: str, before: int | None, match: TagMatch | None) -> None:
        topic = self._visible(name)
        if topic is not None and not (before is None and match is None):
            low = None if before is None else before + max(0, topic.log.view.head - 10)
            self.engine.delete_records(DeleteRequest(topic=name, before_seq=low, match=match))
            self._wrote(name)

    @rule(name=names)
    def delete_topic(self, name: str) -> None:
        topic = self.engine.catalog.find(name)
        if topic is not None:
            self.last_heads[topic.number] = topic.log.view.head
            self.engine.delete_topic(name)

    @rule(name=names, times=st.integers(0, 6), synced=st.booleans(), which=st.integers(0, 3))
    def recreate_while_a_session_is_closed(self, name: str, times: int, synced: bool, which: int) -> None:
        subscriber = self._subscriber(which)
        self.delete_topic(name)
        if synced and subscriber is not None:
            self._drain(subscriber)
        self.append_one_by_one(name, times + 1)
        self.sync(0)
        self.open_again(which, 1)

    @rule(name=names, count=st.integers(1, 3))
    def burn(self, name: str, count: int) -> None:
        """Seqs that never hold a record, as a router leaves them for what its source has lost."""
        topic = self._visible(name)
        if topic is not None:
            with Transaction(self.engine.writer) as tx:
                topic.log.skip_seqs(tx, topic.log.begin(topic.config, self.world.clock.now), count, topic.config)
                tx.commit()
            self._wrote(name)

    @rule(name=names, before=st.integers(1, 4), behind=st.integers(1, 4))
    def append_around_an_fsync(self, name: str, before: int, behind: int) -> None:
        self.append_one_by_one(name, before)
        self.sync(0)
        self.append_one_by_one(name, behind)

    @rule(ms=st.sampled_from((1, 60, 101, 5000, -80)))
    def pass_time(self, ms: int) -> None:
        self.world.clock.advance(ms)

    @rule(back=st.sampled_from((0, 0, 1, 3)))
    def sync(self, back: int) -> None:
        """An fsync that covers all but the last `back` writes."""
        ticket = max(self.engine.writer.synced, self.engine.writer.written - back)
        self.store.sync_to(self.base + ticket)
        for written, number, head in self.writes:
            if written <= ticket:
                self.durable[number] = max(head, self.durable.get(number, 0))
        self.writes = [write for write in self.writes if write[0] > ticket]
        self.engine.synced(ticket)
        self._join()

    @rule()
    def maintain(self) -> None:
        for _ in range(3):
            self.engine.maintain()
        self.engine.sweep()

    # ----------------------------------------------------------- the watchers

    @rule(given=requests)
    def open(self, given: dict[str, object]) -> None:
        if len(self.subscribers) < 4:
            self._open(WatchRequest(**given, lenient=True))  # type: ignore[arg-type]

    @rule(given=requests, cursor=st.dictionaries(names, st.integers(0, 12), max_size=3))
    def open_with_a_cursor(self, given: dict[str, object], cursor: dict[str, int]) -> None:
        if len(self.subscribers) < 4:
            self._open(WatchRequest(**given, cursor=cursor, lenient=True))  # type: ignore[arg-type]

    @rule(which=st.integers(0, 3), back=st.integers(0, 6))
    def open_again(self, which: int, back: int) -> None:
        """A session that goes on after some frame, of which not all that followed arrived."""
        subscriber = self._subscriber(which)
        if subscriber is not None:
            session = subscriber.history[max(0, len(subscriber.history) - 1 - back)]
            self._close(subscriber)
            self._open(subscriber.request, session)

    @rule(which=st.integers(0, 3), frames=st.integers(1, 8))
    def pull(self, which: int, frames: int) -> None:
        subscriber = self._subscriber(which)
        for _ in range(frames):
            if subscriber is not None and not self._pull(subscriber):
                return

    @rule(which=st.integers(0, 3))
    def drain(self, which: int) -> None:
        subscriber = self._subscriber(which)
        if subscriber is not None:
            self._drain(subscriber)

    @rule(which=st.integers(0, 3), key=st.sampled_from((*NAMES, "a*", "*")))
    def drop(self, which: int, key: str) -> None:
        subscriber = self._subscriber(which)
        if subscriber is None or subscriber.gone or (key in NAMES and subscriber.prefixes):
            return
        if key.endswith("*"):
            if key in subscriber.request.topics:
                assert subscriber.watch.drop(key)
                topics = {name: start for name, start in subscriber.request.topics.items() if name != key}
                subscriber.request = WatchRequest(topics=topics)
                self._close(subscriber)  # what it follows now is seen in the unit tests
            return
        assert subscriber.watch.drop(key) == (key in subscriber.places)
        if subscriber.places.pop(key, None):
            subscriber.ended.pop(key, None)
        subscriber.history = subscriber.history[-1:]
        for known in (vars(subscriber.history[0])).values() if subscriber.history else ():
            known.pop(key, None)

    @rule(which=st.integers(0, 3))
    def close(self, which: int) -> None:
        subscriber = self._subscriber(which)
        if subscriber is not None:
            self._close(subscriber)

    # ------------------------------------------------------------- invariants

    @invariant()
    def who_has_something_to_tell_is_awake(self) -> None:
        for subscriber in self.subscribers:
            if subscriber.resting and not subscriber.wakes:
                self._check_rest(subscriber)
                assert subscriber.watch.finished == (not subscriber.places and not subscriber.prefixes)

    def teardown(self) -> None:
        """In the end everybody is caught up."""
        if sys.exc_info()[0] is not None:
            return  # it failed before
        for _ in range(2):  # the first may write what has expired, and strong watchers wait for the fsync of that
            self.sync(0)
            for subscriber in self.subscribers:
                self._drain(subscriber)
        for subscriber in self.subscribers:
            assert not subscriber.gone
            for name, place in subscriber.places.items():
                topic = self._visible(name)
                assert topic is not None
                assert topic.number == place.number
                assert place.live
                assert place.cursor == topic.log.view.head
            for topic in self.engine.catalog.topics.values():
                if topic.name.startswith(subscriber.prefixes):
                    assert topic.name in subscriber.places
            self.world.clock.advance(1)
        for subscriber in list(self.subscribers):
            self._close(subscriber)
        assert all(not topic.log._parked for topic in self.engine.catalog.topics.values())
        assert self.engine.catalog.on_created == []

    # -------------------------------------------------------------- internals

    def _visible(self, name: str) -> Topic | None:
        topic = self.engine.catalog.find(name)
        return None if topic is None or self.engine.catalog.unsynced(topic) else topic

    def _subscriber(self, which: int) -> Subscriber | None:
        return self.subscribers[which % len(self.subscribers)] if self.subscribers else None

    def _wrote(self, name: str) -> None:
        topic = self.engine.catalog.find(name)
        assert topic is not None
        self.writes.append((self.engine.writer.written, topic.number, topic.log.state.head))

    def _join(self) -> None:
        """Topics that have become visible join those who follow a pattern."""
        for subscriber in self.subscribers:
            for name in NAMES:
                topic = self._visible(name)
                if name in subscriber.gone:
                    continue  # it joins when that was told
                if topic is not None and name.startswith(subscriber.prefixes) and name not in subscriber.places:
                    subscriber.places[name] = Place(topic.number, 0, opening=False)
                    subscriber.ended.pop(name, None)

    def _open(self, request: WatchRequest, session: Session | None = None) -> None:
        wakes: list[str] = []
        known: dict[str, int] | None = None
        if session is not None:
            known = session.heads
            request = WatchRequest(
                **{key: getattr(request, key) for key in request.__struct_fields__ if key != "cursor"},
                cursor=session.cursors,
            )
        watch = self.engine.watch(request, wakes.append, epochs=session and session.epochs, heads=known)
        subscriber = Subscriber(request, watch, wakes)
        for name in NAMES:
            topic, wanted = self._visible(name), name in request.topics or name.startswith(subscriber.prefixes)
            if not wanted or (known is not None and name not in known and not name.startswith(subscriber.prefixes)):
                continue
            if topic is None:
                if known is not None and name in known:
                    subscriber.gone[name] = known[name]
                continue
            cursor = self._start(request, name, topic.log.visible(topic.config, self.world.clock.now).head, known)
            epoch = topic.number if session is None else session.epochs.get(name, topic.number)
            subscriber.places[name] = Place(topic.number, cursor, epoch, old=epoch != topic.number)
        assert list(watch.positions) == sorted(subscriber.places)
        assert [position.from_seq for position in watch.positions.values()] == [
            subscriber.places[name].cursor for name in watch.positions
        ]
        assert set(watch.cursors) == {*subscriber.places, *subscriber.gone}
        subscriber.history.append(self._session(watch))
        self.subscribers.append(subscriber)

    @staticmethod
    def _start(request: WatchRequest, name: str, head: int, known: dict[str, int] | None) -> int:
        if name in request.cursor:
            return request.cursor[name]
        if known is not None and name not in known:
            return 0
        given = request.topics.get(name)
        if given is None:
            key = max((key for key in request.topics if "*" in key and name.startswith(key[:-1])), key=len)
            if any(other.startswith(key[:-1]) for other in request.cursor):
                return 0
            given = request.topics[key]
        return head if given.tail else given.from_seq

    def _close(self, subscriber: Subscriber) -> None:
        subscriber.watch.close()
        self.subscribers.remove(subscriber)

    @staticmethod
    def _session(watch: Watch) -> Session:
        return Session(dict(watch.cursors), dict(watch.epochs), dict(watch.heads))

    def _drain(self, subscriber: Subscriber) -> None:
        for _ in range(2000):
            if not self._pull(subscriber) and not subscriber.wakes:
                return
        raise AssertionError("the watch never comes to rest")

    def _pull(self, subscriber: Subscriber) -> bool:
        """One frame, checked; False if there was none."""
        subscriber.wakes.clear()
        subscriber.ended = {n: head for n, head in subscriber.ended.items() if n in subscriber.request.topics}
        watch = subscriber.watch
        frame = watch.next()
        for name, place in subscriber.places.items():
            if self._is_current(name, place):
                moved = isinstance(frame, RecordsFrame | TombstoneFrame) and frame.topic == name
                self._check_silence(subscriber, name, None if moved else watch.cursors[name])
        if frame is None:
            subscriber.resting = not subscriber.wakes
            if subscriber.resting:
                self._check_rest(subscriber)
            assert not subscriber.gone
        else:
            subscriber.resting = False
            self._check(subscriber, frame)
        for name, place in subscriber.places.items():
            assert watch.cursors[name] == place.cursor
            assert watch.epochs[name] == place.epoch
        heads = {
            name: self.engine.catalog.topics[name].log.view.head if self._is_current(name, place) else None
            for name, place in subscriber.places.items()
        }
        for name, head in (subscriber.gone | subscriber.ended | heads).items():
            assert head is None or watch.heads[name] == head
        assert set(watch.cursors) == {*subscriber.places, *subscriber.gone, *subscriber.ended}
        if frame is not None:
            subscriber.history.append(self._session(watch))
        return frame is not None

    def _is_current(self, name: str, place: Place) -> bool:
        topic = self.engine.catalog.find(name)
        return topic is not None and topic.number == place.number

    def _check_rest(self, subscriber: Subscriber) -> None:
        """Nothing is there to be told; but where an fsync was asked for, its end may be waited for."""
        due = [name for name in subscriber.places if self._is_due(subscriber, name)]
        topics = [self.engine.catalog.find(name) for name in due]
        assert all(topic is not None and topic.log._asked is not None for topic in topics), f"{due} should be told"

    def _page(self, subscriber: Subscriber, name: str, cursor: int | None = None) -> tuple[DiffReply, int]:
        """What `diff` gives from the watcher's cursor, or another, up to the seq that it may see; and that seq."""
        place, request, topic = subscriber.places[name], subscriber.request, self.engine.catalog.topics[name]
        head = topic.log.visible(topic.config, self.world.clock.now).head
        from_seq = head + 1 if place.old else place.cursor if cursor is None else cursor
        page = self.engine.diff(
            DiffRequest(
                topic=name, from_seq=from_seq, limit=request.limit, nodes=request.nodes, filter=request.filter,
                max_batch_bytes=(1 << 18) if request.max_batch_bytes is None else request.max_batch_bytes,
            )
        )  # fmt: skip
        end = head
        if request.strong and topic.config.durability != "ephemeral":
            end = min(end, topic.log.durable_head)
            assert end <= self.durable.get(topic.number, 0), "that is not durable"
        if end < head and from_seq <= head:
            page = _cut(page, max(end, from_seq))
        return page, end

    def _is_due(self, subscriber: Subscriber, name: str) -> bool:
        """Whether there is something to tell of the topic."""
        place = subscriber.places[name]
        if not self._is_current(name, place):
            return True
        cursor = place.cursor
        while True:
            page, end = self._page(subscriber, name, cursor)
            if page.slices or page.tombstone is not None:
                return True
            if page.next_from_seq == cursor:
                return not place.live and page.caught_up and end == page.head_seq
            cursor = page.next_from_seq

    def _check_silence(self, subscriber: Subscriber, name: str, cursor: int | None) -> None:
        """Move over pages that give nothing, up to this cursor, or (None) as far as it goes."""
        place = subscriber.places[name]
        while place.cursor != cursor and not place.old:
            page, _ = self._page(subscriber, name)
            if page.slices or page.tombstone is not None or page.next_from_seq == place.cursor:
                break
            place.pass_silently(page.next_from_seq)
        assert cursor is None or place.cursor == cursor, f"the cursor of {name} moved over what should be told"

    def _check(self, subscriber: Subscriber, frame: object) -> None:
        assert isinstance(frame, WatchFrame)
        name = frame.topic
        if isinstance(frame, TopicDeletedFrame):
            self._check_deleted(subscriber, frame)
            return
        assert not subscriber.gone, "what has gone is told first"
        place = subscriber.places[name]
        assert self._is_current(name, place), "what comes is of the instance that is followed"
        page, end = self._page(subscriber, name)
        assert frame.head_seq == page.head_seq if not isinstance(frame, TombstoneFrame) else True
        if isinstance(frame, TombstoneFrame):
            lost = page.tombstone
            assert frame.tombstone == lost
            assert lost is not None
            assert frame.opening == place.opening or (subscriber.request.strong and not frame.opening)
            place.stale, place.old, place.live, place.epoch = place.cursor, False, False, place.number
            place.cursor = lost.earliest_seq - 1 if lost.reason == "recreated" else lost.gap_to
        elif isinstance(frame, RecordsFrame):
            assert page.tombstone is None
            given = DiffReply(
                topic=name, slices=frame.slices, next_from_seq=0, head_seq=0, earliest_seq=0, tombstone=None,
                records_scanned=0,
            )  # fmt: skip
            assert records(given) == records(page) != []
            assert frame.to_seq == page.next_from_seq
            expected = place.cursor if place.stale is None else place.stale
            assert frame.from_seq in ((place.cursor, expected) if subscriber.request.strong else (expected,))
            place.cursor, place.stale, place.live = page.next_from_seq, None, False
        else:
            assert isinstance(frame, CaughtUpFrame)
            assert not place.live, "once for each end of a backlog"
            assert page.tombstone is None
            assert not page.slices
            assert place.cursor == page.head_seq == end
            place.live, place.stale = True, None
        place.opening = False

    def _check_deleted(self, subscriber: Subscriber, frame: TopicDeletedFrame) -> None:
        name = frame.topic
        if subscriber.gone:
            assert name == min(subscriber.gone)
            assert frame.head_seq == subscriber.gone.pop(name)
        else:
            place = subscriber.places.pop(name)
            assert not self._is_current(name, place)
            assert frame.head_seq == self.last_heads[place.number]
        subscriber.ended[name] = frame.head_seq
        self._join()


def _cut(page: DiffReply, end: int) -> DiffReply:
    """The page as it would be if the log ended there."""
    lost, slices = page.tombstone, []
    for part in page.slices:
        stop = min(part.stop, end + 1 - part.block.base_seq)
        if stop > part.start:
            slices.append(type(part)(part.block, part.start, stop))
    if lost is not None and lost.gap_to > end:
        lost = None if lost.gap_from > end else _shorter(lost, end)
    return DiffReply(
        topic=page.topic, slices=slices, next_from_seq=min(page.next_from_seq, end), head_seq=page.head_seq,
        earliest_seq=page.earliest_seq, tombstone=lost, records_scanned=page.records_scanned,
    )  # fmt: skip


def _shorter(lost: Tombstone, end: int) -> Tombstone:
    return Tombstone(
        gap_from=lost.gap_from, gap_to=end, reason=lost.reason, missed_estimate=end - lost.gap_from + 1,
        earliest_seq=lost.earliest_seq, head_seq=lost.head_seq,
    )  # fmt: skip


def run(examples: int, steps: int, *, derandomize: bool) -> None:
    with (
        patch("topics_service.engine.maintenance.SEAL_BLOCKS", 3),
        patch("topics_service.engine.maintenance._RECLAIM_SEQS", 2),
        patch("topics_service.engine.log.CEILING_STEP", 8),
    ):
        run_machine(WatchMachine, examples, steps, derandomize=derandomize)


@pytest.mark.timeout(180)
def test_every_watcher_sees_what_diff_gives() -> None:
    run(examples=300, steps=60, derandomize=True)


@pytest.mark.soak
@pytest.mark.skipif("TOPICS_SOAK_SECONDS" not in os.environ, reason="a soak: set TOPICS_SOAK_SECONDS")
@pytest.mark.timeout(0)
def test_every_watcher_sees_what_diff_gives_for_long() -> None:
    end = time.monotonic() + float(os.environ["TOPICS_SOAK_SECONDS"])
    while time.monotonic() < end:
        run(examples=200, steps=80, derandomize=False)
