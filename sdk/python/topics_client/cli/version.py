"""`topics version`."""

import argparse
from importlib import metadata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from topics_client.cli.types import Commands


def add_parser(commands: "Commands") -> None:
    """Register the subcommand."""
    parser = commands.add_parser("version", help="print the version")
    parser.set_defaults(run=run)


def run(_: argparse.Namespace) -> int:
    """Print the version of the installed distribution."""
    print(f"topics {metadata.version('topics-engine')}")
    return 0
