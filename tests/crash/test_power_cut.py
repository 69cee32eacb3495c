"""Power cuts: the write-ahead log loses a tail that was never synced, and the machine boots anew.

A copy of the data directory is cut at some byte between what was last synced and its end, then opened under another
boot id. That is the worst that a power cut can do to a disk that keeps its promises about fsync.
"""

import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from support.http import Api
from support.server import ServerProcess
from topics_service.engine.clock import SystemClock
from topics_service.engine.engine import Engine
from topics_service.engine.errors import Reason, TopicsError
from topics_service.engine.model import (
    AppendRequest,
    Batch,
    ConfigInput,
    DeleteRequest,
    DiffReply,
    DiffRequest,
    TagMatch,
    Tombstone,
)
from topics_service.storage.rocks import RocksStore
from topics_service.storage.store import StoreOpenError

SOAK_SECONDS = float(os.environ.get("TOPICS_SOAK_SECONDS", "0"))
FIRST_BOOT = "first boot"


def wal(data_dir: Path) -> Path:
    """The log file that is written now."""
    return max(data_dir.glob("*.log"), key=lambda path: int(path.stem))


def cut_copy(data_dir: Path, to: Path, size: int) -> Path:
    """A copy of the directory whose log ends after `size` bytes."""
    if to.exists():
        shutil.rmtree(to)
    shutil.copytree(data_dir, to, ignore=shutil.ignore_patterns("LOCK"))
    with wal(to).open("r+b") as file:
        file.truncate(size)
    return to


@contextmanager
def opened(data_dir: Path, boot_id: str) -> Iterator[Engine]:
    """The engine on a directory; it ends without closing, as in a crash."""
    store = RocksStore(data_dir)
    try:
        yield Engine(store, SystemClock(), boot_id=boot_id)
    finally:
        store.close()


@dataclass
class Seen:
    """All that a reader from the start gets."""

    records: dict[int, bytes] = field(default_factory=dict)
    tombstones: list[Tombstone] = field(default_factory=list)

    def explains(self, seq: int) -> bool:
        """Whether the record is there, or its loss was told."""
        return seq in self.records or any(gap.gap_from <= seq <= gap.gap_to for gap in self.tombstones)


def read_all(engine: Engine, topic: str, from_seq: int = 0) -> Seen:
    seen = Seen()
    while True:
        page = engine.diff(DiffRequest(topic=topic, from_seq=from_seq, limit=1000, max_batch_bytes=8 << 20))
        for seq, data in _records(page):
            assert seq > max(seen.records, default=from_seq)
            seen.records[seq] = data
        if page.tombstone is not None:
            assert page.tombstone.gap_from == from_seq + 1
            seen.tombstones.append(page.tombstone)
        if page.caught_up:
            return seen
        assert page.next_from_seq > from_seq
        from_seq = page.next_from_seq


def _records(page: DiffReply) -> Iterator[tuple[int, bytes]]:
    for piece in page.slices:
        block = piece.block
        for i in range(piece.start, piece.stop):
            yield block.base_seq + i, block.data[block.ends[i - 1] if i else 0 : block.ends[i]]


# ------------------------------------------------------------------ the real process


def test_cuts_after_a_synced_write(server: ServerProcess, tmp_path: Path) -> None:
    """Every cut behind an acknowledged `fsync` write keeps it, and tells what else was lost."""
    acked: dict[str, int] = {}
    with Api(server.base) as api:
        for name, durability in (("disk", "disk"), ("memory", "memory"), ("ephemeral", "ephemeral")):
            api.append(name, *range(10), config={"durability": durability})
        api.append("capped", *range(10), config={"cap_records": 4})
        synced_seq = api.append("fsync", *range(10), config={"durability": "fsync"})["last_seq"]
        synced_size = wal(server.data_dir).stat().st_size
        for i in range(30):
            for name in ("disk", "memory", "ephemeral", "capped"):
                acked[name] = api.append(name, i, i)["last_seq"]
        server.signal(signal.SIGSTOP)
    end = wal(server.data_dir).stat().st_size
    assert end > synced_size
    rng = random.Random(7)
    cuts = [synced_size, synced_size + 1, end - 1, end, *(rng.randrange(synced_size, end) for _ in range(8))]
    most = 0
    for cut in cuts:
        with opened(cut_copy(server.data_dir, tmp_path / "copy", cut), "another boot") as engine:
            assert list(read_all(engine, "fsync").records) == list(range(1, synced_seq + 1))
            assert not read_all(engine, "fsync").tombstones
            disk = list(read_all(engine, "disk").records)
            for name, last in acked.items():
                seen = read_all(engine, name)
                state = engine.get_topic(name)
                assert state.head_seq >= last
                assert state.count == len(seen.records)
                lost = [gap for gap in seen.tombstones if gap.gap_to == state.head_seq]
                assert [gap.reason for gap in lost] == ["cap"], (name, cut, seen)
                assert all(seen.explains(seq) for seq in range(1, last + 1))
                reply, _ = engine.append(AppendRequest(topic=name, batch=Batch(datas=[b"1"])))
                assert reply.first_seq > last
            assert disk == list(range(1, len(disk) + 1))
            assert len(disk) >= 10
            assert len(disk) % 2 == 0  # whole batches
            most = max(most, len(disk))
    assert most == 70  # a cut at the end loses no record
    server.signal(signal.SIGCONT)
    assert server.stop() == 0


