"""All that happens to the nodes of a cluster with several shards, to one node or shard after the other."""

import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final

from sdk.cli.runner import Cli

from support.cluster import Cluster, Node
from support.network import Network
from support.waiting import poll

READY: Final = 120.0
"""Seconds until each shard has a follower."""
CUT_SECONDS: Final = (1.0, 8.0)
"""Seconds for which a cut lasts: shorter than a lease, or much longer."""


class Disruptions:
    """Each ends with all nodes running and nothing cut."""

    def __init__(self, cluster: Cluster, rng: random.Random, network: Network) -> None:
        """The nodes, the store and etcd are hosts of `network`."""
        self._cluster = cluster
        self._rng = rng
        self._network = network
        self.kinds: dict[str, Callable[[], float]] = {
            "kill": self.kill,
            "sleep": self.sleep,
            "restart": self.restart,
            "drain": self.drain,
            "move": self.move,
            **{f"cut from {what}": partial(self.cut, what) for what in ("etcd", "store", "a node", "nodes", "all")},
        }
        """By name; each returns the moment, by the monotonic clock, at which it began."""

    def cause(self, kind: str) -> float:
        """Cause one, once each shard can be taken over."""
        self._cluster.wait_for_followers(1, READY)
        time.sleep(self._rng.uniform(0, 0.3))  # the moment within a batch, a PUT or a claim is any
        return self.kinds[kind]()

    def kill(self) -> float:
        """Kill a node, and start it again once its shards have other owners."""
        node = self._victim()
        began = time.monotonic()
        node.kill()
        self._cluster.wait_until_taken_over(node)
        node.start()
        return began

    def sleep(self) -> float:
        """Stop a node without its noticing, until its shards have had other owners for a while."""
        node = self._victim()
        began = time.monotonic()
        node.signal(signal.SIGSTOP)
        try:
            self._cluster.wait_until_taken_over(node)
            time.sleep(self._rng.uniform(0, 2))
        finally:
            node.signal(signal.SIGCONT)
        return began

    def restart(self) -> float:
        """Restart a node, which hands its shards over."""
        node = self._victim()
        began = time.monotonic()
        assert node.stop() == 0, node.log[-3000:]
        node.start()
        return began

    def drain(self) -> float:
        """Drain a node, let it own shards again, and move those that belong there."""
        node = self._victim()
        cli = Cli(self._rng.choice(self._cluster.nodes).grpc_target)
        began = time.monotonic()
        cli("cluster", "drain", node.name)
        poll(lambda: not self._cluster.owned(node), READY, self._cluster.logs)  # leases of the others may end
        cli("cluster", "undrain", node.name)
        cli("cluster", "rebalance")
        poll(lambda: self._cluster.owned(node), READY, self._cluster.logs)
        return began

    def move(self) -> float:
        """Move a shard to a node that does not own it, whether it follows it or not."""
        shard, owner = self._rng.choice([*self._cluster.owners().items()])
        target = self._rng.choice([node for node in self._cluster.nodes if node.name != owner])
        began = time.monotonic()

        def is_moved() -> bool:
            try:
                Cli(target.grpc_target)("cluster", "move", "--shard", shard, target.name)
            except AssertionError as refusal:
                if "catching up" not in str(refusal):  # which is retriable: it gets the shard after that
                    raise
                return False
            return True

        poll(is_moved, READY, self._cluster.logs)
        return began

    def cut(self, what: str) -> float:
        """Cut a node off for a while, from the store, etcd, one or all of the other nodes, or all of these and clients.

        In every third case packets vanish in one direction only.
        """
        node = self._rng.choice(self._cluster.nodes)
        others = [each.name for each in self._cluster.nodes if each is not node]
        ends = {"a node": [self._rng.choice(others)], "nodes": others, "all": ["store", "etcd", "clients", *others]}
        way = self._rng.choice(["both", "both", "both", "both", "to it", "from it"])
        began = time.monotonic()
        try:
            for end in ends.get(what, [what]):
                if way != "from it":
                    self._network.cut_from(node.name, end)
                if way != "to it":
                    self._network.cut_from(end, node.name)
            time.sleep(self._rng.uniform(*CUT_SECONDS))
        finally:
            self._network.heal()
        return began

    def _victim(self) -> Node:
        """One of the nodes that own several shards."""
        owned = Counter(self._cluster.owners().values())
        return self._cluster[self._rng.choice(sorted(name for name, count in owned.items() if count > 1))]
