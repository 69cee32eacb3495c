"""Options between the values of a list, as in `topics append TOPIC 1 --tag t 2`, which argparse alone refuses."""

import argparse
import os
from collections.abc import Sequence
from typing import Any


def allow_intermixed(parser: argparse.ArgumentParser) -> None:
    """Let `parser` take its positional arguments from wherever they stand."""
    if "_ARGCOMPLETE" in os.environ:  # which looks at how argparse goes about it
        return
    plain = parser.parse_known_args

    def mixed(args: Sequence[str] | None = None, namespace: Any = None) -> Any:
        _set(parser, plain)  # it is called by the one that is called now
        try:
            return parser.parse_known_intermixed_args(args, namespace)
        finally:
            _set(parser, mixed)

    _set(parser, mixed)


def _set(parser: argparse.ArgumentParser, function: Any) -> None:
    setattr(parser, "parse_known_args", function)  # noqa: B010  a method of one object, which types don't know
