"""The parts of a node of a cluster with several shards: the API of its doors, and the ways to the other nodes."""

import asyncio
import logging
import socket
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from topics_cluster.coordinator import Node
from topics_cluster.trust import Secret
from topics_net import background
from topics_server.core import Core, process_sources
from topics_server.lag import LoopLag
from topics_server.node.brokers import NodeBrokers
from topics_server.node.figures import NodeElsewhere, NodeFigures
from topics_server.node.links import PeerTls, note_refused
from topics_server.node.place import Place
from topics_server.node.shard_term import ComingShard, ShardTerm
from topics_server.node.views import Views
from topics_server.processes.metrics import ProcessMetrics
from topics_server.resources import Resources
from topics_server.served_shards import LocalWork, ServedShards
from topics_service.api.access.authorizer import Authorizer
from topics_service.api.checkpoints import Checkpoints
from topics_service.api.kafka import KafkaShards, ReplicaLogs
from topics_service.api.sql.sessions import SessionParts
from topics_service.engine.placement import SQL_SHARD
from topics_service.statistics import NodeStatistics
from topics_shards.process import ProcessObjects
from topics_shards.remote import RemoteShards, remote_methods
from topics_shards.shards import Shard
from topics_shards.wire.client import Channel
from topics_shards.wire.handshake import Identity
from topics_shards.wire.server import ShardServer
from topics_shards.wire.tcp import ALPN, tcp

log: Final = logging.getLogger("topics.cluster")

_DRAIN_SECONDS: Final = 0.2


class NodeShards(RemoteShards):
    """All shards of a cluster, as one node reaches them: those that it owns come and go."""

    def __init__(self, count: int, number: int) -> None:
        """`number` is that of this node."""
        self.held: dict[int, Shard] = {}
        self.channels: dict[int, Channel] = {}
        super().__init__(count, self.held, self.channels, remote_methods())
        self.process = number
        self.number_bytes = 4

    def direct(self, shard: int) -> Shard | None:
        """See Shards: no shard stays here for good."""
        return None

    @property
    def is_alone(self) -> bool:
        """See Shards: other nodes may join."""
        return False

    def is_another(self, process: int) -> bool:
        """See Shards."""
        return self.number_of(process) in self.channels


