"""Stores of a shard, as nodes have them, without nodes."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from topics_cluster.bucket import Bucket
from topics_cluster.follower import Newest, no_checkpoint
from topics_cluster.resume import resume
from topics_cluster.store import FENCE_KEY, POSITION_KEY, ShardStore
from topics_cluster.takeover import Ownership, new_nonce, take_over
from topics_cluster.uploader import Uploader
from topics_service.storage.store import Family, StoreError

SHARD = 0
LOCAL = {POSITION_KEY, FENCE_KEY, b"format"}
"""META rows of a directory that are not in the log."""


def rows(store: ShardStore) -> Mapping[Family, Mapping[bytes, bytes]]:
    """All rows that the log is about."""
    every = {family: dict(store.scan(family, b"", b"\xff" * 32)) for family in Family if family is not Family.SEGMENTS}
    every[Family.META] = {key: value for key, value in every[Family.META].items() if key not in LOCAL}
    return every


class Member:
    """A store and, from `own` on, what makes its objects."""

    def __init__(self, bucket: Bucket, path: Path, *, shard: int = SHARD, **options: object) -> None:
        self.bucket = bucket
        self.shard = shard
        self.store = ShardStore(path, **options)
        self.uploader: Uploader | None = None
        self._is_open = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    async def own(
        self, nonce: bytes | None = None, *, newest: Newest = no_checkpoint, least_epoch: int = 0
    ) -> Ownership:
        """Take the shard over."""
        nonce = nonce or new_nonce()
        return self._begin(
            await take_over(self.bucket, self.store, self.shard, nonce, newest=newest, least_epoch=least_epoch)
        )

    async def resume(self) -> Ownership:
        """Take the shard over, with what only this store has."""
        return self._begin(await resume(self.bucket, self.store, self.shard, new_nonce()))

    def _begin(self, found: Ownership) -> Ownership:
        self.uploader = Uploader(self.bucket, self.shard, found.position, found.nonce)
        self.store.own(self.uploader)
        return found

    def put(self, key: bytes, value: bytes, family: Family = Family.ROWS) -> None:
        """Write one row."""
        batch = self.store.batch()
        batch.put(family, key, value)
        self.store.write(batch)

    def get(self, key: bytes) -> bytes | None:
        """The value of a row of `put`."""
        return self.store.get(Family.ROWS, key)

    async def sync(self) -> None:
        """Wait until the object store has everything."""
        await asyncio.to_thread(self.store.sync)

    def resign(self) -> None:
        """End the epoch: what is not acknowledged stays so."""
        if self.uploader is not None:
            self.uploader.stop()
            self.store.disown()
            self.uploader = None

    def close(self) -> None:
        """Release the directory, with everything in tables."""
        self.resign()
        self.store.close()
        self._is_open = False

    def kill(self) -> None:
        """Release the directory as a killed process does."""
        if self.uploader is not None:
            self.uploader.stop()
        if self._is_open:
            self._is_open = False
            with suppress(StoreError):  # its background work has ended before
                self.store.abandon()
