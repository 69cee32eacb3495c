"""The `topics` command. Each subcommand has its own module, loaded only when it is used."""

import gc
import io
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from topics_client.installation import MissingError

if TYPE_CHECKING:
    import argparse

    from topics_cli.types import Commands

# heading -> name -> (module, help line). Nothing else is loaded for `topics --help`.
_GROUPS: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "Server": {
        "serve": ("serve", "run the server"),
        "wait-ready": ("readiness", "wait until a server is ready"),
        "top": ("top", "watch topics, rates and lag live"),
    },
    "Topics": {
        "ls": ("ls", "list topics"),
        "info": ("info", "show the state and configuration of a topic"),
        "create": ("create", "create a topic, or add partitions to one"),
        "set": ("set", "change the configuration of a topic"),
        "rm": ("rm", "delete topics"),
    },
    "Records": {
        "append": ("append", "append records to a topic"),
        "read": ("read", "print the records of a topic"),
        "tail": ("tail", "print the newest records of topics, and optionally follow them"),
        "delete": ("delete", "delete records by seq, age or tag"),
    },
    "Queues": {
        "queue": ("queue", "claim, ack, list and redrive jobs"),
    },
    "Routers and groups": {
        "router": ("router", "list, create and remove routers between topics"),
        "groups": ("groups", "list consumer groups and their lag, reset or delete them"),
    },
    "SQL": {
        "sql": ("sql", "run SQL statements, with a prompt"),
    },
    "Data": {
        "import": ("importing", "append a file to a topic"),
        "export": ("exporting", "write the records of a topic to a file"),
        "lakehouse": ("lakehouse", "replicate topics to Iceberg tables and query them"),
        "backup": ("backup", "back up all topics, and restore them"),
        "verify": ("verify", "check a data directory for damage"),
        "repair": ("repair", "recover the intact data of a damaged data directory"),
        "split": ("split", "give a data directory shards, for several processes"),
    },
    "Clusters": {
        "cluster": ("cluster", "make and check a cluster, show its nodes, move its shard"),
    },
    "Other": {
        "profile": ("profile", "manage named server profiles"),
        "shell": ("shell", "run commands interactively, with completion"),
        "bench": ("bench", "benchmark a server"),
        "completion": ("completion", "print a shell completion script"),
        "version": ("version", "print the version"),
    },
}
_MODULES: Final = {name: module for group in _GROUPS.values() for name, (module, _) in group.items()}

COMMANDS: Final[Mapping[str, str]] = {name: text for group in _GROUPS.values() for name, (_, text) in group.items()}
"""Every command with its help line, in the order of `topics --help`."""

GROUPS: Final[Mapping[str, tuple[str, ...]]] = {heading: tuple(group) for heading, group in _GROUPS.items()}
"""The headings of `topics --help`, each with the names of its commands."""

_GLOBAL_VALUES: Final = ("--server", "--profile", "--key-env", "--timeout", "--color")
_GLOBAL_FLAGS: Final = ("--json",)
# Commands of nats, rpk, kafka-topics, redis-cli and kubectl, for suggestions.
_ELSEWHERE: Final = {
    **dict.fromkeys(("list", "get", "topic", "stream"), "ls"),
    **dict.fromkeys(("describe", "show", "stat", "status", "inspect"), "info"),
    **dict.fromkeys(("add", "new", "mk"), "create"),
    **dict.fromkeys(("edit", "alter", "update", "config", "alter-config"), "set"),
    **dict.fromkeys(("del", "remove", "drop", "destroy"), "rm"),
    **dict.fromkeys(("pub", "publish", "produce", "write", "add-record", "xadd", "send"), "append"),
    **dict.fromkeys(("consume", "cat", "fetch", "xread", "xrange"), "read"),
    **dict.fromkeys(("sub", "subscribe", "watch", "follow"), "tail"),
    **dict.fromkeys(("purge", "trim", "xtrim", "xdel", "trim-prefix"), "delete"),
    **dict.fromkeys(("job", "jobs", "claim", "ack", "queues", "work"), "queue"),
    **dict.fromkeys(("group", "consumer", "consumers", "lag"), "groups"),
    **dict.fromkeys(("server", "start", "run", "up"), "serve"),
    **dict.fromkeys(("benchmark", "perf"), "bench"),
    **dict.fromkeys(("profiles", "context", "contexts", "login"), "profile"),
    **dict.fromkeys(("repl", "interactive", "cli", "console"), "shell"),
}
_COLLECT_AFTER: Final = 10_000  # objects; imports make few cycles, and Python 3.11 would look for them every 700
INTERRUPTS: Final[list[KeyboardInterrupt]] = []
"""Interrupts of this process. Their frames hold connections: if one came while gRPC was starting a call, closing the
channel would wait forever for the events of that call."""
_USAGE: Final = "usage: topics COMMAND [ARGUMENTS]"
_DESCRIPTION: Final = "A persistent event engine: durable log, pub/sub and job queue in one process."
_EPILOG: Final = """\
`topics COMMAND --help` shows details. Commands that call a server take
--server, --profile, --key-env and --timeout, before or after the command.
Defaults are TOPICS_URL and TOPICS_API_KEY, then the active profile.

Exit status: 0 success, 1 failure, 2 usage error, 3 server unavailable,
4 missing or insufficient API key, 5 not found, 130 interrupted."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code (docs/cli.md)."""
    if argv is None:
        gc.set_threshold(_COLLECT_AFTER)
    _prepare_output()
    try:
        code = _main(_command_first(sys.argv[1:] if argv is None else argv))
    except BrokenPipeError:
        code = 141  # as for a program ended by SIGPIPE
    except KeyboardInterrupt as error:
        code = 130
        INTERRUPTS.append(error)
    except Exception as error:
        if sys.flags.dev_mode or "serve" in (sys.argv[1:2] if argv is None else argv[:1]):  # for its log
            raise
        code = _internal(error)
    # A thread of obstore that has just delivered a result may still wait for the interpreter's lock, and aborts the
    # process where it meets the shutdown.
    if argv is None and (code == 130 or INTERRUPTS or "obstore" in sys.modules):
        os._exit(_finished(code))  # skips the interpreter's shutdown
    if argv is None:
        gc.freeze()  # so that the collections at exit visit nothing: a tenth of the time of a short command
    return _finished(code)


