"""`topics create`: create a topic, or add partitions to one."""

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
        description="Create the topic TOPIC. Unset fields take the server's defaults. If the topic exists, only "
        "partitions are added to it; a different configuration is an error and changes nothing.",
    )
    parser.add_argument("topic", metavar="TOPIC", help="the topic")
    parser.add_argument("--partitions", type=whole, default=None, metavar="N", help="total partitions (default: 1)")
    parser.add_argument("--placement", default="", metavar="GROUP", help="topics of one group lie in one shard")
    parser.add_argument("--zone", default="", metavar="ZONE", help="zone whose shards it is to lie in, in a cluster")
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
        print(f"{arguments.topic}: {output.counted(added, 'partition')} added, {count} in total")
    else:
        what = "created" if members["created"] else "already exists"
        print(f"{arguments.topic}: {what}, {output.counted(count, 'partition')}")
    return 0


def _put(client: "TopicsClient", arguments: argparse.Namespace) -> tuple[Any, int]:
    """Create the topic. Returns the response, and the number of partitions before."""
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
                f"{arguments.topic} already exists, with {has} (to change it: topics set {arguments.topic} {change})",
            )
    put = client.put_topic(
        arguments.topic,
        found,
        partitions=arguments.partitions or 0,
        placement=arguments.placement,
        zone=arguments.zone,
    )
    return put, before
