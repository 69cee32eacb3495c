"""Common parts of commands that read a topic: the range, and the handling of gaps."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from topics_cli import output, server
from topics_cli.recordtext import gap_text
from topics_cli.times import point
from topics_cli.types import whole

if TYPE_CHECKING:
    from topics_client import TopicsClient
    from topics_client.models import Gap, Record

TIME_HELP: Final = "15m (ago), 2026-11-28T14:30Z, or ms since 1970"
BREAK_SECONDS: Final = 60.0  # time that a read waits for a server that went away


class GapFoundError(ValueError):
    """Records are lost, and the options say to end then."""

    def __init__(self, gap: "Gap") -> None:
        super().__init__(f"{gap_text(gap)}; continue after it with --from-seq {behind(gap)}, or without --gaps fail")


def behind(gap: "Gap") -> int:
    """The cursor behind a gap."""
    return max(0, gap.earliest_seq - 1) if gap.reason == "recreated" else gap.last_seq


def add_range(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that select records."""
    group = parser.add_argument_group("range")
    start = group.add_mutually_exclusive_group()
    start.add_argument("--from-start", action="store_true", help="start at the first record (default)")
    start.add_argument("--from-seq", type=whole, metavar="N", help="start after seq N")
    start.add_argument("--from-time", "--since", type=point, metavar="TIME", help=f"start at TIME: {TIME_HELP}")
    start.add_argument("--last", type=whole, metavar="N", help="the newest N records")
    group.add_argument("--to-seq", type=whole, metavar="N", help="end at seq N, inclusive")
    group.add_argument("--to-time", "--until", type=point, metavar="TIME", help="end before TIME")
    group.add_argument("--limit", type=whole, metavar="N", help="at most N records")
    add_tags(group)


def add_tags(group: "argparse._ActionsContainer") -> None:
    """Add the arguments that select by tag."""
    tags = group.add_mutually_exclusive_group()
    tags.add_argument("--tag", metavar="TAG", help="only records with this tag")
    tags.add_argument("--tag-prefix", metavar="TEXT", help="only records whose tag has this prefix")


def add_gaps(parser: argparse.ArgumentParser) -> None:
    """Add the argument for the handling of gaps."""
    parser.add_argument(
        "--gaps",
        choices=("show", "fail"),
        default="show",
        help="on lost records: report them on stderr and continue, or end with status 1 (default: show)",
    )


class Read:
    """The records of one partition in batches, across reconnects."""

    def __init__(self, client: "TopicsClient", arguments: argparse.Namespace, topic: str, partition: int) -> None:
        """`arguments` are those of `add_range` and `add_gaps`."""
        self.gaps: list[Gap] = []
        self._fail = arguments.gaps == "fail"
        self._limit: int | None = arguments.limit
        self._stream = client.read(
            topic,
            arguments.from_seq or 0,
            end_seq=_end(client, arguments, topic, partition),
            from_ts_ms=arguments.from_time,
            last=arguments.last,
            tag=arguments.tag,
            tag_prefix=arguments.tag_prefix,
            partition=partition,
            gaps="yield",
            follow=getattr(arguments, "follow", False),
        )
        self.position: int | None = None  # after the last record
        self._name = arguments.command

    def batches(self) -> "Iterator[tuple[Gap | None, Sequence[Record]]]":
        """Yield records, up to `--limit`, with the gap before them. Raises GapFoundError with `--gaps fail`."""
        from topics_cli.reconnect import reconnecting
        from topics_client.models import Gap
        from topics_client.retry import Retry

        left = self._limit
        if left == 0:
            return
        with self._stream as stream:
            for items in reconnecting(stream, Retry(seconds=BREAK_SECONDS), broken=self._broken):
                gap, records = None, cast("Sequence[Record]", items)
                if isinstance(items[0], Gap):  # an answer has one at most, in front
                    gap, records = items[0], records[1:]
                    self.gaps.append(gap)
                    if self._fail:
                        raise GapFoundError(gap)
                self.position = self._stream.position
                if left is not None:
                    records = records[:left]
                    left -= len(records)
                if left == 0:
                    self.position = records[-1].seq
                yield gap, records
                if left == 0:
                    return
            self.position = self._stream.position  # and records filtered out at the end

    @property
    def lost(self) -> int:
        """The maximum number of records lost in the gaps."""
        return sum(gap.missed_estimate for gap in self.gaps)

    def _broken(self, error: Any) -> None:
        server.complain(
            self._name,
            f"{error}; read up to seq {self._stream.position}, waiting up to {BREAK_SECONDS:.0f} s for the server",
        )


def _end(client: "TopicsClient", arguments: argparse.Namespace, topic: str, partition: int) -> int | None:
    """The last seq that is wanted."""
    to_seq: int | None = arguments.to_seq
    if arguments.to_time is None:
        return to_seq
    before = client.locate_time(topic, arguments.to_time, partition=partition) - 1
    return before if to_seq is None else min(before, to_seq)


def tell_gap(name: str, gap: "Gap", arguments: argparse.Namespace, *, topic: bool = False) -> None:
    """A gap in one line on stderr, red where there are colours."""
    text = f"topics {name}: {f'{gap.topic}: ' if topic else ''}{gap_text(gap)}"
    colored = output.colored(arguments, sys.stderr)
    print(output.paint(output.clean(text), "red") if colored else output.clean(text), file=sys.stderr)
