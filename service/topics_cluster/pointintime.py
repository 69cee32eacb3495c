"""Making a data directory of a moment of a shard: a checkpoint, and the log behind it up to there."""

from contextlib import aclosing
from pathlib import Path
from typing import NamedTuple

from topics_backup import inventory, restoring
from topics_backup.errors import BackupError, LogError
from topics_backup.manifest import Topic
from topics_backup.moments import explain
from topics_cluster.checkpoint import Checkpoint
from topics_cluster.follower import apply
from topics_cluster.moments import Archive, Cut
from topics_cluster.objects import DamagedObjectError, LogObject
from topics_cluster.restore import restore as restore_checkpoint
from topics_cluster.store import ShardStore
from topics_service.engine.placement import SINGLE, Place


class Restored(NamedTuple):
    """A finished restore: its checkpoint (0: none was needed), the bytes of log behind that, and the time of the last
    batch."""

    checkpoint: int
    log_bytes: int
    written_ms: int
    topics: list[Topic]


async def restore(archive: Archive, directory: Path, cut: Cut, *, jump: int = 0, place: Place = SINGLE) -> Restored:
    """Make `directory` the data directory of a single server, or of a shard, at that moment, durable on return.

    It is what a node that takes over there has: a seq that the log does not have, and may have been acknowledged, is
    given to no other record. Every hash and checksum is checked. A damaged checkpoint is replaced by the one before.
    The directory appears complete or not at all. `jump` as in `restoring.restore`, `place` that of the shard. Raises
    BackupError, BucketError, StoreError, CheckpointError and LaterFormatError.
    """
    restoring.check_free(directory)
    why = "there is no checkpoint"
    async with aclosing(archive.bases()) as bases:
        async for base in bases:
            if base.applied > cut.ticket:
                continue
            try:
                log_bytes = await _make(archive, directory, base, cut, jump, place)
            except DamagedObjectError as error:
                why = str(error)
                archive.report(f"{why}; an older checkpoint takes its place")
            except LogError as error:
                raise explain(base.from_ms, error) from error
            else:
                number = base.number if base.files else 0
                return Restored(number, log_bytes, cut.written_ms, inventory.read(directory).topics)
    raise BackupError(f"no checkpoint leads to that moment any more: {why}")


async def _make(archive: Archive, directory: Path, base: Checkpoint, cut: Cut, jump: int, place: Place) -> int:
    with restoring.replacing(directory, f"checkpoint-{base.number}") as begun:
        if base.files:
            await restore_checkpoint(archive.bucket, base, begun)
        store = ShardStore(begun)
        try:
            log_bytes = await _apply(archive, store, base, cut)
            store.leave_log()
        finally:
            store.close()
        inventory.settle(begun, jump, is_whole=False, place=place)
        return log_bytes


async def _apply(archive: Archive, store: ShardStore, base: Checkpoint, cut: Cut) -> int:
    """Apply the log up to the moment, and return the bytes that were read."""
    nbytes = 0
    if base.applied < cut.ticket:
        async with aclosing(archive.behind(base)) as pieces:
            async for piece in pieces:
                nbytes += piece.nbytes
                batches = [batch for batch in piece.found.batches if batch.ticket <= cut.ticket]
                await apply(store, LogObject(piece.found.header, batches), piece.position, on_thread=False)
                if piece.position.ticket >= cut.ticket:
                    return nbytes
        raise BackupError(f"the log ends at batch {store.ticket}, and the moment is batch {cut.ticket}")
    return nbytes
