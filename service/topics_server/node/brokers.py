"""The nodes of a cluster as brokers of Kafka, by the newest view of the coordinator."""

from collections.abc import Iterable, Sequence

from topics_cluster.coordinator import Node
from topics_server.node.views import Views, followers, owner
from topics_service.api.kafka import Broker


class NodeBrokers:
    """See Brokers."""

    def __init__(self, me: Node, views: Views) -> None:
        self._me = me
        self._views = views
        self._epochs: dict[int, int] = {}

    @property
    def me(self) -> Broker:
        """See Brokers."""
        return _broker(self._me)

    @property
    def revision(self) -> int:
        """See Brokers."""
        return self._views.view.revision

    def nodes(self) -> Sequence[Broker]:
        """See Brokers. A node that has lost its lease counts itself all the same: it is asked."""
        nodes = {self._me.name: self._me, **self._views.view.nodes}
        return _ordered(node for node in nodes.values() if node.addresses.kafka)

    def owner(self, shard: int) -> tuple[Broker | None, int]:
        """See Brokers."""
        view = self._views.view
        claimed = view.owners.get(shard)
        epoch = self._epochs[shard] = max(self._epochs.get(shard, 0), 0 if claimed is None else claimed.epoch)
        node = owner(view, shard)
        return None if node is None else _broker(node), epoch

    def followers(self, shard: int) -> Sequence[Broker]:
        """See Brokers."""
        return _ordered(node for node in followers(self._views.view, shard) if node.addresses.kafka)


def _ordered(nodes: Iterable[Node]) -> list[Broker]:
    return sorted(map(_broker, nodes), key=lambda broker: broker.node_id)


def _broker(node: Node) -> Broker:
    host, _, port = (node.addresses.kafka_advertised or node.addresses.kafka).rpartition(":")
    return Broker(node.number, host.strip("[]"), int(port or 0), node.zone)
