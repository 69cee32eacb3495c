"""`topics lakehouse`: topics as Iceberg tables. The implementation is imported on use."""

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
        "lakehouse", help="replicate topics to Iceberg tables and query them", description="Topics as Iceberg tables."
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    run = _action(actions, "run", "write new records to the tables with Spark, until stopped")
    run.add_argument("--once", action="store_true", help="write the current records, then exit")
    run.add_argument("--refill", action="store_true", help="first restore rows lost by a rollback of the tables")
    run.add_argument("--trigger", metavar="S", help="minimum seconds between the starts of rounds (default: 0.5)")
    run.add_argument("--master", metavar="URL", help="Spark master (default: local[*])")
    status = _action(actions, "status", "show the state and problems of each table; exit status 1 if there are any")
    compact = _action(actions, "compact", "merge small files")
    maintain = _action(actions, "maintain", "expire old snapshots, merge manifests, delete orphan files")
    maintain.add_argument("--keep", type=positive, metavar="N", help="snapshots to keep (default: keep_snapshots)")
    maintain.add_argument(
        "--grace",
        type=_seconds,
        metavar="TIME",
        help="minimum age of orphan files to delete, at least 1h (default: orphan_grace)",
    )
    deletes = _action(actions, "sync-deletes", "delete the rows of records that were deleted in the topic")
    deletes.add_argument("name", metavar="TOPIC", help="the topic")
    deletes.add_argument(
        "--timeout", type=_seconds, metavar="TIME", help="time to wait for the pipeline (default: unlimited)"
    )
    query = _action(actions, "query", "query the tables and newer records of the topics with DuckDB SQL")
    query.add_argument("sql", metavar="SQL", help="the statement; - is standard input")
    query.add_argument("--table-only", action="store_true", help="query only the tables")
    query.add_argument(
        "--hot-limit", type=positive, metavar="N", help="maximum number of newer records per topic (default: 1000000)"
    )
    formats = query.add_mutually_exclusive_group()
    formats.add_argument("--csv", action="store_true", help="print CSV")
    formats.add_argument("--parquet", metavar="FILE", help="write a Parquet file")
    formats.add_argument("--json", action="store_true", help="print one JSON object per row")
    for each in (run, status, compact, maintain, deletes):
        each.add_argument("--json", action="store_true", help="print JSON")


def _action(actions: "Commands", name: str, what: str) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.", epilog=_CONFIG)
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="settings file (default: lakehouse.toml, if it exists)"
    )
    parser.add_argument(
        "--server",
        "--url",
        dest="url",
        metavar="URL",
        help="the server, as topics://KEY@HOST:PORT (default: TOPICS_URL)",
    )
    parser.add_argument("--warehouse", metavar="PLACE", help="folder or URL of the tables")
    parser.add_argument("--topic", action="append", default=[], metavar="NAME", help="only this topic; repeatable")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="setting that overrides the file's"
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
