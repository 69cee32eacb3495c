"""Records in Parquet files. Needs pyarrow."""

import base64
import json
from collections.abc import Iterator, Sequence
from datetime import date, datetime, timedelta
from datetime import time as clock_time
from decimal import Decimal
from math import isfinite
from typing import IO, TYPE_CHECKING, Any, Final

from topics_client.cli.lines import JSON_SPACE, BadTextError, json_value
from topics_client.cli.recordtext import Parsed

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
_OF_RECORDS: Final = ("data", "kind", "tag", "node", "meta", "partition")


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
        self._bytes += sum(len(record.data) for record in records)
        if len(self._group) >= _GROUP_RECORDS or self._bytes >= _GROUP_BYTES:
            self._write_group()

    def close(self) -> None:
        """Write what is left, and the end of the file."""
        if self._group:
            self._write_group()
        self._writer.close()

    def rescue(self, error: BaseException) -> bool:
        """All but what the disk has against it."""
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


def parquet_rows(file: str, *, as_rows: bool) -> Iterator[tuple[int, Parsed | BadTextError]]:
    """The rows with their numbers from 1, as records, or what is wrong with them.

    With a column `data` of texts or bytes each row is a record as `topics export` writes it; kind (json where there
    is none), tag, node, meta and partition are optional. Without, or with `as_rows`, it is the row as a JSON object.
    Raises OSError, and ValueError for a file that is none of Parquet.
    """
    with pq.ParquetFile(file) as source:
        schema = source.schema_arrow
        records = not as_rows and "data" in schema.names and _is_text(schema.field("data").type)
        columns = [name for name in _OF_RECORDS if name in schema.names] if records else None
        number = 0
        for batch in source.iter_batches(batch_size=_BATCH_ROWS, columns=columns):
            for row in batch.to_pylist():
                number += 1
                try:
                    yield number, _record(row) if records else Parsed(_json(row), False, None, None, b"", None)
                except BadTextError as bad:
                    yield number, bad


def _is_text(kind: Any) -> bool:
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(test(kind) for test in tests)


def _record(row: dict[str, Any]) -> Parsed:
    data, meta = (_bytes(row.get(name)) for name in ("data", "meta"))
    if row["data"] is None:
        raise BadTextError(0, "its data is null")
    binary = row.get("kind") == "binary"
    if not binary:
        data = data.strip(JSON_SPACE)
        json_value(data)
    partition = row.get("partition")
    return Parsed(data, binary, _text(row, "tag"), _text(row, "node"), meta, partition)


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else value or b""


def _text(row: dict[str, Any], name: str) -> str | None:
    value = row.get(name)
    if value is not None and not isinstance(value, str):
        raise BadTextError(0, f"its {name} is no text")
    return value


def _json(row: dict[str, Any]) -> bytes:
    return json.dumps(_plain(row), ensure_ascii=False, separators=(",", ":")).encode()


def _plain(value: Any) -> Any:
    """What JSON has no form for in the form that is customary: times as ISO 8601, bytes as base64, decimals as texts,
    and null for numbers that are none."""
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, datetime | date | clock_time):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value
