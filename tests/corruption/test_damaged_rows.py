"""Rows that contradict each other, in an otherwise intact directory: an audit reports each, with its location."""

import shutil
from array import array
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import NamedTuple

import pytest

from topics_server.verify import verify
from topics_service.engine import snapshot
from topics_service.engine.deletes import Deletes, decode_chunk
from topics_service.engine.router.router import decode_cursor
from topics_service.engine.topic import decode_row
from topics_service.engine.verify import Problem
from topics_service.storage import keys
from topics_service.storage.kafkablock import decode, encode
from topics_service.storage.rocks import RocksStore
from topics_service.storage.store import Family, WriteBatch
from topics_service.storage.tagchunk import Chunk, Entries
from topics_service.storage.tagchunk import encode as encode_chunk

LAST = b"\xff" * 40


class Rows:
    """The rows of a directory, to be changed. `log` and `topic` give the numbers that keys are made of."""

    def __init__(self, store: RocksStore, batch: WriteBatch) -> None:
        self.store = store
        self.batch = batch
        rows = [(keys.read_u64(key), decode_row(value)) for key, value in self.all(Family.TOPICS)]
        self.found = {row.name: (number, row) for number, row in rows}

    def log(self, topic: str, partition: int = 0) -> int:
        return self.found[topic][1].log_ids[partition]

    def all(self, family: Family, prefix: bytes = b"") -> list[tuple[bytes, bytes]]:
        rows = self.store.scan(family, prefix, prefix + LAST)
        return [row for row in rows if row[0].startswith(prefix)]

    def of(self, family: Family, topic: str, partition: int = 0) -> list[tuple[bytes, bytes]]:
        return self.all(family, keys.u64(self.log(topic, partition)))

    def change_state(self, topic: str, **fields: int) -> None:
        ((key, value),) = self.of(Family.LOGS, topic)
        s = copy(snapshot.decode(value))
        for name, change in fields.items():
            setattr(s, name, getattr(s, name) + change)
        self.batch.put(Family.LOGS, key, snapshot.encode(s))


class Case(NamedTuple):
    """What is changed, and what has to be said: kind, topic, seqs and a part of the text."""

    change: Callable[[Rows], None]
    kind: str
    topic: str | None
    seqs: tuple[int, int] | None
    text: str
    deep: bool = False


def lose_block(rows: Rows) -> None:
    rows.batch.delete(Family.BLOCKS, rows.of(Family.BLOCKS, "large")[3][0])


def change_block(rows: Rows) -> None:
    key, value = rows.of(Family.BLOCKS, "large")[3]
    rows.batch.put(Family.BLOCKS, key, value[:500] + b"?" + value[501:])


def copy_block(rows: Rows) -> None:
    """As when rows were mixed up: a block under the key of another."""
    (_, value), (key, _) = rows.of(Family.BLOCKS, "large")[2:4]
    rows.batch.put(Family.BLOCKS, key, value)


def miscount_block(rows: Rows) -> None:
    key, value = rows.of(Family.BLOCKS, "large")[3]
    block = decode(value, rows.log("large"), keys.read_u64(key, 8))
    block.cum_bytes += 1
    rows.batch.put(Family.BLOCKS, key, encode(block))


def lose_kafka_block(rows: Rows) -> None:
    rows.batch.delete(Family.BLOCKS, rows.of(Family.BLOCKS, "kafka")[-1][0])


def miscount_deletes(rows: Rows) -> None:
    ((key, value),) = rows.of(Family.DELETES, "large")
    chunk = decode_chunk(value)
    rows.batch.put(Family.DELETES, key, Deletes({0: chunk._replace(dead_bytes=chunk.dead_bytes + 1)}).encode(0))


def bring_back(rows: Rows) -> None:
    rows.batch.delete(Family.DELETES, rows.of(Family.DELETES, "large")[0][0])


def first_chunk(rows: Rows) -> tuple[bytes, Chunk]:
    """The first chunk of the tag index of `large`."""
    start = keys.runs(rows.log("large"))[1]
    key, value = next(row for row in rows.of(Family.TAGS, "large") if row[0] >= start)
    return key, Chunk(value)


def put_entries(rows: Rows, tags: list[bytes], positions: list[int]) -> None:
    key, _ = first_chunk(rows)
    rows.batch.put(Family.TAGS, key, encode_chunk(Entries(tags, [1] * len(tags), array("I", positions))))


