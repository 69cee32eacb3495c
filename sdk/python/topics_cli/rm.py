"""`topics rm`: delete topics, with their records."""

import argparse
from typing import TYPE_CHECKING

from topics_cli import confirm, output, server

if TYPE_CHECKING:
    from topics_cli.types import Commands
    from topics_client import TopicsClient


def add_parser(commands: "Commands") -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "rm",
        description="Permanently delete topics, with their records and routers. Asks for confirmation.",
    )
    server.add_name(parser, "topic", nargs="+", help="one or more topics")
    parser.add_argument("--if-empty", action="store_true", help="only topics without records")
    parser.add_argument("--if-exists", action="store_true", help="ignore missing topics")
    confirm.add_arguments(parser)
    output.add_arguments(parser, table=False)
    server.add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Delete; with several topics those that can be, and the code of the first that can't."""
    return server.run_command("rm", lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    ask = confirm.is_required(arguments)
    topics = list(dict.fromkeys(arguments.topic))
    with server.client(arguments) as client:
        if ask and not confirm.is_confirmed(_question(client, topics)):
            return server.FAILED
        codes = [_delete(client, topic, arguments) for topic in topics]
    return next((code for code in codes if code), 0)


def _question(client: "TopicsClient", topics: list[str]) -> str:
    from topics_client.errors import NotFoundError

    lines = []
    for topic in topics:
        try:
            found = client.get_topic(topic, touch=False)
        except NotFoundError:
            continue
        parts = found.partitions or (found,)
        count, size = sum(part.count for part in parts), sum(part.bytes for part in parts)
        lines.append(f"{topic} with {output.counted(count, 'record')} ({output.size(size)})")
    return f"permanently delete {', '.join(lines) or 'nothing'}?"


def _delete(client: "TopicsClient", topic: str, arguments: argparse.Namespace) -> int:
    from topics_client.errors import ConflictError
    from topics_proto.v1.topics_service_pb2 import DeleteTopicRequest

    connection = client.connection
    request = DeleteTopicRequest(topic=topic, if_empty=arguments.if_empty)
    try:
        reply = connection.unary(connection.topics.DeleteTopic, request)
    except ConflictError as error:
        return server.complain("rm", server.explained(error))
    routers = list(reply.routers_removed)
    if arguments.json:
        output.line({"topic": topic, "deleted": reply.deleted, "routers_removed": routers})
    elif reply.deleted:
        print(f"{topic}: deleted" + (f", with the routers {', '.join(routers)}" if routers else ""))
    if reply.deleted or arguments.if_exists:
        return 0
    return server.complain("rm", f"topic_not_found: {topic} does not exist (use --if-exists to ignore this)", 5)
