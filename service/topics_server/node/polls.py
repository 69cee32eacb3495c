"""Looks of a node's followers into the object store."""

import asyncio
from typing import Final

from topics_cluster.follower import Follower

_SECONDS: Final = 1.0


class Polls:
    """Lets the followers of all shards look once a second together, each in its turn, while their owners tell them what
    is new. Belongs to the event loop."""

    def __init__(self) -> None:
        self._followers: dict[int, Follower] = {}

    def begin(self, follower: Follower) -> None:
        """Give the follower of a shard a turn."""
        self._followers[follower.shard] = follower

    def end(self, follower: Follower) -> None:
        """Take it away."""
        if self._followers.get(follower.shard) is follower:
            del self._followers[follower.shard]

    @property
    def reached(self) -> float:
        """The time at which the object store answered one of them last, by the loop's clock."""
        return max((each.reached for each in self._followers.values()), default=float("-inf"))

    def patience(self, shard: int) -> float:
        """The seconds until the turn of a shard's follower."""
        shards = sorted(self._followers)
        count = len(shards)
        if count < 2 or shard not in self._followers:
            return _SECONDS
        now = asyncio.get_running_loop().time() / _SECONDS
        turns = (shards.index(shard) - now) % count
        return _SECONDS * (turns if turns > 0.5 else turns + count)
