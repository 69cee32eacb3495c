"""`topics ls`: the topics of a server."""

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from topics_cli import output, server
from topics_cli.types import prefix

if TYPE_CHECKING:
    from topics_cli.types import Commands
    from topics_client import TopicsClient


def add_parser(commands: "Commands") -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "ls",
        description="List topics by name, with type, partitions, live records and bytes. With -l also durability, the "
        "time since the last write, and the jobs of queues, which takes a call per topic.",
    )
    server.add_name(parser, "prefix", type=prefix, nargs="?", default="", help="only topics with this prefix")
    parser.add_argument("-l", "--long", action="store_true", help="show more columns")
    parser.add_argument("-q", "--quiet", action="store_true", help="print only names, one per line")
    output.add_arguments(parser)
    server.add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """List; exit codes as in docs/cli.md."""
    return server.run_command("ls", lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    with server.client(arguments) as client:
        if arguments.quiet:
            for each in client.list_topics(arguments.prefix):
                print(each.topic)
            return 0
        shown: dict[str, Any] = {
            "topic": None,
            "type": None,
            "partition_count": None,
            "count": None,
            "bytes": output.size,
        }
        headings: tuple[str, ...] = ("topic", "type", "partitions", "records", "size")
        if arguments.long:
            shown |= {"durability": None, "last_write_ts": output.age, "ready": None, "in_flight": None}
            headings += ("durability", "written", "ready", "in_flight")
        found = _states(client, arguments) if arguments.long else _summaries(client, arguments)
        if not output.rows(arguments, found, shown, headings) and not arguments.json:
            output.note(f"no topics start with {arguments.prefix!r}" if arguments.prefix else "no topics yet")
    return 0


def _summaries(client: "TopicsClient", arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    from topics_cli import json_output

    return map(json_output.summary, client.list_topics(arguments.prefix))


def _states(client: "TopicsClient", arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    from topics_cli import json_output
    from topics_client.errors import NotFoundError

    for each in client.list_topics(arguments.prefix):
        try:
            state = json_output.state(client.get_topic(each.topic, touch=False))
        except NotFoundError:  # deleted since
            continue
        if arguments.json:
            yield state
        else:
            # Sums over all partitions are in the listing, those of one in the state.
            yield state | state.get("queue", {}) | state["config"] | {"count": each.count, "bytes": each.bytes}
