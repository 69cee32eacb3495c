"""The first checkpoints of a cluster: those of a data directory of a server, for each shard one."""

import asyncio
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from topics_backup.creation import offline
from topics_backup.errors import BackupError
from topics_client.units import counted
from topics_cluster import identity, objects
from topics_cluster.bucket import Bucket
from topics_cluster.checkpoint import Checkpoint, CheckpointError, Maker, entries, folder_of, load, name_of
from topics_cluster.log import START
from topics_cluster.objects import DamagedObjectError
from topics_cluster.store import CLUSTER_KEY, POSITION_KEY
from topics_service.storage import shardfiles
from topics_service.storage.boot import boot_id
from topics_service.storage.holding import Hold, in_use
from topics_service.storage.rocks import RocksStore
from topics_service.storage.store import Family

BEGUN: Final = "init.json"
"""The object that says which directory a cluster is being made of."""
_NODE: Final = "init"


class Begun(Struct, frozen=True, kw_only=True):
    """The directory that a cluster is being made of. Only one process can have its lock."""

    host: str
    directory: str
    inode: int
    shards: int
    began_ms: int

    def is_of(self, other: "Begun") -> bool:
        """Return whether both are of the same directory."""
        mine, its = (self.host, self.directory, self.inode), (other.host, other.directory, other.inode)
        return mine == its


async def make(bucket: Bucket, shards: int, source: Path | None = None, split_of: Path | None = None) -> int | None:
    """Make a cluster, and return the bytes that it begins with; None if there is one already.

    It begins with the data directory `source`, which has as many shards, or none where the cluster has one. No server
    has it open, and it stays as it is; that of a cluster will do as well: the new logs begin where it ends. Killed
    before its end, it is run again: what the former run has left is replaced. `split_of` is the directory that
    `source` is a copy of for this run.

    Raises CheckpointError if a shard has a log or checkpoints of another cluster, BackupError if the directory can't be
    used, BucketError, StoreError and OSError.
    """
    if await bucket.get(identity.NAME) is not None:
        return None
    if source is None:
        await _check_not_begun(bucket)
        for shard in range(shards):
            await check_empty(bucket, shard)
        return 0 if await identity.create(bucket, shards) else None
    with ExitStack() as stack:
        copies = await asyncio.to_thread(stack.enter_context, _copies(source, shards))
        if split_of is not None:
            stack.enter_context(_held(split_of))
        if not await _begin(bucket, split_of or source, shards):
            return None
        for shard in range(shards):
            await check_empty(bucket, shard)
        made = [await _publish(bucket, shard, copy) for shard, copy in enumerate(copies)]
        for each in made:
            if await load(bucket, each.shard, each.number) != each:
                raise CheckpointError(f"{name_of(each.shard, each.number)} was changed meanwhile: run it again")
        if not await identity.create(bucket, shards):  # last: a node that starts before finds no cluster yet
            return None
        await bucket.delete([BEGUN])
    return sum(each.nbytes for each in made)


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


async def _begin(bucket: Bucket, source: Path, shards: int) -> bool:
    """Say that a cluster is being made of a directory, whose lock this process has, and remove what a killed run of
    the same has left. Return False if there is a cluster by now. Raises as `make`."""
    mine = await asyncio.to_thread(_of, source, shards)
    left = await _begun(bucket)
    if left is None:
        for shard in range(shards):
            await check_empty(bucket, shard)
    else:
        if not left.is_of(mine):
            raise CheckpointError(_told(left))
        if await bucket.get(identity.NAME) is not None:
            return False
        for shard in range(left.shards):
            await _remove_first(bucket, shard)
        await bucket.delete([BEGUN])
    if not await bucket.create(BEGUN, [msgspec.json.encode(mine) + b"\n"]):
        raise CheckpointError(f"{BEGUN} was made meanwhile: run it again")
    return True


def _of(source: Path, shards: int) -> Begun:
    return Begun(
        host=socket.gethostname(),
        directory=str(source.resolve()),
        inode=source.stat().st_ino,
        shards=shards,
        began_ms=time.time_ns() // 1_000_000,
    )


async def _check_not_begun(bucket: Bucket) -> None:
    if (left := await _begun(bucket)) is not None:
        raise CheckpointError(_told(left))


async def _begun(bucket: Bucket) -> Begun | None:
    data = await bucket.get(BEGUN)
    return None if data is None else decode_begun(data)


def decode_begun(data: bytes) -> Begun:
    """Decode the object `BEGUN`. Raises CheckpointError."""
    try:
        return msgspec.json.decode(data, type=Begun)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{BEGUN} is damaged: {error}. Take another name or prefix") from None


def _told(left: Begun) -> str:
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(left.began_ms / 1000))
    return (
        f"a cluster is being made here since {when} of {left.directory} on {left.host}: if that was killed, run it "
        "there again, or take another name or prefix"
    )


async def _remove_first(bucket: Bucket, shard: int) -> None:
    """Remove the first checkpoint of a shard that a killed run has made; its files may be used again."""
    for number, _ in await entries(bucket, shard):
        try:
            left = await load(bucket, shard, number)
        except DamagedObjectError:  # `check_empty` says that it is there
            continue
        if left is not None and left.node == _NODE and left.position == START:
            await bucket.delete([name_of(shard, number)])


async def _publish(bucket: Bucket, shard: int, copy: Path) -> Checkpoint:
    await asyncio.to_thread(_begin_at_the_start, copy)
    made = await Maker(bucket, shard, copy.parent, _NODE).publish(copy)
    if made is None:
        raise CheckpointError(f"shard {shard} is not empty: another node has just made its first checkpoint")
    return made


@contextmanager
def _copies(source: Path, shards: int) -> Iterator[Sequence[Path]]:
    """Copies of the databases of all shards of a data directory, whose lock is held meanwhile. Raises BackupError."""
    count = shardfiles.count_of(source)
    if shards != (count or 1):
        has = "no shards" if count is None else counted(count, "shard")
        raise BackupError(f"{source} has {has}, and the cluster is to have {shards}")
    with offline(source, boot_id()) as (copy, _), _held(source):
        yield [copy] if count is None else shardfiles.directories(copy)


@contextmanager
def _held(directory: Path) -> Iterator[None]:
    """Have the lock of a data directory. Raises BackupError."""
    try:
        hold = Hold(directory)
    except BlockingIOError:
        raise BackupError(f"{directory}: {in_use(directory)}") from None
    except OSError as error:
        raise BackupError(f"{directory}: {error.strerror or error}") from None
    try:
        yield
    finally:
        hold.release()


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
