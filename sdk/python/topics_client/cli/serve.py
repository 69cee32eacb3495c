"""`topics serve`: run the server of this installation, with every setting as a flag."""

import argparse
import os
import sys
from dataclasses import fields
from typing import TYPE_CHECKING

from topics_client.installation import needs

if TYPE_CHECKING:
    from topics_client.cli.types import Commands


def add_parser(commands: "Commands") -> None:
    """Register the subcommand; its flags come from the server's settings. Raises MissingError without the server."""
    with needs("server"):
        from topics_service.app.settings import Settings
    parser = commands.add_parser(
        "serve",
        help="run the server",
        description="Run the server. Each flag has an environment variable; the flag wins.",
    )
    parser.set_defaults(run=run)
    for setting in fields(Settings):
        if not setting.metadata["flag"]:
            continue
        env, meaning = setting.metadata["env"], setting.metadata["help"]
        default = setting.default if setting.default != "" else "none"
        text = f"{meaning} (default: {default}; {env})".replace("%", "%%")
        flag = f"--{setting.name.replace('_', '-')}"
        if isinstance(setting.default, bool):
            parser.add_argument(flag, action="store_true", default=None, help=text)
        elif isinstance(setting.default, int):
            parser.add_argument(flag, type=_natural, metavar="N", help=text)
        else:
            parser.add_argument(flag, metavar="TEXT", help=text)


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT; 1 if the server refuses to start."""
    # A line for each stranger that speaks no TLS to the gRPC port, and no way to count them. Before gRPC is imported.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    with needs("server"):
        from topics_service.app.server import StartError
        from topics_service.app.server import run as run_server
        from topics_service.app.settings import SettingsError, load
    try:
        settings = load(os.environ, vars(arguments))
        os.environ.pop("TOPICS_API_KEYS", None)  # from here on the server holds digests only
        run_server(settings)
    except (SettingsError, StartError) as error:
        print(f"topics: {error}", file=sys.stderr)
        return 1
    return 0


def _natural(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError("must be 0 or more")
    return value
