"""`topics cluster restore` and `moments`: the log of a cluster as an archive. The implementation is imported on use."""

import argparse
import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from topics_cli import backup_log, output, server
from topics_cli.times import shown

if TYPE_CHECKING:
    from topics_cluster.bucket import Bucket
    from topics_cluster.pointintime import Restored

T = TypeVar("T")


def add_arguments(restore: argparse.ArgumentParser) -> None:
    """Register the options of `restore`."""
    restore.add_argument("--to", type=Path, required=True, metavar="DIR", help="target directory, new or empty")
    backup_log.add_arguments(restore)


def restore(arguments: argparse.Namespace, bucket: "Bucket") -> int:
    """Make a data directory of the moment; by default of the last one."""
    from topics_backup.restoring import check_free
    from topics_cluster import pointintime
    from topics_cluster.moments import Archive

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as with Ctrl-C, remove partial restores
    archive = Archive(bucket, 0, lambda text: _report("restore", text))

    async def make() -> "Restored":
        check_free(arguments.to)
        if arguments.at_seq is not None:
            topic, partition, seq = arguments.at_seq
            cut = await archive.at_seq(topic, partition, seq, arguments.to.absolute().parent)
        elif arguments.at in (None, backup_log.LATEST):
            cut = await archive.at_end()
        else:
            cut = await archive.at_time(arguments.at)
        return await pointintime.restore(archive, arguments.to, cut, jump=arguments.jump)

    def tell(made: "Restored") -> None:
        facts = {"checkpoint": made.checkpoint, "log_bytes": made.log_bytes, "written_ms": made.written_ms}
        base = f"checkpoint {made.checkpoint}" if made.checkpoint else "no checkpoint"
        backup_log.tell_restored(arguments, facts, base, made.topics)

    return _run("restore", make(), tell)


def moments(arguments: argparse.Namespace, bucket: "Bucket") -> int:
    """List the ranges of time that can be restored."""
    from topics_cluster.moments import Archive, Range

    def tell(found: list[Range]) -> None:
        for each in found:
            if arguments.json:
                output.line(each._asdict())
            else:
                log, made = output.size(each.bytes), output.counted(each.checkpoints, "checkpoint")
                print(f"restorable from {shown(each.from_ms)} to {shown(each.until_ms)} ({log} of log, {made})")
        if not found and not arguments.json:
            output.note("the log is empty")

    return _run("moments", Archive(bucket, 0, lambda text: _report("moments", text)).ranges(), tell)


def _run(action: str, work: Coroutine[Any, Any, T], tell: Callable[[T], None]) -> int:
    """Run an action on the archive. Exit codes as in docs/cli.md, and 5 for a seq that the log does not show."""
    from topics_backup.errors import AbsentError, BackupError
    from topics_cluster.bucket import BucketError
    from topics_cluster.objects import LaterFormatError
    from topics_service.storage.store import StoreError

    try:
        tell(asyncio.run(work))
    except AbsentError as error:
        return server.complain(f"cluster {action}", str(error), server.NOT_FOUND)
    except (BackupError, BucketError, LaterFormatError, StoreError) as error:
        return server.complain(f"cluster {action}", str(error))
    return 0


def _report(action: str, text: str) -> None:
    print(f"topics cluster {action}: {output.clean(text)}", file=sys.stderr)
