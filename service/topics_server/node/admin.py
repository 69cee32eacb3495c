"""Answers of a node about itself and its cluster, in every role."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from topics_cluster import formats
from topics_cluster.bucket import Bucket, BucketError
from topics_cluster.coordinator import Coordinator, CoordinatorError, Node, View
from topics_cluster.owner_search import no_owner
from topics_cluster.placement import eligible
from topics_server.node.shards import Shards
from topics_server.node.views import Views
from topics_service.api.cluster import ClusterState, FollowerState, NodeState, ShardState
from topics_service.engine.errors import Reason, TopicsError, invalid
from topics_service.engine.names import check_zone

_MOVE_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 1.0


class NodeAdmin:
    """Implements ClusterApi."""

    def __init__(
        self,
        cluster: str,
        node: str,
        *,
        bucket: Bucket,
        coordinator: Coordinator,
        views: Views,
        shards: Shards,
    ) -> None:
        self._cluster = cluster
        self._node = node
        self._bucket = bucket
        self._coordinator = coordinator
        self._views = views
        self._shards = shards

    async def state(self) -> ClusterState:
        """See ClusterApi."""
        view = self._views.view
        return ClusterState(
            cluster=self._cluster,
            node=self._node,
            nodes=[
                NodeState(
                    name=name,
                    http=node.addresses.http,
                    grpc=node.addresses.grpc,
                    kafka=node.addresses.kafka,
                    zone=node.zone,
                    version=node.version,
                    formats=node.formats,
                    capacity=node.capacity,
                    is_drained=name in view.drained,
                )
                for name, node in sorted(view.nodes.items())
            ],
            shards=await asyncio.gather(*map(self._shard, range(len(self._shards)))),
            format=await self._format(),
        )

    async def _shard(self, number: int) -> ShardState:
        """A shard. Its owner knows where its followers stand; this node, which of them are caught up."""
        view, shard, layout = self._views.view, self._shards[number], self._shards.layout
        owner = view.owners.get(number)
        followers: list[FollowerState] = []
        newest = shard.statistics.number
        try:
            if not shard.place.is_known:
                raise no_owner()
            found = await shard.find_progress()
            newest = max(newest, found.number)
            followers = [
                FollowerState(node=each.node, number=each.number, caught_up=each.caught_up) for each in found.followers
            ]
        except TopicsError:
            names = [name for name, node in view.nodes.items() if number in node.warm]
            followers = [
                FollowerState(node=name, number=0, caught_up=True)
                for name in sorted(names)
                if owner is None or name != owner.node
            ]
        return ShardState(
            shard=number,
            owner=owner.node if owner else "",
            epoch=owner.epoch if owner else 0,
            number=newest,
            wanted=view.wanted.get(number, ""),
            target=(layout.owners[number] if layout is not None else None) or "",
            zone=view.zones.get(number, ""),
            followers=followers,
        )

    async def _format(self) -> int:
        try:
            async with asyncio.timeout(_LOOK_SECONDS):
                return await formats.final(self._bucket)
        except (BucketError, TimeoutError):
            return 0

    async def move(self, shard: int, node: str) -> int:
        """See ClusterApi."""
        self._check_shard(shard)
        found = self._node_named(node)
        if node in self._views.view.drained:
            raise invalid(f"the node {node} is drained: it owns no shard until `topics cluster undrain {node}`")
        if epoch := self._epoch_of(shard, node):
            return epoch
        is_warm = len(self._shards) == 1 or shard in found.warm
        try:
            await self._coordinator.want(shard, node)
            async with asyncio.timeout(_MOVE_SECONDS):
                # The new owner removes the wish when it serves.
                await self._views.until(
                    lambda view: node not in view.nodes or (self._epoch_of(shard, node) and shard not in view.wanted)
                )
            if node not in self._views.view.nodes:
                raise CoordinatorError(f"the node {node} has gone")
        except (CoordinatorError, TimeoutError) as error:
            if isinstance(error, TimeoutError) and not is_warm and node in self._views.view.nodes:
                raise TopicsError(
                    Reason.NOT_READY, f"the node {node} is catching up with shard {shard}, and gets it after that"
                ) from None
            with contextlib.suppress(CoordinatorError):
                await self._coordinator.want(shard, None)
            raise TopicsError(
                Reason.NOT_READY, f"the shard has not moved: {str(error) or f'not within {_MOVE_SECONDS:g} s'}"
            ) from None
        return self._epoch_of(shard, node)

    async def drain(self, node: str, *, is_drained: bool) -> int:
        """See ClusterApi."""
        view = self._views.view
        if is_drained:
            self._node_named(node)
            if {each.name for each in eligible(view)} <= {node}:
                raise invalid(f"no other node can take the shards of {node}: start one, or undrain one")
        elif node not in view.nodes and node not in view.drained:
            raise invalid(f"no node with the name {node[:64]!r} lives, or is drained")
        await self._noted(
            self._coordinator.drain(node, is_drained=is_drained), lambda view: (node in view.drained) is is_drained
        )
        return sum(owner.node == node for owner in self._views.view.owners.values())

    async def prefer(self, shards: Sequence[int], zone: str) -> int:
        """See ClusterApi."""
        if not 0 < len(shards) <= len(self._shards):
            raise invalid(f"shards must name 1 to {len(self._shards)} shards")
        for shard in shards:
            self._check_shard(shard)
        if zone:
            check_zone(zone)
        chosen = {*shards}

        async def note() -> None:
            for shard in sorted(chosen):
                await self._coordinator.prefer(shard, zone or None)

        await self._noted(note(), lambda view: all(view.zones.get(shard, "") == zone for shard in chosen))
        view = self._views.view
        owners = [view.owners[shard].node for shard in chosen if shard in view.owners]
        return sum(name not in view.nodes or view.nodes[name].zone != zone for name in owners) if zone else 0

    async def _noted(self, change: Awaitable[None], is_there: Callable[[View], bool]) -> None:
        """Return once this node sees a change of what is in etcd. Raises `not_ready`."""
        try:
            await change
            async with asyncio.timeout(_MOVE_SECONDS):
                await self._views.until(is_there)
        except (CoordinatorError, TimeoutError) as error:
            raise TopicsError(Reason.NOT_READY, f"etcd does not answer: {str(error) or 'no view'}") from None

    def _check_shard(self, shard: int) -> None:
        if not 0 <= shard < len(self._shards):
            raise invalid(f"there is no shard {shard}")

    def _node_named(self, name: str) -> Node:
        """The node that lives under the name. Raises `invalid_request`."""
        found = self._views.view.nodes.get(name)
        if found is None:
            raise invalid(f"no node with the name {name[:64]!r} lives")
        return found

    def _epoch_of(self, shard: int, node: str) -> int:
        owner = self._views.view.owners.get(shard)
        return owner.epoch if owner is not None and owner.node == node else 0
