"""`topics groups`: consumer groups and how far behind they are; move their positions, delete them."""

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from topics_client.cli import server

if TYPE_CHECKING:
    from topics_client.cli.types import Commands
    from topics_client.connection import Connection


def add_parser(commands: "Commands") -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "groups",
        help="list consumer groups and their lag, move or delete them",
        description="Without GROUP a list of all groups. With GROUP its positions, each with the records behind it.",
    )
    parser.add_argument("group", metavar="GROUP", nargs="?", help="the group")
    parser.add_argument("--topic", help="only its positions in this topic")
    parser.add_argument(
        "--reset", metavar="TO", help="move its positions: earliest, latest, or a seq up to which all is dealt with"
    )
    parser.add_argument("--delete", action="store_true", help="delete the group and all its positions")
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of a table")
    server.add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """List, show, reset or delete; 1 if the server refuses or there is no such group."""
    return server.told("groups", lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    from topics.v1 import group_service_pb2 as pb

    if arguments.group is None and (arguments.reset or arguments.delete or arguments.topic):
        raise ValueError("which GROUP?")
    if arguments.reset and arguments.delete:
        raise ValueError("--reset and --delete exclude each other")
    with server.connected(arguments) as connection:
        groups = connection.groups
        if arguments.delete:
            done = connection.unary(groups.DeleteGroup, pb.DeleteGroupRequest(group=arguments.group), repeatable=True)
            rows = [{"group": arguments.group, "deleted": done.deleted}]
        elif arguments.reset:
            moved = connection.unary(groups.ResetPositions, _reset(arguments), repeatable=True)
            rows = [_position(each) for each in moved.positions]
        elif arguments.group is not None:
            request = pb.FetchPositionsRequest(group=arguments.group, topic=arguments.topic or "")
            found = connection.unary(groups.FetchPositions, request, repeatable=True)
            rows = [_position(each) for each in found.positions]
        else:
            rows = list(_groups(connection))
    for line in map(json.dumps, rows) if arguments.json else _table(rows):
        print(line)
    return 0


def _groups(connection: "Connection") -> Iterator[dict[str, Any]]:
    from topics.v1 import group_service_pb2 as pb

    cursor = ""
    while True:
        page = connection.unary(connection.groups.ListGroups, pb.ListGroupsRequest(cursor=cursor), repeatable=True)
        for each in page.groups:
            request = pb.FetchPositionsRequest(group=each.group)
            found = connection.unary(connection.groups.FetchPositions, request, repeatable=True)
            yield {
                "group": each.group,
                "state": each.state,
                "members": each.members,
                "positions": each.positions,
                "lag": sum(position.lag for position in found.positions),
            }
        cursor = page.next_cursor
        if not cursor:
            return


def _reset(arguments: argparse.Namespace) -> Any:
    from topics.v1 import group_pb2
    from topics.v1 import group_service_pb2 as pb

    request = pb.ResetPositionsRequest(group=arguments.group)
    ends = {"earliest": group_pb2.LOG_END_EARLIEST, "latest": group_pb2.LOG_END_LATEST}
    if arguments.reset in ends:
        request.to_end = ends[arguments.reset]
    elif arguments.reset.isascii() and arguments.reset.isdigit():
        request.to_from_seq = int(arguments.reset)
    else:
        raise ValueError("--reset takes earliest, latest or a seq")
    if arguments.topic:
        request.topics.add(topic=arguments.topic)
    return request


def _position(position: Any) -> dict[str, Any]:
    names = ("topic", "partition", "from_seq", "head_seq", "lag")
    return {name: getattr(position, name) for name in names}


def _table(rows: Sequence[dict[str, Any]]) -> Iterable[str]:
    """The rows under their names: text to the left, numbers to the right."""
    if not rows:
        return
    cells = [[name.upper() for name in rows[0]], *([str(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    rights = [type(value) is int for value in rows[0].values()]
    for row in cells:
        yield "  ".join(
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(row, widths, rights, strict=True)
        ).rstrip()
