"""`topics repair`: save what is intact of a damaged data directory. What does the work is loaded when it is run."""

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
        description="Show what a repair of a damaged data directory would do, or with --apply do it: what is intact is "
        "saved, records that can't be read become explicit gaps, the old files go to a quarantine directory beside. "
        "The server has to be stopped. Exit status: 0 repaired, or nothing to do; 1 something is damaged, or could not "
        "be saved; 2 wrong usage. See docs/repair.md.",
    )
    parser.add_argument("--data-dir", type=Path, required=True, metavar="DIR", help="the data directory of a server")
    parser.add_argument("--apply", action="store_true", help="do it, and not only show it")
    first = parser.add_mutually_exclusive_group()
    first.add_argument(
        "--copy-to", type=Path, metavar="DIR", help="with --apply: first copy the files, as they are, here"
    )
    first.add_argument("--no-copy", action="store_true", help="with --apply: there is a copy already, make none")
    parser.add_argument(
        "--bring-back",
        action="store_true",
        help="keep records of which it is lost whether they were deleted; without it they become gaps",
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
        raise server.UsageError("--apply needs --copy-to DIR for a copy of the files as they are, or --no-copy")
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

        told = repair.Told(
            note=lambda text: tell({"found": "note", "text": text}, f"found: {text}"),
            problem=lambda found: tell({"found": found.kind} | _facts(found), f"found: {sentence(found)}"),
            action=lambda done: tell({"action": done.kind} | _facts(done), f"repair: {sentence(done)}"),
            begun=begun,
        )
        try:
            report = repair.repair(
                arguments.data_dir,
                told,
                apply=arguments.apply,
                copy_to=arguments.copy_to,
                bring_back=arguments.bring_back,
            )
        except NotADirectoryError as error:
            raise server.UsageError(f"there is no data directory {error.filename}") from error
        except (repair.RepairError, OSError) as error:
            return server.complain("repair", str(error))
    if arguments.json:
        names = ("problems", "actions", "lost", "applied", "quarantine", "topics", "partitions", "records")
        output.line({name: getattr(report, name) for name in names})
    return _end(arguments, report)


def _end(arguments: argparse.Namespace, report: Any) -> int:
    """Say what came of it, and return the exit code."""
    say = (lambda _: None) if arguments.json else print
    saved = output.listed(topic=report.topics, partition=report.partitions, record=report.records)
    if report.applied:
        if not report.resumed:
            say(f"saved: {saved}")
        say(f"repaired; the files as they were are in {arguments.data_dir / report.quarantine}")
        if not report.lost:
            return 0
        lost = output.counted(report.lost, "thing")
        return server.complain("repair", f"{lost} could not be saved; docs/repair.md tells what to do")
    if not report.problems:
        say(f"nothing to do: {arguments.data_dir} is sound")
        return 0
    if not report.quarantine:
        say(f"would save {saved}")
    return server.complain(
        "repair", f"{arguments.data_dir} is damaged, nothing was changed: `--apply --copy-to DIR` does what is shown"
    )


def _facts(found: Any) -> dict[str, Any]:
    return {name: value for name, value in facts(found).items() if name != "kind"}
