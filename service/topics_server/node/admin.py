"""Answers of a node about itself and its cluster, in every role."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from topics_cluster import formats
from topics_cluster.bucket import Bucket, BucketError
from topics_cluster.coordinator import Coordinator, CoordinatorError
from topics_server.node.peers import Followers
from topics_server.node.place import Place
from topics_server.node.views import Views
from topics_service.api.cluster import ClusterState, FollowerState, NodeState, ShardState
from topics_service.api.metrics.collector import NodeMetrics
from topics_service.api.observers import Observers
from topics_service.api.scheduling.pressure import Shortage
from topics_service.engine.errors import Reason, TopicsError, invalid
from topics_service.engine.model import ReadyState
from topics_service.statistics import NodeStatistics

_MOVE_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 1.0


class NodeProbes:
    """The probes of a node that does not serve the shard itself. It is ready while it could: what it passes on is
    served then."""

    def __init__(self, statistics: NodeStatistics, observers: Observers, is_ready: Callable[[], bool]) -> None:
        self.observers = observers
        self.metrics = NodeMetrics(statistics, is_ready)
        self.draining = False
        self._is_ready = is_ready

    def ready(self) -> ReadyState:
        """See Probed."""
        is_ready = self._is_ready() and not self.draining
        reason = "" if is_ready else "shutting_down" if self.draining else "not_ready"
        return ReadyState(ready=is_ready, reason=reason, topics=0, replay_progress=float(is_ready))

    def shortage(self) -> Shortage | None:
        """See Probed."""
        return None


class NodeAdmin:
    """Implements ClusterApi."""

    def __init__(
        self,
        cluster: str,
        node: str,
        shard: int,
        *,
        bucket: Bucket,
        coordinator: Coordinator,
        views: Views,
        followers: Followers,
        place: Place,
        statistics: NodeStatistics,
    ) -> None:
        self._cluster = cluster
        self._node = node
        self._shard = shard
        self._bucket = bucket
        self._coordinator = coordinator
        self._views = views
        self._followers = followers
        self._place = place
        self._statistics = statistics

    async def state(self) -> ClusterState:
        """See ClusterApi."""
        view = self._views.view
        owner = view.owners.get(self._shard)
        standings = self._followers.standings if self._place.term is not None else {}
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
                )
                for name, node in sorted(view.nodes.items())
            ],
            shards=[
                ShardState(
                    shard=self._shard,
                    owner=owner.node if owner else "",
                    epoch=owner.epoch if owner else 0,
                    number=self._statistics.number,
                    wanted=view.wanted.get(self._shard, ""),
                    followers=[
                        FollowerState(node=name, number=each.number, caught_up=each.caught_up)
                        for name, each in sorted(standings.items())
                    ],
                )
            ],
            format=await self._format(),
        )

    async def _format(self) -> int:
        try:
            async with asyncio.timeout(_LOOK_SECONDS):
                return await formats.final(self._bucket)
        except (BucketError, TimeoutError):
            return 0

    async def move(self, shard: int, node: str) -> int:
        """See ClusterApi."""
        if shard != self._shard:
            raise invalid(f"there is no shard {shard}")
        if node not in self._views.view.nodes:
            raise invalid(f"no node with the name {node[:64]!r} lives")
        try:
            if (epoch := self._epoch_of(node)) == 0:
                await self._coordinator.want(shard, node)
                async with asyncio.timeout(_MOVE_SECONDS):
                    await self._views.until(lambda _: self._epoch_of(node))
                epoch = self._epoch_of(node)
        except (CoordinatorError, TimeoutError) as error:
            with contextlib.suppress(CoordinatorError):
                await self._coordinator.want(shard, None)
            raise TopicsError(
                Reason.NOT_READY, f"the shard has not moved: {error or f'not within {_MOVE_SECONDS:g} s'}"
            ) from None
        return epoch

    def _epoch_of(self, node: str) -> int:
        owner = self._views.view.owners.get(self._shard)
        return owner.epoch if owner is not None and owner.node == node else 0
