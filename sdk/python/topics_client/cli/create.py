"""`topics create`: make a topic, or give one more partitions."""

import argparse
from typing import TYPE_CHECKING

from topics_client.cli import server

if TYPE_CHECKING:
    from topics_client.cli.types import Commands


def add_parser(commands: "Commands") -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "create",
        help="make a topic, or give one more partitions",
        description="Make the topic TOPIC with the default configuration. If it is there, only add partitions to it.",
    )
    parser.add_argument("topic", metavar="TOPIC", help="the topic")
    parser.add_argument("--partitions", type=int, default=None, metavar="N", help="partitions in all (default: 1)")
    server.add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Create; 1 if the server refuses."""
    return server.told("create", lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    from topics.v1.topics_service_pb2 import GetTopicRequest, PutTopicRequest
    from topics_client.errors import NotFoundError

    if arguments.partitions is not None and not 1 <= arguments.partitions < 1 << 32:
        raise ValueError("--partitions must be at least 1")
    with server.connected(arguments) as connection:
        topics = connection.topics
        request = PutTopicRequest(topic=arguments.topic, partition_count=arguments.partitions)
        try:
            found = connection.unary(
                topics.GetTopic, GetTopicRequest(topic=arguments.topic, touch=False), repeatable=True
            )
            request.config.CopyFrom(found.state.config)
        except NotFoundError:
            pass
        reply = connection.unary(topics.PutTopic, request, repeatable=True)
    what = "created" if reply.created else "there already"
    print(f"{arguments.topic}: {what}, {reply.partition_count} partition{'s' if reply.partition_count != 1 else ''}")
    return 0
