"""The first checkpoint of a cluster: that of a data directory of a single server."""

import asyncio
from contextlib import ExitStack
from pathlib import Path

from topics_backup.creation import offline
from topics_cluster import objects
from topics_cluster.bucket import Bucket
from topics_cluster.checkpoint import Checkpoint, CheckpointError, Maker, folder_of
from topics_cluster.log import START
from topics_cluster.store import CLUSTER_KEY, POSITION_KEY
from topics_service.storage.rocks import RocksStore
from topics_service.storage.store import Family


async def found(bucket: Bucket, shard: int, directory: Path, node: str, boot_id: str) -> Checkpoint:
    """Make checkpoint number 1 of a shard from a data directory that no server has open, which stays as it is.

    A directory of a cluster will do as well: the new log begins where it ends. Raises CheckpointError if the shard has
    a log or checkpoints, BackupError if the directory can't be used, BucketError, StoreError and OSError.
    """
    await check_empty(bucket, shard)
    with ExitStack() as stack:
        copy, _ = await asyncio.to_thread(stack.enter_context, offline(directory, boot_id))
        await asyncio.to_thread(_begin_at_the_start, copy)
        made = await Maker(bucket, shard, copy.parent, node).publish(copy)
    if made is None:
        raise CheckpointError(f"shard {shard} is not empty: another node has just made its first checkpoint")
    return made


async def check_empty(bucket: Bucket, shard: int) -> None:
    """Raise CheckpointError if the shard has a log or checkpoints, as of a cluster whose `cluster.json` was removed.
    Raises BucketError."""
    for prefix in (objects.prefix(shard), folder_of(shard)):
        there = await bucket.list(prefix)
        if there:
            raise CheckpointError(
                f"shard {shard} is not empty: there is {there[0].name}. Take another name or prefix, or remove what is "
                "left of a former cluster"
            )


def _begin_at_the_start(directory: Path) -> None:
    """Give the copy a position, which that of a single server does not have, or has of another log, and no cluster."""
    store = RocksStore(directory)
    try:
        batch = store.batch()
        batch.put(Family.META, POSITION_KEY, START.pack() + START.ticket.to_bytes(8, "big"))
        batch.delete(Family.META, CLUSTER_KEY)
        store.write(batch)
    finally:
        store.close()
