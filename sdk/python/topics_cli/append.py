"""`topics append`: append records to a topic."""

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from topics_cli import output, server
from topics_cli.appending import Appending
from topics_cli.argparse_ext import allow_intermixed
from topics_cli.inputs import Inputs
from topics_cli.progress import amount
from topics_cli.sending import MAX_RECORDS, Batch, Options, Sender
from topics_cli.types import milliseconds, positive, whole

if TYPE_CHECKING:
    from topics_cli.types import Commands

_KEYED_BYTES: Final = 32 << 20
_FORMATS = """\
formats: with ndjson each VALUE and each line is a JSON text, stored byte for byte; blank lines are skipped. With
text each is a string, stored as a JSON string. With binary each VALUE and each whole file is one record.

Records are appended in order. An error names the line and the progress so far; nothing after that line is appended.
"""


def add_parser(commands: "Commands") -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "append",
        help="append records to a topic",
        description="Append each VALUE as one record; without VALUEs, each line of the files or of standard input.",
        epilog=_FORMATS,
    )
    server.add_name(parser, "topic", help="the topic, created if missing")
    parser.add_argument("value", nargs="*", default=[], metavar="VALUE", help="a record")
    group = parser.add_argument_group("input")
    group.add_argument("--file", action="append", metavar="FILE", help="read FILE (- is standard input); repeatable")
    group.add_argument("--format", choices=("ndjson", "text", "binary"), default="ndjson", help="see below")
    group.add_argument("--skip-invalid", action="store_true", help="skip lines that are invalid JSON or too large")
    group.add_argument("--start-line", type=positive, default=1, metavar="N", help="start at line N of the first file")
    group = parser.add_argument_group("records")
    tags = group.add_mutually_exclusive_group()
    tags.add_argument("--tag", metavar="TAG", help="tag of each record")
    tags.add_argument("--tag-field", metavar="NAME", help="tag each record with this top-level string field")
    group.add_argument("--meta", metavar="JSON", help="headers of each record, a JSON object")
    group.add_argument("--node", metavar="NODE", help="node of each record: readers of that node skip them")
    group = parser.add_argument_group("writing")
    group.add_argument("--key", metavar="KEY", help="idempotency key: a repeated key appends nothing. One write only")
    group.add_argument("--no-create", action="store_true", help="fail if the topic does not exist")
    group.add_argument("--partition", type=whole, default=0, metavar="N", help="partition (default: 0)")
    group.add_argument(
        "--batch", type=positive, default=MAX_RECORDS, metavar="N", help="maximum number of records per write"
    )
    group.add_argument(
        "--delay",
        "--delay-ms",
        type=milliseconds,
        default=0,
        metavar="TIME",
        dest="delay_ms",
        help="queues: delay before the jobs can be claimed (default: none)",
    )
    group.add_argument("--priority", type=whole, default=0, metavar="P", help="queues: 0 to 9, highest first")
    output.add_arguments(parser, table=False)
    server.add_arguments(parser)
    allow_intermixed(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Append; 130 if interrupted."""
    return server.run_command("append", lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    inputs = Inputs(
        arguments.file or [],
        arguments.value,
        kind=arguments.format,
        skip_invalid=arguments.skip_invalid,
        start_line=arguments.start_line,
        partition=arguments.partition,
        tag=arguments.tag,
        tag_field=arguments.tag_field,
        meta=arguments.meta,
    )
    keyed = arguments.key is not None
    options = Options(
        topic=arguments.topic,
        node=arguments.node,
        key=arguments.key,
        create=False if arguments.no_create else None,
        delay_ms=arguments.delay_ms,
        priority=arguments.priority,
        batch_records=MAX_RECORDS if keyed else min(arguments.batch, MAX_RECORDS),
        skip_too_large=arguments.skip_invalid,
    )
    if "-" in inputs.files and sys.stdin.isatty():
        output.note("topics append: reading from the terminal; press Ctrl-D on an empty line to end")
    with server.connected(arguments) as connection:
        sender = Sender(connection, options)
        appending = Appending(arguments, inputs, sender)
        code = appending.run(_one(inputs) if keyed else inputs.batches())
    if arguments.json:
        output.line(_row(arguments, appending, sender))
    elif code == 0:
        print(_text(arguments, appending, sender))
    return code


def _row(arguments: argparse.Namespace, appending: Appending, sender: Sender) -> dict[str, object]:
    return {
        "topic": arguments.topic,
        "partition": arguments.partition,
        "count": sender.count,
        "first_seq": sender.first_seq,
        "last_seq": sender.last_seq,
        "deduped": sender.deduped,
        "skipped": appending.skipped,
        "next_line": appending.stop.line if appending.stop else None,
        "seconds": round(appending.seconds, 3),
        "records_per_s": round(sender.count / appending.seconds),
        "bytes": sender.bytes,
        "bytes_per_s": round(sender.bytes / appending.seconds),
    }


def _text(arguments: argparse.Namespace, appending: Appending, sender: Sender) -> str:
    what = "already in" if sender.deduped else "appended to"
    text = f"{output.counted(sender.count, 'record')} {what} {arguments.topic}"
    if sender.count:
        text += f": seq {sender.first_seq} to {sender.last_seq}" if sender.count > 1 else f": seq {sender.last_seq}"
    if appending.skipped:
        text += f", {appending.skipped:,} skipped"
    speed = f"{sender.count / appending.seconds:,.0f} records/s, {amount(sender.bytes / appending.seconds, 'B')}/s"
    return f"{text} ({amount(sender.bytes, 'B')} in {appending.seconds:.2f} s, {speed})"


def _one(inputs: Inputs) -> Iterator[Batch]:
    """Collect all records into one batch for a single write. Raises ValueError if it is too large."""
    whole: Batch | None = None
    for batch in inputs.batches():
        if whole is None:
            whole = batch
        else:
            whole.extend(batch)
        if len(whole) > MAX_RECORDS or whole.size > _KEYED_BYTES:
            raise ValueError(f"--key applies to a single write of at most {MAX_RECORDS:,} records and 32 MiB")
    if whole is not None:
        yield whole
