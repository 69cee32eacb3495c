"""Checkpoints at their time, and collection after each: what every node does for its shard."""

import asyncio
import logging
import secrets
from pathlib import Path
from typing import Final

from topics_cluster import objects
from topics_cluster.bucket import Bucket, BucketError
from topics_cluster.checkpoint import Checkpoint, CheckpointError, Maker, Schedule, entries
from topics_cluster.collect import collect
from topics_cluster.objects import DamagedObjectError
from topics_cluster.store import ShardStore
from topics_service.storage.store import StoreError

log = logging.getLogger("topics.cluster")

LEAST_BYTES: Final = 32 << 10
"""An object of the log counts as at least this many bytes: a node that begins here needs a request for each."""

_LOOK_SECONDS: Final = 60.0
_OWNER_PATIENCE: Final = 2
"""An owner waits for twice as much: a follower that makes the checkpoint spares it the work."""


class Housekeeper:
    """Makes checkpoints of one store when they are due. All nodes may do so; one of a number is enough."""

    def __init__(
        self,
        bucket: Bucket,
        shard: int,
        folder: Path,
        node: str,
        schedule: Schedule | None = None,
        log_seconds: float = 0.0,
    ) -> None:
        """`folder` as for a Maker, `log_seconds` the window of `collect`."""
        self._bucket = bucket
        self._shard = shard
        self._schedule = schedule or Schedule()
        self._log_seconds = log_seconds
        self._maker = Maker(bucket, shard, folder, node)

    async def run(self, store: ShardStore) -> None:
        """Look once a minute, until cancelled. What fails is logged and tried again."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                if await self.is_due(owner=store.uploader is not None):
                    await self.make(store)
            except (BucketError, CheckpointError, StoreError, OSError) as error:
                log.warning("no checkpoint of shard %d, trying again: %s", self._shard, error)
            except DamagedObjectError as error:
                log.error("no checkpoint of shard %d, trying again: %s", self._shard, error)

    async def is_due(self, *, owner: bool = False) -> bool:
        """Return whether the newest checkpoint is old enough, by the log since: its bytes, and the time that it covers
        by the store's clock. Raises BucketError."""
        made = await entries(self._bucket, self._shard)
        after = objects.name(self._shard, made[-1].number - 1) if made else ""
        since = await self._bucket.list(objects.prefix(self._shard), after)
        if not since:
            return False
        log_bytes = sum(max(each.size, LEAST_BYTES) for each in since if each.size > objects.HEADER_BYTES)
        seconds = max(each.modified for each in since) - (made[-1].modified if made else since[0].modified)
        patience = _OWNER_PATIENCE if owner else 1
        return self._schedule.is_due(log_bytes // patience, seconds / patience)

    async def make(self, store: ShardStore) -> Checkpoint | None:
        """Make a checkpoint now, and collect. Returns and raises as `Maker.make`."""
        made = await self._maker.make(store)
        if made is not None:
            log.info("checkpoint %d of shard %d: %d bytes", made.number, self._shard, made.nbytes)
            gone = await collect(self._bucket, self._shard, secrets.token_hex(8), self._log_seconds)
            log.info("collected of shard %d: %s", self._shard, gone)
        return made
