"""Tables that others put back: no record is skipped in silence, and a refill brings what is missing, once."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.update import RemoveSnapshotRefUpdate

from support.lake_runs import LocalRunner, follow, settings
from support.lake_truth import Lake
from support.spark import Server, put_topic, rows
from topics_client.connection import Connection
from topics_lakehouse import follower
from topics_lakehouse.catalog import COMMIT, POSITIONS, RANGES, ROWS, SNAPSHOT, CatalogDownError, open_catalog
from topics_lakehouse.compact import Compaction, compact
from topics_lakehouse.deletes import sync_deletes
from topics_lakehouse.history import RolledBackError
from topics_lakehouse.maintain import expire
from topics_lakehouse.pipeline import Pipeline
from topics_lakehouse.query import Lakehouse
from topics_lakehouse.rewrite import merge_manifests
from topics_lakehouse.status import status
from topics_proto.v1 import topics_service_pb2 as pb

Fill = Callable[..., int]
SCHEMA = "id bigint"
_NUMBERS = itertools.count()


class Case:
    """A topic of this test's own, and its table after three commits of 50 records: up to seq 50, 100 and 150."""

    def __init__(self, server: Server, connection: Connection, fill: Fill, folder: Path, topic: str) -> None:
        self.server, self.connection, self.fill, self.topic, self.folder = server, connection, fill, topic, folder
        self.config = settings(server, folder, {"name": topic, "table": "orders", "schema": SCHEMA}, group=topic)
        put_topic(connection, topic)
        self.snapshots: list[int] = []
        self.files: list[str] = []
        pipeline = Pipeline(self.config, LocalRunner())
        for i in range(3):
            self.more(50 * i)
            assert pipeline.once()
            self.snapshots.append(self.table.metadata.current_snapshot_id or 0)
            self.files.append(self.table.metadata_location)
        pipeline.close()

    @property
    def catalog(self) -> Catalog:
        return open_catalog(self.config)

    @property
    def table(self) -> Table:
        return self.catalog.load_table("topics.orders")

    def more(self, first: int, count: int = 50) -> None:
        self.fill(self.topic, count, first=first, data=lambda i: '{"id": "x"}' if i % 10 == 9 else f'{{"id": {i}}}')

    def expire(self, *snapshots: int) -> None:
        self.table.maintenance.expire_snapshots().by_ids(list(snapshots)).commit()

    def refusals(self, *asked: bool) -> set[str]:
        """Check that run, status and query refuse alike, and that nothing touches such a table."""
        pipeline = Pipeline(self.config, LocalRunner())
        try:
            assert not pipeline.once()
            said = {each.reason for each in pipeline.statuses}
        finally:
            pipeline.close()
        (found,) = status(self.config, self.catalog, self.connection)
        said |= set(found.problems)
        with Lakehouse(self.config) as session:
            for fresh in asked or (True, False):
                with pytest.raises(RolledBackError) as refused:
                    session.query("SELECT count(*) FROM orders", fresh=fresh)
                said.add(str(refused.value))
        with pytest.raises(RolledBackError) as refused:
            sync_deletes(self.config, self.catalog, self.connection, self.topic, timeout=5)
        return said | {str(refused.value)}

    def refill(self) -> None:
        pipeline = Pipeline(self.config, LocalRunner(), refill=True)
        try:
            assert pipeline.once(), pipeline.statuses
        finally:
            pipeline.close()

    def check(self) -> None:
        """Every record once, everywhere, and every misfit."""
        lake = Lake(self.config)
        there = rows(self.connection, self.topic)
        assert lake.records(self.topic) == there
        assert lake.errors(self.topic) == [(row.partition, row.seq) for row in there if row.seq % 10 == 0]
        assert [each.problems for each in status(self.config, self.catalog, self.connection)] == [[]]
        with Lakehouse(self.config) as session:
            assert session.query("SELECT count(*) AS n FROM orders").to_pylist() == [{"n": len(there)}]


@pytest.fixture
def case(server: Server, connection: Connection, fill: Fill, tmp_path: Path, request: pytest.FixtureRequest) -> Case:
    return Case(server, connection, fill, tmp_path, f"rollback-{next(_NUMBERS)}")


