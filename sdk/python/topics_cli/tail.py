"""`topics tail`: print the newest records of topics, and optionally follow them."""

import argparse
import heapq
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from topics_cli import output, ranges, server, template
from topics_cli.argparse_ext import allow_intermixed
from topics_cli.recordtext import gap_object, value_line, whole_line
from topics_cli.times import point, shown
from topics_cli.types import whole

if TYPE_CHECKING:
    from topics_cli.types import Commands
    from topics_client import TopicsClient
    from topics_client.models import Gap, Record

_MAX_LINES: Final = 10_000  # of `-n`: they are held in memory, to print those of all topics in order of time
_COLORS: Final = ("cyan", "green", "yellow", "blue")


def add_parser(commands: "Commands") -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "tail",
        help="print the newest records of topics, and optionally follow them",
        description="Print the newest records of each TOPIC, several topics in order of time. A TOPIC may be NAME@N "
        "for partition N, or PREFIX* for all topics with this prefix, with --follow including topics created later.",
        epilog=template.HELP,
    )
    server.add_name(parser, "topic", nargs="+", metavar="TOPIC", help="topics")
    parser.add_argument("-f", "--follow", action="store_true", help="keep printing new records until Ctrl-C")
    start = parser.add_mutually_exclusive_group()
    start.add_argument("-n", "--lines", type=whole, default=10, metavar="N", help="records per topic (default: 10)")
    start.add_argument(
        "--from-time", "--since", type=point, metavar="TIME", help=f"all records from TIME on: {ranges.TIME_HELP}"
    )
    ranges.add_tags(parser)
    parser.add_argument(
        "--format",
        type=template.argument(("record", "value", "json")),
        metavar="FORMAT",
        help="record: time, topic, seq, tag, data; value: the data; json: as in /v0; or a format such as "
        "'{topic} {seq} {value}\\n' (default: record)",
    )
    output.add_arguments(parser, table=False)
    server.add_arguments(parser)
    allow_intermixed(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print and follow. Gaps, restarts of the server and deletions of topics are reported on stderr."""
    return server.run_command("tail", lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    if arguments.json and arguments.format not in (None, "json"):
        raise server.UsageError("--json and another --format are mutually exclusive")
    if arguments.lines > _MAX_LINES:
        raise server.UsageError(f"-n must be at most {_MAX_LINES}; topics read --last N has no limit")
    names = list(dict.fromkeys(arguments.topic))
    with server.client(arguments) as client:
        printer = _Printer(arguments, several=len(names) > 1 or names[0].endswith("*"))
        cursor: dict[str, int] = {}
        newest: list[Iterable[Record]] = []
        counts = _partition_counts(client, names)
        if not counts:
            printer.note(f"no topics match yet: {' '.join(names)}")
        wide = [f"{name} ({count})" for name, count in counts.items() if count > 1]
        if wide:
            printer.note(f"only partition 0 of {', '.join(wide)}; use NAME@N for another")
        for name in counts:
            if arguments.from_time is not None:
                newest.append(_since(client, name, arguments, printer, cursor))
            else:
                found, cursor[name] = _newest(client, name, arguments, printer)
                newest.append(found)
        printer.records(heapq.merge(*newest, key=lambda record: record.ts_ms))
        if arguments.follow:
            _follow(client, names, cursor, arguments, printer)
    return 0


def _partition_counts(client: "TopicsClient", names: Iterable[str]) -> dict[str, int]:
    """Partition counts by topic: of the named topics, and of all current topics with a given prefix; 1 for a single
    partition.
    """
    counts: dict[str, int] = {}
    for name in names:
        if name.endswith("*"):
            counts |= {each.topic: each.partition_count for each in client.list_topics(name.removesuffix("*"))}
        else:
            counts[name] = 1 if "@" in name else client.get_topic(name, touch=False).partition_count
    return counts


def _newest(
    client: "TopicsClient", name: str, arguments: argparse.Namespace, printer: "_Printer"
) -> "tuple[list[Record], int]":
    """The newest records of a topic, and the cursor behind them."""
    from topics_client.models import Gap
    from topics_client.requests import parse_topic_partition

    topic, partition = parse_topic_partition(name)
    if not arguments.lines:
        return [], client.get_topic(topic, partition=partition, touch=False).head_seq
    records: list[Record] = []
    with client.read(
        topic,
        last=arguments.lines,
        tag=arguments.tag,
        tag_prefix=arguments.tag_prefix,
        partition=partition,
        gaps="yield",
    ) as stream:
        for item in stream:
            if isinstance(item, Gap):
                printer.gap(item)
            else:
                records.append(item)
        return records, stream.position or 0


def _since(
    client: "TopicsClient",
    name: str,
    arguments: argparse.Namespace,
    printer: "_Printer",
    cursor: dict[str, int],
) -> "Iterator[Record]":
    """The records of a topic from a time on, as they are read; at the end the cursor behind them is in `cursor`."""
    from topics_client.models import Gap
    from topics_client.requests import parse_topic_partition

    topic, partition = parse_topic_partition(name)
    with client.read(
        topic,
        from_ts_ms=arguments.from_time,
        tag=arguments.tag,
        tag_prefix=arguments.tag_prefix,
        partition=partition,
        gaps="yield",
    ) as stream:
        for item in stream:
            if isinstance(item, Gap):
                printer.gap(item)
            else:
                yield item
        cursor[name] = stream.position or 0


def _follow(
    client: "TopicsClient",
    names: Sequence[str],
    cursor: Mapping[str, int],
    arguments: argparse.Namespace,
    printer: "_Printer",
) -> None:
    from topics_cli.reconnect import reconnecting
    from topics_client.models import Advice, Gap, Record, TopicDeleted
    from topics_client.retry import Retry

    printer.flush()
    stream = client.watch(names, cursor=cursor, tag=arguments.tag, tag_prefix=arguments.tag_prefix, events=True)
    with stream:
        for items in reconnecting(
            stream,
            Retry(seconds=float("inf")),
            broken=lambda error: printer.note("the server is unavailable; waiting for it"),
            back=lambda: printer.note("reconnected to the server"),
        ):
            records = [item for item in items if type(item) is Record]
            printer.records(records)
            printer.flush()
            for item in items if len(records) < len(items) else ():
                if isinstance(item, Gap):
                    printer.gap(item)
                elif isinstance(item, TopicDeleted):
                    printer.note(f"{item.topic} was deleted")
                elif isinstance(item, Advice) and item.retry_after_ms is None:  # else it is only that it is paced
                    printer.note(f"{item.reason}: {item.message}")


class _Printer:
    """Records on stdout, everything else on stderr."""

    def __init__(self, arguments: argparse.Namespace, *, several: bool) -> None:
        self._arguments = arguments
        self._how = "json" if arguments.json else arguments.format or "record"
        self._several = several
        self._colored = output.colored(arguments)
        self._terminal = sys.stdout.isatty()
        self._colors: dict[str, str] = {}

    def records(self, records: "Iterable[Record]") -> None:
        """Print records, each on a line."""
        line: Any
        if isinstance(self._how, template.Template):
            line, end = partial(self._how, clean=self._terminal), b""
        else:
            line, end = {"record": self._for_people, "value": self._value, "json": self._whole}[self._how], b"\n"
        for record in records:
            sys.stdout.buffer.write(line(record) + end)

    def flush(self) -> None:
        """Flush the output."""
        sys.stdout.buffer.flush()

    def gap(self, gap: "Gap") -> None:
        """Report lost records."""
        self.flush()
        if self._how == "json":
            sys.stdout.buffer.write(json.dumps({"gap": gap_object(gap)}, separators=(",", ":")).encode() + b"\n")
            self.flush()
        else:
            ranges.tell_gap("tail", gap, self._arguments, topic=True)

    def note(self, text: str) -> None:
        """Tell something else."""
        self.flush()
        output.note(f"topics tail: {text}")

    def _whole(self, record: "Record") -> bytes:
        return whole_line(record, topic=True, partition=record.partition > 0)

    def _value(self, record: "Record") -> bytes:
        line = value_line(record)
        return output.clean(line.decode()).encode() if self._terminal else line

    def _for_people(self, record: "Record") -> bytes:
        name = f"{record.topic}@{record.partition}" if record.partition else record.topic
        parts = [self._paint(shown(record.ts_ms), "dim")]
        if self._several:
            color = self._colors.setdefault(name, _COLORS[len(self._colors) % len(_COLORS)])
            parts.append(self._paint(name, color))
        parts.append(self._paint(str(record.seq), "bold"))
        if record.tag is not None:
            parts.append(self._paint(f"[{output.clean(record.tag)}]", "dim"))
        return " ".join([*parts, output.clean(value_line(record).decode())]).encode()

    def _paint(self, text: str, color: str) -> str:
        return output.paint(text, color) if self._colored else text
