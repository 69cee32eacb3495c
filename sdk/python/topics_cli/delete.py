"""`topics delete`: delete records of a topic."""

import argparse
import time
from typing import TYPE_CHECKING

from topics_cli import confirm, output, server
from topics_cli.types import milliseconds, whole

if TYPE_CHECKING:
    from topics_cli.types import Commands


def add_parser(commands: "Commands") -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "delete",
        description="Delete records of TOPIC permanently: those below a seq or older than a time, those with a tag, or "
        "those that match both. Readers skip them silently. Asks for confirmation at a terminal.",
    )
    server.add_name(parser, "topic", help="the topic")
    parser.add_argument("--partition", type=whole, default=0, metavar="N", help="the partition (default: 0)")
    ends = parser.add_mutually_exclusive_group()
    ends.add_argument("--before-seq", type=whole, metavar="SEQ", help="records below this seq")
    ends.add_argument("--older-than", type=milliseconds, metavar="TIME", help="records older than this, such as 7d")
    tags = parser.add_mutually_exclusive_group()
    tags.add_argument("--tag", metavar="TAG", help="records with exactly this tag")
    tags.add_argument("--tag-prefix", metavar="TEXT", help="records whose tag has this prefix")
    parser.add_argument("--all", action="store_true", help="all records up to the head")
    confirm.add_arguments(parser)
    output.add_arguments(parser, table=False)
    server.add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Delete; exit codes as in docs/cli.md."""
    return server.run_command("delete", lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    which = _which(arguments)
    if arguments.all == bool(which):
        raise server.UsageError("select records with --before-seq, --older-than, --tag or --tag-prefix; or give --all")
    ask = confirm.is_required(arguments)
    topic, partition = arguments.topic, arguments.partition
    with server.client(arguments) as client:
        head = client.get_topic(topic, partition=partition, touch=False).head_seq
        before = arguments.before_seq
        if arguments.older_than is not None:
            before = client.locate_time(topic, int(time.time() * 1000) - arguments.older_than, partition=partition)
        elif arguments.all:
            before = head + 1
        if ask and not confirm.is_confirmed(f"permanently delete {'' if which else 'all '}records of {topic}{which}?"):
            return server.FAILED
        done = client.delete_records(
            topic, before_seq=before, tag=arguments.tag, tag_prefix=arguments.tag_prefix, partition=partition
        )
    if arguments.json:
        members = {"topic": topic, "partition": partition, "deleted": done.deleted, "earliest_seq": done.earliest_seq}
        output.line(members | {"head_seq": done.head_seq, "count": done.count, "bytes": done.bytes})
    else:
        print(f"{topic}: {output.counted(done.deleted, 'record')} deleted, {output.counted(done.count, 'record')} left")
    return 0


def _which(arguments: argparse.Namespace) -> str:
    """Describe the selection; empty if there is none."""
    words = ""
    if arguments.before_seq is not None:
        words += f" below seq {arguments.before_seq}"
    if arguments.older_than is not None:
        words += f" older than {output.duration(arguments.older_than)}"
    if arguments.tag is not None:
        words += f" tagged {arguments.tag}"
    if arguments.tag_prefix is not None:
        words += f" tagged {arguments.tag_prefix}*"
    return words
