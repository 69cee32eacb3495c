"""Confirmation before something is deleted."""

import argparse
import sys

from topics_cli.server import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--yes`."""
    parser.add_argument("-y", "--yes", action="store_true", help="skip the confirmation; required without a terminal")


def is_required(arguments: argparse.Namespace) -> bool:
    """Return True if a confirmation is required. Raises UsageError if there is no terminal for it."""
    if arguments.yes:
        return False
    if not (sys.stdin is not None and sys.stdin.isatty()):
        raise UsageError("this deletes data permanently, and there is no terminal to confirm it: give --yes")
    return True


def is_confirmed(question: str) -> bool:
    """Ask at the terminal. Anything but yes, including the end of input, means no."""
    from topics_cli.output import clean

    print(f"{clean(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    print("nothing was deleted", file=sys.stderr)
    return False
