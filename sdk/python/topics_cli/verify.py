"""`topics verify`: check a data directory. The implementation is imported on use."""

import argparse
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topics_cli import output, server
from topics_client.installation import needs

if TYPE_CHECKING:
    from topics_cli.types import Commands
    from topics_service.engine.verify import Problem


def add_parser(commands: "Commands") -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "verify",
        description="Check a data directory: the checksum of every block, and that records, counters, indexes, "
        "deletes, leases, routers, groups and tables are consistent. Changes nothing. Exit status: 0 clean, 1 "
        "problems, 2 usage error. See docs/verify.md.",
    )
    parser.add_argument("--data-dir", type=Path, required=True, metavar="DIR", help="the data directory of a server")
    parser.add_argument(
        "--deep",
        action="store_true",
        help="also compare the tag index with the records, and decompress Kafka batches",
    )
    output.add_arguments(parser, table=False)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Check; 0 if nothing is wrong, 1 if something is, 2 if there is no data directory."""
    with needs("server"):
        from topics_server.verify import verify
    return server.run_command("verify", lambda: _verify(arguments, verify))


def _verify(arguments: argparse.Namespace, verify: Any) -> int:
    from topics_cli.progress import Progress

    with ExitStack() as shown:
        drawn: list[Progress] = []

        def tell(problem: "Problem") -> None:
            for progress in drawn:
                progress.clear()
            if arguments.json:
                output.line(facts(problem))
            else:
                print(output.clean(sentence(problem)))

        def begun(records: int) -> Any:
            drawn.append(shown.enter_context(Progress("verify", records)))
            return drawn[0].advance

        try:
            report = verify(arguments.data_dir, tell, deep=arguments.deep, begun=begun)
        except NotADirectoryError as error:
            raise server.UsageError(f"no data directory {error.filename}") from error
    if arguments.json:
        output.line(
            {
                "clean": not report.problems,
                "problems": report.problems,
                "topics": report.topics,
                "partitions": report.partitions,
                "records": report.records,
                "routers": report.routers,
                "groups": report.groups,
                "tables": report.tables,
                "rows": report.rows,
                "deep": arguments.deep,
                "live": report.live,
            }
        )
    elif report.opened:
        what = output.listed(topic=report.topics, partition=report.partitions, record=report.records)
        found = f"clean: {what}" if not report.problems else f"looked at {what}"
        rest = output.listed(router=report.routers, group=report.groups)
        rows = f", {output.listed(table=report.tables, row=report.rows)}" if report.tables else ""
        print(f"{found}, {rest}{rows}")
    if not report.problems:
        return 0
    count = "one problem" if report.problems == 1 else f"{report.problems:,} problems"
    return server.complain("verify", f"{count} in {arguments.data_dir}; see docs/verify.md")


def facts(found: Any) -> dict[str, Any]:
    """A problem, or its repair, as a row of JSON."""
    names = ("kind", "topic", "partition", "first_seq", "last_seq", "table", "file", "text")
    known = {name: getattr(found, name, None) for name in names}
    return {name: value for name, value in known.items() if value is not None}


def sentence(found: Any) -> str:
    """The same as one line."""
    table = getattr(found, "table", None)
    where, text, file = "" if table is None else f"{table}: ", found.text, getattr(found, "file", None)
    if found.topic is not None:
        where = f"{found.topic}@{found.partition}" if found.partition else found.topic
        if found.first_seq is not None:
            end = "" if found.first_seq == found.last_seq else f"..{found.last_seq}"
            where += f" seq {found.first_seq}{end}"
        where += ": "
    file = "" if file is None or file in text else f" ({file})"
    return f"{found.kind}: {where}{text}{file}"