def lose_index(rows: Rows) -> None:
    rows.batch.delete(Family.TAGS, first_chunk(rows)[0])


def lose_run(rows: Rows) -> None:
    rows.batch.delete(Family.TAGS, rows.of(Family.TAGS, "large")[0][0])


def stray_entry(rows: Rows) -> None:
    key, chunk = first_chunk(rows)
    tags, counts, positions = chunk.entries()
    rows.batch.put(
        Family.TAGS, key, encode_chunk(Entries([b"never", *tags], [1, *counts], array("I", [4]) + positions))
    )


def unsorted_entries(rows: Rows) -> None:
    put_entries(rows, [b"b", b"a"], [1, 2])


def entry_behind_its_run(rows: Rows) -> None:
    put_entries(rows, [b"b"], [1 << 31])


def damaged_chunk(rows: Rows) -> None:
    rows.batch.put(Family.TAGS, first_chunk(rows)[0], b"\x01\x00\x00\x00\x05\x00\x00\x00")


def damaged_run(rows: Rows) -> None:
    rows.batch.put(Family.TAGS, rows.of(Family.TAGS, "large")[0][0], b"\x01")


def run_too_long(rows: Rows) -> None:
    key, value = rows.of(Family.TAGS, "large")[0]
    rows.batch.put(Family.TAGS, key, value[:8] + (1 << 40).to_bytes(8, "little"))


def overlapping_runs(rows: Rows) -> None:
    _, value = rows.of(Family.TAGS, "large")[0]
    rows.batch.put(Family.TAGS, keys.run(rows.log("large"), 2, 0), value)


def stray_index(rows: Rows) -> None:
    key = keys.tag(rows.log("large"), b"never", 1)
    rows.batch.put(Family.TAGS, key, array("I", [4]).tobytes())


def unsorted_index(rows: Rows) -> None:
    key = keys.tag(rows.log("large"), b"never", 1)
    rows.batch.put(Family.TAGS, key, array("I", [4, 3]).tobytes())


def lose_expiry(rows: Rows) -> None:
    rows.batch.delete(Family.IDEMPOTENCY_EXPIRY, rows.all(Family.IDEMPOTENCY_EXPIRY)[0][0])


def advance_router(rows: Rows) -> None:
    key, value = next(row for row in rows.all(Family.ROUTERS) if row[0].endswith(b"\x01"))
    cursor, _ = decode_cursor(value)
    rows.batch.put(Family.ROUTERS, key, value[:1] + (cursor + 1).to_bytes(8, "little") + value[9:])


def lose_cursor(rows: Rows) -> None:
    rows.batch.delete(Family.ROUTERS, next(key for key, _ in rows.all(Family.ROUTERS) if key.endswith(b"\x01")))


def damage_position(rows: Rows) -> None:
    key, value = rows.all(Family.POSITIONS)[0]
    rows.batch.put(Family.POSITIONS, key, value[:1] + b"\xff" * 8 + value[9:])


def lose_group(rows: Rows) -> None:
    rows.batch.delete(Family.GROUPS, rows.all(Family.GROUPS)[0][0])


def damage_lease(rows: Rows) -> None:
    key, value = next(row for row in rows.of(Family.LEASES, "jobs") if keys.read_u64(row[0], 8))
    rows.batch.put(Family.LEASES, key, b"\x07" + value[1:])


def stray_lease(rows: Rows) -> None:
    _, value = next(row for row in rows.of(Family.LEASES, "jobs") if keys.read_u64(row[0], 8))
    rows.batch.put(Family.LEASES, keys.pair(rows.log("jobs"), 9999), value)


def lose_write_of_delayed(rows: Rows) -> None:
    key = next(key for key, _ in rows.of(Family.JOBS, "jobs") if key[8:9] == b"\x02")
    rows.batch.delete(Family.JOBS, key[:8] + b"\x01" + key[17:])


def lose_state(rows: Rows) -> None:
    rows.batch.delete(Family.LOGS, keys.u64(rows.log("capped")))


def lose_topic(rows: Rows) -> None:
    rows.batch.delete(Family.TOPICS, keys.u64(rows.found["capped"][0]))


def turn_back_counter(rows: Rows) -> None:
    rows.batch.put(Family.META, b"next_log", keys.u64(1))


def damage_producer(rows: Rows) -> None:
    key, value = rows.of(Family.PRODUCERS, "kafka")[0]
    rows.batch.put(Family.PRODUCERS, key, value[:-1])


