"""What is deleted in a topic leaves its table, when it is asked for, and nothing else does."""

import random
import threading
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import ValidationException
from pyiceberg.table import Table

from support.lake_runs import follow, settings
from support.lake_tables import seqs_of
from support.spark import Server, put_topic, rows
from topics_client.connection import Connection
from topics_client.errors import NotFoundError
from topics_lakehouse import deletes
from topics_lakehouse.catalog import ERRORS, TableError, identifier, open_catalog
from topics_lakehouse.compact import Compaction, compact
from topics_lakehouse.config import Config
from topics_lakehouse.dead import find_dead
from topics_lakehouse.deletes import NotCaughtUpError, Step, Synced, remove_rows, sync_deletes
from topics_lakehouse.rewrite import Rewritten
from topics_lakehouse.seqs import SeqSet
from topics_proto.v1 import queue_service_pb2 as queue_pb
from topics_proto.v1 import topic_pb2
from topics_proto.v1 import topics_service_pb2 as pb
from topics_proto.v1.record_pb2 import TagMatch

Fill = Callable[..., int]


@pytest.fixture
def lake(server: Server, tmp_path: Path, request: pytest.FixtureRequest) -> tuple[Config, Catalog, str]:
    """A configuration for one topic of this test's own."""
    topic = f"deletes-{crc32(request.node.name.encode())}"
    config = settings(server, tmp_path / "lake", {"name": topic, "table": "orders"})
    return config, open_catalog(config), topic


def _delete(connection: Connection, topic: str, partition: int = 0, **how: object) -> None:
    request = pb.DeleteRecordsRequest(topic=topic, partition=partition, **how)
    connection.unary(connection.topics.DeleteRecords, request, repeatable=True)


def _table(config: Config, catalog: Catalog, topic: str) -> Table:
    return catalog.load_table(identifier(config, topic))


def test_ranges_are_kept_as_ranges() -> None:
    dead = SeqSet()
    for first, last in ((3, 5), (6, 6), (9, 8), (20, 30)):
        dead.add(first, last)
    assert list(dead) == [(3, 6), (20, 30)]
    assert dead.count == 15
    assert [dead.within(*each) for each in ((1, 2), (1, 3), (6, 9), (7, 19), (30, 40), (31, 40))] == [
        False,
        True,
        True,
        False,
        True,
        False,
    ]


@pytest.mark.parametrize("seed", range(5))
def test_the_mask_is_right_for_every_seq(seed: int) -> None:
    rng = random.Random(seed)
    dead = SeqSet()
    gone: set[int] = set()
    at = 1
    for _ in range(rng.randint(0, 40)):
        first = at + rng.randint(0, 5)
        last = first + rng.randint(0, 4)
        dead.add(first, last)
        gone |= set(range(first, last + 1))
        at = last + 1
    seqs = list(range(at + 10))
    rng.shuffle(seqs)
    assert dead.mask(pa.array(seqs, pa.int64())).to_pylist() == [seq in gone for seq in seqs]
    assert dead.count == len(gone)


def test_what_was_deleted_by_seq_tag_and_prefix_leaves_the_table(
    lake: tuple[Config, Catalog, str], connection: Connection, fill: Fill
) -> None:
    config, catalog, topic = lake
    fill(topic, 500, tag=lambda i: None if i % 10 == 9 else f"t{i % 5}/{i}")
    follow(config)
    fill(topic, 500, first=500, tag=lambda i: f"t{i % 5}/{i}")
    follow(config)
    assert sync_deletes(config, catalog, connection, topic) == Synced(topic, {0: 1000}, 0, 0, 0)
    _delete(connection, topic, before_seq=100)
    _delete(connection, topic, match=TagMatch(prefix="t1/"))
    _delete(connection, topic, match=TagMatch(eq="t2/777"))
    _delete(connection, topic, before_seq=300, match=TagMatch(prefix="t3/"))
    live = [row.seq for row in rows(connection, topic)]
    steps: list[Step] = []
    done = sync_deletes(config, catalog, connection, topic, progress=steps.append)
    assert done.rows == 1000 - len(live)
    assert seqs_of(_table(config, catalog, topic)) == live
    assert sync_deletes(config, catalog, connection, topic) == Synced(topic, {0: 1000}, 0, 0, 0)
    assert {step.stage for step in steps} == {"listing", "rewriting"}
    assert all(0 <= step.done <= step.total for step in steps)


