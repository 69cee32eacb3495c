"""`topics info`: the full state of a topic."""

import argparse
from typing import TYPE_CHECKING

from topics_cli import output, server
from topics_cli.types import whole

if TYPE_CHECKING:
    from topics_cli.types import Commands
    from topics_client.models import TopicInfo


def add_parser(commands: "Commands") -> None:
    """Register the subcommand."""
    parser = commands.add_parser(
        "info",
        description="Show the state of a topic: seqs, records, bytes, jobs of a queue, partitions, and the effective "
        "configuration.",
    )
    server.add_name(parser, "topic", nargs="+", help="one or more topics")
    parser.add_argument(
        "--partition", type=whole, default=0, metavar="N", help="partition of the seqs in --json (default: 0)"
    )
    output.add_arguments(parser)
    server.add_arguments(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Show; exit codes as in docs/cli.md."""
    return server.run_command("info", lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    from topics_cli import json_output

    with server.client(arguments) as client:
        for number, topic in enumerate(arguments.topic):
            found = client.get_topic(topic, partition=arguments.partition, touch=False)
            if arguments.json:
                output.line(json_output.state(found))
                continue
            if number:
                print()
            _show(arguments, found)
    return 0


def _show(arguments: argparse.Namespace, found: "TopicInfo") -> None:
    from topics_cli import json_output

    parts = found.partitions or (found,)
    facts: dict[str, object] = {
        "topic": found.topic,
        "type": found.type,
        "records": sum(part.count for part in parts),
        "size": output.size(sum(part.bytes for part in parts)),
    }
    if found.placement:
        facts["placement"] = found.placement
    if found.zone:
        facts["zone"] = found.zone
    if found.partitions:
        facts["partitions"] = found.partition_count
    else:
        facts |= {
            "head_seq": found.head_seq,
            "earliest_seq": found.earliest_seq,
            "written": output.ago(found.last_write_ts_ms),
        }
    facts |= {
        "read": output.ago(found.last_read_ts_ms),
        "priority": found.effective_priority,
        "topic_id": found.topic_id,
    }
    if found.queue is not None:
        facts |= {
            "ready": found.queue.ready,
            "in_flight": found.queue.in_flight,
            "delayed": found.queue.delayed,
            "exhausted": found.queue.exhausted,
            "dead_lettered": found.queue.dead_lettered,
        }
    texts = {name: _config_text(name, value) for name, value in json_output.config(found.config).items()}
    output.sections(arguments, {"": facts, "Configuration": texts})
    if found.partitions:
        print(f"\n{output.title(arguments, 'Partitions')}")
        output.table(
            ("partition", "head_seq", "earliest_seq", "records", "size", "written"),
            [
                (
                    each.partition,
                    each.head_seq,
                    each.earliest_seq,
                    each.count,
                    output.size(each.bytes),
                    output.ago(each.last_write_ts_ms),
                )
                for each in found.partitions
            ],
            headers=not arguments.no_headers,
        )


def _config_text(name: str, value: object) -> str:
    from topics_cli import config

    text = config.text(value)
    if isinstance(value, int) and value and name.endswith("_ms"):
        return f"{text} ({output.duration(value)})"
    if isinstance(value, int) and value and name == "cap_bytes":
        return f"{text} ({output.size(value)})"
    return text
