"""Tables of the lakehouse without a server or Spark: made, filled and read with PyIceberg alone."""

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import BinaryType, IntegerType, LongType, NestedField, StringType, TimestamptzType

from topics_lakehouse.schema import file_schema

SCHEMA = Schema(
    NestedField(1, "partition", IntegerType(), required=False),
    NestedField(2, "seq", LongType(), required=False),
    NestedField(3, "ts", TimestamptzType(), required=False),
    NestedField(4, "node", StringType(), required=False),
    NestedField(5, "tag", StringType(), required=False),
    NestedField(6, "meta", StringType(), required=False),
    NestedField(7, "kind", StringType(), required=False),
    NestedField(8, "data", BinaryType(), required=False),
)
PROPERTIES = {
    "commit.manifest-merge.enabled": "false",
    "commit.retry.min-wait-ms": "5",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "10",
}


def make_catalog(folder: Path) -> SqlCatalog:
    """A catalog of its own, as the embedded default is."""
    folder.mkdir(parents=True, exist_ok=True)
    return SqlCatalog("topics", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/wh")


def make_table(catalog: SqlCatalog, name: str = "orders") -> Table:
    """An empty table with the envelope's columns."""
    catalog.create_namespace_if_not_exists("topics")
    return catalog.create_table(f"topics.{name}", schema=SCHEMA, properties=PROPERTIES)


def batch(table: Table, seqs: Sequence[int], partition: int = 0, pad: int = 40) -> pa.RecordBatch:
    """Distinct records."""
    schema = file_schema(table.schema(), table.schema().column_names)
    rows = {
        "partition": [partition] * len(seqs),
        "seq": list(seqs),
        "ts": [1_700_000_000_000_000 + seq for seq in seqs],
        "node": [f"n{seq % 3}" for seq in seqs],
        "tag": [None if seq % 5 == 0 else f"t{seq % 4}" for seq in seqs],
        "meta": [None] * len(seqs),
        "kind": ["json"] * len(seqs),
        "data": [json.dumps({"n": seq, "pad": str(seq * 7919) * (pad // 8)}).encode() for seq in seqs],
    }
    columns = [
        pa.array(rows[field.name], field.type) if field.name in rows else pa.nulls(len(seqs), field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def write_file(table: Table, name: str, rows: pa.RecordBatch) -> str:
    """A data file that is in no snapshot yet; its location."""
    path = table.location_provider().new_data_location(name)
    with table.io.new_output(path).create() as stream, pq.ParquetWriter(stream, rows.schema) as writer:
        writer.write_batch(rows)
    return path


def append(table: Table, first: int, last: int, *, partition: int = 0, seqs: Sequence[int] | None = None) -> str:
    """One file with these records, and the positions, in one commit; its location."""
    rows = batch(table, seqs if seqs is not None else range(first, last + 1), partition)
    path = write_file(table, f"{partition}-{first}-{last}.parquet", rows)
    positions = json.loads(table.metadata.properties.get("topics.positions", "{}")) | {str(partition): last}
    transaction = table.transaction()
    transaction.set_properties({"topics.positions": json.dumps(positions)})
    with transaction.update_snapshot().fast_append() as added:
        added.append_data_file(parquet_file_to_data_file(table.io, table.metadata, path))
    transaction.commit_transaction()
    return path


def content(table: Table) -> list[dict[str, object]]:
    """Every row, by partition and seq."""
    rows = table.refresh().scan().to_arrow().to_pylist()
    return sorted(rows, key=lambda row: (row["partition"], row["seq"]))


def seqs_of(table: Table, partition: int = 0) -> list[int]:
    """The seqs that are in the table, in order."""
    found = table.refresh().scan(selected_fields=("partition", "seq")).to_arrow().to_pylist()
    return sorted(row["seq"] for row in found if row["partition"] == partition)
