"""`topics serve`: run the server of this installation, with every setting as a flag."""

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from topics_client.installation import needs

if TYPE_CHECKING:
    from topics_cli.types import Commands


def add_parser(commands: "Commands") -> None:
    """Register the subcommand; its flags come from the server's settings, whether its packages are installed or not."""
    with needs("server"):
        from topics_server.setting_kinds import shown_default
        from topics_server.settings import Settings

    parser = commands.add_parser(
        "serve",
        help="run the server",
        description="Run the server. Flags take precedence over their environment variables. A SIZE is written as "
        "500MB or 1GiB, a TIME as 250ms, 30s or 7d; a plain number is in the unit that the name of the variable ends "
        "with.",
    )
    parser.set_defaults(run=run)
    parser.add_argument(
        "--print-config",
        nargs="?",
        const="text",
        choices=("text", "json"),
        help="print the effective value and the source of every setting instead of starting; secrets are not shown",
    )
    for setting in fields(Settings):
        if not setting.metadata["flag"]:
            continue
        env, meaning = setting.metadata["env"], setting.metadata["help"]
        text = f"{meaning} (default: {shown_default(setting) or 'none'}; {env})".replace("%", "%%")
        flag = f"--{setting.name.replace('_', '-')}"
        if isinstance(setting.default, bool):
            parser.add_argument(flag, action="store_true", default=None, help=text)
        else:
            read, what = _argument(setting.metadata["read"]), setting.metadata["what"]
            parser.add_argument(flag, type=read, metavar=what, help=text)


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT; 1 if the server refuses to start."""
    with needs("server"):
        from topics_server import memory, secret_settings
        from topics_server.errors import StartError
        from topics_server.server import run as run_server
        from topics_server.settings import SettingsError, ignored_variables, load
    try:
        settings = load(os.environ, vars(arguments), memory.limit())
        if arguments.print_config is not None:
            from topics_cli.serveconfig import show

            show(settings, vars(arguments), arguments.print_config)
            return 0
        for name in secret_settings.NAMES:  # from here on the server holds digests only, and the secret of tokens
            os.environ.pop(f"TOPICS_{name.upper()}", None)
        run_server(settings, ignored_variables(os.environ))
    except (SettingsError, StartError) as error:
        print(f"topics: {error}", file=sys.stderr)
        return 1
    return 0


def _argument(read: Callable[[str], Any]) -> Callable[[str], Any]:
    def argument(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r} is not {error}") from None

    return argument