def _set_current(case: Case) -> None:
    case.table.manage_snapshots().set_current_snapshot(case.snapshots[1]).commit()


def _rollback(case: Case) -> None:
    case.table.manage_snapshots().rollback_to_snapshot(case.snapshots[1]).commit()


def _rollback_to_time(case: Case) -> None:
    when = case.table.metadata.snapshot_by_id(case.snapshots[1])
    assert when is not None
    case.table.manage_snapshots().rollback_to_timestamp(when.timestamp_ms + 1).commit()


def _replaced_main(case: Case) -> None:
    table = case.table
    table.manage_snapshots().create_branch(case.snapshots[1], "older").commit()
    with table.transaction() as change:
        change._apply(*change._set_ref_snapshot(case.snapshots[1], "main", "branch"))
    table.manage_snapshots().remove_branch("older").commit()


def _foreign_after_rollback(case: Case) -> None:
    _set_current(case)
    case.table.delete("seq = 100")


def _cherry_picked(case: Case) -> None:
    """The newest append on top of the oldest: the one in the middle is missing, and the last record is there."""
    table = case.table
    newest = table.metadata.snapshot_by_id(case.snapshots[2])
    assert newest is not None
    added = [
        entry.data_file
        for manifest in newest.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io)
        if entry.snapshot_id == newest.snapshot_id
    ]
    table.manage_snapshots().set_current_snapshot(case.snapshots[0]).commit()
    with table.refresh().transaction() as change, change.update_snapshot().fast_append() as picked:
        for each in added:
            picked.append_data_file(each)


ROLLBACKS = [_set_current, _rollback, _rollback_to_time, _replaced_main, _foreign_after_rollback, _cherry_picked]


@pytest.mark.parametrize("how", ROLLBACKS)
def test_a_rollback_is_refused_before_and_after_any_expiry_and_refilled(
    case: Case, how: Callable[[Case], None]
) -> None:
    how(case)
    case.more(150, 10)
    (before,) = case.refusals()
    assert "it was rolled back below its positions" in before
    assert '"0": 150' in before
    with pytest.raises(RolledBackError):
        expire(case.table, 1)
    table = case.table
    kept = {table.metadata.current_snapshot_id}
    case.expire(*[each.snapshot_id for each in table.metadata.snapshots if each.snapshot_id not in kept])
    assert len(case.table.metadata.snapshots) == 1
    assert case.refusals() == {before}
    case.refill()
    case.check()
    follow(case.config)
    assert case.table.properties[POSITIONS] == '{"0": 160}'


def test_a_table_put_back_as_a_whole_is_refused_for_what_its_group_was_told(case: Case) -> None:
    """It agrees with itself; the positions that it committed to its group are the witness."""
    catalog = case.catalog
    catalog.drop_table("topics.orders")
    catalog.register_table("topics.orders", case.files[1])
    assert '"0": 150' in min(case.refusals(True))
    case.refill()
    case.check()
    follow(case.config)
    case.check()


def test_another_table_of_the_same_topic_is_not_held_to_what_the_first_told(case: Case, tmp_path: Path) -> None:
    for folder in (tmp_path / "other", tmp_path):
        if folder == tmp_path:  # dropped, to be rebuilt
            case.catalog.drop_table("topics.orders")
        config = settings(case.server, folder, {"name": case.topic, "table": "orders"}, group=case.topic)
        follow(config)
        assert len(Lake(config).records(case.topic)) == 150


def test_what_retention_took_meanwhile_is_told_as_gaps(case: Case) -> None:
    put_topic(case.connection, case.topic, cap_records=70)  # 81 to 150 are left
    _rollback(case)
    case.expire(case.snapshots[2])
    case.refill()
    lake = Lake(case.config)
    assert [row.seq for row in lake.records(case.topic)] == list(range(1, 151))
    assert lake.gaps(case.topic) == []
    put_topic(case.connection, case.topic, cap_records=20)  # 131 to 150
    case.table.manage_snapshots().rollback_to_snapshot(case.snapshots[0]).commit()
    case.refill()
    assert [row.seq for row in lake.records(case.topic)] == [*range(1, 51), *range(131, 151)]
    assert lake.gaps(case.topic) == [(0, 51, 130)]


