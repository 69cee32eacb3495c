"""`topics read`: print the records of a topic."""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from topics_client.cli import output, ranges, server
from topics_client.cli.recordtext import gap_object, value_line, value_lines, whole_line
from topics_client.cli.times import shown
from topics_client.cli.types import whole

if TYPE_CHECKING:
    from topics_client.cli.types import Commands
    from topics_client.models import Record

_FORMATS = """\
formats: value prints the data of each record on a line of its own, binary data as {"$base64":"..."}; json prints the
whole record as /v0 shows it, and gaps among them as {"gap":{...}}; raw prints the data byte for byte and a line end;
record prints seq, time, tag and data for people.
"""


def add_parser(commands: "Commands") -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "read",
        help="print the records of a topic",
        description="Print the records of TOPIC that are there now, oldest first; `topics tail -f` waits for more.",
        epilog=_FORMATS,
    )
    server.add_name(parser, "topic", help="the topic")
    ranges.add_range(parser)
    parser.add_argument("--partition", type=whole, metavar="N", help="its partition (default: 0)")
    ranges.add_gaps(parser)
    output.add_arguments(parser, table=False)
    parser.add_argument("--format", choices=("value", "json", "raw", "record"), help="see below (default: value)")
    server.add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Read and print; 1 for a gap with `--gaps fail`."""
    return server.told("read", lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    if arguments.json and arguments.format not in (None, "json"):
        raise server.UsageError(f"--json and --format {arguments.format} exclude each other")
    how = "json" if arguments.json else arguments.format or "value"
    with server.client(arguments) as client:
        if arguments.partition is None:
            count = client.get_topic(arguments.topic, touch=False).partition_count
            if count > 1:
                output.note(f"topics read: partition 0 of {count}; --partition N reads another")
        read = ranges.Read(client, arguments, arguments.topic, arguments.partition or 0)
        for gap, records in read.batches():
            if gap is not None and how == "json":
                _write(json.dumps({"gap": gap_object(gap)}, separators=(",", ":")).encode() + b"\n")
            elif gap is not None:
                ranges.tell_gap("read", gap, arguments)
            if records:
                _write(_lines(records, how))
    return 0


def _lines(records: "Sequence[Record]", how: str) -> bytes:
    if how == "value":
        text = value_lines(records)
        # JSON may hold what moves a terminal's cursor.
        return b"\n".join(map(_clean, text.split(b"\n"))) if sys.stdout.isatty() else text
    if how == "json":
        lines = [whole_line(record) for record in records]
    elif how == "raw":
        lines = [record.data for record in records]
    else:
        lines = [_for_people(record) for record in records]
    return b"\n".join([*lines, b""])


def _for_people(record: "Record") -> bytes:
    tag = "-" if record.tag is None else output.clean(record.tag)
    return f"{record.seq}\t{shown(record.ts_ms)}\t{tag}\t".encode() + _clean(value_line(record))


def _clean(line: bytes) -> bytes:
    return output.clean(line.decode()).encode()


def _write(text: bytes) -> None:
    sys.stdout.buffer.write(text)
