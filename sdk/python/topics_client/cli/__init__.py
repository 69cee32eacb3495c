"""The `topics` command. Every subcommand lives in a module of its own and is loaded when it is used."""

import argparse
import sys
from collections.abc import Sequence

from topics_client.cli import create, groups, importing, lakehouse, readiness, serve, version


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 done, 1 failed, 2 wrong usage."""
    parser = argparse.ArgumentParser(
        prog="topics", description="A persistent event engine: durable log, pub/sub and job queue in one process."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in (serve, readiness, create, importing, groups, lakehouse, version):
        module.add_parser(commands)
    arguments = parser.parse_args(argv)
    return int(arguments.run(arguments))


if __name__ == "__main__":
    sys.exit(main())
