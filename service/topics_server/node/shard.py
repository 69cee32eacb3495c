"""One shard at a node: where it is, how calls get there, and the replica while the node keeps one."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from topics_cluster.bucket import Bucket
from topics_cluster.coordinator import Coordinator, Node, Owner, Session
from topics_cluster.forward_grpc import GrpcForwarder
from topics_cluster.forward_http import ForwardingApp
from topics_cluster.owner_search import not_owner
from topics_cluster.store import ShardStore
from topics_cluster.takeover import Ownership
from topics_cluster.trust import Origin, Signer
from topics_net import background
from topics_server.listeners import gateway_settings
from topics_server.node.acceptance import Acceptance
from topics_server.node.directory import Directory
from topics_server.node.gate import LostShardError
from topics_server.node.links import PeerTls
from topics_server.node.peers import (
    PROGRESS,
    STANDPOINT,
    FollowerProgress,
    Followers,
    Peers,
    Progress,
    Standpoint,
    ask_of,
    read_progress,
    read_standpoint,
)
from topics_server.node.place import Place
from topics_server.node.polls import Polls
from topics_server.node.probes import NodeProbes
from topics_server.node.reads import FollowerReads
from topics_server.node.replica import Replica
from topics_server.node.surroundings import Connections, Surroundings
from topics_server.node.term import Term
from topics_server.node.views import Views
from topics_server.resources import Resources
from topics_service.api.access.authorizer import Authorizer
from topics_service.engine.clock import Clock
from topics_service.statistics import NodeStatistics, ShardStatistics

log: Final = logging.getLogger("topics.cluster")

T = TypeVar("T")

_ASK_SECONDS: Final = 1.0


@dataclass(frozen=True, kw_only=True)
class NodeParts:
    """All that a node has once, whatever its number of shards."""

    resources: Resources
    clock: Clock
    bucket: Bucket
    coordinator: Coordinator
    views: Views
    authorizer: Authorizer
    signer: Signer
    tls: PeerTls
    probes: NodeProbes
    statistics: NodeStatistics
    polls: Polls


@dataclass(frozen=True, kw_only=True)
class Membership:
    """The node as it has joined the cluster."""

    me: Node
    session: Session


class NoConnections:
    """The connections of a shard that serves none of its own."""

    async def serve(self, term: Term) -> None:
        """See Connections."""

    async def pass_on(self, seconds: float = 0.0) -> None:
        """See Connections."""


class NodeShard:
    """A shard of the cluster at this node. Belongs to the event loop."""

    def __init__(self, number: int, parts: NodeParts) -> None:
        self.number: Final = number
        self.place = Place()
        self.followers = Followers()
        self.statistics = ShardStatistics()
        settings = parts.resources.settings
        self.acceptance = Acceptance(self.place, self.ask_standpoint, parts.statistics)
        owner, on_refused = self.place.owner, self.acceptance.refused
        self.http = ForwardingApp(
            owner,
            parts.signer,
            tls=parts.tls.context,
            max_connections=settings.max_connections,
            idle_seconds=min(20.0, settings.header_timeout_seconds / 2),
            on_refused=on_refused,
        )
        self.grpc = GrpcForwarder(owner, parts.signer, credentials=parts.tls.credentials, on_refused=on_refused)
        self.reads = FollowerReads(
            parts.clock,
            gateway_settings(settings),
            parts.probes,
            authorizer=parts.authorizer,
            standpoint=self.ask_standpoint,
            forward=self.grpc.handler,
            is_ready=lambda: self.is_ready,
            observer=parts.resources.traces.grpc,
            traced=parts.resources.traces.app,
            statistics=parts.statistics,
        )
        self.replica: Replica | None = None
        self._parts = parts
        self._name = settings.node_name
        self._directory: Directory | None = None
        self._life: asyncio.Task[None] | None = None

    # ------------------------------------------------------- its replica

    @property
    def is_kept(self) -> bool:
        """True while the node keeps a replica."""
        return self.replica is not None

    @property
    def is_ready(self) -> bool:
        """See Replica. False without one."""
        return self.replica is not None and self.replica.is_ready

    @property
    def is_warm(self) -> bool:
        """See Replica. False without one."""
        return self.replica is not None and self.replica.is_warm

    def directory(self, membership: Membership, count: int) -> Directory:
        """The place of the replica on the disk, in a cluster with that number of shards."""
        if self._directory is None:
            me = membership.me
            resources = self._parts.resources
            if count > 1:
                resources = resources.for_shard(self.number, count)
            bucket = self._parts.bucket
            self._directory = Directory(resources, bucket, self.number, cluster=me.cluster, node=me.name)
        return self._directory

    def begin(
        self,
        membership: Membership,
        directory: Directory,
        *,
        surroundings: Surroundings,
        connections: Connections,
        make_term: Callable[["NodeShard", ShardStore, Ownership], Term],
        set_serving: Callable[[bool], None],
    ) -> None:
        """Keep a replica, until `end`."""
        parts, me = self._parts, membership.me
        self.replica = replica = Replica(
            self.number,
            me,
            bucket=parts.bucket,
            coordinator=parts.coordinator,
            session=membership.session,
            views=parts.views,
            directory=directory,
            peers=Peers(parts.signer, me.name, parts.tls.credentials, self.acceptance.refused),
            followers=self.followers,
            place=self.place,
            reads=self.reads,
            polls=parts.polls,
            surroundings=surroundings,
            connections=connections,
            make_term=lambda store, ownership: make_term(self, store, ownership),
            set_serving=set_serving,
            leave=self._leave,
            statistics=self.statistics,
        )
        self._life = background.start(replica.run())
        self.heard()

    async def end(self, *, removes: bool = False) -> None:
        """Keep the replica no longer: the shard is handed over if it is owned here; `removes` is whether the directory
        goes as well. Raises what the replica failed of."""
        replica, life = self.replica, self._life
        if replica is None or life is None:
            return
        replica.stop(removes=removes)
        await asyncio.wait((life,))
        if self.replica is replica:
            self.replica = self._life = None
        life.result()

    @property
    def life(self) -> "asyncio.Task[None] | None":
        """The replica's task."""
        return self._life

    def heard(self) -> None:
        """Look at a new view of the cluster."""
        if self.replica is not None:
            self.replica.heard()
            return
        owner = self._parts.views.view.owners.get(self.number)
        is_there = owner is not None and owner.epoch and owner.node != self._name
        self.place.elsewhere(owner.addresses if owner is not None and is_there else None)
        if owner is not None:
            self.statistics.epoch = max(self.statistics.epoch, owner.epoch)

    def measure(self) -> None:
        """Take the figures that change with time."""
        term = self.place.term
        self.statistics.unacknowledged_bytes = 0 if term is None else term.uploader.unacknowledged_bytes

    # ---------------------------------------------------- between nodes

    async def standpoint(self) -> Standpoint:
        """See OwnedShard."""
        term = self.place.term
        if term is None:
            raise not_owner()
        try:
            return await term.standpoint()
        except LostShardError as error:
            term.lose(error)
            raise not_owner() from error

    async def ask_standpoint(self) -> Standpoint:
        """Ask the owner for its. Raises `not_ready`, which is a DistrustedError if the owner refuses the call."""
        return await self._ask(STANDPOINT, read_standpoint)

    async def progress(self) -> Progress:
        """See OwnedShard."""
        if self.place.term is None:
            raise not_owner()
        followers = [
            FollowerProgress(node=name, number=each.number, caught_up=each.caught_up)
            for name, each in sorted(self.followers.standings.items())
        ]
        return Progress(number=self.statistics.number, followers=followers)

    async def find_progress(self) -> Progress:
        """The progress of the followers, from the owner. Raises as `ask_standpoint`."""
        return await (self.progress() if self.place.term is not None else self._ask(PROGRESS, read_progress))

    async def _ask(self, method: str, read: Callable[[bytes], T]) -> T:
        reply = await self.grpc.ask(method, ask_of(self.number), Origin(self._name, ""), _ASK_SECONDS)
        try:
            return read(reply)
        except msgspec.MsgspecError:
            raise not_owner() from None

    async def _leave(self, owner: Owner) -> None:
        """End what is under way at an owner that is lost."""
        self.http.leave(owner.addresses.http)
        await self.grpc.leave(owner.addresses.grpc)

    async def close(self) -> None:
        """Close the connections to its owner."""
        self.acceptance.stop()
        self.http.close()
        await self.grpc.close()
