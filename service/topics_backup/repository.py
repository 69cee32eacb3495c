"""The backups of a target: listing and verifying them."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from topics_backup import manifest
from topics_backup.errors import AbsentError, BackupError, DamagedError
from topics_backup.manifest import BACKUPS, FILES, File, Manifest, is_id
from topics_backup.target import Target

_MANIFEST_BYTES: Final = 512 << 20


class Listed(NamedTuple):
    """A backup by its manifest; `error` says why that can't be read."""

    id: str
    manifest: Manifest | None
    error: str


def ids(target: Target) -> list[str]:
    """Return the ids of all backups, oldest first."""
    return sorted(found for entry in target.list(BACKUPS) if (found := manifest.id_of(entry.name)) is not None)


def listed(target: Target) -> Iterator[Listed]:
    """Every backup with its manifest, oldest first."""
    for backup_id in ids(target):
        try:
            yield Listed(backup_id, load(target, backup_id), "")
        except AbsentError:  # pruned since
            continue
        except BackupError as error:
            yield Listed(backup_id, None, str(error))


def load(target: Target, backup_id: str) -> Manifest:
    """The manifest of a backup. Raises AbsentError, and DamagedError where it can't be read."""
    if not is_id(backup_id):
        raise AbsentError(f"{backup_id!r} is not a backup id: see `topics backup list`")
    pieces, size = [], 0
    try:
        for piece in target.read(f"{BACKUPS}{backup_id}.json"):
            pieces.append(piece)
            size += len(piece)
            if size > _MANIFEST_BYTES:
                raise DamagedError(backup_id, f"its manifest is larger than {_MANIFEST_BYTES} bytes")
    except AbsentError:
        raise AbsentError(f"there is no backup {backup_id} in {target}: see `topics backup list`") from None
    return manifest.decode(backup_id, b"".join(pieces))


def sizes(target: Target) -> Mapping[str, int]:
    """The files of databases that the target holds: name to size."""
    return {entry.name: entry.size for entry in target.list(FILES)}


def check(target: Target, backup: Manifest, passed: set[str] | None = None) -> int:
    """Read every file of a backup and compare its hash; return the number of bytes read.

    Names in `passed` were found right before and are not read again; those that are right are added. Raises
    DamagedError for the first that is not.
    """
    passed = set() if passed is None else passed
    total = 0
    for database in backup.databases:
        for file in database.files:
            if file.key not in passed:
                for piece in content(target, backup, file):
                    total += len(piece)
                passed.add(file.key)
    return total


def content(target: Target, backup: Manifest, file: File) -> Iterator[bytes]:
    """A file's content in pieces. Raises DamagedError, after the last piece, if the content has changed."""
    digest, size = hashlib.sha256(), 0
    try:
        for piece in target.read(file.key):
            digest.update(piece)
            size += len(piece)
            if size > file.size:  # by however much: it is not to fill the disk
                raise DamagedError(backup.id, f"{file.name} ({file.key}) is longer than its {file.size} bytes")
            yield piece
    except AbsentError:
        raise DamagedError(backup.id, f"{file.name} ({file.key}) is missing") from None
    if size != file.size:
        raise DamagedError(backup.id, f"{file.name} ({file.key}) has {size} bytes instead of {file.size}")
    if digest.hexdigest() != file.sha256:
        raise DamagedError(backup.id, f"{file.name} ({file.key}) has changed: its hash does not match")


def newest_intact(target: Target, candidates: Iterable[str]) -> Manifest | None:
    """Return the newest of these backups whose files are all intact, reading as much as that takes."""
    passed: set[str] = set()
    for backup_id in sorted(candidates, reverse=True):
        try:
            found = load(target, backup_id)
            check(target, found, passed)
        except (AbsentError, DamagedError):
            continue
        return found
    return None
