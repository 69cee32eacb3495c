"""Acceptance by the owner: it refuses a node with another secret, or with a clock that is a minute off."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from topics_cluster.owner_search import DistrustedError
from topics_net import background
from topics_net.rate_limited_logger import RateLimitedLogger
from topics_server.node.place import Place
from topics_service.engine.errors import TopicsError
from topics_service.statistics import NodeStatistics

log: Final = logging.getLogger("topics.cluster")

_PAUSE_SECONDS: Final = 1.0


class Acceptance:
    """Counts and logs what the owner refuses, and keeps `Place.is_refused`. Belongs to the event loop.

    After a refusal it makes calls of its own until one is accepted, so that no request of a client decides.
    """

    def __init__(self, place: Place, ask: Callable[[], Awaitable[object]], statistics: NodeStatistics) -> None:
        """`ask` makes a call to the owner. Raises TopicsError, which is a DistrustedError if the owner refuses it."""
        self._place = place
        self._ask = ask
        self._statistics = statistics
        self._log = RateLimitedLogger(log)
        self._asking: asyncio.Task[None] | None = None

    def refused(self, cause: str) -> None:
        """Note that the owner has refused something, and why."""
        self._statistics.refused += 1
        self._log.error("the owner of the shard refuses what this node passes on: %s", cause)
        if self._asking is None or self._asking.done():
            self._asking = background.start(self._ask_until_accepted())

    def stop(self) -> None:
        """Ask no more."""
        if self._asking is not None:
            self._asking.cancel()

    async def _ask_until_accepted(self) -> None:
        while True:
            try:
                await self._ask()
                break
            except DistrustedError:
                self._place.is_refused = True
            except TopicsError:  # there is no owner at present
                pass
            await asyncio.sleep(_PAUSE_SECONDS)
        if self._place.is_refused:
            self._place.is_refused = False
            log.info("the owner of the shard accepts what this node passes on again")
