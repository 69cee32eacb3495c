"""Restoring a checkpoint into a local directory, with each file's size and hash checked."""

import asyncio
import logging
import shutil
from pathlib import Path
from typing import Final

from topics_backup.creation import hashed
from topics_backup.manifest import File
from topics_cluster import checkpoint
from topics_cluster.bucket import Bucket
from topics_cluster.checkpoint import PARALLEL, Checkpoint, CheckpointError, entries, file_name, files_of, load
from topics_cluster.objects import DamagedObjectError
from topics_cluster.parallel import run_all
from topics_service.storage import clean_shutdown, durable
from topics_service.storage.checkpoint import READABLE_FORMATS
from topics_service.storage.private import make_private

log = logging.getLogger("topics.cluster")

COPIES: Final = "shard-checkpoint"
"""The folder in a node's directory for the copies that checkpoints are made of."""

_BEGUN: Final = "restoring"
_FOLDERS: Final = frozenset({_BEGUN, COPIES, "checkpoints", "archive"})
_CURRENT = "CURRENT"
_ROOM_BYTES = 64 << 20  # beside the files, for the database that is opened there


async def restore_newest(bucket: Bucket, shard: int, directory: Path) -> Checkpoint | None:
    """Make `directory` of the newest checkpoint, and return that; None if the shard has none.

    Where an object of it is missing or damaged, it is the one before, which the log continues as well. Raises as
    `restore` does, for the newest one if there is none that is intact.
    """
    first: DamagedObjectError | None = None
    for number, _ in reversed((await entries(bucket, shard))[-2:]):
        try:
            found = await load(bucket, shard, number)
            if found is None:
                raise DamagedObjectError(checkpoint.name_of(shard, number), "it is missing")
            await restore(bucket, found, directory)
        except DamagedObjectError as error:
            log.error("checkpoint %d of shard %d can't be restored: %s", number, shard, error)
            first = first or error
        else:
            return found
    if first is not None:
        raise first
    return None


async def restore(bucket: Bucket, found: Checkpoint, directory: Path) -> None:
    """Make `directory` of a checkpoint, durable on return. Until it is complete it has no file CURRENT.

    A database that is in it is removed; it may be the root of a file system. Raises DamagedObjectError, which names a
    missing or damaged object, CheckpointError for a format of later versions or a disk without room, BucketError and
    OSError.
    """
    if found.store_format not in READABLE_FORMATS:
        raise CheckpointError(
            f"checkpoint {found.number} has a database of the format {found.store_format!r}: use the version of topics "
            f"that made it ({found.server_version}) or a later one"
        )
    begun = directory / _BEGUN
    await _check_sizes(bucket, found)
    try:
        await asyncio.to_thread(_begin, found, directory, begun)
        await run_all((_fetch(bucket, found, file, begun) for file in found.files), PARALLEL)
        await asyncio.to_thread(_publish, begun, directory)
    finally:
        await asyncio.to_thread(shutil.rmtree, begun, ignore_errors=True)


def clear(directory: Path) -> None:
    """Remove the database in a directory, and what else a node keeps there; other files stay. Raises OSError."""
    (directory / _CURRENT).unlink(missing_ok=True)  # first: what is left without it is no database
    durable.sync(directory)
    for path in directory.iterdir():
        if path.name in _FOLDERS and not path.is_symlink():
            shutil.rmtree(path)
        elif clean_shutdown.is_of_database(path.name):
            path.unlink()


async def _check_sizes(bucket: Bucket, found: Checkpoint) -> None:
    """Find objects that are missing or of another size before any of them is read."""
    folder = files_of(found.shard)
    sizes = {each.name: each.size for each in await bucket.list(folder)}
    for file in found.files:
        name = file_name(found.shard, file)
        size = sizes.get(name)
        if size is None:
            raise DamagedObjectError(name, f"it is missing, and {file.name} in checkpoint {found.number}")
        if size != file.size:
            raise DamagedObjectError(name, f"it has {size} bytes instead of {file.size}")


def _begin(found: Checkpoint, directory: Path, begun: Path) -> None:
    make_private(directory)
    clear(directory)
    make_private(begun)
    free = shutil.disk_usage(begun).free
    wanted = found.nbytes + _ROOM_BYTES
    if free < wanted:
        raise CheckpointError(f"{directory} has {free} bytes left, and checkpoint {found.number} takes {wanted}")


def _publish(begun: Path, directory: Path) -> None:
    current = begun / _CURRENT
    for path in begun.iterdir():
        if path != current:
            path.rename(directory / path.name)
    durable.sync(directory)
    current.rename(directory / _CURRENT)
    durable.sync(directory)
    durable.sync(directory.parent)


async def _fetch(bucket: Bucket, found: Checkpoint, file: File, directory: Path) -> None:
    name, path = file_name(found.shard, file), directory / file.name
    if not await bucket.get_file(name, path):
        raise DamagedObjectError(name, f"it is missing, and {file.name} in checkpoint {found.number}")
    if await asyncio.to_thread(hashed, path) != file:
        raise DamagedObjectError(name, "its hash does not match its name")
    await asyncio.to_thread(durable.sync, path)
