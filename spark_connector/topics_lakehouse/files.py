"""The work of one Spark task: it reads a range of a topic and writes it as Parquet files, in one go.

The records never leave the task: its result is a description of the files. That is four times as fast as handing
them to Spark.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.manifest import DataFile

from pyspark_topics.fetch import Fetcher, Gap, SeqRange
from pyspark_topics.parsing import Parser
from topics_client.address import Address
from topics_client.errors import NotFoundError, TopicsError, UnavailableError
from topics_lakehouse.catalog import is_down
from topics_lakehouse.parquet import Layout, ParquetFiles
from topics_lakehouse.seqs import SeqSet

NOT_FOUND: Final = "not_found"
SERVER_DOWN: Final = "server_down"
STORE_DOWN: Final = "store_down"
BROKEN: Final = "broken"

_KINDS: Final = pa.array([None, "json", "binary"])  # by the number of a RecordKind


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a topic's records. Picklable."""

    records: Layout
    columns: pa.Schema  # typed columns that `data` is parsed into
    errors: Layout | None  # of the table for records that don't fit `columns`
    io_properties: dict[str, str] = field(default_factory=dict, repr=False)  # of their store; may hold secrets


@dataclass(frozen=True, slots=True)
class Passed:
    """Seqs of a range of which no rows are made: the tables have them."""

    records: SeqSet
    errors: SeqSet


@dataclass(frozen=True, slots=True)
class FileTask:
    """One range to be written. Rows for the errors table are made of records behind `errors_behind` only: those in
    front of it are in that table already."""

    wanted: SeqRange
    errors_behind: int
    target: Target
    passed: Passed | None = None


@dataclass(frozen=True, slots=True)
class TaskFailure:
    """The reason why a range was not written: not_found, server_down, store_down or broken."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The outcome of a range."""

    wanted: SeqRange
    files: Sequence[DataFile] = ()
    error_files: Sequence[DataFile] = ()
    gaps: Sequence[Gap] = ()
    rows: int = 0
    error_rows: int = 0
    bytes: int = 0  # of the files
    failure: TaskFailure | None = None


def run_tasks(address: Address, tasks: Iterable[FileTask]) -> Iterator[TaskResult]:
    """Do the tasks one after the other. An error is returned as a failure, after removing its files if possible."""
    with Fetcher(address) as fetcher:
        for task in tasks:
            yield _run(fetcher, task)


def _run(fetcher: Fetcher, task: FileTask) -> TaskResult:
    try:
        return _write(load_file_io(task.target.io_properties, task.target.records.folder), fetcher, task)
    except Exception as error:
        return TaskResult(task.wanted, failure=TaskFailure(_kind(error), f"{type(error).__name__}: {error}"))


def _kind(error: Exception) -> str:
    if isinstance(error, NotFoundError):
        return NOT_FOUND
    if isinstance(error, UnavailableError):
        return SERVER_DOWN
    if not isinstance(error, TopicsError) and is_down(error):
        return STORE_DOWN
    return BROKEN


def _write(io: FileIO, fetcher: Fetcher, task: FileTask) -> TaskResult:
    wanted, target = task.wanted, task.target
    name = f"{wanted.partition}-{wanted.first:020d}"
    rows = Rows(wanted.partition, target, task.errors_behind)
    gaps: list[Gap] = []
    with ExitStack() as written:
        records = written.enter_context(ParquetFiles(io, target.records, name))
        misfits = None if target.errors is None else written.enter_context(ParquetFiles(io, target.errors, name))
        for got in fetcher.read(wanted):
            if isinstance(got, Gap):
                gaps.append(got)
                continue
            if not got.num_rows:
                continue
            batch, errors = rows.of(got)
            if task.passed is not None:
                batch, errors = _without(batch, task.passed.records), _without(errors, task.passed.errors)
            if batch:
                records.write(batch)
            if errors and misfits is not None:
                misfits.write(errors)
        error_files = misfits.close() if misfits is not None else []
        files = records.close()
    return TaskResult(
        wanted,
        files,
        error_files,
        gaps,
        records.rows,
        misfits.rows if misfits is not None else 0,
        sum(each.file_size_in_bytes for each in files),
    )


def _without(batch: pa.RecordBatch | None, passed: SeqSet) -> pa.RecordBatch | None:
    if batch is None:
        return None
    return batch.filter(pc.invert(passed.mask(batch.column("seq"))))


class Rows:
    """Makes rows of a table from the server's batches of one partition."""

    def __init__(self, partition: int, target: Target, errors_behind: int = 0) -> None:
        """Records up to the seq `errors_behind` make no rows of the errors table."""
        self._target = target
        self._errors_behind = errors_behind
        self._partition = pa.scalar(partition, pa.int32())
        self._parser = Parser(target.columns) if len(target.columns) else None

    def of(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch | None]:
        """The rows of the records, and those of the records that don't fit."""
        made: dict[str, pa.Array] = {
            "partition": pa.repeat(self._partition, batch.num_rows),
            "kind": pc.take(_KINDS, batch.column("kind")),
        }
        errors = None
        if self._parser is not None:
            typed, reasons = self._parser.parse(batch.column("data"), batch.column("kind"))
            made.update(zip(self._target.columns.names, typed, strict=True))
            errors = self._errors(batch, reasons)
        schema = self._target.records.schema
        arrays = [made[name] if name in made else batch.column(name) for name in schema.names]
        return _in_schema(arrays, schema), errors

    def _errors(self, batch: pa.RecordBatch, reasons: pa.Array) -> pa.RecordBatch | None:
        if self._target.errors is None or reasons.null_count == len(reasons):
            return None
        chosen = pc.and_(pc.is_valid(reasons), pc.greater(batch.column("seq"), self._errors_behind))
        found = batch.filter(chosen)
        if not found.num_rows:
            return None
        schema = self._target.errors.schema
        made = {"partition": pa.repeat(self._partition, found.num_rows), "reason": reasons.filter(chosen)}
        return _in_schema([made[name] if name in made else found.column(name) for name in schema.names], schema)


def _in_schema(arrays: list[pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    """The arrays as columns of the schema; nested ones take its names and ids."""
    fitted = [
        array if array.type.equals(each.type, check_metadata=True) else array.cast(each.type)
        for array, each in zip(arrays, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(fitted, schema=schema)
