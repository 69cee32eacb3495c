"""`topics sql --follow`: the rows of a live query, then their changes, a JSON object for each line."""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from topics_cli import output, server

if TYPE_CHECKING:
    from topics_client import TopicsClient
    from topics_client.sqllive import LiveEvent


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of following."""
    parser.add_argument(
        "--follow",
        action="store_true",
        help="follow the one query of -c: its rows, then their changes, as JSON lines, until Ctrl-C",
    )
    parser.add_argument(
        "--after", metavar="POSITION", help="with --follow: continue behind this position, of an earlier line"
    )


def check(arguments: argparse.Namespace) -> None:
    """Raise UsageError for options that do not go together."""
    if arguments.after is not None and not arguments.follow:
        raise server.UsageError("--after needs --follow")
    if arguments.follow and (len(arguments.command) != 1 or arguments.files):
        raise server.UsageError("--follow takes one -c and no files")
    if arguments.follow and arguments.format not in (None, "ndjson"):
        raise server.UsageError("--follow writes ndjson")


def follow(client: "TopicsClient", arguments: argparse.Namespace, parameters: Sequence[Any]) -> int:
    """Write lines until the stream ends with an error."""
    text = arguments.command[0].strip().rstrip(";")
    with client.subscribe(text, parameters, namespace=arguments.namespace, after=arguments.after) as events:
        for event in events:
            _write(event)
    return 0


def _write(event: "LiveEvent") -> None:
    from topics_client import LiveChange, LiveGap, LiveSnapshot

    match event:
        case LiveSnapshot(rows=rows):
            for row in rows:
                print(_line({"op": "Snapshot", "row": row}))
        case LiveChange():
            print(_line({"op": event.op, "row": event.row, "old": event.old, "position": event.position}))
        case LiveGap():
            output.note(f"changes are missing ({event.reason}): a fresh snapshot follows")
        case _:
            print(_line({"op": "CaughtUp", "position": event.position}))
    sys.stdout.flush()


def _line(members: dict[str, Any]) -> str:
    from topics_client.sqlresults import plain

    return json.dumps(members, ensure_ascii=False, separators=(",", ":"), default=plain)
