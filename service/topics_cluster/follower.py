"""A follower of a shard: reads its log from the object store and applies it to the local store."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Final, TypeVar

from topics_client.units import counted
from topics_cluster import objects
from topics_cluster.bucket import Bucket, BucketError
from topics_cluster.log import Position, Tail
from topics_cluster.objects import DamagedObjectError, LogObject
from topics_cluster.reading import contents
from topics_cluster.store import ShardStore
from topics_net import background
from topics_service.engine.stored_catalog import StoredCatalog
from topics_service.storage.store import StoreStalledError

log = logging.getLogger("topics.cluster")

T = TypeVar("T")
Newest = Callable[[], Awaitable[Position | None]]
"""Returns the position of the newest checkpoint of the shard. Raises BucketError."""

_MOST_GETS: Final = 8
_INLINE_BYTES: Final = 64 << 10  # larger objects are decoded and applied on a thread
_POLL_SECONDS: Final = 1.0
_CHECK_SECONDS: Final = 60.0
_STALL_SECONDS: Final = 0.05
_PAUSE_SECONDS: Final = 0.001  # between slices of a third of that


class BehindCheckpointError(Exception):
    """The log below the newest checkpoint is gone, and the store does not reach to it: it has to be restored."""


class MissingObjectError(DamagedObjectError):
    """An object of the log that was there is not there any more."""


async def no_checkpoint() -> Position | None:
    """Return that there is no checkpoint, see `Newest`."""
    return None


class Follower:
    """Keeps a store up to the log.

    `on_applied(found)` is called on the loop after each object; a fence is one without batches. `on_prepared()` is
    called when `run` has made the store's catalog ready for a takeover.
    """

    def __init__(
        self,
        bucket: Bucket,
        store: ShardStore,
        shard: int,
        newest: Newest = no_checkpoint,
        nonce: bytes | None = None,
    ) -> None:
        """A store that is ahead of the log can follow it up to a fence of others; one with `nonce` is its own."""
        self.shard = shard
        self.last: LogObject | None = None
        """The object that was read last."""
        self.on_applied: Callable[[LogObject], None] = lambda _found: None
        self.on_prepared: Callable[[], None] = lambda: None
        self._bucket = bucket
        self._store = store
        self._newest = newest
        self._nonce = nonce
        self._tail = self._begun()
        self.reached = float("-inf")
        """The time at which the bucket answered last, by the loop's clock."""
        self.patience: Callable[[], float] = lambda: _POLL_SECONDS
        """Returns how long to wait for a notice before the next look."""
        self._noticed = 0
        self._notice = asyncio.Event()

    @property
    def tail(self) -> Tail:
        """The reader of the log, as far as the store is."""
        if self._tail.position != self._store.position:  # an object was read and could not be applied
            self._tail = self._begun()
        return self._tail

    @property
    def behind(self) -> int:
        """The number of objects that are known to be durable and are not applied yet."""
        return max(0, self._noticed + 1 - self._store.position.number)

    def notice(self, number: int) -> None:
        """Take the owner's word that all objects up to a number are there. `run` reads them at once."""
        self._noticed = max(self._noticed, number)
        if self.behind:
            self._notice.set()

    async def run(self) -> None:
        """Follow until cancelled: after each notice, and after `patience` without any. Waits where the bucket is away.
        Meanwhile the store's catalog is made ready for a takeover.

        Raises StoreError and the errors of `check` and `Tail.read`: the store is of no use then.
        """
        preparing = background.start(self._prepare())
        preparing.add_done_callback(lambda _: self._notice.set())
        try:
            await self._follow(preparing)
        finally:
            preparing.cancel()
            await asyncio.wait((preparing,))

    async def _follow(self, preparing: "asyncio.Task[None]") -> None:
        loop = asyncio.get_running_loop()
        checked = loop.time()
        while True:
            self._notice.clear()
            if preparing.done():
                preparing.result()
            try:
                if await self.catch_up():
                    checked = loop.time()
                elif self.behind or loop.time() - checked > _CHECK_SECONDS:
                    await self.check()
                    checked = loop.time()
            except BucketError as error:
                log.warning("can't follow the log of shard %d, trying again: %s", self.shard, error)
            try:
                async with asyncio.timeout(self.patience()):
                    await self._notice.wait()
            except TimeoutError:
                pass

    async def catch_up(self) -> int:
        """Apply everything up to the end of the log, and return the number of objects. Further behind, more of them are
        fetched at once.

        Raises BucketError, StoreError and those of `Tail.read`; what was applied until then stays.
        """
        tail, count = self.tail, 0
        async with aclosing(contents(self._bucket, tail, _MOST_GETS, lambda: self.behind)) as found:
            async for data in found:
                self.reached = asyncio.get_running_loop().time()
                await self._take(tail, data)
                count += 1
        self.reached = asyncio.get_running_loop().time()
        return count

    async def check(self) -> None:
        """Check that the end that was read is none of a stretch that was deleted.

        Raises BehindCheckpointError if it is, and MissingObjectError if later objects were there and no checkpoint has
        them.
        """
        name, noticed = objects.name(self.shard, self.tail.next), self._noticed
        if await self._bucket.get(name) is not None:
            return
        newest = await self._newest()
        if newest is not None and newest.ticket > self._store.ticket:
            if await self._bucket.get(name) is not None:  # the owner has come as far meanwhile
                return
            raise BehindCheckpointError(
                f"shard {self.shard}: the log begins at the checkpoint {newest.number}, "
                f"the store ends at {self._store.position.number}"
            )
        if noticed >= self.tail.next:
            raise MissingObjectError(name, f"it is missing, objects up to {noticed} were there")

    def _begun(self) -> Tail:
        return Tail(self.shard, self._store.position, self._store.ticket, self._nonce)

    async def _take(self, tail: Tail, data: bytes) -> None:
        is_large = len(data) > _INLINE_BYTES
        found = await _to_the_end(tail.read, data) if is_large else tail.read(data)
        assert found is not None
        await apply(self._store, found, tail.position, on_thread=is_large)
        self.last = found
        while self._store.catalog is not None and self._store.catalog.is_behind:
            if self._advance():
                await asyncio.sleep(0)  # a large object has many changes
        self.on_applied(found)

    async def _prepare(self) -> None:
        """Make the store's catalog ready for a takeover, in slices."""
        catalog = self._store.catalog
        if catalog is None:
            catalog = self._store.catalog = StoredCatalog(self._store)
        is_ready = False
        while not is_ready:
            await asyncio.sleep(_PAUSE_SECONDS)
            is_ready = not self._advance()
        self.on_prepared()
        log.info("ready to take over shard %d with %s", self.shard, counted(len(catalog), "topic"))

    def _advance(self) -> bool:
        catalog = self._store.catalog
        if catalog is None:
            return False
        try:
            return catalog.advance()
        except BaseException:
            self._store.catalog = None  # what it has is of no use
            raise


async def apply(store: ShardStore, found: LogObject, position: Position, *, on_thread: bool) -> None:
    """Apply an object as `ShardStore.apply` does, and wait where RocksDB has to write out others first. Raises
    StoreError."""
    while True:
        try:
            if on_thread:
                await _to_the_end(store.apply, found, position)
            else:
                store.apply(found, position)
            return
        except StoreStalledError:
            await asyncio.sleep(_STALL_SECONDS)


async def _to_the_end(call: Callable[..., T], *args: object) -> T:
    """Call something on a thread. A cancellation waits for it: a store that is applied to is used by nothing else."""
    running = asyncio.ensure_future(asyncio.to_thread(call, *args))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise
