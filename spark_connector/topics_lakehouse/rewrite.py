"""Replacing some data files of a table by others, in one commit.

The machinery below compaction and deletes. It reads and writes batch by batch, keeps the order of rows, and leaves the
positions of a table alone. A commit of records that comes in between lands as well; another replacement of the same
files makes this one fail, and nothing is changed then.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import (
    ArrowScan,
    _to_requested_schema,
    pyarrow_to_schema,
)
from pyiceberg.manifest import DataFile, ManifestContent, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table, Transaction
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update.snapshot import _ManifestMergeManager, _OverwriteFiles
from pyiceberg.table.update.validate import _validate_data_files_exist, _validate_no_new_deletes_for_data_files
from pyiceberg.typedef import EMPTY_DICT
from pyiceberg.types import NestedField, PrimitiveType

from topics_client.installation import require_hooks
from topics_lakehouse.lineage import carried_mark
from topics_lakehouse.parquet import ParquetFiles, layout
from topics_lakehouse.schema import file_schema

_ROW_GROUP_ROWS: Final = 100_000  # where the table does not say
_BATCH_ROWS: Final = 25_000
_BATCH_BYTES: Final = 8 << 20  # bounds the memory of a read: records may be large
_NO_END: Final = 1 << 62  # a group becomes one file, whatever comes together

Keep = Callable[[pa.RecordBatch], pa.BooleanArray | None]
"""Mask of the rows of a batch to keep; None for all."""


@dataclass(frozen=True, slots=True)
class LiveFile:
    """One data file of a snapshot. None if its bounds do not tell: then it is not one of ours."""

    data: DataFile
    deletes: tuple[DataFile, ...]  # files of row deletes that count for it; we write none
    partition: int | None
    first: int | None  # lowest seq; of a table of gaps, where the first of them begins
    last: int | None  # highest seq; of a table of gaps, where the last of them begins

    @property
    def path(self) -> str:
        """The location of the file."""
        return self.data.file_path

    @property
    def rows(self) -> int:
        """Its rows, deleted ones included."""
        return int(self.data.record_count)

    @property
    def bytes(self) -> int:
        """Its size."""
        return int(self.data.file_size_in_bytes)


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The result of a replacement."""

    files_before: int = 0
    files_after: int = 0
    rows_before: int = 0
    rows_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0

    def __add__(self, other: "Rewritten") -> "Rewritten":
        return Rewritten(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))


def live_files(
    table: Table, snapshot: Snapshot | None = None, known: dict[str, list[LiveFile]] | None = None
) -> list[LiveFile]:
    """The data files of a snapshot (without one, of the current), by partition and seq.

    `known` caches manifests, which are immutable: a caller that lists repeatedly keeps one for each table.
    """
    found = snapshot or table.current_snapshot()
    if found is None:
        return []
    manifests = found.manifests(table.io)
    if any(each.content == ManifestContent.DELETES for each in manifests):
        tasks = table.scan(snapshot_id=found.snapshot_id).plan_files()
        files = [_live(table, task.file, tuple(task.delete_files)) for task in tasks]
    else:
        files = [each for manifest in manifests for each in _entries(table, manifest, known)]
    return sorted(files, key=_sort_key)


def _entries(table: Table, manifest: ManifestFile, known: dict[str, list[LiveFile]] | None) -> list[LiveFile]:
    if not (manifest.has_added_files() or manifest.has_existing_files()):
        return []
    if known is not None and manifest.manifest_path in known:
        return known[manifest.manifest_path]
    files = [_live(table, entry.data_file, ()) for entry in manifest.fetch_manifest_entry(table.io)]
    if known is not None:
        known[manifest.manifest_path] = files
    return files


def _sort_key(file: LiveFile) -> tuple[int, int, str]:
    return (-1 if file.partition is None else file.partition, file.first or 0, file.path)


