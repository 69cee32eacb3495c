"""The columns of a data frame, and its batches from those of the server."""

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_topics.ddl import arrow_schema
from pyspark_topics.fetch import Gap, Parts, SeqRange
from pyspark_topics.options import ColumnOptions, OptionError, ReadOptions
from pyspark_topics.parsing import Parser

CORRUPT: Final = "_corrupt"
_TIME: Final = pa.timestamp("us", tz="UTC")
_BASE: Final = (
    pa.field("topic", pa.string()),
    pa.field("seq", pa.int64()),
    pa.field("ts", _TIME),
    pa.field("node", pa.string()),
    pa.field("tag", pa.string()),
    pa.field("meta", pa.string()),
    pa.field("data", pa.binary()),
    pa.field("partition", pa.int32()),
)
_KIND: Final = pa.field("kind", pa.string())
_GAPS: Final = (pa.field("gap_to", pa.int64()), pa.field("gap_reason", pa.string()))
_CORRUPT: Final = pa.field(CORRUPT, pa.string())
ENVELOPE: Final = {each.name: each for each in (*_BASE, _KIND, *_GAPS, _CORRUPT)}
"""The columns that are not fields of `data`, by name."""

_KINDS: Final = pa.array([None, "json", "binary"])  # by the number of a RecordKind


class DataLossError(RuntimeError):
    """Records of the range are lost, according to the server's tombstone. Names topic, range and reason."""


def frame_schema(options: ColumnOptions) -> pa.Schema:
    """The columns of a frame that was given no schema: those of the envelope, then the fields of `dataSchema` and
    `_corrupt`. Raises OptionError."""
    left_out = {name for name, wanted in (("meta", options.meta), ("data", options.data)) if not wanted}
    fields = [each for each in _BASE if each.name not in left_out]
    if options.kind:
        fields.append(_KIND)
    if options.gaps:
        fields += _GAPS
    if options.data_schema is not None:
        try:
            typed = arrow_schema(options.data_schema)
        except ValueError as error:
            raise OptionError(f"option dataSchema: {error}") from None
        for each in typed:
            if each.name.lower() in ENVELOPE:
                raise OptionError(f"option dataSchema: {each.name} is a column of the record itself")
        fields += [*typed, _CORRUPT]
    return pa.schema(fields)


class Columns:
    """Makes the batches of one data frame. Can be pickled; used by one thread at a time."""

    def __init__(self, schema: pa.Schema) -> None:
        """`schema`: the columns in order. A name of ENVELOPE is that column and must have its type; every other column
        is a field of `data`. Raises OptionError."""
        if not schema.names:
            raise OptionError("schema: no columns")  # a batch of none has no rows either
        for each in schema:
            known = ENVELOPE.get(each.name)
            if known is None and each.name.lower() in ENVELOPE:
                raise OptionError(f"column {each.name}: that of the record itself is spelled {each.name.lower()}")
            if known is not None and known.type != each.type:
                raise OptionError(f"column {each.name} is of type {known.type}, not {each.type}")
            if not each.nullable:
                raise OptionError(f"column {each.name} can't be NOT NULL: values that do not fit become null")
        if len(set(schema.names)) < len(schema.names):
            raise OptionError("a column comes twice in the schema")
        self.schema = schema
        self._names = set(schema.names)
        typed = [each for each in schema if each.name not in ENVELOPE]
        try:
            self._parser = Parser(pa.schema(typed)) if typed or CORRUPT in self._names else None
        except ValueError as error:
            raise OptionError(f"schema: {error}") from None
        self._constants: dict[str, tuple[object, pa.Array]] = {}

    def parts(self, options: ReadOptions) -> Parts:
        """The minimal request options for these columns."""
        return options.parts(
            tags="tag" in self._names,
            meta="meta" in self._names,
            data="data" in self._names or self._parser is not None,
        )

    def batches(
        self, wanted: SeqRange, read: Iterable[pa.RecordBatch | Gap], *, fail_on_data_loss: bool, gaps: bool
    ) -> Iterator[pa.RecordBatch]:
        """Batches of the frame from the items of a range (Fetcher.read). A gap raises DataLossError, becomes a row if
        `gaps`, or is skipped.
        """
        for each in read:
            if not isinstance(each, Gap):
                if each.num_rows:
                    yield self.records(wanted, each)
            elif fail_on_data_loss:
                raise DataLossError(loss_text(each, wanted))
            elif gaps:
                yield self.gap(each)

    def records(self, wanted: SeqRange, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of records of one range."""
        count = batch.num_rows
        made: dict[str, pa.Array] = {}
        if self._parser is not None:
            typed, corrupt = self._parser.parse(batch.column("data"), batch.column("kind"))
            made.update(zip(self._parser.schema.names, typed, strict=True))
            made[CORRUPT] = corrupt
        if "kind" in self._names:
            made["kind"] = pc.take(_KINDS, batch.column("kind"))
        arrays = []
        for each in self.schema:
            if each.name in made:
                array = made[each.name]
            elif each.name == "topic":
                array = self._constant(each, wanted.topic, count)
            elif each.name == "partition":
                array = self._constant(each, wanted.partition, count)
            elif each.name in _GAP_NAMES:
                array = self._constant(each, None, count)
            else:
                array = batch.column(each.name)
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def gap(self, gap: Gap) -> pa.RecordBatch:
        """The row of a gap: `seq` is its first, `gap_to` its last lost seq."""
        known = {
            "topic": gap.topic,
            "partition": gap.partition,
            "seq": gap.gap_from,
            "gap_to": gap.gap_to,
            "gap_reason": gap.reason,
        }
        arrays = [pa.array([known.get(each.name)], each.type) for each in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _constant(self, column: pa.Field, value: object, count: int) -> pa.Array:
        """`count` times the value. It is kept for the batches to come: most have the same."""
        known, array = self._constants.get(column.name, (None, None))
        if array is None or known != value or len(array) < count:
            array = pa.nulls(count, column.type) if value is None else pa.repeat(pa.scalar(value, column.type), count)
            self._constants[column.name] = value, array
        return array[:count]


_GAP_NAMES: Final = frozenset(each.name for each in _GAPS)


def loss_text(gap: Gap, wanted: SeqRange) -> str:
    """Describe the loss, with the remedy."""
    where = f"partition {gap.partition} of topic {gap.topic}" if gap.partition else f"topic {gap.topic}"
    return (
        f"{where}: of seq {wanted.first} to {wanted.last}, which were to be read, seq {gap.gap_from} to {gap.gap_to}"
        f" are lost (reason: {gap.reason}); with option failOnDataLoss=false the read continues after them"
    )
