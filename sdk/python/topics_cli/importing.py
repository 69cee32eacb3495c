"""`topics import`: append files to a topic, and verify that their records read back identically."""

import argparse
from typing import TYPE_CHECKING, Any, Final

from topics_cli import formats, output, server
from topics_cli.appending import Appending
from topics_cli.argparse_ext import allow_intermixed
from topics_cli.checksum import RecordChecksums
from topics_cli.inputs import FileInputs
from topics_cli.sending import MAX_RECORDS, Options, Sender
from topics_cli.types import positive, whole

if TYPE_CHECKING:
    from topics_cli.types import Commands

_READ_SECONDS: Final = 60.0  # time that the comparison waits for a restarting server
_FORMATS = """\
formats: selected by the extension of FILE: .ndjson or .jsonl, .csv, .parquet; NDJSON and CSV also with .gz or .zst
appended. Other names, and standard input, are NDJSON, or Parquet if the content is. Compressed files are decompressed
regardless of their name. --format overrides the name.

NDJSON: each line is the data of a record, or with --with-meta a whole record with its tag, node and meta, as written by
`topics export --with-meta`. CSV (with a header, separated by commas) and Parquet: each row of a file with a data column
is a record, with JSON data unless the column kind is binary, and optional columns tag, node, meta and partition; each
row of any other file is a JSON object, with strings as values if it comes from CSV.
"""


def add_parser(commands: "Commands") -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "import",
        help="append files to a topic",
        description="Append the lines or rows of each FILE as records, byte for byte, then read them back and compare.",
        epilog=_FORMATS,
    )
    parser.add_argument("file", nargs="+", metavar="FILE", help="the file; - is standard input")
    parser.add_argument("--topic", required=True, help="the topic, created if missing")
    parser.add_argument("--format", choices=formats.CHOICES, metavar="FORMAT", help=formats.HELP)
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--tag-field", metavar="NAME", help="tag each record with this top-level string field")
    kinds.add_argument("--with-meta", action="store_true", help="ndjson: each line is a whole record")
    parser.add_argument("--rows", action="store_true", help="csv, parquet: import rows as JSON objects in any case")
    parser.add_argument("--partition", type=whole, metavar="N", help="partition (default: 0, or the record's)")
    parser.add_argument("--skip-invalid", action="store_true", help="skip invalid lines and rows")
    parser.add_argument(
        "--start-line", type=positive, default=1, metavar="N", help="start at line (Parquet: row) N of the first FILE"
    )
    parser.add_argument("--batch", type=positive, default=500, metavar="N", help="records per write (default: 500)")
    parser.add_argument("--no-compare", action="store_true", help="skip the comparison")
    output.add_arguments(parser, table=False)
    server.add_arguments(parser)
    allow_intermixed(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Import, read back and compare; 1 if a line is not JSON, the server refuses, or a record differs."""
    return server.run_command("import", lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    from topics_client.retry import Retry

    inputs = FileInputs(
        arguments.file,
        chosen=arguments.format,
        whole=arguments.with_meta,
        as_rows=arguments.rows,
        skip_invalid=arguments.skip_invalid,
        start_line=arguments.start_line,
        partition=arguments.partition,
        tag_field=arguments.tag_field,
    )
    comparison = RecordChecksums(arguments.topic)
    options = Options(
        topic=arguments.topic,
        batch_records=min(arguments.batch, MAX_RECORDS),
        skip_too_large=arguments.skip_invalid,
    )
    with server.connected(arguments) as connection:
        sender = Sender(connection, options, None if arguments.no_compare else comparison.appended)
        appending = Appending(arguments, inputs, sender)
        code = appending.run(inputs.batches())
        if code:
            return code
    if not sender.count:
        raise ValueError(f"no records in {', '.join(arguments.file)}")
    row: dict[str, Any] = {
        "topic": arguments.topic,
        "count": sender.count,
        "first_seq": sender.first_seq,
        "last_seq": sender.last_seq,
        "skipped": appending.skipped,
        "seconds": round(appending.seconds, 3),
    }
    if not arguments.json:
        where = f"seq {sender.first_seq} to {sender.last_seq}" if sender.count > 1 else f"seq {sender.last_seq}"
        if comparison.partitions > 1:
            where = f"{comparison.partitions} partitions"
        print(f"appended {output.counted(sender.count, 'record')} to {arguments.topic}: {where}", flush=True)
    if not arguments.no_compare:
        with server.client(arguments, retry=Retry(seconds=_READ_SECONDS)) as client:
            comparison.read(client)
        row["different"] = comparison.different
    if arguments.json:
        output.line(row)
    if comparison.different:
        raise ValueError(
            f"{output.counted(comparison.different, 'record')} did not read back as appended, first at seq "
            f"{comparison.first_different}"
        )
    if not (arguments.json or arguments.no_compare):
        print(f"read back {output.counted(sender.count, 'record')}, byte for byte identical")
    return 0
