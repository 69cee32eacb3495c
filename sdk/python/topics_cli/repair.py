"""`topics repair`: recover the intact data of a damaged data directory. The implementation is imported on use."""

import argparse
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topics_cli import output, server
from topics_cli.verify import facts, sentence
from topics_client.installation import needs

if TYPE_CHECKING:
    from topics_cli.types import Commands


def add_parser(commands: "Commands") -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "repair",
        description="Show the repair of a damaged data directory, or perform it with --apply: intact data is "
        "recovered, unreadable records become explicit gaps, and the old files are moved to a quarantine directory "
        "next to it. The server must be stopped. Exit status: 0 repaired, or nothing to do; 1 damaged, or not fully "
        "recovered; 2 usage error. See docs/repair.md.",
    )
    parser.add_argument("--data-dir", type=Path, required=True, metavar="DIR", help="the data directory of a server")
    parser.add_argument("--apply", action="store_true", help="perform the repair instead of only showing it")
    first = parser.add_mutually_exclusive_group()
    first.add_argument("--copy-to", type=Path, metavar="DIR", help="with --apply: first copy the unchanged files here")
    first.add_argument("--no-copy", action="store_true", help="with --apply: do not copy the files first")
    parser.add_argument(
        "--bring-back",
        action="store_true",
        help="keep records that may have been deleted (default: turn them into gaps)",
    )
    output.add_arguments(parser, table=False)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Show or do; 0 if nothing is wrong any more, 1 if something is, 2 for wrong usage."""
    with needs("server"):
        from topics_server import repair
    return server.run_command("repair", lambda: _repair(arguments, repair))


def _repair(arguments: argparse.Namespace, repair: Any) -> int:
    from topics_cli.progress import Progress

    if arguments.apply and not arguments.no_copy and arguments.copy_to is None:
        raise server.UsageError("--apply needs --copy-to DIR for a copy of the unchanged files, or --no-copy")
    if not arguments.apply and (arguments.no_copy or arguments.copy_to is not None):
        raise server.UsageError("--copy-to and --no-copy are for --apply")
    with ExitStack() as shown:
        drawn: list[Progress] = []

        def tell(row: dict[str, Any], text: str) -> None:
            for progress in drawn:
                progress.clear()
            if arguments.json:
                output.line(row)
            else:
                print(output.clean(text))

        def begun(records: int) -> Any:
            drawn.append(shown.enter_context(Progress("repair", records)))
            return drawn[0].advance

        def observer(shard: int | None = None) -> Any:
            row, at = ({}, "") if shard is None else ({"shard": shard}, f"shard {shard}: ")
            return repair.RepairObserver(
                note=lambda text: tell({"found": "note", "text": text} | row, f"found: {at}{text}"),
                problem=lambda found: tell(
                    {"found": found.kind} | row | _facts(found), f"found: {at}{sentence(found)}"
                ),
                action=lambda it: tell({"action": it.kind} | row | _facts(it), f"repair: {at}{sentence(it)}"),
                begun=begun,
            )

        options = {"apply": arguments.apply, "copy_to": arguments.copy_to, "bring_back": arguments.bring_back}
        has_shards = (arguments.data_dir / "shards.json").exists()
        try:
            if has_shards:
                reports = repair.repair_shards(arguments.data_dir, observer, **options)
            else:
                reports = [repair.repair(arguments.data_dir, observer(), **options)]
        except NotADirectoryError as error:
            raise server.UsageError(f"no data directory {error.filename}") from error
        except (repair.RepairError, OSError) as error:
            return server.complain("repair", str(error))
    codes = []
    for shard, report in enumerate(reports):
        directory = arguments.data_dir / "shards" / str(shard) if has_shards else arguments.data_dir
        if arguments.json:
            names = ("problems", "actions", "lost", "applied", "quarantine", "topics", "partitions", "records")
            row = {name: getattr(report, name) for name in names}
            output.line(({"shard": shard} if has_shards else {}) | row)
        codes.append(_end(arguments, report, directory))
    return max(codes)


def _end(arguments: argparse.Namespace, report: Any, directory: Path) -> int:
    """Report the result, and return the exit code."""
    say = (lambda _: None) if arguments.json else print
    saved = output.listed(topic=report.topics, partition=report.partitions, record=report.records)
    if report.applied:
        if not report.resumed:
            say(f"saved: {saved}")
        say(f"repaired; the original files are in {directory / report.quarantine}")
        if not report.lost:
            return 0
        lost = output.counted(report.lost, "thing")
        return server.complain("repair", f"{lost} could not be recovered; see docs/repair.md")
    if not report.problems:
        say(f"nothing to do: {directory} is intact")
        return 0
    if not report.quarantine:
        say(f"would save {saved}")
    return server.complain(
        "repair", f"{directory} is damaged, nothing was changed: repair it with --apply --copy-to DIR"
    )


def _facts(found: Any) -> dict[str, Any]:
    return {name: value for name, value in facts(found).items() if name != "kind"}
