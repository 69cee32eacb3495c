"""The brokers as a client sees them: those that it may connect to, and those that it takes for leaders.

Any node answers any request, for partitions and groups of any shard. Leaders and coordinators are the nodes where a
request takes no step to another one. A client that names its zone sees the nodes of that zone only, as long as any of
them lives: where the owner of a shard is in another zone, a node of the client's zone stands for it and passes requests
on. That is the same node for all clients of the zone, one with a warm replica if there is any.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Final

from topics_kafka.protocol import ErrorCode, Message
from topics_service.api.kafka import Broker, Brokers

NOBODY: Final = -1

_CONTROLLER_SHARD: Final = 0
_MAX_LISTS: Final = 1024


class OneBroker:
    """The listener as the only broker; see Brokers."""

    def __init__(self, broker: Callable[[], Broker], epoch: Callable[[], int]) -> None:
        """Both are called for each view."""
        self._broker = broker
        self._epoch = epoch

    @property
    def me(self) -> Broker:
        """See Brokers."""
        return self._broker()

    @property
    def revision(self) -> int:
        """See Brokers."""
        return hash((self._broker(), self._epoch()))

    def nodes(self) -> Sequence[Broker]:
        """See Brokers."""
        return (self._broker(),)

    def owner(self, _shard: int) -> tuple[Broker | None, int]:
        """See Brokers: the broker owns everything."""
        return self._broker(), self._epoch()

    def followers(self, _shard: int) -> Sequence[Broker]:
        """See Brokers."""
        return ()


class BrokerView:
    """The brokers as some clients see them, at one revision."""

    def __init__(self, brokers: Brokers, nodes: Sequence[Broker]) -> None:
        """`nodes` are those that the clients see."""
        self.nodes = nodes
        self._brokers = brokers
        self._me = brokers.me.node_id
        self._ids = {node.node_id for node in nodes}
        self._leaders: dict[int, tuple[Broker | None, int]] = {}
        self._partitions: dict[tuple[int, ...], list[dict[str, Any]]] = {}

    def leader(self, shard: int) -> tuple[Broker | None, int]:
        """The node that stands for the owner of a shard, and the shard's epoch; None while there is no owner."""
        found = self._leaders.get(shard)
        if found is None:
            found = self._leaders[shard] = self._leader(shard)
        return found

    def _leader(self, shard: int) -> tuple[Broker | None, int]:
        owner, epoch = self._brokers.owner(shard)
        if owner is None or owner.node_id in self._ids:
            return owner, epoch
        warm = [node for node in self._brokers.followers(shard) if node.node_id in self._ids]
        candidates = warm or self.nodes
        return max(candidates, key=lambda node: _score(shard, node.node_id), default=None), epoch

    def reader(self, shard: int, zone: str) -> int:
        """The node with a warm replica of a shard from which clients in a zone read (KIP-392), the same for all; NOBODY
        if they read from the leader: it is in the zone, or no replica is."""
        leader, _ = self.leader(shard)
        if leader is None or leader.zone == zone:
            return NOBODY
        warm = (node.node_id for node in self._brokers.followers(shard) if node.zone == zone)
        there = (node_id for node_id in warm if node_id in self._ids)
        return max(there, key=lambda node_id: _score(shard, node_id), default=NOBODY)

    def replicas(self, shard: int) -> list[int]:
        """The nodes with a warm replica of a shard, the leader first."""
        leader, _ = self.leader(shard)
        found = [] if leader is None else [leader.node_id]
        warm = (node.node_id for node in self._brokers.followers(shard))
        return found + [node for node in warm if node in self._ids and node not in found]

    @property
    def controller(self) -> int:
        """The node for requests of admins: that of shard 0, or any other while that has no owner."""
        leader, _ = self.leader(_CONTROLLER_SHARD)
        if leader is not None:
            return leader.node_id
        if self._me in self._ids:
            return self._me
        return self.nodes[0].node_id if self.nodes else NOBODY

    def is_answered_here(self, shard: int) -> bool:
        """Return whether this node tells of a shard where each node tells of its own ones: it stands for the owner, or
        is none of those that the client would ask."""
        leader, _ = self.leader(shard)
        return self._me not in self._ids or (leader is not None and leader.node_id == self._me)

    def leads_elsewhere(self, shard: int) -> bool:
        """Return whether clients are led to another node for a shard."""
        leader, _ = self.leader(shard)
        return leader is not None and leader.node_id != self._me

    def lead(self, response: Message, answer: dict[str, Any], shard: int) -> None:
        """Name the leader of a shard in the answer for a partition of Produce or Fetch: clients need not ask for it."""
        leader, epoch = self.leader(shard)
        if leader is None:
            return
        answer["current_leader"] = {"leader_id": leader.node_id, "leader_epoch": epoch}
        endpoints: list[Message] = response.setdefault("node_endpoints", [])
        if all(each["node_id"] != leader.node_id for each in endpoints):
            endpoints.append(shown(leader))

    def partitions(self, first: int, shards: int, count: int) -> list[dict[str, Any]]:
        """The partitions of a topic in Metadata, the first of which is in the shard `first` of all `shards`, each other
        one in the next. Cached: do not modify."""
        found = self._partitions.get((first, count))
        return found or self.partitions_in([(first + number) % shards for number in range(shards)], (first, count))

    def partitions_in(self, shards: Sequence[int], key: tuple[int, ...]) -> list[dict[str, Any]]:
        """The same of one whose partitions are in these shards in turn; `key` names them, and ends with the number of
        partitions."""
        count = key[-1]
        found = self._partitions.get(key)
        if found is None:
            if len(self._partitions) >= _MAX_LISTS:
                self._partitions.clear()
            each = [*map(self._partition, shards[:count])]
            found = self._partitions[key] = [
                {"partition_index": number, **each[number % len(each)]} for number in range(count)
            ]
        return found

    def _partition(self, shard: int) -> dict[str, Any]:
        leader, epoch = self.leader(shard)
        replicas = self.replicas(shard)
        return {
            "error_code": ErrorCode.NONE if leader is not None else ErrorCode.LEADER_NOT_AVAILABLE,
            "leader_id": NOBODY if leader is None else leader.node_id,
            "leader_epoch": epoch,
            "replica_nodes": replicas,
            "isr_nodes": replicas,
        }

    def listed(self, id_name: str = "node_id") -> list[Message]:
        """The nodes as responses have them."""
        return [shown(node, id_name) for node in self.nodes]


class BrokerViews:
    """The views of clients in each zone, and of those without one."""

    def __init__(self, brokers: Brokers) -> None:
        self.brokers = brokers
        self._revision: int | None = None
        self._all: BrokerView
        self._zones: dict[str, BrokerView] = {}

    def of(self, zone: str | None = None) -> BrokerView:
        """The view of clients in a zone. Those without one see all nodes, as do those whose zone has no node."""
        revision = self.brokers.revision
        if revision != self._revision:
            self._revision = revision
            nodes = self.brokers.nodes()
            self._all = BrokerView(self.brokers, nodes)
            self._zones = {
                name: BrokerView(self.brokers, [node for node in nodes if node.zone == name])
                for name in {node.zone for node in nodes}
                if name
            }
        return self._zones.get(zone, self._all) if zone else self._all


def shown(node: Broker, id_name: str = "node_id") -> Message:
    """A node as responses have it."""
    return {id_name: node.node_id, "host": node.host, "port": node.port, "rack": node.zone or None}


def _score(shard: int, node_id: int) -> bytes:
    """The weight of a node for a shard: the highest wins, so a node that comes or goes changes nothing else."""
    return hashlib.blake2b(f"{shard} {node_id}".encode(), digest_size=8).digest()
