"""`topics sql`: run SQL, from arguments, files, standard input or a prompt."""

import argparse
import csv
import io
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from topics_cli import output, server, shell
from topics_cli.sqltext import Part, parts, pointed, used_namespace

if TYPE_CHECKING:
    from topics_cli.types import Commands
    from topics_client import SqlResult, TopicsClient, TopicsError

_FORMATS: Final = ("table", "csv", "json", "ndjson")
_HELP = """\
Statements end with a semicolon, which the last one may lack. Each is a request of its own, but from BEGIN to COMMIT
they are one. The first error ends the command, with the line and a caret under the place; the statements before it are
done.

At the prompt a statement may span lines, Tab is a tab, Ctrl-C drops what was typed, and Ctrl-D, exit or quit ends it.
USE sets the namespace of the statements that follow. The history is $XDG_STATE_HOME/topics/sql_history, without lines
that have a password.
"""


def add_parser(commands: "Commands") -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "sql",
        help="run SQL statements",
        description="Run SQL statements: of -c, of files (- is standard input), else of standard input; at a prompt if "
        "that is a terminal.",
        epilog=_HELP,
    )
    parser.add_argument("files", nargs="*", metavar="FILE", help="file with statements; - is standard input")
    parser.add_argument(
        "-c", "--command", action="append", default=[], metavar="SQL", help="run these statements; may be repeated"
    )
    parser.add_argument(
        "-p",
        "--param",
        action="append",
        default=[],
        metavar="VALUE",
        help="value of $1, of $2 with the next one and so on, as text of the type that the statement expects",
    )
    parser.add_argument("--params", metavar="JSON", help="all values as a JSON array, such as '[1, null, \"x\"]'")
    parser.add_argument(
        "--namespace", default="", metavar="NAME", help="namespace of names that have none (default: default)"
    )
    parser.add_argument("--format", choices=_FORMATS, help="format of rows (default: table, with --json ndjson)")
    output.add_arguments(parser)
    server.add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run everything; exit codes as in docs/cli.md."""
    return server.run_command("sql", lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    parameters = _parameters(arguments)
    texts = list(arguments.command)
    with server.client(arguments) as client:
        session = _Session(client, arguments, parameters)
        if not texts and not arguments.files and sys.stdin is not None and sys.stdin.isatty():
            return session.prompt()
        for text in texts:
            if code := session.script(text):
                return code
        for name in arguments.files or (["-"] if not texts else []):
            if code := session.script(_read(name)):
                return code
    return 0


def _parameters(arguments: argparse.Namespace) -> list[Any]:
    if arguments.params is None:
        return list(arguments.param)
    if arguments.param:
        raise server.UsageError("--param and --params are mutually exclusive")
    try:
        found = json.loads(arguments.params)
    except ValueError:
        found = None
    if not isinstance(found, list):
        raise server.UsageError("--params must be a JSON array")
    return found


def _read(name: str) -> str:
    try:
        return sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{name}: not UTF-8 text") from None


class _Session:
    """Statements one after the other, with the namespace that they have in common."""

    def __init__(self, client: "TopicsClient", arguments: argparse.Namespace, parameters: Sequence[Any]) -> None:
        self._client = client
        self._arguments = arguments
        self._parameters = parameters
        self._namespace: str = arguments.namespace
        self._format = arguments.format or ("ndjson" if arguments.json else "table")
        self._shown = 0

    def script(self, text: str) -> int:
        """Run all statements of a text; the exit code of the first that fails, else 0."""
        for part in parts(text):
            if code := self._statement(part):
                return code
        return 0

    def prompt(self) -> int:
        """Run statements as they are typed; an error does not end it."""
        code, typed = 0, ""
        with shell.editing("sql_history"):
            while True:
                try:
                    line = input(f"{self._namespace or 'default'}{'-' if typed else '='}> ")
                except EOFError:
                    print()
                    return code
                except KeyboardInterrupt:
                    print()
                    typed = ""
                    continue
                if "password" in line.lower():
                    shell.forget()
                if not typed and line.strip().rstrip(";").lower() in ("exit", "quit"):
                    return code
                typed += line + "\n"
                found = list(parts(typed))
                if found and not found[-1].complete:
                    continue
                typed = ""
                for part in found:
                    code = self._statement(part)
                    if code:
                        break

    def _statement(self, part: Part) -> int:
        from topics_client import TopicsError

        try:
            results = self._client.sql_script(part.text, self._parameters, namespace=self._namespace)
        except TopicsError as error:
            return self._complain(error, part)
        self._namespace = used_namespace(part.text) or self._namespace
        for result in results:
            self._show(result)
        sys.stdout.flush()
        return 0

    def _complain(self, error: "TopicsError", part: Part) -> int:
        code = server.complain("sql", server.explained(error), server.exit_code(error))
        if error.line is not None and error.column is not None:
            shown = pointed(part.text, error.line, error.column, part.line)
            print("\n".join(map(output.clean, shown.splitlines())), file=sys.stderr)
        return code

    def _show(self, result: "SqlResult[Any]") -> None:
        names = [column.name for column in result.columns]
        match self._format:
            case "table":
                self._table(names, result)
            case "csv" if names:
                if self._shown:
                    print()
                print(_csv(names, result.tuples, headers=not self._arguments.no_headers), end="")
            case "json" if names:
                print(_text([dict(zip(names, row, strict=True)) for row in result.tuples]))
            case "ndjson":
                for row in result.tuples:
                    print(_text(dict(zip(names, row, strict=True))))
        for gap in result.gaps:
            lost = f"records {gap.from_seq} to {gap.to_seq} of {gap.topic}, partition {gap.partition}, were lost"
            output.note(f"{lost} ({gap.reason})")
        self._shown += 1

    def _table(self, names: list[str], result: "SqlResult[Any]") -> None:
        if not names:
            output.note(result.message or output.counted(result.row_count, "row"))
            return
        cells = [[_cell(value) for value in row] for row in result.tuples]
        headers, color = not self._arguments.no_headers, output.colored(self._arguments)
        output.table(names, cells, headers=headers, color=color, heading=str)
        output.note(f"({output.counted(len(result), 'row')})")


def _csv(names: Sequence[str], rows: Iterable[Sequence[Any]], *, headers: bool) -> str:
    made = io.StringIO()
    writer = csv.writer(made, lineterminator="\n")
    if headers:
        writer.writerow(names)
    writer.writerows([["" if value is None else _cell(value) for value in row] for row in rows])
    return made.getvalue()


def _cell(value: Any) -> object:
    """A value as text for people and CSV; numbers stay numbers, which are aligned to the right."""
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    return value if isinstance(value, str) else value.hex() if isinstance(value, bytes) else _word(value)


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return _text(value) if isinstance(value, dict | list) else str(value)


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_plain)


def _plain(value: Any) -> str:
    """The text of a value that JSON has no form for."""
    from topics_client.sqlresults import plain

    return str(plain(value))
