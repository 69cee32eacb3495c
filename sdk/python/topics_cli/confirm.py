"""The question before something is deleted."""

import argparse
import sys

from topics_cli.server import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`--yes`."""
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask; needed where there is no terminal")


def is_required(arguments: argparse.Namespace) -> bool:
    """Whether somebody has to be asked. Raises UsageError where nobody can be."""
    if arguments.yes:
        return False
    if not (sys.stdin is not None and sys.stdin.isatty()):
        raise UsageError("this deletes for good, and there is no terminal to ask at: give --yes")
    return True


def is_confirmed(question: str) -> bool:
    """The answer at the terminal; anything but yes, the end of the input too, is no."""
    from topics_cli.output import clean

    print(f"{clean(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    print("nothing is deleted", file=sys.stderr)
    return False
