"""Deciding whether a local directory may be used again: its rows are a part of the log, or continue it."""

from topics_cluster.bucket import Bucket
from topics_cluster.follower import BehindCheckpointError, Follower, Newest
from topics_cluster.log import OutOfOrderError
from topics_cluster.store import ShardStore


async def is_of_log(bucket: Bucket, store: ShardStore, shard: int, newest: Newest) -> bool:
    """Return whether the store can follow the log.

    The store of a follower can. A former owner may have rows beyond the place that it knew of: the log is read, and
    applied, to see whether it has them. Where it ends before, they may still come (`resume`). Where it has a fence of
    another node in their place, they never will. Raises BucketError, StoreError, DamagedObjectError and
    LaterFormatError.
    """
    if not store.is_ahead:
        return True
    try:
        follower = Follower(bucket, store, shard, newest, store.fence)
        await follower.catch_up()
        await follower.check()
    except (OutOfOrderError, BehindCheckpointError):
        return False
    return True