def test_the_same_boot_loses_nothing(server: ServerProcess, tmp_path: Path) -> None:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    with Api(server.base) as api:
        api.append("disk", *range(10))
        for i in range(30):
            api.append("disk", i)
        server.signal(signal.SIGSTOP)
    copy = cut_copy(server.data_dir, tmp_path / "copy", wal(server.data_dir).stat().st_size)
    with opened(copy, boot) as engine:
        assert list(read_all(engine, "disk").records) == list(range(1, 41))
        assert not read_all(engine, "disk").tombstones
        assert engine.get_topic("disk").head_seq == 40
    server.signal(signal.SIGCONT)


# --------------------------------------------------------------------- random histories


class TrackingStore(RocksStore):
    """Knows how much of its log has been synced."""

    def __init__(self, path: Path) -> None:
        self.synced_size = 0
        super().__init__(path)
        self.sync()

    def sync(self) -> None:
        size = wal(self.path).stat().st_size
        super().sync()
        self.synced_size = size


@dataclass
class Model:
    """What one topic was told, and how durable that is."""

    durability: str
    cap: int = 0
    datas: dict[int, bytes] = field(default_factory=dict)
    tags: dict[int, bytes] = field(default_factory=dict)
    acked: int = 0
    """The highest seq that was acknowledged."""
    durable: int = 0
    """Up to here the log has been synced."""
    deleted: set[int] = field(default_factory=set)
    durably_deleted: set[int] = field(default_factory=set)


