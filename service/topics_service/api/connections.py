"""Limits of long-lived connections (docs/contract.md, 12)."""

from collections.abc import Iterator
from contextlib import contextmanager

from topics_service.api.access.auth import Principal
from topics_service.api.access.quota import STREAMS, Quotas, exceeded
from topics_service.statistics import WatchStatistics


class Connections:
    """Slots of SSE, `/work`, WebSocket and gRPC streams."""

    def __init__(self, statistics: WatchStatistics, *, max_total: int, max_per_key: int) -> None:
        """At most `max_total` streams, and `max_per_key` of one API key; 0 means unlimited. Updates `statistics`."""
        self._statistics = statistics
        self._max_total = max_total
        self._max_per_key = max_per_key
        self.quotas: Quotas | None = None  # limits of each key, which replace `max_per_key`
        self._counts: dict[str, int] = {}

    @contextmanager
    def hold(self, principal: Principal) -> Iterator[None]:
        """Hold a slot while entered. Entering raises `throttled`, with the limit as detail, when none is free.

        Without authentication only the total is limited.
        """
        key, usage = principal.key_id, None
        mine = self._counts.get(key, 0)
        if key:
            usage = None if self.quotas is None else self.quotas.for_key(key)
            maximum = self._max_per_key if usage is None else usage.limits.streams
            if maximum and mine + (0 if usage is None else usage.streams_elsewhere) >= maximum:
                raise exceeded("this API key has reached its limit of open streams", STREAMS, maximum)
        statistics = self._statistics
        if self._max_total and statistics.connections + statistics.connections_elsewhere >= self._max_total:
            raise exceeded("the server has reached its limit of open streams", "max_sse_connections", self._max_total)
        statistics.connections += 1
        if key:
            self._counts[key] = mine + 1
            if usage is not None:
                usage.streams = mine + 1
        try:
            yield
        finally:
            statistics.connections -= 1
            if key:
                self._counts[key] -= 1
                if usage is not None:
                    usage.streams = self._counts[key]
                if not self._counts[key]:
                    del self._counts[key]
