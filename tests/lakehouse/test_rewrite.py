"""Files of a table replaced by others: atomic, in order, and concurrent with other commits."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyiceberg.exceptions import ValidationException
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.types import ListType, LongType, MapType, NestedField, StringType, StructType

from support.lake_tables import append, batch, content, make_catalog, make_table, seqs_of, write_file
from topics_lakehouse import rewrite
from topics_lakehouse.rewrite import Rewritten, live_files, merge_manifests, read_file, replace
from topics_lakehouse.schema import file_schema


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return make_table(make_catalog(tmp_path))


def _data_files(table: Table) -> set[str]:
    return set(os.listdir(f"{table.location().removeprefix('file://')}/data"))


def _even(batch: pa.RecordBatch) -> pa.BooleanArray:
    return pc.equal(pc.bit_wise_and(batch.column("seq"), 1), 0)


def test_files_are_listed_in_order_with_their_range(table: Table) -> None:
    append(table, 11, 20)
    append(table, 1, 10)
    append(table, 1, 5, partition=1)
    found = live_files(table)
    assert [(each.partition, each.first, each.last, each.rows) for each in found] == [
        (0, 1, 10, 10),
        (0, 11, 20, 10),
        (1, 1, 5, 5),
    ]


def test_an_empty_table_has_no_files(table: Table) -> None:
    assert live_files(table) == []
    assert replace(table, []) == Rewritten()


def test_what_manifests_hold_is_read_once(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    append(table, 1, 10)
    known: dict[str, list[rewrite.LiveFile]] = {}
    first = live_files(table, known=known)
    append(table, 11, 20)
    asked: list[str] = []
    monkeypatch.setattr(rewrite, "_live", lambda *given: asked.append(given[1].file_path) or first[0])
    live_files(table, known=known)
    assert len(asked) == 1


def test_several_files_become_one_with_the_same_rows_in_order(table: Table) -> None:
    for i in range(4):
        append(table, 10 * i + 1, 10 * i + 10)
    before, positions = content(table), table.metadata.properties["topics.positions"]
    done = replace(table, [live_files(table)])
    assert (done.files_before, done.files_after, done.rows_before, done.rows_after) == (4, 1, 40, 40)
    (file,) = live_files(table.refresh())
    assert pq.read_table(file.path.removeprefix("file://")).column("seq").to_pylist() == list(range(1, 41))
    assert content(table) == before
    assert table.metadata.properties["topics.positions"] == positions
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary.operation is Operation.REPLACE
    assert snapshot.summary["total-records"] == "40"
    assert snapshot.summary["total-data-files"] == "1"


def test_field_ids_and_bounds_of_the_new_file_are_as_a_reader_needs_them(table: Table) -> None:
    append(table, 1, 10)
    append(table, 11, 20)
    replace(table, [live_files(table)])
    (file,) = live_files(table.refresh())
    assert (file.partition, file.first, file.last) == (0, 1, 20)
    schema = pq.read_schema(file.path.removeprefix("file://"))
    assert [field.metadata[b"PARQUET:field_id"] for field in schema] == [str(i + 1).encode() for i in range(8)]
    assert schema.field("ts").type == pa.timestamp("us", "UTC")


def test_each_group_becomes_a_file(table: Table) -> None:
    for i in range(4):
        append(table, 10 * i + 1, 10 * i + 10)
    before, files = content(table), live_files(table)
    replace(table, [files[:2], files[2:]])
    assert [(each.first, each.last) for each in live_files(table.refresh())] == [(1, 20), (21, 40)]
    assert content(table) == before


def test_rows_that_are_not_kept_are_gone(table: Table) -> None:
    append(table, 1, 10)
    append(table, 11, 20)
    done = replace(table, [[each] for each in live_files(table)], keep=_even)
    assert (done.rows_before, done.rows_after) == (20, 10)
    assert seqs_of(table) == list(range(2, 21, 2))
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary.operation is Operation.OVERWRITE


def test_a_group_of_which_nothing_is_kept_leaves_no_file(table: Table) -> None:
    append(table, 1, 10)
    append(table, 11, 20)
    replace(table, [[each] for each in live_files(table)], keep=lambda batch: pc.greater(batch.column("seq"), 10))
    assert [(each.first, each.last) for each in live_files(table.refresh())] == [(11, 20)]
    replace(table, [live_files(table)], keep=lambda batch: pc.less(batch.column("seq"), 0))
    assert live_files(table.refresh()) == []
    assert content(table) == []


def test_a_commit_of_records_that_comes_first_lands_as_well(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    append(table, 1, 10)
    append(table, 11, 20)
    files, other = live_files(table), table.catalog.load_table("topics.orders")
    real = rewrite._commit

    def late(*given: object) -> None:
        append(other, 21, 30)
        real(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(rewrite, "_commit", late)
    replace(table, [files])
    assert seqs_of(table) == list(range(1, 31))
    assert [(each.first, each.last) for each in live_files(table)] == [(1, 20), (21, 30)]
    assert json.loads(table.metadata.properties["topics.positions"]) == {"0": 30}


def test_the_second_replacement_of_a_file_is_refused_and_leaves_nothing(table: Table) -> None:
    append(table, 1, 10)
    append(table, 11, 20)
    stale = table.catalog.load_table("topics.orders")
    files = live_files(stale)
    replace(table, [live_files(table)])
    before, present = content(table), _data_files(table)
    with pytest.raises(ValidationException):
        replace(stale, [files])
    with pytest.raises(ValidationException, match="Missing required files"):
        replace(table.refresh(), [files])
    assert content(table) == before
    assert _data_files(table) == present


def test_a_failure_while_writing_leaves_nothing(table: Table) -> None:
    append(table, 1, 10)
    append(table, 11, 20)
    before, present = content(table), _data_files(table)

    def fails(batch: pa.RecordBatch) -> pa.BooleanArray:
        if batch.column("seq")[0].as_py() > 10:
            raise RuntimeError("no")
        return _even(batch)

    with pytest.raises(RuntimeError, match="no"):
        replace(table, [[each] for each in live_files(table)], keep=fails)
    assert content(table) == before
    assert _data_files(table) == present


def test_an_unknown_outcome_of_the_commit_leaves_the_new_files(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    append(table, 1, 10)
    append(table, 11, 20)
    before, real = content(table), rewrite._commit

    def lost(*given: object) -> None:
        real(*given)  # type: ignore[arg-type]
        raise OSError("the answer was lost")

    monkeypatch.setattr(rewrite, "_commit", lost)
    with pytest.raises(OSError, match="lost"):
        replace(table, [live_files(table)])
    assert content(table) == before


def test_files_of_an_older_schema_are_written_in_the_present_one(table: Table) -> None:
    append(table, 1, 10)
    with table.update_schema() as update:
        update.add_column("amount", LongType())
        update.rename_column("node", "source")
        update.add_column("note", StringType())
    append(table, 11, 20)
    before = content(table)
    replace(table, [live_files(table)])
    assert content(table) == before
    assert {"amount", "note", "source"} <= before[0].keys()
    assert before[0]["source"] == "n1"


@pytest.mark.parametrize("changed", [False, True])
def test_nested_columns_keep_their_nulls(table: Table, changed: bool) -> None:
    """Also where someone has given the elements of a list one more field since."""
    with table.update_schema() as update:
        update.add_column("items", ListType(0, StructType(NestedField(0, "n", LongType())), element_required=False))
        update.add_column("attrs", MapType(0, StringType(), 0, LongType(), value_required=False))
    lists = (None, [], [{"n": 1}, None], [{"n": None}])
    maps = (None, [], [("a", 1)], [])
    plain = batch(table, range(1, 5)).to_pylist()
    rows = [{**row, "items": items, "attrs": attrs} for row, items, attrs in zip(plain, lists, maps, strict=True)]
    schema = file_schema(table.schema(), [each.name for each in table.schema().fields])
    made = pa.RecordBatch.from_pylist(rows, schema=schema)
    table.add_files([write_file(table, "nested.parquet", made)])
    if changed:
        with table.update_schema() as update:
            update.add_column(("items", "more"), StringType())
    replace(table, [live_files(table)])
    (file,) = live_files(table.refresh())
    found = pa.Table.from_batches(read_file(table, file, ("items", "attrs"))).to_pylist()
    more = {"more": None} if changed else {}
    assert [row["items"] for row in found] == [None, [], [{"n": 1, **more}, None], [{"n": None, **more}]]
    assert [row["attrs"] for row in found] == list(maps)


def test_large_records_are_read_in_small_batches(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    append(table, 1, 1000)
    monkeypatch.setattr(rewrite, "_BATCH_BYTES", 4096)
    sizes = [batch.num_rows for batch in read_file(table, live_files(table)[0])]
    assert sum(sizes) == 1000
    assert max(sizes) < 200


def test_row_groups_are_filled_over_files(table: Table) -> None:
    with table.transaction() as transaction:
        transaction.set_properties({"write.parquet.row-group-limit": "16"})
    for i in range(5):
        append(table, 10 * i + 1, 10 * i + 10)
    before = content(table)
    replace(table, [live_files(table)])
    (file,) = live_files(table.refresh())
    metadata = pq.read_metadata(file.path.removeprefix("file://"))
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [20, 20, 10]
    assert content(table) == before


def test_manifests_are_merged_without_a_change_of_data(table: Table) -> None:
    for i in range(12):
        append(table, 10 * i + 1, 10 * i + 10)
    before = content(table)
    merge_manifests(table)
    snapshot = table.refresh().current_snapshot()
    assert snapshot is not None
    assert len(snapshot.manifests(table.io)) == 1
    assert content(table) == before
    append(table, 121, 130)
    replace(table, [live_files(table)[:3]])
    assert seqs_of(table) == list(range(1, 131))


def test_memory_does_not_grow_with_the_files(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    with table.transaction() as transaction:
        transaction.set_properties({"write.parquet.row-group-limit": "2000"})
    for i in range(3):
        rows = batch(table, range(10_000 * i + 1, 10_000 * i + 10_001), pad=2000)
        table.add_files([write_file(table, f"{i}.parquet", rows)])
        del rows
    real, before = rewrite.read_file, pa.total_allocated_bytes()
    seen: list[int] = []

    def measured(*given: object) -> Iterator[pa.RecordBatch]:
        for each in real(*given):  # type: ignore[arg-type]
            yield each
            seen.append(pa.total_allocated_bytes() - before)

    monkeypatch.setattr(rewrite, "read_file", measured)
    replace(table, [live_files(table)])
    (file,) = live_files(table.refresh())
    metadata = pq.read_metadata(file.path.removeprefix("file://"))
    whole = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    assert file.rows == 30_000
    assert max(seen) < whole / 2
