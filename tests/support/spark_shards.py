"""A cluster of nodes with several shards, as the tests of Spark and of the lakehouse use it."""

from contextlib import suppress

import requests

from support.cluster import Cluster, Node
from support.waiting import poll
from topics_client.address import Address
from topics_client.connection import Connection

SHARDS = 8


class ShardedCluster(Cluster):
    """Three nodes that share eight shards."""

    @property
    def url(self) -> str:
        """All nodes: `topics://HOST:PORT,HOST:PORT,HOST:PORT`."""
        return f"topics://{','.join(node.grpc_target for node in self.nodes)}"

    def connect(self) -> Connection:
        """A new connection to whichever node answers."""
        return Connection(Address.parse(self.url))

    @property
    def owners(self) -> dict[int, str]:
        """The names of the nodes that own their shards and serve them."""
        claims = {shard: self.claimed(shard) for shard in range(SHARDS)}
        return {shard: claim["node"] for shard, claim in claims.items() if claim is not None and claim["epoch"]}

    def wait_until_shared(self, seconds: float = 90) -> None:
        """Wait until each shard has an owner and a follower that is caught up, and each running node owns one."""

        def is_shared() -> bool:
            owners = self.owners
            return (
                len(owners) == SHARDS
                and {*owners.values()} == {node.name for node in self.running}
                and sum(map(warm_followers, self.running)) >= SHARDS
            )

        poll(is_shared, seconds, lambda: f"owners are {self.owners}; {self.logs()}", pause=0.1)


def warm_followers(node: Node) -> float:
    """The number of shards of which a node is an owner that counts a follower that is caught up."""
    with suppress(requests.RequestException, OSError):
        found = node.metrics()
        return sum(bool(value) for name, value in found.items() if name.startswith("topics_cluster_followers{"))
    return 0
