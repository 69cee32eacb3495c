"""Parquet files of a table, described as the catalog wants them."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.typedef import Record

from topics_lakehouse.schema import file_schema

_GROUP_BYTES: Final = 64 << 20  # of Arrow data held back for one row group, however large records are
_PLAIN: Final = ("seq", "ts", "data")  # nearly always different: a dictionary would only cost time
_DATA_PATH: Final = "write.data.path"


@dataclass(frozen=True, slots=True)
class Layout:
    """The location and format of the files of one table. Picklable."""

    folder: str
    schema: pa.Schema  # of the files: with field ids, perhaps not with every column of the table
    table_schema: Schema
    properties: Mapping[str, str] = field(repr=False)  # of the table
    row_group_rows: int
    target_bytes: int
    spec_id: int


def layout(table: Table, columns: list[str], *, row_group_rows: int, target_bytes: int) -> Layout:
    """The layout of files with these columns of the table."""
    folder = table.properties.get(_DATA_PATH) or f"{table.location().rstrip('/')}/data"
    schema = table.schema()
    return Layout(
        folder=folder,
        schema=file_schema(schema, columns),
        table_schema=schema,
        properties=dict(table.properties),
        row_group_rows=row_group_rows,
        target_bytes=target_bytes,
        spec_id=table.spec().spec_id,
    )


class ParquetFiles:
    """Writes rows to files, a new one each time the target size is reached. Holds one row group at a time.

    `close` gives the files; `abort` removes them, for callers that have not published them.
    """

    def __init__(self, io: FileIO, where: Layout, name: str = "") -> None:
        """`name` begins the name of each file."""
        self._io = io
        self._where = where
        self._name = f"{name}-" if name else ""
        self._dictionaries = [
            each.name for each in where.schema if each.name not in _PLAIN and not pa.types.is_nested(each.type)
        ]
        self._held: list[pa.RecordBatch] = []
        self._held_rows = 0
        self._held_bytes = 0
        self._path = ""
        self._sink: Any = None
        self._writer: pq.ParquetWriter | None = None
        self._footers: list[pq.FileMetaData] = []
        self._paths: list[str] = []
        self.files: list[DataFile] = []
        self.rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows, in the layout's schema."""
        self._held.append(batch)
        self._held_rows += batch.num_rows
        self._held_bytes += batch.nbytes
        self.rows += batch.num_rows
        if self._held_rows >= self._where.row_group_rows or self._held_bytes >= _GROUP_BYTES:
            self._flush()

    def close(self) -> list[DataFile]:
        """Finish the last file; every file, in order of writing. None where there were no rows."""
        if self._held_rows:
            self._flush()
        self._finish()
        return self.files

    def abort(self) -> None:
        """Remove every file, as far as that can be done."""
        self._held.clear()
        for close in (self._writer.close if self._writer else None, self._sink.close if self._sink else None):
            try:
                if close is not None:
                    close()
            except Exception:  # a writer that failed can't be closed; the disk may be full
                continue
        self._writer = self._sink = None
        for path in self._paths:
            try:
                self._io.delete(path)
            except Exception:  # an orphan more for the maintenance
                continue
        self.files.clear()

    def _flush(self) -> None:
        if self._writer is None:
            self._open()
        assert self._writer is not None
        rows = pa.Table.from_batches(self._held, schema=self._where.schema)
        self._writer.write_table(rows, row_group_size=max(rows.num_rows, 1))
        self._held.clear()
        self._held_rows = self._held_bytes = 0
        if self._sink.tell() >= self._where.target_bytes:
            self._finish()

    def _open(self) -> None:
        self._path = f"{self._where.folder}/{self._name}{uuid.uuid4().hex}.parquet"
        self._paths.append(self._path)
        self._sink = self._io.new_output(self._path).create(overwrite=True)
        self._writer = pq.ParquetWriter(
            self._sink,
            self._where.schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=self._dictionaries,
            store_schema=False,
            metadata_collector=self._footers,
        )

    def _finish(self) -> None:
        if self._writer is None:
            return
        self._writer.close()
        size = self._sink.tell()
        self._sink.close()
        self._writer = self._sink = None
        self.files.append(_data_file(self._path, size, self._footers.pop(), self._where))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is not None:
            self.abort()


def _data_file(path: str, size: int, footer: pq.FileMetaData, where: Layout) -> DataFile:
    """The manifest entry of the file, with the bounds of its columns."""
    statistics = data_file_statistics_from_parquet_metadata(
        parquet_metadata=footer,
        stats_columns=compute_statistics_plan(where.table_schema, dict(where.properties)),
        parquet_column_mapping=parquet_path_to_id_mapping(where.table_schema),
    )
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        file_size_in_bytes=size,
        sort_order_id=None,
        spec_id=where.spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )
