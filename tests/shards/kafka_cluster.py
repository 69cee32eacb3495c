"""Kafka listeners of several nodes over shards that move between them, in the process of a test.

The engines stay where they are; which node owns a shard is what the nodes believe, and calls go to the owner.
"""

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from shards.world import ShardsWorld, open_shards

from topics_kafka.listener import KafkaServer, create_kafka
from topics_kafka.settings import KafkaSettings
from topics_service.api.access.authorizer import Authorizer
from topics_service.api.kafka import Broker
from topics_service.api.observers import NO_OBSERVERS
from topics_service.engine.errors import Reason, TopicsError
from topics_shards.health import LocalHealth
from topics_shards.kafka import ShardedKafka
from topics_shards.locating import Located
from topics_shards.shards import LostCallError, Method, P, R, Shard, Shards, StreamMethod
from topics_shards.topics import ShardedTopics

SETTINGS = KafkaSettings(initial_rebalance_ms=0, min_session_timeout_ms=50)


class View:
    """The view that all nodes have of each other and of the shards; see Brokers."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.nodes: dict[int, Broker] = {}
        self.owners: dict[int, int | None] = {}
        self.epochs: dict[int, int] = {}
        self.warm: dict[int, set[int]] = {shard: set() for shard in range(count)}
        self.revision = 0
        self._changed = asyncio.Event()

    def move(self, shard: int, node: int | None) -> None:
        """Give a shard to a node, in a new epoch; or let it have no owner."""
        if node is not None:
            self.epochs[shard] = self.epochs.get(shard, 0) + 1
        self.owners[shard] = node
        self.change()

    def follow(self, shard: int, *nodes: int) -> None:
        """Let these nodes have warm replicas."""
        self.warm[shard] = set(nodes)
        self.change()

    def change(self) -> None:
        """Tell the nodes that something is different."""
        self.revision += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def owned(self, shard: int, seconds: float = 5.0) -> int:
        """The owner of a shard, once there is one. Raises `not_ready`."""
        try:
            async with asyncio.timeout(seconds):
                while (owner := self.owners[shard]) is None:
                    await self._changed.wait()
                return owner
        except TimeoutError:
            raise TopicsError(Reason.NOT_READY, f"shard {shard} has no owner") from None


class NodeBrokers:
    """See Brokers."""

    def __init__(self, view: View, me: int) -> None:
        self._view = view
        self._me = me

    @property
    def me(self) -> Broker:
        """See Brokers."""
        return self._view.nodes[self._me]

    @property
    def revision(self) -> int:
        """See Brokers."""
        return self._view.revision

    def nodes(self) -> Sequence[Broker]:
        """See Brokers."""
        return [node for _, node in sorted(self._view.nodes.items())]

    def owner(self, shard: int) -> tuple[Broker | None, int]:
        """See Brokers."""
        owner = self._view.owners[shard]
        return (None if owner is None else self._view.nodes.get(owner)), self._view.epochs[shard]

    def followers(self, shard: int) -> Sequence[Broker]:
        """See Brokers."""
        followers = sorted(self._view.warm[shard] - {self._view.owners[shard]})
        return [self._view.nodes[node] for node in followers if node in self._view.nodes]


class NodeShards(Shards):
    """Shards as a node calls them, none of them directly. Counts the calls by method and by the node that is asked."""

    def __init__(self, view: View, me: int, shards: Mapping[int, Shard]) -> None:
        self.count = len(shards)
        self.me = me
        self.calls: Counter[tuple[str, int]] = Counter()
        self.lost_before: Counter[str] = Counter()
        """The number of calls of a method that are lost before they have any effect."""
        self.lost_after: Counter[str] = Counter()
        """The number of those that are lost once they had their effect."""
        self._view = view
        self._shards = shards

    @property
    def local(self) -> Mapping[int, Shard]:  # type: ignore[override]
        """See Shards."""
        return {shard: self._shards[shard] for shard, owner in self._view.owners.items() if owner == self.me}

    def direct(self, shard: int) -> Shard | None:
        """See Shards: each shard may leave."""
        return None

    async def call(self, shard: int, method: Method[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """See Shards."""
        owner = await self._view.owned(shard)
        name = method.__name__
        self.calls[name, owner] += 1
        if self.lost_before[name] > 0:
            self.lost_before[name] -= 1
            raise LostCallError("the node is gone")
        result = await self._shards[shard].run(method, *args, **kwargs)
        if self.lost_after[name] > 0:
            self.lost_after[name] -= 1
            raise LostCallError("the node is gone")
        return result

    def stream(
        self, shard: int, method: StreamMethod[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncGenerator[R, None]:
        """See Shards."""
        return self._shards[shard].stream(method, *args, **kwargs)

    async def begin(
        self, shard: int, method: Method[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> "asyncio.Future[R]":
        """See Shards."""
        await self._view.owned(shard)
        return asyncio.ensure_future(self.call(shard, method, *args, **kwargs))


class Node:
    """One node: a listener for all shards."""

    def __init__(self, world: ShardsWorld, view: View, number: int, zone: str) -> None:
        self.number = number
        self.server: KafkaServer | None = None
        self._world = world
        self._view = view
        self._zone = zone
        self._sock = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._sock.getsockname()[1]
        view.nodes[number] = self._broker
        self._open()

    @property
    def _broker(self) -> Broker:
        return Broker(self.number, "127.0.0.1", self.port, self._zone)

    def _open(self) -> None:
        self._sock.setblocking(False)
        apis = self._world.apis
        self.shards = NodeShards(self._view, self.number, {shard: Shard(api) for shard, api in enumerate(apis)})
        located, first = Located(self.shards), apis[0]
        topics = ShardedTopics(located, first.limits, first.metrics, NO_OBSERVERS, LocalHealth(apis))
        self.kafka = ShardedKafka(topics, located, NodeBrokers(self._view, self.number))

    async def start(self) -> None:
        """Listen."""
        await self.kafka.start(SETTINGS.groups)
        settings = replace(SETTINGS, node_id=self.number)
        authorizer = Authorizer()
        self.server = create_kafka(self.kafka, authorizer, settings, self._sock, host="127.0.0.1", port=self.port)
        await self.server.start()

    async def restart(self) -> None:
        """Listen again, after `die`, at the same address."""
        self._sock = socket.create_server(("127.0.0.1", self.port))
        self._open()
        await self.start()
        self._view.nodes[self.number] = self._broker
        self._view.change()

    async def stop(self) -> None:
        """End the listener."""
        if self.server is not None:
            await self.server.stop(0)
            await self.kafka.stop()

    async def die(self, heir: int | None = None) -> None:
        """End at once; another node takes over, if any."""
        assert self.server is not None
        server, self.server = self.server, None
        del self._view.nodes[self.number]
        for shard, owner in self._view.owners.items():
            if owner == self.number:
                self._view.move(shard, None)  # first, since a server that stops closes the coordinators of its shards
        await server.stop(0)
        await self.kafka.stop()
        for shard, owner in self._view.owners.items():
            if owner is None and heir is not None:
                self._view.move(shard, heir)


class KafkaCluster:
    """Nodes 1 to N; shard s belongs to node s mod N + 1 at first."""

    def __init__(self, world: ShardsWorld, zones: Sequence[str]) -> None:
        self.world = world
        count = len(world.apis)
        self.view = View(count)
        self.nodes = {number: Node(world, self.view, number, zone) for number, zone in enumerate(zones, 1)}
        for shard in range(count):
            self.view.move(shard, shard % len(zones) + 1)

    @property
    def addresses(self) -> str:
        """The nodes that live, as clients have them in their settings."""
        return ",".join(f"127.0.0.1:{node.port}" for _, node in sorted(self.view.nodes.items()))

    def appended(self, topic: str, shard: int) -> int:
        """The number of records that a shard has of a topic."""
        found = self.world.engines[shard].catalog.visible(topic)
        return sum(log.view.head for log in found.logs)


@asynccontextmanager
async def open_cluster(shards: int = 6, zones: Sequence[str] = ("a", "b", "c")) -> AsyncIterator[KafkaCluster]:
    """A node in each zone, listening."""
    async with open_shards(shards, wired=False) as world:
        cluster = KafkaCluster(world, zones)
        try:
            await asyncio.gather(*(node.start() for node in cluster.nodes.values()))
            for api in world.apis:
                api.serve_members(SETTINGS.groups, cluster.nodes[1].kafka.catalog)
            yield cluster
        finally:
            for node in cluster.nodes.values():
                await node.stop()