def test_partitions_are_told_apart(lake: tuple[Config, Catalog, str], connection: Connection, fill: Fill) -> None:
    config, catalog, topic = lake
    put_topic(connection, topic, partitions=3)
    for partition in range(3):
        fill(topic, 50, partition=partition, tag=lambda i: "even" if i % 2 else "odd")
    follow(config)
    _delete(connection, topic, partition=1, match=TagMatch(eq="even"))
    done = sync_deletes(config, catalog, connection, topic)
    assert (done.rows, done.heads) == (25, {0: 50, 1: 50, 2: 50})
    table = _table(config, catalog, topic)
    assert [len(seqs_of(table, partition)) for partition in range(3)] == [50, 25, 50]
    assert seqs_of(table, 1) == list(range(1, 51, 2))


def test_acked_jobs_leave_the_table(lake: tuple[Config, Catalog, str], connection: Connection, fill: Fill) -> None:
    config, catalog, topic = lake
    put_topic(connection, topic, type=topic_pb2.TOPIC_TYPE_QUEUE)
    fill(topic, 20)
    follow(config)
    claimed = connection.unary(
        connection.queues.Claim, queue_pb.ClaimRequest(topic=topic, node="w", max=5), repeatable=False
    )
    seqs = [job.seq for job in claimed.claimed]
    assert len(seqs) == 5
    connection.unary(connection.queues.Ack, queue_pb.AckRequest(topic=topic, node="w", seqs=seqs), repeatable=True)
    assert sync_deletes(config, catalog, connection, topic).rows == 5
    assert seqs_of(_table(config, catalog, topic)) == sorted(set(range(1, 21)) - set(seqs))


def test_what_retention_evicted_stays_in_the_table(
    lake: tuple[Config, Catalog, str], connection: Connection, fill: Fill
) -> None:
    config, catalog, topic = lake
    put_topic(connection, topic, cap_records=100)
    fill(topic, 100, tag=lambda i: f"t{i % 4}")
    follow(config)
    fill(topic, 60, first=100, tag=lambda i: f"t{i % 4}")
    follow(config)
    _delete(connection, topic, match=TagMatch(eq="t1"))
    live = {row.seq for row in rows(connection, topic)}
    evicted = set(range(1, min(live)))
    done = sync_deletes(config, catalog, connection, topic)
    left = set(seqs_of(_table(config, catalog, topic)))
    assert live <= left
    assert {seq for seq in left - live if seq > 62} == set()
    assert set(range(1, 58)) <= left & evicted
    assert done.rows == 160 - len(left)


def test_rows_of_the_errors_table_go_as_well(
    server: Server, connection: Connection, fill: Fill, tmp_path: Path
) -> None:
    topic = "deletes-errors"
    config = settings(server, tmp_path / "lake", {"name": topic, "table": "orders", "schema": "amount bigint"})
    fill(topic, 30, tag=lambda i: f"t{i % 3}", data=lambda i: '{"amount": "x"}' if i % 2 else '{"amount": 1}')
    follow(config)
    catalog = open_catalog(config)
    errors = catalog.load_table(identifier(config, topic, ERRORS))
    assert len(seqs_of(errors)) == 15
    _delete(connection, topic, match=TagMatch(eq="t1"))
    done = sync_deletes(config, catalog, connection, topic)
    assert (done.rows, done.error_rows) == (10, 5)
    assert not {seq for seq in seqs_of(errors) if (seq - 1) % 3 == 1}
    assert len(seqs_of(errors)) == 10


def test_it_waits_for_the_pipeline(lake: tuple[Config, Catalog, str], connection: Connection, fill: Fill) -> None:
    config, catalog, topic = lake
    fill(topic, 10)
    with pytest.raises(TableError, match=r"there is no table topics\.orders"):
        sync_deletes(config, catalog, connection, topic, timeout=0)
    follow(config)
    fill(topic, 10, first=10)
    _delete(connection, topic, before_seq=15)
    with pytest.raises(NotCaughtUpError, match=r"is at seq 10 of partition 0, the topic at 20"):
        sync_deletes(config, catalog, connection, topic, timeout=0)
    waited = threading.Event()
    found: list[Synced] = []

    def progress(step: Step) -> None:
        if step.stage == deletes.WAITING:
            assert (step.done, step.total) == (10, 20)
            waited.set()

    def sync() -> None:
        mine = open_catalog(config)
        found.append(sync_deletes(config, mine, connection, topic, timeout=30, progress=progress))

    thread = threading.Thread(target=sync)
    thread.start()
    assert waited.wait(30)
    follow(config)
    thread.join(30)
    assert [done.rows for done in found] == [10]  # the other four never came in
    assert seqs_of(_table(config, catalog, topic)) == list(range(15, 21))