def test_deleted_records_do_not_come_back_and_are_no_gaps(case: Case) -> None:
    request = pb.DeleteRecordsRequest(topic=case.topic)
    request.before_seq = 120
    case.connection.unary(case.connection.topics.DeleteRecords, request, repeatable=True)
    _rollback(case)
    case.refill()
    lake = Lake(case.config)
    assert [row.seq for row in lake.records(case.topic)] == [*range(1, 101), *range(120, 151)]
    assert lake.gaps(case.topic) == []


def _foreign_rewrite(table: Table) -> None:
    everything = table.scan().to_arrow()
    table.overwrite(everything)


def _foreign_delete(table: Table) -> None:
    table.delete("seq <= 10")


HARMLESS = [
    lambda table: compact(table, Compaction(thorough=True)),
    merge_manifests,
    _foreign_rewrite,
    _foreign_delete,
    lambda table: table.append(table.scan("seq = 0").to_arrow()),
]


@pytest.mark.parametrize("change", HARMLESS)
def test_what_changes_no_history_is_no_rollback_whatever_expires(case: Case, change: Callable[[Table], object]) -> None:
    change(case.table)
    with case.table.transaction() as transaction:
        transaction.set_properties({"owner": "someone"})
    table = case.table
    case.expire(*[each.snapshot_id for each in table.metadata.snapshots[:-1]])
    case.more(150, 10)
    follow(case.config)
    with Lakehouse(case.config) as session:
        (found,) = session.query(
            "SELECT max(seq) AS top, count(distinct seq) AS n, count(*) AS rows FROM orders"
        ).to_pylist()
    gone = 10 if change is _foreign_delete else 0
    assert found == {"top": 160, "n": 160 - gone, "rows": 160 - gone}


def test_own_expiry_keeps_what_tells_the_history(case: Case) -> None:
    table = case.table
    for i in range(4):
        table.delete(f"seq = {i + 1}")
    expire(table, 1)
    assert case.snapshots[2] in {each.snapshot_id for each in table.refresh().metadata.snapshots}
    follow(case.config)


def test_a_table_that_is_rolled_forward_again_is_in_order(case: Case) -> None:
    _rollback(case)
    assert case.refusals()
    case.table.manage_snapshots().set_current_snapshot(case.snapshots[2]).commit()
    case.check()


def test_a_table_of_an_older_version_is_judged_by_what_it_has(case: Case) -> None:
    """Its snapshots have ranges alone, and no property has the snapshot."""

    def as_before(table: Table) -> None:
        path = Path(table.metadata_location.removeprefix("file://"))
        metadata = json.loads(path.read_text())
        for snapshot in metadata["snapshots"]:
            snapshot["summary"].pop(POSITIONS)
        for name in (SNAPSHOT, ROWS):
            metadata["properties"].pop(name)
        path.write_text(json.dumps(metadata))

    as_before(case.table)
    case.table.delete("seq = 1")
    case.expire(*case.snapshots)
    follow(case.config)
    case.more(150)
    follow(case.config)
    assert len(Lake(case.config).records(case.topic)) == 199
    case.table.manage_snapshots().set_current_snapshot(case.table.metadata.snapshots[0].snapshot_id).commit()
    assert case.refusals()
    case.refill()
    case.check()


def test_positions_set_anew_by_hand_must_be_those_that_the_table_holds(case: Case) -> None:
    _rollback(case)
    case.expire(case.snapshots[2])
    with case.table.transaction() as transaction:
        transaction.remove_properties(COMMIT)
    assert case.refusals()
    with case.table.transaction() as transaction:
        transaction.set_properties({POSITIONS: '{"0": 100}'})
    case.refill()  # the group still says 150
    case.check()


