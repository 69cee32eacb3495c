"""What a repair made of rows, against what had been written."""

from pathlib import Path
from typing import NamedTuple

from corruption.harness import Truth

from support.audit import MemorySource, audit
from topics_client import Gap, Record
from topics_service.engine.clock import SystemClock
from topics_service.engine.engine import Engine
from topics_service.engine.model import BulkRequest
from topics_service.engine.repair import Action, Salvage, Uncertain
from topics_service.storage.memory import MemoryStore
from topics_service.storage.rocks import RocksStore
from topics_service.storage.store import Family
from topics_service.storage.verify import Source

Rows = dict[int, bytes]
LAST = b"\xff" * 300


class MemorySink:
    """Implements Sink on rows in memory; takes each row once."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.put(Family.META, b"format", b"topics-rocksdb-4")

    def put(self, family: Family, key: bytes, value: bytes) -> None:
        """See Sink."""
        assert self.store.get(family, key) is None, (family, key)
        batch = self.store.batch()
        batch.put(family, key, value)
        self.store.write(batch)


def in_memory(directory: Path) -> MemoryStore:
    """The rows of a data directory."""
    disk, memory = RocksStore(directory), MemoryStore()
    for family in set(Family) - {Family.SEGMENTS}:  # of which BLOCKS has what counts
        batch = memory.batch()
        for key, value in disk.scan(family, b"", LAST):
            batch.put(family, key, value)
        memory.write(batch)
    disk.close()
    return memory


def copy_of(store: MemoryStore) -> MemoryStore:
    """Rows to change."""
    copied = MemoryStore()
    copied._rows = [rows.copy() for rows in store._rows]
    return copied


class Repaired(NamedTuple):
    """Rows after their repair."""

    store: MemoryStore
    actions: list[Action]

    @property
    def gaps(self) -> list[tuple[str | None, int | None, int | None]]:
        """The seqs that it says are lost."""
        return [(done.topic, done.first_seq, done.last_seq) for done in self.actions if done.kind == "gap"]

    @property
    def others(self) -> list[str]:
        """What else it says, by kind and topic."""
        return [f"{done.kind} {done.topic or ''}: {done.text}" for done in self.actions if done.kind != "gap"]


def repaired(source: Source | MemoryStore, *, end: Uncertain | None = None, bring_back: bool = False) -> Repaired:
    """Repair rows; an audit of what comes of it is clean, and to repair that changes nothing."""
    sink, actions = MemorySink(), list[Action]()
    rows = MemorySource(source) if isinstance(source, MemoryStore) else source
    Salvage(rows, sink, actions.append, end=end, bring_back=bring_back).run()
    assert audit(sink.store) == []
    return Repaired(sink.store, actions)


def compare(done: Repaired, expected: Truth) -> None:
    """Every record of `expected` is there, or within a reported gap; no other record is, unless reported."""
    back = {action.topic for action in done.actions if "come back" in action.text}
    power_cut = any("power cut" in action.text for action in done.actions)
    boot = (done.store.get(Family.META, b"boot") or b"").decode()  # a start in the same boot of the machine
    engine = Engine(copy_of(done.store), SystemClock(), boot_id=boot)
    for (topic, partition), content in expected.items():
        if topic not in engine.catalog.topics:
            assert any(action.kind == "lost" for action in done.actions), topic
            continue
        records, gaps = read(engine, topic, partition)
        told = [(first or 0, last or 0) for name, first, last in done.gaps if name == topic]
        head = engine.catalog.topics[topic].logs[partition].view.head
        for item in content:
            if not isinstance(item, Record):
                continue
            found = records.pop(item.seq, None)
            assert item.seq <= head, f"{topic} {item.seq} would be handed out again"
            if found is None:
                assert any(first <= item.seq <= last for first, last in told), f"{topic} {item.seq} is gone"
                assert any(first <= item.seq <= last for first, last in gaps), f"{topic} {item.seq} without a gap"
            else:
                assert found == item.data, f"{topic} {item.seq} is another"
        undone = any(last == head for _, last in told)  # its last writes are lost, and what these had evicted is not
        assert not records or topic in back or undone, f"{topic}: records {list(records)[:5]} came back"
        old = [(item.first_seq, item.last_seq) for item in content if isinstance(item, Gap)]
        for first, last in gaps:
            # A rebuilt state does not know whether records before its first one were deleted or lost.
            known = any(a <= first and last <= b for a, b in old) or (first == 1 and topic in back)
            known = known or (power_cut and last == head)
            assert known or any(a <= last and first <= b for a, b in told), f"{topic}: {first}..{last}"
        assert len(gaps) <= len(old) + len(told) + power_cut, f"{topic}: {gaps}"


def read(engine: Engine, topic: str, partition: int) -> tuple[Rows, list[tuple[int, int]]]:
    """Every record, and every gap, of a partition."""
    rows: Rows = {}
    gaps: list[tuple[int, int]] = []
    cursor, epoch = 0, 0
    head = engine.catalog.topics[topic].logs[partition].view.head
    while cursor < head:
        page, epoch = engine.bulk(
            BulkRequest(topic=topic, partition=partition, from_seq=cursor, limit=1000, end_seq=head, epoch=epoch)
        )
        for part in page.slices:
            for i in range(part.start, part.stop):
                rows[part.block.base_seq + i] = part.block.record_data(i)
        if page.tombstone is not None:
            gaps.append((page.tombstone.gap_from, page.tombstone.gap_to))
        assert page.next_from_seq > cursor
        cursor = page.next_from_seq
    return rows, gaps
