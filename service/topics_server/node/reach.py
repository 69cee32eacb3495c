"""Reach of the object store: a node that reads from it is not cut off, however long an object of its own takes."""

import asyncio
from collections.abc import Callable
from typing import Final

from topics_cluster import identity
from topics_cluster.bucket import Bucket, BucketError
from topics_cluster.coordinator import boottime
from topics_net import background

_STUCK_SECONDS: Final = 3.0  # of an object, where the store does not answer reads either
_HOPELESS_SECONDS: Final = 30.0  # where it does: large packets may be lost, or only writes be refused
_SETTLE_SECONDS: Final = 1.5  # from the first answer of a store that was away until it has answered all nodes
_READ_SECONDS: Final = 1.0


class StoreReach:
    """Tells whether an object that is under way to the store is stuck at this node. Belongs to the event loop."""

    def __init__(self, bucket: Bucket, clock: Callable[[], float] = boottime) -> None:
        """`clock` gives seconds."""
        self._bucket = bucket
        self._clock = clock
        self._answered = float("-inf")
        self._answers_since = float("inf")
        self._others_since = float("-inf")
        self._reading: asyncio.Task[None] | None = None

    def is_stuck(self, seconds: float, *, others: bool = True) -> bool:
        """Decide for an object that has been under way for so long, while other nodes reach the store or don't.

        Reads from the store in time for the decision: ask several times a second, also while nothing is under way.
        """
        if not others:
            self._others_since = self._clock()
        if seconds > _STUCK_SECONDS / 2 and (self._reading is None or self._reading.done()):
            self._reading = background.start(self._read())
        now = self._clock()
        if now - self._answered < _STUCK_SECONDS / 2:
            return min(seconds, now - self._answers_since) > _HOPELESS_SECONDS
        return seconds > _STUCK_SECONDS and now - self._others_since > _SETTLE_SECONDS

    async def _read(self) -> None:
        began = self._clock()
        try:
            async with asyncio.timeout(_READ_SECONDS):
                await self._bucket.get(identity.NAME)
        except (BucketError, TimeoutError):
            self._answers_since = float("inf")
            return
        self._answered = began
        self._answers_since = min(began, self._answers_since)
