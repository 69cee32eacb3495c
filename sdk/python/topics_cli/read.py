"""`topics read`: print the records of a topic."""

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from topics_cli import output, ranges, server, template
from topics_cli.recordtext import gap_object, value_line, value_lines, whole_line
from topics_cli.times import shown
from topics_cli.types import whole

if TYPE_CHECKING:
    from topics_cli.types import Commands
    from topics_client import TopicsClient
    from topics_client.models import Record

_FORMATS = """\
formats: value prints the data of each record on its own line, binary data as {"$base64":"..."}; json prints the whole
record as in /v0, and gaps between them as {"gap":{...}}; raw prints the data byte for byte and a line end; record
prints seq, time, tag and data for people.

"""
_GROUP = """
With --group the command starts at the group's position, and commits the position printed after each batch and at the
end. Records printed but not committed are printed again: at least once. --from-... sets the start of a group without
a position.
"""
_HOW: Final = ("value", "json", "raw", "record")


def add_parser(commands: "Commands") -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "read",
        help="print the records of a topic",
        description="Print the current records of TOPIC, oldest first.",
        epilog=_FORMATS + template.HELP + _GROUP,
    )
    server.add_name(parser, "topic", help="the topic")
    ranges.add_range(parser)
    parser.add_argument("--partition", type=whole, metavar="N", help="partition (default: 0)")
    parser.add_argument("--follow", action="store_true", help="keep printing new records until Ctrl-C")
    server.add_name(
        parser,
        "--group",
        kind="groups",
        metavar="GROUP",
        help="start at the position of this consumer group, and commit",
    )
    ranges.add_gaps(parser)
    output.add_arguments(parser, table=False)
    parser.add_argument(
        "-f",
        "--format",
        type=template.argument(_HOW),
        metavar="FORMAT",
        help=f"{', '.join(_HOW)}, or a format such as '{{seq}} {{value}}\\n'; see below (default: value)",
    )
    server.add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Read and print; 1 for a gap with `--gaps fail`."""
    return server.run_command("read", lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    if arguments.json and arguments.format not in (None, "json"):
        raise server.UsageError("--json and another --format are mutually exclusive")
    how = "json" if arguments.json else arguments.format or "value"
    with server.client(arguments) as client:
        if arguments.partition is None:
            count = client.get_topic(arguments.topic, touch=False).partition_count
            if count > 1:
                output.note(f"topics read: reading partition 0 of {count}; use --partition N for another")
        group = GroupPosition(client, arguments)
        read = ranges.Read(client, arguments, arguments.topic, arguments.partition or 0)
        try:
            for gap, records in read.batches():
                if gap is not None and how == "json":
                    _write(json.dumps({"gap": gap_object(gap)}, separators=(",", ":")).encode() + b"\n")
                elif gap is not None:
                    ranges.tell_gap("read", gap, arguments)
                if records:
                    _write(_lines(records, how))
                if arguments.follow or arguments.group is not None:
                    sys.stdout.buffer.flush()
                group.printed(read.position)
            group.printed(read.position)
        except BaseException:
            group.abandon()
            raise
        group.leave()
    return 0


class GroupPosition:
    """The position of the consumer group of a read, if any."""

    def __init__(self, client: "TopicsClient", arguments: argparse.Namespace) -> None:
        """Has `arguments` begin where the group is."""
        self._client = client
        self._group: str | None = arguments.group
        self._partition: int = arguments.partition or 0
        self._name = f"{arguments.topic}@{self._partition}" if self._partition else arguments.topic
        self._printed: int | None = None  # and not committed
        if self._group is None:
            return
        found = self._found(arguments.topic)
        if found is not None:
            if (arguments.from_seq, arguments.from_time, arguments.last) != (None, None, None) or arguments.from_start:
                output.note(
                    f"topics read: {self._group} continues after seq {found}; to move it: topics groups {self._group} "
                    "--reset TO"
                )
            arguments.from_seq, arguments.from_time, arguments.last = found, None, None

    def _found(self, topic: str) -> int | None:
        from topics_client.errors import NotFoundError

        try:
            positions = self._client.fetch_positions(self._group or "", topic)
        except NotFoundError:
            return None
        return next((each.from_seq for each in positions if each.partition == self._partition), None)

    def printed(self, position: int | None) -> None:
        """Commit now, or with the next records if the server is away."""
        if self._group is None or position is None:
            return
        from topics_client.errors import UnavailableError

        self._printed = position
        with suppress(UnavailableError):
            self._commit()

    def leave(self) -> None:
        """Commit the rest. Raises TopicsError."""
        if self._printed is not None:
            self._commit()

    def abandon(self) -> None:
        """Commit the rest when the command ends for another reason; report it if that fails."""
        from topics_client.errors import TopicsError

        try:
            self.leave()
        except TopicsError as error:
            output.note(
                f"topics read: printed up to seq {self._printed} but could not commit, {self._group} will see some "
                f"records again: {error}"
            )

    def _commit(self) -> None:
        if self._group is not None and self._printed is not None:
            self._client.commit_positions(self._group, {self._name: self._printed})
            self._printed = None


def _lines(records: "Sequence[Record]", how: "str | template.Template") -> bytes:
    if isinstance(how, template.Template):
        terminal = sys.stdout.isatty()
        return b"".join([how(record, clean=terminal) for record in records])
    if how == "value":
        text = value_lines(records)
        # JSON may hold control characters of a terminal.
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
