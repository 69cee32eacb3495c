"""Support for options between positional values, as in `topics append TOPIC 1 --tag t 2`."""

import argparse
import os
from collections.abc import Sequence
from typing import Any


def allow_intermixed(parser: argparse.ArgumentParser) -> None:
    """Make `parser` accept positional arguments between options."""
    if "_ARGCOMPLETE" in os.environ:  # argcomplete relies on argparse's own parsing
        return
    plain = parser.parse_known_args

    def mixed(args: Sequence[str] | None = None, namespace: Any = None) -> Any:
        _set(parser, plain)  # called by parse_known_intermixed_args
        try:
            return parser.parse_known_intermixed_args(args, namespace)
        finally:
            _set(parser, mixed)

    _set(parser, mixed)


def _set(parser: argparse.ArgumentParser, function: Any) -> None:
    setattr(parser, "parse_known_args", function)  # noqa: B010  a method of one object, unknown to types
