"""The node of a replica, as the replica sees it."""

from collections.abc import Collection
from typing import Protocol

from topics_server.node.term import Term


class Connections(Protocol):
    """Connections of clients that are served where the owner is, and passed on elsewhere, as those of Kafka."""

    async def serve(self, term: Term) -> None:
        """Serve them here from now on."""
        ...

    async def pass_on(self, seconds: float = ...) -> None:
        """Pass them on from now on; those that are served here end, after what takes no longer."""
        ...


class Surroundings(Protocol):
    """The calls of a replica to its node and the other shards there."""

    def others(self, shard: int) -> Collection[str]:
        """The names of nodes, this one among them, that could own the shard."""
        ...

    def is_reluctant(self, shard: int) -> bool:
        """Return whether another node is to take the shard over, if there is one that can."""
        ...

    def target(self, shard: int) -> str | None:
        """The node that the shard is to move to now, for which it is the shard's turn."""
        ...

    def changed(self) -> None:
        """Take note that the replica has caught up, or is behind again, or owns the shard."""
        ...

    def left(self) -> None:
        """Take note that an ownership has ended, whose engine has cycles."""
        ...
