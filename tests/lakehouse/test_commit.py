"""The fence: each range lands once, for any committer, and after any lost answer."""

import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import requests
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table

from topics_lakehouse.catalog import (
    COMMIT,
    RECORDS,
    CatalogDownError,
    TableError,
    create_table,
    identifier,
    open_catalog,
    table_state,
)
from topics_lakehouse.commit import Append, FencedError, append, form_of
from topics_lakehouse.config import Config, load
from topics_lakehouse.maintain import Maintenance, maintain
from topics_lakehouse.parquet import ParquetFiles, layout
from topics_lakehouse.rewrite import merge_manifests
from topics_lakehouse.schema import ENVELOPE

_ID = "top_01jd0000000000000000000000"


def _config(folder: Path | str) -> Config:
    return load(None, {"server": "topics://127.0.0.1:1", "warehouse": str(folder), "topics": [{"name": "orders"}]})


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return _config(tmp_path)


@pytest.fixture
def catalog(config: Config) -> Catalog:
    return open_catalog(config)


@pytest.fixture
def table(catalog: Catalog, config: Config) -> Table:
    name = identifier(config, "orders")
    return create_table(catalog, config, name, ENVELOPE, topic="orders", topic_id=_ID, role=RECORDS)


def _range(table: Table, first: int, last: int) -> Append:
    """A commit of one file with these seqs."""
    where = layout(table, ["partition", "seq"], row_group_rows=100, target_bytes=1 << 20)
    count = last - first + 1
    rows = [pa.array([0] * count, pa.int32()), pa.array(range(first, last + 1), pa.int64())]
    with ParquetFiles(table.io, where) as files:
        files.write(pa.RecordBatch.from_arrays(rows, schema=where.schema))
        return Append(
            name=table.name(),
            table_uuid=table.metadata.table_uuid,
            topic="orders",
            topic_id=_ID,
            base={0: first - 1},
            target={0: last},
            ranges={0: (first, last)},
            files=files.close(),
            form=form_of(table),
        )


def _seqs(table: Table) -> list[int]:
    found = table.refresh().scan(selected_fields=("seq",)).to_arrow().column("seq").to_pylist()
    return sorted(found)


def test_a_range_moves_the_positions_with_its_files(catalog: Catalog, table: Table) -> None:
    after = append(catalog, _range(table, 1, 10))
    after = append(catalog, _range(after, 11, 15))
    assert table_state(after).positions == {0: 15}
    assert after.current_snapshot().summary["topics.ranges"] == '{"0": [11, 15]}'
    assert _seqs(table) == [*range(1, 16)]


def test_a_commit_that_landed_lands_once(catalog: Catalog, table: Table) -> None:
    first, second = _range(table, 1, 10), _range(table, 11, 20)
    append(catalog, first)
    append(catalog, first)
    append(catalog, second)
    append(catalog, first)  # found in the history
    assert _seqs(table) == [*range(1, 21)]


def test_a_second_committer_of_a_range_is_refused(catalog: Catalog, table: Table) -> None:
    one, other = _range(table, 1, 10), _range(table, 1, 10)
    append(catalog, one)
    with pytest.raises(FencedError, match=r"topic orders into table topics.orders: seq 1 to 10: .*\"0\": 10"):
        append(catalog, other)
    with pytest.raises(FencedError):
        append(catalog, _range(table, 5, 12))
    with pytest.raises(FencedError):
        append(catalog, _range(table, 12, 15))
    assert _seqs(table) == [*range(1, 11)]


