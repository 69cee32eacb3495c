"""Records in Parquet files. Needs pyarrow."""

from collections.abc import Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any, Final

from topics_cli import rows
from topics_cli.lines import BadTextError

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ModuleNotFoundError:
    raise ValueError("Parquet needs pyarrow: pip install pyarrow") from None

if TYPE_CHECKING:
    from topics_client.models import Record

_GROUP_RECORDS: Final = 100_000
_GROUP_BYTES: Final = 64 << 20
_BATCH_ROWS: Final = 1000
_READ_BYTES: Final = 1 << 20  # of a column at a time, however large its row group is
_SCHEMA: Final = pa.schema(
    [
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("ts", pa.timestamp("ms", tz="UTC"), nullable=False),
        pa.field("tag", pa.string()),
        pa.field("node", pa.string()),
        pa.field("meta", pa.string()),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("data", pa.binary(), nullable=False),
    ]
)


class ParquetRecords:
    """Writes records, a row each, in groups of bounded size."""

    def __init__(self, target: IO[bytes]) -> None:
        self._target = target
        self._writer = pq.ParquetWriter(target, _SCHEMA, compression="zstd")
        self._group: list[Record] = []
        self._bytes = 0

    def write(self, records: "Sequence[Record]") -> None:
        """Take in records."""
        self._group += records
        self._bytes += sum(len(record.data) + len(record.meta_data) for record in records)
        if len(self._group) >= _GROUP_RECORDS or self._bytes >= _GROUP_BYTES:
            self._write_group()

    def close(self) -> None:
        """Write the remaining rows and the footer."""
        if self._group:
            self._write_group()
        self._writer.close()

    def rescue(self, error: BaseException) -> bool:
        """Keep all records, unless the disk failed."""
        if isinstance(error, OSError):
            self._target.seek(0)
            self._target.truncate(0)
            return False
        self.close()
        return True

    def _write_group(self) -> None:
        _, partitions, seqs, times, datas, binary, tags, nodes, metas = zip(*self._group, strict=True)
        columns = [
            partitions,
            seqs,
            times,
            tags,
            nodes,
            [meta.decode() if meta else None for meta in metas],
            ["binary" if each else "json" for each in binary],
            datas,
        ]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)]
        self._group, self._bytes = [], 0
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=_SCHEMA))


def parquet_rows(
    file: str | IO[bytes], label: str, *, as_rows: bool, tag_field: str | None
) -> Iterator[tuple[int, Any]]:
    """The rows with their numbers from 1, as records, or the BadTextError of one.

    With a column `data` of texts or bytes each row is a record as `topics export` writes it; kind (json where there
    is none), tag, node, meta and partition are optional. Without, or with `as_rows`, it is the row as a JSON object.
    Raises OSError, and ValueError for a file that is damaged.
    """
    try:
        with pq.ParquetFile(file, buffer_size=_READ_BYTES) as source:
            schema = source.schema_arrow
            records = not as_rows and "data" in schema.names and _is_text(schema.field("data").type)
            if records:
                rows.check_tag_field(tag_field, label)
            columns = [name for name in rows.OF_RECORDS if name in schema.names] if records else None
            number = 0
            for batch in source.iter_batches(batch_size=_BATCH_ROWS, columns=columns):
                for row in batch.to_pylist():
                    number += 1
                    try:
                        found = rows.record(row) if records else rows.row_object(row, tag_field)
                    except BadTextError as bad:
                        yield number, bad
                    else:
                        yield number, found
    except pa.ArrowException as error:
        what = "truncated or damaged" if "footer" in str(error) else f"can't be read: {error}"
        raise ValueError(f"{label}: {what}") from error


def _is_text(kind: Any) -> bool:
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(test(kind) for test in tests)
