"""`topics create`: make a topic, or give one more partitions."""

import argparse
from typing import TYPE_CHECKING, Any

from topics_cli import config, output, server
from topics_cli.types import whole

if TYPE_CHECKING:
    from topics_cli.types import Commands
    from topics_client import TopicsClient


def add_parser(commands: "Commands") -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "create",
        description="Make the topic TOPIC. What is not said takes the server's default. If the topic is there, only "
        "partitions are added to it; one that is configured otherwise is left as it is, which is an error.",
    )
    parser.add_argument("topic", metavar="TOPIC", help="the topic")
    parser.add_argument("--partitions", type=whole, default=None, metavar="N", help="partitions in all (default: 1)")
    config.add_arguments(parser)
    output.add_arguments(parser, table=False)
    server.add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Create; exit codes as in docs/cli.md."""
    return server.run_command("create", lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    if arguments.partitions is not None and not 1 <= arguments.partitions < 1 << 32:
        raise server.UsageError("--partitions must be at least 1")
    from topics_cli import json_output

    with server.client(arguments) as client:
        put, before = _put(client, arguments)
        members = json_output.put(put)
    if arguments.json:
        output.line(members)
        return 0
    count = members["partition_count"]
    added = 0 if members["created"] else count - before
    if added > 0:
        print(f"{arguments.topic}: {output.counted(added, 'partition')} added, {count} in all")
    else:
        what = "created" if members["created"] else "there already"
        print(f"{arguments.topic}: {what}, {output.counted(count, 'partition')}")
    return 0


def _put(client: "TopicsClient", arguments: argparse.Namespace) -> tuple[Any, int]:
    """The answer, and how many partitions the topic had before."""
    from topics_client.errors import ConflictError, NotFoundError
    from topics_client.models import TopicConfig

    wanted, before = config.given(arguments), 0
    try:
        info = client.get_topic(arguments.topic, touch=False)
        found, before = info.config, info.partition_count
    except NotFoundError:
        found = TopicConfig(**wanted)
    else:
        if other := config.differing(found, wanted):
            has = ", ".join(f"{name}={config.text(value)}" for name, value in other.items())
            change = " ".join(f"{name}={config.text(wanted[name])}" for name in other)
            raise ConflictError(
                "topic_exists",
                f"{arguments.topic} is there already, with {has} (topics set {arguments.topic} {change} changes it)",
            )
    return client.put_topic(arguments.topic, found, partitions=arguments.partitions or 0), before
