"""The directory of a replica on a node's disk."""

import asyncio
import contextlib
import logging
from typing import Final

from topics_cluster.bucket import Bucket
from topics_cluster.checkpoint import newest_position
from topics_cluster.housekeeping import Housekeeper
from topics_cluster.local_log import keep_trimmed
from topics_cluster.log import Position
from topics_cluster.restore import COPIES, clear, restore_newest
from topics_cluster.reuse import is_of_log
from topics_cluster.store import ShardStore
from topics_net import background
from topics_server.resources import Resources
from topics_service.storage.boot import boot_id
from topics_service.storage.store import StoreError

log: Final = logging.getLogger("topics.cluster")


class Directory:
    """The replica's directory: the data directory of the server, or with several shards one in it."""

    def __init__(self, resources: Resources, bucket: Bucket, shard: int, *, cluster: str, node: str) -> None:
        """`resources` are those of the shard, `cluster` the id of the cluster."""
        self._cluster = cluster
        self._settings = resources.settings
        self._tables = resources.tables
        self._bucket = bucket
        self._shard = shard
        self._housekeeper = Housekeeper(
            bucket,
            shard,
            self._settings.data_path / COPIES,
            node,
            log_seconds=self._settings.cluster_log_seconds,
        )
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> ShardStore:
        """Open it, if its rows are a part of the log or may become one; else begin with the newest checkpoint. Raises
        BucketError, StoreError."""
        store = await self._restored()
        if not await self._is_of_log(store):
            log.warning(
                "the local directory has %d batches that are not in the log, and never will be: "
                "the newest checkpoint takes its place",
                store.ticket - store.position.ticket,
            )
            await self.discard(store)
            store = await self._restored()
        self._tasks = [background.start(self._housekeeper.run(store)), background.start(keep_trimmed(store))]
        return store

    @property
    def is_there(self) -> bool:
        """Return whether there is a database."""
        return (self._settings.data_path / "CURRENT").exists()

    async def remove(self) -> None:
        """Remove the database, which is closed. Raises OSError."""
        await asyncio.to_thread(clear, self._settings.data_path)

    async def newest(self) -> Position | None:
        """The position of the newest checkpoint, see `follower.Newest`."""
        return await newest_position(self._bucket, self._shard)

    async def close(self, store: ShardStore) -> None:
        """Close the store and keep the directory."""
        await self._end_tasks()
        try:
            await asyncio.to_thread(store.close)
        except StoreError as error:
            log.warning("the next start replays the write-ahead log: %s", error)

    async def discard(self, store: ShardStore) -> None:
        """Close the store and remove the directory."""
        await self._end_tasks()
        await asyncio.to_thread(self._discard, store)

    async def _restored(self) -> ShardStore:
        """Open the database, that of the newest checkpoint where there is none."""
        path = self._settings.data_path
        if not await asyncio.to_thread((path / "CURRENT").exists):
            try:
                if await asyncio.to_thread(path.exists):
                    await asyncio.to_thread(clear, path)
                found = await restore_newest(self._bucket, self._shard, path)
            except OSError as error:
                raise StoreError(f"can't restore a checkpoint into {path}: {error}") from error
            if found is not None:
                log.info("restored checkpoint %d of shard %d", found.number, self._shard)
        return await asyncio.to_thread(self._open)

    async def _is_of_log(self, store: ShardStore) -> bool:
        try:
            return await is_of_log(self._bucket, store, self._shard, self.newest)
        except BaseException:
            await self.close(store)
            raise

    async def _end_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._tasks = []

    def _open(self) -> ShardStore:
        settings = self._settings
        store = ShardStore(
            settings.data_path,
            block_cache_bytes=settings.memory.store_cache,
            write_buffer_bytes=settings.memory.write_buffers,
            open_tables=self._tables,
            boot_id=boot_id(),
            reserve_bytes=settings.min_free_bytes,
        )
        if not store.is_of_cluster:
            store.close()
            raise StoreError(
                f"{settings.data_path} has the topics of a single server: begin a cluster with them by "
                f"`topics cluster init --from {settings.data_path}`, and give the node another directory"
            )
        try:
            store.join(self._cluster, self._shard)
        except StoreError as error:
            store.close()
            raise StoreError(
                f"{settings.data_path} can't be used: {error}. Give the node another directory, or empty this one"
            ) from None
        return store

    def _discard(self, store: ShardStore) -> None:
        with contextlib.suppress(StoreError):
            store.abandon()
        clear(self._settings.data_path)
