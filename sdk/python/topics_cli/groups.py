"""`topics groups`: consumer groups and how far behind they are; move their positions, delete them."""

import argparse
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from topics_cli import confirm, output, server
from topics_cli.times import point
from topics_cli.types import whole

if TYPE_CHECKING:
    from topics_cli.types import Commands
    from topics_client import TopicsClient

_ENDS = ("earliest", "latest")


def add_parser(commands: "Commands") -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "groups",
        description="List all groups, or with GROUP its positions, each with its lag.",
    )
    server.add_name(parser, "group", kind="groups", nargs="?", help="the group")
    server.add_name(parser, "--topic", metavar="TOPIC", help="only positions in this topic")
    parser.add_argument(
        "--reset",
        type=_reset_target,
        metavar="TO",
        help="reset its positions to earliest, latest, the last processed seq, or a time: 15m (ago), or "
        "2026-11-28T14:30Z",
    )
    parser.add_argument(
        "--delete", action="store_true", help="delete the group and all its positions, after confirmation"
    )
    confirm.add_arguments(parser)
    output.add_arguments(parser)
    server.add_arguments(parser)
    parser.set_defaults(run=run)


class _Moment(int):
    """Milliseconds since 1970."""


def _reset_target(text: str) -> str | int:
    if text in _ENDS:
        return text
    if text.isdigit():
        return whole(text)
    try:
        return _Moment(point(text))
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not earliest, latest, a seq or a time such as 15m (ago) or 2026-11-28T14:30Z"
        ) from None


def run(arguments: argparse.Namespace) -> int:
    """List, show, reset or delete; exit codes as in docs/cli.md."""
    return server.run_command("groups", lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    if arguments.group is None and (arguments.reset is not None or arguments.delete or arguments.topic):
        raise server.UsageError("GROUP is required")
    if arguments.reset is not None and arguments.delete:
        raise server.UsageError("--reset and --delete are mutually exclusive")
    ask = arguments.delete and confirm.is_required(arguments)
    with server.client(arguments) as client:
        if arguments.delete:
            return _delete(client, arguments, ask=ask)
        rows = iter(_rows(client, arguments))
        first = next(rows, None)
        found = [] if first is None else [first]
        shown = dict.fromkeys(first or ())
        if not output.rows(arguments, (*found, *rows), shown) and not arguments.json:
            output.note("no groups" if arguments.group is None else "no positions")
    return 0


def _delete(client: "TopicsClient", arguments: argparse.Namespace, *, ask: bool) -> int:
    group = arguments.group
    if ask and not confirm.is_confirmed(f"permanently delete the group {group} and all its positions?"):
        return server.FAILED
    deleted = client.delete_group(group)
    if arguments.json:
        output.line({"group": group, "deleted": deleted})
    elif deleted:
        print(f"{output.clean(group)}: deleted")
    if deleted:
        return 0
    return server.complain("groups", f"group_not_found: {group} does not exist", server.NOT_FOUND)


def _rows(client: "TopicsClient", arguments: argparse.Namespace) -> Iterable[dict[str, Any]]:
    from topics_cli.json_output import position

    group = arguments.group
    if group is None:
        return _groups(client)
    if arguments.reset is not None:
        topics = [arguments.topic] if arguments.topic else []
        if isinstance(arguments.reset, _Moment):
            return map(position, client.reset_positions(group, to_ts_ms=arguments.reset, topics=topics))
        return map(position, client.reset_positions(group, arguments.reset, topics=topics))
    return map(position, client.fetch_positions(group, arguments.topic or ""))


def _groups(client: "TopicsClient") -> Iterator[dict[str, Any]]:
    from topics_client.errors import NotFoundError

    for each in client.list_groups():
        try:
            positions = client.fetch_positions(each.group)
        except NotFoundError:  # deleted since
            continue
        yield {
            "group": each.group,
            "state": each.state,
            "members": each.members,
            "positions": each.positions,
            "lag": sum(position.lag for position in positions),
        }