def test_the_fence_holds_when_the_other_comes_in_between(
    catalog: Catalog, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loser has looked at the positions already when the winner lands."""
    one, other = _range(table, 1, 10), _range(table, 1, 10)
    landing = SqlCatalog.commit_table

    def first_the_other(*given: Any) -> Any:
        monkeypatch.setattr(SqlCatalog, "commit_table", landing)
        append(catalog, other)
        return landing(*given)

    monkeypatch.setattr(SqlCatalog, "commit_table", first_the_other)
    with pytest.raises(FencedError):
        append(catalog, one)
    assert _seqs(table) == [*range(1, 11)]
    assert table.properties[COMMIT] == other.commit_id


def test_other_changes_in_between_do_no_harm(catalog: Catalog, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    append(catalog, _range(table, 1, 10))
    landing = SqlCatalog.commit_table

    def first_another_change(*given: Any) -> Any:
        monkeypatch.setattr(SqlCatalog, "commit_table", landing)
        other = catalog.load_table(table.name())
        other.delete("seq <= 5")
        return landing(*given)

    wanted = _range(table, 11, 20)
    monkeypatch.setattr(SqlCatalog, "commit_table", first_another_change)
    append(catalog, wanted)
    assert _seqs(table) == [*range(6, 21)]


def test_files_of_an_old_schema_are_refused(catalog: Catalog, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """They might lack, or have, what the change was about."""
    wanted = _range(table, 1, 10)
    landing = SqlCatalog.commit_table

    def first_another_change(*given: Any) -> Any:
        monkeypatch.setattr(SqlCatalog, "commit_table", landing)
        with catalog.load_table(table.name()).update_schema() as update:
            update.rename_column("seq", "old_seq")
        return landing(*given)

    monkeypatch.setattr(SqlCatalog, "commit_table", first_another_change)
    with pytest.raises(FencedError, match="columns or partitions were changed"):
        append(catalog, wanted)
    with pytest.raises(FencedError, match="columns or partitions were changed"):
        append(catalog, wanted)
    assert table.refresh().current_snapshot() is None


def test_a_table_that_was_rolled_back_is_noticed(catalog: Catalog, table: Table) -> None:
    before = append(catalog, _range(table, 1, 10)).current_snapshot()
    after = append(catalog, _range(table.refresh(), 11, 20))
    after.manage_snapshots().set_current_snapshot(before.snapshot_id).commit()
    with pytest.raises(TableError, match=r"it was rolled back below its positions {\"0\": 20}"):
        append(catalog, _range(table.refresh(), 21, 30))


def _lost_answer(landing: Callable[..., Any]) -> Callable[..., Any]:
    def commit_table(*given: Any) -> Any:
        landing(*given)
        raise requests.ConnectionError("the answer got lost")

    return commit_table


def _lost_request(landing: Callable[..., Any]) -> Callable[..., Any]:
    def commit_table(*given: Any) -> Any:
        raise requests.ConnectionError("nobody there")

    return commit_table


@pytest.mark.parametrize("trouble", [_lost_answer, _lost_request])
def test_an_unknown_outcome_is_found_out(
    catalog: Catalog, table: Table, monkeypatch: pytest.MonkeyPatch, trouble: Callable[..., Any]
) -> None:
    wanted = _range(table, 1, 10)
    with monkeypatch.context() as patch:
        patch.setattr(SqlCatalog, "commit_table", trouble(SqlCatalog.commit_table))
        with pytest.raises(CatalogDownError, match="seq 1 to 10"):
            append(catalog, wanted)
    append(catalog, wanted)
    assert _seqs(table) == [*range(1, 11)]


def test_a_conflict_that_was_none_of_ours(catalog: Catalog, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalog that says "conflict" although the commit landed: its own retry saw the first attempt's work."""
    landing = SqlCatalog.commit_table

    def commit_table(*given: Any) -> Any:
        monkeypatch.setattr(SqlCatalog, "commit_table", landing)
        landing(*given)
        raise CommitFailedException("branch main has changed")

    monkeypatch.setattr(SqlCatalog, "commit_table", commit_table)
    append(catalog, _range(table, 1, 10))
    assert _seqs(table) == [*range(1, 11)]


def test_a_table_that_is_gone_or_another(catalog: Catalog, table: Table, config: Config) -> None:
    wanted = _range(table, 1, 10)
    catalog.drop_table(table.name())
    with pytest.raises(TableError, match="someone dropped the table"):
        append(catalog, wanted)
    create_table(catalog, config, table.name(), ENVELOPE, topic="orders", topic_id=_ID, role=RECORDS)
    with pytest.raises(FencedError, match="another one now"):
        append(catalog, wanted)


def test_files_that_passed_for_orphans_are_not_committed(catalog: Catalog, table: Table) -> None:
    wanted = _range(table, 1, 10)
    table.io.delete(wanted.files[0].file_path)
    with pytest.raises(TableError, match=r"seq 1 to 10: someone deleted .*parquet before it was committed"):
        append(catalog, wanted)
    assert table.refresh().current_snapshot() is None


def test_a_start_that_expired_in_between_is_no_fence(
    catalog: Catalog, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others rewrite the table and drop the snapshot that the commit began at: the positions are still the same."""
    table = append(catalog, _range(table, 1, 10))
    wanted, start = _range(table, 11, 20), table.current_snapshot()
    assert start is not None
    landing = SqlCatalog.commit_table

    def commit_table(*given: Any) -> Any:
        monkeypatch.setattr(SqlCatalog, "commit_table", landing)
        other = catalog.load_table(table.name())
        merge_manifests(other)
        other.maintenance.expire_snapshots().by_id(start.snapshot_id).commit()
        return landing(*given)

    monkeypatch.setattr(SqlCatalog, "commit_table", commit_table)
    append(catalog, wanted)
    assert _seqs(table) == [*range(1, 21)]


def test_a_renamed_table_and_its_successor_share_no_folder(catalog: Catalog, table: Table, config: Config) -> None:
    """What the one does not refer to would pass for its orphans."""
    append(catalog, _range(table, 1, 10))
    catalog.rename_table(table.name(), ("topics", "kept"))
    new = create_table(catalog, config, table.name(), ENVELOPE, topic="orders", topic_id=_ID, role=RECORDS)
    maintain(new, Maintenance(orphan_grace_seconds=0), now=time.time() + 60)
    assert _seqs(catalog.load_table(("topics", "kept"))) == [*range(1, 11)]


def _race(folder: str, ranges: int, won: "multiprocessing.Queue[int]") -> None:
    """Append ten seqs after ten until the end is reached; counts those that were ours."""
    config = _config(folder)
    catalog = open_catalog(config)
    mine = 0
    while True:
        table = catalog.load_table(identifier(config, "orders"))
        position = table_state(table).positions.get(0, 0)
        if position >= ranges * 10:
            break
        try:
            append(catalog, _range(table, position + 1, position + 10))
            mine += 1
        except (FencedError, CatalogDownError):
            continue
    won.put(mine)


def test_processes_that_race_for_every_range(tmp_path: Path, catalog: Catalog, table: Table) -> None:
    ranges = 12
    context = multiprocessing.get_context("spawn")
    won: multiprocessing.Queue[int] = context.Queue()
    racers = [context.Process(target=_race, args=(str(tmp_path), ranges, won), daemon=True) for _ in range(3)]
    for racer in racers:
        racer.start()
    wins = [won.get(timeout=100) for _ in racers]
    for racer in racers:
        racer.join(20)
    assert sum(wins) == ranges
    assert _seqs(table) == [*range(1, ranges * 10 + 1)]