def test_an_unknown_topic_and_another_life_are_refused(
    lake: tuple[Config, Catalog, str], connection: Connection, fill: Fill
) -> None:
    config, catalog, topic = lake
    with pytest.raises(NotFoundError, match=topic):
        sync_deletes(config, catalog, connection, topic)
    fill(topic, 10)
    follow(config)
    connection.unary(connection.topics.DeleteTopic, pb.DeleteTopicRequest(topic=topic), repeatable=True)
    fill(topic, 3)
    with pytest.raises(TableError, match="an earlier life of the topic"):
        sync_deletes(config, catalog, connection, topic)
    assert seqs_of(_table(config, catalog, topic)) == list(range(1, 11))


def test_a_topic_made_again_while_deletes_are_listed_is_an_error(connection: Connection, fill: Fill) -> None:
    fill("again", 10)
    with pytest.raises(NotFoundError, match="deleted or recreated"):
        list(find_dead(connection, "again", "top_00000000000000000000000000", 0, 10))


def test_a_compaction_that_comes_first_costs_a_second_look(
    lake: tuple[Config, Catalog, str], connection: Connection, fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, catalog, topic = lake
    for i in range(3):
        fill(topic, 10, first=10 * i)
        follow(config)
    _delete(connection, topic, before_seq=16)
    real, raced = deletes.replace, []

    def late(*given: object, **named: object) -> Rewritten:
        if not raced:
            raced.append(1)
            assert compact(_table(config, catalog, topic), Compaction(thorough=True)).files_before == 3
        return real(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(deletes, "replace", late)
    assert sync_deletes(config, catalog, connection, topic).rows == 15
    assert seqs_of(_table(config, catalog, topic)) == list(range(16, 31))

    def lost(*given: object, **named: object) -> Rewritten:
        raise ValidationException("lost")

    monkeypatch.setattr(deletes, "replace", lost)
    _delete(connection, topic, before_seq=20)
    with pytest.raises(ValidationException):
        sync_deletes(config, catalog, connection, topic)


def test_deletes_while_records_are_committed_lose_none(
    lake: tuple[Config, Catalog, str], connection: Connection, fill: Fill
) -> None:
    config, catalog, topic = lake
    rng = random.Random(3)
    fill(topic, 200, tag=lambda i: f"t{i % 7}")
    follow(config)
    stop = threading.Event()

    def more() -> None:
        at = 200
        while not stop.wait(0.1):  # else snapshots, which are not dropped here, make commits slower and slower
            fill(topic, 20, first=at, tag=lambda i: f"t{i % 7}")
            at += 20
            follow(config)

    thread = threading.Thread(target=more)
    thread.start()
    try:
        for _ in range(5):
            _delete(connection, topic, match=TagMatch(eq=f"t{rng.randrange(7)}"), before_seq=rng.randint(1, 200))
            sync_deletes(config, catalog, connection, topic, timeout=30)
    finally:
        stop.set()
        thread.join(30)
    follow(config)
    sync_deletes(config, catalog, connection, topic)
    assert seqs_of(_table(config, catalog, topic)) == [row.seq for row in rows(connection, topic)]


def test_rows_without_a_partition_or_in_mixed_files_are_looked_at_one_by_one(
    lake: tuple[Config, Catalog, str], connection: Connection, fill: Fill
) -> None:
    config, catalog, topic = lake
    put_topic(connection, topic, partitions=2)
    fill(topic, 20, partition=0)
    fill(topic, 20, partition=1)
    follow(config)
    table = _table(config, catalog, topic)
    compact(table, Compaction(thorough=True, ordered=False))
    dead = SeqSet()
    dead.add(3, 7)
    assert remove_rows(table, {1: dead}).rows_after == 35
    assert seqs_of(table, 0) == list(range(1, 21))
    assert seqs_of(table, 1) == [1, 2, *range(8, 21)]
