"""Restoring a checkpoint into a local directory, with each file's size and hash checked."""

import asyncio
import logging
import shutil
from pathlib import Path

from topics_backup.creation import hashed
from topics_backup.manifest import File
from topics_cluster import checkpoint
from topics_cluster.bucket import Bucket
from topics_cluster.checkpoint import PARALLEL, Checkpoint, CheckpointError, entries, file_name, files_of, load
from topics_cluster.objects import DamagedObjectError
from topics_cluster.parallel import run_all
from topics_service.storage import durable
from topics_service.storage.checkpoint import READABLE_FORMATS
from topics_service.storage.private import make_private

log = logging.getLogger("topics.cluster")

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
    """Make `directory` of a checkpoint, durable on return. It appears complete or not at all.

    Whatever was there before is removed. Raises DamagedObjectError, which names a missing or damaged object,
    CheckpointError for a format of later versions or a disk without room, BucketError and OSError.
    """
    if found.store_format not in READABLE_FORMATS:
        raise CheckpointError(
            f"checkpoint {found.number} has a database of the format {found.store_format!r}: use the version of topics "
            f"that made it ({found.server_version}) or a later one"
        )
    begun = directory.with_name(f".{directory.name}.part")
    await _check_sizes(bucket, found)
    try:
        await asyncio.to_thread(_begin, found, directory, begun)
        await run_all((_fetch(bucket, found, file, begun) for file in found.files), PARALLEL)
        await asyncio.to_thread(_publish, begun, directory)
    finally:
        await asyncio.to_thread(shutil.rmtree, begun, ignore_errors=True)


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
    for former in (begun, directory):
        if former.exists():
            shutil.rmtree(former)
    make_private(begun)
    free = shutil.disk_usage(begun).free
    wanted = found.nbytes + _ROOM_BYTES
    if free < wanted:
        raise CheckpointError(f"{begun.parent} has {free} bytes left, and checkpoint {found.number} takes {wanted}")


def _publish(begun: Path, directory: Path) -> None:
    durable.sync(begun)
    begun.rename(directory)
    durable.sync(directory.parent)


async def _fetch(bucket: Bucket, found: Checkpoint, file: File, directory: Path) -> None:
    name, path = file_name(found.shard, file), directory / file.name
    if not await bucket.get_file(name, path):
        raise DamagedObjectError(name, f"it is missing, and {file.name} in checkpoint {found.number}")
    if await asyncio.to_thread(hashed, path) != file:
        raise DamagedObjectError(name, "its hash does not match its name")
    await asyncio.to_thread(durable.sync, path)
