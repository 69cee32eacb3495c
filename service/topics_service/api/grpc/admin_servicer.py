"""AdminService over gRPC: the probes, the metrics, where bulk readers are, checkpoints, and the cluster."""
# ruff: noqa: N802  # methods carry the names of the proto

import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from grpc.aio import ServicerContext

import topics_service
from topics_proto.v1 import admin_service_pb2 as pb
from topics_proto.v1 import admin_service_pb2_grpc
from topics_service.api.access.authorizer import check_names
from topics_service.api.checkpoints import CheckpointCalls
from topics_service.api.cluster import ClusterApi
from topics_service.api.grpc.guard import caller
from topics_service.api.metrics.collector import JSON_TYPE, TEXT_TYPE, Exposition
from topics_service.api.observers import Facts, Observers
from topics_service.api.scheduling.pressure import Shortage
from topics_service.engine.errors import Reason, TopicsError, invalid
from topics_service.engine.model import ReadyState

Context = ServicerContext[Any, Any]

_SHARDS_LOGGED: Final = 64


class BulkReader(NamedTuple):
    """A process that serves bulk reads; `host` is empty for the server's own."""

    host: str
    port: int
    zone: str = ""


class BulkReaders(NamedTuple):
    """The bulk readers of a partition, and its owner in a cluster with several shards."""

    readers: Sequence[BulkReader] = ()
    owner: BulkReader | None = None


FindBulkReaders = Callable[[str, int], BulkReaders]
"""Finds those that take calls on a topic's partition now."""


class Probed(Protocol):
    """The source of the probes: a TopicsApi, or a node of a cluster that has none at present."""

    @property
    def metrics(self) -> Exposition: ...
    @property
    def observers(self) -> Observers: ...
    def ready(self) -> ReadyState:
        """The readiness, with the cause if it is not ready."""
        ...

    def shortage(self) -> Shortage | None:
        """The cause for which a ready server refuses all writes, or None."""
        ...


def no_bulk_readers(topic: str, partition: int) -> BulkReaders:
    """The bulk readers of a server that has none."""
    return BulkReaders()


