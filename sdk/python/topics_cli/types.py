"""The parser of all commands, aliases of argparse's private types, and types of arguments."""

import argparse
import sys
from collections.abc import Callable, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias

from topics_client import units

if TYPE_CHECKING:
    Commands: TypeAlias = argparse._SubParsersAction[argparse.ArgumentParser]

_U64: Final = 1 << 64


class Parser(argparse.ArgumentParser):
    """Reports usage errors in one line, and accepts options by their full names only, so that new options break no
    script."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})
        self.set_defaults(command_parser=self)  # of the innermost command in the end

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse the arguments. Unknown arguments are reported by the innermost command."""
        parsed, unknown = self.parse_known_args(args, namespace)
        found: Parser = parsed.command_parser
        if unknown:
            found.refuse(unknown)
        return parsed

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """The value of an argument. Errors of Python's own types are reported without the name of the type."""
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError as error:
            if isinstance(error.__context__, argparse.ArgumentTypeError):
                raise
            what = "a number" if action.metavar in ("N", "S") else f"a value for {action.metavar or action.dest}"
            raise argparse.ArgumentError(action, f"{arg_string!r} is not {what}") from None

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        """Exit code 2 for arguments that are too many, or misspelled."""
        from difflib import get_close_matches

        known = [flag.removeprefix("--") for flag in self._option_string_actions if flag.startswith("--")]
        name = unknown[0].partition("=")[0]
        near = get_close_matches(name.removeprefix("--"), known, 1) if name.startswith("--") else []
        guess = f"; did you mean --{near[0]}?" if near else ""
        self.error(f"unrecognized arguments: {' '.join(unknown)}{guess}")

    def error(self, message: str) -> NoReturn:
        """Exit code 2."""
        print(f"{self.prog}: {' '.join(message.split())}; usage: {self.prog} --help", file=sys.stderr)
        sys.exit(2)


def whole(text: str) -> int:
    """A number, 0 or more, below 2**64."""
    return _whole(text, 0)


def positive(text: str) -> int:
    """A number, 1 or more, below 2**64."""
    return _whole(text, 1)


def _whole(text: str, minimum: int) -> int:
    value = int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else -1
    if not minimum <= value < _U64:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least {minimum}")
    return value


def prefix(text: str) -> str:
    """The beginning of names, also as it is written elsewhere: with a `*` behind it."""
    return text.removesuffix("*")


def seconds(text: str) -> float:
    """A time in seconds, a plain number of them or one with a unit: above 0, and not longer than gRPC can count."""
    try:
        value = float(text)
    except ValueError:
        value = _read(units.milliseconds, text) / 1000
    if not (isfinite(value) and 0 < value <= 1e7):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time above 0: 10 (seconds), 500ms, 30s, 5m")
    return value


def milliseconds(text: str) -> int:
    """A length of time in ms: a plain number of ms, or one with a unit: 500ms, 30s, 5m, 2h, 7d, 2w."""
    return _read(units.milliseconds, text)


def size(text: str) -> int:
    """A size in bytes: a plain number, or one with a unit: 64KiB, 10MiB, 2GiB (k, m and g mean the same), 5MB."""
    return _read(units.size, text)


def _read(read: Callable[[str], int], text: str) -> int:
    try:
        return read(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not {error}") from None
