"""`topics backup archive`, and `topics backup restore` to a point in time."""

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from topics_cli import output, server
from topics_cli.times import point, shown
from topics_cli.types import positive, whole

if TYPE_CHECKING:
    from topics_backup.manifest import Topic
    from topics_backup.shipping import Shipped

LATEST: Final = -1


def moment(text: str) -> int:
    """Parse `--at` to ms."""
    return LATEST if text == "latest" else point(text)


def partition_and_seq(text: str) -> tuple[str, int, int]:
    """Parse `--at-seq` to topic, partition and seq."""
    name, _, seq = text.rpartition(":")
    topic, _, partition = name.partition("@")
    try:
        return topic, whole(partition) if "@" in name else 0, positive(seq)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r} is not TOPIC:SEQ or TOPIC@PARTITION:SEQ") from None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Register the options of a restore that is not of a backup alone."""
    to = parser.add_mutually_exclusive_group()
    to.add_argument(
        "--at",
        type=moment,
        metavar="TIME",
        help="everything written up to this time: 2026-11-28T14:30:00Z, 15m (ago), ms, or latest (all archived)",
    )
    to.add_argument(
        "--at-seq",
        type=partition_and_seq,
        metavar="TOPIC[@PARTITION]:SEQ",
        help="everything written until the partition reached this seq",
    )
    parser.add_argument(
        "--jump",
        type=positive,
        default=0,
        metavar="N",
        help="skip N seqs in every topic, for clients that have read beyond the backup",
    )


def archive(arguments: argparse.Namespace) -> int:
    """`topics backup archive`."""
    from topics_backup import shipping
    from topics_backup.errors import BackupError
    from topics_backup.target import open_target

    target = open_target(arguments.to)
    if arguments.every is None:
        _tell_archived(arguments, shipping.ship_all(target, arguments.data_dir))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # a partial copy is never visible
    while True:
        began = time.monotonic()
        try:
            _tell_archived(arguments, shipping.ship_all(target, arguments.data_dir))
        except (BackupError, OSError) as error:  # the next attempt copies what is missing
            server.complain("backup archive", str(error))
        sys.stdout.flush()
        time.sleep(max(0.0, began + arguments.every / 1000 - time.monotonic()))


def _tell_archived(arguments: argparse.Namespace, done: "Sequence[Shipped]") -> None:
    """Report what was archived of each shard, together but for JSON."""
    if arguments.json:
        for shard, each in enumerate(done):
            output.line(({"shard": shard} if len(done) > 1 else {}) | each._asdict())
    elif any(each.pieces for each in done) or arguments.every is None:
        of = done[0].line if len(done) == 1 else f"{len(done)} shards"
        until_ms = min(each.until_ms for each in done)
        print(f"{of}: {output.size(sum(each.bytes for each in done))} archived, up to {shown(until_ms)}")
    for each in done:
        tell_holes("archive", each.holes)


def tell_holes(action: str, holes: list[str]) -> None:
    """Report parts of the log that were removed before they were archived; not an error of the command."""
    for hole in holes:
        server.complain(
            f"backup {action}",
            f"the log of {hole} was removed before it was archived: create a backup, and raise "
            "TOPICS_WAL_ARCHIVE_SECONDS and TOPICS_WAL_ARCHIVE_BYTES or archive more often",
        )


def is_point(arguments: argparse.Namespace) -> bool:
    """Return True for a restore to a point in time."""
    return arguments.at is not None or arguments.at_seq is not None


def restore_point(arguments: argparse.Namespace) -> int:
    """`topics backup restore` with `--at` or `--at-seq`."""
    from topics_backup import moments, pointintime
    from topics_backup.target import open_target

    if arguments.id is not None or arguments.fallback:
        raise server.UsageError("--at and --at-seq select the backup: ID and --fallback are not allowed")
    target = open_target(arguments.source)
    if arguments.at_seq is not None:
        moment = moments.at_seq(target, *arguments.at_seq)
    else:
        moment = moments.at_end(target) if arguments.at == LATEST else moments.at_time(target, arguments.at)
    made = pointintime.restore(
        target,
        arguments.to,
        moment,
        jump=arguments.jump,
        report=lambda text: print(f"topics backup restore: {output.clean(text)}", file=sys.stderr),
    )
    each = [{"id": one.backup.id, "log_bytes": one.log_bytes, "written_ms": one.written_ms} for one in made]
    facts: dict[str, Any] = each[0]
    if moment.shards is not None:
        facts = {
            "id": max(one.backup.id for one in made),
            "log_bytes": sum(one.log_bytes for one in made),
            "written_ms": max(one.written_ms for one in made),
            "shards": [{"shard": shard, **of_shard} for shard, of_shard in enumerate(each)],
        }
    tell_restored(arguments, facts, facts["id"], [topic for one in made for topic in one.topics])
    return 0


def tell_restored(arguments: argparse.Namespace, facts: dict[str, Any], base: str, topics: "Sequence[Topic]") -> None:
    """Report a restore of `base` and the log behind it, of which `facts` has the `log_bytes` and `written_ms`, and the
    `shards` where there are several."""
    names = {topic.topic for topic in topics}  # one with partitions in several shards is in each of them
    records = sum(part.count for topic in topics for part in topic.partitions)
    if arguments.json:
        output.line(facts | {"topics": len(names), "records": records, "data_dir": str(arguments.to)})
    else:
        what = output.listed(topic=len(names), record=records)
        print(
            f"{base} and {output.size(facts['log_bytes'])} of log: {what}, as of {shown(facts['written_ms'])}; "
            f"serve it with: {serving(arguments.to, with_shards='shards' in facts)}"
        )


def serving(directory: Path, *, with_shards: bool) -> str:
    """The command that serves a restored directory."""
    return f"topics serve --data-dir {directory}" + (" --processes 2" if with_shards else "")
