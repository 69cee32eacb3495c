"""The directory of a replica on a node's disk."""

import asyncio
import contextlib
import logging
import shutil
from typing import Final

from topics_cluster.bucket import Bucket
from topics_cluster.log import Position
from topics_cluster.store import ShardStore
from topics_server.resources import Resources
from topics_service.storage.boot import boot_id
from topics_service.storage.store import StoreError

log: Final = logging.getLogger("topics.cluster")


class LocalDirectory:
    """Implements Directory in the server's data directory."""

    def __init__(self, resources: Resources, bucket: Bucket, shard: int) -> None:
        self._settings = resources.settings
        self._tables = resources.tables
        self._bucket = bucket
        self._shard = shard

    async def open(self) -> ShardStore:
        """See Directory."""
        return await asyncio.to_thread(self._open)

    async def newest(self) -> Position | None:
        """See Directory."""
        return None

    async def close(self, store: ShardStore) -> None:
        """See Directory."""
        try:
            await asyncio.to_thread(store.close)
        except StoreError as error:
            log.warning("the next start replays the write-ahead log: %s", error)

    async def discard(self, store: ShardStore) -> None:
        """See Directory."""
        await asyncio.to_thread(self._discard, store)

    def _open(self) -> ShardStore:
        settings = self._settings
        return ShardStore(
            settings.data_path,
            block_cache_bytes=settings.memory.store_cache,
            write_buffer_bytes=settings.memory.write_buffers,
            open_tables=self._tables,
            boot_id=boot_id(),
            reserve_bytes=settings.min_free_bytes,
        )

    def _discard(self, store: ShardStore) -> None:
        with contextlib.suppress(StoreError):
            store.abandon()
        for path in self._settings.data_path.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
