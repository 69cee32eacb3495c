"""`topics version`."""

import argparse
from importlib import metadata
from typing import TYPE_CHECKING

from topics_cli import output
from topics_client.installation import DISTRIBUTION

if TYPE_CHECKING:
    from topics_cli.types import Commands


def add_parser(commands: "Commands") -> None:
    """Register the subcommand."""
    parser = commands.add_parser("version", help="print the version", description="Print the version of the package.")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the version of the installed distribution."""
    version = metadata.version(DISTRIBUTION)
    if arguments.json:
        output.line({"version": version})
    else:
        print(f"topics {version}")
    return 0
