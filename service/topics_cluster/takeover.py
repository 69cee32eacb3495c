"""Taking over a shard, and handing it over: who puts the fence of the next epoch owns it."""

import asyncio
import logging
import os
from typing import Final, NamedTuple

from topics_cluster import formats, objects
from topics_cluster.bucket import Bucket, BucketError
from topics_cluster.follower import BehindCheckpointError, Follower, Newest, no_checkpoint
from topics_cluster.log import MAX_WINDOW, Position, Tail
from topics_cluster.objects import NONCE_BYTES, Kind, LogObject
from topics_cluster.store import ShardStore

log = logging.getLogger("topics.cluster")

_RETRY_SECONDS: Final = 0.05


class TakeoverError(Exception):
    """The shard was not taken over. Nothing was changed, but for a fence that may be there."""


class GivenWayError(TakeoverError):
    """Another node has fenced the log at the same time: it may own the shard."""


class StoreAheadError(TakeoverError):
    """The store has rows that are not in the log."""


class BrokenLogError(TakeoverError):
    """The log lacks objects that were there: an operator has to look."""


class Ownership(NamedTuple):
    """An epoch of a shard, in which no other node acknowledges anything."""

    shard: int
    position: Position
    """That behind the fence: the owner's first number, and the ticket of the last batch before."""
    nonce: bytes
    version: int
    """That of the objects which the owner writes."""

    @property
    def epoch(self) -> int:
        """The number of the epoch."""
        return self.position.epoch


def new_nonce() -> bytes:
    """16 random bytes, for one takeover."""
    return os.urandom(NONCE_BYTES)


async def take_over(
    bucket: Bucket,
    store: ShardStore,
    shard: int,
    nonce: bytes,
    *,
    newest: Newest = no_checkpoint,
    least_epoch: int = 0,
    last: LogObject | None = None,
    resumes: bool = False,
) -> Ownership:
    """Read the log to its end, fence it there and own the shard. Cancelling may leave a fence, which does no harm.

    A fence with `nonce` that a former owner has put for this node counts as its own. `least_epoch` is the epoch that
    the shard is known to have had; `last` the object that the store has read last, which may be that fence. With
    `resumes` the store may be ahead of the log, see `resume`.

    Waits while the bucket is away. Raises BehindCheckpointError (restore the store, and try again), TakeoverError,
    FormatError, StoreError, and those of `Tail.read`.
    """
    follower = Follower(bucket, store, shard, newest, nonce)
    follower.last = last
    attempted = is_ahead = False  # the latter: of a fence that an owner will meet who is faster at the log's end
    while True:
        try:
            began = store.position.epoch
            await follower.catch_up()
            tail = follower.tail
            if follower.last is not None and is_fence_of(follower.last, nonce):
                await _check_checkpoint(newest, tail)
                return Ownership(shard, tail.position, nonce, await formats.for_owner(bucket))
            if attempted and tail.position.epoch > began:
                raise GivenWayError(f"another node has fenced shard {shard}, as epoch {tail.position.epoch}")
            if tail.is_ahead and not resumes:
                raise StoreAheadError(
                    f"shard {shard}: the store ends at ticket {store.ticket}, the log ends at {tail.position.ticket}"
                )
            await _check_log(bucket, tail, newest, least_epoch)
            attempted = True
            put = tail.fence(nonce)
            if not await bucket.create(put.name, put.parts) and not is_ahead:
                put = tail.fence(nonce, ahead=MAX_WINDOW - 1)
                is_ahead = await bucket.create(put.name, put.parts)
        except BucketError as error:
            log.warning("can't take over shard %d, trying again: %s", shard, error)
            await asyncio.sleep(_RETRY_SECONDS)


def is_fence_of(found: LogObject, nonce: bytes) -> bool:
    """Return whether an object is the fence of a takeover."""
    return found.header.kind is Kind.FENCE and found.header.nonce == nonce


async def hand_over(bucket: Bucket, store: ShardStore, shard: int, nonce: bytes) -> bool:
    """Put the fence of a successor that waits with `nonce` in `take_over`. Return whether it is there.

    For a former owner that has closed its engine and whose store is disowned with everything acknowledged. Raises
    BucketError: the fence may be there, or get there later.
    """
    assert store.uploader is None, "the owner has to end its epoch first"
    if store.is_ahead:
        return False
    put = Tail(shard, store.position).fence(nonce)
    return await bucket.create(put.name, put.parts) or await bucket.get(put.name) == b"".join(put.parts)


async def _check_checkpoint(newest: Newest, tail: Tail) -> None:
    """Look at the checkpoints once the fence is there: what was deleted before it is in one of them."""
    found = await newest()
    if found is not None and found.ticket > tail.position.ticket:
        raise BehindCheckpointError(
            f"shard {tail.shard}: the newest checkpoint has ticket {found.ticket}, read was {tail.position.ticket}"
        )


async def _check_log(bucket: Bucket, tail: Tail, newest: Newest, least_epoch: int) -> None:
    """Check that the end that was read is no hole, and that the log has not become shorter."""
    epoch, number, _ = tail.position
    after = objects.name(tail.shard, max(0, number - MAX_WINDOW - 1))
    there = [objects.number_of(entry.name) for entry in await bucket.list(objects.prefix(tail.shard), after)]
    below, above = [each for each in there if each < number], [each for each in there if each > number]
    if above and tail.lacks(above[-1]) and await bucket.get(objects.name(tail.shard, number)) is None:
        await _check_checkpoint(newest, tail)
        raise BrokenLogError(
            f"the object {objects.name(tail.shard, number)} is missing: {objects.name(tail.shard, above[-1])} is there"
        )
    if epoch < least_epoch:
        await _check_checkpoint(newest, tail)
        raise BrokenLogError(f"the log of shard {tail.shard} ends in epoch {epoch}, there was an epoch {least_epoch}")
    if number - 1 not in below and epoch and not await _is_behind_fence(bucket, tail):
        found = await newest()
        if found is None or found.ticket < tail.position.ticket:
            raise BrokenLogError(
                f"the log of shard {tail.shard} has become shorter: there is nothing at {number - 1}, which was read"
            )
        await _check_checkpoint(newest, tail)


async def _is_behind_fence(bucket: Bucket, tail: Tail) -> bool:
    """Return whether the position is the `resume` of a fence that is there."""
    number = tail.next - MAX_WINDOW
    data = await bucket.get(objects.name(tail.shard, number)) if number > 0 else None
    if data is None:
        return False
    header = objects.decode(tail.shard, number, data).header
    return header.kind is Kind.FENCE and header.resume == tail.next