def _live(table: Table, data: DataFile, deletes: tuple[DataFile, ...]) -> LiveFile:
    partitions, seqs = (
        _bounds(table, data, "partition"),
        _bounds(table, data, "seq") or _bounds(table, data, "gap_from"),
    )
    partition = partitions[0] if partitions and partitions[0] == partitions[1] else None
    first, last = seqs or (None, None)
    return LiveFile(data, deletes, partition, first, last)


def _bounds(table: Table, data: DataFile, column: str) -> tuple[int, int] | None:
    try:
        field = table.schema().find_field(column)
    except ValueError:
        return None
    kind = field.field_type
    if not isinstance(kind, PrimitiveType):
        return None
    low, high = (data.lower_bounds or {}).get(field.field_id), (data.upper_bounds or {}).get(field.field_id)
    if low is None or high is None:
        return None
    return int(from_bytes(kind, low)), int(from_bytes(kind, high))


def read_file(table: Table, file: LiveFile, columns: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
    """The live rows of a file in its order, as the table's present schema has them; `columns` picks some.

    Raises ValueError for a file with equality deletes, which are not supported.
    """
    wanted = table.schema().select(*columns) if columns else table.schema()
    if file.deletes:
        scan = ArrowScan(table.metadata, table.io, wanted, AlwaysTrue())
        yield from scan.to_record_batches([FileScanTask(file.data, set(file.deletes))])
        return
    metadata = table.metadata
    schema = file_schema(wanted, [field.name for field in wanted.fields])
    with table.io.new_input(file.path).open() as stream, pq.ParquetFile(stream) as parquet:
        found = pyarrow_to_schema(
            parquet.schema_arrow,
            metadata.name_mapping(),
            downcast_ns_timestamp_to_us=True,
            format_version=metadata.format_version,
        )
        there = {field.field_id: field for field in found.fields}
        present = [there.get(field.field_id) for field in wanted.fields]
        names = [field.name for field in present if field is not None]
        for batch in parquet.iter_batches(_batch_rows(parquet.metadata), columns=names):
            arrays = [
                _fitted(batch.column(has.name), has, wants, kind) if has else pa.nulls(batch.num_rows, kind.type)
                for has, wants, kind in zip(present, wanted.fields, schema, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _fitted(array: pa.Array, has: NestedField, wants: NestedField, kind: pa.Field) -> pa.Array:
    """A file's column as the table has it; nulls stay nulls, which PyIceberg makes empty lists of."""
    if isinstance(wants.field_type, PrimitiveType) or has.field_type == wants.field_type:
        same = array.type.equals(kind.type, check_metadata=True)
        return array if same else array.cast(kind.type, safe=not pa.types.is_timestamp(kind.type))
    batch = pa.RecordBatch.from_arrays([array], names=[has.name])  # nested, and changed by someone
    made = _to_requested_schema(
        Schema(wants), Schema(has), batch, downcast_ns_timestamp_to_us=True, allow_timestamp_tz_mismatch=True
    )
    fitted = made.column(0).cast(kind.type)
    return pc.if_else(array.is_valid(), fitted, pa.scalar(None, kind.type)) if array.null_count else fitted


def _batch_rows(metadata: pq.FileMetaData) -> int:
    size = int(sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups)))
    return max(1, min(_BATCH_ROWS, _BATCH_BYTES * int(metadata.num_rows) // max(size, 1)))


def replace(
    table: Table,
    groups: Sequence[Sequence[LiveFile]],
    *,
    keep: Keep | None = None,
    properties: dict[str, str] | None = None,
) -> Rewritten:
    """Write the rows of each group of files into one new file, and put the new files in the place of the old ones.

    Without `keep` no row is lost and the snapshot counts as REPLACE, which readers of appended rows pass over; with it
    as OVERWRITE. A group of which nothing is kept gets no file. `properties` go into the snapshot's summary. Raises
    ValidationException if a file is no longer in the table, and CommitFailedException after too many lost races: both
    leave the table unchanged, and the new files are removed.
    """
    old = [file for group in groups for file in group]
    if not old:
        return Rewritten()
    written: list[ParquetFiles] = []
    try:
        written.extend(_write(table, group, keep) for group in groups)  # those before a failure are in it then
        new = [data for files in written for data in files.files]
    except BaseException:
        _discard(written)
        raise
    try:
        _commit(table, old, new, Operation.REPLACE if keep is None else Operation.OVERWRITE, properties or {})
    except (CommitFailedException, ValidationException):
        _discard(written)  # only here: after any other failure the commit may have landed
        raise
    return Rewritten(
        len(old),
        len(new),
        sum(file.rows for file in old),
        sum(each.record_count for each in new),
        sum(file.bytes for file in old),
        sum(each.file_size_in_bytes for each in new),
    )


def merge_manifests(table: Table) -> None:
    """Write all manifests of the table into as few as their target size allows, in a commit that changes no data."""
    transaction = table.transaction()
    producer = _Replace(Operation.REPLACE, transaction, table.io, merge_at=2)
    producer.commit()
    transaction.commit_transaction()


def _commit(
    table: Table, old: Sequence[LiveFile], new: Sequence[DataFile], operation: Operation, properties: dict[str, str]
) -> None:
    transaction = table.transaction()
    producer = _Replace(operation, transaction, table.io, properties=properties)
    for file in old:
        producer.delete_data_file(file.data)
    for data in new:
        producer.append_data_file(data)
    producer.commit()
    transaction.commit_transaction()


def _write(table: Table, group: Sequence[LiveFile], keep: Keep | None) -> ParquetFiles:
    """The new file with the rows of a group; none if there are no rows."""
    rows = int(table.properties.get("write.parquet.row-group-limit", _ROW_GROUP_ROWS))
    where = layout(table, table.schema().column_names, row_group_rows=rows, target_bytes=_NO_END)
    with ParquetFiles(table.io, where, "rewrite") as files:
        for file in group:
            for batch in read_file(table, file):
                mask = None if keep is None else keep(batch)
                kept = batch if mask is None else batch.filter(mask)
                if kept.num_rows:
                    columns = [kept.column(field.name).cast(field.type) for field in where.schema]
                    files.write(pa.RecordBatch.from_arrays(columns, schema=where.schema))
        files.close()
    return files


def _discard(written: Sequence[ParquetFiles]) -> None:
    for files in written:
        files.abort()


require_hooks(_OverwriteFiles, "_process_manifests", "_summary", "_validate_concurrency")


class _Replace(_OverwriteFiles):
    """An overwrite that minds only its own files, and merges manifests."""

    def __init__(
        self,
        operation: Operation,
        transaction: Transaction,
        io: Any,
        *,
        properties: dict[str, str] = EMPTY_DICT,
        merge_at: int = 10,
    ) -> None:
        super().__init__(Operation.OVERWRITE, transaction, io, snapshot_properties=properties)
        self._summary_operation = operation
        self._merge_at = merge_at

    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        mark = carried_mark(self._transaction.table_metadata, self._parent_snapshot_id)
        summary = super()._summary({**snapshot_properties, **mark})  # which knows no REPLACE
        return Summary(operation=self._summary_operation, **summary.additional_properties)

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        from pyiceberg.table import TableProperties

        data = [each for each in manifests if each.content == ManifestContent.DATA]
        others = [each for each in manifests if each.content != ManifestContent.DATA]
        merger = _ManifestMergeManager(
            target_size_bytes=TableProperties.MANIFEST_TARGET_SIZE_BYTES_DEFAULT,
            min_count_to_merge=self._merge_at,
            merge_enabled=True,
            snapshot_producer=self,
        )
        return [*merger.merge_manifests(data), *others]

    def _validate_concurrency(self) -> None:
        """Called when another commit came first: refuse if it took, or deleted rows from, a file of ours."""
        window = self._commit_window
        if window is None or window.head is None or window.is_empty() or not self._deleted_data_files:
            return
        table = self._transaction._table
        _validate_data_files_exist(table, window.head, self._deleted_data_files, window.base)
        _validate_no_new_deletes_for_data_files(table, window.head, None, self._deleted_data_files, window.base)
