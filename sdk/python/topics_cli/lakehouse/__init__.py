"""`topics lakehouse`: topics as Iceberg tables. What does the work is loaded when a command is run."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from topics_cli.types import positive, seconds
from topics_client.installation import needs

if TYPE_CHECKING:
    from topics_cli.types import Commands

_CONFIG = """\
Settings come from a TOML file: server, warehouse, [catalog], [[topics]] and more (docs/lakehouse.md).
"""


def add_parser(commands: "Commands") -> None:
    """Register the subcommand and its own."""
    parser = commands.add_parser(
        "lakehouse", help="keep topics as Iceberg tables and query them", description="Topics as Iceberg tables."
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    run = _action(actions, "run", "write what is new in the topics to their tables, with Spark, until stopped")
    run.add_argument("--once", action="store_true", help="write what is there now, then end")
    run.add_argument("--refill", action="store_true", help="first read again what a rollback took from the tables")
    run.add_argument("--trigger", metavar="S", help="seconds between the starts of two rounds, at least (default: 0.5)")
    run.add_argument("--master", metavar="URL", help="Spark master (default: local[*])")
    status = _action(actions, "status", "state and faults of each table; exits with 1 if there is a fault")
    compact = _action(actions, "compact", "make large files of small ones")
    maintain = _action(actions, "maintain", "drop old snapshots, merge manifests, delete files nothing refers to")
    maintain.add_argument("--keep", type=positive, metavar="N", help="snapshots to keep (default: keep_snapshots)")
    maintain.add_argument(
        "--grace",
        type=_seconds,
        metavar="TIME",
        help="least age, 1h or more, of unreferenced files to remove (default: orphan_grace)",
    )
    deletes = _action(actions, "sync-deletes", "remove the rows of records that are deleted in the topic")
    deletes.add_argument("name", metavar="TOPIC", help="the topic")
    deletes.add_argument(
        "--timeout", type=_seconds, metavar="TIME", help="longest wait for the pipeline (default: for ever)"
    )
    query = _action(actions, "query", "ask the tables and what is not in them yet, in DuckDB's SQL")
    query.add_argument("sql", metavar="SQL", help="the statement; - is standard input")
    query.add_argument("--table-only", action="store_true", help="leave out what is not in the tables yet")
    query.add_argument(
        "--hot-limit", type=positive, metavar="N", help="most such records of a topic (default: 1000000)"
    )
    formats = query.add_mutually_exclusive_group()
    formats.add_argument("--csv", action="store_true", help="print CSV")
    formats.add_argument("--parquet", metavar="FILE", help="write a Parquet file")
    formats.add_argument("--json", action="store_true", help="print each row as a line of JSON")
    for each in (run, status, compact, maintain, deletes):
        each.add_argument("--json", action="store_true", help="print JSON")


def _action(actions: "Commands", name: str, what: str) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.", epilog=_CONFIG)
    parser.add_argument("--config", type=Path, metavar="FILE", help="settings (default: lakehouse.toml, if there)")
    parser.add_argument(
        "--server",
        "--url",
        dest="url",
        metavar="URL",
        help="the server, as topics://KEY@HOST:PORT (default: TOPICS_URL)",
    )
    parser.add_argument("--warehouse", metavar="PLACE", help="folder or URL that the tables are put below")
    parser.add_argument(
        "--topic", action="append", default=[], metavar="NAME", help="only this topic (repeat for several)"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a setting that wins over the file's"
    )
    parser.set_defaults(run=run)
    return parser


def _seconds(text: str) -> float:
    return 0.0 if text == "0" else seconds(text)


def run(arguments: argparse.Namespace) -> int:
    """Run the action; 1 with one line on stderr if it fails."""
    with needs("lakehouse"):
        from topics_cli.lakehouse.actions import main
    return main(arguments)
