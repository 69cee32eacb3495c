"""The reference of the command line, from the parsers themselves."""

import argparse
import os
import re
from collections.abc import Iterator, Mapping
from typing import Final
from unittest.mock import patch

from proto_text import fields

import topics_cli as cli

_INTRODUCTION: Final = """\
# The `topics` command

Made from the parsers, so `topics COMMAND --help` says the same. [The command line](../cli.md) shows the commands at
work, [Configuration](../configuration.md) has the settings of the server as environment variables.

"""


def command_page() -> str:
    """Markdown about every command, in the order of `topics --help`."""
    with patch.dict(os.environ, {"COLUMNS": "100"}):  # the width that argparse writes usages for
        for name in [name for name in os.environ if name.startswith("TOPICS_")]:
            del os.environ[name]  # they would show as defaults
        commands: Mapping[str, str] = cli.COMMANDS
        table = "".join(f"| [`topics {name}`](#topics-{name}) | {_cell(line)} |\n" for name, line in commands.items())
        sections = "\n".join(part for name in commands for part in _command(cli.parser(name), f"topics {name}", 2))
    return f"{_INTRODUCTION}| command | what it does |\n|---|---|\n{table}\n{sections}"


def _command(parser: argparse.ArgumentParser, name: str, level: int) -> Iterator[str]:
    yield f"{'#' * level} {name} {{ #{name.replace(' ', '-')} }}\n"
    if parser.description:
        yield f"{_text(parser.description)}\n"
    usage = re.sub(r"^(usage: | {7})", "", parser.format_usage(), flags=re.MULTILINE).rstrip()
    yield f"```text\n{usage}\n```\n"
    if rows := list(_rows(parser)):
        yield fields(["| argument | |", "|---|---|", *rows])
    if parser.epilog:
        yield f"{_text(parser.epilog)}\n"
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            written = set[int]()
            for word, below in action.choices.items():
                if id(below) not in written:  # a second name of the same
                    written.add(id(below))
                    yield from _command(below, f"{name} {word}", level + 1)


def _rows(parser: argparse.ArgumentParser) -> Iterator[str]:
    """A row for each argument, under a row for each group that has a title of its own."""
    plain = (parser._positionals, parser._optionals)
    for group in parser._action_groups:
        rows = [_row(parser, action) for action in group._group_actions if _shown(action)]
        if rows and group not in plain:
            yield f"| **{group.title}** | |"
        yield from rows


def _shown(action: argparse.Action) -> bool:
    parts = (argparse._HelpAction, argparse._SubParsersAction)
    return not isinstance(action, parts) and action.help != argparse.SUPPRESS


def _row(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    metavar = action.metavar or ("{" + ",".join(map(str, action.choices)) + "}" if action.choices else None)
    value = " ".join(metavar) if isinstance(metavar, tuple) else metavar
    if action.option_strings:
        takes = action.nargs != 0
        shown = f"{', '.join(action.option_strings)}{f' {value or action.dest.upper()}' if takes else ''}"
    else:
        shown = value or action.dest
    text = parser._get_formatter()._expand_help(action) if action.help else ""
    return f"| `{shown.replace('|', chr(92) + '|')}` | {_cell(text)} |"


def _text(text: str) -> str:
    return text.replace("<", "&lt;")


def _cell(text: str) -> str:
    return " ".join(_text(text).split()).replace("|", "\\|")