@pytest.mark.parametrize("role", ["orders_errors", "orders_gaps"])
def test_tables_of_errors_and_gaps_are_refused_and_refilled_too(case: Case, role: str) -> None:
    put_topic(case.connection, case.topic, cap_records=20)
    case.more(150)
    follow(case.config)
    lake = Lake(case.config)
    before = lake.errors(case.topic), lake.gaps(case.topic)
    assert before[1] == [(0, 151, 180)]
    table = case.catalog.load_table(f"topics.{role}")
    with table.transaction() as change:
        change._apply((RemoveSnapshotRefUpdate(ref_name="main"),), ())
    pipeline = Pipeline(case.config, LocalRunner())
    assert not pipeline.once()
    pipeline.close()
    (found,) = status(case.config, case.catalog, case.connection)
    assert "rolled back" in found.problems[0]
    with Lakehouse(case.config) as session, pytest.raises(RolledBackError):
        session.query(f"FROM {role}")
    case.refill()
    if role == "orders_gaps":
        assert (lake.errors(case.topic), lake.gaps(case.topic)) == before
    else:  # of those that the topic still has
        assert lake.errors(case.topic) == [(0, 190), (0, 200)]
    assert len(lake.records(case.topic)) == 170
    follow(case.config)


@pytest.mark.parametrize("crash", [1, 2, 3])
def test_a_refill_that_ends_behind_any_commit_is_done_once_in_the_end(
    case: Case, crash: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_topic(case.connection, case.topic, cap_records=20)
    _rollback(case)
    table = case.catalog.load_table("topics.orders_errors")
    table.manage_snapshots().rollback_to_snapshot(table.metadata.snapshots[1].snapshot_id).commit()
    real, done = follower.append, 0

    def append(catalog: Catalog, wanted: follower.Append) -> Table:
        nonlocal done
        done += 1
        if done == crash:
            real(catalog, wanted)
            raise KeyboardInterrupt
        return real(catalog, wanted)

    with monkeypatch.context() as patch:
        patch.setattr(follower, "append", append)
        pipeline = Pipeline(case.config, LocalRunner(), refill=True)
        with pytest.raises(KeyboardInterrupt):
            pipeline.once()
        pipeline.close()
    if crash < 3:
        assert case.refusals()
        case.refill()
    lake = Lake(case.config)
    assert [row.seq for row in lake.records(case.topic)] == [*range(1, 101), *range(131, 151)]
    assert lake.gaps(case.topic) == [(0, 101, 130)]
    assert lake.errors(case.topic) == [(0, seq) for seq in (*range(10, 101, 10), 140, 150)]
    follow(case.config)


def test_two_refills_at_once_fill_once(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    _rollback(case)
    real = follower.append

    def append(catalog: Catalog, wanted: follower.Append) -> Table:
        monkeypatch.setattr(follower, "append", real)
        case.refill()  # another pipeline is faster
        return real(catalog, wanted)

    monkeypatch.setattr(follower, "append", append)
    case.refill()
    case.check()


def test_a_lost_answer_of_a_refill_is_made_good(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    _rollback(case)
    real = follower.append

    def append(catalog: Catalog, wanted: follower.Append) -> Table:
        monkeypatch.setattr(follower, "append", real)
        real(catalog, wanted)
        raise CatalogDownError("no answer")

    monkeypatch.setattr(follower, "append", append)
    case.refill()
    case.check()


def test_a_running_pipeline_refills_only_at_its_start(case: Case) -> None:
    _rollback(case)
    pipeline = Pipeline(case.config, LocalRunner(), refill=True)
    assert pipeline.once()
    _rollback(case)
    case.more(150)
    assert not pipeline.once()
    pipeline.close()
    assert case.refusals()


def test_the_mark_is_in_the_commit_and_on_every_rewrite(case: Case) -> None:
    table = case.table
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert (table.properties[SNAPSHOT], table.properties[ROWS]) == (str(snapshot.snapshot_id), "150")
    compact(table, Compaction(thorough=True))
    rewritten = table.refresh().current_snapshot()
    assert rewritten is not None
    assert rewritten.summary is not None
    assert rewritten.snapshot_id != snapshot.snapshot_id
    assert rewritten.summary.get(COMMIT) == snapshot.summary.get(COMMIT)
    assert rewritten.summary.get(POSITIONS) == '{"0": 150}'
    assert rewritten.summary.get(RANGES) is None
