"""Long-lived connections: how many there are, and whose (docs/contract.md, 12)."""

from collections.abc import Iterator
from contextlib import contextmanager

from topics_service.api.auth import Principal
from topics_service.api.quota import STREAMS, Quotas, exceeded
from topics_service.statistics import WatchStatistics


class Connections:
    """The slots of streams: SSE, `/work`, WebSocket and gRPC together."""

    def __init__(self, statistics: WatchStatistics, *, most: int, most_per_key: int) -> None:
        """At most `most` at a time, and `most_per_key` of one API key; 0 is no cap. Counts into `statistics`."""
        self._statistics = statistics
        self._most = most
        self._most_per_key = most_per_key
        self.quotas: Quotas | None = None  # the limits of each key, in place of `most_per_key`
        self._of_key: dict[str, int] = {}

    @contextmanager
    def hold(self, principal: Principal) -> Iterator[None]:
        """Hold a slot while entered. Entering raises `throttled`, its detail the limit, when none is free.

        Without authentication there is no key to count, only the whole.
        """
        key = principal.key_id
        mine = self._of_key.get(key, 0)
        if key:
            most = self._most_per_key if self.quotas is None else self.quotas.for_key(key).limits.streams
            if most and mine >= most:
                raise exceeded("this API key has as many open streams as it may", STREAMS, most)
        if self._most and self._statistics.connections >= self._most:
            raise exceeded("there are as many open streams as this server allows", "max_sse_connections", self._most)
        self._statistics.connections += 1
        if key:
            self._of_key[key] = mine + 1
        try:
            yield
        finally:
            self._statistics.connections -= 1
            if key:
                self._of_key[key] -= 1
                if not self._of_key[key]:
                    del self._of_key[key]
