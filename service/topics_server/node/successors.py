"""The next owner of a shard, for its owner: the follower that is to get it, once it can."""

from typing import Final

from topics_cluster.coordinator import boottime
from topics_server.node.claims import Claims
from topics_server.node.peers import Followers
from topics_server.node.surroundings import Surroundings
from topics_service.statistics import ShardStatistics

_NEAR_OBJECTS: Final = 2  # that the next owner may lack when the shard is handed over,
_NEAR_SECONDS: Final = 2.0  # and the time for which that is waited for


class Successors:
    """Looks for the next owner. Belongs to the event loop."""

    def __init__(
        self,
        shard: int,
        me: str,
        *,
        claims: Claims,
        followers: Followers,
        surroundings: Surroundings,
        statistics: ShardStatistics,
    ) -> None:
        """`me` is the name of the node that owns the shard."""
        self._shard = shard
        self._me = me
        self._claims = claims
        self._followers = followers
        self._surroundings = surroundings
        self._statistics = statistics
        self._waits_for: str | None = None  # the next owner, until it is near enough
        self._waits_since = 0.0

    async def find(self, *, stopping: bool) -> str | None:
        """The follower that is to get the shard now, if there is one that can; with `stopping` the best there is."""
        standings = self._followers.standings
        ready = {name: each for name, each in standings.items() if each.caught_up}
        near = self._statistics.number - _NEAR_OBJECTS
        wanted = self._claims.wanted
        if wanted == self._me:
            await self._claims.prefer("")
        if stopping and not ready:  # one whose catalog is not ready serves later, and still earlier than after a claim
            ready = {name: each for name, each in standings.items() if each.number >= near}
        if stopping and ready:
            return (ready.get(wanted or "") or max(ready.values(), key=lambda each: each.number)).node
        target = self._surroundings.target(self._shard)
        if target != self._waits_for:
            self._waits_for, self._waits_since = target, boottime()
        standing = ready.get(target or "")
        if standing is None:
            return None
        return target if standing.number >= near or boottime() - self._waits_since > _NEAR_SECONDS else None
