"""Output of rows from `topics lakehouse`: tables, JSON lines, CSV and Parquet."""

import csv
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import count
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from topics_cli import output


def print_rows(rows: Sequence[Mapping[str, Any]], *, json_lines: bool) -> None:
    """Rows of an action, as a table or as a JSON object a line."""
    if json_lines:
        for row in rows:
            output.line(row)
    else:
        _print_table(rows)


def print_query(reader: pa.RecordBatchReader, *, parquet: str | None, csv_text: bool, json_lines: bool) -> None:
    """Write the result of a query to a Parquet file, or print it as CSV, JSON lines or a table."""
    if parquet is not None:
        _write_parquet(reader, parquet)
    elif csv_text:
        _write_csv(reader)
    elif json_lines:
        for row in _rows(reader):
            print(json.dumps(row, default=_plain))
    else:
        _print_table(list(_rows(reader)), _names(reader))


def _write_parquet(reader: pa.RecordBatchReader, path: str) -> None:
    with pq.ParquetWriter(path, reader.schema, compression="zstd") as writer:
        for batch in reader:
            writer.write_batch(batch)


def _write_csv(reader: pa.RecordBatchReader) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(_names(reader))
    for row in _rows(reader):
        writer.writerow(["" if value is None else _text(value) for value in row.values()])


def _rows(reader: pa.RecordBatchReader) -> Iterator[dict[str, Any]]:
    names = _names(reader)
    for batch in reader:
        for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            yield dict(zip(names, values, strict=True))


def _names(reader: pa.RecordBatchReader) -> list[str]:
    """The columns' names, with a number behind each that was there before."""
    names: list[str] = []
    for name in reader.schema.names:
        numbered = (f"{name}_{i}" for i in count(1))
        names.append(name if name not in names else next(each for each in numbered if each not in names))
    return names


def _plain(value: object) -> object:
    """A value for JSON that JSON has no form for."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return str(value)


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, datetime):
        return value.isoformat(" ")
    if isinstance(value, dict | list):
        return json.dumps(value, default=_plain)
    if isinstance(value, bool | int | float):
        return str(value).lower() if isinstance(value, bool) else str(value)
    return str(_plain(value))


def _print_table(rows: Iterable[Mapping[str, Any]], names: Sequence[str] = ()) -> None:
    """Under their names: text to the left, numbers to the right."""
    found = list(rows)
    columns = []
    for name in names or (list(found[0]) if found else []):
        values = [row[name] for row in found]
        cells = [name, *("" if value is None else _text(value).replace("\n", " ") for value in values)]
        width = max(map(len, cells))
        right = all(isinstance(value, int | float) for value in values if value is not None) and any(values)
        columns.append([cell.rjust(width) if right else cell.ljust(width) for cell in cells])
    for row in zip(*columns, strict=True):
        print("  ".join(row).rstrip())
