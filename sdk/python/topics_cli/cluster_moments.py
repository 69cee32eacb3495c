"""`topics cluster restore`, `backup` and `moments`: the log of a cluster as an archive. The implementation is imported
on use."""

import argparse
import asyncio
import signal
import sys
import tempfile
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from topics_cli import backup, backup_log, output, server
from topics_cli.times import shown
from topics_cli.types import positive

if TYPE_CHECKING:
    from topics_backup.manifest import Manifest
    from topics_cluster.bucket import Bucket
    from topics_cluster.moments import Archive, Range
    from topics_cluster.pointintime import Restored

T = TypeVar("T")


def add_arguments(
    restore: argparse.ArgumentParser, copy: argparse.ArgumentParser, moments: argparse.ArgumentParser
) -> None:
    """Register the options of `restore`, `backup` and `moments`."""
    restore.add_argument("--to", type=Path, required=True, metavar="DIR", help="target directory, new or empty")
    backup_log.add_arguments(restore)
    copy.add_argument("--to", required=True, metavar="TARGET", help=backup.TARGET_HELP)
    copy.add_argument(
        "--scratch",
        type=Path,
        metavar="DIR",
        help="directory with space for all data, which is restored there first (default: TMPDIR)",
    )
    for each in (restore, copy, moments):
        each.add_argument(
            "--shards",
            type=positive,
            metavar="N",
            help="number of shards of the cluster, where its object cluster.json is lost",
        )


def restore(arguments: argparse.Namespace, bucket: "Bucket") -> int:
    """Make a data directory of the moment; by default of the last one."""
    from topics_backup.restoring import check_free
    from topics_cluster import every_shard

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as with Ctrl-C, remove partial restores

    async def make() -> "Sequence[Restored]":
        check_free(arguments.to)
        each = await _archives("restore", bucket, arguments.shards)
        if arguments.at_seq is not None:
            topic, partition, seq = arguments.at_seq
            cuts = await every_shard.at_seq(each, topic, partition, seq, arguments.to.absolute().parent)
        elif arguments.at in (None, backup_log.LATEST):
            cuts = await every_shard.at_end(each)
        else:
            cuts = await every_shard.at_time(each, arguments.at)
        return await every_shard.restore(each, arguments.to, cuts, jump=arguments.jump)

    def tell(made: "Sequence[Restored]") -> None:
        if len(made) == 1:
            base = f"checkpoint {made[0].checkpoint}" if made[0].checkpoint else "no checkpoint"
            backup_log.tell_restored(arguments, _facts(made[0]), base, made[0].topics)
            return
        facts = {
            "shards": [{"shard": shard, **_facts(each)} for shard, each in enumerate(made)],
            "log_bytes": sum(each.log_bytes for each in made),
            "written_ms": max(each.written_ms for each in made),
        }
        base = f"{sum(each.checkpoint > 0 for each in made)} checkpoints of {len(made)} shards"
        backup_log.tell_restored(arguments, facts, base, [topic for each in made for topic in each.topics])

    return _run("restore", make(), tell)


def _facts(made: "Restored") -> dict[str, Any]:
    return {"checkpoint": made.checkpoint, "log_bytes": made.log_bytes, "written_ms": made.written_ms}


def copy(arguments: argparse.Namespace, bucket: "Bucket", url: str) -> int:
    """Back up the cluster as it is now: its last moment, restored to a scratch directory."""
    from topics_backup.target import open_target
    from topics_cluster import every_shard

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as with Ctrl-C, remove the scratch directory

    async def restore_to(directory: Path) -> None:
        each = await _archives("backup", bucket, arguments.shards)
        await every_shard.restore(each, directory, await every_shard.at_end(each))

    def make() -> "Manifest":
        target = open_target(arguments.to)
        with tempfile.TemporaryDirectory(prefix="topics-backup-", dir=arguments.scratch) as own:
            directory = Path(own) / "data"
            asyncio.run(restore_to(directory))
            return backup.create_offline(target, directory, url)

    return _tried("backup", lambda: backup.tell_created(arguments, make()))


def moments(arguments: argparse.Namespace, bucket: "Bucket") -> int:
    """List the ranges of time that can be restored."""
    from topics_cluster import every_shard

    async def find() -> "Sequence[Sequence[Range]]":
        return await every_shard.ranges(await _archives("moments", bucket, arguments.shards))

    def tell(found: "Sequence[Sequence[Range]]") -> None:
        several = len(found) > 1
        for shard, of_shard in enumerate(found):
            for each in of_shard:
                if arguments.json:
                    output.line(({"shard": shard} if several else {}) | each._asdict())
                else:
                    log, made = output.size(each.bytes), output.counted(each.checkpoints, "checkpoint")
                    _show(
                        f"shard {shard}: " if several else "", each.from_ms, each.until_ms, f" ({log} of log, {made})"
                    )
        if several:
            common = every_shard.spans(found)
            for span in common:
                if arguments.json:
                    output.line({"shard": None} | span._asdict())
                else:
                    _show("all shards: ", span.from_ms, span.until_ms)
            if not common and not arguments.json:
                output.note("there is no time that all shards cover")
        elif not found[0] and not arguments.json:
            output.note("the log is empty")

    return _run("moments", find(), tell)


def _show(of: str, from_ms: int, until_ms: int, more: str = "") -> None:
    print(f"{of}restorable from {shown(from_ms)} to {shown(until_ms)}{more}")


async def _archives(action: str, bucket: "Bucket", shards: int | None) -> "Sequence[Archive]":
    from topics_cluster import every_shard

    count = await every_shard.count_of(bucket, shards)
    return await every_shard.archives(bucket, count, lambda text: _report(action, text))


def _run(action: str, work: Coroutine[Any, Any, T], tell: Callable[[T], None]) -> int:
    return _tried(action, lambda: tell(asyncio.run(work)))


def _tried(action: str, work: Callable[[], None]) -> int:
    """Run an action on the archive. Exit codes as in docs/cli.md, and 5 for a seq that the log does not show."""
    from topics_backup.errors import AbsentError, BackupError
    from topics_cluster.bucket import BucketError
    from topics_cluster.identity import IdentityError
    from topics_cluster.objects import LaterFormatError
    from topics_service.storage.store import StoreError

    try:
        work()
    except AbsentError as error:
        return server.complain(f"cluster {action}", str(error), server.NOT_FOUND)
    except (BackupError, BucketError, IdentityError, LaterFormatError, StoreError) as error:
        return server.complain(f"cluster {action}", str(error))
    return 0


def _report(action: str, text: str) -> None:
    print(f"topics cluster {action}: {output.clean(text)}", file=sys.stderr)
