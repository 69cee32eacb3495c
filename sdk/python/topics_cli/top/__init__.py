"""`topics top`: a live table of topics, their rates and lag."""

import argparse
from typing import TYPE_CHECKING, Any, Final

from topics_cli import output, server
from topics_cli.types import prefix, seconds, whole
from topics_client.installation import needs

if TYPE_CHECKING:
    from topics_cli.top.rates import Reading
    from topics_cli.types import Commands
    from topics_client import TopicsClient

_SORTS: Final = ("rate", "records", "size", "lag", "ready", "name")  # the keys of rates.SORTS
_MAX_GROUPS: Final = 100  # whose positions are asked for, a call for each
_MAX_LISTED: Final = 5000  # topics that the metrics lack


def add_parser(commands: "Commands") -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "top",
        description="Monitor topics: records, bytes, appends per second, records committed by consumer groups per "
        "second and their largest lag, jobs of queues. On a terminal, a live table; keys r, l, j, c, s and n sort it "
        "by rate, lag, ready jobs, record count, size and name, q quits. Otherwise a table at each interval.",
    )
    server.add_name(parser, "prefix", type=prefix, nargs="?", default="", help="only topics with this prefix")
    parser.add_argument("--once", action="store_true", help="print one interval and exit")
    parser.add_argument("--interval", type=seconds, default=1.0, metavar="S", help="interval in seconds (default: 1)")
    parser.add_argument("--sort", choices=_SORTS, default="rate", help="sort order (default: rate)")
    parser.add_argument("--limit", type=whole, default=0, metavar="N", help="maximum number of topics (default: all)")
    output.add_arguments(parser, table=False)
    server.add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Watch until interrupted; exit codes as in docs/cli.md."""
    return server.run_command("top", lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    import sys

    live = not (arguments.once or arguments.json) and sys.stdout.isatty()
    if live:
        with needs("cli", "the live table needs {name}: {install}, or use --once"):
            import rich  # noqa: F401
    with server.client(arguments) as client:
        return _live(client, arguments) if live else _print(client, arguments)


def _print(client: "TopicsClient", arguments: argparse.Namespace) -> int:
    import sys
    from time import sleep

    from topics_cli.top import rates, view

    before, is_reported = _reading(client, arguments), False
    while True:
        sleep(arguments.interval)
        after = _reading(client, arguments)
        found = _rows(before, after, arguments, arguments.sort)
        alerts = rates.alerts(after)
        if arguments.json:
            if not is_reported:
                for text in alerts:
                    output.note(text)
            is_reported = bool(alerts)
            for row in found:
                output.line({"ts": after.ts_ms, **row})
        else:
            facts = rates.server_line(before, after)
            print("\n".join([*alerts, *view.summary(facts, None), *view.table(found, None)]))
        sys.stdout.flush()
        if arguments.once:
            return 0
        if not arguments.json:
            print()
        before = after


def _live(client: "TopicsClient", arguments: argparse.Namespace) -> int:
    from time import monotonic

    from topics_cli.top import rates, view
    from topics_client.errors import UnavailableError

    before = after = _reading(client, arguments)
    sort, note = arguments.sort, ""
    with view.Screen(color=output.colored(arguments)) as screen, view.keyboard() as key:
        while True:
            found = _rows(before, after, arguments, sort)
            screen.show(rates.server_line(before, after), found, sort, note, rates.alerts(after))
            due = monotonic() + (0.2 if before is after else arguments.interval)  # something to see at once
            while (left := due - monotonic()) > 0:
                if (pressed := key(left)) == "quit":
                    return 0
                if pressed:
                    sort = pressed
                    break
            else:
                try:
                    fresh, note = _reading(client, arguments), ""
                    before, after = after, fresh
                except UnavailableError as error:  # it may come back
                    note = server.explained(error)


def _rows(before: "Reading", after: "Reading", arguments: argparse.Namespace, sort: str) -> list[dict[str, Any]]:
    from topics_cli.top import rates

    found = rates.ordered(rates.rows(before, after, arguments.prefix), sort)
    return found[: arguments.limit or None]


def _reading(client: "TopicsClient", arguments: argparse.Namespace) -> "Reading":
    """The metrics, with positions of groups, and topics beyond the limit of the metrics."""
    from itertools import islice
    from time import monotonic, time

    from topics_cli.top import rates
    from topics_client.errors import NotFoundError

    reading = rates.read(client.metrics(), monotonic(), int(time() * 1000))
    if 0 < reading.totals.get("topics_groups", 0) <= _MAX_GROUPS:
        for group in islice(client.list_groups(), _MAX_GROUPS):
            try:
                positions = client.fetch_positions(group.group)
            except NotFoundError:  # deleted since
                continue
            for each in positions:
                reading.positions[group.group, each.topic, each.partition] = each.from_seq
    if reading.truncated:
        for topic in islice(client.list_topics(arguments.prefix), _MAX_LISTED):
            if topic.topic not in reading.topics:
                # The head of a listing is that of partition 0.
                head = topic.head_seq if topic.partition_count == 1 else None
                stand = rates.TopicSample(head, topic.count, topic.bytes)
                reading.topics[topic.topic] = stand
    return reading
