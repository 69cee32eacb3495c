"""The columns of a written data frame: their meaning, and rows as appends."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_topics.write_options import KINDS, WriteOptions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_ALLOWED: Final[Mapping[str, tuple[str, ...]]] = {
    "data": ("string", "binary"),
    "topic": ("string",),
    "partition": ("tinyint", "smallint", "int", "bigint"),
    "tag": ("string",),
    "node": ("string",),
    "meta": ("string", "map<string,string>"),
    "kind": ("string",),
}
_PASSED_OVER: Final = frozenset({"seq", "ts"})  # a read has them, and the server gives new ones
_MAX_PARTITION: Final = 1 << 20
_ROW_BYTES: Final = 16  # overhead of a record, roughly

_SCHEMA: Final = pa.schema(
    [("data", pa.binary()), ("kind", pa.uint8()), ("tag", pa.binary()), ("node", pa.binary()), ("meta", pa.binary())]
)
"""Rows as appends take them: kind is the number of the RecordKind, and only tag, node and meta can be null."""


class RowError(ValueError):
    """Columns, or a row, that can't be written as records."""


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a record."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"partition {self.partition} of topic {self.topic}"


@dataclass(frozen=True, slots=True)
class Layout:
    """The roles of a data frame's columns. Created on the driver, used by the tasks."""

    index: dict[str, int]  # part of a record -> number of the column
    topic: str | None  # of all rows
    partition: int | None  # of all rows
    node: str | None  # of all rows
    data_kind: int

    @classmethod
    def parse(cls, schema: "StructType", options: WriteOptions) -> Self:
        """Raises RowError where a column is missing, unknown, there twice, or of a type that it can't have."""
        index: dict[str, int] = {}
        for number, field in enumerate(schema.fields):
            name, kind = field.name.lower(), field.dataType.simpleString()
            if name in _PASSED_OVER:
                continue
            if name not in _ALLOWED:
                raise RowError(
                    f"column {field.name}: records have no such part; there are {', '.join(_ALLOWED)}. "
                    "Put other columns into data: to_json(struct(...)) AS data"
                )
            if name in index:
                raise RowError(f"column {field.name} is there twice")
            if kind.startswith(("char(", "varchar(")):
                kind = "string"
            if kind.partition(" collate")[0] not in _ALLOWED[name]:
                hint = ": to_json(...) AS data makes JSON of it" if name == "data" else ""
                raise RowError(f"column {field.name} is {' or '.join(_ALLOWED[name])}, not {kind}{hint}")
            index[name] = number
        if "data" not in index:
            raise RowError("there is no column data (string or binary): to_json(struct(*)) AS data makes one")
        if options.topic is None and "topic" not in index:
            raise RowError("neither a column topic nor the option topic says where to write to")
        return cls(index, options.topic, options.partition, options.node, options.data_kind)

    @property
    def routed(self) -> bool:
        """True if each row determines its own target."""
        return (self.topic is None) or (self.partition is None and "partition" in self.index)

    def rows(self, batch: pa.RecordBatch) -> "Rows":
        """The rows of a batch of the data frame. Raises RowError."""
        data = _binary(self._column(batch, "data"))
        if data.null_count:
            raise RowError(f"data is null in {data.null_count} rows: each record has data (a JSON null is 'null')")
        node = None if self.node is None else pa.repeat(pa.scalar(self.node.encode(), pa.binary()), len(data))
        columns = [
            data,
            self._kinds(batch),
            _binary(self._column(batch, "tag")),
            _binary(self._column(batch, "node")) if node is None else node,
            _metas(self._column(batch, "meta")),
        ]
        topics = self._column(batch, "topic") if self.topic is None else None
        if topics is not None and topics.null_count:
            raise RowError(f"topic is null in {topics.null_count} rows, and no option topic says where they go")
        partitions = self._column(batch, "partition") if self.partition is None else None
        return Rows(pa.record_batch(columns, schema=_SCHEMA), _string(topics), _partitions(partitions))

    def target(self) -> Target:
        """The target of all rows, if not `routed`."""
        return Target(self.topic or "", self.partition or 0)

    def _column(self, batch: pa.RecordBatch, name: str) -> pa.Array | None:
        number = self.index.get(name)
        return pa.nulls(batch.num_rows) if number is None else batch.column(number)

    def _kinds(self, batch: pa.RecordBatch) -> pa.Array:
        default = pa.scalar(self.data_kind, pa.uint8())
        column = self._column(batch, "kind")
        if column is None or column.null_count == len(column):
            return pa.repeat(default, batch.num_rows)
        names = pa.array(KINDS, column.type)
        found = pc.index_in(column, value_set=names)
        if found.null_count > column.null_count:
            bad = pc.filter(column, pc.and_(pc.is_null(found), pc.is_valid(column)))[0]
            raise RowError(f"kind is one of {', '.join(KINDS)}, or null for the value of option dataKind, not {bad}")
        return pc.fill_null(pc.take(pa.array(KINDS.values(), pa.uint8()), found), default)


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of the data frame."""

    records: pa.RecordBatch  # of _SCHEMA
    topics: pa.Array | None  # of each; None: all go to the topic of the options
    partitions: pa.Array | None  # of each; None: all go to the partition of the options

    def __len__(self) -> int:
        return self.records.num_rows  # type: ignore[no-any-return]

    def slice(self, start: int, count: int) -> "Rows":
        """Rows `start` to `start + count - 1`, without a copy."""
        return Rows(
            self.records.slice(start, count),
            None if self.topics is None else self.topics.slice(start, count),
            None if self.partitions is None else self.partitions.slice(start, count),
        )

    def by_target(self, layout: Layout) -> Iterator[tuple[Target, pa.RecordBatch]]:
        """The records of each target, in the order of the rows. The order of the targets hangs on the rows alone."""
        if not layout.routed:
            yield layout.target(), self.records
            return
        codes = pa.repeat(pa.scalar(0, pa.int64()), len(self))
        names = [layout.topic or ""]
        if self.topics is not None:
            topics = self.topics.dictionary_encode()
            names = topics.dictionary.to_pylist()
            codes = topics.indices.cast(pa.int64())
        codes = pc.multiply(codes, _MAX_PARTITION)
        if self.partitions is not None:
            codes = pc.add(codes, self.partitions)
        elif layout.partition:
            codes = pc.add(codes, layout.partition)
        if pc.count_distinct(codes).as_py() == 1:
            order, ordered = None, codes
        else:
            order = pc.array_sort_indices(codes)  # a stable sort: rows of one target keep their order
            ordered = codes.take(order)
        runs = pc.run_end_encode(ordered)
        records, start = self.records if order is None else self.records.take(order), 0
        for code, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            yield Target(names[code // _MAX_PARTITION], code % _MAX_PARTITION), records.slice(start, end - start)
            start = end


def joined(parts: list[Rows]) -> Rows:
    """Rows one behind the other."""
    if len(parts) == 1:
        return parts[0]
    topics = [part.topics for part in parts]
    partitions = [part.partitions for part in parts]
    return Rows(
        pa.Table.from_batches([part.records for part in parts]).combine_chunks().to_batches()[0],
        None if topics[0] is None else pa.concat_arrays(topics),
        None if partitions[0] is None else pa.concat_arrays(partitions),
    )


def fitting(records: pa.RecordBatch, max_records: int, max_bytes: int) -> tuple[int, int]:
    """The number of leading records within both limits, and their bytes."""
    taken = records.slice(0, max_records)
    total = pa.scalar(0, pa.int64())
    lengths = []
    for name in ("data", "tag", "node", "meta"):
        column = taken.column(name)
        if column.null_count < len(column):
            lengths.append(pc.fill_null(pc.binary_length(column), 0).cast(pa.int64()))
            total = pc.add(total, pc.sum(lengths[-1], min_count=0))
    size = total.as_py() + _ROW_BYTES * taken.num_rows
    if size <= max_bytes:
        return taken.num_rows, size
    sizes = pa.repeat(pa.scalar(_ROW_BYTES, pa.int64()), taken.num_rows)
    for each in lengths:
        sizes = pc.add(sizes, each)
    ends = pc.cumulative_sum(sizes)
    count = pc.sum(pc.less_equal(ends, max_bytes).cast(pa.int64())).as_py()
    return count, ends[count - 1].as_py() if count else 0


def _binary(column: pa.Array) -> pa.Array:
    return column.cast(pa.binary())  # text and bytes with 32-bit offsets are not copied


def _string(column: pa.Array | None) -> pa.Array | None:
    return None if column is None else column.cast(pa.string())


def _partitions(column: pa.Array | None) -> pa.Array | None:
    if column is None:
        return None
    numbers = pc.fill_null(column.cast(pa.int64()), 0)
    if len(numbers):
        minimum, maximum = pc.min_max(numbers).values()
        for each in (minimum.as_py(), maximum.as_py()):
            if not 0 <= each < _MAX_PARTITION:
                raise RowError(f"partition {each}: partitions of a topic are numbered from 0")
    return numbers


def _metas(column: pa.Array) -> pa.Array:
    """Headers as JSON texts; one that is empty is none."""
    if pa.types.is_map(column.type):
        encode = msgspec.json.encode
        return pa.array([encode(dict(each)) if each else None for each in column.to_pylist()], pa.binary())
    texts = _binary(column)
    if texts.null_count == len(texts):
        return texts
    return pc.if_else(pc.equal(pc.binary_length(texts), 0), pa.scalar(None, pa.binary()), texts)
