"""`topics import`: append files to a topic, and check that their records read back as they were."""

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

_READ_SECONDS: Final = 60.0  # how long the comparison waits for a server that restarts
_FORMATS = """\
formats: the ending of FILE says which: .ndjson or .jsonl, .csv, .parquet; of NDJSON and CSV also with .gz or .zst
behind it. Other names, and standard input, are NDJSON, or Parquet if they begin like it. What is packed is unpacked,
whatever its name. --format overrides the name.

NDJSON: each line is the data of a record, or with --with-meta a whole record with its tag, node and meta, as `topics
export --with-meta` writes it. CSV (with a header, separated by commas) and Parquet: each row of a file with a column
data is a record, data being JSON unless the column kind says binary, with the columns tag, node, meta and partition if
they are there; each row of any other file is a JSON object, whose values are texts if it comes from CSV.
"""


def add_parser(commands: "Commands") -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "import",
        help="append files to a topic",
        description="Append the lines or rows of each FILE as records, byte for byte, then read all of them back and "
        "compare.",
        epilog=_FORMATS,
    )
    parser.add_argument("file", nargs="+", metavar="FILE", help="the file; - is standard input")
    parser.add_argument("--topic", required=True, help="the topic; made if it is not there")
    parser.add_argument("--format", choices=formats.CHOICES, metavar="FORMAT", help=formats.HELP)
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--tag-field", metavar="NAME", help="tag each record with this top-level string field")
    kinds.add_argument("--with-meta", action="store_true", help="ndjson: each line is a whole record")
    parser.add_argument("--rows", action="store_true", help="csv, parquet: rows as JSON objects, whatever the columns")
    parser.add_argument(
        "--partition", type=whole, metavar="N", help="the partition (default: 0, or that of the record)"
    )
    parser.add_argument("--skip-invalid", action="store_true", help="pass over lines and rows that are not records")
    parser.add_argument(
        "--start-line", type=positive, default=1, metavar="N", help="begin with line (Parquet: row) N of the first FILE"
    )
    parser.add_argument("--batch", type=positive, default=500, metavar="N", help="records in a write (default: 500)")
    parser.add_argument("--no-compare", action="store_true", help="don't read back")
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
        raise ValueError(f"{', '.join(arguments.file)} holds no records")
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
            f"{output.counted(comparison.different, 'record')} did not read back as appended, the first is seq "
            f"{comparison.first_different}"
        )
    if not (arguments.json or arguments.no_compare):
        print(f"read back {output.counted(sender.count, 'record')}, byte for byte the same")
    return 0
