"""Nodes in the process of a test, each with its doors; shards move between them, through real sockets."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from shards.lives import Life

from topics_service.api.access.auth import UNRESTRICTED
from topics_service.api.access.users import Users
from topics_service.api.metrics.collector import Metrics
from topics_service.api.observers import NO_OBSERVERS
from topics_service.api.scheduling.commit import CommitStatistics, GroupCommit
from topics_service.engine.clock import SystemClock
from topics_service.engine.engine import Engine
from topics_service.engine.limits import Limits
from topics_service.engine.model import AppendReply, AppendRequest, Batch, ConfigInput, ReadyState
from topics_service.storage.memory import MemoryStore
from topics_shards.catalog import ShardedCatalog
from topics_shards.locating import Located
from topics_shards.process import ProcessApi, ProcessObjects
from topics_shards.remote import RemoteShards, remote_methods
from topics_shards.shards import Shard
from topics_shards.topics import ShardedTopics
from topics_shards.wire.client import Channel
from topics_shards.wire.server import ShardServer, unix


def _no_report(_allowed: object) -> Any:
    raise AssertionError("no test asks for metrics over nodes here")


class NodeShards(RemoteShards):
    """All shards, as one node reaches them: none of them stays where it is."""

    number_bytes = 4
    is_alone = False

    def __init__(self, count: int, local: Mapping[int, Shard], owners: Mapping[int, Channel], number: int) -> None:
        super().__init__(count, local, owners, remote_methods())
        self.process = number
        self.others: set[int] = set()
        """The numbers of the other nodes that live."""

    def direct(self, shard: int) -> Shard | None:
        """See Shards."""
        return None

    def is_another(self, process: int) -> bool:
        """See Shards."""
        return process in self.others


class _Health:
    """See `topics_shards.health.Health`."""

    def ready(self) -> ReadyState:
        """See Health."""
        return ReadyState(ready=True, reason="", topics=0, replay_progress=1.0)

    def shortage(self) -> None:
        """See Health."""


class Node:
    """A process that serves the shards that are with it to the other ones, and all shards through its API."""

    def __init__(self, name: str, number: int, count: int, directory: Path, limits: Limits) -> None:
        self.name = name
        self.number = number
        self.path = directory / name
        self.lives: dict[int, Life] = {}
        self.local: dict[int, Shard] = {}
        self.owners: dict[int, Channel] = {}
        self.channels: dict[str, Channel] = {}
        self.served: dict[int, Shard] = {}
        self.server = ShardServer(self.served, remote_methods(), name)
        self.shards = NodeShards(count, self.local, self.owners, number)
        self.located = Located(self.shards)
        engine = Engine(MemoryStore(), SystemClock())  # for its metrics
        self.metrics = Metrics(engine, CommitStatistics())
        self._commit = GroupCommit.for_engine(engine)
        self.api = ShardedTopics(self.located, limits, self.metrics, NO_OBSERVERS, _Health())
        self.catalog = ShardedCatalog(self.shards)
        self.objects = ProcessObjects()
        self.objects.add(self.api.watches, ProcessApi(self.local, _no_report, Users()))
        self.served[self.shards.number_of(number)] = self.objects

    def add(self, life: Life) -> None:
        """Let a shard come here."""
        self.lives[life.number] = life
        self.local[life.number] = self.served[life.number] = life.shard
        self.owners.pop(life.number, None)
        self.shards.moved()
        life.begin(self.located)

    def remove(self, number: int) -> Life:
        """Let a shard leave."""
        del self.local[number], self.served[number]
        return self.lives.pop(number)

    def reach(self, number: int, owner: "Node | None") -> None:
        """Send calls on a shard to that node from now on."""
        if owner is None:
            self.owners.pop(number, None)
        elif owner is not self:
            self.owners[number] = self.channels[owner.name]
        self.shards.moved()

    async def close(self) -> None:
        """End all of it, as if killed."""
        await self.catalog.stop()
        for channel in self.channels.values():
            channel.close()
        for life in list(self.lives.values()):
            await self.remove(life.number).end()
        await self.server.drain(0)
        await self.server.close()
        self._commit.stop()


class Cluster:
    """Nodes, and shards on stores that all of them share. Shard i begins at node i modulo their number."""

    def __init__(self, shards: int, names: tuple[str, ...], directory: Path, limits: Limits | None) -> None:
        self.count = shards
        self.limits = limits
        self.stores = [MemoryStore() for _ in range(shards)]
        self.nodes = {
            name: Node(name, (number + 1) * 0x1000_0001, shards, directory, limits or Limits())
            for number, name in enumerate(names)
        }
        self.owner: dict[int, Node] = {}
        for node in self.nodes.values():
            for other in self.nodes.values():
                if other is not node:
                    channel = node.channels[other.name] = Channel(unix(other.path), other.name, node.name)
                    node.owners[node.shards.number_of(other.number)] = channel
                    node.shards.others.add(other.number)

    async def begin(self) -> None:
        """Serve all shards."""
        nodes = list(self.nodes.values())
        for node in nodes:
            await node.server.listen(node.path)
        for number in range(self.count):
            self.take(number, nodes[number % len(nodes)].name)

    def take(self, number: int, to: str) -> None:
        """Let a shard without an owner begin at a node."""
        node = self.owner[number] = self.nodes[to]
        node.add(Life(number, self.count, self.stores[number], self.limits))
        for other in self.nodes.values():
            if other is not node:
                other.reach(number, node)

    async def hand_over(self, number: int, to: str, *, tells: bool = True) -> None:
        """Move a shard in good order. Without `tells` the other nodes learn of it only when they are told by `tell`."""
        life = self.owner.pop(number).remove(number)
        await life.hand_over()
        if tells:
            self.take(number, to)
        else:
            self.owner[number] = self.nodes[to]
            self.nodes[to].add(Life(number, self.count, self.stores[number], self.limits))

    def tell(self, number: int) -> None:
        """Tell all nodes where a shard is."""
        for node in self.nodes.values():
            node.reach(number, self.owner.get(number))

    async def lose(self, number: int) -> None:
        """Let a shard have no owner: calls under way are lost."""
        await self.owner.pop(number).remove(number).end()
        self.tell(number)

    async def kill(self, name: str) -> list[int]:
        """Kill a node; return its shards, which have no owner then."""
        node = self.nodes.pop(name)
        lost = list(node.lives)
        await node.close()
        for other in self.nodes.values():
            other.shards.others.discard(node.number)
            other.channels.pop(name).close()
            other.owners.pop(other.shards.number_of(node.number))
        for number in lost:
            del self.owner[number]
            self.tell(number)
        return lost

    async def put(self, *topics: str, partition_count: int | None = None, **config: Any) -> None:
        """Make topics, through any node."""
        api = next(iter(self.nodes.values())).api
        for name in topics:
            await api.put_topic(
                name, ConfigInput(**config), principal=UNRESTRICTED, partition_count=partition_count
            )  # fmt: skip

    async def append(self, topic: str, count: int = 1, partition: int = 0) -> AppendReply:
        """Append records, through any node."""
        api = next(iter(self.nodes.values())).api
        batch = Batch(datas=[b"%d" % i for i in range(count)])
        return await api.append(AppendRequest(topic=topic, batch=batch, partition=partition), principal=UNRESTRICTED)


@asynccontextmanager
async def open_cluster(
    shards: int = 3, names: tuple[str, ...] = ("a", "b"), limits: Limits | None = None
) -> AsyncIterator[Cluster]:
    """Nodes that serve all shards."""
    with TemporaryDirectory(prefix="nodes-") as directory:
        cluster = Cluster(shards, names, Path(directory), limits)
        try:
            await cluster.begin()
            yield cluster
        finally:
            await asyncio.gather(*(node.close() for node in cluster.nodes.values()))