class AdminServicer(admin_service_pb2_grpc.AdminServiceServicer):
    """Answers in every state of the server; `uptime_ms` counts from the making of this object.

    `bulk_readers` are the answer of ListBulkReaders. Without `checkpoints` there are none, and without `cluster` the
    server is no node of one.
    """

    def __init__(
        self,
        api: Probed,
        bulk_readers: FindBulkReaders = no_bulk_readers,
        checkpoints: CheckpointCalls | None = None,
        cluster: ClusterApi | None = None,
    ) -> None:
        self._api = api
        self._bulk_readers = bulk_readers
        self._checkpoints = checkpoints
        self._cluster = cluster
        self._started = time.monotonic()

    async def GetHealth(self, request: pb.GetHealthRequest, context: Context) -> pb.GetHealthResponse:
        """See proto/topics/v1/admin_service.proto, as for every method here."""
        uptime_ms = int((time.monotonic() - self._started) * 1e3)
        return pb.GetHealthResponse(status="ok", version=topics_service.__version__, uptime_ms=uptime_ms)

    async def GetReady(self, request: pb.GetReadyRequest, context: Context) -> pb.GetReadyResponse:
        state = self._api.ready()
        if not state.ready:
            reason = Reason.SHUTTING_DOWN if state.reason == Reason.SHUTTING_DOWN.code else Reason.NOT_READY
            raise TopicsError(reason, f"the server is {state.reason}", {"replay_progress": state.replay_progress})
        shortage = self._api.shortage()
        return pb.GetReadyResponse(
            status="ready",
            wal_replay_complete=True,
            topics=state.topics,
            writes_refused=None if shortage is None else pb.WritesRefused(**shortage._asdict()),
        )

    async def GetMetrics(self, request: pb.GetMetricsRequest, context: Context) -> pb.GetMetricsResponse:
        metrics = self._api.metrics
        if request.format == pb.METRICS_FORMAT_JSON:
            return pb.GetMetricsResponse(content_type=JSON_TYPE, body=await metrics.json())
        return pb.GetMetricsResponse(content_type=TEXT_TYPE, body=await metrics.text(caller().prefixes))

    async def ListBulkReaders(self, request: pb.ListBulkReadersRequest, context: Context) -> pb.ListBulkReadersResponse:
        if request.topic:
            check_names(caller(), [request.topic])
        found = self._bulk_readers(request.topic, request.partition)
        readers = [pb.BulkReader(**each._asdict()) for each in found.readers]
        owner = None if found.owner is None else pb.BulkReader(**found.owner._asdict())
        return pb.ListBulkReadersResponse(readers=readers, owner=owner)

    async def CreateCheckpoint(
        self, request: pb.CreateCheckpointRequest, context: Context
    ) -> pb.CreateCheckpointResponse:
        held = await self._own_checkpoints().create(request.ttl_ms)
        return pb.CreateCheckpointResponse(
            checkpoint_id=held.checkpoint_id,
            path=str(held.path),
            created_ms=held.created_ms,
            expires_ms=held.expires_ms,
            topics=held.topics,
            bytes=held.bytes,
        )

    async def ReleaseCheckpoint(
        self, request: pb.ReleaseCheckpointRequest, context: Context
    ) -> pb.ReleaseCheckpointResponse:
        released = await self._own_checkpoints().release(request.checkpoint_id)
        return pb.ReleaseCheckpointResponse(released=released)

    def _own_checkpoints(self) -> CheckpointCalls:
        if self._checkpoints is None:
            raise invalid("this server makes no checkpoints: `topics cluster backup` backs up a cluster with shards")
        return self._checkpoints

    async def GetCluster(self, request: pb.GetClusterRequest, context: Context) -> pb.GetClusterResponse:
        state = await self._own_cluster().state()
        return pb.GetClusterResponse(
            cluster=state.cluster,
            node=state.node,
            nodes=[
                pb.ClusterNode(
                    name=each.name,
                    http=each.http,
                    grpc=each.grpc,
                    kafka=each.kafka,
                    zone=each.zone,
                    version=each.version,
                    oldest_format=each.formats[0],
                    newest_format=each.formats[1],
                    capacity=each.capacity,
                    drained=each.is_drained,
                )
                for each in state.nodes
            ],
            format=state.format,
            shards=[
                pb.ClusterShard(
                    shard=each.shard,
                    owner=each.owner,
                    epoch=each.epoch,
                    number=each.number,
                    wanted=each.wanted,
                    target=each.target,
                    zone=each.zone,
                    followers=[
                        pb.ClusterFollower(node=follower.node, number=follower.number, caught_up=follower.caught_up)
                        for follower in each.followers
                    ],
                )
                for each in state.shards
            ],
        )

    async def MoveShard(self, request: pb.MoveShardRequest, context: Context) -> pb.MoveShardResponse:
        facts: Facts = {"shard": request.shard, "node": request.node}
        with self._api.observers("shard.move", facts, caller()):
            facts["epoch"] = await self._own_cluster().move(request.shard, request.node)
        return pb.MoveShardResponse(epoch=facts["epoch"])

    async def DrainNode(self, request: pb.DrainNodeRequest, context: Context) -> pb.DrainNodeResponse:
        facts: Facts = {"node": request.node, "drained": not request.undo}
        with self._api.observers("node.drain", facts, caller()):
            left = await self._own_cluster().drain(request.node, is_drained=not request.undo)
        return pb.DrainNodeResponse(shards=left)

    async def SetShardZone(self, request: pb.SetShardZoneRequest, context: Context) -> pb.SetShardZoneResponse:
        shards = list(request.shards)
        facts: Facts = {"shards": shards[:_SHARDS_LOGGED], "zone": request.zone}
        with self._api.observers("shard.zone", facts, caller()):
            elsewhere = await self._own_cluster().prefer(shards, request.zone)
        return pb.SetShardZoneResponse(elsewhere=elsewhere)

    def _own_cluster(self) -> ClusterApi:
        if self._cluster is None:
            raise invalid("this server is no node of a cluster")
        return self._cluster
