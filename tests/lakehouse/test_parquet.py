"""The files of a table: sizes, row groups, bounds, and leftovers of unwanted files."""

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.conversions import from_bytes
from pyiceberg.table import Table
from pyiceberg.types import LongType

from topics_lakehouse.catalog import RECORDS, create_table, identifier, open_catalog
from topics_lakehouse.config import load
from topics_lakehouse.parquet import Layout, ParquetFiles, layout
from topics_lakehouse.schema import ENVELOPE


@pytest.fixture
def table(tmp_path: Path) -> Table:
    config = load(None, {"warehouse": str(tmp_path), "topics": ["orders"]})
    catalog = open_catalog(config)
    name = identifier(config, "orders")
    return create_table(catalog, config, name, ENVELOPE, topic="orders", topic_id="top_a", role=RECORDS)


def _layout(table: Table, *, rows: int = 1000, size: int = 1 << 30) -> Layout:
    return layout(table, ["partition", "seq", "data"], row_group_rows=rows, target_bytes=size)


def _batch(where: Layout, first: int, count: int, data: bytes | None = None) -> pa.RecordBatch:
    columns = {
        "partition": pa.repeat(pa.scalar(0, pa.int32()), count),
        "seq": pa.array(range(first, first + count), pa.int64()),
        "data": pa.array([os.urandom(100) if data is None else data for _ in range(count)], pa.binary()),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in where.schema.names], schema=where.schema)


def _path(location: str) -> str:
    return location.removeprefix("file://")


def test_row_groups_are_of_the_size_asked_for(table: Table) -> None:
    where = _layout(table, rows=1000)
    with ParquetFiles(table.io, where, "0-1") as files:
        for first in range(1, 2501, 100):
            files.write(_batch(where, first, 100))
        (file,) = files.close()
    found = pq.read_metadata(_path(file.file_path))
    assert [found.row_group(i).num_rows for i in range(found.num_row_groups)] == [1000, 1000, 500]
    assert found.row_group(0).column(0).compression == "ZSTD"
    assert (file.record_count, file.file_size_in_bytes) == (2500, os.path.getsize(_path(file.file_path)))
    seq = table.schema().find_field("seq").field_id
    assert from_bytes(LongType(), file.lower_bounds[seq]) == 1
    assert from_bytes(LongType(), file.upper_bounds[seq]) == 2500
    assert Path(_path(file.file_path)).name.startswith("0-1-")
    ids = {column.name: column.metadata[b"PARQUET:field_id"] for column in pq.read_schema(_path(file.file_path))}
    assert ids == {"partition": b"1", "seq": b"2", "data": b"8"}


def test_a_new_file_at_the_target_size(table: Table) -> None:
    where = _layout(table, rows=500, size=100_000)
    with ParquetFiles(table.io, where) as files:
        for first in range(1, 5001, 500):
            files.write(_batch(where, first, 500))
        found = files.close()
    assert len(found) == 5
    assert all(100_000 <= file.file_size_in_bytes < 120_000 for file in found)
    rows = [seq for file in found for seq in pq.read_table(_path(file.file_path), columns=["seq"])[0].to_pylist()]
    assert rows == list(range(1, 5001))


def test_large_records_are_not_held_back(table: Table) -> None:
    """However many rows a row group may have: what is held of them is bounded."""
    where = _layout(table, rows=100_000)
    before = pa.total_allocated_bytes()
    maximum = 0
    with ParquetFiles(table.io, where) as files:
        for first in range(1, 201):
            files.write(_batch(where, first, 1, data=bytes(1 << 20)))
            maximum = max(maximum, pa.total_allocated_bytes() - before)
        (file,) = files.close()
    assert maximum < 100 << 20
    assert pq.read_metadata(_path(file.file_path)).num_row_groups == 4


def test_no_rows_no_file(table: Table) -> None:
    with ParquetFiles(table.io, _layout(table)) as files:
        assert files.close() == []
    assert not Path(_path(table.location()), "data").exists()


def test_what_fails_leaves_no_files(table: Table) -> None:
    where = _layout(table, rows=100, size=1000)

    def fail() -> None:
        with ParquetFiles(table.io, where) as files:
            for first in range(1, 1001, 150):
                files.write(_batch(where, first, 150))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert os.listdir(Path(_path(table.location()), "data")) == []