class NodeComposition:
    """See `listeners.Served`. Belongs to the event loop: `open` comes first, and `close` last."""

    def __init__(
        self,
        resources: Resources,
        me: Node,
        *,
        secret: Secret,
        tls: PeerTls,
        views: Views,
        places: Callable[[], Mapping[int, Place]],
        replica: Callable[[int], ReplicaLogs | None],
        is_ready: Callable[[], bool],
        authorizer: Authorizer,
        statistics: NodeStatistics,
    ) -> None:
        """`places` gives the place of each shard, `replica` this node's replica of one; `is_ready` says whether the
        replicas of this node are ready."""
        self.authorizer = authorizer
        self.checkpoints: Checkpoints | None = None
        self.lag = lag = LoopLag()
        self.cores: dict[int, Core] = {}
        self._resources = resources
        self._me = me
        self._views = views
        self._places = places
        self._tls = tls
        self._identity = Identity(me.name, me.cluster, secret)
        self._channels: dict[str, Channel] = {}  # by name of the node
        self._addresses: dict[str, str] = {}
        self._numbers: dict[str, int] = {}
        self._is_draining = False
        self._was_whole = False  # each shard has had an owner since the start; calls wait for one that is on its way
        self._tasks: list[asyncio.Task[None]] = []
        self.shards = shards = NodeShards(me.shards, me.number)
        objects = ProcessObjects()
        self._serving: dict[int, Shard] = {shards.number_of(me.number): objects}
        self._server = ShardServer(self._serving, remote_methods(), me.name)
        self.figures = NodeFigures(
            me.shards,
            self.cores,
            is_ready=lambda: is_ready() and self._was_whole,
            is_draining=lambda: self._is_draining,
        )
        sources = process_sources(lag, authorizer, resources.traces.statistics)
        metrics = ProcessMetrics(lambda: [core.api.metrics for core in self.cores.values()], sources, node=statistics)
        self._served = served = ServedShards(
            resources,
            shards,
            metrics,
            self.figures,
            authorizer=authorizer,
            lag=lag,
            others=self._others,
            brokers=NodeBrokers(me, views),
            replica=replica,
        )
        metrics.others = served.reports
        served.api.zones = views.shards_in
        self.api, self.audit = served.api, served.audit
        served.objects[0].shard_figures = self.figures.here
        objects.add(*served.objects)

    async def open(self, sock: socket.socket) -> None:
        """Take the calls of other nodes at a bound socket from now on. Raises OSError."""
        common = self._resources.certificates.common
        context = None if common is None else common.context([ALPN])
        await self._server.listen_tcp(
            sock, context, self._identity, lambda peer, cause: note_refused(self.audit, peer, cause)
        )
        self._tasks = [
            background.start(self.lag.run()),
            background.start(self.figures.measure()),
            background.start(self.figures.follow(self.shards, self._others)),
            background.start(self._served.follow_users(self._owner_of_users)),
        ]

    # ------------------------------------------------------------ terms

    def elsewhere(self, shard: int) -> NodeElsewhere:
        """The figures of the other shards."""
        return NodeElsewhere(self.figures, shard)

    def connect(self, core: Core) -> None:
        """Let a shard of which this node is becoming the owner reach the others."""
        self._served.connect(core.api)

    def enter(self, term: ShardTerm) -> LocalWork:
        """Let calls come to a shard that this node owns, and begin its work."""
        number = term.ownership.shard
        work = self._served.begin(term.core, term.standpoint)
        self.cores[number] = term.core
        self.shards.held[number] = self._serving[number] = term.shard
        self.shards.moved()
        return work

    def leave(self, term: ShardTerm) -> None:
        """Let no call come to a shard any more."""
        number = term.ownership.shard
        if self.shards.held.get(number) is term.shard:
            del self.shards.held[number], self._serving[number], self.cores[number]

    # ------------------------------------------------------ other nodes

    def heard(self) -> None:
        """Look at the nodes that live, and at where the shards are."""
        nodes = {name: node for name, node in self._views.view.nodes.items() if name != self._me.name}
        for name, channel in [*self._channels.items()]:
            node = nodes.get(name)
            if node is None or node.addresses.shards != self._addresses[name]:
                channel.close()
                del self._channels[name]
        for name, node in nodes.items():
            address = node.addresses.shards
            if address and name not in self._channels:
                host, _, port = address.rpartition(":")
                self._addresses[name] = address
                self._numbers[name] = self.shards.number_of(node.number)
                self._channels[name] = Channel(
                    tcp(host, int(port), lambda: self._tls.context(ALPN)),
                    name,
                    self._me.name,
                    identity=self._identity,
                    address=node.addresses.grpc,
                )
        self._reach()

    def _reach(self) -> None:
        """Lead the calls on each shard to its owner."""
        by_address = {self._addresses[name]: channel for name, channel in self._channels.items()}
        channels = {self._numbers[name]: channel for name, channel in self._channels.items()}
        places = self._places()
        self._was_whole = self._was_whole or all(place.is_known for place in places.values())
        for shard, place in places.items():
            self._expect(shard, place)
            owner = place.addresses
            channel = None if owner is None else by_address.get(owner.shards)
            if channel is not None:
                channels[shard] = channel
        known = self.shards.channels
        if channels != known:
            known.clear()
            known.update(channels)
            self.shards.moved()

    moved = _reach
    """Called when a shard is somewhere else than before, or is coming here."""

    def _expect(self, shard: int, place: Place) -> None:
        """Hold the calls of other nodes on a shard that is coming here."""
        if place.is_coming:
            self._serving.setdefault(shard, ComingShard(place))
        elif isinstance(self._serving.get(shard), ComingShard):
            del self._serving[shard]

    def shard_of(self, topic: str, partition: int) -> int:
        """The shard of a partition, as far as this node knows."""
        return self._served.shard_of(topic, partition)

    def _others(self) -> Iterable[int]:
        return [self._numbers[name] for name in self._channels]

    def _owner_of_users(self) -> int | None:
        owner = self._views.view.owners.get(SQL_SHARD)
        return self._numbers[owner.node] if owner is not None and owner.node in self._channels else None

    # ------------------------------------------------------------------ see Served

    async def kafka(self) -> KafkaShards:
        """See `listeners.Served`. Waits for all shards."""
        return await self._served.kafka()

    def postgres(self) -> SessionParts:
        """See `listeners.Served`."""
        return self._served.postgres()

    def drain(self) -> None:
        """Stop taking calls, and end the waits of those under way."""
        self._is_draining = True
        self.api.drain()

    async def close(self) -> None:
        """End the calls between nodes, when none of them has any of clients."""
        await self._served.stop_kafka()
        await self._served.stop_postgres()
        for task in self._tasks:
            task.cancel()
        await self._server.drain(_DRAIN_SECONDS)
        for channel in self._channels.values():
            channel.close()
        await self._server.close()
