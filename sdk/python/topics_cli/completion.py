"""`topics completion`: shell completion with argcomplete; names of topics come from the server."""

import argparse
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from topics_cli import server
from topics_client.installation import MissingError, needs

if TYPE_CHECKING:
    from topics_cli.types import Commands

_SHELLS: Final = ("bash", "zsh", "fish")
_SECONDS: Final = 0.5  # time limit for the server
_PAGE: Final = 500  # names


def add_parser(commands: "Commands") -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "completion",
        description="Print a script that makes a shell complete commands, options and names of topics, queues, "
        "routers and groups. Names are requested from the server of TOPICS_URL, for up to half a second.",
        epilog='in ~/.bashrc: eval "$(topics completion bash)"; in ~/.zshrc, after compinit: '
        'eval "$(topics completion zsh)"; in ~/.config/fish/config.fish: topics completion fish | source',
    )
    parser.add_argument("shell", choices=_SHELLS, metavar="SHELL", help="bash, zsh or fish")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the script."""
    with needs("cli"):
        import argcomplete.shell_integration
    print(argcomplete.shell_integration.shellcode(["topics"], shell=arguments.shell))
    return 0


def complete() -> int:
    """Answer a completion request from argcomplete's script. Never returns if argcomplete is installed."""
    try:
        import argcomplete
    except ModuleNotFoundError:
        return server.FAILED
    argcomplete.autocomplete(_whole_parser(), always_complete_options=False)
    return server.FAILED


def known_names(kind: str, prefix: str, arguments: argparse.Namespace) -> list[str]:
    """Names on the server with this prefix; none if it does not respond in time. `kind`: topics, queues, routers,
    groups."""
    given = argparse.Namespace(
        server=getattr(arguments, "server", None),
        profile=getattr(arguments, "profile", None),
        key_env=getattr(arguments, "key_env", None) or "TOPICS_API_KEY",
        timeout=_SECONDS,
    )
    try:
        return _names(kind, prefix, given)
    except Exception:  # a shell shows no errors here
        return []


def _names(kind: str, prefix: str, given: argparse.Namespace) -> list[str]:
    with server.connected(given) as connection:
        if kind == "routers":
            from topics_proto.v1.router_service_pb2 import ListRoutersRequest

            routers = connection.unary(
                connection.routers.ListRouters, ListRoutersRequest(prefix=prefix, page_size=_PAGE)
            )
            return [each.router for each in routers.routers]
        if kind == "groups":
            from topics_proto.v1.group_service_pb2 import ListGroupsRequest

            groups = connection.unary(connection.groups.ListGroups, ListGroupsRequest(prefix=prefix, page_size=_PAGE))
            return [each.group for each in groups.groups]
        from topics_proto.v1.topic_pb2 import TOPIC_TYPE_QUEUE
        from topics_proto.v1.topics_service_pb2 import ListTopicsRequest

        topics = connection.unary(connection.topics.ListTopics, ListTopicsRequest(prefix=prefix, page_size=_PAGE))
        return [each.topic for each in topics.topics if kind == "topics" or each.type == TOPIC_TYPE_QUEUE]


def _whole_parser() -> argparse.ArgumentParser:
    """A parser with the names of all commands, and the arguments of the one on the command line."""
    from topics_cli import COMMANDS, add_command
    from topics_cli.types import Parser

    line = os.environ.get("COMP_LINE", "")[: int(os.environ.get("COMP_POINT") or 1 << 20)]
    used = next((word for word in line.split()[1:] if word in COMMANDS), None)
    root: argparse.ArgumentParser = Parser(prog="topics")
    server.add_arguments(root)
    commands = root.add_subparsers(dest="command", metavar="COMMAND")
    for name, text in COMMANDS.items():
        with suppress(MissingError):  # its arguments are unknown then
            if name == used:
                add_command(name, commands)
                continue
        commands.add_parser(name, help=text, add_help=False)
    return root
