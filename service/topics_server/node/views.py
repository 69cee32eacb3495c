"""The coordinator's entries as a node has heard of them."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from topics_cluster.coordinator import Coordinator, CoordinatorError, Node, View

log: Final = logging.getLogger("topics.cluster")

_RETRY_SECONDS: Final = 1.0


def owner(view: View, shard: int) -> Node | None:
    """The node that owns a shard and serves it; None while there is none."""
    found = view.owners.get(shard)
    return None if found is None or not found.epoch else view.nodes.get(found.node)


def followers(view: View, shard: int) -> list[Node]:
    """The nodes that follow a shard and have caught up with it."""
    owner = view.owners.get(shard)
    return [node for name, node in view.nodes.items() if shard in node.warm and (owner is None or name != owner.node)]


class Views:
    """The newest view that the coordinator has sent to this node."""

    def __init__(self) -> None:
        self.view = View(revision=0, nodes={}, owners={}, wanted={})
        self._changed = asyncio.Event()

    async def follow(self, coordinator: Coordinator, heard: Callable[[], None]) -> None:
        """Follow the coordinator until cancelled; call `heard` after each change."""
        while True:
            try:
                async for view in coordinator.watch():
                    self.view = view
                    self._changed.set()
                    self._changed = asyncio.Event()
                    heard()
            except CoordinatorError as error:
                log.warning("can't follow etcd, trying again: %s", error)
            await asyncio.sleep(_RETRY_SECONDS)

    def shards_in(self, zone: str) -> list[int]:
        """The shards that prefer a zone."""
        return sorted(shard for shard, preferred in self.view.zones.items() if preferred == zone)

    async def until(self, condition: Callable[[View], object]) -> None:
        """Return once the condition holds."""
        while not condition(self.view):
            await self._changed.wait()