CASES = [
    Case(lose_block, "missing", "large", (301, 400), "no block holds these records"),
    Case(change_block, "damaged", "large", (301, 400), "checksum or identity mismatch"),
    Case(copy_block, "damaged", "large", (301, 400), "checksum or identity mismatch"),
    Case(miscount_block, "mismatch", "large", (301, 400), "not counted right"),
    Case(lose_kafka_block, "missing", "kafka", None, "no block holds these records"),
    Case(lambda rows: rows.change_state("large", count=1), "mismatch", "large", None, "records, "),
    Case(lambda rows: rows.change_state("large", bytes=-5), "mismatch", "large", None, "bytes, its records have"),
    Case(lambda rows: rows.change_state("large", cum_bytes=9), "mismatch", "large", None, "ever written"),
    Case(lambda rows: rows.change_state("large", head=-100), "mismatch", "large", (29901, 30000), "above the head"),
    Case(lambda rows: rows.change_state("large", head=50), "missing", "large", (30001, 30050), "no block"),
    Case(lambda rows: rows.change_state("capped", evict_cap=50), "mismatch", "capped", None, "floor"),
    Case(miscount_deletes, "mismatch", "large", (0, 65535), "a delete bitmap counts"),
    Case(bring_back, "mismatch", "large", None, "are alive"),
    Case(lose_index, "missing", "large", None, "does not know", deep=True),
    Case(lose_run, "missing", "large", None, "does not know", deep=True),
    Case(stray_entry, "mismatch", "large", (5, 5), "without the tag 'never'", deep=True),
    Case(unsorted_entries, "damaged", "large", None, "not in order"),
    Case(entry_behind_its_run, "damaged", "large", None, "behind its run"),
    Case(damaged_chunk, "damaged", "large", None, "the header of a chunk"),
    Case(damaged_run, "damaged", "large", None, "a run of the tag index"),
    Case(run_too_long, "mismatch", "large", None, "speaks of seqs above"),
    Case(overlapping_runs, "damaged", "large", None, "overlaps with the run before it"),
    Case(stray_index, "mismatch", "large", (5, 5), "without the tag 'never'", deep=True),
    Case(unsorted_index, "damaged", "large", None, "not in order"),
    Case(lose_expiry, "missing", None, None, "has no expiry"),
    Case(advance_router, "mismatch", "orders", (101, 101), 'router "copier" stands at seq 101'),
    Case(lose_cursor, "missing", None, None, 'router "copier" has no cursor'),
    Case(damage_position, "damaged", None, None, "a position at"),
    Case(lose_group, "orphan", None, None, "group or partition that does not exist"),
    Case(damage_lease, "damaged", "jobs", None, "a lease of kind 7"),
    Case(stray_lease, "mismatch", "jobs", (9999, 9999), "the head is"),
    Case(lose_write_of_delayed, "mismatch", "jobs", None, "no row of their write"),
    Case(lose_state, "missing", "capped", None, "no row of its state"),
    Case(lose_topic, "orphan", None, None, "belongs to no topic"),
    Case(turn_back_counter, "mismatch", None, None, "the counter of logs"),
    Case(damage_producer, "damaged", "kafka", None, "the producer"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.text.replace(" ", "-"))
def test_a_contradiction_is_told_with_its_place(case: Case, stopped: Path, tmp_path: Path) -> None:
    directory = tmp_path / "data"
    shutil.copytree(stopped, directory)
    store = RocksStore(directory)
    batch = store.batch()
    case.change(Rows(store, batch))
    store.write(batch)
    store.close()
    found: list[Problem] = []
    report = verify(directory, found.append, deep=case.deep)
    assert report.problems == len(found)
    assert any(
        problem.kind == case.kind
        and case.text in problem.text
        and (case.topic is None or problem.topic == case.topic)
        and (case.seqs is None or (problem.first_seq, problem.last_seq) == case.seqs)
        for problem in found
    ), found


@pytest.mark.parametrize("deep", [False, True])
def test_an_intact_directory_is_clean(deep: bool, stopped: Path) -> None:
    found: list[Problem] = []
    report = verify(stopped, found.append, deep=deep)
    assert found == []
    assert (report.topics, report.partitions, report.routers, report.groups) == (10, 12, 1, 1)
    assert report.records > 34_000
    assert not report.live