class History:
    """Random calls on an engine, with cuts between them."""

    def __init__(self, path: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.path = path
        self.store = TrackingStore(path)
        self.engine = Engine(self.store, SystemClock(), boot_id=FIRST_BOOT)
        self.topics: dict[str, Model] = {}
        self.pending: list[tuple[int, Model, int]] = []

    def step(self) -> None:
        actions: list[Callable[[], None]] = [
            *[self.append] * 8, self.delete, self.trim, self.sync, self.maintain, self.put, self.drop
        ]  # fmt: skip
        self.rng.choice(actions)()

    def put(self) -> None:
        name = f"t{self.rng.randrange(6)}"
        durability = self.rng.choice(("ephemeral", "memory", "disk", "fsync"))
        cap = self.rng.choice((0, 0, 50))
        self.engine.put_topic(name, ConfigInput(durability=durability, cap_records=cap))
        self.sync()  # a put is acknowledged when it is durable
        model = self.topics.setdefault(name, Model(durability))
        model.durability, model.cap = durability, cap

    def drop(self) -> None:
        if self.topics and self.rng.random() < 0.2:
            name = self.rng.choice(list(self.topics))
            self.engine.delete_topic(name)
            gone = self.topics.pop(name)
            self.pending = [entry for entry in self.pending if entry[1] is not gone]
            self.sync()

    def append(self) -> None:
        if not self.topics:
            return
        name = self.rng.choice(list(self.topics))
        model = self.topics[name]
        count = 2500 if self.rng.random() < 0.04 else self.rng.choice((1, 1, 3, 10, 70))
        tag = b"tag%d" % self.rng.randrange(3)
        batch = Batch(datas=[b"[%d,%d]" % (self.rng.randrange(1 << 40), i) for i in range(count)], tags=[tag] * count)
        reply, ticket = self.engine.append(AppendRequest(topic=name, batch=batch))
        assert reply.first_seq > max(model.datas, default=0)
        seqs = range(reply.first_seq, reply.last_seq + 1)
        model.datas.update(zip(seqs, batch.datas, strict=True))
        model.tags.update(dict.fromkeys(seqs, tag))
        if ticket > self.engine.writer.synced:
            self.pending.append((ticket, model, reply.last_seq))
        else:
            model.acked = max(model.acked, reply.last_seq)

    def delete(self) -> None:
        self._delete(0, TagMatch("Eq", b"tag%d" % self.rng.randrange(3)))

    def trim(self) -> None:
        self._delete(self.rng.randrange(1, 400), None)

    def _delete(self, before: int, match: TagMatch | None) -> None:
        if not self.topics:
            return
        name = self.rng.choice(list(self.topics))
        model = self.topics[name]
        settled = self.engine.writer.synced == self.engine.writer.written  # else others are on their way out unseen
        there = read_all(self.engine, name).records
        reply, _ = self.engine.delete_records(
            DeleteRequest(topic=name, before_seq=None if match else before, match=match)
        )
        hit = {seq for seq in there if (seq < before if match is None else model.tags[seq] == match.value)}
        assert reply.deleted == len(hit) if settled else reply.deleted <= len(hit)
        model.deleted |= hit
        if self.rng.random() < 0.5:
            self.sync()

    def sync(self) -> None:
        self.engine.sync()
        for model in self.topics.values():
            if model.durability != "ephemeral":
                model.durable = max(model.datas, default=0)
            model.durably_deleted |= model.deleted
        for ticket, model, last in self.pending:
            assert ticket <= self.engine.writer.synced
            model.acked = max(model.acked, last)
        self.pending = []

    def maintain(self) -> None:
        while self.engine.maintain():
            pass
        self.engine.sweep()

    def cut(self, to: Path) -> Path:
        size = wal(self.path).stat().st_size
        return cut_copy(
            self.path,
            to,
            self.rng.choice((self.store.synced_size, self.rng.randint(self.store.synced_size, size), size)),
        )

    def whole(self, to: Path) -> Path:
        return cut_copy(self.path, to, wal(self.path).stat().st_size)

    def check_killed(self, engine: Engine) -> None:
        """In the same boot everything that was written is there, acknowledged or not."""
        for name, model in self.topics.items():
            if model.durability == "ephemeral":
                continue
            seen, head = read_all(engine, name), engine.get_topic(name).head_seq
            assert head >= max(model.datas, default=0)
            evicted = max((gap.gap_to for gap in seen.tombstones), default=0)
            wanted = {seq for seq in model.datas if seq > evicted and seq not in model.deleted}
            assert wanted <= seen.records.keys(), name
            assert not model.deleted & seen.records.keys(), name

    def check(self, engine: Engine) -> None:
        assert set(self.topics) == {state.topic for state in _topics(engine)}
        for name, model in self.topics.items():
            seen, state = read_all(engine, name), engine.get_topic(name)
            about = f"{name} {model.durability} cap={model.cap} acked={model.acked} durable={model.durable}"
            assert all(model.datas.get(seq) == data for seq, data in seen.records.items()), about
            assert not model.durably_deleted & seen.records.keys(), about
            assert state.count == len(seen.records), about
            assert state.bytes == sum(map(len, seen.records.values())), about
            assert state.head_seq >= model.acked, about
            assert state.earliest_seq == min(seen.records, default=state.head_seq + 1), about
            vanished = [
                seq for seq in model.datas if seq <= model.acked and seq not in model.deleted and not seen.explains(seq)
            ]
            assert not vanished, f"{about}: {vanished[:3]}... vanished, {seen.tombstones}"
            if model.durability != "ephemeral" and not model.cap:
                kept = {seq for seq in model.datas if seq <= model.durable and seq not in model.deleted}
                evicted = {gap.gap_to for gap in seen.tombstones if gap.gap_from == 1}
                assert {seq for seq in kept if seq > max(evicted, default=0)} <= seen.records.keys(), about
                if not evicted:
                    assert kept <= seen.records.keys(), about
            reply, _ = engine.append(AppendRequest(topic=name, batch=Batch(datas=[b'"after"'])))
            assert reply.first_seq > model.acked, about
            assert reply.first_seq == state.head_seq + 1, about
            engine.sync()
            again = read_all(engine, name, max(0, model.acked - 1))
            assert again.records[reply.first_seq] == b'"after"', about


def _topics(engine: Engine):  # the page's own type
    from topics_service.engine.model import ListTopicsRequest

    page = engine.list_topics(ListTopicsRequest(page_size=1000))
    return [engine.get_topic(line.topic, touch=False) for line in page.topics]


@pytest.mark.parametrize("seed", range(3))
def test_random_histories(tmp_path: Path, seed: int) -> None:
    run_history(tmp_path, seed)


@pytest.mark.soak
@pytest.mark.skipif(not SOAK_SECONDS, reason="TOPICS_SOAK_SECONDS says for how long")
@pytest.mark.timeout(SOAK_SECONDS + 120)
def test_random_histories_soak(tmp_path: Path) -> None:
    end = time.monotonic() + SOAK_SECONDS
    seed = int(os.environ.get("TOPICS_SOAK_SEED", time.time_ns() % 100_000))
    while time.monotonic() < end:
        print(f"TOPICS_SOAK_SEED={seed}")
        run_history(tmp_path / str(seed), seed)
        shutil.rmtree(tmp_path / str(seed))
        seed += 1


def run_history(path: Path, seed: int) -> None:
    """Calls and cuts, in an order that the seed decides."""
    history = History(path / "data", seed)
    for _ in range(6):
        for _ in range(history.rng.randrange(5, 60)):
            history.step()
        with opened(history.cut(path / "copy"), "second boot") as engine:
            history.check(engine)
        with opened(path / "copy", "third boot") as engine:  # and that state is a good one to go on from
            for name in history.topics:
                assert read_all(engine, name)
        with opened(history.whole(path / "copy"), FIRST_BOOT) as engine:
            history.check_killed(engine)
    history.store.close()


def test_a_tail_that_is_only_garbage_is_cut(tmp_path: Path) -> None:
    """Bytes after the last whole entry, as a torn write leaves them, are dropped; damage before is never silent."""
    store = TrackingStore(tmp_path / "data")
    engine = Engine(store, SystemClock(), boot_id="first")
    engine.put_topic("t", ConfigInput(durability="fsync"))
    for i in range(50):
        engine.append(AppendRequest(topic="t", batch=Batch(datas=[b"%d" % i])))
    engine.sync()
    size = wal(tmp_path / "data").stat().st_size
    copy = cut_copy(tmp_path / "data", tmp_path / "torn", size)
    with wal(copy).open("ab") as file:
        file.write(b"\x01\x02\x03" * 5)
    with opened(copy, "second") as engine:
        assert len(read_all(engine, "t").records) == 50
    copy = cut_copy(tmp_path / "data", tmp_path / "damaged", size)
    with wal(copy).open("r+b") as file:
        file.seek(size // 2)
        file.write(b"\xff" * 8)
    with pytest.raises(StoreOpenError, match="damaged"):
        RocksStore(copy)
    store.close()


def test_reading_an_interior_gap(tmp_path: Path) -> None:
    """A read stops before the gap; from within it, one tombstone up to its end; after it everything goes on."""
    store = TrackingStore(tmp_path / "data")
    engine = Engine(store, SystemClock(), boot_id="first")
    engine.put_topic("t", ConfigInput())
    engine.append(AppendRequest(topic="t", batch=Batch(datas=[b"1", b"2", b"3"])))
    engine.sync()
    engine.append(AppendRequest(topic="t", batch=Batch(datas=[b"4", b"5"])))
    with opened(cut_copy(tmp_path / "data", tmp_path / "copy", store.synced_size), "second") as engine:
        head = engine.get_topic("t").head_seq
        assert head > 5
        reply, _ = engine.append(AppendRequest(topic="t", batch=Batch(datas=[b"6"])))
        engine.sync()
        assert reply.first_seq == head + 1
        page = engine.diff(DiffRequest(topic="t"))
        assert ([seq for seq, _ in _records(page)], page.tombstone, page.next_from_seq) == ([1, 2, 3], None, 3)
        for from_seq in (3, 4, 5, head - 1):
            page = engine.diff(DiffRequest(topic="t", from_seq=from_seq))
            gap = page.tombstone
            assert gap is not None
            assert (gap.gap_from, gap.gap_to, gap.reason) == (from_seq + 1, head, "cap")
            assert gap.missed_estimate == head - from_seq
            assert (gap.earliest_seq, gap.head_seq) == (1, head + 1)
            assert [seq for seq, _ in _records(page)] == [head + 1]
            assert page.caught_up
        page = engine.diff(DiffRequest(topic="t", from_seq=head))
        assert ([seq for seq, _ in _records(page)], page.tombstone) == ([head + 1], None)
        engine.delete_records(DeleteRequest(topic="t", before_seq=3))
        assert engine.get_topic("t").count == 2
        with pytest.raises(TopicsError) as refused:
            engine.diff(DiffRequest(topic="u"))
        assert refused.value.reason is Reason.TOPIC_NOT_FOUND
    store.close()
