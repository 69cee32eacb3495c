"""What a table keeps of its past stays bounded, and nothing that is needed is ever deleted."""

import os
import time
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.table import Table

from support.lake_tables import append, batch, content, make_catalog, make_table, seqs_of, write_file
from topics_lakehouse import maintain as maintenance
from topics_lakehouse.compact import Compaction, compact
from topics_lakehouse.maintain import Maintained, Maintenance, delete_orphans, expire, maintain, referenced

NO_GRACE = Maintenance(keep_snapshots=5, merge_manifests_at=5, orphan_grace_seconds=0)


@pytest.fixture
def catalog(tmp_path: Path) -> SqlCatalog:
    return make_catalog(tmp_path)


@pytest.fixture
def table(catalog: SqlCatalog) -> Table:
    return make_table(catalog)


def _folder(table: Table) -> Path:
    return Path(table.location().removeprefix("file://"))


def _files(table: Table) -> set[str]:
    return {str(path) for path in _folder(table).rglob("*") if path.is_file()}


def _later() -> float:
    return time.time() + 60


def test_a_hundred_commits_leave_a_bounded_table(table: Table) -> None:
    for i in range(100):
        append(table, 10 * i + 1, 10 * i + 10)
        if i % 10 == 9:
            compact(table, Compaction(target_bytes=1 << 20, min_files=4))
            maintain(table, NO_GRACE, now=_later())
    table.refresh()
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert seqs_of(table) == list(range(1, 1001))
    assert len(table.metadata.snapshots) <= 5
    assert len(snapshot.manifests(table.io)) <= 5
    assert len(list((_folder(table) / "metadata").glob("*.metadata.json"))) <= 12
    assert _files(table) == referenced(table)
    assert len(_files(table)) < 60


def test_expiry_keeps_the_newest_and_what_has_a_name(table: Table) -> None:
    for i in range(6):
        append(table, 10 * i + 1, 10 * i + 10)
    ids = [each.snapshot_id for each in table.metadata.snapshots]
    table.manage_snapshots().create_tag(ids[1], "keep").commit()
    assert expire(table, 3) == 2
    assert {each.snapshot_id for each in table.refresh().metadata.snapshots} == {ids[1], *ids[3:]}
    assert expire(table, 3) == 0
    assert expire(table, 0) == 1
    assert len(table.metadata.snapshots) == 3
    assert seqs_of(table) == list(range(1, 61))


def test_expiry_begins_anew_after_a_lost_race(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(6):
        append(table, 10 * i + 1, 10 * i + 10)
    monkeypatch.setattr(maintenance, "_EXPIRE_AT_ONCE", 1)
    real, lost = type(table)._do_commit, []

    def racing(self: Table, **given: object) -> None:
        if len(lost) < 2:
            lost.append(1)
            raise CommitFailedException("lost")
        real(self, **given)  # type: ignore[arg-type]

    monkeypatch.setattr(type(table), "_do_commit", racing)
    assert expire(table, 3) == 3
    monkeypatch.setattr(maintenance, "_RACES", 2)
    lost.clear()
    with pytest.raises(CommitFailedException):
        expire(table, 2)


def test_orphans_go_after_the_grace_and_not_before(table: Table) -> None:
    append(table, 1, 10)
    orphan = _folder(table) / "data" / "orphan.parquet"
    orphan.write_bytes(b"1234")
    before = content(table)
    assert maintain(table, Maintenance(orphan_grace_seconds=3600)) == Maintained()
    assert orphan.exists()
    os.utime(orphan, (time.time() - 7200,) * 2)
    assert maintain(table, Maintenance(orphan_grace_seconds=3600)) == Maintained(0, 0, 1, 4)
    assert not orphan.exists()
    assert content(table) == before


def test_files_outside_of_the_tables_folders_are_never_touched(table: Table) -> None:
    append(table, 1, 10)
    own = _folder(table) / "notes.txt"
    beside = _folder(table).parent / "orders_errors-abc" / "data" / "x.parquet"
    beside.parent.mkdir(parents=True)
    for each in (own, beside, _folder(table) / "metadata" / "version-hint.text"):
        each.write_text("mine")
    assert maintain(table, NO_GRACE, now=_later()).files_deleted == 0
    assert own.exists()
    assert beside.exists()


def test_what_is_in_flight_stays_at_any_age(table: Table) -> None:
    append(table, 1, 10)
    path = write_file(table, "flying.parquet", batch(table, range(11, 21)))
    assert maintain(table, NO_GRACE, in_flight=[path], now=_later()).files_deleted == 0
    table.add_files([path])
    assert maintain(table, NO_GRACE, now=_later()).files_deleted == 0
    assert seqs_of(table) == list(range(1, 21))


def test_a_file_that_is_committed_while_orphans_are_looked_for_stays(
    table: Table, catalog: SqlCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(table, 1, 10)
    path = write_file(table, "flying.parquet", batch(table, range(11, 21)))
    other, real = catalog.load_table("topics.orders"), maintenance.referenced

    def late(seen: Table) -> set[str]:
        assert seen.metadata_location == other.metadata_location
        return real(seen)

    real_stored = maintenance._stored

    def listed(*given: object) -> list[object]:
        found = list(real_stored(*given))  # type: ignore[arg-type]
        if not other.metadata.properties.get("done"):
            transaction = other.transaction()
            transaction.set_properties({"done": "yes"})
            with transaction.update_snapshot().fast_append() as added:
                added.append_data_file(parquet_file_to_data_file(other.io, other.metadata, path))
            transaction.commit_transaction()
        return found

    monkeypatch.setattr(maintenance, "_stored", listed)
    monkeypatch.setattr(maintenance, "referenced", late)
    delete_orphans(table, _later())
    assert seqs_of(table) == list(range(1, 21))


def test_retained_snapshots_stay_readable(table: Table) -> None:
    for i in range(12):
        append(table, 10 * i + 1, 10 * i + 10)
    compact(table, Compaction(thorough=True))
    maintain(table, Maintenance(keep_snapshots=4, merge_manifests_at=1, orphan_grace_seconds=0), now=_later())
    for snapshot in table.refresh().metadata.snapshots:
        assert len(table.scan(snapshot_id=snapshot.snapshot_id).to_arrow()) in (100, 110, 120)
    maintain(table, Maintenance(keep_snapshots=1, orphan_grace_seconds=0), now=_later())
    assert seqs_of(table) == list(range(1, 121))


def test_locations_are_the_same_however_they_are_written() -> None:
    key = maintenance._key
    assert key("file:///a/b") == key("file:/a/b") == key("/a/b") == "/a/b"
    assert key("s3://bucket/a") == key("s3a://bucket/a") == key("bucket/a") == "bucket/a"


def test_an_empty_table_is_left_alone(table: Table) -> None:
    assert maintain(table, NO_GRACE, now=_later()) == Maintained()
    assert seqs_of(table) == []
