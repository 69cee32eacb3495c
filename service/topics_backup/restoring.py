"""Restoring a backup into a data directory, and verifying that it can be restored."""

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from msgspec import UNSET

from topics_backup import inventory, repository
from topics_backup.errors import AbsentError, BackupError, DamagedError
from topics_backup.manifest import Manifest
from topics_backup.target import Target
from topics_service.engine.placement import SINGLE, Place
from topics_service.storage import shardfiles
from topics_service.storage.checkpoint import FORMAT as STORE_FORMAT
from topics_service.storage.checkpoint import READABLE_FORMATS
from topics_service.storage.durable import sync
from topics_service.storage.private import make_private


class Verified(NamedTuple):
    """The result of a verification: bytes read, records if it was deep, and the damage ("" if none)."""

    id: str
    bytes: int
    records: int | None
    damage: str


def restore(
    target: Target,
    directory: Path,
    backup_id: str | None = None,
    *,
    fallback: bool = False,
    jump: int = 0,
    report: Callable[[str], None] = lambda _text: None,
) -> Manifest:
    """Make `directory` a data directory from a backup (None: the newest), durable on return; return its manifest.

    Each file's hash is checked while it is written. The directory appears complete or not at all. `jump` raises the
    next seq of every partition by that much, with an explicit gap. With `fallback` a damaged backup is replaced by the
    newest intact one before it, and `report` is called with the reason. Raises DamagedError, which names such a backup,
    and BackupError; AbsentError if there is no backup.
    """
    check_free(directory)
    there = repository.ids(target)
    if backup_id is None:
        if not there:
            raise AbsentError(f"there is no backup in {target}")
        backup_id = there[-1]
    while True:
        try:
            return _restore(target, directory, repository.load(target, backup_id), jump)
        except DamagedError as error:
            older = repository.newest_intact(target, (each for each in there if each < error.backup_id))
            if older is None:
                raise BackupError(f"{error}; none of the backups before it is intact") from error
            if not fallback:
                raise BackupError(
                    f"{error}; the newest intact one before it is {older.id}: name that, or give --fallback"
                ) from error
            report(f"{error}; falling back to {older.id}")
            backup_id = older.id


def verify(
    target: Target, backup_id: str | None = None, *, deep: bool = False, scratch: Path | None = None
) -> list[Verified]:
    """Verify the files of a backup (None: of all), newest first.

    With `deep` each is restored to a directory below `scratch` as well, opened, and read to the last record. Raises
    AbsentError if there is no such backup, and BackupError for faults of the target or the scratch directory.
    """
    chosen = list(reversed(repository.ids(target))) if backup_id is None else [backup_id]
    if not chosen:
        raise AbsentError(f"there is no backup in {target}")
    passed: set[str] = set()
    found = []
    for each in chosen:
        size, records = 0, None
        try:
            manifest = repository.load(target, each)
            size = repository.check(target, manifest, passed)
            if deep:
                records = _read_deep(target, manifest, scratch)
        except AbsentError:
            if backup_id is not None:
                raise
            continue  # pruned since
        except DamagedError as error:
            found.append(Verified(each, size, records, str(error)))
        else:
            found.append(Verified(each, size, records, ""))
    return found


def _read_deep(target: Target, manifest: Manifest, scratch: Path | None) -> int:
    with tempfile.TemporaryDirectory(prefix="topics-verify-", dir=scratch) as own:
        directory = Path(own) / "data"
        _restore(target, directory, manifest)
        try:
            return sum(
                inventory.read_everything(path, each.topics, place)
                for each, path, place in _databases(manifest, directory)
            )
        except BackupError as error:
            raise DamagedError(manifest.id, str(error)) from error


def _restore(target: Target, directory: Path, manifest: Manifest, jump: int = 0) -> Manifest:
    return make(target, directory, manifest, lambda _begun: None, jump)


def _databases(manifest: Manifest, directory: Path, place: Place = SINGLE) -> Iterator[tuple[Manifest, Path, Place]]:
    """The manifest of each database, its directory, and its place: `place` where there are no shards."""
    if manifest.shards is UNSET:
        yield manifest, directory, place
        return
    every = manifest.databases
    for shard, each in enumerate(every):
        yield each, shardfiles.directory(directory, shard), Place(shard, len(every))


def make(
    target: Target,
    directory: Path,
    manifest: Manifest,
    go_on: Callable[[Path], int | None],
    jump: int = 0,
    *,
    place: Place = SINGLE,
) -> Manifest:
    """Make `directory` of a backup. `go_on` is called with the files of each database in place, before they are opened;
    it may put the log there that follows, and says with which row that ends. `place` is that of a shard which the
    manifest is of. Raises as `restore` does, and the errors of `go_on`."""
    if manifest.store_format not in READABLE_FORMATS:
        raise BackupError(
            f"the backup {manifest.id} has a database of the format {manifest.store_format!r}, this version reads "
            f"{STORE_FORMAT!r}: use the version of topics that made it ({manifest.server_version}) or a later one"
        )
    with replacing(directory, manifest.id) as begun:
        if manifest.shards is not UNSET:
            shardfiles.create(begun, len(manifest.shards))
        for each, path, own in _databases(manifest, begun, place):
            make_private(path)
            _fill(target, path, each, go_on, jump, own)
    return manifest


def _fill(
    target: Target, begun: Path, manifest: Manifest, go_on: Callable[[Path], int | None], jump: int, place: Place
) -> None:
    for file in manifest.files:
        with (begun / file.name).open("xb") as out:
            for piece in repository.content(target, manifest, file):
                out.write(piece)
    next_seq = go_on(begun)
    try:
        inventory.settle(begun, jump, next_seq, place=place)
    except BackupError as error:
        if os.strerror(errno.ENOSPC) in str(error):  # RocksDB's errors are texts
            raise
        raise DamagedError(manifest.id, str(error)) from error


@contextmanager
def replacing(directory: Path, name: str) -> Iterator[Path]:
    """An empty directory that takes the place of `directory` at the end of the block: durable and complete, or not at
    all. `name` is that of what is restored. Raises BackupError, also for OSError in the block."""
    directory = directory.absolute()
    begun = directory.with_name(f".{directory.name}.{name}.part")
    try:
        shutil.rmtree(begun, ignore_errors=True)  # of one that was killed
        make_private(begun)
        yield begun
        for path in begun.rglob("*"):
            sync(path)
        sync(begun)
        check_free(directory)
        if directory.is_dir():  # its creator has set its permissions
            begun.chmod(directory.stat().st_mode & 0o7777)
        begun.rename(directory)
        sync(directory.parent)
    except OSError as error:
        raise BackupError(f"{error.filename or directory}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(begun, ignore_errors=True)


def check_free(directory: Path) -> None:
    """Raise BackupError unless the directory is empty or absent."""
    if directory.is_symlink() or (directory.exists() and not directory.is_dir()):
        raise BackupError(f"{directory} is not a directory: name one that does not exist yet")
    if directory.is_dir() and any(directory.iterdir()):
        raise BackupError(f"{directory} is not empty: name a directory that does not exist yet")
