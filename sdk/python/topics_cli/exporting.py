"""`topics export`: write the records of a topic to a file."""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

from topics_cli import formats, output, ranges, server
from topics_cli.csvtext import HEADER as CSV_HEADER
from topics_cli.csvtext import csv_lines
from topics_cli.progress import Progress
from topics_cli.recordtext import changed, value_lines, whole_line
from topics_cli.types import whole

if TYPE_CHECKING:
    from topics_cli.types import Commands
    from topics_client import TopicsClient
    from topics_client.models import Record

_FORMATS = """\
formats: selected by the extension of FILE: .ndjson or .jsonl, .csv, .parquet; NDJSON and CSV also with .gz or .zst
appended. Other names, and standard output, are NDJSON. --format overrides it. Parquet requires pyarrow, .zst
backports.zstd.

NDJSON writes the data of each record as a line; with --with-meta the whole record, with its seq, time, tag, node and
meta, which `topics import --with-meta` restores byte for byte. CSV and Parquet write the columns partition, seq, ts,
tag, node, meta, kind and data, which `topics import` restores byte for byte; in CSV bytes are base64.

The file gets its name once it is complete; after a failure the part written is FILE.part.
"""


def add_parser(commands: "Commands") -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "export",
        help="write the records of a topic to a file",
        description="Write the current records of TOPIC to FILE, oldest first, partition by partition.",
        epilog=_FORMATS,
    )
    server.add_name(parser, "topic", help="the topic")
    parser.add_argument("file", metavar="FILE", help="the file; - is standard output")
    parser.add_argument("--format", choices=formats.CHOICES, metavar="FORMAT", help=formats.HELP)
    parser.add_argument("--with-meta", action="store_true", help="ndjson: write whole records instead of their data")
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")
    ranges.add_range(parser)
    parser.add_argument("--partition", type=whole, metavar="N", help="only this partition (default: all)")
    ranges.add_gaps(parser)
    output.add_arguments(parser, table=False)
    server.add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Export; 1 for a gap with `--gaps fail`, an existing file, or an error of the server or the disk."""
    return server.run_command("export", lambda: _run(arguments))


class Writer(Protocol):
    """A writer of a file format."""

    def write(self, records: "Sequence[Record]") -> None:
        """Take in records."""

    def close(self) -> None:
        """Write the remaining records and the end of the file."""

    def rescue(self, error: BaseException) -> bool:
        """Instead of `close` after a failure, leave a valid file of the records so far. Returns False if that is
        impossible."""


def _run(arguments: argparse.Namespace) -> int:
    kind, packing = formats.of_name(arguments.file, arguments.format)
    kind = kind or "ndjson"
    if kind != "ndjson" and arguments.with_meta:
        raise server.UsageError(f"--with-meta is for ndjson; {formats.spoken(kind)} always has whole records")
    if arguments.file == "-" and (kind == "parquet" or packing) and sys.stdout.isatty():
        raise server.UsageError(f"can't write {formats.spoken(packing or kind)} to a terminal: give a FILE")
    with server.client(arguments) as client:
        count = client.get_topic(arguments.topic, touch=False).partition_count
        if arguments.partition is not None:
            partitions: Sequence[int] = [arguments.partition]
        else:
            partitions = range(count)
        positions = (arguments.from_seq, arguments.to_seq, arguments.last, arguments.limit)
        if len(partitions) > 1 and any(each is not None for each in positions):
            raise server.UsageError(
                f"{arguments.topic} has {count} partitions, but --from-seq, --to-seq, --last and --limit apply to one: "
                "add --partition N"
            )
        with _target(arguments) as target:
            writer: Writer
            if kind == "parquet":
                from topics_cli.parquet import ParquetRecords

                writer = ParquetRecords(target)
            elif kind == "csv":
                writer = _Text(target, packing, csv_lines, CSV_HEADER)
            elif arguments.with_meta:
                writer = _Text(target, packing, partial(_whole_lines, partition=count > 1))
            else:
                writer = _Values(target, packing, value_lines)
            exporting = _Exporting(arguments, client, partitions)
            exporting.run(writer)
    exporting.report(writer)
    return 0


class _Exporting:
    """One run of the command."""

    def __init__(self, arguments: argparse.Namespace, client: "TopicsClient", partitions: Sequence[int]) -> None:
        self._arguments = arguments
        self._client = client
        self._partitions = partitions
        self._began = time.monotonic()
        self._count = 0
        self._first_seq: int | None = None
        self._last_seq: int | None = None
        self._gaps = self._lost = 0

    def run(self, writer: Writer) -> None:
        """Write everything; a failure reports the seq to resume with."""
        with Progress("export") as progress:
            try:
                for partition in self._partitions:
                    self._partition(partition, writer, progress)
                writer.close()
            except BrokenPipeError:
                raise
            except BaseException as error:
                progress.clear()
                if self._arguments.file != "-" and writer.rescue(error):
                    self._report_part(partition)
                if isinstance(error, OSError):
                    raise ValueError(f"{self._arguments.file}: {error.strerror or error}") from error
                raise

    def _partition(self, partition: int, writer: Writer, progress: Progress) -> None:
        self._first_seq = self._last_seq = None
        read = ranges.Read(self._client, self._arguments, self._arguments.topic, partition)
        for gap, records in read.batches():
            if gap is not None:
                progress.clear()
                ranges.tell_gap("export", gap, self._arguments)
                self._gaps += 1
                self._lost += gap.missed_estimate
            if records:
                writer.write(records)
                self._count += len(records)
                self._first_seq = self._first_seq or records[0].seq
                self._last_seq = records[-1].seq
                progress.advance(len(records))

    def _report_part(self, partition: int) -> None:
        if self._last_seq is None:
            return
        where = f"--partition {partition} " if len(self._partitions) > 1 else ""
        output.note(
            f"topics export: {self._arguments.file}.part holds the first {output.counted(self._count, 'record')}; "
            f"resume with {where}--from-seq {self._last_seq} into another file"
        )

    def report(self, writer: Writer) -> None:
        """Report the result."""
        arguments, seconds = self._arguments, time.monotonic() - self._began
        changed = writer.changed if isinstance(writer, _Values) else 0
        are = f"{output.counted(changed, 'record')} {'is' if changed == 1 else 'are'}"
        if changed:
            output.note(
                f"topics export: {are} not preserved byte for byte: bytes became base64, or line ends "
                "between JSON values became spaces; --with-meta, CSV and Parquet preserve both"
            )
        single = len(self._partitions) == 1
        if arguments.json:
            row = {
                "topic": arguments.topic,
                "file": arguments.file,
                "count": self._count,
                "first_seq": self._first_seq if single else None,
                "last_seq": self._last_seq if single else None,
                "gaps": self._gaps,
                "missed_estimate": self._lost,
                "changed": changed,
                "seconds": round(seconds, 3),
            }
            if arguments.file == "-":
                import json

                output.note(json.dumps(row, ensure_ascii=False, separators=(",", ":")))
            else:
                output.line(row)
            return
        text = f"exported {output.counted(self._count, 'record')} of {arguments.topic}"
        text += f" from {len(self._partitions)} partitions" if not single else ""
        text += f" to {arguments.file}" if arguments.file != "-" else ""
        if single and self._last_seq is not None:
            text += f": seq {self._first_seq} to {self._last_seq}; continue with --from-seq {self._last_seq}"
        if self._gaps:
            text += f"; {output.counted(self._gaps, 'gap')}, up to {output.counted(self._lost, 'record')} gone"
        if arguments.file == "-":
            output.note(f"topics export: {text}")
        else:
            print(f"{text} ({seconds:.2f} s)")


def _whole_lines(records: "Sequence[Record]", *, partition: bool) -> bytes:
    return b"".join([whole_line(record, partition=partition, exact=True) + b"\n" for record in records])


class _Text:
    """A line format, optionally compressed."""

    def __init__(
        self,
        target: IO[bytes],
        packing: str | None,
        render: "Callable[[Sequence[Record]], bytes]",
        header: bytes = b"",
    ) -> None:
        """`render` formats records as lines."""
        self._good = 0  # bytes of complete lines
        self._target = target
        self._packing = packing
        self._render = render
        self._stream = formats.packed(target, packing)
        self._put(header)

    def write(self, records: "Sequence[Record]") -> None:
        """Take in records."""
        self._put(self._render(records))

    def _put(self, text: bytes) -> None:
        self._stream.write(text)
        self._good += len(text)

    def close(self) -> None:
        """Finish the compression."""
        if self._packing:
            self._stream.close()
        self._target.flush()

    def rescue(self, error: BaseException) -> bool:
        """Truncate the partial line."""
        if not self._target.seekable():
            return False
        if self._packing is None:
            self._target.truncate(self._good)
            return True
        if isinstance(error, OSError):  # the compression can't be finished, and the rest would be hard to read
            self._target.seek(0)
            self._target.truncate(0)
            return False
        self.close()
        return True


class _Values(_Text):
    """NDJSON of the data only. `changed` counts the records not preserved byte for byte."""

    changed = 0

    def write(self, records: "Sequence[Record]") -> None:
        """Take in records."""
        self.changed += changed(records)
        super().write(records)


@contextmanager
def _target(arguments: argparse.Namespace) -> "Iterator[IO[bytes]]":
    """Open the output. A file gets its name once it is complete."""
    if arguments.file == "-":
        yield sys.stdout.buffer
        return
    path = Path(os.path.realpath(arguments.file))
    if path.exists() and not path.is_file():
        raise ValueError(f"{arguments.file} is not a regular file; - writes to standard output")
    part = path.with_name(f"{path.name}.part")
    for each in (path, part):
        if each.exists() and not arguments.force:
            raise ValueError(f"{each} already exists; use --force to overwrite it")
    try:
        with part.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())  # before the final name appears
    except BaseException:
        if part.exists() and not part.stat().st_size:
            part.unlink()
        raise
    os.replace(part, path)
