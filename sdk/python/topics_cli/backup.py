"""`topics backup`: back up all topics to a folder or an object store, and restore them. The implementation is imported
on use."""

import argparse
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from topics_cli import backup_log, output, server
from topics_cli.times import shown
from topics_cli.types import milliseconds, positive
from topics_client.installation import needs

if TYPE_CHECKING:
    from topics_backup.manifest import Manifest
    from topics_backup.target import Target
    from topics_cli.types import Commands

_HOLD_MS: Final = 86_400_000
_CHECKPOINT_SECONDS: Final = 120.0  # memory is flushed first
TARGET_HELP = "folder, or URL of an object store: s3://BUCKET/PREFIX, gs://..., az://..."
_ID_HELP = "backup (default: {})"


def add_parser(commands: "Commands") -> None:
    """Register the subcommand and its own."""
    parser = commands.add_parser(
        "backup",
        description="Back up all topics of a running server, and restore backups to data directories. See "
        "docs/backup.md.",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    create = _action(actions, "create", "create a backup; copies only what is new since the last one")
    create.add_argument("--to", required=True, metavar="TARGET", help=TARGET_HELP)
    create.add_argument("--data-dir", type=Path, metavar="DIR", help="back up the data directory of a stopped server")
    server.add_arguments(create)
    archive = _action(actions, "archive", "copy the new part of the log of a server with TOPICS_WAL_ARCHIVE_SECONDS")
    archive.add_argument("--to", required=True, metavar="TARGET", help=TARGET_HELP)
    archive.add_argument(
        "--data-dir", type=Path, required=True, metavar="DIR", help="data directory of the server, running or stopped"
    )
    archive.add_argument("--every", type=milliseconds, metavar="TIME", help="repeat at this interval, for example 60s")
    listing = _action(actions, "list", "list the backups of a target, and the restorable times", table=True)
    verify = _action(actions, "verify", "verify the checksums of backups; exit status 1 if one is damaged")
    verify.add_argument("id", nargs="?", metavar="ID", help=_ID_HELP.format("all"))
    verify.add_argument(
        "--deep", action="store_true", help="also restore each to a scratch directory and read everything"
    )
    verify.add_argument("--scratch", type=Path, metavar="DIR", help="scratch directory of --deep (default: TMPDIR)")
    restore = _action(actions, "restore", "restore a backup to a new data directory")
    restore.add_argument("id", nargs="?", metavar="ID", help=_ID_HELP.format("the newest"))
    restore.add_argument("--to", type=Path, required=True, metavar="DIR", help="target directory, new or empty")
    restore.add_argument(
        "--fallback", action="store_true", help="if the backup is damaged, use the newest intact older one"
    )
    backup_log.add_arguments(restore)
    prune = _action(actions, "prune", "remove old backups, and files no longer needed")
    prune.add_argument("--keep", type=positive, metavar="N", help="keep the newest N backups")
    prune.add_argument("--keep-days", type=positive, metavar="D", help="keep the backups of the last D days")
    prune.add_argument(
        "--grace",
        type=milliseconds,
        default=86_400_000,
        metavar="TIME",
        help="time to keep unneeded files; less than a day only while no backup is running (default: 24h)",
    )
    for each in (listing, verify, restore, prune):
        each.add_argument("--from", dest="source", required=True, metavar="TARGET", help=TARGET_HELP)
    release = _action(actions, "release", "remove a checkpoint left on the server by a killed create")
    release.add_argument("id", metavar="CHECKPOINT", help="name of the checkpoint, from the server's log or the error")
    server.add_arguments(release)


def _action(actions: "Commands", name: str, what: str, *, table: bool = False) -> argparse.ArgumentParser:
    parser = actions.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.")
    output.add_arguments(parser, table=table)
    parser.set_defaults(run=run)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Run the action. Exit codes as in docs/cli.md, and 5 for a missing backup."""
    name = f"backup {arguments.action}"
    if arguments.action == "release":
        return server.run_command(name, lambda: _release(arguments))
    with needs("server"):
        import topics_backup.inventory  # noqa: F401  needs the same packages
        from topics_backup.errors import AbsentError, BackupError
    # As with Ctrl-C, remove the checkpoint and partial restores.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    work = {
        "create": _create,
        "archive": backup_log.archive,
        "list": _list,
        "verify": _verify,
        "restore": _restore,
        "prune": _prune,
    }
    try:
        return server.run_command(name, lambda: work[arguments.action](arguments))
    except AbsentError as error:
        return server.complain(name, str(error), server.NOT_FOUND)
    except BackupError as error:
        return server.complain(name, str(error))


def _create(arguments: argparse.Namespace) -> int:
    from topics_backup import creation, shipping
    from topics_backup.errors import BackupError
    from topics_backup.target import open_target

    target = open_target(arguments.to)
    if arguments.data_dir is not None:
        if arguments.server is not None:
            raise server.UsageError("--server and --data-dir are mutually exclusive")
        data_dir = arguments.data_dir.absolute()
        made = create_offline(target, data_dir)
    else:
        with _checkpoint(arguments) as (path, created_ms):
            data_dir = path.parents[1]
            made = creation.create(target, path, created_ms, data_dir)
    tell_created(arguments, made)
    if any(each.log is not None for each in made.databases):
        try:
            for each in shipping.ship_all(target, data_dir):
                backup_log.tell_holes("create", each.holes)
        except (BackupError, OSError) as error:
            return server.complain("backup create", f"backup created, but its log could not be archived: {error}")
    return 0


def create_offline(target: "Target", data_dir: Path, source: str | None = None) -> "Manifest":
    """Back up a data directory that no server has open. `source` is what it was made from. Raises BackupError."""
    from topics_backup import creation
    from topics_service.storage.boot import boot_id

    with creation.offline(data_dir, boot_id()) as (path, created_ms):
        return creation.create(target, path, created_ms, data_dir, source)


def tell_created(arguments: argparse.Namespace, made: "Manifest") -> None:
    """Print a backup that was made."""
    facts = _facts(made)
    if arguments.json:
        output.line(facts)
    else:
        what = output.listed(topic=facts["topics"], record=facts["records"])
        print(f"{made.id}: {what}, {output.size(made.bytes)}, of which {output.size(made.new_bytes)} were copied")


@contextmanager
def _checkpoint(arguments: argparse.Namespace) -> Iterator[tuple[Path, int]]:
    """Hold a checkpoint of the running server, which must be on this machine. Yields its path and time."""
    from topics_client.errors import TopicsError
    from topics_proto.v1.admin_service_pb2 import CreateCheckpointRequest, ReleaseCheckpointRequest

    with server.connected(arguments) as connection:
        request = CreateCheckpointRequest(ttl_ms=_HOLD_MS)
        timeout = max(arguments.timeout, _CHECKPOINT_SECONDS)
        held = connection.unary(connection.admin.CreateCheckpoint, request, timeout=timeout)
        path = Path(held.path)
        try:
            try:
                next(path.iterdir())
            except OSError as error:
                raise ValueError(
                    f"can't read the server's checkpoint {path} ({error.strerror or error}): run this on "
                    "the server's machine, as its user"
                ) from error
            yield path, held.created_ms
        finally:
            try:
                done = ReleaseCheckpointRequest(checkpoint_id=held.checkpoint_id)
                connection.unary(connection.admin.ReleaseCheckpoint, done)
            except TopicsError as error:
                server.complain("backup create", f"could not release checkpoint {held.checkpoint_id}: {error}")


def _list(arguments: argparse.Namespace) -> int:
    from topics_backup import moments, repository
    from topics_backup.target import open_target

    found: list[dict[str, Any]] = []
    target = open_target(arguments.source)
    for backup in repository.listed(target):
        if backup.manifest is None:
            found.append({"id": backup.id, "error": backup.error})
        else:
            found.append(_facts(backup.manifest))
    columns: dict[str, Any] = {
        "id": None,
        "created_ms": output.age,
        "topics": None,
        "records": None,
        "bytes": output.size,
        "new_bytes": output.size,
        "error": lambda error: error or "",
    }
    headings = ("id", "age", "topics", "records", "size", "new", "")
    if not output.rows(arguments, found, columns, headings) and not arguments.json:
        output.note(f"no backups in {arguments.source}")
    for each in moments.ranges(target):
        if arguments.json:
            output.line(each._asdict())
        else:
            print(f"restorable from {shown(each.from_ms)} to {shown(each.until_ms)} ({output.size(each.bytes)} of log)")
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    from topics_backup import pointintime, restoring
    from topics_backup.target import open_target

    target = open_target(arguments.source)
    found = restoring.verify(target, arguments.id, deep=arguments.deep, scratch=arguments.scratch)
    if arguments.id is None:
        found += pointintime.verify(target, deep=arguments.deep, scratch=arguments.scratch)
    for each in found:
        if arguments.json:
            facts = {"id": each.id, "intact": not each.damage, "bytes": each.bytes}
            facts |= {"records": each.records} if each.records is not None else {}
            output.line(facts | ({"error": each.damage} if each.damage else {}))
        elif each.damage:
            print(output.clean(each.damage))
        else:
            read = "" if each.records is None else f", {output.counted(each.records, 'record')} read"
            print(f"{each.id}: intact{read}")
    bad = sum(1 for each in found if each.damage)
    if not bad:
        return 0
    return server.complain(
        "backup verify",
        f"{bad} of {output.counted(len(found), 'backup')} damaged: remove the files named above from the "
        "target, so that the next backup does not rely on them, and create a new one",
    )


def _restore(arguments: argparse.Namespace) -> int:
    if backup_log.is_point(arguments):
        return backup_log.restore_point(arguments)
    from topics_backup import restoring
    from topics_backup.target import open_target

    made = restoring.restore(
        open_target(arguments.source),
        arguments.to,
        arguments.id,
        fallback=arguments.fallback,
        jump=arguments.jump,
        report=lambda text: print(f"topics backup restore: {output.clean(text)}", file=sys.stderr),
    )
    if arguments.json:
        output.line(_facts(made) | {"data_dir": str(arguments.to)})
    else:
        serving = backup_log.serving(arguments.to, with_shards=len(made.databases) > 1)
        print(f"{made.id}: restored to {arguments.to}; serve it with: {serving}")
    return 0


def _prune(arguments: argparse.Namespace) -> int:
    from topics_backup import pruning
    from topics_backup.target import open_target

    if arguments.keep is None and arguments.keep_days is None:
        raise server.UsageError("give --keep, --keep-days or both")
    done = pruning.prune(
        open_target(arguments.source),
        keep=arguments.keep,
        keep_days=arguments.keep_days,
        grace=arguments.grace / 1000,
    )
    if arguments.json:
        output.line({"backups": done.backups, "files": done.files, "bytes": done.bytes, "waiting": done.waiting})
    else:
        later = f"; {done.waiting} more after the grace period" if done.waiting else ""
        removed = f"{output.counted(len(done.backups), 'backup')} and {output.counted(done.files, 'file')}"
        print(f"removed {removed} ({output.size(done.bytes)}){later}")
    return 0


def _release(arguments: argparse.Namespace) -> int:
    from topics_proto.v1.admin_service_pb2 import ReleaseCheckpointRequest

    with server.connected(arguments) as connection:
        request = ReleaseCheckpointRequest(checkpoint_id=arguments.id)
        reply = connection.unary(connection.admin.ReleaseCheckpoint, request)
    if arguments.json:
        output.line({"id": arguments.id, "released": reply.released})
    elif reply.released:
        print(f"{arguments.id}: released")
    if reply.released:
        return 0
    return server.complain("backup release", f"the server has no checkpoint {arguments.id}", server.NOT_FOUND)


def _facts(backup: "Manifest") -> dict[str, Any]:
    return {
        "id": backup.id,
        "created_ms": backup.created_ms,
        "topics": len({topic.topic for each in backup.databases for topic in each.topics}),
        "records": sum(part.count for each in backup.databases for topic in each.topics for part in topic.partitions),
        "bytes": backup.bytes,
        "new_bytes": backup.new_bytes,
        "server_version": backup.server_version,
        "source": backup.source,
    }
