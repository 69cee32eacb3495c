"""Resuming: a killed owner that starts again owns the shard with all that it wrote, if no other node has fenced it."""

import asyncio
import logging
from collections import deque
from collections.abc import Iterator
from typing import Final

from topics_cluster import objects
from topics_cluster.bucket import Bucket, BucketError
from topics_cluster.follower import Follower, Newest, no_checkpoint
from topics_cluster.local_log import unshipped
from topics_cluster.log import MAX_OBJECT_BYTES, Appender
from topics_cluster.objects import Batch, LogObject
from topics_cluster.store import ShardStore
from topics_cluster.takeover import Ownership, take_over

log = logging.getLogger("topics.cluster")

_RETRY_SECONDS: Final = 0.05


async def resume(
    bucket: Bucket,
    store: ShardStore,
    shard: int,
    nonce: bytes,
    *,
    newest: Newest = no_checkpoint,
    least_epoch: int = 0,
    last: LogObject | None = None,
) -> Ownership:
    """Take the shard over; a store that is ahead of the log first puts what the log lacks into it.

    Its write-ahead log has those batches. They become the first objects of the new epoch, with the tickets that they
    had. Whatever ends this, a later call continues it: the fence is known by its nonce, and what has arrived is read.

    Raises LostTailError, with nothing changed, OutOfOrderError when another node has fenced the log, and those of
    `take_over`.
    """
    if not store.is_ahead:
        return await take_over(bucket, store, shard, nonce, newest=newest, least_epoch=least_epoch, last=last)
    await asyncio.to_thread(deque[Batch], unshipped(store), 0)
    nonce = await asyncio.to_thread(store.will_fence, nonce)
    found = await take_over(
        bucket, store, shard, nonce, newest=newest, least_epoch=least_epoch, last=last, resumes=True
    )
    await asyncio.to_thread(store.sync)  # not even after a power cut is its epoch begun twice
    await _ship(bucket, store, found, newest)
    log.info("shard %d has %d batches that only this node had", shard, store.ticket - found.position.ticket)
    return found._replace(position=store.position)


async def _ship(bucket: Bucket, store: ShardStore, found: Ownership, newest: Newest) -> None:
    """Make objects of the batches, one after the other, and read each as any other of the log.

    Waits while the bucket is away. Raises LostTailError, and those of `Follower.catch_up`.
    """
    follower = Follower(bucket, store, found.shard, newest, found.nonce)
    appender = Appender(found.shard, found.epoch, found.position.number, found.nonce, window=1, version=found.version)
    left = unshipped(store)
    put = None
    while store.is_ahead:
        if put is None:
            await asyncio.to_thread(_fill, appender, left)
            put = appender.begin(0)
            assert put is not None, "the batches end with the store's ticket"
        try:
            await bucket.create(put.name, put.parts)
            await follower.catch_up()
        except BucketError as error:
            log.warning("can't put the rest of shard %d into the store, trying again: %s", found.shard, error)
        if store.position.number > put.number:
            appender.created(put.number, 0)
            put = None
        else:
            await asyncio.sleep(_RETRY_SECONDS)


def _fill(appender: Appender, batches: Iterator[Batch]) -> None:
    """Take as many batches as an object has."""
    while appender.pending_bytes < MAX_OBJECT_BYTES:
        batch = next(batches, None)
        if batch is None:
            return
        parts = objects.batch_parts(*batch)
        appender.add(batch.ticket, parts, sum(map(len, parts)))
