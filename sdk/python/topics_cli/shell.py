"""`topics shell`: run commands interactively, in one process and on one connection."""

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from topics_cli import output, server

if TYPE_CHECKING:
    from topics_cli.types import Commands

_HISTORY_LINES: Final = 1000
_OUTSIDE: Final = frozenset({"serve", "shell", "completion"})
_ENDS: Final = ("exit", "quit")
_PIPES: Final = frozenset({"|", ">", ">>", "<", "&", "&&", ";"})
_HELP = """\
Each line is a command without `topics`: `ls`, `read orders --limit 3`. Quotes work as in sh, # starts a comment, Tab
completes, Ctrl-C ends a command, Ctrl-D, exit or quit ends the shell. --server, --profile, --key-env and --timeout are
the defaults of every line. If standard input is not a terminal, its lines are run without a prompt.

The exit status is that of the last command. The history is stored in $XDG_STATE_HOME/topics/history (default:
~/.local/state), without lines that have a key in a URL.
"""


def add_parser(commands: "Commands") -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "shell",
        help="run commands interactively, with completion",
        description="Run commands interactively on one connection. An error ends the command, not the shell.",
        epilog=_HELP,
    )
    server.add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the shell; the exit code of the last command."""
    return server.run_command("shell", lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    where = server.endpoint(arguments)
    prompt = f"{server.parsed(where).target}> "
    said = bool(arguments.server or arguments.profile)
    code = 0
    with server.one_process(where if said else None, arguments.timeout), _lines(prompt) as lines:
        for line in lines:
            try:
                words = shlex.split(line, comments=True)
            except ValueError:
                code = server.complain("shell", "unclosed quotation mark", server.USAGE)
                continue
            if words[:1] == ["topics"]:  # pasted from a page
                words = words[1:]
            if not words:
                continue
            if words[0] in _ENDS:
                break
            code = execute(words)
    return code


def execute(words: Sequence[str]) -> int:
    """Run one command, handling all errors, and return its exit code."""
    from topics_cli import INTERRUPTS, run_line

    name = words[0]
    if name in _OUTSIDE:
        return server.complain("shell", f"topics {name} is not available in the shell: run it outside", server.USAGE)
    if _PIPES.intersection(words):
        return server.complain(
            "shell", "a line is a single command: pipes and redirections are not supported", server.USAGE
        )
    try:
        code = run_line(words)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt as error:
        INTERRUPTS.append(error)
        print(file=sys.stderr)
        return 130
    except BrokenPipeError:
        raise
    except Exception as error:
        text = f"internal error: {type(error).__name__}: {error}; run topics {name} outside the shell for details"
        return server.complain("shell", text)


@contextmanager
def _lines(prompt: str) -> "Iterator[Iterator[str]]":
    if sys.stdin is not None and sys.stdin.isatty():
        with editing("history", _completed):
            yield _asked(prompt)
        return
    # A command that reads standard input is not to take the lines behind it.
    with os.fdopen(os.dup(0), encoding="utf-8", errors="surrogateescape") as script, open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
        yield iter(script)


def _asked(prompt: str) -> Iterator[str]:
    while True:
        try:
            line = input(prompt)
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print()
            continue
        if "@" in line and "://" in line:
            forget()
        yield line


@contextmanager
def editing(history: str, completer: "Callable[[str, int], str | None] | None" = None) -> Iterator[None]:
    """History in a file of this name, and completion, where Python has readline."""
    try:
        import readline
    except ModuleNotFoundError:
        yield
        return
    file = _history_file(history)
    if file is not None:
        with suppress(OSError):
            readline.read_history_file(file)
    readline.set_history_length(_HISTORY_LINES)
    if completer is not None:
        readline.set_completer_delims(" \t\n")
        readline.set_completer(completer)
    readline.parse_and_bind("tab: complete" if completer is not None else "tab: tab-insert")
    try:
        yield
    finally:
        if file is not None:
            with suppress(OSError):  # a history that can't be kept is no reason to fail
                file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                os.close(os.open(file, os.O_WRONLY | os.O_CREAT, 0o600))
                readline.write_history_file(file)


def _history_file(name: str) -> Path | None:
    if folder := os.environ.get("XDG_STATE_HOME"):
        return Path(folder) / "topics" / name
    with suppress(RuntimeError):
        return Path.home() / ".local/state/topics" / name
    return None


def forget() -> None:
    """Remove the last line from the history."""
    with suppress(ImportError, ValueError):
        import readline

        readline.remove_history_item(readline.get_current_history_length() - 1)


_found: list[str] = []


def _completed(text: str, state: int) -> str | None:
    """Called by readline with 0, 1, 2 and so on until it returns None."""
    import readline

    if state == 0:
        _found[:] = completions(readline.get_line_buffer()[: readline.get_begidx()].split(), text)
    return f"{_found[state]} " if state < len(_found) else None


def completions(words: Sequence[str], text: str) -> list[str]:
    """Return the completions of `text` after `words`."""
    from topics_cli import COMMANDS, parser

    if not words:
        return [name for name in (*COMMANDS, "exit", "help") if name.startswith(text) and name not in _OUTSIDE]
    if words[0] not in COMMANDS or words[0] in _OUTSIDE:
        return [name for name in COMMANDS if words == ["help"] and name.startswith(text)]
    found = parser(words[0])
    for word in words[1:]:
        inner = _inner(found)
        if inner is not None and word in inner:
            found = inner[word]
    inner = _inner(found)
    options = {flag: action for action in found._actions for flag in action.option_strings}
    last = options.get(words[-1])
    if last is not None and last.nargs != 0:
        return _values(last, text)
    if text.startswith("-"):
        return sorted(flag for flag in options if flag.startswith(text))
    if inner is not None:
        return [name for name in inner if name.startswith(text)]
    positional = [action for action in found._actions if not action.option_strings]
    return sorted({value for action in positional for value in _values(action, text)})


def _inner(parser: argparse.ArgumentParser) -> "dict[str, argparse.ArgumentParser] | None":
    """The parsers of its actions, such as `claim` of `queue`."""
    action = next((each for each in parser._actions if isinstance(each, argparse._SubParsersAction)), None)
    return None if action is None else dict(action.choices)


def _values(action: argparse.Action, text: str) -> list[str]:
    completer: Any = getattr(action, "completer", None)
    if completer is not None:
        return [
            name
            for name in completer(text, argparse.Namespace())
            if name.startswith(text) and output.clean(name) == name
        ]
    return [str(value) for value in action.choices or () if str(value).startswith(text)]
