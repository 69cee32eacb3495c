"""`topics queue`: work with the jobs of a queue."""

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from topics_cli import output, server
from topics_cli.types import milliseconds, positive, whole

if TYPE_CHECKING:
    from topics_cli.types import Commands

_JOBS_HELP = "job as SEQ or SEQ:LEASE (default: read the output of `topics queue claim` from standard input)"


def add_parser(commands: "Commands") -> None:
    """Register the subcommand and its own."""
    parser = commands.add_parser(
        "queue",
        description="Claim, ack and inspect the jobs of a queue. A queue is a topic: `topics create NAME --type queue` "
        "creates one, `topics append` adds jobs.",
        epilog="example: topics queue claim q --max 5 | topics queue ack q",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    claim = _action(actions, "claim", "lease jobs and print them, one JSON object per line")
    claim.add_argument(
        "--max", type=positive, default=1, metavar="N", help="maximum number of jobs, up to 1000 (default: 1)"
    )
    _time(claim, "--lease", "duration of the leases (default: the queue's)")
    _node(claim)

    ack = _action(actions, "ack", "acknowledge jobs, which removes them permanently")
    _jobs(ack)
    nack = _action(actions, "nack", "return jobs to the queue")
    _jobs(nack)
    _time(nack, "--delay", "delay before they can be claimed again (default: none)", default=0)
    nack.add_argument("--reason", default="", metavar="TEXT", help="reason, stored with the jobs and in dead letters")
    nack.add_argument("--release", action="store_true", help="do not count the delivery as an attempt")
    extend = _action(actions, "extend", "extend leases")
    _jobs(extend)
    _time(extend, "--lease", "new duration of the leases, from now", required=True)

    stats = _action(
        actions, "stats", "show the numbers of ready, in-flight, delayed, exhausted and dead-lettered jobs", nargs="*"
    )
    output.add_arguments(stats)
    jobs = _action(actions, "jobs", "list jobs without claiming them")
    jobs.add_argument(
        "--state",
        choices=("ready", "in_flight", "delayed", "exhausted"),
        default="ready",
        help="state of the jobs (default: ready)",
    )
    jobs.add_argument(
        "--limit", type=whole, default=100, metavar="N", help="maximum number of jobs; 0: all (default: 100)"
    )
    output.add_arguments(jobs)
    redrive = _action(actions, "redrive", "move dead letters back into the queue")
    tags = redrive.add_mutually_exclusive_group()
    tags.add_argument("--tag", metavar="TAG", help="only jobs with exactly this tag")
    tags.add_argument("--tag-prefix", metavar="TEXT", help="only jobs whose tag has this prefix")
    redrive.add_argument("--max", type=whole, default=0, metavar="N", help="maximum number of jobs (default: all)")

    for each in (claim, ack, nack, extend, redrive):
        output.add_arguments(each, table=False)
    for each in (claim, ack, nack, extend, stats, jobs, redrive):
        server.add_arguments(each)


def _action(actions: "Commands", name: str, what: str, nargs: str | None = None) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.")
    if nargs is None:
        server.add_name(parser, "queue", kind="queues", help="the queue")
    else:
        server.add_name(parser, "queue", kind="queues", nargs=nargs, help="one or more queues (default: all)")
    parser.set_defaults(run=run)
    return parser


def _jobs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", nargs="*", help=_JOBS_HELP)
    _node(parser)


def _time(parser: argparse.ArgumentParser, flag: str, text: str, **options: Any) -> None:
    parser.add_argument(flag, f"{flag}-ms", type=milliseconds, metavar="TIME", help=text, **options)


def _node(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--node", metavar="NAME", help="worker that holds the jobs (default: cli@HOST for this host)")


def run(arguments: argparse.Namespace) -> int:
    """Run the action; exit codes as in docs/cli.md."""
    from topics_cli.queue.actions import ACTIONS

    work: Callable[[argparse.Namespace], int] = ACTIONS[arguments.action]
    return server.run_command(f"queue {arguments.action}", lambda: work(arguments))
