"""The commit of a cluster: writes are durable when the object store has them."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Final

from topics_cluster.store import ShardStore
from topics_net import background
from topics_service.api.scheduling.commit import Commit
from topics_service.engine.engine import Engine
from topics_service.storage.store import StoreError, StoreLostError

_SETTLE_SECONDS: Final = 10.0


class LogCommit(Commit):
    """Publishes what the uploader of the shard's owner acknowledges.

    Nothing has to be asked for: every write goes into the next object, whatever its durability class. The uploader is
    woken at the end of the loop's turn, so that what other requests write in it shares the object.

    Once the node has lost the shard it can't tell whether what waits is in the log: those calls keep waiting, to be
    ended as when a server dies, and `abandon` fails what waits after that.
    """

    is_replicated = True

    def __init__(
        self, store: ShardStore, on_synced: Callable[[int], None], on_failed: Callable[[BaseException], None]
    ) -> None:
        """Begin for an owner's store. `on_synced` gets tickets of the engine, see `ShardStore.engine`."""
        super().__init__(on_synced, on_failed)
        assert store.uploader is not None
        self._store = store
        self._uploader = store.uploader
        self.statistics.latency = self._uploader.statistics.latency
        self.on_published: Callable[[], None] = lambda: None
        """Called on the loop after each acknowledgement."""
        self._thread = threading.get_ident()
        self._is_waking = False
        self._is_posted = False
        self._acknowledged = self._uploader.position.ticket
        self._lost: asyncio.Future[BaseException] = self._loop.create_future()
        store.on_written = self._wake_later
        self._uploader.on_acknowledged = self._note
        self._uploader.on_failed = lambda error: self.post(self.lose, error)
        if self._uploader.failure is not None:
            self.lose(self._uploader.failure)

    @classmethod
    def for_engine(
        cls, engine: Engine, store: ShardStore, on_failed: Callable[[BaseException], None] = lambda _error: None
    ) -> "LogCommit":
        """The commit of the engine's writes. `on_failed` is called on the loop when the node has lost the shard, once
        the engine refuses writes."""

        def fail(error: BaseException) -> None:
            engine.sync_failed(error)
            on_failed(error)

        writer = engine.writer
        store.engine = writer
        commit = cls(store, engine.synced, fail)
        commit.span = writer.span
        return commit

    def want(self, ticket: int) -> None:
        """See Commit: all writes are on their way."""

    async def settle(self, ticket: int) -> None:
        """See Commit. Returns when the shard is lost too, and gives it up after 10 s without an answer."""
        waiting = background.start(self.wait(ticket))
        try:
            await asyncio.wait((waiting, self._lost), timeout=_SETTLE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                waiting.result()
                return
        finally:
            waiting.cancel()  # also where the call is cancelled
        self.lose(StoreLostError("the object store does not answer"))

    def stop(self) -> None:
        """See Commit: what is in the object store need not be on the disk. Gives up after 10 s without an answer, or at
        once where the shard is lost."""
        if not self._lost.done():
            with contextlib.suppress(StoreError):
                self._store.upload()

    def _wake_later(self) -> None:
        if self._is_waking:
            return
        if threading.get_ident() == self._thread:
            self._is_waking = True
            background.call_soon(self._wake)
        else:
            self._uploader.wake()

    def _wake(self) -> None:
        self._is_waking = False
        self._uploader.wake()

    def _note(self, ticket: int) -> None:
        """Take an acknowledgement, on the uploader's thread."""
        self._acknowledged = ticket
        if not self._is_posted:
            self._is_posted = True
            self.post(self._publish_acknowledged, None)

    def _publish_acknowledged(self, _: object) -> None:
        self._is_posted = False
        upto = self._store.durable(self._acknowledged)
        if upto > self._published and not self._lost.done():
            self.statistics.group.observe(upto - self._published)
            self.publish(upto)
        self.on_published()

    def lose(self, error: BaseException) -> None:
        """Note that the node has lost the shard: nothing is acknowledged any more."""
        if not self._lost.done():
            self._lost.set_result(error)
            self._on_failed(error)

    def abandon(self) -> None:
        """Fail everything that waits, now and later, after `lose`."""
        self.refuse(self._lost.result())