def parser(name: str) -> "argparse.ArgumentParser":
    """The parser of one command, for its help and the reference. Raises KeyError for an unknown name."""
    commands, root = _commands(name)
    del root
    return commands[name]


def overview() -> str:
    """The text of `topics --help`."""
    lines = [_USAGE, "", _DESCRIPTION]
    for heading, group in _GROUPS.items():
        lines += ["", f"{heading}:", *(f"  {name:<12}{text}" for name, (_, text) in group.items())]
    return "\n".join([*lines, "", _EPILOG, ""])


def run_line(words: Sequence[str]) -> int:
    """Run one command without ending the process, and return its exit code."""
    return _main(_command_first(words))


def _main(arguments: list[str]) -> int:
    # gRPC's core writes to stderr, bypassing our error reporting. A server has no other way to report errors of the
    # core; lower levels log a line per client that does not use TLS. gRPC reads this when it is imported.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR" if arguments[:1] == ["serve"] else "NONE")
    if "_ARGCOMPLETE" in os.environ:
        from topics_cli.completion import complete

        return complete()
    match arguments:
        case []:
            print(overview(), end="", file=sys.stderr)
            return 2
        case ["-h" | "--help" | "help"]:
            print(overview(), end="")
            return 0
        case ["help", *rest]:
            arguments = [*rest, "--help"]
        case ["--version", *rest]:
            arguments = ["version", *rest]
    if arguments[0] not in COMMANDS:
        print(_unknown(arguments[0]), file=sys.stderr)
        return 2
    try:
        return _run(arguments)
    except MissingError as error:
        from topics_cli.server import complain

        return complain(arguments[0], str(error))


def _run(arguments: list[str]) -> int:
    _, root = _commands(arguments[0])
    try:
        parsed = root.parse_args(arguments)
    except SystemExit as end:  # from --help, or an already reported usage error
        return int(end.code or 0)
    return int(parsed.run(parsed))


def _commands(name: str) -> "tuple[Mapping[str, argparse.ArgumentParser], argparse.ArgumentParser]":
    """A parser that knows one command."""
    from topics_cli.types import Parser

    root: argparse.ArgumentParser = Parser(prog="topics")
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add_command(name, commands)
    return commands.choices, root


def add_command(name: str, commands: "Commands") -> None:
    """Load a command, and register its parser."""
    from importlib import import_module

    import_module(f"topics_cli.{_MODULES[name]}").add_parser(commands)


def _command_first(argv: Sequence[str]) -> list[str]:
    """Move server options that precede the command, as kubectl and nats allow, behind it."""
    moved: list[str] = []
    rest = list(argv)
    while rest:
        if rest[0] in _GLOBAL_FLAGS:
            moved.append(rest.pop(0))
        elif rest[0] in _GLOBAL_VALUES and len(rest) > 1:
            moved += [rest.pop(0), rest.pop(0)]
        elif rest[0].partition("=")[0] in _GLOBAL_VALUES and "=" in rest[0]:
            moved.append(rest.pop(0))
        else:
            break
    if not rest:
        return list(argv)
    # After the leading words, one of which may be an action, and not at the end, where there may be a `--`.
    words = next((number for number, word in enumerate(rest) if word.startswith("-")), len(rest))
    return [*rest[:words], *moved, *rest[words:]]


def _unknown(name: str) -> str:
    from difflib import get_close_matches

    near = _ELSEWHERE.get(name.lower()) or next(iter(get_close_matches(name, COMMANDS, 1)), None)
    guess = f"did you mean {near}? " if near else ""
    return f"topics: unknown command {name!r}; {guess}usage: topics --help"


def _internal(error: Exception) -> int:
    """Describe an unexpected exception in one line."""
    what = " ".join(f"{type(error).__name__}: {error}".split())
    print(f"topics: internal error, please report it: {what} (PYTHONDEVMODE=1 shows where)", file=sys.stderr)
    return 1


def _prepare_output() -> None:
    """Use UTF-8 regardless of the locale, and replace closed streams by /dev/null, so that no socket takes their
    place."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  as long as the process
        elif isinstance(stream, io.TextIOWrapper):  # not replaced by a Python caller
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def _finished(code: int) -> int:
    """Flush the output. If that fails for a successful command, return the exit code of the failure."""
    try:
        sys.stdout.flush()
        return code
    except OSError as error:
        # Discard the rest, or the interpreter would report an error at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return code or 141
        if not code:
            print(f"topics: can't write the output: {error.strerror}", file=sys.stderr)
        return code or 1
