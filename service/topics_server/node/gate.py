"""Reads at the owner: they are served while its lease holds, and else once the log has shown that it is the owner."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from topics_cluster import objects
from topics_cluster.bucket import Bucket, BucketError
from topics_cluster.coordinator import Session, boottime
from topics_cluster.objects import Kind
from topics_cluster.uploader import Uploader
from topics_net import background
from topics_service.engine.errors import Reason, TopicsError
from topics_service.storage.store import StoreLostError

log: Final = logging.getLogger("topics.cluster")

MARGIN_SECONDS: Final = 0.2
"""Before the end of the lease: clocks of two machines run at slightly different speeds."""
_PROBE_SECONDS: Final = 5.0


class LostShardError(StoreLostError):
    """Another node has fenced the log: this one owns the shard no longer."""


class ReadGate:
    """Lets calls of one ownership pass. `is_open` is one comparison, for every call."""

    def __init__(
        self,
        session: Session,
        bucket: Bucket,
        uploader: Uploader,
        nonce: bytes,
        clock: Callable[[], float] = boottime,
    ) -> None:
        """`nonce` is that of the ownership, and `clock` that of the session."""
        self.probes = 0
        """The number of looks into the bucket."""
        self._session = session
        self._bucket = bucket
        self._uploader = uploader
        self._shard = uploader.shard
        self._nonce = nonce
        self._clock = clock
        self._is_doubted = self._is_lost = False
        self._next: asyncio.Task[None] | None = None
        self._running: asyncio.Task[None] | None = None

    @property
    def is_open(self) -> bool:
        """True while calls need not wait."""
        return self._clock() < self._session.holds_until(self._shard) - MARGIN_SECONDS and not self._is_doubted

    def doubt(self) -> None:
        """Trust the lease no more, until a `look` that begins after this call."""
        self._is_doubted = True

    def close(self) -> None:
        """Let no call pass any more: the shard is known to be lost."""
        self._is_doubted = self._is_lost = True

    async def look(self) -> None:
        """Return once a look into the bucket, begun after this call, has found no fence. Calls share looks.

        Raises LostShardError, and TopicsError `not_ready` while the bucket does not answer.
        """
        if self._is_lost:
            raise LostShardError("the shard was lost")
        if self._next is None:
            self._next = background.start(self._look_after(self._running))
            self._next.add_done_callback(_seen)  # all that wait for it may have been cancelled
        await asyncio.shield(self._next)

    async def trust(self) -> None:
        """Look, and trust the lease again. Raises as `look`."""
        await self.look()
        self._is_doubted = self._is_lost

    async def _look_after(self, running: "asyncio.Task[None] | None") -> None:
        if running is not None:
            await asyncio.wait((running,))
        self._running, self._next = self._next, None  # who comes now needs one that begins later
        self.probes += 1
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                await self._look()
        except (BucketError, TimeoutError) as error:
            raise TopicsError(
                Reason.NOT_READY, "the node can't tell whether it owns the shard: its lease and its store don't answer"
            ) from error

    async def _look(self) -> None:
        """A fence stops this owner at the first number that was free: one between its oldest object under way and its
        next one. All of them are looked at: objects before the fence may be deleted by now."""
        uploader = self._uploader
        first, last = uploader.position.number, uploader.next
        names = [objects.name(uploader.shard, number) for number in range(first, last + 1)]
        found = await asyncio.gather(*map(self._bucket.get, names))
        for number, data in enumerate(found, first):
            if data is not None:
                header = objects.decode(uploader.shard, number, data).header
                if header.kind is Kind.FENCE or header.nonce != self._nonce:
                    raise LostShardError(f"the object {names[number - first]} is another owner's")


def _seen(task: "asyncio.Task[None]") -> None:
    """Keep asyncio from complaining of an error that had no one to be raised to."""
    if not task.cancelled():
        task.exception()
